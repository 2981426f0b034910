"""Make a model family of a layer in the notation, whose letters are the family's sizes."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import lru_cache

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Product
from learncost.ir.loop import walk
from learncost.ir.stated import Limit, size_names
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.layers.layer import Layer
from learncost.models.expression import names as names_in
from learncost.models.families import Family

RUN = ("batch_size", "seq_len", "target_len")
"""The spellings of a run's lengths."""

LENGTHS = ("N", "M")
"""The axes of positions, whose lengths are `seq_len` and `target_len`; if there is only one, its length is
`seq_len`."""


def letters(layer: Layer) -> Mapping[str, None]:
    """Return the names of all sizes of a layer: those of its table, and those that determine them."""
    others = (name for rule in layer.follows.values() for name in sorted(names_in(rule)))
    return {**size_names(layer.table), **dict.fromkeys(others)}


def family_of_layer(layer: Layer) -> Family:
    """Return the family of a model that is this layer.

    Sizes that the layer fixes are defaults, all others are required. B, M and N belong to the run: the number of
    sequences and their lengths, which a run must give if the layer leaves them open.
    """
    return _family(IdentityKey(layer))


def check_open(layer: Layer, name: str, given: Container[str]) -> None:
    """Refuse a run that leaves sizes of a layer open; `given` are the run's sizes. The default batch of a module is
    1."""
    names = letters(layer)
    typed = {"B": ("batch_size",), "M": ("seq_len", "target_len"), "N": ("seq_len", *(() if "M" in names else RUN))}
    known = {*layer.sizes, *layer.follows, *(("B",) if layer.steps else ())}
    left = [size for size in names if size not in known and not any(s in given for s in typed.get(size, (size,)))]
    if not left:
        return
    flags = f"give {' '.join(f'--{size} N' for size in left)}"
    if undecided := [size for size in left if size in layer.undecided]:
        raise InputError(
            f"the values of an input of {name} decide {', '.join(undecided)}: read it with --as-run (in Python "
            f"as_run=True), which takes the sizes of one run, or {flags}"
        )
    raise InputError(f"{name} leaves {', '.join(left)} open: {flags}")


def passed(letter: str, size: int, limit: Limit, name: str) -> str:
    """Return the error message for a size that exceeds a limit."""
    takes = f"at least {limit.least:,}" if size < limit.least else f"at most {limit.most:,}"
    return f"{letter} is {size:,}, and {name} takes {takes}"


def check_limits(layer: Layer, name: str, sizes: Mapping[str, int]) -> None:
    """Refuse sizes for which the lines of a layer are not valid."""
    for letter, limit in layer.limits.items():
        if letter in sizes and not limit.least <= sizes[letter] <= limit.most:
            raise InputError(passed(letter, sizes[letter], limit, name))


def letters_of(layer: Layer | None, axes: Mapping[str, int]) -> str:
    """Return the sizes of a run by a layer's names, as in `B = 2, M = 16`; "" for other models."""
    if layer is None:
        return ""
    names, usual = letters(layer), ("B", *LENGTHS)
    others = (name for name in names if name not in {*usual, *layer.sizes, *layer.follows})
    sizes = (f"{name} = {axes[name]:,}" for name in (*(name for name in usual if name in names), *others))
    return ", ".join(sizes) or "at the sizes of its table"


def addable(table: Table) -> tuple[str, ...]:
    """Return the values that PEPITA's error may be added to: rows of embeddings, and inputs that are not indices."""
    from learncost.passes.rewrite_lora import is_lookup  # imported when used, for a fast start

    rows = (line for line in table.lines if isinstance(line, Line) and any(is_lookup(line, w) for w in table.weights))
    return (*(line.name for line in rows), *(name for name in table.inputs if name not in table.indices))


@lru_cache(maxsize=64)
def _family(same: IdentityKey[Layer]) -> Family:
    layer = same.content
    names = letters(layer)
    lengths = [axis for axis in LENGTHS if axis in names and axis not in layer.follows]

    def usual(axis: str) -> str:
        """Return the default of a run's size: 0 if it is required, 1 if the layer does not have it."""
        return str(layer.sizes.get(axis, 0 if axis in names else 1))

    is_causal = any(condition.ordered for line, _ in walk(layer.table.lines) for condition in line.where)
    return Family(
        name=layer.name,
        source=layer.source,
        table="",
        blocks=("encoder", "decoder") if len(lengths) > 1 else ("decoder" if is_causal else "encoder",),
        inputs=(),
        shared=(),
        architectures=(),
        sizes={name: layer.sizes.get(name) for name in names if name not in ("B", *LENGTHS, *layer.follows)},
        settings={},
        heads={},
        layers={},
        axes={name: layer.follows.get(name, name) for name in names if name not in ("B", *LENGTHS)},
        positions="",
        batch="1" if layer.steps and "B" not in layer.sizes else usual("B"),
        limit=str(layer.limits[lengths[0]].most) if len(lengths) == 1 and lengths[0] in layer.limits else "",
        length=usual(lengths[0] if lengths else "M"),
        target_length=("M" in layer.sizes and len(lengths) > 1 and usual("M")) or "",
        frozen=layer.frozen,
        unread=str(layer.unread or ""),
        layer=layer,
    )


def has_batch(table: Table) -> bool:
    """Return whether the layer has the symbolic batch axis B; a module imported at numeric sizes has not."""
    return any("B" in axes for axes in table.axes.values())


def lookup_axes(table: Table) -> Iterator[tuple[str, ...]]:
    """Yield the axes of the indices by which lines look up rows of a weight, such as those of tokens."""
    for line, _ in walk(table.lines):
        if isinstance(line, Product) and len(line.right) == 1 and line.right[0].name in table.weights:
            yield from (axis.at.loops for axis in line.right[0].indexed_axes)


def check_batch(table: Table, name: str, layer: Layer | None) -> None:
    """Raise `InputError` if a number of tokens does not determine a number of steps: the layer has no batch axis, or
    several lengths of tokens."""
    if layer is not None and "M" not in letters(layer):
        fixed = {"B", *layer.sizes, *layer.follows}
        symbolic = (" ".join(axis for axis in axes if axis not in fixed) for axes in lookup_axes(table) if "B" in axes)
        lengths = dict.fromkeys(filter(None, symbolic))
    else:
        lengths = {}
    if len(lengths) > 1:
        several = " and ".join(lengths)
        raise InputError(
            f"{name} has indices of the lengths {several}, so tokens do not determine the steps: call the length whose "
            "tokens count M"
        )
    if not has_batch(table):
        raise InputError(
            f"{name} has no batch dimension (axis B), so tokens do not determine the steps: make the batch "
            f"symbolic, for example --input 'x: float B 64' with --B 8"
        )

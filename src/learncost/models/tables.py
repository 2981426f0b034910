"""Turn a layer in the notation into a model family: its letters are the family's sizes."""

from __future__ import annotations

from collections.abc import Container, Mapping
from functools import lru_cache

from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import walk
from learncost.ir.stated import Limit, size_names
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey
from learncost.layers.layer import Layer
from learncost.models.expression import names as names_in
from learncost.models.families import Family

RUN = ("batch_size", "seq_len", "target_len")
"""The sizes of a run."""

LENGTHS = ("N", "M")
"""Return the axes whose lengths a run gives: `seq_len` and `target_len`; a single one is `seq_len`."""


def letters(layer: Layer) -> Mapping[str, None]:
    """Return all size names of a layer: those of its table and those that determine them."""
    others = (name for rule in layer.follows.values() for name in sorted(names_in(rule)))
    return {**size_names(layer.table), **dict.fromkeys(others)}


def family_of_layer(layer: Layer) -> Family:
    """Return the family whose single table is this layer.

    Sizes that the layer fixes are defaults, the others are required. B, M and N belong to the run: the number of
    sequences and the lengths, which a run has to give if the layer leaves them open.
    """
    return _family(IdentityKey(layer))


def check_open(layer: Layer, name: str, given: Container[str]) -> None:
    """Refuse a run of a layer that leaves sizes open; `given` are its sizes by name. A module takes one sample."""
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
    """Return the error for a size beyond a limit."""
    takes = f"at least {limit.least:,}" if size < limit.least else f"at most {limit.most:,}"
    return f"{letter} is {size:,}, and {name} takes {takes}"


def check_limits(layer: Layer, name: str, sizes: Mapping[str, int]) -> None:
    """Refuse sizes that contradict the lines of a layer."""
    for letter, limit in layer.limits.items():
        if letter in sizes and not limit.least <= sizes[letter] <= limit.most:
            raise InputError(passed(letter, sizes[letter], limit, name))


def letters_of(layer: Layer | None, axes: Mapping[str, int]) -> str:
    """Return the sizes of a run under a layer's names, `B = 2, M = 16`; "" for another model."""
    if layer is None:
        return ""
    names, usual = letters(layer), ("B", *LENGTHS)
    others = (name for name in names if name not in {*usual, *layer.sizes, *layer.follows})
    sizes = (f"{name} = {axes[name]:,}" for name in (*(name for name in usual if name in names), *others))
    return ", ".join(sizes) or "at the sizes of its table"


def addable(table: Table) -> tuple[str, ...]:
    """Return the targets of PEPITA's error: rows of embeddings, and inputs that are no index."""
    from learncost.passes.rewrite_lora import is_lookup  # only where it is asked for: start-up counts

    rows = (line for line in table.lines if isinstance(line, Line) and any(is_lookup(line, w) for w in table.weights))
    return (*(line.name for line in rows), *(name for name in table.inputs if name not in table.indices))


@lru_cache(maxsize=64)
def _family(same: IdentityKey[Layer]) -> Family:
    layer = same.content
    names = letters(layer)
    lengths = [axis for axis in LENGTHS if axis in names and axis not in layer.follows]

    def usual(axis: str) -> str:
        """Return the default size of a run: 0 if it is required, 1 if the layer does not have it."""
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
    """Return whether the batch is symbolic, as B; a module read at numeric sizes is one step of its samples."""
    return any("B" in axes for axes in table.axes.values())


def check_batch(table: Table, name: str) -> None:
    """Raise `InputError` where a number of tokens does not determine a number of steps."""
    if not has_batch(table):
        raise InputError(
            f"{name} has no batch dimension (axis B), so tokens do not determine the steps: make the batch "
            f"symbolic, for example --input 'x: float B 64' with --B 8"
        )

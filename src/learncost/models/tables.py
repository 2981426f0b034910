"""A layer in the notation as a model family of its own: its letters are the family's sizes."""

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
"""The sizes that a run says."""

LENGTHS = ("N", "M")
"""Axes whose lengths a run says: `seq_len` and `target_len`; where there is one alone it is `seq_len`."""


def letters(layer: Layer) -> Mapping[str, None]:
    """The names of all sizes of a layer: those of its table, and those from which alone one of these follows."""
    others = (name for rule in layer.follows.values() for name in sorted(names_in(rule)))
    return {**size_names(layer.table), **dict.fromkeys(others)}


def family_of_layer(layer: Layer) -> Family:
    """The family that has this layer as its one table.

    Sizes that the layer fixes are defaults, the others are required. B, M and N are the run's: the number of sequences
    and the lengths, which a run has to say where the layer leaves them open.
    """
    return _family(IdentityKey(layer))


def check_open(layer: Layer, name: str, given: Container[str]) -> None:
    """Refuse a run of a layer that leaves sizes open; `given` are those that it says, by their names."""
    names = letters(layer)
    said = {"B": ("batch_size",), "M": ("seq_len", "target_len"), "N": ("seq_len", *(() if "M" in names else RUN))}
    known = {*layer.sizes, *layer.follows}
    left = [size for size in names if size not in known and not any(s in given for s in said.get(size, (size,)))]
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
    """What is said of a size that passes a limit."""
    takes = f"at least {limit.least:,}" if size < limit.least else f"at most {limit.most:,}"
    return f"{letter} is {size:,}, and {name} takes {takes}"


def check_limits(layer: Layer, name: str, sizes: Mapping[str, int]) -> None:
    """Refuse sizes that the lines of a layer are not written for."""
    for letter, limit in layer.limits.items():
        if letter in sizes and not limit.least <= sizes[letter] <= limit.most:
            raise InputError(passed(letter, sizes[letter], limit, name))


def letters_of(layer: Layer | None, axes: Mapping[str, int]) -> str:
    """The sizes of a run as a layer that is the model calls them, `B = 2, M = 16`; "" for another model."""
    if layer is None:
        return ""
    names, usual = letters(layer), ("B", *LENGTHS)
    others = (name for name in names if name not in {*usual, *layer.sizes, *layer.follows})
    said = (f"{name} = {axes[name]:,}" for name in (*(name for name in usual if name in names), *others))
    return ", ".join(said) or "at the sizes of its table"


def addable(table: Table) -> tuple[str, ...]:
    """What PEPITA may add an error to: rows of embeddings, and inputs that are no index."""
    from learncost.passes.rewrite_lora import is_lookup  # only where it is asked for: start-up counts

    rows = (line for line in table.lines if isinstance(line, Line) and any(is_lookup(line, w) for w in table.weights))
    return (*(line.name for line in rows), *(name for name in table.inputs if name not in table.indices))


@lru_cache(maxsize=64)
def _family(same: IdentityKey[Layer]) -> Family:
    layer = same.content
    names = letters(layer)
    lengths = [axis for axis in LENGTHS if axis in names and axis not in layer.follows]

    def usual(axis: str) -> str:
        """The size that a run has where it says nothing: 0 where it has to, 1 of what the layer does not have."""
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
        batch=usual("B"),
        limit=str(layer.limits[lengths[0]].most) if len(lengths) == 1 and lengths[0] in layer.limits else "",
        length=usual(lengths[0] if lengths else "M"),
        target_length=("M" in layer.sizes and len(lengths) > 1 and usual("M")) or "",
        frozen=layer.frozen,
        unread=str(layer.unread or ""),
        layer=layer,
    )


def has_batch(table: Table) -> bool:
    """Whether the batch is open, as B: a module that was read at sizes that are numbers is one step of its samples."""
    return any("B" in axes for axes in table.axes.values())


def check_batch(table: Table, name: str) -> None:
    """Raise `InputError` where a number of tokens says no number of steps."""
    if not has_batch(table):
        raise InputError(
            f"no axis of {name} is called B, so that tokens say no number of steps: leave its batch open by that name, "
            "as in --input 'x: float B 64' with --B 8"
        )

"""List the collectives of a sharded table, for costs, times and searches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from math import prod

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Op
from learncost.ir.loop import Loop, Statement, defined, map_loops, walk
from learncost.ir.polynomial import Polynomial, base, shape_of, size_of
from learncost.ir.precision import BYTES, Precision
from learncost.ir.table import Table
from learncost.ir.value import INDICES, Value
from learncost.layers.spelling import condition_names
from learncost.ops.collectives import REDUCES, is_collective, sends
from learncost.sharding.clauses import kind_of
from learncost.sharding.place import Placed


def reason_of(line: object) -> str:
    """Return the reason for a collective, which sharding notes on it; "" for any other line."""
    return line.meta.note if is_collective(line) and isinstance(line.meta.note, str) else ""


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective of a sharded step, as every device of the mesh runs it.

    Attributes
    ----------
    op
        all_reduce, all_reduce_max, all_gather, reduce_scatter, all_to_all, dispatch, combine, pass_on, send. shard
        and receive send nothing and are not listed.
    mesh_axis
        The axis of the mesh over whose devices it runs, such as tp.
    payload_bytes
        Bytes of one run: the larger of input and output on one device, which is the reduced array, the full gathered or
        scattered array, or the full exchanged array, including the device's own shard. A ring sends 2(p-1)/p of it for
        an all_reduce, and (p-1)/p for the others.
    filled_bytes
        Bytes of padding in it, if an axis is not divisible.
    line
        The name of its result.
    reader
        The result of the first line that reads it.
    times
        The number of runs in a step: the iterations of the loops around it.
    phase
        The phase that it is in: forward, recomputation, backward, weight_update, optimizer_step.
    layer, block
        The layer and block of the line that needs it.
    role
        The role of its data: weights, gradients, states, values or inputs.
    devices
        The size of the group: the devices along the mesh axis, or some of them, such as stages with the same weight.
    place
        Its position among all lines of the sharded table, in the order of `walk`.
    why
        The reason for it, in a sentence.
    """

    op: str
    mesh_axis: str
    payload_bytes: int
    filled_bytes: int
    line: str
    reader: str
    times: int
    phase: str
    layer: str
    block: str | None
    role: str
    devices: int
    place: int
    why: str


BYTES_OF_AN_INDEX = 8
"""Bytes of an index: PyTorch sends int64."""

BYTES_OF_A_CONDITION = 1
"""Bytes of a condition, such as an attention mask: PyTorch sends bool."""


def elements(line: Op, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the elements of a collective's larger side, input or output, with and without padding."""
    mesh_axis, sides = line.axes[0], [term.declared for term in (line.left[0], line.right[0])]
    real = max(prod(shape_of(axes, sizes)) for axes in sides)
    if len(sides[0]) != len(sides[1]):  # dispatched rows
        return real, real

    def size(axis: str, other: str) -> int:
        """Return the size of an axis, which is the global size if the other side has one shard of it."""
        is_whole = base(other) == f"{base(axis)}/{mesh_axis}"
        return int(size_of(other, sizes) * sizes[mesh_axis] if is_whole else size_of(axis, sizes))

    full = [prod(map(size, axes, others)) for axes, others in (sides, sides[::-1])]
    return max(full), real


def formulas(placed: Placed, sizes: Mapping[str, int]) -> dict[tuple[str, str], Polynomial]:
    """Return the elements that a step's collectives have as payload, by mesh axis and op, as polynomials in the table's
    sizes."""
    sizes, found = {**sizes, **placed.sizes}, dict[tuple[str, str], Polynomial]()
    for line, nest in walk(placed.table.lines):
        if sends(line):
            sides = [term.declared for term in (line.left[0], line.right[0])]
            larger = max(sides, key=lambda axes: prod(shape_of(axes, sizes)))
            key = line.axes[0], line.op
            found[key] = found.get(key, Polynomial()) + Polynomial.of((*nest.counts, *larger))
    return found


def widths_of(kind: Precision) -> dict[str, int]:
    """Return the bytes of a sent number by role, where `scores` are those of a log-softmax over a sharded
    vocabulary."""
    return {
        "weights": min(kind.weight, kind.value),
        "gradients": kind.gradient,
        "values": kind.value,
        "inputs": kind.value,
        "states": kind.master or BYTES.get(kind.states, kind.value),
        "scores": kind.scores,
    }


def sent_widths(placed: Placed, widths: Mapping[str, int]) -> Callable[[str, str], int]:
    """Return a function of a collective's result and role that returns the bytes of a sent number."""
    special = dict.fromkeys(placed.scores, widths["scores"]) if "scores" in widths else {}
    special |= dict.fromkeys(condition_names(placed.whole.lines), BYTES_OF_A_CONDITION)
    special |= {name: BYTES_OF_AN_INDEX for name, value in placed.whole.known.items() if value.role in INDICES}

    def width(line: str, role: str) -> int:
        return special.get(placed.holds.get(line, line)) or special.get(line) or widths.get(role, 4)

    return width


def collectives(
    placed: Placed, sizes: Mapping[str, int], widths: Mapping[str, int] | None = None
) -> tuple[Collective, ...]:
    """Return the collectives of a sharded step on every device, in the order of its lines.

    sizes   global sizes
    widths  bytes of a number by role: weights, gradients, states, values, inputs, scores; 4 by default
    """
    table = placed.table
    sizes = {**sizes, **placed.sizes}
    width_of = sent_widths(placed, widths or {})
    result = []
    readers: dict[str, str] = {}
    for line, _ in walk(table.lines):
        for name in line.reads:
            readers.setdefault(name, line.name)
    for number, (line, nest) in enumerate(walk(table.lines)):
        if not sends(line):
            continue
        name = placed.holds.get(line.name, line.name)
        role = kind_of(placed.whole, name, placed.whole.known.get(name, Value(())))[0]
        width = width_of(line.name, role)
        payload, real = elements(line, sizes)
        times = prod(shape_of(nest.counts, sizes))
        meet = line.axes[1:] if line.op.startswith("all_reduce") else ()
        meta = line.meta
        result.append(
            Collective(
                line.op,
                line.axes[0],
                payload * width,
                (payload - real) * width,
                line.name,
                readers.get(line.name, ""),
                times,
                meta.phase,
                meta.layer,
                meta.block,
                role,
                len(meet) or placed.mesh.sizes[line.axes[0]],
                number,
                reason_of(line),
            )
        )
    return tuple(result)


_JOINS = ("reduce_scatter", *REDUCES)


def bucketed(table: Table) -> Table:
    """Return an equivalent sharded table in which the collectives of each loop iteration are adjacent.

    Collectives outside loops are grouped up to the next loop; none is moved across one.
    """
    inside = map_loops(table.lines, lambda loop: replace(loop, lines=tuple(_iteration(loop.lines))))
    stretches = groupby(inside, key=lambda line: isinstance(line, Loop))
    lines = (each for is_repeat, stretch in stretches for each in (stretch if is_repeat else _iteration([*stretch])))
    return replace(table, lines=tuple(lines))


def _iteration(lines: Sequence[Statement]) -> list[Statement]:
    """Return the loop with gathers of an iteration's inputs at its front, and with the optimizer, and lines that only
    the optimizer reads, at its end.
    """
    makes = Counter(name for line in lines for name in line.makes)
    if max(makes.values(), default=0) > 1:  # lines that define a name twice must keep their order
        return [*lines]
    sent = [line for line in lines if is_collective(line)]
    first = [line for line in sent if line.op == "all_gather" and makes.keys().isdisjoint(line.reads)]
    updates = [line for line in lines if line not in sent and _updates(line)]
    passes = [line for line in lines if line not in first and line not in updates]
    needed = {name for line in passes for name in line.reads}
    if needed & defined(updates):
        return [*first, *(line for line in lines if line not in first)]
    joins = [line for line in sent if line.op in _JOINS and not needed & {*line.makes}]
    return [*first, *(line for line in passes if line not in joins), *joins, *updates]


def _updates(line: Statement) -> bool:
    return not isinstance(line, Loop) and line.meta.phase == "optimizer_step"

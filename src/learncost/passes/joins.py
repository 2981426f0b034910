"""Lowering of affine indices: sums that are concatenations, and scatters that are gathers."""

from __future__ import annotations

from collections.abc import Iterator

from learncost.ir.affine import Affine, AffineTerm, total
from learncost.ir.line import Meta, Op, Product, Sum
from learncost.ir.loop import walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Axis, Literal, Operand, Read, Term


def join_of(line: Sum) -> Op | None:
    """Return a sum of reads, each beginning where the one before ends, as a `join`: `J[n] = X[m=n] + Z[k=n - #m]`."""
    left, along = line.left[0], ""
    ends: list[AffineTerm] = []  # of the arrays so far
    parts: list[Operand] = []
    for term in line.right:
        reads = [axis for axis in term.axes if isinstance(axis, Read)]
        at = reads[0].at if len(reads) == 1 else None
        if not isinstance(at, Affine) or at.fixed or term.loops != left.loops:
            return None
        along = along or at.loops[0]
        if {*at.parts} != {*total((AffineTerm(1, (), along), *ends))}:
            return None
        parts.append(Term(term.name, term.declared))
        ends.append(AffineTerm(-1, (base(reads[0].axis),)))
    if len(parts) < 2 or line.where or left.indexed or {*line.signs} != {1}:
        return None
    return Op((left,), tuple(parts), (), line.meta, "join", (along,), "body", ("X", "Z"), ("Y",))


def joined(table: Table) -> Iterator[tuple[str, list[str]]]:
    """Yield axes along which arrays are concatenated, each with those of the arrays."""
    for line, _ in walk(table.lines):
        op = join_of(line) if isinstance(line, Sum) else None
        if op is not None:
            place = op.left[0].axes.index(op.axes[0])
            yield base(op.axes[0]), [base(str(term.axes[place])) for term in op.right]


def read_back(left: Term, value: Operand, meta: Meta) -> Product | None:
    """Return a write at affine indices as a read, where the map is one-to-one: `Y[n=m + 1] = X[m]` is `Y[n] = X[m=n -
    1]`.

    Return None where positions collide or leave gaps, as with `y=i + u` and `y=2 i`.
    """
    if isinstance(value, Literal):
        return None
    reads = [axis for axis in left.axes if isinstance(axis, Read)]
    loops = [axis for axis in left.axes if isinstance(axis, str)] + [loop for read in reads for loop in read.at.loops]
    solved: dict[str, Axis] = {}
    for read in reads:
        at, others = read.at, {*loops} - {*read.at.loops}
        place = at.solved(at.loops[0], read.axis) if isinstance(at, Affine) and len(at.loops) == 1 else None
        if place is None or loops.count(at.loops[0]) > 1 or read.axis in others:
            return None
        solved[at.loops[0]] = Read(at.loops[0], place)
    axes = tuple(solved.get(axis, axis) if isinstance(axis, str) else axis for axis in value.axes)
    return Product((Term(left.name, left.declared),), (Term(value.name, axes),), (), meta)

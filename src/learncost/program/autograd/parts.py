"""Values that are read at fixed places of one axis alone, as `split`, `chunk` and `unbind` make views of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from learncost.ir.affine import Affine
from learncost.ir.line import Line
from learncost.ir.loop import Loop, Statement
from learncost.ir.term import Operand, Read, Term
from learncost.program.autograd.calls import OperatorCall


@dataclass(frozen=True)
class ViewParts(OperatorCall):
    """A value as so many views as its axis has places; those that nobody reads are there as well."""

    value: str
    axis: str
    places: tuple[int, ...]

    @property
    def title(self) -> str:
        return self.value


def with_parts(
    lines: Sequence[Statement], outputs: Collection[str], axes: Mapping[str, tuple[str, ...]]
) -> tuple[list[Statement], dict[str, ViewParts]]:
    """The lines with every such part as a value by itself, and the values that are parted."""
    by_name: dict[str, dict[int, Term]] = {}
    at: dict[str, set[int]] = {}
    others = {*outputs, *(name for line in lines if isinstance(line, Loop) for name in line.reads)}
    for line in lines:
        for term in line.right if isinstance(line, Line) else ():
            place = _place(term)
            if place is None or not isinstance(term, Term):
                others |= set(term.names)
                continue
            number, position = place
            at.setdefault(term.name, set()).add(position)
            declared = axes[term.name]
            part = Term(f"{term.name}#{number}", (*declared[:position], *declared[position + 1 :]))
            by_name.setdefault(term.name, {})[number] = part
    makers = {name: line for line in lines if isinstance(line, Line) for name in line.makes}
    parted = {}
    for name, parts in by_name.items():
        if name not in others and len(at[name]) == 1 and name in makers:
            (position,) = at[name]
            line = replace(makers[name], left=tuple(parts.values()), right=(Term(name, axes[name]),))
            parted[name] = ViewParts((line,), tuple(parts.values()), name, axes[name][position], tuple(parts))

    def renamed(term: Operand) -> Operand:
        place = _place(term)
        if place is None or not isinstance(term, Term) or term.name not in parted:
            return term
        number, position = place
        return Term(f"{term.name}#{number}", (*term.axes[:position], *term.axes[position + 1 :]))

    return [
        replace(line, right=tuple(map(renamed, line.right))) if isinstance(line, Line) else line for line in lines
    ], parted


def after_makers(calls: Iterable[OperatorCall | Loop], parted: Mapping[str, ViewParts]) -> list[OperatorCall | Loop]:
    """The calls, each of those that make a value which is parted with its parts behind it."""
    result: list[OperatorCall | Loop] = []
    for call in calls:
        result.append(call)
        if isinstance(call, OperatorCall):
            result += [parted[term.name] for term in call.makes if term.name in parted]
    return result


def _place(operand: Operand) -> tuple[int, int] | None:
    """The number of the place that a term is read at, and which of its axes that is; None where it is another read."""
    if not isinstance(operand, Term):
        return None
    reads = [(position, axis.at) for position, axis in enumerate(operand.axes) if isinstance(axis, Read)]
    if len(reads) != 1:
        return None
    ((position, at),) = reads
    if not isinstance(at, Affine) or not at.fixed or at.sizes or len(at.parts) != 1:
        return None
    return at.parts[0].factor, position

"""Values that are only read at fixed positions of one axis, as views by `split`, `chunk` and `unbind`."""

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
    """A value as one view per position of its axis, including views that nothing reads."""

    value: str
    axis: str
    places: tuple[int, ...]

    @property
    def title(self) -> str:
        return self.value


def with_parts(
    lines: Sequence[Statement], outputs: Collection[str], axes: Mapping[str, tuple[str, ...]]
) -> tuple[list[Statement], dict[str, ViewParts]]:
    """Return the lines with every such view as a separate value, and the values that are split."""
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
    """Return the calls, with the views of each split value right after the call that defines it."""
    result: list[OperatorCall | Loop] = []
    for call in calls:
        result.append(call)
        if isinstance(call, OperatorCall):
            result += [parted[term.name] for term in call.makes if term.name in parted]
    return result


def _place(operand: Operand) -> tuple[int, int] | None:
    """Return the fixed position at which a term is read, and the number of that axis; None for any other read."""
    if not isinstance(operand, Term):
        return None
    reads = [(position, axis.at) for position, axis in enumerate(operand.axes) if isinstance(axis, Read)]
    if len(reads) != 1:
        return None
    ((position, at),) = reads
    if not isinstance(at, Affine) or not at.fixed or at.sizes or len(at.parts) != 1:
        return None
    return at.parts[0].factor, position

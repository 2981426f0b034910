"""Split a step into three passes: forward, backward, and then the gradients of weights.

A line belongs to the last pass if only gradients of weights depend on it. A reversed loop with lines of both passes
becomes two loops: the first saves the values that the iterations of the second read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.displayed import Displayed
from learncost.ir.loop import Loop, Statement, groups, in_kernel, walk
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.ops.collectives import is_collective

Values = dict[str, Value]


@dataclass(frozen=True)
class Parted(Displayed):
    """A step whose last `updates` statements are a separate pass that computes the gradients of weights."""

    table: Table
    updates: int


def parted(table: Table) -> Parted:
    """Return a step of forward, backward and weight update with the weight update as a separate last pass.

    A step that is already split is unchanged. The optimizer's lines must be in another table.
    """
    values = dict(table.values)
    before, behind = _parted(table.lines, values, {*table.outputs})
    return Parted(replace(table, lines=(*before, *behind), values=values), len(behind))


def _parted(
    lines: Sequence[Statement], values: Values, handed: Set[str], wanted: Set[str] = frozenset()
) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return the lines of a scope before the last pass, and those of the last pass; saved tensors are added to
    `values`.

    handed  the names that leave the scope
    wanted  those among them that are read before the last pass
    """
    before, behind = list[Statement](), list[Statement]()
    soon, late = {*wanted}, set[str]()  # the names that lines of each pass read
    for unit in reversed([tuple(group) for group in groups(lines, in_kernel)]):  # no kernel is split
        first: tuple[Statement, ...] = unit
        second: tuple[Statement, ...] = ()
        if isinstance(unit[0], Loop):
            first, second = _parted_repeat(unit[0], values, soon)
        elif _is_late(unit, soon, late, handed):
            first, second = (), unit
        before += reversed(first)
        behind += reversed(second)
        soon.update(name for line in first for name in line.reads)
        late.update(name for line in second for name in line.reads)
    return tuple(reversed(before)), tuple(reversed(behind))


def _is_late(lines: Sequence[Statement], soon: Set[str], late: Set[str], handed: Set[str]) -> bool:
    """Return whether only gradients of weights depend on the lines."""
    makes = {name for line in lines for name in line.makes}
    phases = {inner.meta.phase for inner, _ in walk(lines)}
    if "forward" in phases or not soon.isdisjoint(makes):
        return False
    if phases == {"weight_update"}:
        return True
    meets = any(is_collective(line) for line in lines)  # collectives keep their order on all devices
    return makes <= late and handed.isdisjoint(makes) and not meets


def _parted_repeat(repeat: Loop, values: Values, soon: Set[str]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    """Return a loop as two: one for the passes before the last, one for the last pass; either may be missing.

    soon  the names of the enclosing scope that are read before the last pass
    """
    if repeat.around or all(inner.meta.phase == "forward" for inner, _ in walk(repeat.lines)):
        return (repeat,), ()
    wanted = {carry.end for carry in repeat.carry if carry.final in soon}
    wanted |= {name for name, stack in repeat.keep if stack in soon}
    while True:
        own = dict(repeat.values)
        first, second = _parted(repeat.lines, own, {*repeat.ends}, wanted)
        reads = [dict.fromkeys(name for line in lines for name in line.reads) for lines in (first, second)]
        late = {name for line in second for name in line.makes}
        # The first loop must not read a value that only the last pass carries.
        crossing = {c.end for c in repeat.carry if c.end in late and c.start in reads[0]}
        if not crossing:
            break
        wanted |= crossing
    if not second:
        return (repeat,), ()
    carry = [[c for c in repeat.carry if (c.end in late) == last] for last in (False, True)]
    each = [[pair for pair in repeat.each if pair[0] in read] for read in reads]
    keep = [[pair for pair in repeat.keep if (pair[0] in late) == last] for last in (False, True)]
    there = {name for line in first for name in line.makes} | {c.start for c in carry[0]}
    for name in reads[1]:
        if name in there:
            stack = dict(keep[0]).get(name) or _free(f"{name}*", values)
            values.setdefault(stack, Value((repeat.count, *own[name].axes), "kept", name))
            keep[0] += [(name, stack)] if (name, stack) not in keep[0] else []
            each[1].append((name, stack))
    before, behind = (
        (replace(repeat, lines=lines, values=own, carry=tuple(c), each=tuple(e), keep=tuple(k)),)
        for lines, c, e, k in zip((first, second), carry, each, keep, strict=True)
    )
    return before if first or carry[0] or keep[0] else (), behind


def _free(name: str, values: Mapping[str, Value]) -> str:
    """Return a name that is unused in a scope."""
    while name in values:
        name += "*"
    return name

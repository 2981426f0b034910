"""Rewrite the backward pass of reversible blocks, which recomputes a block's inputs from its outputs.

If every sum on a stream adds a function of only the other stream, y = x + f gives x = y - f, line by line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.passes.rematerialization import pairs, recomputed

Chain = list[tuple[Sum, int]]
"""The sums on the path of a stream through a block, each with the number of the stream's operand."""


def chain_of(lines: Iterable[Statement], start: str, end: str) -> Chain | None:
    """Return the sums by which one name is computed from another; None if another operation is on the path."""
    makers = {line.name: line for line in lines if isinstance(line, Sum)}

    def back(name: str) -> Chain | None:
        if name == start:
            return []
        line = makers.get(name)
        for at, term in enumerate(line.right if line else ()):
            before = back(term.name) if isinstance(term, Term) else None
            if line and before is not None and line.signs[at] == 1 and not line.where:
                return [*before, (line, at)]
        return None

    return back(end)


def inverted(table: Table) -> Table:
    """Return the step in which backward iterations recompute a block's inputs from its outputs, then its other
    values."""
    again = recomputed(table, chosen=lambda line: True, whole=True)
    lines, values = list(again.lines), dict(again.values)
    for (before, forward), (after, reverse), elsewhere in pairs(again.lines, again.outputs):
        was = table.lines[after]
        if len(forward.carry) == 2 and isinstance(was, Loop):
            more = len(reverse.lines) - len(was.lines)
            lines[before], lines[after] = _inverted(forward, reverse, more, elsewhere, values)
    return replace(again, lines=tuple(lines), values=values)


def kept_again(table: Table) -> Table:
    """Return the step in which block inputs are saved instead of recomputed; the step itself if none are recomputed.

    The lines that recompute them remain as recomputation.
    """
    lines, values = list(table.lines), dict(table.values)
    forwards = ((at, line) for at, line in enumerate(lines) if isinstance(line, Loop) and not line.reverse)
    turned = [(at, forward, carry) for at, forward in forwards for carry in forward.carry]
    finals = {carry.final: (at, forward.inside) for at, forward, carry in turned}
    for after, reverse in enumerate(table.lines):
        if not isinstance(reverse, Loop) or not reverse.reverse:
            continue
        carried = (carry for carry in reverse.carry if carry.initial in finals)
        made = [carry for carry in carried if carry.end in finals[carry.initial][1]]  # not a gradient
        for before in {finals[carry.initial][0] for carry in made}:
            forward = lines[before]
            assert isinstance(forward, Loop)
            stacks = tuple((carry.end, f"{carry.end}*") for carry in made)
            values |= {o: Value((forward.count, *forward.values[n].axes), "kept", n) for n, o in stacks}
            carries = tuple(carry for carry in reverse.carry if carry not in made)
            lines[before] = replace(forward, keep=(*forward.keep, *stacks))
            lines[after] = replace(reverse, carry=carries, each=(*reverse.each, *stacks))
    return replace(table, lines=tuple(lines), values=values) if tuple(lines) != table.lines else table


def _inverted(
    forward: Loop, reverse: Loop, more: int, elsewhere: set[str], values: dict[str, Value]
) -> tuple[Loop, Loop]:
    """Return both loops, in which the first `more` lines of a backward iteration recompute the block's inputs."""
    starts = {carry.start for carry in forward.carry}
    again = [line for line in reverse.lines[:more] if isinstance(line, Line)]
    chains = [chain_of(again, carry.start, carry.end) or [] for carry in forward.carry]
    solved = {line.name: _solved(line, at) for chain in chains for line, at in chain}
    ordered = _ordered([solved.get(line.name, line) for line in again], {carry.end for carry in forward.carry})
    carries = [Carry(c.end, c.start, c.final, f"{c.final}|begun") for c in forward.carry]
    values |= {carry.final: values[carry.initial] for carry in carries}
    unread = {outer for name, outer in reverse.each if name in starts} - elsewhere
    each = tuple(pair for pair in reverse.each if pair[0] not in starts)
    return (
        replace(forward, keep=tuple(pair for pair in forward.keep if pair[1] not in unread)),
        replace(reverse, lines=(*ordered, *reverse.lines[more:]), carry=(*reverse.carry, *carries), each=each),
    )


def _solved(line: Sum, at: int) -> Sum:
    """Return the sum y = x + f solved for x: x = y - f."""
    others = [i for i in range(len(line.right)) if i != at]
    (left,), x = line.left, line.right[at]
    assert isinstance(x, Term)
    right, signs = (left, *(line.right[i] for i in others)), (1, *(-line.signs[i] for i in others))
    return replace(line, left=(replace(left, name=x.name),), right=right, signs=signs)


def _ordered(lines: list[Line], there: set[str]) -> tuple[Line, ...]:
    """Return the lines in topological order; `there` has the names that are available before them."""
    waiting, ordered = list(lines), list[Line]()
    missing = {name for line in lines for name in line.makes} - there
    while waiting:
        line = next((line for line in waiting if missing.isdisjoint(line.reads)), None)
        if line is None:
            raise InputError(f"a block with a branch that reads both streams cannot be inverted, in line: {waiting[0]}")
        waiting.remove(line)
        ordered.append(line)
        missing -= {*line.makes}
    return tuple(ordered)

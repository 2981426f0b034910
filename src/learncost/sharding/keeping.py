"""What is gathered or sent forward, and kept for the backward pass in place of its part: memory for bytes sent.

A placed table keeps values as they live and moves them again where the backward pass reads them: ZeRO-3's second
gather, the gathers of sequence parallelism for gradients of weights, the rows of experts. Of the words that a plan
names, what the forward turns made is kept, and the backward turns read that: the opposite of recomputation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.ops.collectives import is_collective


def keeping(table: Table, ops: tuple[str, ...]) -> tuple[Table, Mapping[str, str]]:
    """A placed table that keeps what these collectives make, and the stacks that are new, each with what it is of."""
    lines, values, stacks = list(table.lines), dict(table.values), dict[str, str]()
    for place in range(len(lines)):
        for before in range(place):
            first, second = lines[before], lines[place]
            if isinstance(first, Loop) and isinstance(second, Loop) and first.count == second.count:
                lines[before], lines[place], made = _kept(first, second, ops, {**table.known, **values})
                values |= {stack: value for stack, (value, _) in made.items()}
                stacks |= {stack: array for stack, (_, array) in made.items()}
    read = {name for line in lines for name in line.reads} | {*table.outputs}
    thinner = [_without_unread(line, read) for line in lines]
    return replace(table, lines=tuple(thinner), values=values), stacks


@dataclass(frozen=True)
class _KeptCollective:
    """What a collective of a turn is of: its word, its axes, and the stacks of which its operands are slices."""

    op: str
    axes: tuple[str, ...]
    of: tuple[tuple[str, tuple[str, ...]], ...]
    makes: tuple[str, ...]


def _kept(
    first: Loop, second: Loop, ops: tuple[str, ...], known: Mapping[str, Value]
) -> tuple[Loop, Loop, Mapping[str, tuple[Value, str]]]:
    """Two repeats of the same turns, the later of which reads what collectives of the earlier made."""
    # What a turn reads of a stack of the whole, or hands to one: whatever either of them calls it.
    sources = [
        {name: stack for name, stack in (*line.each, *line.keep) if not line.part(name, known[stack].axes)}
        for line in (first, second)
    ]
    made = {source: line.makes[0] for line in first.lines if (source := _source(line, ops, sources[0]))}
    keep, each, gone = list(first.keep), list(second.each), set[str]()
    stacks: dict[str, tuple[Value, str]] = {}
    for line in second.lines:
        source = _source(line, ops, sources[1])
        if source is None or source not in made:
            continue
        array = made[source]
        stack = next((outer for inside, outer in keep if inside == array), "")
        if not stack:
            stack = f"{array}.kept"
            if stack in known:
                raise InputError(f"{stack} is a value of the table: what is kept of {array} has no name of its own")
            keep.append((array, stack))
            stacks[stack] = Value((first.count, *first.values[array].axes), "kept", array), array
        each.append((line.makes[0], stack))
        gone.add(line.makes[0])
    if not gone:
        return first, second, {}
    left = tuple(line for line in second.lines if not gone & {*line.makes})
    read = {name for line in left for name in line.reads} | {carry.end for carry in second.carry}
    read |= {name for name, _ in second.keep}
    each = [pair for pair in each if pair[0] in read]
    return replace(first, keep=tuple(keep)), replace(second, lines=left, each=tuple(each)), stacks


def _source(line: Statement, ops: tuple[str, ...], stacks: Mapping[str, str]) -> _KeptCollective | None:
    """What a collective of a turn is of, where all that it reads are slices of stacks; else None."""
    if not is_collective(line) or line.op not in ops:
        return None
    operands = [term for term in line.right if isinstance(term, Term)]
    if any(term.name not in stacks for term in operands):
        return None
    of = tuple((stacks[term.name], term.declared) for term in operands)
    return _KeptCollective(line.op, line.axes, of, line.left[0].declared)


def _without_unread(line: Statement, read: set[str]) -> Statement:
    """A repeat that keeps nothing that nobody reads."""
    if not isinstance(line, Loop):
        return line
    return replace(line, keep=tuple(pair for pair in line.keep if pair[1] in read))

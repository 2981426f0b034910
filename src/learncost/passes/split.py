"""A loop split into consecutive ones, so that its iterations may differ: in trainable weights, in added lines.

The iterations of a loop share one body. Where some of them are frozen, or the first one needs no gradient of its input,
they become separate loops: the same lines under names that are marked with the iterations, `attn.WQ@10-11` for the last
two of twelve.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from learncost.ir.errors import InputError
from learncost.ir.loop import Loop
from learncost.ir.table import Table
from learncost.ir.value import Value


@dataclass(frozen=True)
class LoopPart:
    """Iterations of a loop, the first and the last one counted from 0, and their body."""

    first: int
    last: int
    body: Loop

    @property
    def mark(self) -> str:
        """The suffix of the names of these iterations."""
        return f"@{self.first}" + (f"-{self.last}" if self.last > self.first else "")


def split(table: Table, repeat: Loop, parts: Iterable[LoopPart]) -> Table:
    """Split one of a table's loops into consecutive ones, which run all its iterations in order.

    The stacks that it reads slice by slice, weights or inputs, become one stack for each part, `W@0-9` and `W@10-11`.
    Raises `InputError` for a loop with a stack of values that lines define or read.
    """
    parts = tuple(parts)
    handed_in = {*table.inputs, *table.weights}
    made_outside = [outer for _, outer in repeat.each if outer not in handed_in] + [outer for _, outer in repeat.keep]
    if made_outside:
        raise InputError(f"a loop with a stack of values cannot be split: its iterations share {made_outside[0]}")
    values = dict(table.values)
    repeats: list[Loop] = []
    initial = {carry.final: carry.initial for carry in repeat.carry}
    for part in parts:
        repeats.append(_part(part, initial, part is parts[-1], values))
        initial = {carry.final: now.final for carry, now in zip(repeat.carry, repeats[-1].carry, strict=True)}
    stacks = {
        outer: tuple(f"{outer}{part.mark}" for part in parts if outer in {name for _, name in part.body.each})
        for part in parts
        for _, outer in part.body.each
    }

    def apart(names: Iterable[str]) -> tuple[str, ...]:
        return tuple(new for name in names for new in stacks.get(name, (name,)))

    for outer, names in stacks.items():
        stack = values.pop(outer)
        stack = replace(stack, group=stack.group or outer)
        values |= {
            name: stack.along((_count(part), *stack.axes[1:]))
            for part in parts
            for name in names
            if name == f"{outer}{part.mark}"
        }
    at = next(place for place, line in enumerate(table.lines) if line is repeat)
    return replace(
        table,
        lines=(*table.lines[:at], *repeats, *table.lines[at + 1 :]),
        values=values,
        inputs=apart(table.inputs),
        weights=apart(table.weights),
    )


def _count(part: LoopPart) -> str:
    return str(part.last - part.first + 1)


def _part(part: LoopPart, initial: dict[str, str], is_last: bool, values: dict[str, Value]) -> Loop:
    """Return the body under its own names; `initial` has the source of each loop-carried value, by its final name."""
    body = _marked(part.body, part.mark)
    carry = []
    for old, new in zip(part.body.carry, body.carry, strict=True):
        final = old.final if is_last else f"{old.final}{part.mark}"
        values[final] = part.body.values[old.end]
        carry.append(replace(new, initial=initial[old.final], final=final))
    each = tuple((inside, f"{outer}{part.mark}") for inside, outer in body.each)
    return replace(body, count=_count(part), carry=tuple(carry), each=each)


def _marked(repeat: Loop, mark: str) -> Loop:
    """Return the loop with its inner names marked, and those of inner loops."""
    lines = tuple(_marked(line, mark) if isinstance(line, Loop) else line for line in repeat.lines)
    values = {name: replace(value, group=value.group or name) for name, value in repeat.values.items()}
    marked = replace(repeat, lines=lines, values=values)
    return marked.with_own({name: f"{name}{mark}" for name in repeat.inside})

"""Segmented recomputation: a loop saves only the input of every k-th iteration, and backward recomputes k at a time.

Both loops become loops over segments with an inner loop over the k iterations of one. A segment's backward iteration
begins with its recomputed forward iterations, which save what the backward iterations after them read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Carry, Loop, each_line
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.passes.rematerialization import Values, pairs


def in_segments(table: Table, iterations: int) -> Table:
    """Return the step in which every reversed loop has its input saved once per `iterations` iterations.

    A loop over n_layer becomes one over n_layer/3. Raises `InputError` where a trip count that is a number is not a
    multiple. Chen et al. 2016, Training deep nets with sublinear memory cost, section 4.
    """
    values = dict(table.values)
    lines = list(table.lines)
    for (before, forward), (after, reverse), elsewhere in pairs(table.lines, table.outputs):
        lines[before], lines[after] = _LoopPair(forward, reverse, iterations, elsewhere, values).cut()
    return replace(table, lines=tuple(lines), values=values)


def in_groups(repeat: Loop, iterations: int, values: Mapping[str, Value]) -> Loop:
    """Return a loop as a loop over groups of `iterations` iterations, with an inner loop over those of one.

    values   of the names around it
    Raises `InputError` where a trip count that is a number is not a multiple.
    """
    return _LoopPair(repeat, repeat, iterations, {outer for _, outer in repeat.keep}, dict(values)).grouped()


@dataclass
class _LoopPair:
    """A loop and the one that reverses it; `elsewhere` are the names that other lines read."""

    forward: Loop
    reverse: Loop
    iterations: int
    elsewhere: set[str]
    values: Values  # of the scope around; receives the stacks of the segments' inputs

    def cut(self) -> tuple[Loop, Loop]:
        forward, reverse = self.forward, self.reverse
        starts = {carry.start: f"{carry.start}.segment*" for carry in forward.carry}
        read = {outer for _, outer in reverse.each}
        again = self.inner(forward, [pair for pair in forward.keep if pair[1] in read])
        again = replace(again, lines=each_line(forward.lines, _again))
        remade = {outer for _, outer in again.keep}
        first = self.outer(forward, [self.inner(forward, self.pairs_read)], forward.each, self.pairs_read)
        slices = dict.fromkeys((*(pair for pair in reverse.each if pair[1] not in remade), *forward.each))
        second = self.outer(reverse, [again, self.inner(reverse, reverse.keep)], slices, reverse.keep)
        own_values = {start: forward.values[start] for start in starts}
        stacks = {
            stack: Value((first.count, *own_values[start].axes), "kept", start) for start, stack in starts.items()
        }
        self.values |= stacks
        own_values |= {outer: self.part(outer) for _, outer in again.keep}
        own_values |= {carry.end: forward.values[carry.end] for carry in forward.carry}
        return (
            replace(first, keep=(*first.keep, *starts.items())),
            replace(second, values={**own_values, **second.values}, each=(*second.each, *starts.items())),
        )

    def grouped(self) -> Loop:
        iterations = self.forward
        return self.outer(iterations, [self.inner(iterations, iterations.keep)], iterations.each, iterations.keep)

    @property
    def pairs_read(self) -> list[tuple[str, str]]:
        """The stacks of the forward iterations that other lines read."""
        return [pair for pair in self.forward.keep if pair[1] in self.elsewhere]

    def inner(self, line: Loop, keep: Iterable[tuple[str, str]]) -> Loop:
        """Return the iterations of one segment; its stacks have the names of the full ones, of which they are parts."""
        carry = tuple(Carry(carried.start, carried.end, carried.start, carried.end) for carried in line.carry)
        return replace(line, count=str(self.iterations), carry=carry, keep=tuple(keep))

    def outer(
        self,
        line: Loop,
        inside: list[Loop],
        each: Iterable[tuple[str, str]],
        keep: Iterable[tuple[str, str]],
    ) -> Loop:
        """Return a loop over segments."""
        stacks = tuple(dict.fromkeys(outer for _, outer in each))
        stacks_out = tuple(outer for _, outer in keep)
        values = {name: line.values[name] for carry in line.carry for name in (carry.start, carry.end)}
        values |= {name: self.part(name) for name in (*stacks, *stacks_out)}
        pairs = (tuple((name, name) for name in names) for names in (stacks, stacks_out))
        each, keep = pairs
        return replace(line, count=self.segments(line.count), lines=tuple(inside), values=values, each=each, keep=keep)

    def part(self, stack: str) -> Value:
        """Return a segment's part of a stack of all iterations."""
        return self.values[stack].along((str(self.iterations), *self.values[stack].axes[1:]))

    def segments(self, count: str) -> str:
        """Return the number of segments: a number, or a part of a size by its name."""
        if not count.isdigit():
            return f"{count}/{self.iterations}"
        if int(count) % self.iterations:
            raise InputError(f"a loop of {count} iterations cannot be cut in segments of {self.iterations}")
        return str(int(count) // self.iterations)


def _again(line: Line) -> tuple[Line, ...]:
    """Return a line in its segment's backward iteration, in a kernel with a unique name."""
    kernel = line.meta.kernel and replace(line.meta.kernel, name=f"{line.meta.kernel.name}_segment")
    return (replace(line, meta=replace(line.meta, phase="recomputation", kernel=kernel)),)

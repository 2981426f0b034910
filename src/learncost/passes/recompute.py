"""Apply the plan recompute, selective activation recomputation, which names the forward lines to recompute."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Line, Op, Product
from learncost.ir.loop import Carry, Loop, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.layers.layer import shipped
from learncost.ops import canonical, entries
from learncost.passes.rematerialization import Values, as_recomputation, collecting, pairs, recomputed


def in_segments(table: Table, iterations: int) -> Table:
    """Return the step in which the inputs of loops are saved once per segment of `iterations` iterations.

    A loop over n_layer becomes a loop over n_layer/3 segments, for example. Raises `InputError` if a numeric trip count
    is not a multiple. Chen et al. 2016, Training deep nets with sublinear memory cost, section 4.
    """
    values = dict(table.values)
    lines = list(table.lines)
    for (before, forward), (after, reverse), elsewhere in pairs(table.lines, table.outputs):
        lines[before], lines[after] = _LoopPair(forward, reverse, iterations, elsewhere, values).cut()
    return replace(table, lines=tuple(lines), values=values)


def in_groups(repeat: Loop, iterations: int, values: Mapping[str, Value]) -> Loop:
    """Return a loop as a loop over groups, with an inner loop over the `iterations` iterations of a group.

    values   the values of the enclosing scope
    Raises `InputError` if a numeric trip count is not a multiple.
    """
    return _LoopPair(repeat, repeat, iterations, {outer for _, outer in repeat.keep}, dict(values)).grouped()


@dataclass
class _LoopPair:
    """A forward loop and the loop that reverses it; `elsewhere` are the names that other lines read."""

    forward: Loop
    reverse: Loop
    iterations: int
    elsewhere: set[str]
    values: Values  # of the enclosing scope, to which stacks of the segments' inputs are added

    def cut(self) -> tuple[Loop, Loop]:
        forward, reverse = self.forward, self.reverse
        starts = {carry.start: f"{carry.start}.segment*" for carry in forward.carry}
        read = {outer for _, outer in reverse.each}
        again = self.inner(forward, [pair for pair in forward.keep if pair[1] in read])
        again = replace(again, lines=as_recomputation(forward.lines, "segment"))
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
        """The stacks of the forward loop that other lines read, with the names of their slices."""
        return [pair for pair in self.forward.keep if pair[1] in self.elsewhere]

    def inner(self, line: Loop, keep: Iterable[tuple[str, str]]) -> Loop:
        """Return the loop over the iterations of one segment, whose stacks are parts of the full stacks of the same
        names."""
        carry = tuple(Carry(carried.start, carried.end, carried.start, carried.end) for carried in line.carry)
        keep = tuple(keep)
        left = {*(carried.end for carried in carry), *(inside for inside, _ in keep)}
        lines = collecting(line.lines, left, line.values)
        return replace(line, count=str(self.iterations), lines=lines, carry=carry, keep=keep)

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
        """Return the Value of a segment's part of a full stack."""
        return self.values[stack].along((str(self.iterations), *self.values[stack].axes[1:]))

    def segments(self, count: str) -> str:
        """Return the number of segments: a number, or a fraction of a size by name."""
        if not count.isdigit():
            return f"{count}/{self.iterations}"
        if int(count) % self.iterations:
            raise InputError(f"a loop of {count} iterations is not divisible into segments of {self.iterations}")
        return str(int(count) // self.iterations)


ALL = {"block": "every line of a block", "all": "every line of a block that its backward pass needs"}
BLOCK = ("block",)
SEGMENTS = "block/"


def recompute(table: Table, parts: tuple[str, ...]) -> Table:
    """Return the step with the chosen forward lines of every loop recomputed in its backward loop.

    parts  block: all lines of a block, at the beginning of its backward iteration, as in the procedure `recompute`;
           block/3: all lines of 3 blocks, at the beginning of their backward iteration, from the first block's input;
           other parts are then recomputed once more in each block's iteration;
           all: the lines that the backward pass needs, each before the first line that reads it there;
           an operator or its prefix, such as softmax or gelu: its lines, and products with masks and gates that read
           these; a layer or a part of its name, such as attention or norm: its lines; a module or an operator that
           lines name, such as mlp or layer_norm: those lines; a value, such as mlp.G: its line
    Raises `InputError` if a part is none of these.
    """
    lines = [line for line, nest in walk(table.lines) if nest.loops]
    if segments := [part for part in parts if part.startswith(SEGMENTS)]:
        rest = tuple(part for part in parts if part not in segments)
        iterations = _iterations(segments)
        return (
            in_segments(recompute(table, rest) if rest else table, iterations)
            if iterations > 1
            else recompute(table, BLOCK)
        )
    names = [canonical(part) for part in parts]
    ops = {part for part in names if any(_begins(entry.name, part) for entry in entries())}
    layers = {part for part in names if part not in ops} - ALL.keys()
    values = {part for part in layers if any(term.name == part for line in lines for term in line.left)}
    layers -= values
    every = (*shipped(), *dict.fromkeys(line.meta.layer for line in lines))
    modules = {name for line in lines for name in (*line.meta.module.split("."), line.meta.operator)}
    for part in layers - modules:
        if not any(_within(layer, part) for layer in every):
            used = dict.fromkeys(line.op for line in lines if isinstance(line, Op) and line.part == "body")
            named_one("part of a block", part, dict.fromkeys((*ALL, *filter(None, every[len(shipped()) :]), *used)))
    if ALL.keys() & names:
        return recomputed(table, lambda line: True, whole="block" in names)
    acted: set[str] = set()
    for line in lines:
        if _passes_on(line, acted) or (isinstance(line, Op) and any(_begins(line.op, op) for op in ops)):
            acted.add(line.name)

    def chosen(line: Line) -> bool:
        makes = {term.name for term in line.left}
        of_modules = {*line.meta.module.split("."), line.meta.operator}
        return bool(makes & (acted | values)) or any(_within(line.meta.layer, p) or p in of_modules for p in layers)

    return recomputed(table, chosen)


def _iterations(segments: list[str]) -> int:
    """Return the number of blocks in a segment, such as 3 for `block/3`."""
    number, plans_text = segments[0].removeprefix(SEGMENTS), " and ".join(segments)
    if len(segments) > 1 or not number.isdigit() or int(number) < 1:
        raise InputError(f"recompute={SEGMENTS}K needs a whole number K from 1, not {plans_text}")
    return int(number)


def _begins(name: str, part: str) -> bool:
    """Return whether a name is the part or begins with it, as gelu_tanh begins with gelu."""
    return name == part or name.startswith(f"{part}_")


def _within(name: str, part: str) -> bool:
    """Return whether a name contains the part, as rms_norm and norm_without_shift contain norm."""
    return f"_{part}_" in f"_{name}_"


def _passes_on(line: Line, names: set[str]) -> bool:
    """Return whether a line is an elementwise product, as with a mask or a gate."""
    terms = [term for term in line.right if isinstance(term, Term)]
    if not isinstance(line, Product) or len(terms) < 2 or any(term.indexed for term in (*terms, *line.left)):
        return False
    return any(term.name in names for term in terms) and set(line.loops) == set(line.left[0].loops)

"""Apply the plan recompute, selective activation recomputation, which names the forward lines to recompute.

The backward pass of reversible blocks recomputes a block's inputs from its outputs: if every sum on a stream adds a
function of only the other stream, y = x + f gives x = y - f, line by line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, named_one
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.layers.active import is_norm
from learncost.layers.layer import shipped
from learncost.ops import canonical, entries, is_normalization
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
            stack: Value((first.count, *own_values[start].axes), "saved", start) for start, stack in starts.items()
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
        self, line: Loop, inside: list[Loop], each: Iterable[tuple[str, str]], keep: Iterable[tuple[str, str]]
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


ALL, AFFINE = ("block", "all"), "affine"
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
           lines name, such as mlp or layer_norm: those lines; a value, such as mlp.G: its line;
           affine: the gains and biases of norms, from the normalized values
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
    layers = {part for part in names if part not in ops} - {*ALL, AFFINE}
    values = {part for part in layers if any(term.name == part for line in lines for term in line.left)}
    layers -= values
    every = (*shipped(), *dict.fromkeys(line.meta.layer for line in lines))
    modules = {name for line in lines for name in (*line.meta.module.split("."), line.meta.operator)}
    for part in layers - modules:
        if not any(_within(layer, part) for layer in every):
            used = dict.fromkeys(line.op for line in lines if isinstance(line, Op) and line.part == "body")
            named_one(
                "part of a block", part, dict.fromkeys((*ALL, AFFINE, *filter(None, every[len(shipped()) :]), *used))
            )
    if {*ALL} & {*names}:
        return recomputed(table, lambda line: True, whole="block" in names)
    if AFFINE in names:
        values |= _affine(lines)
    acted: set[str] = set()
    for line in lines:
        if _passes_on(line, acted) or (isinstance(line, Op) and any(_begins(line.op, op) for op in ops)):
            acted.add(line.name)

    def chosen(line: Line) -> bool:
        of_modules = {*line.meta.module.split("."), line.meta.operator}
        return not (acted | values).isdisjoint(line.makes) or any(
            _within(line.meta.layer, p) or p in of_modules for p in layers
        )

    return recomputed(table, chosen)


def _affine(lines: Iterable[Line]) -> set[str]:
    """Return what norms make of their normalized values, by gains and biases."""
    normalized, made = set[str](), set[str]()
    for line in lines:
        if is_normalization(line):
            normalized |= {*line.makes}
        elif is_norm(line.meta.layer) and not (normalized | made).isdisjoint(line.reads):
            made |= {*line.makes}
    return made


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


def saving_block_inputs(table: Table) -> Table:
    """Return the step in which block inputs are saved instead of recomputed; the step itself if none are recomputed.

    The lines that recompute them remain as recomputation.
    """
    lines, values = list(table.lines), dict(table.values)
    forwards = ((at, line) for at, line in enumerate(lines) if isinstance(line, Loop) and not line.reverse)
    loop_carried = [(at, forward, carry) for at, forward in forwards for carry in forward.carry]
    finals = {carry.final: (at, forward.inside) for at, forward, carry in loop_carried}
    for after, reverse in enumerate(table.lines):
        if not isinstance(reverse, Loop) or not reverse.reverse:
            continue
        carried = (carry for carry in reverse.carry if carry.initial in finals)
        made = [carry for carry in carried if carry.end in finals[carry.initial][1]]  # not a gradient
        for before in {finals[carry.initial][0] for carry in made}:
            forward = lines[before]
            assert isinstance(forward, Loop)
            stacks = tuple((carry.end, f"{carry.end}*") for carry in made)
            values |= {o: Value((forward.count, *forward.values[n].axes), "saved", n) for n, o in stacks}
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

"""Loops, lines that run several times, and iteration over lines and loops."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import TypeAlias, TypeVar

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Sum
from learncost.ir.term import Term
from learncost.ir.value import Value, axes_of

AT_MOST_ONCE = "once."
"""The beginning of the name of the trip count of a loop that runs once at most."""


@dataclass(frozen=True, slots=True)
class Carry:
    """A loop-carried value: `start` and `end` are its names inside the loop, `initial` and `final` outside."""

    start: str
    end: str
    initial: str
    final: str


@dataclass(frozen=True)
class Loop:
    """A loop, `repeat n_layer carry X:`. It runs its lines `count` times; its body is a scope that sees the outer
    names.

    It is like `jax.lax.scan`: `each` pairs a name inside with the outer stack (`xs`) that it is a slice of, one per
    iteration; `keep` pairs a name inside with the outer stack (`ys`) that collects it. A stack has the count as its
    first axis; where a name inside has as many axes as its stack, an iteration reads several consecutive slices
    (`part`). `reverse` runs the last iteration first. `around` is the mesh axis of a ring: in every iteration the
    shards have moved one device further.
    """

    count: str
    lines: tuple[Statement, ...]
    values: Mapping[str, Value]
    carry: tuple[Carry, ...] = ()
    each: tuple[tuple[str, str], ...] = ()
    keep: tuple[tuple[str, str], ...] = ()
    reverse: bool = False
    around: str = ""

    @property
    def runs_once(self) -> bool:
        """Return whether no iteration has a previous one; stages count such a loop by a name."""
        return self.count == "1" or self.count.startswith(AT_MOST_ONCE)

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The declared axes of the names inside."""
        return axes_of(self.values)

    @cached_property
    def inside(self) -> frozenset[str]:
        """The names that the body's scope defines."""
        names = {carry.start for carry in self.carry} | {name for name, _ in self.each}
        return frozenset(names | defined(self.lines))

    @property
    def makes(self) -> tuple[str, ...]:
        """The outer names that it defines: the final loop-carried values, and the stacks of `keep`."""
        return (*(carry.final for carry in self.carry), *(outer for _, outer in self.keep))

    @property
    def repeats(self) -> tuple[Loop, ...]:
        """The loops among its lines; their inner loops are not listed."""
        return tuple(line for line in self.lines if isinstance(line, Loop))

    @property
    def ends(self) -> tuple[str, ...]:
        """The names inside that leave an iteration: the final loop-carried values, and what `keep` collects."""
        return (*(carry.end for carry in self.carry), *(name for name, _ in self.keep))

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The outer names that the loop reads."""
        inside = self.inside
        names = [carry.initial for carry in self.carry] + [outer for _, outer in self.each]
        names += [name for line in self.lines for name in line.reads if name not in inside]
        return tuple(dict.fromkeys(names))

    def renamed(self, names: Mapping[str, str]) -> Loop:
        """Return the loop with outer names renamed; its inner names remain."""
        inside = self.inside
        free = {name: new for name, new in names.items() if name not in inside}

        def new(name: str) -> str:
            return names.get(name, name)

        return replace(
            self,
            lines=tuple(line.renamed(free) for line in self.lines),
            carry=tuple(Carry(c.start, c.end, new(c.initial), new(c.final)) for c in self.carry),
            each=tuple((inside, new(stack)) for inside, stack in self.each),
            keep=tuple((inside, new(stack)) for inside, stack in self.keep),
        )

    def with_own(self, names: Mapping[str, str]) -> Loop:
        """Return the loop with inner names renamed; outer names remain."""

        def new(name: str) -> str:
            return names.get(name, name)

        return replace(
            self,
            lines=tuple(line.renamed(names) for line in self.lines),
            values={new(name): value for name, value in self.values.items()},
            carry=tuple(Carry(new(c.start), new(c.end), c.initial, c.final) for c in self.carry),
            each=tuple((new(inside), stack) for inside, stack in self.each),
            keep=tuple((new(inside), stack) for inside, stack in self.keep),
        )

    def part(self, inside: str, stack: Sequence[str]) -> int:
        """Return how many consecutive slices of a stack an iteration reads; 0: one, without the first axis."""
        axes = self.axes.get(inside, ())
        return int(axes[0]) if axes and len(axes) == len(stack) else 0

    @property
    def shared(self) -> tuple[str, ...]:
        """The outer names that every iteration reads in full."""
        inside = self.inside
        return tuple(dict.fromkeys(n for line in self.lines for n in line.reads if n not in inside))

    def __str__(self) -> str:
        head = f"repeat {self.count}{' backwards' if self.reverse else ''}"
        head += f" around {self.around}" if self.around else ""
        if self.carry:
            head += " carry " + " ".join(f"{c.start}->{c.end}" for c in self.carry)
        # A weight's slice has the name of its stack, and values that only a derivation keeps end in a star; both are
        # omitted.
        for op, pairs in (("each", self.each), ("keep", tuple((outer, inside) for inside, outer in self.keep))):
            pairs_shown = [f"{new}={old}" for new, old in pairs if new != old and "*" not in (new[-1], old[-1])]
            head += f" {op} {' '.join(pairs_shown)}" if pairs_shown else ""
        body = "\n".join("  " + text for line in self.lines for text in str(line).splitlines())
        return f"{head}:\n{body}"


Statement: TypeAlias = Line | Loop


@dataclass(frozen=True)
class LoopNest:
    """The loops around a line, from the outermost."""

    loops: tuple[Loop, ...] = ()

    @cached_property
    def counts(self) -> tuple[str, ...]:
        """The trip count of each."""
        return tuple(loop.count for loop in self.loops)

    @cached_property
    def axes(self) -> Mapping[str, tuple[str, ...]]:
        """The declared axes of the names inside; a name in several has those of the innermost."""
        return {name: axes for loop in self.loops for name, axes in loop.axes.items()}

    @cached_property
    def stacks(self) -> Mapping[str, str]:
        """The outermost stack of every slice; for a slice of a weight, the weight."""
        stacks: dict[str, str] = {}
        for loop in self.loops:
            stacks |= {inside: stacks.get(outer, outer) for inside, outer in loop.each}
        return stacks


OUTSIDE = LoopNest()


def visit(lines: Iterable[Statement], nest: LoopNest = OUTSIDE) -> Iterator[tuple[Statement, LoopNest]]:
    """Yield every line and loop with the loops around it, a loop before its lines."""
    for line in lines:
        yield line, nest
        if isinstance(line, Loop):
            yield from visit(line.lines, LoopNest((*nest.loops, line)))


def walk(lines: Iterable[Statement]) -> Iterator[tuple[Line, LoopNest]]:
    """Yield every line with the loops around it."""
    return ((line, nest) for line, nest in visit(lines) if isinstance(line, Line))


def repeats(lines: Iterable[Statement]) -> Iterator[Loop]:
    """Yield every loop, outer ones before inner ones."""
    return (line for line, _ in visit(lines) if isinstance(line, Loop))


def lines_in_rings(lines: Iterable[Statement]) -> Iterator[Line]:
    """Yield the lines of loops in which shards move round a ring of devices."""
    return (line for line, nest in walk(lines) if any(loop.around for loop in nest.loops))


def map_lines(lines: Iterable[Statement], change: Callable[[Line], Iterable[Line]]) -> tuple[Statement, ...]:
    """Replace every line by the results of `change`; loops keep their carry, each and keep."""
    result: list[Statement] = []
    for line in lines:
        if isinstance(line, Loop):
            result.append(replace(line, lines=map_lines(line.lines, change)))
        else:
            result.extend(change(line))
    return tuple(result)


def map_loops(lines: Iterable[Statement], change: Callable[[Loop], Loop | None]) -> tuple[Statement, ...]:
    """Replace every loop by the result of `change`, inner loops first; None removes it."""
    result: list[Statement] = []
    for line in lines:
        new = change(replace(line, lines=map_loops(line.lines, change))) if isinstance(line, Loop) else line
        if new is not None:
            result.append(new)
    return tuple(result)


def map_scopes(
    lines: Iterable[Statement], change: Callable[[tuple[Statement, ...]], Iterable[Statement]]
) -> tuple[Statement, ...]:
    """Replace the lines of every scope by the result of `change`, inner scopes first."""
    return tuple(change(map_loops(lines, lambda loop: replace(loop, lines=tuple(change(loop.lines))))))


def not_derived(lines: Iterable[Statement]) -> tuple[Op, ...]:
    """Return the lines with a declared cost and no derivation: they cannot be executed."""
    return tuple(line for line, _ in walk(lines) if isinstance(line, Op) and line.opaque is not None)


def check_derived(lines: Iterable[Statement], doing: str) -> None:
    """Raise `InputError` where a line has no derivation; the message names it and the purpose that needs one."""
    for line in not_derived(lines):
        where = f" in {line.meta.module}" if line.meta.module else ""
        raise InputError(f"{line.meta.operator or line.op}{where} is not derived, so {doing}, in line: {line}")


def check_known(lines: Iterable[Statement], what: str) -> None:
    """Raise `InputError` where the declared cost of a line is unknown."""
    for line in not_derived(lines):
        if line.opaque and None in (line.opaque.forward, line.opaque.backward):
            where = f" in {line.meta.module}" if line.meta.module else ""
            raise InputError(
                f"{what} needs every cost, and that of {line.meta.operator or line.op}{where} is unknown, "
                "forward and backward; learncost cost gives lower bounds"
            )


def defined(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the names that lines define in their own scope."""
    return frozenset(name for line in lines for name in line.makes)


def windows(lines: Iterable[Statement]) -> tuple[str, ...]:
    """Return the sizes of the windows of the lines, each once; windows of a number are left out."""
    return tuple(dict.fromkeys(window for line, _ in walk(lines) for window in line.windows))


def empty(lines: Iterable[Statement]) -> frozenset[str]:
    """Return the names that hold only zeros, in the scope of these lines."""
    return frozenset(line.name for line in lines if isinstance(line, Op) and line.op == "zeros")


def begun(repeat: Loop, nothing: Set[str]) -> frozenset[str]:
    """Return the loop-carried accumulators that start as one of the names of zeros around the loop."""
    return frozenset(c.start for c in repeat.carry if c.initial in nothing and _is_total(repeat, c))


def added(line: Line, nothing: Set[str]) -> Line:
    """Return a line of the first iteration without the accumulators that are still zero."""
    if isinstance(line, Sum) and nothing & {*line.reads}:
        right = tuple(term for term in line.right if isinstance(term, Term) and term.name not in nothing)
        return line.with_changed(right=right, signs=(1,))
    return line


def beginnings(lines: Iterable[Statement]) -> Iterator[tuple[Line, tuple[str, ...]]]:
    """Yield the sums that add to an accumulator, with the counts of the loops that restart it."""
    return _beginnings(tuple(lines), {}, ())


def _beginnings(
    lines: tuple[Statement, ...], around: dict[str, tuple[str, ...]], iterations: tuple[str, ...]
) -> Iterator[tuple[Line, tuple[str, ...]]]:
    since = around | dict.fromkeys(empty(lines), iterations)
    for line in lines:
        if isinstance(line, Loop):
            starts = begun(line, since.keys())
            inside = {c.start: since[c.initial] for c in line.carry if c.start in starts}
            yield from _beginnings(line.lines, inside, (*iterations, line.count))
        elif isinstance(line, Sum) and (names := around.keys() & {*line.reads}):
            yield line, around[names.pop()]


def _is_total(repeat: Loop, carry: Carry) -> bool:
    """Return whether iterations only add to a loop-carried value: one line reads it, a sum with another value."""
    readers = [line for line in repeat.lines if carry.start in line.reads]
    if len(readers) != 1:
        return False
    (line,) = readers
    if isinstance(line, Loop):
        inner = [c for c in line.carry if c.initial == carry.start]
        read = {*line.shared, *(stack for _, stack in line.each)}
        return len(inner) == 1 and carry.start not in read and _is_total(line, inner[0])
    if not isinstance(line, Sum) or line.where or line.signs != (1, 1):
        return False
    plain = all(isinstance(term, Term) and not term.indexed for term in (*line.left, *line.right))
    return plain and len({frozenset(term.loops) for term in (*line.left, *line.right)}) == 1


def repetition(
    items: Sequence[object], place: int, longest: int, allowed: Callable[[int, int], bool] = lambda period, end: True
) -> tuple[int, int]:
    """Return the period whose repetitions from a place on cover most, the shortest of these, and their number.

    longest  the longest period
    allowed  whether a period may be repeated up to an end
    """
    best, covers = (1, 1), 1
    for period in range(1, min(longest, (len(items) - place) // 2) + 1):
        if items[place + period] != items[place]:
            continue
        pattern, end = items[place : place + period], place + period
        while items[end : end + period] == pattern:
            end += period
        if end > place + max(period, covers) and allowed(period, end):
            best, covers = (period, (end - place) // period), end - place
    return best


Grouped = TypeVar("Grouped")


def groups(items: Iterable[Grouped], together: Callable[[Sequence[Grouped], Grouped], bool]) -> Iterator[list[Grouped]]:
    """Yield consecutive items that run at once, in order."""
    group: list[Grouped] = []
    for item in items:
        if group and not together(group, item):
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def in_kernel(group: Sequence[Statement], line: Statement) -> bool:
    """Return whether a line is of the same kernel as the line before it."""
    last = group[-1]
    kernel = line.meta.kernel if isinstance(line, Line) else None
    return kernel is not None and isinstance(last, Line) and last.meta.kernel == kernel

"""The predicted timeline of a step: every line of every block with its time, and the memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Any, Protocol, TypeAlias, TypeVar

from learncost.cost_models import Price, PricedLine
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Line, alias
from learncost.ir.loop import Loop, Statement, groups
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.layers.active import shown_layer
from learncost.procedures.procedure import MACRO_OPERATIONS
from learncost.program.lifetimes import LoopIteration, WalkedIterations, every_iteration, some_iterations
from learncost.reports.timing import Timing
from learncost.viz.timeline import Pen, TimelineCounter, TimelineProcess, changes

MOST = 100_000
"""Lines that a trace has at most. Of more, an inner loop is one iteration that represents all, and then every loop."""

LONGEST = 10**15
"""Nanoseconds that FLOPs are drawn as at most: viewers count in numbers that are exact up to 9 x 10^15."""

Part = TypeVar("Part")

Path: TypeAlias = "tuple[int, ...]"
"""The iterations around a line, outermost first."""


class StepMemory(Protocol):
    """The memory of a step, line by line."""

    @property
    def table(self) -> Table:
        """The table of its lines."""

    def moments(self, iterations: WalkedIterations) -> Iterable[tuple[Line, Path, int]]:
        """Return every executed line with its iterations and the live bytes."""


@dataclass(frozen=True)
class PricedStep:
    """A priced step: its table with a row for each line, and the sizes of all axes.

    timing  of the rows on a device, where one is given
    """

    name: str
    table: Table
    rows: Sequence[PricedLine]
    axes: Mapping[str, int]
    dtype: str
    timing: Timing | None = None
    memory: StepMemory | None = None

    @property
    def flops(self) -> int:
        """The FLOPs of the whole step."""
        return int(Price("run", tuple(self.rows), self.axes).flops)

    @property
    def scale(self) -> int:
        """FLOPs per displayed nanosecond without a device: a power of a thousand."""
        return next(scale for power in count() if self.flops <= LONGEST * (scale := int(1000**power)))


@dataclass(frozen=True)
class _Leaf:
    """A line of the table, and its row."""

    row: PricedLine
    line: Line


@dataclass(frozen=True)
class _DrawnLoop:
    """A loop with its iterations, their names, and those that are drawn."""

    repeat: Loop
    parts: tuple[_Node, ...]
    count: int
    names: _IterationNames


_Node: TypeAlias = "_Leaf | _DrawnLoop"


@dataclass(frozen=True)
class _IterationNames:
    """The labels of a loop's iterations: the numbers of their blocks in the model."""

    block: str
    first: int
    several: int

    def of(self, iteration: int) -> str:
        if not self.block:
            return f"iteration {iteration}"
        first = self.first + iteration * self.several
        return f"{self.block}s {first} to {first + self.several - 1}" if self.several > 1 else f"{self.block} {first}"


def process(step: PricedStep) -> TimelineProcess:
    """Return the step as a process: passes, blocks, layers and lines, and the memory as a counter."""
    return _StepDrawing(step).process()


class _StepDrawing:
    """The line-by-line drawing of a step."""

    def __init__(self, step: PricedStep) -> None:
        self.step, self.pen = step, Pen()
        self.known = frozenset(step.table.weights)
        self.groups: dict[str, list[tuple[frozenset[str], int, int]]] = {}  # by block: its weights, the first, how many
        self.blocks = len({row.block for row in step.rows if row.block}) > 1
        self.nodes = self._nodes(step.table.lines, iter(step.rows), True)
        self.outer = _lines(self.nodes, False, True) <= MOST
        self.inner = _lines(self.nodes, True, True) <= MOST
        self.seconds = _by_line(step.timing)
        self.levels = self._levels()
        self.memory: list[tuple[int, int]] = []
        self.known_rows: dict[int, tuple[int, dict[str, int]]] = {}  # their iterations and counts, by place
        self.ran = Counter[int]()  # iterations of a row that are drawn, by place

    # The table, with its rows and the names of its blocks.

    def _nodes(self, lines: Iterable[Statement], rows: Iterator[PricedLine], outermost: bool) -> tuple[_Node, ...]:
        return tuple(
            self._loop(line, rows, outermost) if isinstance(line, Loop) else _Leaf(next(rows), line) for line in lines
        )

    def _loop(self, repeat: Loop, rows: Iterator[PricedLine], outermost: bool) -> _DrawnLoop:
        iterations, parts = int(size_of(repeat.count, self.step.axes)), self._nodes(repeat.lines, rows, False)
        blocks = {leaf.row.block for leaf in _leaves(parts)} - {None}
        names = _IterationNames("", 0, 1)
        if outermost and len(blocks) == 1:
            names = self._blocks(f"{blocks.pop()} block" if self.blocks else "block", repeat, iterations)
        return _DrawnLoop(repeat, parts, iterations, names)

    def _blocks(self, block: str, repeat: Loop, iterations: int) -> _IterationNames:
        """Return the blocks of loops: loops that read the same weights have the same blocks."""
        weights_read = frozenset(outer for _, outer in repeat.each if outer in self.known)
        several = max(
            Counter(name.rpartition(".")[2] for name in weights_read if "attn" in name.split(".")).values(), default=1
        )
        groups = self.groups.setdefault(block, [])
        number = next(
            (number for number, (weights, _, _) in enumerate(groups) if not weights_read or weights & weights_read),
            None,
        )
        if number is None:
            first = sum(many for _, _, many in groups)
            groups.append((weights_read, first, iterations * several))
            return _IterationNames(block, first, several)
        weights, first, many = groups[number]
        groups[number] = weights | weights_read, first, many
        return _IterationNames(block, first, max(1, many // iterations))

    # What is known of a line as it runs.

    def _iterations(self, loop: _DrawnLoop | Loop, outermost: bool) -> bool:
        """Return whether the iterations of a loop are drawn individually."""
        return self.outer if outermost else self.inner

    def _levels(self) -> dict[tuple[Path, str, str], int]:
        """Return the bytes by iterations, pass and name of the line."""
        if self.step.memory is None:
            return {}
        outermost = {id(line) for line in self.step.memory.table.lines}

        def iterations(repeat: Loop, many: int | None) -> tuple[LoopIteration, ...]:
            return (every_iteration if self._iterations(repeat, id(repeat) in outermost) else some_iterations)(
                repeat, many
            )

        moments = self.step.memory.moments(iterations)
        return {(path, line.meta.phase, line.name): level for line, path, level in moments}

    # Drawing.

    def process(self) -> TimelineProcess:
        for passes, nodes in phases(self.nodes, lambda node: [leaf.row.macro_operation for leaf in _leaves((node,))]):
            name = ", ".join(passes).replace("_", " ")
            with self.pen.around(name, "pass", ",".join(passes)):
                self._scope(nodes, (), 1, True)
        timing = self.step.timing
        if timing is not None and timing.time.step:
            self.pen.draw(timing.time.step * 1e9, "outside of the lines", "rest", "rest", seconds=timing.time.step)
        counters = (TimelineCounter("memory, predicted", "bytes", changes(self.memory)),) if self.memory else ()
        return TimelineProcess(self.step.name, tuple(self.pen.slices), counters)

    def _scope(self, nodes: Sequence[_Node], path: Path, times: int, outermost: bool) -> None:
        """Draw the lines of a scope by layer, `times` of them merged, and the iterations of its loops."""
        for is_loop, group in groupby(nodes, lambda node: isinstance(node, _DrawnLoop)):
            if is_loop:
                for loop in group:
                    assert isinstance(loop, _DrawnLoop)
                    self._loops(loop, path, times, outermost)
                continue
            leaves = [leaf for leaf in group if isinstance(leaf, _Leaf)]
            for layer, same_layer in groupby(leaves, lambda leaf: leaf.row.layer):
                lines = list(same_layer)
                passes = ",".join(_ordered(leaf.row.macro_operation for leaf in lines))
                with self.pen.around(shown_layer(layer), "layer", passes):
                    self._layer(lines, path, times)

    def _loops(self, loop: _DrawnLoop, path: Path, times: int, outermost: bool) -> None:
        passes = ",".join(_ordered(leaf.row.macro_operation for leaf in _leaves(loop.parts)))
        if not self._iterations(loop, outermost):
            with self.pen.around(f"{loop.count:,} iterations", "iteration", passes, iterations=loop.count):
                self._scope(loop.parts, (*path, 0), times * loop.count, False)
            return
        for iteration in reversed(range(loop.count)) if loop.repeat.reverse else range(loop.count):
            with self.pen.around(loop.names.of(iteration), "block" if loop.names.block else "iteration", passes):
                self._scope(loop.parts, (*path, iteration), times, False)

    def _layer(self, leaves: Sequence[_Leaf], path: Path, times: int) -> None:
        """Draw the lines of a layer, with the lines of a kernel as one slice."""
        timing = self.step.timing
        if timing is None:
            for leaf in leaves:
                self._line(leaf, path, times)
            return
        for group in groups(leaves, self._at_once):
            self._kernel(group, path, times)

    def _at_once(self, group: Sequence[_Leaf], leaf: _Leaf) -> bool:
        """Return whether a line runs in the kernel of those before it, or in none."""
        assert self.step.timing is not None
        kernels = self.step.timing.kernels
        mine, others = kernels.get(leaf.row.place), (kernels.get(other.row.place) for other in group)
        kernel_before = next((kernel for kernel in others if kernel), None)
        return mine is None or kernel_before is None or mine is kernel_before

    def _kernel(self, leaves: Sequence[_Leaf], path: Path, times: int) -> None:
        assert self.step.timing is not None
        working = [leaf for leaf in leaves if leaf.row.place in self.step.timing.kernels]
        if len(working) < 2:
            for leaf in leaves:
                self._line(leaf, path, times)
            return
        kernel = self.step.timing.kernels[working[0].row.place]
        iterations = int(kernel.main.repeat.at(self.step.axes))
        name = ", ".join(_named(leaf) for leaf in working)
        passes = ",".join(_ordered(leaf.row.macro_operation for leaf in working))
        share = kernel.seconds * times / iterations
        with self.pen.around(name, "kernel", passes, seconds=share, bound=kernel.bound):
            for leaf in leaves:
                self._line(leaf, path, times)

    def _line(self, leaf: _Leaf, path: Path, times: int) -> None:
        row = leaf.row
        before = self.memory[-1][1] if self.memory else None  # of a copy that only an optimizer reads: no array
        if (level := self.levels.get((path, row.macro_operation, leaf.line.name), before)) is not None:
            self.memory.append((round(self.pen.at), level))
        facts, more = self._facts(leaf, times), {} if level is None else {"memory": level}
        length = facts["flops"] / self.step.scale if self.step.timing is None else facts["seconds"] * 1e9
        self.pen.draw(length, _named(leaf), "line", row.macro_operation, **facts, **more)

    def _facts(self, leaf: _Leaf, times: int) -> dict[str, Any]:
        """Return the cost and the label of a line over its next iterations, which may have unequal shares."""
        row, axes, timing = leaf.row, self.step.axes, self.step.timing
        if row.place not in self.known_rows:
            price = Price("run", (row,), axes, self.step.dtype)
            counts = {"maccs": price.maccs, "flops": price.flops, "bytes": price.bytes}
            self.known_rows[row.place] = int(row.repeat.at(axes)), counts
        iterations, counts = self.known_rows[row.place]
        before, self.ran[row.place] = self.ran[row.place], self.ran[row.place] + times
        facts: dict[str, Any] = {
            name: amount * (before + times) // iterations - amount * before // iterations
            for name, amount in counts.items()
        }
        if timing is not None:
            facts["seconds"] = self.seconds.get(row.place, 0.0) * times / iterations
            if kernel := timing.kernels.get(row.place):
                facts["bound"] = kernel.bound
        if times > 1:
            facts["iterations"] = times
        if row.equation:
            facts["equation"] = row.equation
        if alias(leaf.line):
            facts["runs"] = "nothing: another name of an array"
        return facts | {"array": leaf.line.name, "line": str(leaf.line)}


def _by_line(timing: Timing | None) -> dict[int, float]:
    """Return the seconds of every row; rows of a kernel share its time by operations."""
    if timing is None:
        return {}
    return {place: kernel.seconds * timing.shares[place] for place, kernel in timing.kernels.items()}


def _leaves(nodes: Iterable[_Node]) -> Iterator[_Leaf]:
    for node in nodes:
        if isinstance(node, _DrawnLoop):
            yield from _leaves(node.parts)
        else:
            yield node


def _lines(nodes: Iterable[_Node], inner: bool, outer: bool) -> int:
    """Return executed lines, optionally with the iterations of outermost and inner loops."""
    lines = 0
    for node in nodes:
        iterations = node.count if isinstance(node, _DrawnLoop) and outer else 1
        lines += iterations * _lines(node.parts, inner, inner) if isinstance(node, _DrawnLoop) else 1
    return lines


def phases(
    parts: Sequence[Part], passes_of: Callable[[Part], Iterable[str]]
) -> Iterator[tuple[tuple[str, ...], list[Part]]]:
    """Return the passes of a step; interleaved ones are one, such as backward and weight update."""
    spans: dict[str, list[int]] = {}
    for place, part in enumerate(parts):
        for name in passes_of(part):
            spans.setdefault(name, [place, place])[1] = place
    end, passes, group = -1, list[str](), list[Part]()
    for place, part in enumerate(parts):
        new = [name for name, span in spans.items() if span[0] == place]
        if place > end and group:
            yield _ordered(passes), group
            passes, group = [], []
        passes += new
        group.append(part)
        end = max([end, *(spans[name][1] for name in new)])
    if group:
        yield _ordered(passes), group


def _ordered(passes: Iterable[str]) -> tuple[str, ...]:
    """Return each pass once, in the order of a step."""
    return tuple(sorted(set(passes), key=MACRO_OPERATIONS.index))


def _named(leaf: _Leaf) -> str:
    """Return the name of a line in its layer; for the optimizer that of its result."""
    return leaf.line.name if leaf.row.layer == "optimizer" else leaf.row.line

"""The names, sizes and loops of a kernel, and the addresses of its arrays' elements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from learncost.backends.c import tree
from learncost.backends.c.printer import Printer
from learncost.backends.c.schedule import MAIN, KernelSchedule, ScheduledValue
from learncost.backends.c.tree import ITERATION, ONE, ZERO, larger, minus, plus, smaller, times
from learncost.backends.expression import Identifiers
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Condition, Line
from learncost.ir.polynomial import base
from learncost.ir.term import Term

Positions: TypeAlias = Mapping[str, tree.Expression]
_RESERVED = (
    *("auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "extern"),
    *("float", "for", "goto", "if", "inline", "int", "long", "register", "restrict", "return", "short", "signed"),
    *("sizeof", "static", "struct", "switch", "typedef", "union", "unsigned", "void", "volatile", "while"),
    *("place", "bf16", "memory", "thread", "threads", "iteration", "sums", "sum", "one", "number", "i", "j"),
    *("real", "whole", "LOWEST", "int8_t", "int32_t", "int64_t", "uint8_t", "uint32_t", "uint64_t"),
    *("pair", "pairs", "lanes", "loose", "LANES", "TALL", "first", "odd"),
    *("bind", "own", "own_memory", "own_size", "exp", "log", "pow", "free", "abort"),
)


@dataclass(frozen=True)
class ArrayStorage:
    """An array, its axes, its extents, and the axis of which it holds one block."""

    array: tree.ArrayMemory
    axes: tuple[str, ...]
    extents: tuple[tree.Expression, ...]
    block: str = ""


class Arrays:
    """The immutable context that all parts of a kernel share.

    axes     the declared axes of every name; `dtypes` their types
    printer  the dialect of C
    real     the C type of numbers
    lines    in one scope of axes, before they were lowered
    sizes    those that are constants
    """

    def __init__(
        self,
        schedule: KernelSchedule,
        axes: Mapping[str, tuple[str, ...]],
        dtypes: Mapping[str, str],
        printer: Printer,
        real: str,
        lines: Sequence[Line],
        sizes: Mapping[str, int],
    ) -> None:
        self.schedule, self.axes, self.dtypes, self.real, self.sizes = schedule, axes, dtypes, real, sizes
        self.types, self.alone, self.tiles = printer.types, printer.alone, printer.tiles and real == "float"
        self.values = schedule.values
        self.block = schedule.block[0] if schedule.block else ""
        self.names = Identifiers(_RESERVED)
        values = self.values.values()
        for value in values:  # so that no local number has the name of an array
            for name in (value.name, *value.line.reads):
                self.names.of(name)
        read_names = {name for value in values for name in value.line.reads if name not in self.values}
        self.parameters = {self.names.of(name) for name in read_names | schedule.outputs}
        looped = dict.fromkeys(axis for value in values for axis in (*value.line.loops, *value.axes))
        # the current indices of loops
        self.positions: Positions = {axis: tree.LoopCounter(self.counter(axis)) for axis in looped}
        self.bounded, self._conditions = self._bounding(lines)

    # Axes.

    def size(self, axis: str) -> tree.Expression:
        """Return the number of positions along an axis."""
        if axis in self.schedule.parts:
            return self.count(self.schedule.parts[axis])
        name = base(axis)
        return tree.NameExpression(name) if name.isdigit() else tree.SizeExpression(self.names.of(name, "size"), name)

    def count(self, axes: Sequence[str]) -> tree.Expression:
        return times(*map(self.size, axes))

    def block_extents(self, axes: Sequence[str]) -> tuple[tree.Expression, ...]:
        """Return the extents of memory for one block."""
        return tuple(self.block_size if axis == self.block else self.size(axis) for axis in axes)

    @property
    def block_size(self) -> tree.Expression:
        assert self.schedule.block is not None
        axis, places = self.schedule.block
        return tree.NameExpression(str(places)) if places else self.size(axis)

    def counter(self, axis: str) -> str:
        return self.names.of("i_" + "_".join(self.schedule.parts.get(axis, (axis,))), "position")

    # Loops.

    def base(self, phase: int) -> str:
        """Return the counter of the innermost loop around the rows or products of a phase."""
        inner = (*self.schedule.sequence, *([self.block] if self.block else [])) if phase == MAIN else ()
        around = (*self.schedule.iterations, *inner)
        return self.counter(around[-1]) if around else ITERATION

    def bounds(self, axis: str, phase: int | None) -> tuple[tree.Expression, tree.Expression]:
        """Return the bounds of loops and products over an axis."""
        if phase == MAIN and axis in (self.block, self.bounded):
            return self.edge("from", axis), self.edge("to", axis)
        return ZERO, self.size(axis)

    def edge(self, side: str, axis: str) -> tree.NameExpression:
        return tree.NameExpression(f"{side}_{self.counter(axis)}")

    def loop(
        self, axis: str, body: Sequence[tree.CStatement], phase: int | None = None, independent: bool = False
    ) -> tree.ForLoop:
        """Return the loop over an axis."""
        first, last = self.bounds(axis, phase) if axis == self.bounded else (ZERO, self.size(axis))
        return tree.ForLoop(self.counter(axis), first, last, tuple(body), independent=independent)

    def _bounding(self, lines: Sequence[Line]) -> tuple[str, tuple[Condition, ...]]:
        """Return the axis that all lines bound by the block's axis, if no output has both."""
        tied = {c for line in lines for c in line.where if c.ordered and self.block in c.axes}
        for other in sorted({a for c in tied for a in c.axes if a != self.block}):
            pair = {self.block, other}
            common = frozenset.intersection(*(frozenset(line.where) for line in lines if pair <= set(line.loops)))
            common = frozenset(c for c in common if c.axes == pair and c.ordered)
            if common and not any(v.output and pair <= set(v.axes) for v in self.values.values()):
                return other, tuple(sorted(common, key=str))
        return "", ()

    def limits(self) -> tuple[tree.Expression, tree.Expression]:
        """Return the bounds of the bounded axis for a block of the other."""
        lower: tree.Expression = ZERO
        upper = self.size(self.bounded)
        first, last = self.edge("from", self.block), self.edge("to", self.block)
        for condition in self._conditions:
            window = self.size(condition.window) if condition.window else None
            low: tree.Expression | None = plus(first, ONE) if condition.strict else first
            high: tree.Expression | None = window and plus(minus(last, ONE), window)
            if condition.upper == self.block:
                low = window and plus(minus(first, window), ONE)
                high = minus(last, ONE) if condition.strict else last
            lower = larger(low, lower) if low else lower
            upper = smaller(high, upper) if high else upper
        if self.tiles and lower != ZERO:  # the start of strips; excluded elements are zero there
            lower = times(
                tree.OperationExpression("/", (lower, tree.NameExpression("LANES"))), tree.NameExpression("LANES")
            )
        return lower, upper

    # Memory.

    def multiplies(self, stored: str) -> bool:
        """Return whether a product reads a factor of this type without packing."""
        return stored == self.real or (self.alone and stored == self.types["int8"])

    def storage(self, value: ScheduledValue) -> ArrayStorage:
        """Return the memory of a line's value: the output, a thread's sums, or the iteration's workspace."""
        schedule, value_name, axes = self.schedule, self.names.of(value.name), value.axes
        if value.shared and not self.alone:  # a scalar, such as the loss, sums so many numbers that it needs double
            kind, extents = self.real if axes else "double", tuple(map(self.size, axes))
            return ArrayStorage(
                tree.ArrayMemory(f"{value_name}_sums", kind, "sums", value.name, times(*extents)), axes, extents
            )
        if value.output:
            return ArrayStorage(self.output(value), axes, self._extents(value.name, axes))
        axes = tuple(axis for axis in axes if axis not in schedule.iterations)
        if not value.added:
            axes = tuple(axis for axis in axes if axis not in schedule.sequence)
            if not schedule.crosses(value):
                axes = tuple(axis for axis in axes if axis not in schedule.fixed)
        kind = {"bool": self.types["bool"], "index": self.types["int64"]}.get(value.type, self.real)
        name = f"{self.names.of(schedule.over.get(value.name, value.name))}_rows"
        return self.scratch(name, kind, value.name, axes, whole=value.added)

    def scratch(self, name: str, kind: str, of: str, axes: tuple[str, ...], whole: bool = False) -> ArrayStorage:
        """Return workspace of the iteration, for one block or all of them."""
        extents = tuple(map(self.size, axes)) if whole else self.block_extents(axes)
        block = self.block if self.block in axes and not whole else ""
        return ArrayStorage(tree.ArrayMemory(name, kind, "scratch", of, times(*extents)), axes, extents, block)

    def output(self, value: ScheduledValue) -> tree.ArrayMemory:
        return tree.ArrayMemory(self.names.of(value.name), self.types[self.dtypes[value.name]], "made", value.name)

    def read_array(self, term: Term) -> ArrayStorage:
        """Return an array that the kernel reads."""
        array = tree.ArrayMemory(self.names.of(term.name), self.types[self.dtypes[term.name]], "read", term.name)
        return ArrayStorage(array, term.declared, self._extents(term.name, term.declared))

    def _extents(self, name: str, axes: Sequence[str]) -> tuple[tree.Expression, ...]:
        """Return an array with declared axes, which may have other names here."""
        declared = iter(self.axes[name])
        parts = (self.schedule.parts.get(axis, (axis,)) for axis in axes)
        return tuple(self.count([next(declared) for _ in group]) for group in parts)

    def element(self, store: ArrayStorage, at: Sequence[tree.Expression]) -> tree.Element:
        """Return an element, by an index for every axis."""
        pairs = zip(store.axes, at, strict=True)
        first = self.edge("from", store.block)
        indices = (minus(index, first) if store.block and axis == store.block else index for axis, index in pairs)
        return tree.Element(store.array, store.extents, tuple(indices))

    def address(self, value: ScheduledValue, positions: Positions) -> tree.Element:
        """Return the element in the memory of a value."""
        store = self.storage(value)
        return self.element(store, [positions[axis] for axis in store.axes])

    def loaded(self, value: ScheduledValue, positions: Positions) -> tree.Expression:
        """Return the stored value."""
        element = self.address(value, positions)
        return self.widened(element, element.array.type)

    def widened(self, number: tree.Expression, stored: str) -> tree.Expression:
        """Convert a stored number for computation."""
        if stored == "bf16":
            return tree.CallExpression("from_bf16", (number,))
        if stored == self.types["int8"]:
            return tree.OperationExpression(f"({self.real})", (number,))
        return (
            tree.OperationExpression("(double)", (number,)) if stored == "float" and self.real == "double" else number
        )

    def summand(self, number: tree.Expression) -> tree.Expression:
        """Convert to a number, also from a condition, as strict compilers require."""
        is_condition = isinstance(number, tree.HoistedValue) and number.type == "int"
        return tree.OperationExpression(f"({self.real})", (number,)) if self.alone and is_condition else number

    def narrowed(self, number: tree.Expression, stored: str) -> tree.Expression:
        if stored == "bf16":
            return tree.CallExpression("to_bf16", (number,))
        if self.alone:
            return self.summand(number) if stored == self.real else tree.OperationExpression(f"({stored})", (number,))
        return tree.OperationExpression("(float)", (number,)) if stored == "float" and self.real == "double" else number


_Loops: TypeAlias = tuple[tree.ForLoop, ...]


class _Access(NamedTuple):
    """An access to an array in its loops: an element or, without indices, a full part."""

    array: tree.ArrayMemory
    stored: str
    at: tuple[tree.Expression, ...]
    loops: _Loops


def shared(arrays: Arrays, routine: tree.Routine) -> tuple[tuple[str, str], ...]:
    """Return the pairs of names in which every element is read for the last time before it is written."""
    outputs = [value.name for value in arrays.values.values() if value.output]
    pairs = [
        (read.of, name) for read in routine.arrays("read") for name in outputs if _same_layout(arrays, read.of, name)
    ]
    uses = [*_uses((routine.before, routine.iterations), ())] if pairs else []
    return tuple(pair for pair in pairs if _is_in_time(*pair, uses))


def _same_layout(arrays: Arrays, left: str, right: str) -> bool:
    first, second = ([arrays.size(axis) for axis in arrays.axes[name]] for name in (left, right))
    return bool(first) and first == second and arrays.dtypes[left] == arrays.dtypes[right]


def _is_in_time(read: str, written: str, uses: list[_Access]) -> bool:
    """Return whether all reads precede the write in every iteration of the common loops, each at its elements."""
    relevant = [use for use in uses if use.array.of == read or (use.array.of == written and use.stored)]
    *reads, write = relevant
    if write.stored != "=" or any(use.stored for use in reads):
        return False
    for use in reads:
        around = [loop for loop, other in zip(use.loops, write.loops, strict=False) if loop is other]
        same = {
            read_place
            for read_place, written_place in zip(use.at, write.at, strict=False)
            if read_place == written_place
        }
        counters = {tree.LoopCounter(counter) for loop in around for counter in loop.still if counter != ITERATION}
        if len(use.at) != len(write.at) or not counters <= same:
            return False
    return True


def _uses(part: object, loops: _Loops) -> Iterator[_Access]:
    if isinstance(part, tuple):
        for inner in part:
            yield from _uses(inner, loops)
    elif isinstance(part, tree.ForLoop):
        yield from _uses(part.body, (*loops, part))
    elif isinstance(part, tree.MatrixBlock):
        yield _Access(part.first.array, "", (), loops)
    elif isinstance(part, tree.Store):
        yield from _uses(part.value, loops)
        if isinstance(part.to, tree.Element):
            yield from _uses(part.to.operands, loops)
            yield _Access(part.to.array, part.sign, part.to.operands, loops)
    elif isinstance(part, tree.Element):
        yield from _uses(part.operands, loops)
        yield _Access(part.array, "", part.operands, loops)
    elif hasattr(part, "__dict__"):
        yield from _uses(tuple(vars(part).values()), loops)

"""The observed execution of a step in place: products of PyTorch and of kernels, and written arrays.

The operations that an engine executed are compared with the price of its table, line by line.

Statements are recorded as PyTorch dispatches them and as kernels are called. A kernel's products are recorded by
giving it a counting function in place of the library's; its compiled loops are not recorded.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from math import prod
from typing import Any, TypeAlias

from learncost.backends.c.sides import is_ended, is_library
from learncost.backends.placed import InPlaceProgram
from learncost.cost_models import PricedLine, price
from learncost.cost_models.books import book
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Line, Op, Product
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, base, shape_of, size_of
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.layers.gradient_plan import Scope
from learncost.layers.products import skipping
from learncost.program.calls import Call, CallLoop, Item
from learncost.verification.report import Check

BLOCKS = replace(book("matmul"), name="blocks", causal="blocks")
"""Matrix products, causal attention at the blocks that kernels take; a table without kernels costs the same by both."""


@dataclass
class ExecutedLine:
    """The executed operations of a line.

    products   calls of a library
    maccs      m n k of these
    elements   of results that were written to memory
    """

    products: int = 0
    maccs: int = 0
    elements: int = 0


class ExecutedLines:
    """The lines of a table in order, the price of each, and its executed operations.

    sizes    of all axes and counts
    written  the results that are stored in memory, each with the number of its line; None: elements are not compared
    unseen   the numbers of the products that a kernel computes in inner loops without a result
    """

    def __init__(self, table: Table, sizes: Mapping[str, int]) -> None:
        self.lines = tuple(line for line, _ in walk(table.lines))
        self.rows = price(table, sizes, BLOCKS).rows
        self._whole = price(table, sizes, book("matmul")).rows
        self._few = skipping(table.lines, table.outputs)
        self._sizes = sizes
        self.ran = tuple(ExecutedLine() for _ in self.lines)
        self.written: set[tuple[int, str]] | None = None
        self.unseen: set[int] = set()

    def maccs(self, at: int, unskipped: bool = False) -> int:
        """Return the priced MACCs of a line in all iterations."""
        return int((self._whole if unskipped else self.rows)[at].maccs.at(self._sizes))

    def skips(self, at: int) -> bool:
        """Return whether a line's kernel skips pairs of positions."""
        line = self.lines[at]
        return line.meta.kernel is not None and (line.meta.kernel.name, line.name) in self._few

    def elements(self, at: int) -> int:
        """Return the stored elements of a line's results, in all iterations."""
        stored = [term for term in self.lines[at].left if (at, term.name) in (self.written or ())]
        counts = (Polynomial.of(term.declared) * self.rows[at].repeat for term in stored)
        return sum(int(count.at(self._sizes)) for count in counts)

    def iterations(self, count: str) -> int:
        """Return the number of iterations of a loop."""
        return int(size_of(count, self._sizes))

    def checks(self, subject: str) -> Iterator[Check]:
        """Yield one comparison for each macro-operation, in order of their first lines."""
        parts: dict[str, list[int]] = {}
        for at, row in enumerate(self.rows):
            parts.setdefault(row.macro_operation, []).append(at)
        for phase, lines in parts.items():
            yield self._check(subject, phase.replace("_", " "), lines)

    def _check(self, subject: str, phase: str, lines: Sequence[int]) -> Check:
        ran = sum(self.ran[at].maccs for at in lines)
        seen = [at for at in lines if at not in self.unseen]
        priced, unskipped = (sum(self.maccs(at, dense) for at in seen) for dense in (False, True))
        in_loops = sum(self.maccs(at) for at in lines if at in self.unseen)
        text = f"{sum(self.ran[at].products for at in lines):,} products of {ran:,} MACCs executed, {priced:,} priced"
        text += f" ({unskipped:,} with what blocks skip)" if unskipped != priced else ""
        text += f"; {in_loops:,} more are priced in loops of kernels, which cannot be watched" if in_loops else ""
        if self.written is not None:
            written, results = sum(self.ran[at].elements for at in lines), sum(self.elements(at) for at in lines)
            text += f"; {written:,} elements written, {results:,} priced"
        wrong = next((difference for at in lines if (difference := self._difference(at))), "")
        return Check(subject, f"{phase} executed with priced, line by line", f"{text}: {wrong or 'equal'}", not wrong)

    def _difference(self, at: int) -> str:
        """Return the mismatch of a line, or ""."""
        ran, priced = self.ran[at], 0 if at in self.unseen else self.maccs(at)
        if ran.maccs != priced:
            return f"{ran.maccs:,} MACCs executed, {priced:,} priced, of {_shown(self.rows[at])}"
        if self.written is not None and ran.elements != self.elements(at):
            return f"{ran.elements:,} elements written, {self.elements(at):,} priced, of {_shown(self.rows[at])}"
        return ""


def _shown(row: PricedLine) -> str:
    return f"{row.layer}: {row.text}" if row.layer else row.text


def places(executed: Sequence[Hashable], expected: Sequence[Hashable]) -> list[int]:
    """Return the index of the expected item for each executed one; an unexpected one has an equal neighbour's."""
    if list(executed) == list(expected):
        return list(range(len(expected)))
    matched: list[int] = []
    matcher = SequenceMatcher(None, expected, executed, autojunk=False)
    for _, start, end, first, last in matcher.get_opcodes():
        for i, mark in enumerate(executed[first:last], start):
            near = (i, end - 1) if start < end else (start, start - 1)
            inside = [at for at in near if 0 <= at < len(expected) and (start == end or at < end)]
            matched.append(next((at for at in inside if expected[at] == mark), inside[-1]))
    return matched


def factors(line: Product) -> tuple[Term, ...]:
    """Return the arrays that a product multiplies."""
    return tuple(term for term in line.right if isinstance(term, Term))


Shape = tuple[int, int, int]
"""The smaller and the larger extent of a product's result, and the extent of its sum."""


def shape(rows: int, columns: int, summed: int) -> Shape:
    """Return a canonical shape: a product with transposed factors has rows and columns exchanged."""
    return (min(rows, columns), max(rows, columns), summed)


@dataclass
class Event:
    """A statement that ran; `mark` identifies it: a kernel's name, or an operation and its number of elements."""

    mark: Hashable
    products: Counter[Shape] = field(default_factory=Counter)
    elements: tuple[int, ...] = ()


@dataclass(frozen=True)
class Expected:
    """One statement as in the program; without a call, what makes room for the next one.

    numbers   of the lines of its scope, by what they make
    """

    mark: Hashable
    call: Call | None
    numbers: Mapping[str, int]


class StatementWatch:
    """The statements that ran while `watching`, in order. `kernel` is called around a kernel's call."""

    def __init__(self, program: InPlaceProgram) -> None:
        self.events: list[Event] = []
        self._writes = {
            function.name: slice(len(function.reads), len(function.reads) + len(function.writes))
            for function in program.functions
        }
        self._open: Event | None = None

    def kernel(self, name: str, call: Callable[..., None]) -> Callable[..., None]:
        """Return the kernel wrapped in a recorder."""

        def noted(*arguments: Any) -> None:
            written = tuple(tensor.numel() for tensor in arguments[self._writes[name]])
            self._open = Event(("kernel", name), elements=written)
            self.events.append(self._open)
            call(*arguments)
            self._open = None

        return noted

    def product(self, rows: int, columns: int, summed: int) -> None:
        """Record a product inside the running kernel."""
        assert self._open is not None
        self._open.products[shape(rows, columns, summed)] += 1

    def watching(self) -> Any:
        """Return the context in which PyTorch's statements are recorded."""
        from torch.utils._python_dispatch import TorchDispatchMode

        events = self.events

        class InPlaceMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
            def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
                result = function(*arguments, **(keywords or {}))
                event = _event(function.overloadpacket.__name__, arguments, result)
                if event:
                    events.append(event)
                return result

        return InPlaceMode()  # type: ignore[no-untyped-call]


def _event(name: str, arguments: Any, result: Any) -> Event | None:
    if name in ("mm", "addmm_"):
        left, right = arguments[-2:]
        product = shape(left.shape[0], right.shape[1], left.shape[1])
        return Event(("product", prod(product)), Counter((product,)), (result.numel(),))
    if name in ("zero_", "index_add_"):
        return Event((name, result.numel()), elements=(result.numel(),))
    return None  # views, and copies that a sum in place needs


def counting(watch: StatementWatch, library: Mapping[str, int]) -> dict[str, Any]:
    """Return BLAS's products by name, wrapped in recorders; kernels call them from all threads."""
    integer, any_ = ctypes.POINTER(ctypes.c_int), ctypes.c_void_p
    kind = ctypes.CFUNCTYPE(
        None, any_, any_, integer, integer, integer, any_, any_, integer, any_, integer, any_, any_, integer
    )

    def noted(real: Callable[..., None]) -> Any:
        def product(*arguments: Any) -> None:
            # BLAS is column-major: the second extent is that of C's rows.
            columns, rows, summed = (pointer[0] for pointer in arguments[2:5])
            watch.product(rows, columns, summed)
            real(*arguments)

        return kind(product)

    return {name: noted(kind(address)) for name, address in library.items()}


def address(product: Any) -> int:
    """Return the address of a function that C can call."""
    return ctypes.cast(product, ctypes.c_void_p).value or 0


def note(
    lines: ExecutedLines, table: Table, program: InPlaceProgram, sizes: Mapping[str, int], events: list[Event]
) -> None:
    """Add the events to the executed operations of the lines of their statements."""
    expected = list(_expected(program.calls, lines, sizes, _numbers(table)))
    lines.written = {
        (statement.numbers[name], name) for statement in expected if statement.call for name in statement.call.writes
    }
    calling = {function.name for function in program.functions if "product_double(" in function.text}
    lines.unseen = {
        statement.numbers[line.name]
        for statement in expected
        if statement.call and statement.call.function
        for line in statement.call.lines
        if isinstance(line, Product)
        and not (
            statement.call.function.name in calling
            and (is_ended(line) or is_library(line, set(line.meta.kernel.axes if line.meta.kernel else ())))
        )
    }
    marks = [statement.mark for statement in expected]
    for event, place in zip(events, places([event.mark for event in events], marks), strict=True):
        call, numbers = expected[place].call, expected[place].numbers
        if call is None:
            continue
        for name, elements in zip(call.writes, event.elements, strict=False):
            lines.ran[numbers[name]].elements += elements
        for name, shapes in _by_line(call, event.products, sizes, lines, numbers).items():
            ran = lines.ran[numbers[name]]
            ran.products += sum(shapes.values())
            ran.maccs += sum(prod(product) * times for product, times in shapes.items())


ScopeNumbers: TypeAlias = Mapping[Scope, Mapping[str, int]]
"""By scope, the numbers of its lines by what they make."""


def _numbers(table: Table) -> ScopeNumbers:
    numbers: dict[Scope, dict[str, int]] = {}
    for number, (line, nest) in enumerate(walk(table.lines)):
        scope = tuple(loop.makes for loop in nest.loops)
        numbers.setdefault(scope, {}).update(dict.fromkeys(line.makes, number))
    return numbers


def _expected(
    items: Iterable[Item], lines: ExecutedLines, sizes: Mapping[str, int], in_scope: ScopeNumbers, scope: Scope = ()
) -> Iterator[Expected]:
    """Yield the statements in execution order, with every iteration of a loop."""
    numbers = in_scope.get(scope, {})
    for item in items:
        if isinstance(item, CallLoop):
            iteration = list(_expected(item.body, lines, sizes, in_scope, (*scope, item.repeat.makes)))
            for _ in range(lines.iterations(item.repeat.count)):
                yield from iteration
            continue
        first = item.lines[0]
        points = _points(first.left[0].declared, sizes)
        if item.function:
            yield Expected(("kernel", item.function.name), item, numbers)
        elif item.product:
            summed = [axis for axis in first.loops if axis not in first.left[0].loops]
            yield Expected(("product", points * _points(summed, sizes)), item, numbers)
        elif isinstance(first, Op):
            yield Expected(("zero_", points), item, numbers)
        else:
            if not item.added:
                yield Expected(("zero_", points), None, numbers)
            yield Expected(("index_add_", points), item, numbers)


def _points(axes: Any, sizes: Mapping[str, int]) -> int:
    return prod(shape_of(axes, sizes))


def _by_line(
    call: Call, ran: Counter[Shape], sizes: Mapping[str, int], lines: ExecutedLines, numbers: Mapping[str, int]
) -> dict[str, Counter[Shape]]:
    """Return the products of a statement by the results of its lines: those a line requires, and the rest at the last.

    A product with an epilogue runs in tiles.

    Lines that require the same shapes cannot be distinguished: only their sum is exact.
    """
    left, shapes_of = Counter(ran), dict[str, Counter[Shape]]()
    names = [line.name for line in call.lines]
    makes = {line.name: line.left[0].loops for line in call.lines}
    if call.function and is_ended(call.lines[0]):
        return {call.lines[0].name: left}
    for line in call.lines:
        shapes_asked = _asked(line, sizes, lines.skips(numbers[line.name]), makes) if call.function else Counter(ran)
        shapes_of[line.name] = shapes_asked & left
        left -= shapes_of[line.name]
    if left:
        last = next((name for name in reversed(names) if shapes_of[name]), names[-1])
        shapes_of[last] += left
    return shapes_of


def _asked(line: Line, sizes: Mapping[str, int], skips: bool, makes: Mapping[str, Sequence[str]]) -> Counter[Shape]:
    """Return the library products of a kernel's line: over two axes each, one for every point of the others.

    makes  the axes of the results of the kernel's lines
    """
    kernel = line.meta.kernel
    if not isinstance(line, Product) or len(factors(line)) != 2:
        return Counter()
    factor, other = (set(term.loops) for term in factors(line))
    left, iterations = set(line.left[0].loops), kernel.axes if kernel else ()
    axis, places_ = kernel.blocks if kernel and kernel.blocks else ("", 0)
    # A line may have its own names for the axes of positions, as where it reads scores with these exchanged.
    pairs = {name for name, axes in makes.items() if axis in axes and [*map(base, axes)].count(base(axis)) == 2}
    terms = (term for term in (*line.left, *factors(line)) if term.name in pairs)
    queries = next((term.loops[makes[term.name].index(axis)] for term in terms), axis)
    condition = next((c for c in line.where if c.ordered and base(c.lower) == base(c.upper)), None)
    sides_kept = []
    for side in (factor & left - other, other & left - factor, factor & other - left):
        axes_of_side = [axis for axis in line.loops if axis in side and axis not in iterations]
        if not axes_of_side:
            return Counter()
        sides_kept.append(queries if queries in axes_of_side else axes_of_side[-1])
    times = _points([axis for axis in line.loops if axis not in sides_kept], sizes)
    extents = {axis: _points((axis,), sizes) for axis in sides_kept}
    if queries not in extents or not places_:
        return Counter({shape(*extents.values()): times})
    shapes: Counter[Shape] = Counter()
    window = int(sizes.get(condition.window, condition.window)) if condition and condition.window else 0
    for first in range(0, extents[queries], places_):
        last = min(first + places_, extents[queries])
        block = {**extents, queries: last - first}
        if condition and skips:
            lowest = max(0, first - window + 1) if window else 0
            block[condition.lower] = last - int(condition.strict) - lowest
        shapes[shape(*(block[axis] for axis in sides_kept))] += times
    return shapes

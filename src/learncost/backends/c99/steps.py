"""The printer of a step in C: a function for the step and one for an iteration of each loop, with equations."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod

from learncost.backends.c.c99 import C99, product_name
from learncost.backends.c99.functions import without_comments
from learncost.backends.expression import Identifiers
from learncost.backends.lines import headed
from learncost.backends.loops import loop_title
from learncost.backends.placed.layout import InPlaceLayout
from learncost.ir.dataclass import dataclass
from learncost.ir.line import Line, Op
from learncost.program.calls import Axes, Call, CallLoop, Item, MatrixView, axes_within
from learncost.program.lifetimes import ScheduledArray

WIDE = 118

CODES = "int8"


@dataclass(frozen=True)
class _StepScope:
    """The calls of one function; `path` are the numbers of the enclosing loops.

    renewed  weights and states, or an iteration's parts of them, with the names of what becomes of them there
    """

    items: tuple[Item, ...]
    axes: Axes
    title: str
    path: tuple[int, ...]
    renewed: Mapping[str, str]


class StepsWriter:
    """Prints the functions of one laid out step.

    spell        what C calls an array that is given
    constant     whether C knows an array by this name as one that never changes
    identifiers  of the functions in the file
    calls        those of the file by the numbers before their equations, to which these are added
    texts        functions of iterations, in the order of definition
    tables       addresses that do not follow from the iteration, as constants: their text by their name
    """

    def __init__(
        self,
        layout: InPlaceLayout,
        spell: Callable[[str], str],
        constant: Callable[[str], bool],
        identifiers: Identifiers,
        calls: dict[int, Call],
    ) -> None:
        self.calls = calls
        self.layout, self.spell, self.constant, self.identifiers = layout, spell, constant, identifiers
        self.texts: list[str] = []
        self.tables: dict[str, str] = {}

    def body(self) -> list[str]:
        """Return the statements of the step."""
        table = self.layout.table
        return self._statements(_StepScope(self.layout.items, table.axes, "", (), table.renewed))

    def _moved(self, scope: _StepScope) -> Iterator[str]:
        """Return the copies, at the end of a scope, of values that are not updated in place."""
        by_iteration = [fields for _, fields in self.layout.lifetimes.by_iteration(scope.path)]
        for old, new in scope.renewed.items():
            if all(
                new not in fields or (fields[new].root is fields[old].root if scope.path else fields[new].owner == old)
                for fields in by_iteration
            ):
                continue
            copy = "copy_codes" if self.layout.dtypes[new] == CODES else "copy"
            there = self._address(old, scope) if scope.path else self.spell(old)
            yield call_text(copy, (str(self._points(old, scope)), self._address(new, scope), there))

    def result(self, name: str) -> str:
        """Return the final memory of an output of the step."""
        return self._address(name, _StepScope((), self.layout.table.axes, "", (), {}))

    # Statements.

    def _statements(self, scope: _StepScope) -> list[str]:
        lines: list[str] = []
        for item, heading in headed(scope.items):
            if isinstance(item, CallLoop):
                lines += self._loop(item, scope)
                continue
            if heading is not None:
                lines += ["", f"/* --- {heading or 'step'} --- */"]
            number = len(self.calls) + 1
            self.calls[number] = item
            lines += equations(item.lines, number)
            lines += self._call(item, scope)
        lines += self._moved(scope)
        return lines[1:] if lines and not lines[0] else lines

    def _loop(self, loop: CallLoop, scope: _StepScope) -> list[str]:
        repeat, depth = loop.repeat, len(scope.path)
        number = self.layout.lifetimes.loops[loop]
        title = self.identifiers.of(loop_title(loop, self.layout.table), f"loop {number} {id(self)}")
        made = {outer: inside for inside, outer in repeat.keep}
        renewed = {part: made[new] for part, stack in repeat.each if (new := scope.renewed.get(stack)) in made}
        inner = _StepScope(loop.body, axes_within(repeat, scope.axes), title, (*scope.path, number), renewed)
        body = "\n".join(f"    {line}".rstrip() for line in self._statements(inner))
        needed = [
            name for name in map(iteration, range(depth + 1)) if re.search(rf"\b{name}\b", without_comments(body))
        ]
        parameters = ", ".join(f"place {name}" for name in needed) or "void"
        self.texts.append(f"static void {title}({parameters}) {{\n{body}\n}}\n")
        count, counter = self.layout.count(repeat.count), iteration(depth)
        order = f"place {counter} = {count} - 1; {counter} >= 0; {counter}--"
        if not repeat.reverse:
            order = f"place {counter} = 0; {counter} < {count}; {counter}++"
        return ["", f"for ({order})", f"    {title}({', '.join(needed)});"]

    def _call(self, call: Call, scope: _StepScope) -> Iterator[str]:
        line = call.lines[-1]
        written = line.name
        if call.added and not self.layout.lifetimes.same(call.added, written, scope.path):
            yield self._written("copy", self._points(written, scope), call.added, written, scope=scope)
        if call.product:
            product = call.product
            left, right = self._matrix(product.left, scope), self._matrix(product.right, scope)
            columns = self._shape(product.out, scope)[1]
            extents = (left[1], columns, left[2])
            factors = [text for factor in (left, right) for text in (factor[0], *factor[3])]
            out = self._address(written, scope)
            function = product_name(*(C99.types[self.layout.dtypes[m.name]] for m in (product.left, product.right)))
            yield call_text(function, (*map(str, extents), *factors, str(int(bool(call.added))), out, str(columns)))
        elif call.function:
            arguments = [self._address(name, scope) for name in (*call.function.reads, *call.function.writes)]
            arguments += [str(self.layout.number(size)) for size in call.function.sizes]
            yield call_text(call.function.name, arguments)
        elif isinstance(line, Op) and line.op == "zeros":
            yield self._written("zero", self._points(written, scope), written, scope=scope)
        else:
            assert call.scatter
            rows = call.scatter
            shape = self.layout.shape(scope.axes[rows.rows])
            columns = prod(shape[len(shape) - rows.columns :])
            summed = prod(shape[: rows.summed])
            if not call.added:
                yield self._written("zero", self._points(written, scope), written, scope=scope)
            extents = (summed, prod(shape) // (summed * columns), columns)
            arguments = [self._address(name, scope) for name in (rows.index, rows.rows, written)]
            yield call_text("add_rows", (*map(str, extents), *arguments))

    def _written(self, function: str, points: int, *names: str, scope: _StepScope) -> str:
        return call_text(function, (str(points), *(self._address(name, scope) for name in names)))

    def _points(self, name: str, scope: _StepScope) -> int:
        return prod(self.layout.shape(scope.axes[name]))

    def _shape(self, matrix: MatrixView, scope: _StepScope) -> tuple[int, int]:
        """Return rows and columns in memory order."""
        shape = self.layout.shape(scope.axes[matrix.name])
        return prod(shape[: matrix.rows]), prod(shape[matrix.rows :])

    def _matrix(self, matrix: MatrixView, scope: _StepScope) -> tuple[str, int, int, tuple[str, str]]:
        """Return the address of a factor, its rows and columns as the product reads them, and their strides."""
        rows, columns = self._shape(matrix, scope)
        address = self._address(matrix.name, scope)
        if matrix.transposed:
            return address, columns, rows, ("1", str(columns))
        return address, rows, columns, (str(columns), "1")

    # Addresses.

    def _address(self, name: str, scope: _StepScope) -> str:
        """Return the address of an array in a scope: computed from the iterations, or a table of offsets."""
        places = {
            tuple(iteration for _, iteration in path): self._place(arrays[name])
            for path, arrays in self.layout.lifetimes.by_iteration(scope.path)
            if name in arrays
        }
        bases = {base for base, _ in places.values()}
        steps = _affine({iterations: place for iterations, (_, place) in places.items()}) if len(bases) == 1 else None
        if steps is not None:
            (base,) = bases
            return _sum(base, steps)
        return self._table(name, scope, places)

    def _place(self, array: ScheduledArray) -> tuple[str, int]:
        """Return the memory of an array and its first element there."""
        root, before = array.root, 0
        while root.part is not None:
            container, iteration = root.part
            before += iteration * root.bytes
            root = container.root
        base = self.spell(root.given) if root.given else self.layout.arena_of(root)
        if not root.given and self.layout.dtypes[array.name] == CODES:  # bytes among numbers
            base = f"({C99.types[CODES]} *){base}"
        return base, (before + max(root.place, 0)) // self.layout.width(array)

    def _table(self, name: str, scope: _StepScope, places: dict[tuple[int, ...], tuple[str, int]]) -> str:
        """Return a table of addresses per iteration, in flash."""
        counts = [1 + max(iterations[depth] for iterations in places) for depth in range(len(scope.path))]
        title = self.identifiers.of(f"{name}.at", f"table {scope.title} {id(self)}")
        at = "[" + "][".join(iteration(depth) for depth in range(len(counts))) + "]"
        extent = "[" + "][".join(map(str, counts)) + "]"
        elsewhere = next(iter(places.values()))

        bases = {base for base, _ in places.values()}

        def rows(prefix: tuple[int, ...]) -> str:
            if len(prefix) < len(counts):
                return "{" + ", ".join(rows((*prefix, at)) for at in range(counts[len(prefix)])) + "}"
            base, place = places.get(prefix, elsewhere)
            return str(place) if len(bases) == 1 else _sum(base, (place,))

        if len(bases) == 1:
            self.tables[title] = f"static const place {title}{extent} = {rows(())};\n"
            return f"{next(iter(bases))} + {title}{at}"
        kind = "const " * any(map(self.constant, bases)) + C99.types[self.layout.dtypes[name]]
        self.tables[title] = f"static {kind} *const {title}{extent} = {rows(())};\n"
        return f"{title}{at}"


def iteration(depth: int) -> str:
    """Return the C name of a loop's iteration at a depth."""
    return f"iteration_{depth + 1}" if depth else "iteration"


def _affine(places: dict[tuple[int, ...], int]) -> tuple[int, ...] | None:
    """Return the affine offset in the loop iterations; None if the offsets are not affine."""
    (first, place), *_ = places.items()
    steps = [0] * len(first)
    for depth in range(len(first)):
        for iterations, other in places.items():
            apart = iterations[depth] - first[depth]
            if apart and all(a == b for i, (a, b) in enumerate(zip(iterations, first, strict=True)) if i != depth):
                steps[depth], rest = divmod(other - place, apart)
                if rest:
                    return None
                break
    begin = place - sum(step * iteration for step, iteration in zip(steps, first, strict=True))
    for iterations, other in places.items():
        if begin + sum(step * iteration for step, iteration in zip(steps, iterations, strict=True)) != other:
            return None
    return begin, *steps


def _sum(base: str, steps: Sequence[int]) -> str:
    text = base
    for number, factor in zip(steps, ("", *map(iteration, range(len(steps)))), strict=False):
        if not number:
            continue
        sign, size = ("+", number) if number > 0 else ("-", -number)
        term = str(size) if not factor else factor if size == 1 else f"{factor} * {size}"
        text += f" {sign} {term}"
    return text


def call_text(function: str, arguments: Sequence[str]) -> str:
    """Return a call, wrapped if necessary."""
    lines, line = [], f"{function}("
    indent = " " * len(line)
    for number, argument in enumerate(arguments):
        end = ");" if number + 1 == len(arguments) else ", "
        if len(line) + len(argument) + 8 > WIDE and line.strip():
            lines.append(line.rstrip())
            line = indent
        line += argument + end
    return "\n    ".join((*lines, line if arguments else f"{function}();"))


def equations(lines: Sequence[Line], number: int) -> Iterator[str]:
    """Return lines of a table as a numbered comment."""
    texts = [str(line).replace("*/", "* /").replace("/*", "/ *") for line in lines]
    texts[0] = f"{number}. {texts[0]}"
    if len(texts) == 1:
        yield f"/* {texts[0]} */"
        return
    yield f"/* {texts[0]}"
    yield from (f"   {text}" for text in texts[1:-1])
    yield f"   {texts[-1]} */"

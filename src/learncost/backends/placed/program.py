"""A step in place: PyTorch's products and C kernels, which write into one arena with a fixed layout.

The text needs PyTorch and, for its kernels, a C compiler. Every array is a matrix, as products read it; which axes are
its rows is in the remark behind the line that fills it: `[B M | d]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from learncost.backends.c import KernelFunction, source
from learncost.backends.expression import Identifiers
from learncost.backends.expression import call as written_call
from learncost.backends.lines import comment, headed
from learncost.backends.loops import loop_title
from learncost.backends.placed import between
from learncost.backends.placed.layout import InPlaceLayout, laid_out
from learncost.ir.dataclass import dataclass, field
from learncost.ir.line import Op
from learncost.ir.table import Table
from learncost.ops.collectives import is_collective
from learncost.program.calls import Axes, Call, CallLoop, Item, MatrixView, Scatter, axes_within, every_call
from learncost.program.lifetimes import Path, ScheduledArray

TYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16"}
TYPES |= {name: name for name in ("int64", "uint8", "bool", "int8")}
"""PyTorch's names of array types."""
COLUMN = 84

LAY_OUT = '''\
def lay_out(given, memory):
    """Records of views, one for the step and one for each iteration of a loop.

    given    tensors by their names in PLACES: weights, the optimizer's state, inputs; changed in place
    memory   BYTES bytes: torch.empty(BYTES, dtype=torch.uint8)
    """

    def view(shape, kind, place, iteration):
        if isinstance(place, list):
            place = place[iteration]
        if isinstance(place, tuple):
            return given[place[0]][place[1:]].view(shape)
        if isinstance(place, str):
            array = given[place.removesuffix("[]")]
            return (array[iteration] if place.endswith("[]") else array).view(shape)
        size = math.prod(shape) * kind.itemsize
        return memory[place : place + size].view(kind).view(shape)

    records = {}
    for scope, (_, iterations, fields) in PLACES.items():
        records[scope] = [
            SimpleNamespace(**{name: view(*found, iteration) for name, found in fields.items()})
            for iteration in range(iterations)
        ]
    for scope, (around, iterations, _) in PLACES.items():
        for iteration, record in enumerate(records.get(around, ())):
            each = iterations // len(records[around])
            setattr(record, scope, records[scope][iteration * each : (iteration + 1) * each])
    return records["step"][0]'''


@dataclass(frozen=True)
class InPlaceProgram:
    """A step in place.

    text       Python: PLACES and BYTES, lay_out(given, memory), step(m, kernels)
    c          the kernels' C
    functions  the kernels, with the order of their arguments
    bytes      of the arena
    given      what `lay_out` needs, by name in the table, with its axes and type
    copies     those that are bf16 copies of weights, each with its weight
    results    the arrays in the arena after a step, by name in the table: its field of the record, and its shape
    calls      the statements, with the lines that each computes
    meets      whether it is one of several devices: `step` then takes their DeviceMesh, too
    """

    text: str
    c: str
    functions: tuple[KernelFunction, ...]
    bytes: int
    given: Mapping[str, tuple[tuple[str, ...], str]]
    copies: Mapping[str, str]
    results: Mapping[str, tuple[str, tuple[int, ...]]]
    calls: tuple[Item, ...] = ()
    meets: bool = False


def placed(table: Table, sizes: Mapping[str, int], dtype: str = "fp32", title: str = "") -> InPlaceProgram:
    """Return the program of a step for arrays of given sizes and one type.

    table    a step whose gradients are no outputs; lines with kernels run as one
    sizes    of every axis, and of the counts of repeats
    dtype    fp32 or fp64; bf16-masters: products and activations in bf16, weights and sums in fp32, see `precision`
    Raises `InputError` for a line that cannot be computed in place.
    """
    return in_place_program(laid_out(table, sizes, dtype), title)


def in_place_program(layout: InPlaceLayout, title: str = "", ordered: bool = False) -> InPlaceProgram:
    """Return the program of a layout.

    ordered  whether rows are added at an index in one order on a GPU, where index_add_ uses atomics
    """
    return _InPlaceWriter(layout, title, ordered).program()


@dataclass
class _PlacedScope:
    """One function: its calls, the axes of its names, and their division into rows and columns."""

    items: tuple[Item, ...]
    axes: Axes
    title: str
    path: tuple[int, ...]
    around: str = ""
    rows: dict[str, int] = field(default_factory=dict)


@dataclass
class _InPlaceWriter:
    layout: InPlaceLayout
    title: str
    ordered: bool

    def program(self) -> InPlaceProgram:
        layout = self.layout
        reserved = ("torch", "math", "m", "kernels", "iteration", "step", "lay_out", "PLACES", "BYTES")
        self.identifiers = Identifiers((*reserved, between.MESH, *between.HELPERS))
        self.texts: list[str] = []
        self.helpers: set[str] = set()
        self.arguments = "m, kernels"
        if any(is_collective(call.lines[0]) for call in every_call(layout.items)):
            self.arguments += f", {between.MESH}"
        self.places: dict[str, tuple[str, int, dict[str, str]]] = {}
        self._scope(_PlacedScope(layout.items, layout.table.axes, "step", ()))
        results = {
            name: (self._of(name), layout.shape(layout.table.axes[name]))
            for name, value in layout.lifetimes.fields.get((), {}).items()
            if name in layout.table.outputs and not value.owner
        }
        functions, size = tuple(layout.functions), layout.bytes
        return InPlaceProgram(
            self._text(),
            source(functions),
            functions,
            size,
            layout.given,
            layout.copies,
            results,
            layout.items,
            meets=between.MESH in self.arguments,
        )

    # Functions.

    def _scope(self, scope: _PlacedScope) -> None:
        """Return the text of a function, after those of its loops."""
        self._cut(scope)
        body: list[str] = []
        for item, heading in headed(scope.items):
            if isinstance(item, CallLoop):
                body += self._loop(item, scope)
                continue
            if heading is not None:
                body += ["", f"# {heading}"]
            body += self._statement(item, scope)
        about = (
            "One step; what it changes, it changes in place." if not scope.path else f"One iteration of {scope.title}."
        )
        name = scope.title
        text = "\n".join(f"    {line}".rstrip() for line in body)
        self.texts.append(f'def {name}({self.arguments}):\n    """{about}"""\n{text.lstrip(chr(10))}')
        self._fields(scope)

    def _loop(self, loop: CallLoop, scope: _PlacedScope) -> list[str]:
        repeat = loop.repeat
        number = self.layout.lifetimes.loops[loop]
        title = self.identifiers.of(loop_title(loop, self.layout.table), f"loop {number}")
        self._scope(_PlacedScope(loop.body, axes_within(repeat, scope.axes), title, (*scope.path, number), scope.title))
        iterations = f"range({self.layout.count(repeat.count)})"
        if repeat.reverse:
            iterations = f"reversed({iterations})"
        return [
            "",
            f"for iteration in {iterations}:",
            f"    {title}(m.{title}[iteration], {self.arguments.removeprefix('m, ')})",
        ]

    def _cut(self, scope: _PlacedScope) -> None:
        """Set the row axes with which products read each array; an array that no product reads is a vector."""
        for item in scope.items:
            if isinstance(item, Call) and item.product:
                out = MatrixView(item.lines[-1].name, item.product.out.rows)
                for matrix in (item.product.left, item.product.right, out):
                    scope.rows.setdefault(matrix.name, matrix.rows)

    def _statement(self, call: Call, scope: _PlacedScope) -> list[str]:
        line = call.lines[-1]
        written = line.name
        result = []
        if call.added and not self.layout.lifetimes.same(call.added, written, scope.path):
            out = f"m.{self._of(written)}"
            result.append(f"{out}.copy_(m.{self._of(call.added)}.view_as({out}))")
        if call.product:
            left, right = self._matrix(call.product.left, scope), self._matrix(call.product.right, scope)
            out = self._matrix(MatrixView(written, call.product.out.rows), scope)
            text = f"{out}.addmm_({left}, {right})" if call.added else f"torch.mm({left}, {right}, out={out})"
        elif call.function:
            function = call.function
            arguments = [f"m.{self._of(name)}" for name in (*function.reads, *function.writes)]
            arguments += [str(self.layout.number(size)) for size in function.sizes]
            text = written_call(f"kernels.{function.name}", arguments)
        elif is_collective(line):
            ops = [each for each in call.lines if isinstance(each, Op)]
            name, arguments = between.written(ops, lambda array: f"m.{self._of(array)}", self.layout.shape)
            self.helpers.add(name)
            text = written_call(name, arguments)
        elif isinstance(line, Op) and line.op == "zeros":
            text = f"m.{self._of(written)}.zero_()"
        else:
            assert call.scatter
            *first, text = self._scatter(call.scatter, call, scope)
            result += first
        result += text.split("\n")
        result[-1] = f"{result[-1].ljust(COLUMN - 4)}  # {self._remark(call, scope)}"
        return result

    def _scatter(self, rows: Scatter, call: Call, scope: _PlacedScope) -> list[str]:
        """Print rows added at an index, to a zeroed array unless they are added to an existing one."""
        written, shape = f"m.{self._of(call.writes[0])}", self.layout.shape(scope.axes[rows.rows])
        columns = prod(shape[len(shape) - rows.columns :])
        added = f"m.{self._of(rows.rows)}.view(-1, {columns})"
        if rows.summed:
            added = f"m.{self._of(rows.rows)}.view({prod(shape[: rows.summed])}, -1, {columns}).sum(0)"
        index = f"m.{self._of(rows.index)}"
        add = f"index_put_(({index},), {added}, True)" if self.ordered else f"index_add_(0, {index}, {added})"
        text = f"{written}.view(-1, {columns}).{add}"
        return [text] if call.added else [f"{written}.zero_()", text]

    def _matrix(self, matrix: MatrixView, scope: _PlacedScope) -> str:
        text = f"m.{self._of(matrix.name)}"
        if scope.rows[matrix.name] != matrix.rows:
            shape = self.layout.shape(scope.axes[matrix.name])
            text += f".view({prod(shape[: matrix.rows])}, {prod(shape[matrix.rows :])})"
        return f"{text}.T" if matrix.transposed else text

    def _of(self, name: str) -> str:
        return self.identifiers.of(name)

    def _remark(self, call: Call, scope: _PlacedScope) -> str:
        if not call.product:
            return comment(call.lines[-1])
        axes = list(scope.axes[call.lines[-1].name])
        axes.insert(scope.rows[call.lines[-1].name], "|")
        equation = call.lines[0].meta.equation
        return f"[{' '.join(axes)}]" + (f"  ({equation})" if equation else "")

    # Places.

    def _fields(self, scope: _PlacedScope) -> None:
        """Write the memory of each array of a scope, iteration by iteration."""
        iterations = self.layout.lifetimes.by_iteration(scope.path)
        entries: dict[str, str] = {}
        for name in dict.fromkeys(name for _, arrays in iterations for name in arrays):
            places = [_place(arrays[name], path) for path, arrays in iterations]
            shape = self.layout.shape(scope.axes[name])
            rows = scope.rows.get(name)
            cut = (prod(shape),) if rows is None else (prod(shape[:rows]), prod(shape[rows:]))
            same = all(place == places[0] for place in places)
            place = repr(places[0]) if same else _listed(places)
            entries[self._of(name)] = f"({cut}, torch.{TYPES[self.layout.dtypes[name]]}, {place})"
        self.places[scope.title] = (scope.around, len(iterations), entries)

    def _text(self) -> str:
        rows = []
        for scope, (around, iterations, fields) in self.places.items():
            entries = "".join(f'            "{name}": {entry},\n' for name, entry in fields.items())
            rows.append(
                f'    "{scope}": (\n        "{around}",\n        {iterations},\n'
                f"        {{\n{entries}        }},\n    ),\n"
            )
        head = f'"""{self.title}"""\n\n' if self.title else ""
        places = (
            "# Of each function: what calls it, its iterations, its arrays with their shape, type, and place or name.\n"
        )
        places += f"PLACES = {{\n{''.join(rows)}}}\nBYTES = {self.layout.bytes}"
        helpers = [text for name, text in between.HELPERS.items() if name in self.helpers]
        imports = "import math\nfrom types import SimpleNamespace\n\nimport torch"
        return head + "\n\n\n".join((imports, *helpers, *self.texts, LAY_OUT, places)) + "\n"


def _listed(places: Sequence[Any]) -> str:
    """Return the text of a list of places, in which offsets at equal distances are a range."""

    def distance(at: int) -> int:
        pair = places[at - 1 : at + 1]
        return pair[1] - pair[0] if len(pair) == 2 and all(isinstance(place, int) for place in pair) else 0

    texts, begin = list[str](), 0
    while begin < len(places):
        first, end, step = places[begin], begin + 1, distance(begin + 1)
        while step and distance(end) == step:
            end += 1
        if end - begin < 4:
            end = begin + 1
        texts.append(repr(first) if end == begin + 1 else f"*range({first}, {places[end - 1] + step}, {step})")
        begin = end
    return f"[{', '.join(texts)}]"


def _place(value: ScheduledArray, path: Path) -> int | str | tuple[str | int | slice, ...]:
    """Return an array's memory in an iteration: an offset in the arena, or a given array with indices of its slice."""
    root = value.root
    if not root.owner:
        return _begin(root)
    name, *index = part = _part_of(root)
    if not index:
        return root.owner
    return f"{name}[]" if len(path) == 1 and index == [path[-1][1]] else part


def _begin(array: ScheduledArray) -> int:
    """Return the offset of an array in the arena, also of a slice of another one."""
    if array.part is None:
        return array.place
    container, iteration = array.part
    return _begin(container.root) + iteration * array.bytes


def _part_of(array: ScheduledArray) -> tuple[str | int | slice, ...]:
    """Return the given array and the indices of its part by iteration; adjacent slices are merged."""
    if array.part is None:
        return (array.given,)
    container, iteration = array.part[0].root, array.part[1]
    *index, last = _part_of(container)
    first = 0
    if isinstance(last, slice):
        first = last.start
    else:
        index.append(last)
    if len(array.axes) < len(container.axes):
        return (*index, first + iteration)
    together = int(array.axes[0])
    return (*index, slice(first + iteration * together, first + (iteration + 1) * together))

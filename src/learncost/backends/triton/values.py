"""Print the values of a kernel's lines as Triton: blocks of elements, each read or computed at positions along axes."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod

from learncost.backends.c import SizeNeededError
from learncost.backends.c.schedule import KINDS
from learncost.backends.expression import Identifiers, number, spelled
from learncost.ir.affine import Affine, AffineTerm
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.polynomial import base, size_of
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ops import entry

TYPES = {"fp32": "fp32", "fp64": "fp64", "bf16": "bf16", "int64": "i64", "uint8": "u8", "bool": "i1"}
"""Triton's names of array types."""
COMPUTED = {"fp32": "tl.float32", "fp64": "tl.float64"}
FUNCTIONS = {
    **{f"{name}_": f"tl.{name}" for name in ("exp", "log", "sqrt", "erf")},
    **{name: f"tl.{name}" for name in ("sin", "cos", "floor")},
    "fabs": "tl.abs",
    **{name: name.strip("_") for name in ("tanh_", "log1p", "expm1", "hashed_", "coin_")},
    "pow": "power",
}
"""Triton's functions by their names in an operator's expression in C, without the type."""
RESERVED = (
    *("tl", "triton", "torch", "math", "program", "point", "first", "row", "column", "across", "down", "matrix"),
    *("sums", "add_parts", "dot_bf16", "INTERPRETED", "inside"),
)


@dataclass(frozen=True)
class Block:
    """The positions of a block along one dimension: their name, their number, and the bound of those that exist."""

    name: str
    dim: int
    length: int
    bound: str

    @property
    def inside(self) -> str:
        """The condition that a position exists; "" where all do."""
        return f"({self.name} < {self.bound})" if self.bound else ""


@dataclass(frozen=True)
class BlockValue:
    """A number at every position of some blocks: real, an index, or bool."""

    text: str
    blocks: frozenset[Block] = frozenset()
    kind: str = "real"

    @property
    def atom(self) -> str:
        """The text as an operand of another expression."""
        return self.text if re.fullmatch(r"\w+(\.\d*|\d*\.\d+)?(e-?\d+)?|float\(.*\)", self.text) else f"({self.text})"


Positions = Mapping[str, BlockValue]


@dataclass
class KernelValues:
    """The statements of a kernel, which compute values on demand, each once.

    lines    in normal form and in one scope of axes
    axes     the declared axes of every array; `dtypes` their types
    sizes    those that are constants; others become parameters of the kernel
    merged   names of flattened positions, with the axes and positions that they consist of
    swept    the axis of which the kernel has a part at a time, if any
    """

    lines: Sequence[Line]
    axes: Mapping[str, tuple[str, ...]]
    dtypes: Mapping[str, str]
    sizes: Mapping[str, int]
    computed: str
    names: Identifiers
    body: list[str] = field(default_factory=list)
    merged: dict[BlockValue, tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)
    free: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)
    known: dict[tuple[object, ...], BlockValue] = field(default_factory=dict)
    canonical: dict[str, BlockValue] = field(default_factory=dict)
    swept: str = ""

    def __post_init__(self) -> None:
        self.makers = {line.name: line for line in self.lines}
        self.taken: set[str] = set()
        for line in self.lines:
            for name in (line.name, *line.reads):
                self.taken.add(self.names.of(name))

    # Sizes and positions.

    def size(self, axis: str) -> str:
        """Return the size of an axis: a constant of the kernel, or a parameter."""
        name = base(axis)
        if name.isdigit():
            return name
        text = self.names.of(name, "size")
        if name in self.sizes:
            self.constants[text] = str(self.sizes[name])
        else:
            self.free[name] = text
        return text

    def number(self, axis: str) -> int:
        """Return the value of a size. Raises `SizeNeededError` if it is a parameter."""
        name = base(axis)
        if name not in self.sizes and not name.isdigit():
            raise SizeNeededError(name)
        return int(size_of(name, self.sizes))

    def points(self, axes: Iterable[str]) -> str:
        return " * ".join(self.size(axis) for axis in axes) or "1"

    def let(self, wish: str, text: str) -> str:
        """Assign an expression to an unused name and return the name."""
        name, number = wish, 2
        while name in self.taken:
            name, number = f"{wish}_{number}", number + 1
        self.taken.add(name)
        self.body.append(f"{name} = {text}")
        return name

    def flattened(self, flat: BlockValue, axes: Sequence[str]) -> dict[str, BlockValue]:
        """Return the positions along axes of which the row-major index is given, and define them."""
        texts: list[str] = []
        for place, axis in enumerate(axes):
            after = [self.size(other) for other in axes[place + 1 :]]
            text = flat.text if not after else f"{flat.text} // {bracketed(' * '.join(after))}"
            if place:
                text = f"({text}) % {self.size(axis)}" if after else f"{text} % {self.size(axis)}"
            texts.append(flat.text if len(axes) == 1 else self.let(position(axis), text))
        self.merged[flat] = tuple(axes), tuple(texts)
        return {axis: replace(flat, text=text) for axis, text in zip(axes, texts, strict=True)}

    # Values.

    def operand(self, operand: Operand, at: Positions) -> BlockValue:
        """Return an operand at positions."""
        if isinstance(operand, Literal):
            return self._literal(operand)
        maker = self.makers.get(operand.name)
        if maker is None:
            return self._loaded(operand, at)
        inside: list[str] = []
        blocks: frozenset[Block] = frozenset()
        positions: dict[str, BlockValue] = {}
        for axis, read in zip(maker.left[0].declared, operand.axes, strict=True):
            positions[axis] = place = self._place(read, at)
            if isinstance(read, Read) and isinstance(read.at, Affine) and not read.at.fixed:
                within = self.let("inside", f"(0 <= {place.atom}) & ({place.atom} < {self.size(axis)})")
                inside.append(within)
                blocks |= place.blocks
                positions[axis] = replace(place, text=self.let("place", f"tl.where({within}, {place.text}, 0)"))
        value = self.value(operand.name, positions)
        if not inside:
            return value
        outside = next(at.outside for _, at in operand.beyond)
        text = f"tl.where({' & '.join(inside)}, {value.text}, {number(outside).text})"
        return BlockValue(self.let(f"{value.text}_at", text), value.blocks | blocks, value.kind)

    def value(self, name: str, at: Positions) -> BlockValue:
        """Return a value that the kernel makes, at positions along its axes."""
        line = self.makers[name]
        key = (name, *(at[axis].text for axis in line.left[0].declared))
        if key not in self.known:
            made = self._reduced(line, at) if summed(line) else self._pointwise(line, at)
            self.known[key] = replace(made, text=self.let(f"{self.names.of(name)}_i", made.text))
        return self.known[key]

    def summand(self, line: Line, at: Positions) -> BlockValue:
        """Return the elements that a line sums, at positions along its axes; of a write at an index 0 elsewhere."""
        tests, blocks = list[str](), frozenset[Block]()
        found = solved(line)
        for read in line.left[0].axes:
            if not isinstance(read, Read):
                continue
            place = at[read.axis]
            axis, part = next(((axis, part) for axis, (of, part) in found.items() if of == read), ("", None))
            if part is None:
                index = self._index(read, at)
                tests.append(f"({place.atom} == {index.atom})")
                blocks |= place.blocks | index.blocks
                continue
            assert isinstance(read.at, Affine)
            others = tuple(other for other in read.at.parts if other != part)
            rest = self._index(Read(read.axis, replace(read.at, parts=others)), at)
            text = place.atom if not others else f"({place.atom} - {rest.atom})"
            factor = part.factor * prod(map(self.number, part.sizes))
            if factor != 1:
                tests.append(f"({text} % {abs(factor)} == 0)")
                text = f"{'-' if factor < 0 else ''}{text} // {abs(factor)}"
            wish = self.let(position(axis), text)
            tests.append(f"(0 <= {wish}) & ({wish} < {self.size(axis)})")
            blocks |= place.blocks | rest.blocks
            at = {**at, axis: BlockValue(wish, place.blocks | rest.blocks, "index")}
        if tests and found:
            inside = self.let("inside", " & ".join(tests))
            tests = [inside]
            for axis in found:
                text = self.let(at[axis].text, f"tl.where({inside}, {at[axis].text}, 0)")
                at = {**at, axis: replace(at[axis], text=text)}
        (first, *more) = [self.operand(operand, at) for operand in line.right]
        text = " * ".join(map(self.real, (first, *more))) if more else self.real(first)
        blocks = blocks.union(*(each.blocks for each in (first, *more)))
        return BlockValue(f"tl.where({' & '.join(tests)}, {text}, 0.0)" if tests else text, blocks)

    def over(self, line: Line, elements: BlockValue, blocks: Iterable[Block]) -> BlockValue:
        """Return the elements reduced along the dimensions of blocks."""
        several = {*blocks}
        return self.reduced(line, self.masked(line, elements, several), several)

    def masked(self, line: Line, elements: BlockValue, blocks: Iterable[Block]) -> BlockValue:
        """Return the elements that a line reduces along blocks, with a neutral number where none exists."""
        several = sorted(blocks, key=lambda block: -block.dim)
        tests = [block.inside for block in several if block.inside]
        tests += [f"({block.name} >= 0)" for block in several if block not in elements.blocks and not block.inside]
        if not tests:
            return elements
        text = f"tl.where({' & '.join(tests)}, {elements.text}, {NEUTRAL[reduction(line)]})"
        return replace(elements, text=text, blocks=elements.blocks.union(several))

    def reduced(self, line: Line, elements: BlockValue, blocks: Iterable[Block]) -> BlockValue:
        """Return existing elements reduced along the dimensions of blocks."""
        text, how = elements.text, reduction(line)
        for block in sorted(blocks, key=lambda block: -block.dim):
            text = f"tl.{how}({text}, {block.dim}, keep_dims=True)"
        return BlockValue(text, elements.blocks.difference(blocks))

    def _reduced(self, line: Line, at: Positions) -> BlockValue:
        over = summed(line)
        if self.swept in over:
            raise InputError(
                f"a sum over {self.swept} at other positions of a row that is read in parts, in line: {line}"
            )
        positions = {**at, **{axis: self.canonical[axis] for axis in over}}
        blocks = [next(iter(self.canonical[axis].blocks)) for axis in over]
        return self.over(line, self.summand(line, positions), blocks)

    def _pointwise(self, line: Line, at: Positions) -> BlockValue:
        left = line.left[0]
        if left.indexed:
            return self.summand(line, at)
        if (
            isinstance(line, Op)
            and line.op != "inside"
            and entry(line.op).kind not in ("elementwise", "move", "constant")
        ):
            raise InputError(f"{line.op} is not supported in Triton, in line: {line}")
        operands = [self.operand(operand, at) for operand in line.right]
        blocks = frozenset[Block]().union(*(operand.blocks for operand in operands))
        if isinstance(line, Product):
            return BlockValue(" * ".join(map(self.real, operands)), blocks, self._kind(operands))
        if isinstance(line, Sum):
            return BlockValue(_signed(line.signs, [self.real(each) for each in operands]), blocks, self._kind(operands))
        assert isinstance(line, Op)
        if line.op in ("inside", "select") and len(operands) in (0, 2):
            tests = [test for condition in line.where for test in self._holds(condition, at)]
            within = {axis for condition in line.where for axis in condition.axes}
            blocks = blocks.union(*(at[axis].blocks for axis in within))
            text = " & ".join(tests)
            if not operands:
                return BlockValue(text, blocks, "bool")
            return BlockValue(f"tl.where({text}, {self.real(operands[0])}, {self.real(operands[1])})", blocks)
        row = entry(line.op)
        if row.fill is not None:
            return BlockValue(number(row.fill).text)
        if row.name == "eye":
            half = len(left.axes) // 2
            pairs = [(at[str(a)], at[str(b)]) for a, b in zip(left.axes[:half], left.axes[half:], strict=True)]
            blocks = frozenset[Block]().union(*(each.blocks for pair in pairs for each in pair))
            return BlockValue(" & ".join(f"({a.text} == {b.text})" for a, b in pairs), blocks, "bool")
        conditions = {*row.conditions}
        texts = [
            each.text if name in conditions else self.real(each)
            for name, each in zip(row.inputs, operands, strict=True)
        ]
        return BlockValue(primitive(row.name, texts), blocks, "bool" if row.truth else "real")

    def real(self, value: BlockValue) -> str:
        """Return the text of a number, of a condition as 1 or 0."""
        return f"{value.atom}.to({self.computed})" if value.kind == "bool" else value.atom

    def _kind(self, operands: Sequence[BlockValue]) -> str:
        return "index" if all(operand.kind == "index" for operand in operands) else "real"

    def _literal(self, literal: Literal) -> BlockValue:
        names = {base(part) for size in literal.sizes for part in size.replace("*", " ").replace("+", " ").split()}
        for name in names:
            if name not in self.sizes and not name.isdigit():
                raise SizeNeededError(name)
        return BlockValue(number(literal.number(self.sizes)).text)

    def _place(self, axis: str | Read, at: Positions) -> BlockValue:
        return at[axis] if isinstance(axis, str) else self._index(axis, at)

    def _index(self, read: Read, at: Positions) -> BlockValue:
        """Return the position that an index has."""
        if isinstance(read.at, Term):
            index = self.operand(read.at, at)
            return index if index.kind == "index" else replace(index, text=f"{index.atom}.to(tl.int32)", kind="index")
        text, blocks = "", frozenset[Block]()
        for part in read.at.parts:
            coefficient = abs(part.factor)
            for size in part.sizes:
                coefficient *= self.number(size)
            coefficient //= part.over
            number = str(coefficient) if not part.axis else at[part.axis].atom
            if part.axis:
                blocks |= at[part.axis].blocks
                number = number if coefficient == 1 else f"{number} * {coefficient}"
            sign = "-" if part.factor < 0 else "+"
            text = f"{text} {sign} {number}" if text else number if part.factor >= 0 else f"-{number}"
        return BlockValue(text, blocks, "index")

    def _loaded(self, term: Term, at: Positions) -> BlockValue:
        """Return elements of an array that the kernel reads; those that do not exist have a neutral value."""
        places = [self._place(axis, at) for axis in term.axes]
        extents = self.axes[term.name]
        tests, outside = list[str](), 0.0
        for axis, affine in term.beyond:
            place, outside = places[axis].atom, affine.outside
            tests.append(f"(0 <= {place}) & ({place} < {self.size(extents[axis])})")
        offset = self.offset(places, extents)
        key = ("given", term.name, offset.text, *tests)
        if key not in self.known:
            array, dtype = self.array(term.name), self.dtypes[term.name]
            kind, mask = KINDS.get(dtype, "real"), self.mask(offset, tests)
            text = f"tl.load({array}{f' + {offset.text}' if offset.text else ''}"
            text += f", mask={mask}, other={number(outside).text if kind == 'real' else '0'})" if mask else ")"
            if kind == "real" and COMPUTED.get(dtype) != self.computed:
                text = f"{text}.to({self.computed})"
            self.known[key] = BlockValue(self.let(f"{array}_i", text), offset.blocks, kind)
        return self.known[key]

    def array(self, name: str) -> str:
        """Return the parameter of an array that the kernel reads."""
        return self.reads.setdefault(name, self.names.of(name))

    def offset(self, places: Sequence[BlockValue], declared: Sequence[str]) -> BlockValue:
        """Return the row-major offset of positions in an array, by flattened positions where it has their axes."""
        pairs = [(place, self.size(axis)) for place, axis in zip(places, declared, strict=True)]
        blocks = frozenset[Block]().union(*(place.blocks for place in places))
        for flat, (axes, texts) in self.merged.items():
            for at in range(len(pairs) - len(texts) + 1):
                part = pairs[at : at + len(texts)]
                extents = tuple(map(self.size, axes))
                if texts and tuple(place.text for place, _ in part) == texts and tuple(e for _, e in part) == extents:
                    pairs[at : at + len(texts)] = [(flat, bracketed(" * ".join(extents)))]
                    break
        text = ""
        for place, extent in pairs:
            before = f"({text})" if " + " in text or " - " in text else text
            text = f"{before} * {extent} + {place.atom}" if text else place.atom
        return BlockValue(text, blocks, "index")

    def mask(self, offset: BlockValue, tests: Iterable[str] = ()) -> str:
        """Return the condition that positions of an offset exist; "" where all do."""
        several = sorted(offset.blocks, key=lambda block: block.dim)
        return " & ".join((*(block.inside for block in several if block.inside), *tests))

    def _holds(self, condition: Condition, at: Positions) -> list[str]:
        low, up = (side if side.isdigit() else at[side].atom for side in (condition.lower, condition.upper))
        sign = "==" if condition.relation == "=" else condition.relation
        tests = [f"({low} {sign} {up})"]
        return tests if condition.window is None else [*tests, f"({up} < {low} + {self.size(condition.window)})"]


def solved(line: Line) -> dict[str, tuple[Read, AffineTerm]]:
    """Return the axes of a write at an affine index whose position follows from that of the result and of other axes.

    Of `Y[B y=2 p + s] = X[B p s]` it is p = (y - s)/2, where that is a whole number; s is summed.
    """
    reads = line.left[0].indexed_axes
    often = Counter(axis for read in reads for axis in read.at.loops)
    found = {}
    for read in reads:
        parts = read.at.parts if isinstance(read.at, Affine) else ()
        alone = [part for part in parts if part.axis and part.over == 1 and often[part.axis] == 1]
        if alone:
            part = max(alone, key=lambda part: (bool(part.sizes), abs(part.factor)))
            found[part.axis] = read, part
    return found


def summed(line: Line) -> tuple[str, ...]:
    """Return the axes that a line sums or reduces; of a write at an index, those of what is written."""
    if isinstance(line, Op) and (line.op == "inside" or entry(line.op).kind != "reduction"):
        return ()
    found = solved(line) if line.left[0].indexed else {}
    return tuple(axis for axis in line.loops if axis not in line.left[0].axes and axis not in found)


def reduction(line: Line) -> str:
    """Return how a line reduces its elements: sum, max or min."""
    return line.op if isinstance(line, Op) else "sum"


NEUTRAL = {"sum": "0.0", "max": 'float("-inf")', "min": 'float("inf")'}
"""The number that changes no reduction."""


def position(axis: str) -> str:
    """Return the wished name of the positions along an axis."""
    name = axis.rstrip("'")
    return f"i_{spelled(name)}{len(axis) - len(name) or ''}"


def bracketed(text: str) -> str:
    """Return an expression as an operand of another one."""
    return f"({text})" if " " in text else text


def _signed(signs: Sequence[int], numbers: Sequence[str]) -> str:
    text = numbers[0] if signs[0] > 0 else f"-{numbers[0]}"
    return text + "".join(f" {'+' if s > 0 else '-'} {n}" for s, n in zip(signs[1:], numbers[1:], strict=True))


class _InTriton(ast.NodeTransformer):
    """Replace operands by their texts, and functions and conditions of C by Triton's."""

    def __init__(self, operands: Mapping[str, str]) -> None:
        self.operands = {name: ast.parse(text, mode="eval").body for name, text in operands.items()}

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.operands[node.id]

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        parts = [self.visit(part) for part in (node.test, node.body, node.orelse)]
        return ast.Call(ast.parse("tl.where", mode="eval").body, parts, [])

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        if node.func.id not in FUNCTIONS:
            raise InputError(f"{node.func.id.strip('_')} is not supported in Triton")
        function = ast.parse(FUNCTIONS[node.func.id], mode="eval").body
        return ast.Call(function, [self.visit(argument) for argument in node.args], [])


def primitive(name: str, operands: Sequence[str]) -> str:
    """Return an elementwise operator applied to texts. Raises `InputError` if Triton has no function for it."""
    row = entry(name)
    text = (row.c or f"{row.name}({', '.join(row.inputs)})").format(real="")
    tree = _InTriton(dict(zip(row.inputs, operands, strict=True))).visit(ast.parse(text, mode="eval").body)
    return ast.unparse(tree)

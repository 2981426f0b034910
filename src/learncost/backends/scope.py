"""The scope of a function during printing: names, layouts of arrays, sizes and masks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from math import isinf

from learncost.backends.backend import Backend
from learncost.backends.expression import COMPARISON, POWER, PRODUCT, SUM, Code, Identifiers, number, shape
from learncost.backends.helpers import Helpers
from learncost.ir.affine import Affine, AffineTerm
from learncost.ir.dataclass import dataclass, field
from learncost.ir.line import Condition
from learncost.ir.polynomial import base, factors, marked, sharded_over, summands
from learncost.ir.term import Literal, Operand, Read, Term

Layout = tuple[int | None, ...]
"""The places of an array's axes among those declared; None is an axis of length 1 that an op has kept."""
Mask = tuple[str, str, str, str | None, tuple[tuple[str, ...], tuple[str, ...]]]
"""Sizes of the upper (rows) and of the lower axis (columns) of a condition, or a number, its relation, its window, and
its zigzag order.
"""


FIRST = ":first"
"""The suffix of sizes that are a device's first position of an axis."""


@dataclass
class EmittedStatement:
    """A statement with the names that it defines and reads, its heading and its comment."""

    text: str
    makes: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    comment: str = ""
    heading: str = ""


@dataclass
class FunctionScope:
    """One function. `paths` are names that are fields of a record, such as w.attn_WQ."""

    backend: Backend
    identifiers: Identifiers
    helpers: Helpers
    axes: Mapping[str, tuple[str, ...]]
    like: str = ""  # an array with the type and the device of the function's numbers
    paths: dict[str, str] = field(default_factory=dict)
    weights_of: dict[str, tuple[str, ...]] = field(default_factory=dict)  # weights of the function, with their axes
    layouts: dict[str, Layout] = field(default_factory=dict)
    statements: list[EmittedStatement] = field(default_factory=list)
    sizes: dict[str, str] = field(default_factory=dict)  # that the function needs, with their identifiers
    masks: dict[Mask, str] = field(default_factory=dict)
    conditions: dict[Mask, str] = field(default_factory=dict)  # how a mask's condition is written
    once: set[str] = field(default_factory=set)  # names to be written into their only reader
    waiting: dict[str, tuple[Code, list[str]]] = field(default_factory=dict)
    conditional: set[str] = field(default_factory=set)  # names that hold truth values
    variables: dict[str, str] = field(default_factory=dict)  # of records and lists: what they are called
    owners: dict[str, str] = field(default_factory=dict)  # of a field: the record that holds its array
    releasable: set[str] = field(default_factory=set)  # parts of an object that the function was given and may release
    handed: set[str] = field(default_factory=set)  # names that leave the function
    again: set[str] = field(default_factory=set)  # names that several lines make
    aliases: dict[str, str] = field(default_factory=dict)  # second names of an array
    read: list[str] = field(default_factory=list)  # names that the statement being written has read
    low: Set[str] = frozenset()  # names in bf16, which is widened where other than a matrix product reads it
    codes: Set[str] = frozenset()  # names of indices that are kept in bytes
    # names of whole numbers of few bits, which PyTorch multiplies by none of another type
    narrow: Set[str] = frozenset()
    product: bool = False  # whether the line being written is a matrix product in bf16
    filled: Set[str] = frozenset()  # parts of axes that are filled up, `d/dp`
    meets: bool = False  # whether the function needs the mesh, as its lines are between devices

    # Values.

    def value(self, name: str) -> Code:
        """Return the identifier of a name and note it as read."""
        name = self.aliases.get(name, name)
        if name in self.waiting:
            code, read = self.waiting.pop(name)
            self.read += read
            return code
        self.read.append(name)
        return Code(self.paths.get(name) or self.identifiers.of(name))

    def layout(self, name: str) -> Layout:
        return self.layouts.get(name, tuple(range(len(self.axes[name]))))

    def have(self, term: Term) -> tuple[str | None, ...]:
        """Return the axes of a term's array, as the line reads them."""
        axes = tuple(a for axis in term.axes for a in ((axis,) if isinstance(axis, str) else axis.at.loops))
        return tuple(None if place is None else axes[place] for place in self.layout(term.name))

    def operand(self, term: Operand, want: tuple[str, ...]) -> Code:
        """Return an operand that broadcasts over the required axes, if necessary with axes of length 1."""
        if isinstance(term, Literal):
            return self.literal(term)
        return self.spread(self.wide(term.name), self.have(term), want)

    def wide(self, name: str) -> Code:
        """Return a value in the type of computation: fp32, but bf16 in products."""
        code = self.value(name)
        if name in self.narrow and self.backend.like == "torch":
            return Code(f"{code.atom}.to({self.like}.dtype)")
        return self.backend.cast(code, "fp32") if name in self.low and not self.product else code

    def rounded(self, name: str, code: Code) -> Code:
        """Return code cast to the type of its name."""
        return self.backend.cast(code, "bf16") if name in self.low and not self.product else code

    def literal(self, term: Literal) -> Code:
        if isinf(term.value):
            return Code(f"{'-' if term.value < 0 else ''}{self.backend.module}.inf", POWER)
        if not term.sizes:
            return number(term.value)
        sizes = [self.total(size) for size in term.sizes]
        points = Code(sizes[0]) if len(sizes) == 1 else Code(" * ".join(sizes), PRODUCT)
        power = repr(term.power)
        code = points if term.power == 1 else Code(f"{points.atom}**{power}", POWER)
        return code if term.value == 1 else Code(f"{number(term.value).at(POWER)} * {code.at(POWER)}", PRODUCT)

    def squeezed(self, term: Term) -> tuple[Code, tuple[str, ...]]:
        """Return an operand without axes of length 1, and its axes."""
        code, have = self.wide(term.name), self.have(term)
        plain = tuple(axis for axis in have if axis is not None)
        return self.without_ones(code, have), plain

    def without_ones(self, code: Code, have: Sequence[str | None]) -> Code:
        if None not in have:
            return code
        return Code(f"{code.atom}[{', '.join('0' if axis is None else ':' for axis in have)}]")

    def spread(self, code: Code, have: Sequence[str | None], want: Sequence[str]) -> Code:
        """Return the array so that broadcasting aligns its axes with the required ones."""
        last = want[len(want) - len(have) :] if have else ()
        plain = [axis for axis in have if axis is not None]
        if len(have) <= len(want) and all(
            mine == wanted_axis or (mine is None and wanted_axis not in plain)
            for mine, wanted_axis in zip(have, last, strict=True)
        ):
            return code
        code = self.without_ones(code, have)
        order = [plain.index(axis) for axis in want if axis in plain]
        if order != sorted(order):
            code = self.backend.transpose(code, order)
        marks = [":" if axis in plain else "None" for axis in want]
        while marks and marks[0] == "None":
            marks.pop(0)
        if "None" not in marks:
            return code
        inserted = len(marks) - marks.index("None")
        text = ", ".join(marks)
        if all(mark == "None" for mark in marks[-inserted:]):
            text = ", ".join(["...", *marks[-inserted:]])
        return Code(f"{code.atom}[{text}]")

    # Sizes and masks.

    def size(self, axis: str) -> str:
        """Return the size of an axis: a number, or a variable set in the function's first lines."""
        size = base(axis)
        if size.isdigit():
            return size
        return self.sizes.setdefault(size, self.identifiers.of(size, "size"))

    def total(self, size: str) -> str:
        """Return a size, or a sum of sizes in parentheses."""
        (_, first), *more = summands(size)
        rest = "".join(f" {'+' if sign > 0 else '-'} {self._product(summand)}" for sign, summand in more)
        return f"({self._product(first)}{rest})" if more else self._product(first)

    def _product(self, summand: str) -> str:
        return " * ".join(map(self.size, factors(summand)))

    def first(self, axis: str) -> str:
        """Return this device's first position on a sharded axis."""
        return self.size(f"{marked(axis)}{FIRST}")

    def shape(self, axes: Iterable[str]) -> list[str]:
        return [self.size(axis) for axis in axes]

    def mask(self, condition: Condition, want: tuple[str, ...]) -> Code:
        """Return the mask of a condition over the required axes."""
        upper, lower = condition.upper, condition.lower
        key = (marked(upper), marked(lower), condition.relation, condition.window, condition.zigzag)
        axes = tuple(axis for axis in (upper, lower) if not axis.isdigit())
        name = self.masks.setdefault(key, self.identifiers.of("inside", f"mask {key}"))
        self.conditions.setdefault(key, f"[{' '.join(axes)}] where {condition}")
        return self.spread(Code(name), axes, want)

    def own_mask(self, key: Mask, inner: FunctionScope) -> str:
        """Return the mask for a function called from this one."""
        self.conditions.setdefault(key, inner.conditions[key])
        return self.masks.setdefault(key, inner.masks[key])

    def inside(self, conditions: Iterable[Condition], want: tuple[str, ...]) -> Code:
        masks = [self.mask(condition, want) for condition in conditions]
        return masks[0] if len(masks) == 1 else Code(" & ".join(mask.at(PRODUCT) for mask in masks), PRODUCT)

    def zeros(self, name: str) -> Code:
        """Return an array of zeros with a name's declared axes."""
        same = next((text for text, axes in self.weights_of.items() if axes == self.axes[name]), None)
        if same:
            return Code(f"{self.backend.module}.zeros_like({same})")
        return self.backend.zeros(self.shape(self.axes[name]), self.like)

    # Indices.

    def positions(self, axis: Read) -> Code:
        """Return an index over its axes, or an affine index."""
        if isinstance(axis.at, Affine):
            return self._affine(axis.at)
        code = self.value(axis.at.name)
        if axis.at.name in self.codes and self.backend.like == "torch":
            code = Code(f"{code.atom}.long()")  # PyTorch takes bytes for a mask
        if sharded_over(axis.axis):
            return Code(f"({code.text} - {self.first(axis.axis)}).clip(0, {self.size(axis.axis)} - 1)")
        return code

    def _affine(self, at: Affine) -> Code:
        """Return an affine index, such as `2 * np.arange(I)[:, None] + np.arange(U) - 1`."""
        counts = {axis: self.backend.arange(self.size(axis), self.like) for axis in at.loops}
        positions = {axis: self.spread(count, (axis,), at.loops).text for axis, count in counts.items()}
        return Code(self._total(at.parts, positions), SUM)

    def steps(self, at: Affine) -> str:
        """Return an affine index as an argument of helpers: the sizes and factors of its axes, and the constant."""
        factors = [self._total([part for part in at.parts if part.axis == loop]) for loop in at.loops]
        first = self._total([part for part in at.parts if not part.axis])
        return f"{shape(self.shape(at.loops))}, {shape(factors)}, {first}"

    def _total(self, parts: Sequence[AffineTerm], positions: Mapping[str, str] = {}) -> str:
        """Return the sum of an affine index's parts, of their factors or of factors times positions."""
        terms = []
        for part in parts:
            sizes, position = " * ".join(self.size(size) for size in part.sizes), positions.get(part.axis, "")
            factors = [str(abs(part.factor))] if abs(part.factor) != 1 or not (sizes or position) else []
            factors += [f"({sizes} // {part.over})" if part.over != 1 else sizes] if sizes else []
            factors += [position] if position else []
            terms.append(f"{'-' if part.factor < 0 else '+'} {' * '.join(factors)}")
        text = " ".join(terms).removeprefix("+ ") or "0"
        return f"-{text[2:]}" if text.startswith("- ") else text

    def within(self, at: Affine, size: str, want: tuple[str, ...]) -> Code:
        """Return the mask of indices within an axis of this size, over the axes wanted."""
        place = self.spread(self._affine(at), at.loops, want)
        return Code(f"({place.at(SUM)} >= 0) & ({place.at(SUM)} < {size})", COMPARISON)

    def on_device(self, axis: Read, want: tuple[str, ...]) -> Code:
        """Return the mask of indices within this device's shard of an axis, over the axes wanted."""
        assert not isinstance(axis.at, Affine)
        place = self.spread(self.value(axis.at.name), axis.at.loops, want)
        first, size = self.first(axis.axis), self.size(axis.axis)
        return Code(f"({place.at(SUM)} >= {first}) & ({place.at(SUM)} < {first} + {size})", COMPARISON)

    def _point(self, axis: Read, want: tuple[str, ...], size: str) -> Code:
        """Return the positions over the required axes, clamped to an axis of this size.

        PyTorch writes at arrays alone.
        """
        if isinstance(axis.at, Affine) and axis.at.fixed and self.backend.like == "torch":
            return Code(f"torch.tensor({self.positions(axis).text}, device={self.like}.device)")
        place = self.spread(self.positions(axis), axis.at.loops, want)
        if isinstance(axis.at, Affine) and not axis.at.fixed:
            return Code(f"{place.atom}.clip(0, {size} - 1)")
        return place

    def index(self, term: Term, want: tuple[str, ...], declared: tuple[str, ...]) -> str:
        """Return the subscript that reads or writes an array at a term's indices, with axes as wanted."""
        parts = []
        for place, axis in enumerate(term.axes):
            if isinstance(axis, Read):
                parts.append(self._point(axis, want, self.size(declared[place])).text)
            else:
                everything = self.backend.arange(self.size(declared[place]), self.like)
                parts.append(self.spread(everything, (axis,), want).text)
        return ", ".join(parts)

    # Statements.

    def put(self, text: str, makes: Sequence[str], comment: str = "", heading: str = "") -> None:
        """Add a statement, which reads all names noted since the previous one."""
        self.statements.append(EmittedStatement(text, tuple(makes), tuple(self.read), comment, heading))
        self.read = []

    def wait(self, name: str, code: Code) -> None:
        """Inline an expression into its only reader."""
        self.waiting[name] = (code, self.read)
        self.read = []

    def open_record(self, variable: str, fields: Mapping[str, str]) -> None:
        """Declare a variable that holds a record: names of the table with their fields."""
        record = f"record {variable}"
        self.variables[record] = variable
        self.paths |= {name: f"{variable}.{field_name}" for name, field_name in fields.items()}
        self.owners |= dict.fromkeys(fields, record)

    def put_two(self, first: str, makes: Sequence[str], second: str, comment: str, heading: str) -> None:
        """Add a statement that allocates a value and one that fills it; the second has the reads."""
        read, self.read = self.read, []
        self.put(first, makes, "", heading)
        self.read = [*read, *makes]
        self.put(second, (), comment)

    def is_alias(self, left: Term, right: Operand) -> bool:
        """Return whether a name is an alias of an array, which is then read under its first name."""
        first = self.aliases.get(right.name, right.name)
        if left.name in self.handed or {left.name, first, right.name} & self.again or first in self.waiting:
            return False
        if (left.name in self.low) != (right.name in self.low):
            return False
        if self.have(right) != left.declared:  # type: ignore[arg-type]  # a number has no second name
            return False
        self.aliases[left.name] = first
        return True

    def settled(self, name: str) -> Code:
        """Return a value with its declared axes in order, without axes of length 1."""
        layout = self.layout(name)
        if layout == tuple(range(len(self.axes[name]))):
            return self.value(name)
        letters = [None if place is None else str(place) for place in layout]
        code = self.without_ones(self.value(name), letters)
        plain = [place for place in layout if place is not None]
        if plain == sorted(plain):
            return code
        return self.backend.transpose(code, [plain.index(place) for place in range(len(plain))])

    def full(self, sizes: Sequence[str], value: str) -> Code:
        return self.backend.filled(sizes, self.like, value)

"""Write lines of whole numbers: 8-bit codes with scales, powers of two, shifts, exponentials and logarithms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.term import Literal, Operand, Term
from learncost.ir.value import Role, Value
from learncost.ops import applied

LAYER = "codes"
"""The layer of the lines that quantize and dequantize values."""

LARGEST, LEAST = 127, 1e-30
"""The largest code, and the smallest scale: a group of zeros has codes of 0."""

Values = dict[str, Value]


def coded(number: Term, name: str, inside: Sequence[str], values: Values, phase: str) -> Iterator[Line]:
    """Yield the lines that compute NAME.codes and NAME.scales of a value, where the largest number of a group has the
    code 127.

    inside  the axes along which numbers share a scale
    values  the values of the scope, to which the new ones are added
    """
    axes = number.declared
    rows = tuple(axis for axis in axes if axis not in inside)
    meta = Meta(LAYER, phase=phase)

    def term(part: str, of: tuple[str, ...], role: Role = "step", dtype: str = "") -> Term:
        values[f"{name}.{part}"] = Value(of, role, dtype=dtype)
        return Term(f"{name}.{part}", of)

    size, most, least = term("size", axes), term("most", rows), term("least", rows)
    scales, parts, places = term("scales", rows, "value"), term("parts", axes), term("places", axes)
    codes = term("codes", axes, "value", "int8")
    yield applied("abs", size, (number,), meta)
    yield applied("max", most, (size,), meta, inside)
    yield Product((least,), (most, Literal(1 / LARGEST)), (), meta)
    yield applied("maximum", scales, (least, Literal(LEAST)), meta)
    yield applied("divide", parts, (number, scales), meta)
    yield Sum((places,), (parts, Literal(0.5)), (), meta, (1, 1))
    yield applied("floor", codes, (places,), meta)


@dataclass(frozen=True)
class Power:
    """The exponent of a power of two: the sum of an integer and of scalars of the table, each with its multiplicity.

    Examples
    --------
    >>> power = Power(-7) + Power.of("W.power")
    >>> power + power - Power(1)
    Power(number=-15, scalars=(('W.power', 2),))
    """

    number: int = 0
    scalars: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(scalar: str) -> Power:
        """Return the exponent that equals a scalar of the table."""
        return Power(0, ((scalar, 1),))

    def times(self, factor: int) -> Power:
        return Power(self.number * factor, tuple((name, count * factor) for name, count in self.scalars))

    def __add__(self, other: Power) -> Power:
        counts: dict[str, int] = dict(self.scalars)
        for name, count in other.scalars:
            counts[name] = counts.get(name, 0) + count
        scalars = tuple((name, count) for name, count in sorted(counts.items()) if count)
        return Power(self.number + other.number, scalars)

    def __sub__(self, other: Power) -> Power:
        return self + other.times(-1)


@dataclass(frozen=True)
class ScaledInteger:
    """The integers that represent a value of a table.

    name   the name of the array of integers
    power  the power of two by which each integer is multiplied
    bits   the exponent of two that bounds the integers' absolute values
    """

    name: str
    power: Power
    bits: int


CODE, HALF, TOTAL, WORD = 7, 15, 29, 30
"""The bits, without sign, of an 8-bit code, of a factor of an elementwise product, of a sum of products, and of any
number."""


@dataclass
class Shifts:
    """A scope to which lines with integers are added.

    values    the values of the scope, to which the new ones are added
    out       the lines so far
    narrowed  the integers with fewer bits, by their source array and the number of bits
    scalars   the names of computed exponents
    """

    values: dict[str, Value]
    out: list[Line] = field(default_factory=list)
    narrowed: dict[tuple[str, int], ScaledInteger] = field(default_factory=dict)
    scalars: dict[Power, Operand] = field(default_factory=dict)

    # Lines.

    def emit(self, line: Line) -> None:
        for term in line.left:
            self.values.setdefault(term.name, Value(term.declared, "step"))
        self.out.append(line)

    # Scalars.

    def scalar(self, power: Power, meta: Meta) -> Operand:
        """Return an exponent as an operand: a number, or a scalar whose lines are emitted."""
        if not power.scalars:
            return Literal(float(power.number))
        if power.number == 0 and len(power.scalars) == 1 and power.scalars[0][1] == 1:
            return Term(power.scalars[0][0], ())
        if power not in self.scalars:
            terms: list[tuple[int, Operand]] = [
                (1 if count > 0 else -1, Term(name, ())) for name, count in power.scalars for _ in range(abs(count))
            ]
            terms.sort(key=lambda pair: -pair[0])
            if power.number or terms[0][0] < 0:
                terms.insert(0 if terms[0][0] < 0 else len(terms), (1, Literal(float(power.number))))
            total = terms[0][1]
            for sign, term in terms[1:]:
                total, before = Term(self.fresh("power"), ()), total
                if isinstance(before, Literal) and isinstance(term, Term) and sign > 0:
                    before, term = term, before
                self.emit(Sum((total,), (before, term), (), meta, (1, sign)))
            self.scalars[power] = total
        return self.scalars[power]

    def fresh(self, name: str) -> str:
        """Return an unused name."""
        names = (f"{name}.{number}" for number in range(1, 10_000))
        return next(free for free in names if free not in self.values)

    def op(self, name: str, op: str, axes: Sequence[str], operands: Sequence[Operand], meta: Meta) -> Term:
        """Emit a line with an op and return its term."""
        left = Term(name, tuple(axes))
        given = ("X", "Z")[: len(operands)]
        self.emit(Op((left,), tuple(operands), (), meta, op, (), "body", given, ("Y",)))
        return left

    # Other powers.

    def shifted(
        self, number: ScaledInteger, power: Power, axes: tuple[str, ...], meta: Meta, name: str = ""
    ) -> ScaledInteger:
        """Return the integers of a value for another power of two, emitting their shift."""
        if power == number.power and not name:
            return number
        made = name or self.fresh(number.name)
        amount = self.scalar(power - number.power, meta)
        self.op(made, "shift", axes, (Term(number.name, axes), amount), meta)
        return ScaledInteger(made, power, WORD)

    def narrow(self, number: ScaledInteger, axes: tuple[str, ...], bits: int, phase: str) -> ScaledInteger:
        """Return the integers of a value shifted to `bits` bits, if they have more."""
        if number.bits <= bits:
            return number
        if (number.name, bits) not in self.narrowed:
            meta = Meta(LAYER, phase=phase)
            name, of = number.name, f"{number.name}.{'codes' if bits == CODE else 'part'}"
            most = Term(f"{name}.bits", ())
            if most.name not in self.values:
                size = self.op(f"{name}.size", "abs", axes, (Term(name, axes),), meta)
                if axes:
                    size = Term(f"{name}.most", ())
                    self.emit(applied("max", size, (Term(f"{name}.size", axes),), meta, axes))
                # Account for rounding up to one bit more: a 128th is more than half of the last place.
                part = self.op(f"{name}.rest", "shift", (), (size, Literal(7.0)), meta)
                bound = Term(f"{name}.bound", ())
                self.emit(Sum((bound,), (size, part), (), meta, (1, 1)))
                self.op(most.name, "bits", (), (bound,), meta)
            many, over = Term(f"{of}.many", ()), f"{of}.over"
            self.emit(Sum((many,), (most, Literal(float(bits))), (), meta, (1, -1)))
            self.op(over, "maximum", (), (many, Literal(0.0)), meta)
            self.values[of] = Value(axes, "value", dtype="int8" if bits == CODE and axes else "")
            self.op(of, "shift", axes, (Term(name, axes), Term(over, ())), meta)
            self.narrowed[number.name, bits] = ScaledInteger(of, number.power + Power.of(over), bits)
        return self.narrowed[number.name, bits]


LOG2_E, LN_2 = (11819, -13), (22713, -15)
"""log2(e) and ln(2) as integers times powers of two."""

UNIT = -10
"""The power of two of the exponent's unit."""


def exponential(scope: Shifts, number: ScaledInteger, axes: tuple[str, ...], name: str, meta: Meta) -> ScaledInteger:
    """Emit exp(x) for x up to 0 as 2^(x log2(e)): a power of two times a polynomial from 2^-1/2 to 2^1/2."""
    steps = _IntegerSteps(scope, name, axes, meta)
    number = scope.narrow(number, axes, HALF, meta.phase)
    factor, power = LOG2_E
    product = steps.times(Term(number.name, axes), factor)
    amount = scope.scalar(Power(UNIT) - number.power - Power(power), meta)
    exponent = steps.op("minimum", steps.op("shift", product, amount), Literal(0.0))
    whole = steps.op("shift", exponent, Literal(10.0))
    rest = steps.minus(exponent, steps.times(whole, 1024))
    near = steps.polynomial(rest, (16384, 11356, 3975, 916), 10)
    scope.op(name, "shift", axes, (near, steps.times(whole, -1)), meta)
    return ScaledInteger(name, Power(-14), HALF)


def logarithm(scope: Shifts, number: ScaledInteger, axes: tuple[str, ...], name: str, meta: Meta) -> ScaledInteger:
    """Emit log(x) as ln(2) times the sum of x's number of bits and a polynomial of its highest bits, from 1/2 to 1."""
    steps = _IntegerSteps(scope, name, axes, meta)
    given = Term(number.name, axes)
    many = steps.op("bits", given)
    highest = steps.op("shift", given, steps.plus(many, Literal(-15.0)))
    middle = steps.plus(highest, Literal(-24576.0))
    near = steps.op("shift", steps.polynomial(middle, (-6800, 31489, -22266, 20375), 15), Literal(4.0))
    total = steps.sum(steps.times(many, 1024), near)
    power = scope.scalar(number.power, meta)
    if isinstance(power, Literal):
        total = steps.plus(total, Literal(1024 * power.value)) if power.value else total
    else:
        total = steps.sum(total, Term(_IntegerSteps(scope, name, (), meta).times(power, 1024).name, ()))
    factor, unit = LN_2
    scope.emit(Product((Term(name, axes),), (total, Literal(float(factor))), (), meta))
    return ScaledInteger(name, Power(UNIT + unit), WORD)


@dataclass(frozen=True)
class _IntegerSteps:
    """A builder of the intermediate lines of one value, all with the same axes."""

    scope: Shifts
    name: str
    axes: tuple[str, ...]
    meta: Meta

    def _made(self) -> Term:
        return Term(self.scope.fresh(self.name), self.axes)

    def op(self, op: str, *operands: Operand) -> Term:
        return self.scope.op(self._made().name, op, self.axes, operands, self.meta)

    def times(self, term: Operand, factor: int) -> Term:
        made = self._made()
        self.scope.emit(Product((made,), (term, Literal(float(factor))), (), self.meta))
        return made

    def sum(self, first: Operand, second: Operand, sign: int = 1) -> Term:
        made = self._made()
        self.scope.emit(Sum((made,), (first, second), (), self.meta, (1, sign)))
        return made

    def plus(self, term: Operand, literal: Literal) -> Term:
        return self.sum(term, replace(literal, value=abs(literal.value)), 1 if literal.value > 0 else -1)

    def minus(self, first: Operand, second: Operand) -> Term:
        return self.sum(first, second, -1)

    def polynomial(self, x: Term, factors: Sequence[int], unit: int) -> Term:
        """Emit the value of a polynomial of x 2^-unit by Horner's rule; its coefficients have the result's scale."""
        *others, last = factors
        total: Term = self.times(x, last)
        for number, factor in reversed([*enumerate(others)]):
            total = self.plus(self.op("shift", total, Literal(float(unit))), Literal(float(factor)))
            if number:
                made = self._made()
                self.scope.emit(Product((made,), (total, x), (), self.meta))
                total = made
        return total


FUNCTIONS: Mapping[str, Callable[[Shifts, ScaledInteger, tuple[str, ...], str, Meta], ScaledInteger]] = {
    "exp": exponential,
    "log": logarithm,
}
"""The functions by their ops: each emits the lines that compute a value from a number along axes."""

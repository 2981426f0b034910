"""Rewrite a table for integer training: every value is an array of integers with a power of two as its scale.

    H.size[B f] = abs(H[B f])                     H a sum of 32 bits
    H.most[] = max[B f](H.size[B f])
    H.over[] = bits(H.most[]) - 7[]               the excess bits, at least 0
    H.codes[B f] = shift(H[B f], H.over[])        8 bits; its power is that of H plus H.over
    Y[B g] = H.codes[B f] W.codes[f g]            a sum of 32 bits; its power is the sum of both

Wang et al. 2020, NITI: Neural integer training, section 3, with one exponent for each array. Summands are shifted to
the larger power. Exponentials and logarithms use powers of two and polynomials between them. The pass works line by
line on the lowered table; an operator that only selects among numbers, such as relu, is unchanged. Other operators are
refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import Loop
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Term
from learncost.passes.integers import CODE, FUNCTIONS, HALF, TOTAL, WORD, Power, ScaledInteger, Shifts
from learncost.passes.lower import expanded
from learncost.passes.rewrite_codes import is_whole

FIXED = {"lr": (-24, WORD), "share": (-29, WORD)}
"""The exponents and bits of input numbers, by their roles or names."""

DATA, OTHERS, RESULTS = -7, -20, -16
"""The exponents of inputs, which are from -1 to 1; of weights that are not quantized; of results, such as the loss."""

LOSS_GRADIENT = "dloss"
"""The gradient of the loss, which is 1."""

ORDERED = frozenset(("maximum", "minimum", "less", "equal", "select", "abs"))
"""Operators that select among numbers with the same power of two."""


@dataclass
class Integers(Shifts):
    """The conversion of a table without loops.

    numbers  the integers of each value
    results  the exponents of results with a fixed power of two
    """

    numbers: dict[str, ScaledInteger] = field(default_factory=dict)
    results: frozenset[str] = frozenset()

    # Inputs.

    def begin(self, table: Table, powers: Iterable[str]) -> None:
        """Declare the integers of inputs and weights.

        powers  the scalars that are exponents of powers of two
        """
        for name in powers:
            self.numbers[name] = ScaledInteger("", Power.of(name), 0)
        for name in (*table.weights, *table.inputs):
            value = table.values[name]
            if name in self.numbers or name in table.indices or value.role == "index":
                continue
            if value.dtype == "int8":
                self.numbers[name] = ScaledInteger(name, Power(), CODE)
                continue
            if name == LOSS_GRADIENT:
                self.numbers[name] = ScaledInteger(name, Power(), 1)
                continue
            of = value.of if value.role == "number" else value.role
            power, bits = FIXED.get(of, (DATA, CODE))
            if name in table.weights:
                power, bits = OTHERS, TOTAL
            elif of not in FIXED and value.role not in ("value", "constant"):
                raise InputError(f"{name} cannot be an integer: integer-only does not support {of or 'such an input'}")
            dtype = "int8" if bits == CODE else ""
            self.values[name] = replace(value, power=power, dtype=dtype)
            self.numbers[name] = ScaledInteger(name, Power(power), bits)

    # Lines.

    def line(self, line: Line) -> None:
        """Convert a line to integers. Raises `InputError` if it has no integer form."""
        lines, steps = ((line,), {}) if is_whole(line) else expanded(line, self.values)
        self.values |= {name: value for name, value in steps.items() if name not in self.values}
        first = len(self.out)
        for inner in lines:
            try:
                self._primitive(inner)
            except InputError:
                if isinstance(line, Op) and inner.name not in line.makes:  # a line of its body
                    gradient = line.part == "gradient"
                    raise _no_form(line, f"the gradient of {line.op}" if gradient else line.op) from None
                raise
        ordered = all(isinstance(inner, Op) and inner.op in ORDERED for inner in lines)
        if isinstance(line, Op) and ordered and len(self.out) == first + len(lines):  # without shifts between them
            self.out[first:] = [line.renamed(self._names(line))]

    def _names(self, line: Line) -> dict[str, str]:
        """Return the integers of a line's operands; existing codes are used if only signs or the order matter."""
        result = self.numbers.get(line.name)
        names = {}
        for name in line.reads:
            if (number := self.numbers.get(name)) is not None:
                coded = self.narrowed.get((number.name, CODE))
                names[name] = coded.name if coded and result and result.power != number.power else number.name
        return names

    def _primitive(self, line: Line) -> None:
        left, number = line.left[0], None
        if line.where:
            raise _no_form(line, "a condition")
        if isinstance(line, Product):
            number = self._move(line) if len(line.right) == 1 else self._product(line)
        elif isinstance(line, Sum):
            number = self._sum(line)
        elif isinstance(line, Op):
            number = self._op_result(line)
        if number is None:
            return
        if left.name in self.results:
            wide = self.shifted(number, Power(RESULTS), left.declared, line.meta, left.name)
            self.values[left.name] = replace(self.values[left.name], power=RESULTS)
            number = replace(wide, power=Power(RESULTS))
        self.numbers[left.name] = number

    def _left(self, line: Line) -> Term:
        """Return the term that a line writes, which for a result with a fixed power is an intermediate that is shifted
        afterwards."""
        left = line.left[0]
        return Term(f"{left.name}.wide", left.axes) if left.name in self.results else left

    def read(self, term: Operand) -> ScaledInteger:
        """Return the integers of an operand as a term."""
        if not isinstance(term, Term) or term.name not in self.numbers:
            raise InputError(f"{term} cannot be an integer: integer-only does not support it")
        return self.numbers[term.name]

    def _as(self, number: ScaledInteger, term: Operand) -> Term:
        return Term(number.name, term.axes)

    # Products.

    def _move(self, line: Product) -> ScaledInteger:
        """Convert a product with a single factor, which is gathered, scattered, summed along axes, or broadcast."""
        (term,), left = line.right, self._left(line)
        number = self.read(term)
        summed = set(term.loops) - set(left.loops)
        if summed and not term.indexed:
            number = self.narrow(number, term.declared, HALF, line.meta.phase)
        self.emit(replace(line, left=(left,), right=(self._as(number, term),)))
        meets = left.indexed and not set(term.loops) <= {*left.axes}
        return ScaledInteger(left.name, number.power, WORD if summed or meets else number.bits)

    def _product(self, line: Product) -> ScaledInteger | None:
        left, (first, second) = self._left(line), line.right
        if isinstance(second, Literal):
            return self._times(line, left, first, second)
        a, b = self.read(first), self.read(second)
        for one, other, term in ((a, b, second), (b, a, first)):
            if one.name in ("", LOSS_GRADIENT) and term.loops == left.loops:  # only a power of two
                return replace(other, power=other.power + one.power)
        phase, meta = line.meta.phase, replace(line.meta, locals=())
        if line.sides.are_of_matrices or is_whole(line):
            a, b = self.narrow(a, first.declared, CODE, phase), self.narrow(b, second.declared, CODE, phase)
            self.emit(replace(line, left=(left,), right=(self._as(a, first), self._as(b, second)), meta=meta))
            return ScaledInteger(left.name, a.power + b.power, TOTAL)
        a, b = self.narrow(a, first.declared, HALF, phase), self.narrow(b, second.declared, HALF, phase)
        axes = tuple(dict.fromkeys((*first.loops, *second.loops)))
        right = (self._as(a, first), self._as(b, second))
        if set(axes) == set(left.loops):
            self.emit(replace(line, left=(left,), right=right, meta=meta))
            return ScaledInteger(left.name, a.power + b.power, a.bits + b.bits)
        each = Term(f"{left.name}.each", axes)
        self.emit(Product((each,), right, (), meta))
        part = self.narrow(ScaledInteger(each.name, a.power + b.power, a.bits + b.bits), axes, HALF, phase)
        self.emit(Product((left,), (Term(part.name, axes),), (), meta))
        return ScaledInteger(left.name, part.power, WORD)

    def _times(self, line: Product, left: Term, term: Operand, literal: Literal) -> ScaledInteger:
        """Convert a product with a number, which gets 15 bits."""
        if literal.sizes or not literal.value:
            raise _no_form(line, str(literal))
        number, power, value = self.read(term), 0, literal.value
        while value != int(value) and abs(value) < 2**14:
            value, power = value * 2, power - 1
        if abs(value) > 1:
            number = self.narrow(number, term.declared, HALF, line.meta.phase)
        self.emit(replace(line, left=(left,), right=(self._as(number, term), Literal(float(round(value))))))
        bits = min(WORD, number.bits + round(abs(value)).bit_length())
        return ScaledInteger(left.name, number.power + Power(power), bits)

    # Sums.

    def _sum(self, line: Sum) -> ScaledInteger:
        left = self._left(line)
        numbers = [self.read(term) for term in line.right]
        if len(numbers) == 1:
            if left.name not in self.results and line.right[0].loops == left.loops:
                return numbers[0]
            self.emit(replace(line, left=(left,), right=(self._as(numbers[0], line.right[0]),)))
            return replace(numbers[0], name=left.name)
        bits = max(number.bits for number in numbers) + 1
        right, power = self._aligned(line, left.name, max(0, bits - WORD))
        self.emit(replace(line, left=(left,), right=right))
        return ScaledInteger(left.name, power, min(WORD, bits))

    def _aligned(self, line: Line, name: str, more: int = 0) -> tuple[tuple[Operand, ...], Power]:
        """Return a line's operands shifted to the largest of their powers of two, and by `more` bits."""
        powers = [self.numbers[term.name].power for term in line.right if term.name in self.numbers]
        power = powers[0]
        if any(other != power for other in powers):
            if any(other.scalars for other in powers):
                both = [self.scalar(other, line.meta) for other in powers]
                both.sort(key=lambda operand: isinstance(operand, Literal))
                power = Power.of(self.op(f"{name}.power", "maximum", (), both, line.meta).name)
            else:
                power = Power(max(other.number for other in powers))
        power += Power(more)
        right: list[Operand] = []
        for term in line.right:
            number = self.numbers.get(term.name)
            shifted = number and self.shifted(number, power, term.declared, line.meta)
            right.append(Term(shifted.name, term.axes) if shifted else term)
        return tuple(right), power

    # Ops.

    def _op_result(self, line: Op) -> ScaledInteger | None:
        if line.op in FUNCTIONS:
            (term,) = line.right
            return FUNCTIONS[line.op](self, self.read(term), term.loops, self._left(line).name, line.meta)
        known = line.op in ORDERED or line.op in ("max", "min", "stop_gradient")
        numbers = [
            self.numbers[term.name] for term in line.right if isinstance(term, Term) and term.name in self.numbers
        ]
        others = [term for term in line.right if isinstance(term, Literal)]
        if not known or not numbers or any(literal.value or literal.sizes for literal in others):
            raise _no_form(line, line.op)
        left = self._left(line)
        right, power = self._aligned(line, left.name)
        self.emit(replace(line, left=(left,), right=right))
        if line.op in ("less", "equal"):
            return None
        return ScaledInteger(left.name, power, max(number.bits for number in numbers))


def check_sums(table: Table, sizes: Mapping[str, int]) -> None:
    """Raise `InputError` for sums that may need more than 32 bits."""
    for line in table.lines:
        if not isinstance(line, Product) or (line.left[0].indexed and not is_whole(line)):
            continue
        count = prod(size_of(axis, sizes) for axis in set(line.loops) - set(line.left[0].loops)) * _meeting(line, sizes)
        limit = 2 ** (TOTAL - 2 * CODE)
        if len(line.right) == 1:
            limit = 2 ** (WORD - HALF)
        elif table.values[line.name].role == "gradient":  # it is multiplied by the learning rate, which has 7 bits
            limit = 2 ** (WORD - 3 * CODE)
        if count > limit:
            raise InputError(f"a sum of {count:,} numbers may exceed 32 bits: reduce it to {limit:,}, in line: {line}")


def _meeting(line: Product, sizes: Mapping[str, int]) -> int:
    """Return the largest number of windows that add to one position: the product of all axes but the longest."""
    lengths = ([size_of(loop, sizes) for loop in axis.at.loops] for axis in line.left[0].indexed_axes)
    return prod(prod(several) // max(several) for several in lengths if several)


def _no_form(line: Line, what: str) -> InputError:
    return InputError(f"integer-only does not support {what}, in line: {line}")


def with_integers(table: Table, powers: Iterable[str]) -> tuple[Table, Integers]:
    """Return the table in integers, and the integers of its values.

    powers  the scalars that are exponents of powers of two
    Raises `InputError` for a line without an integer form.
    """
    gradients = {name for name in table.outputs if table.values[name].role == "gradient"}
    work = Integers(dict(table.values), results=frozenset(table.outputs) - gradients)
    work.begin(table, powers)
    for line in table.lines:
        if isinstance(line, Loop):
            raise InputError("integer-only does not support loops: use a network without repeated blocks")
        work.line(line)
    return replace(table, lines=tuple(work.out), values=work.values), work

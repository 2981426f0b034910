"""Lines that shift integers: to another power of two, and to fewer bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from learncost.ir.line import Line, Meta, Op, Sum
from learncost.ir.term import Literal, Operand, Term
from learncost.ir.value import Value
from learncost.passes.codes import LAYER
from learncost.passes.powers import CODE, WORD, Power, ScaledInteger


@dataclass
class Shifts:
    """A scope to which lines are added.

    values    of the scope, to which the new ones are added
    out       the lines so far
    narrowed  integers of fewer bits, by their source array and by these bits
    scalars   powers that were computed
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
        """Return a power as an operand: a number, or a computed scalar."""
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
        """Emit a line with an op."""
        left = Term(name, tuple(axes))
        given = ("X", "Z")[: len(operands)]
        self.emit(Op((left,), tuple(operands), (), meta, op, (), "body", given, ("Y",)))
        return left

    # Other powers.

    def shifted(
        self, number: ScaledInteger, power: Power, axes: tuple[str, ...], meta: Meta, name: str = ""
    ) -> ScaledInteger:
        """Return the numbers scaled by another power of two."""
        if power == number.power and not name:
            return number
        made = name or self.fresh(number.name)
        amount = self.scalar(power - number.power, meta)
        self.op(made, "shift", axes, (Term(number.name, axes), amount), meta)
        return ScaledInteger(made, power, WORD)

    def narrow(self, number: ScaledInteger, axes: tuple[str, ...], bits: int, phase: str) -> ScaledInteger:
        """Return the numbers shifted to `bits` bits, if they have more."""
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
                    inner = (Term(f"{name}.size", axes),)
                    self.emit(Op((size,), inner, (), meta, "max", axes, "body", ("X",), ("Y",)))
                # Account for rounding up to one bit more: a 128th is more than half of the last place.
                part = self.op(f"{name}.rest", "shift", (), (size, Literal(7.0)), meta)
                room = Term(f"{name}.room", ())
                self.emit(Sum((room,), (size, part), (), meta, (1, 1)))
                self.op(most.name, "bits", (), (room,), meta)
            many, over = Term(f"{of}.many", ()), f"{of}.over"
            self.emit(Sum((many,), (most, Literal(float(bits))), (), meta, (1, -1)))
            self.op(over, "maximum", (), (many, Literal(0.0)), meta)
            self.values[of] = Value(axes, "value", dtype="int8" if bits == CODE and axes else "")
            self.op(of, "shift", axes, (Term(name, axes), Term(over, ())), meta)
            self.narrowed[number.name, bits] = ScaledInteger(of, number.power + Power.of(over), bits)
        return self.narrowed[number.name, bits]

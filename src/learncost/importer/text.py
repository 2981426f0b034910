"""Print the lines of a graph in the notation: letters for axes, names for values, without dead code."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import FloorDiv

from learncost.importer.axes import AxisClass, Size, equal, leaves
from learncost.importer.equations import (
    DimensionCondition,
    Equation,
    NamedView,
    NumberOperand,
    Operand,
)
from learncost.importer.sized import without_rests
from learncost.importer.views import AxisIndex, Index, IndexedAxis, StoredValue, ViewAxis
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.models.tables import LENGTHS

_POWER = re.compile(r"\b([^\W\d]\w*)\*\*(\d)\b")
_EXPRESSION = re.compile(r"[\w+*/()-]+")
_NAME = re.compile(r"\W+")


def identifier(text: str) -> str:
    """Return a text as a name of the notation: letters, digits, _ and dots between parts."""
    parts = [_NAME.sub("_", part) for part in text.split(".") if part]
    name = ".".join(parts) or "value"
    return name if not name[0].isdigit() else f"layer.{name}"


def tail(path: str) -> str:
    """Return the last part of a module's path that is not a number."""
    parts = [part for part in path.split(".") if part and not part.isdigit() and not part.startswith("*")]
    return parts[-1] if parts else ""


@dataclass
class FreshNames:
    """Unique names for values, which may have a gradient, `dX` of X, and for axes."""

    taken: set[str] = field(default_factory=set)
    with_gradients: bool = False
    last: dict[tuple[str, str], int] = field(default_factory=dict)  # the last number of each name

    def unique(self, name: str, between: str = "_") -> str:
        number = self.last.get((name, between), 1)  # those before it are taken
        unique = f"{name}{between}{number}" if number > 1 else name
        while self._is_taken(unique):
            number += 1
            unique = f"{name}{between}{number}"
        self.last[name, between] = number
        self.taken.add(unique)
        return unique

    def _is_taken(self, name: str) -> bool:
        gradients = {f"d{name}", name.removeprefix("d")} if self.with_gradients else set()
        return name in self.taken or not gradients.isdisjoint(self.taken)


@dataclass
class TextWriter:
    """A printer of lines. `symbols` are the letters of sizes. `met` has the sizes of other axes, positions and counts
    in the order in which they are met; `stated` refines some of them, by place. `of_values` are the axes of values.
    """

    symbols: dict[str, str]
    stated: Mapping[int, Size] = field(default_factory=dict)
    met: list[Size] = field(default_factory=list)
    values: FreshNames = field(default_factory=lambda: FreshNames(with_gradients=True))
    axes: FreshNames = field(default_factory=FreshNames)
    names: dict[StoredValue, str] = field(default_factory=dict)
    letters: dict[AxisClass, str] = field(default_factory=dict)
    sizes: dict[str, Size] = field(default_factory=dict)
    of_values: set[AxisClass] = field(default_factory=set)
    place: str = ""  # of the line that is written, for a message

    def name(self, stored: StoredValue) -> str:
        if stored not in self.names:
            self.names[stored] = self.values.unique(identifier(stored.name))
        return self.names[stored]

    def letter(self, axis: AxisClass) -> str:
        """Return the name of an axis: the letter of its symbol, otherwise the name that a rule suggests."""
        root = axis.root
        if root not in self.letters:
            size = root.size
            if str(size) not in self.symbols:
                size = self.refined(size)
            if str(size) in self.symbols:
                letter = self.symbols[str(size)]
            else:
                length = root.letter in ("B", *LENGTHS) and not _is_number(size)  # a run gives those, so none follows
                letter = self.axes.unique("n" if length else root.letter or "n", "")
                self.sizes[letter] = size
            self.letters[root] = letter
        return self.letters[root]

    def refined(self, size: Size) -> Size:
        """Return the next size, position or count that is met, as `stated` has it."""
        self.met.append(self.stated.get(len(self.met), size))
        return self.met[-1]

    def counted(self, number: float) -> str | None:
        """Return a number that is a stated count, or one over it: `#(M-1)^-1[]`; None for other numbers."""
        for power in (1, -1):
            count = round(number**power) if 1e-9 < number < 1e9 else 0
            if count and float(count) ** power == number and not _is_number(size := self.refined(count)):
                total = self._total(size)
                return f"#{f'({total})' if total else self.size(size)}{'' if power == 1 else '^-1'}[]"
        return None

    def size_of(self, axis: AxisClass) -> str:
        """Return the size of an axis in a number: its letter, or its expression if no value has such an axis."""
        if (total := self._total(axis.size)) is not None and axis not in self.of_values:
            return f"({total})"
        return self.letter(axis) if axis in self.of_values or not _is_number(axis.size) else str(axis.size)

    def _total(self, size: Size) -> str | None:
        """Return a sum of open letters, their products and integers, `8 B-1`; None for other sizes."""
        if _is_number(size) or not size.is_Add:
            return None
        text = ""
        for term in size.as_ordered_terms():
            times, bases = term.as_coeff_mul()
            powers = [base.as_base_exp() for base in bases]
            names = [self.symbols.get(str(base)) for base, power in powers for _ in range(int(power))]
            if None in names or not times.is_integer:
                return None
            several = [str(abs(times))] if abs(times) != 1 or not names else []
            text += f"{'-' if times < 0 else '+'}{' '.join([*several, *filter(None, names)])}"
        return text.removeprefix("+")

    def size_letter(self, size: Size) -> str:
        """Return the name of a size in an index: an open letter, `M/2` for its floor division, otherwise an axis of
        that size.
        """
        if size.is_Symbol:
            return self.size(size, self.decided())
        if isinstance(size, FloorDiv) and size.args[0].is_Symbol and size.args[1].is_Integer:
            return f"{self.size_letter(size.args[0])}/{size.args[1]}"
        called = [letter for letter, known in self.sizes.items() if equal(known, size)]
        if not called:
            raise InputError(
                f"positions that begin at {self.size(size).replace(' ', '')}, which is not the size of an axis, "
                f"cannot be read{self.place}; use numbers for the sizes that it follows from in the inputs"
            )
        return called[0]

    def line(self, equation: Equation) -> str:
        self.place = equation.place
        return _WrittenLine(self, equation).text()

    def undecided(self) -> list[str]:
        """Return the sizes that depend on the values of a run, without those that follow from others."""
        stated = {text.partition("=")[0] for text in self.follows()}
        return [
            letter
            for letter, size in self.sizes.items()
            if letter not in stated and not _is_number(size) and free_unbacked_symbols(size)
        ]

    def follows(self) -> list[str]:
        """Return the sizes that follow from open ones, each with its expression, if the notation has one."""
        decided = self.decided()
        known = {letter for root, letter in self.letters.items() if letter not in self.sizes}
        known |= {*decided.values(), *self.symbols.values()}
        texts = {
            letter: _POWER.sub(_factors, self.size(without_rests(size), decided).replace(" ", ""))
            for letter, size in self.sizes.items()
            if not _is_number(size)
        }
        return [
            f"{letter}={text}"
            for letter, text in texts.items()
            if text != letter
            and _EXPRESSION.fullmatch(text)
            and "**" not in text
            and known.issuperset(re.findall(r"[^\W\d]\w*", text))
        ]

    def decided(self) -> dict[str, str]:
        """Return the letters of sizes that only the graph names, such as those that depend on values, by that name."""
        letters: dict[str, str] = {}
        for letter, size in self.sizes.items():
            if not _is_number(size) and str(size).isidentifier():
                letters.setdefault(str(size), letter)
        return letters

    def size(self, size: Size, more: Mapping[str, str] = {}) -> str:
        """Return a size as an expression in letters; `more` are additional letters."""
        letters = {**more, **self.symbols}
        return re.sub(r"[A-Za-z_]\w*", lambda match: letters.get(match.group(), match.group()), str(size))


def _factors(power: re.Match[str]) -> str:
    """Write `M**2` in the notation: M*M."""
    return "*".join([power[1]] * int(power[2]))


def _is_number(size: Size) -> bool:
    return isinstance(size, int)


class _WrittenLine:
    """A printer for one line: the names of its loops. A second axis with the same name gets a prime."""

    def __init__(self, writer: TextWriter, equation: Equation) -> None:
        self.writer = writer
        self.equation = equation
        self.loops: dict[tuple[Hashable, int], str] = {}
        self.used: dict[str, int] = {}
        self.of_slot: dict[ViewAxis, str] = {}
        self.starts = _starts(writer, equation)
        kept = equation.running.statistics if equation.running else ()
        for read in (*equation.left, *(o for o in equation.operands if isinstance(o, NamedView)), *kept):
            self.bind(read)

    def bind(self, read: NamedView) -> None:
        for letter, row in zip(read.letters, read.view.fresh().dims, strict=True):
            for place, slot in enumerate(row):
                if (letter, place) not in self.loops:
                    name = self.writer.letter(slot.axis)
                    count = self.used.get(name, 0)
                    self.used[name] = count + 1
                    self.loops[letter, place] = name + "'" * count

    def rows(self, letter: Hashable) -> list[str]:
        """Return the loops of a letter."""
        return [name for (each, _), name in self.loops.items() if each == letter]

    def text(self) -> str:
        equation = self.equation
        left = " ".join(self.term(read) for read in equation.left)
        several = equation.operands
        if equation.kind == "product":  # a signed number behind a term would be subtracted from it
            several = tuple(sorted(several, key=lambda each: not (isinstance(each, NumberOperand) and each.value < 0)))
        operands = [self.operand(operand) for operand in several]
        if equation.kind == "op":
            acts = " ".join(name for letter in equation.acts for name in self.rows(letter))
            right = f"{equation.op}{f'[{acts}]' if acts else ''}({', '.join(operands)})"
        elif equation.kind == "sum":
            right = " ".join(
                f"{'-' if sign < 0 else '+'} {text}" for sign, text in zip(equation.signs, operands, strict=True)
            )
            right = right.removeprefix("+ ")
        else:
            right = " ".join(operands)
        where = "".join(f" where {self.condition(each)}" for each in equation.where)
        meta = f" @ {equation.module or '.'} {equation.operator}".rstrip()
        meta += f" again {equation.again}" if equation.again else ""
        cost = "" if equation.cost is None else str(equation.cost.renamed(self.writer.symbols))
        return f"{left} = {right}{cost}{where}{self.running()}{meta}"

    def running(self) -> str:
        """Return the clause for the running statistics that it updates."""
        if (kept := self.equation.running) is None:
            return ""
        momentum = "none" if kept.momentum is None else f"{kept.momentum:g}"
        return f" running {' '.join(map(self.term, kept.statistics))} momentum {momentum}"

    def condition(self, where: DimensionCondition) -> str:
        (lower,), (upper,) = self.rows(where.lower), self.rows(where.upper)
        window = f" < {lower} + {where.window}" if where.window else ""
        return f"{lower} {where.relation} {upper}{window}"

    def operand(self, operand: Operand) -> str:
        return number(operand, self.writer) if isinstance(operand, NumberOperand) else self.term(operand)

    def term(self, read: NamedView) -> str:
        view = read.view.fresh()
        names = {}
        for letter, row in zip(read.letters, view.dims, strict=True):
            for place, slot in enumerate(row):
                names[slot] = self.loops[letter, place]
        return self.spelled(view.stored, view.index, names)

    def spelled(self, stored: StoredValue, index: Sequence[Index], names: dict[ViewAxis, str]) -> str:
        axes = list(leaves(stored.axes))
        labels: list[str] = [names[i] for i in index if isinstance(i, ViewAxis)]
        texts = []
        for axis, each in zip(axes, index, strict=True):
            if isinstance(each, ViewAxis):
                texts.append(names[each])
                continue
            label = self.writer.letter(axis)
            while label in labels:
                label += "'"
            labels.append(label)
            if isinstance(each, IndexedAxis):
                texts.append(f"{label}={self.spelled(each.view.stored, each.view.fresh().index, names)}")
            else:
                texts.append(f"{label}={self.place(each, names)}")
        return f"{self.writer.name(stored)}[{' '.join(texts)}]"

    def place(self, place: AxisIndex, names: dict[ViewAxis, str]) -> str:
        parts = [(factor, names[slot]) for factor, slot in place.parts]
        text = ""
        for factor, name in parts:
            text += _signed(self.writer, factor, name)
        start = self.writer.refined(place.start) if _is_number(place.start) else place.start
        if place in self.starts:
            text += self.starts[place]
        elif start != 0:
            text += _signed(self.writer, start, "")
        if not parts and _is_number(start):
            return f"{start}[]"
        return f"({text.removeprefix(' + ').strip()})"  # otherwise the axis behind it would be read as a part of it


def _starts(writer: TextWriter, equation: Equation) -> dict[AxisIndex, str]:
    """Return the offsets of the parts of a concatenation: ` - #m`, by the parts before, so that the notation recognizes
    it.
    """
    starts: dict[AxisIndex, str] = {}
    before: list[AxisClass] = []
    for read in equation.operands if equation.kind == "sum" else ():
        if not isinstance(read, NamedView):
            return {}
        view = read.view.fresh()
        indices = zip(leaves(view.stored.axes), view.index, strict=True)
        places = [(axis, index) for axis, index in indices if isinstance(index, AxisIndex)]
        if len(places) != 1 or not equal(places[0][1].start, -sum((axis.root.size for axis in before), 0)):
            return {}
        ((axis, place),) = places
        if len(place.parts) != 1 or place.parts[0][0] != 1:
            return {}
        counts = Counter(map(writer.letter, before))
        starts[place] = "".join(f" - {'' if count == 1 else f'{count} '}#{name}" for name, count in counts.items())
        before.append(axis)
    return starts if len(starts) > 1 else {}


def _signed(writer: TextWriter, size: Size, axis: str) -> str:
    """Return ` + 2 #M i`: monomials of a size, each times an axis."""
    if isinstance(size, int):
        monomials: list[tuple[int, list[str]]] = [(size, [])]
    else:
        monomials = []
        for term in without_rests(size).as_ordered_terms():
            coefficient, factors = term.as_coeff_mul()
            ops = []
            for factor in factors:
                base, power = factor.as_base_exp()
                base, power = (base, power) if base.is_Symbol and power > 0 else (factor, 1)
                ops += [f"#{writer.size_letter(base)}"] * int(power)
            if coefficient.q != 1:
                ops[0] += f"/{coefficient.q}"
            monomials.append((int(coefficient.p), ops))
    text = ""
    for factor, ops in monomials:
        inner = [
            *([str(abs(factor))] if abs(factor) != 1 or not (ops or axis) else []),
            *ops,
            *([axis] if axis else []),
        ]
        text += f" {'-' if factor < 0 else '+'} {' '.join(inner)}"
    return text if not text.startswith(" - ") else f" -{text[3:]}"


def number(value: NumberOperand, writer: TextWriter) -> str:
    """Return a number in the notation."""
    if not value.axes:
        if (counted := writer.counted(value.value)) is not None:
            return counted
        text = repr(float(value.value))
        return f"{text.removesuffix('.0')}[]"
    leaves = [leaf for axis in value.axes for leaf in axis.leaves]
    sizes = "".join(f"#{writer.size_of(leaf)}" for leaf in leaves)
    return f"{sizes}{'' if value.power == 1 else f'^{value.power:g}'}[]"

"""The convention of a given number: it is compared with every counter and price book, for every pass and unit."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from itertools import combinations, product
from typing import TYPE_CHECKING

from learncost.cost_models import PricedLine
from learncost.cost_models.books import every
from learncost.ir.dataclass import HIDDEN, Key, Serializable, dataclass, field
from learncost.ir.errors import InputError, shown
from learncost.ir.polynomial import total
from learncost.layers.active import Part, part_of
from learncost.reports.reasons import LEFT_OUT, SCORES
from learncost.reports.run import PreparedRun

if TYPE_CHECKING:
    from learncost.reports.conventions import Conventions

_POWERS = {"": 0, "k": 3, "m": 6, "g": 9, "b": 9, "t": 12, "p": 15, "e": 18, "z": 21}
_UNITS = {"f": "FLOPs", "m": "MACCs"}
_WRITTEN = re.compile(
    r"([0-9][0-9,_]{0,30}(?:\.[0-9]{0,20})?)(?:e\+?([0-9]{1,2}))?\s*([kmgbtpez]?)(?:(flop|macc?)s?)?", re.IGNORECASE
)

NEAREST_COUNTS = 4
"""The number of nearest counts for which lines are sought that explain the whole difference."""

MOST_LINES = 3
"""Lines of the bridge that may explain the rest."""

_PARTS = {
    "forward": ("forward",),
    "forward and backward": ("forward", "recomputation", "backward", "weight_update"),
    "backward": ("backward", "weight_update"),
    "forward, backward and the optimizer's step": (
        *("forward", "recomputation", "backward", "weight_update", "optimizer_step"),
    ),
}
_OUTSIDE: Mapping[str, frozenset[Part]] = {
    "": frozenset(),
    "without the head": frozenset({"head", "loss"}),
    "without embedding and head": frozenset({"embedding", "positions", "head", "loss"}),
}
_ODD = {"backward": 3, "forward, backward and the optimizer's step": 2, "without the head": 2, "a token": 1}


@dataclass(frozen=True)
class ParsedNumber:
    """A typed number, with the tolerance of its rounding, and its unit if given."""

    text: str = field(metadata=Key("number").field)
    value: Fraction
    rounding: Fraction
    unit: str = field(default="", metadata=HIDDEN)


@dataclass(frozen=True)
class ConventionCount(Serializable):
    """The count of one convention for one choice of passes, unit and denominator.

    convention  a price book or a counter
    part        forward, forward and backward, ...
    unit        MACCs or FLOPs
    per         a step, a sequence or a token
    without     what is left out of it, "" where nothing is
    """

    convention: str
    part: str
    unit: str
    per: str
    without: str
    value: Fraction
    kind: str = field(default="price book", metadata=Key(after="convention").field)

    @property
    def text(self) -> str:
        """The convention as text."""
        left = f", {self.without}" if self.without else ""
        return f"{self.kind} {self.convention}: {self.unit} of {self.part}{left}, for {self.per}"


@dataclass(frozen=True)
class Identified(Serializable):
    """The conventions that give a number; if none does, the nearest one, and the terms that explain the rest.

    Attributes
    ----------
    number
        The number as it was given.
    matches
        The counts that equal it within the rounding of its digits, the usual ones first.
    nearest
        The nearest count, if none equals it.
    lines
        Terms by which conventions differ that explain the rest: what, and how much more or less.
    rest
        The difference that is not explained.
    """

    number: ParsedNumber = field(metadata=Key(inline=True).field)
    matches: tuple[ConventionCount, ...]
    nearest: ConventionCount
    lines: tuple[tuple[str, Fraction], ...] = field(
        default=(), metadata=Key(form=lambda lines: [{"what": text, "amount": amount} for text, amount in lines]).field
    )
    rest: Fraction = Fraction(0)


def typed(number: object) -> ParsedNumber:
    """Return the number of a text such as 291.6G, 8.75e11, 875 GFLOPs or 437,472,460,800. Raises `InputError`."""
    is_whole = isinstance(number, float) and number.is_integer()
    text = str(int(number) if is_whole else number).strip()  # type: ignore[call-overload]
    match = _WRITTEN.fullmatch(text)
    if match is None or isinstance(number, bool) or Fraction(digits := re.sub(r"[,_]", "", match[1])) == 0:
        raise InputError(f"--identify must be a number above 0 such as 291.6G or 875 GFLOPs, not {shown(text)}")
    power = int(match[2] or 0) + _POWERS[match[3].lower()]
    after = len(digits.partition(".")[2])
    value = Fraction(digits) * 10**power
    step = Fraction(10) ** (power - after)
    if step == 1:
        step *= 10 ** (len(digits) - len(digits.rstrip("0")))  # zeros at the end may stand for digits left out
    rounding = step / 2 if step > 1 else Fraction(0)
    return ParsedNumber(text, value, rounding, _UNITS.get((match[4] or "")[:1].lower(), ""))


def identify(run: PreparedRun, number: object, conventions: Conventions) -> Identified:
    """Return the conventions that give this number for this step. Raises `InputError`."""
    asked_number = typed(number)
    counts = [
        each for each in convention_counts(run, conventions) if each.value and asked_number.unit in ("", each.unit)
    ]
    exact = [each for each in counts if each.value == asked_number.value]
    matches = exact or [each for each in counts if abs(each.value - asked_number.value) <= asked_number.rounding]
    unique = {(each.convention, each.part, each.unit, each.per, each.value): each for each in reversed(_usual(matches))}
    if matches:
        return Identified(asked_number, tuple(reversed(unique.values())), _usual(matches)[0])
    usual = [each for each in _usual(counts) if not each.without and each.part in ("forward", "forward and backward")]
    if not usual:
        raise InputError(f"no convention counts {asked_number.unit} for this model")
    near = sorted(usual, key=lambda each: abs(each.value - asked_number.value))[:NEAREST_COUNTS]
    tries = [(each, _explained(asked_number, each, conventions)) for each in near]
    left = [abs(asked_number.value - each.value - sum(amount for _, amount in lines)) for each, lines in tries]
    best = next((place for place, rest in enumerate(left) if rest <= asked_number.rounding), 0)
    nearest, lines = tries[best]
    return Identified(
        asked_number, (), nearest, lines, asked_number.value - nearest.value - sum(amount for _, amount in lines)
    )


def _usual(counts: Iterable[ConventionCount]) -> list[ConventionCount]:
    """Return counts, the most common conventions first."""
    return sorted(counts, key=lambda each: sum(_ODD.get(text, 0) for text in (each.part, each.without, each.per)))


def convention_counts(run: PreparedRun, conventions: Conventions) -> Iterator[ConventionCount]:
    """Yield the count of every counter and book for every choice of passes and unit."""
    sequences, tokens = run.axes["B"], run.model.tokens(run.axes)
    scales = {"a step": 1, "a sequence": sequences, "a token": tokens}
    if sequences == 1:
        del scales["a sequence"]
    for counter in conventions.counters:
        part = "forward" if "forward" in counter.rule or counter.name.endswith("forward") else "forward and backward"
        part = "forward and backward" if counter.name.endswith("in all") else part
        for how, value in (("attention by matmul", counter.by_matmul), ("attention fused", counter.fused)):
            unit = "FLOPs" if counter.unit == "FLOPs" else "MACCs"
            for per, scale in scales.items():
                name = f"{counter.name}, {how}"
                yield ConventionCount(name, part, unit, per, "", Fraction(value, scale), "counter")
                if unit == "MACCs":
                    yield ConventionCount(
                        f"{name}, doubled", part, "FLOPs", per, "", Fraction(2 * value, scale), "counter"
                    )
    for book in every().values():
        try:
            rows = run.rows("bp", book)
        except InputError:
            continue
        for (part, phases), (without, parts) in product(_PARTS.items(), _OUTSIDE.items()):
            part_rows = [row for row in rows if row.macro_operation in phases and part_of(row.layer) not in parts]
            if without and len(part_rows) == len([row for row in rows if row.macro_operation in phases]):
                continue
            if part.endswith("step") and not any(row.macro_operation == "optimizer_step" for row in rows):
                continue
            for unit in ("MACCs", "FLOPs"):
                if part.endswith("step") and not _count(
                    run, (row for row in part_rows if row.layer == "optimizer"), unit
                ):
                    continue
                value = _count(run, part_rows, unit)
                for per, scale in scales.items():
                    yield ConventionCount(book.name, part, unit, per, without, Fraction(value, scale))


def _count(run: PreparedRun, rows: Iterable[PricedLine], unit: str) -> int:
    return int(total(getattr(row, unit.lower()) for row in rows).at(run.axes))


def _explained(
    asked_number: ParsedNumber, nearest: ConventionCount, conventions: Conventions
) -> tuple[tuple[str, Fraction], ...]:
    """Return the fewest terms of the bridge that remove the rest, or at least half of it each.

    A term that the nearest count includes can only be removed, and one that it lacks only added. Attention's products
    are counted under one convention, or not at all.
    """
    rest = asked_number.value - nearest.value
    pool: dict[str, Fraction] = {}
    without = nearest.kind == "counter" and (nearest.convention.startswith("thop") or "fused" in nearest.convention)
    for convention in sorted(
        conventions.conventions, key=lambda convention: convention.book.name != nearest.convention
    ):
        its_own = convention.book.name == nearest.convention
        for reason in convention.reasons:
            if not its_own and (reason.what.startswith(LEFT_OUT) or (without and reason.what in SCORES)):
                continue
            amount = reason.amount.forward if nearest.part == "forward" else reason.amount.whole
            value = Fraction(amount.maccs if nearest.unit == "MACCs" else amount.flops)
            if nearest.per == "a token":
                value /= conventions.batch_size * (conventions.target_len or conventions.seq_len)
            elif nearest.per == "a sequence":
                value /= conventions.batch_size
            if value:
                pool.setdefault(reason.what, -value if its_own else value)
        without |= its_own and any(name in SCORES for name in pool)
    best: tuple[tuple[str, Fraction], ...] = ()
    left = abs(rest)
    for count in range(1, MOST_LINES + 1):
        for names in combinations(pool, count):
            if sum(name in SCORES for name in names) > 1:
                continue
            lines = tuple((name, pool[name]) for name in names)
            over = abs(rest - sum(amount for _, amount in lines))
            if over < left / 2:
                best, left = lines, over
        if left <= asked_number.rounding:
            break
    return best

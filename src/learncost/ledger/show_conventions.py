"""How conventions are shown: what every book says, why, what counters say; flat tables for Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from learncost.ledger.conventions import YARDSTICK, Conventions, Counts
from learncost.ledger.sheet import WIDTH, Row, Sheet, number, significant

_NAMES = 36  # columns that names are given, which are broken where they are longer
_COLUMNS = (
    *("kind", "name", "what", "forward_maccs", "forward_flops", "maccs", "flops"),
    *("attention_by_matmul", "attention_fused"),
)
MATCHES = 8
"""Ways of counting that are shown; the JSON has all."""

if TYPE_CHECKING:
    from learncost.ledger.mine import Mine


def records(found: Conventions) -> Iterator[dict[str, Any]]:
    """Books, the reasons of their differences, counters: a row each, with whole numbers."""

    def row(kind: str, name: str, what: str, counts: Counts | None = None, *attention: int) -> dict[str, Any]:
        amounts = (counts.forward, counts.whole) if counts else ()
        values = [value for amount in amounts for value in (amount.maccs, amount.flops)] or [""] * 4
        return dict(zip(_COLUMNS, (kind, name, what, *values, *(attention or ("", ""))), strict=True))

    for one in found.conventions:
        yield row("price book", one.book.name, one.refused or one.book.title, one.counts)
        yield from (row("difference", one.book.name, reason.what, reason.amount) for reason in one.reasons)
    if found.mine:
        for place, way in enumerate(found.mine.matches, 1):
            yield row("mine", found.mine.number.text, f"{place}: {way.text}")
    for counter in found.counters:
        what = f"{counter.unit}, {counter.version}: {counter.rule}"
        yield row("counter", counter.name, what, None, counter.by_matmul, counter.fused)


def sheets(found: Conventions, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Whose number it is, where one is given; else what counters say, what every book says, and why."""
    if found.mine is not None:
        return (_mine(found, found.mine),)
    return Sheet(_title(found), (), ()), _counters(found, width), _books(found, width), _why(found, width)


def _mine(found: Conventions, mine: Mine) -> Sheet:
    shown = mine.matches[:MATCHES]
    rows = [Row((one.text, number(round(one.value)))) for one in shown]
    notes = []
    heading = f"{found.model}: {mine.number.text} is what these say"
    if len(mine.matches) > MATCHES:
        notes.append(f"{len(mine.matches) - MATCHES} more ways give it; --format json has all.")
    if mine.number.rounding and shown:
        notes.append("Within the rounding of the digits that were typed.")
    if not shown:
        near = mine.nearest
        share = 100 * (float(mine.number.value / near.value) - 1)
        off = f"{significant(abs(share))} % {'more' if share > 0 else 'less'}"
        heading = f"{found.model}: no convention says {mine.number.text}; it is {off} than the nearest"
        rows = [Row((near.text, number(round(near.value))), "bold")]
        rows += [Row((what, f"{round(amount):+,}"), depth=1) for what, amount in mine.lines]
        if mine.rest:
            rows.append(Row(("not explained" if mine.lines else "the difference", f"{round(mine.rest):+,}"), depth=1))
        rows.append(Row((mine.number.text, number(round(mine.number.value))), "bold"))
        notes.append(
            "Where your counter had another length, batch or class, give it: --seq-len, --batch-size, --architecture."
        )
    notes.append(f"A step is {_sequences(found)}. Counted: {found.counted}. Without --mine every convention is shown.")
    return Sheet(heading, ("", ""), tuple(rows), tuple(notes))


def _fitting(make: Callable[[Callable[[int], str]], Sheet], width: int) -> Sheet:
    """The sheet with every digit if it fits, else in billions with three decimals, and so on."""

    def fits(found: Sheet) -> bool:
        numbers = [own for place, own in enumerate(found.widths) if place not in found.left]
        words = [own for place, own in enumerate(found.widths) if place in found.left]
        names = min(words[0], _NAMES) + sum(words[1:]) + 2 * len(words[1:])
        return names + sum(numbers) + 2 * len(numbers) <= width

    found = make(number)
    for power in (9, 12, 15, 18):
        if fits(found):
            break
        note = f"In units of 10^{power}, rounded to three decimals; --format json has every digit."
        found = make(partial(_in_units, power))
        found = replace(found, notes=(note, *found.notes))
    return found


def _in_units(power: int, value: int) -> str:
    thousandths = round(abs(value), 3 - power) // 10 ** (power - 3)
    return f"{'-' if value < 0 else ''}{thousandths // 1000:,}.{thousandths % 1000:03d}"


def _books(found: Conventions, width: int) -> Sheet:
    def make(written: Callable[[int], str]) -> Sheet:
        rows = []
        for one in found.conventions:
            ratio = found.ratio(one.book.name)
            cells: tuple[str, ...] = ("-",) * 5
            if one.counts is not None:
                amounts = (one.counts.forward, one.counts.whole)
                counts = [written(value) for amount in amounts for value in (amount.maccs, amount.flops)]
                cells = (*counts, "" if ratio is None else f"{ratio:.3f}")
            rows.append(Row((one.book.name, *cells), "bold" if one.book.name == YARDSTICK else ""))
        notes = (
            "In all: forward, backward, weights' gradients; the optimizer's step aside. 1 MACC = 2 FLOPs.",
            f"{found.parameters:,} parameters. Counted: {found.counted}.",
        )
        columns = ("price book", "MACCs, fwd", "FLOPs, fwd", "MACCs, all", "FLOPs, all", "of matmul")
        title = "What price books and formulas of publications say (fwd: forward; all: backward and updates too)"
        return Sheet(title, columns, tuple(rows), notes)

    return _fitting(make, width)


def _title(found: Conventions) -> str:
    return f"{found.model}, one step of backpropagation: {_sequences(found)}"


def _sequences(found: Conventions) -> str:
    sides = "" if found.target_len is None else f" and {found.target_len:,}"
    return f"{found.batch_size:,} sequence{'s' if found.batch_size > 1 else ''} of {found.seq_len:,}{sides} tokens"


def _why(found: Conventions, width: int) -> Sheet:
    def make(written: Callable[[int], str]) -> Sheet:
        def signed(value: int) -> str:
            return f"+{written(value)}" if value > 0 else written(value) if value else "0"

        rows = []
        for one in found.conventions:
            if one.difference is None or one.book.name == YARDSTICK:
                continue
            name = f"{one.book.name}: {one.book.title}"
            totals = (signed(one.difference.forward.flops), signed(one.difference.whole.flops))
            rows.append(Row((name, *totals), "bold"))
            for reason in one.reasons:
                if not (reason.amount.forward.flops or reason.amount.whole.flops):
                    continue  # a difference in MACCs alone, which the data has
                amounts = (signed(reason.amount.forward.flops), signed(reason.amount.whole.flops))
                rows.append(Row((reason.what, *amounts), "", 1))
        title = "Why they differ: FLOPs more (+) or fewer (-) than the matrix products of `matmul`"
        twice = "Formulas of publications take the backward pass as twice the forward one, as products are."
        notes = (twice, *_refusals(found))
        return Sheet(title, ("", "forward", "in all"), tuple(rows), notes)

    return _fitting(make, width)


def _refusals(found: Conventions) -> Iterator[str]:
    """Why books say nothing of the model, those with one reason together."""
    reasons: dict[str, list[str]] = {}
    for one in found.conventions:
        if one.refused:
            reasons.setdefault(one.refused.removeprefix(f"price book {one.book.name} is "), []).append(one.book.name)
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}."


def _counters(found: Conventions, width: int) -> Sheet:
    def make(written: Callable[[int], str]) -> Sheet:
        rows = [Row((one.name, one.unit, written(one.by_matmul), written(one.fused))) for one in found.counters]
        rules = dict.fromkeys(f"{one.name.partition(',')[0]} ({one.version}): {one.rule}." for one in found.counters)
        columns = ("counter", "unit", "with matmul", "fused")
        title = "What common counters report, with attention by matmul or by the fused kernel"
        notes = (*rules, "Forward, or in all: forward, backward and weights' gradients.")
        return Sheet(title, columns, tuple(rows), notes, frozenset({0, 1}))

    return _fitting(make, width)

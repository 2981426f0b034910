"""Display of conventions: the counts of every book and counter with reasons; flat tables for Markdown and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from learncost.ir.dataclass import replace
from learncost.reports.conventions import REFERENCE_CONVENTION, Conventions, Counts
from learncost.reports.sheet import (
    WIDTH,
    Sheet,
    SheetRow,
    TableColumn,
    batch_text,
    in_units,
    number,
    significant,
    table,
    words_of,
)

_NAMES = 36  # columns that names are given, which are broken where they are longer
_COLUMNS = (
    *("kind", "name", "what", "forward_maccs", "forward_flops", "maccs", "flops"),
    *("attention_by_matmul", "attention_fused"),
)
MATCHES = 8
"""The number of matching counts that are shown; the JSON has all."""

if TYPE_CHECKING:
    from learncost.reports.identify import Identified


def records(answer: Conventions) -> Iterator[dict[str, Any]]:
    """Return a row for each book, reason and counter, with integers."""

    def row(kind: str, name: str, label: str, counts: Counts | None = None, *attention: int) -> dict[str, Any]:
        amounts = (counts.forward, counts.whole) if counts else ()
        values = [value for amount in amounts for value in (amount.maccs, amount.flops)] or [""] * 4
        return dict(zip(_COLUMNS, (kind, name, label, *values, *(attention or ("", ""))), strict=True))

    for convention in answer.conventions:
        yield row("price book", convention.book.name, convention.refused or convention.book.title, convention.counts)
        yield from (
            row("difference", convention.book.name, reason.what, reason.amount) for reason in convention.reasons
        )
    if answer.identified:
        for place, match in enumerate(answer.identified.matches, 1):
            yield row("identified", answer.identified.number.text, f"{place}: {match.text}")
    for counter in answer.counters:
        label = f"{counter.unit}, {counter.version}: {counter.rule}"
        yield row("counter", counter.name, label, None, counter.by_matmul, counter.fused)


def sheets(answer: Conventions, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return the convention of a given number; without one, the counts of counters and books, and reasons."""
    if answer.identified is not None:
        return (_identified(answer, answer.identified),)
    return (
        Sheet(f"{answer.model}, one step of bp: {_batch(answer)}", (), ()),
        _counters(answer, width),
        _books(answer, width),
        _why(answer, width),
    )


def _identified(answer: Conventions, identified: Identified) -> Sheet:
    matches = identified.matches[:MATCHES]
    rows = [SheetRow((match.text, number(round(match.value)))) for match in matches]
    notes = []
    heading = f"{answer.model}: conventions that give {identified.number.text}"
    if len(identified.matches) > MATCHES:
        notes.append(f"{len(identified.matches) - MATCHES} more conventions give it; --format json has all.")
    if identified.number.rounding and matches:
        notes.append("Within the rounding of the given digits.")
    if not matches:
        near = identified.nearest
        share = 100 * (float(identified.number.value / near.value) - 1)
        off = f"{significant(abs(share))} % {'more' if share > 0 else 'less'}"
        heading = f"{answer.model}: no convention gives {identified.number.text}; it is {off} than the nearest"
        rows = [SheetRow((near.text, number(round(near.value))), "bold")]
        rows += [SheetRow((label, f"{round(amount):+,}"), depth=1) for label, amount in identified.lines]
        if identified.rest:
            rows.append(
                SheetRow(
                    ("not explained" if identified.lines else "the difference", f"{round(identified.rest):+,}"), depth=1
                )
            )
        rows.append(SheetRow((identified.number.text, number(round(identified.number.value))), "bold"))
        notes.append(
            "If your counter used another length, batch or class, give it: --seq-len, --batch-size, --architecture."
        )
    notes.append(
        f"A step is {_batch(answer)}. Counted: {answer.counted}. Without --identify every convention is shown."
    )
    return Sheet(heading, ("", ""), tuple(rows), tuple(notes))


def _fitting(make: Callable[[Callable[[int], str]], Sheet], width: int) -> Sheet:
    """Return the sheet with every digit if it fits, else in billions with three decimals, and so on."""

    def fits(sheet: Sheet) -> bool:
        numbers = [column_width for place, column_width in enumerate(sheet.widths) if place not in sheet.left]
        words = [column_width for place, column_width in enumerate(sheet.widths) if place in sheet.left]
        names = min(words[0], _NAMES) + sum(words[1:]) + 2 * len(words[1:])
        return names + sum(numbers) + 2 * len(numbers) <= width

    sheet = make(number)
    for power in (9, 12, 15, 18):
        if fits(sheet):
            break
        note = f"In units of 10^{power}, rounded to three decimals; --format json has every digit."
        sheet = make(partial(in_units, power))
        sheet = replace(sheet, notes=(note, *sheet.notes))
    return sheet


def _books(answer: Conventions, width: int) -> Sheet:
    def make(written: Callable[[int], str]) -> Sheet:
        rows = []
        for convention in answer.conventions:
            ratio = answer.ratio(convention.book.name)
            cells: tuple[str, ...] = ("-",) * 5
            if convention.counts is not None:
                amounts = (convention.counts.forward, convention.counts.whole)
                counts = [written(value) for amount in amounts for value in (amount.maccs, amount.flops)]
                cells = (*counts, "" if ratio is None else f"{ratio:.3f}")
            rows.append(
                SheetRow((convention.book.name, *cells), "bold" if convention.book.name == REFERENCE_CONVENTION else "")
            )
        notes = (
            "All: forward, backward and weight update, without the optimizer step. 1 MACC = 2 FLOPs.",
            f"{answer.parameters:,} parameters. Counted: {answer.counted}.",
        )
        columns = ("price book", "MACCs, fwd", "FLOPs, fwd", "MACCs, all", "FLOPs, all", "of matmul")
        title = "Price books and formulas of publications (fwd: forward; all: with backward and weight update)"
        return Sheet(title, columns, tuple(rows), notes)

    return _fitting(make, width)


def _batch(answer: Conventions) -> str:
    lengths = answer.batch_size, answer.seq_len, answer.target_len
    return batch_text(*lengths, letters=answer.letters, length_note=answer._length_note)


def _why(answer: Conventions, width: int) -> Sheet:
    def make(written: Callable[[int], str]) -> Sheet:
        def signed(value: int) -> str:
            return f"+{written(value)}" if value > 0 else written(value) if value else "0"

        rows = []
        for convention in answer.conventions:
            if convention.difference is None or convention.book.name == REFERENCE_CONVENTION:
                continue
            name = f"{convention.book.name}: {convention.book.title}"
            totals = (signed(convention.difference.forward.flops), signed(convention.difference.whole.flops))
            rows.append(SheetRow((name, *totals), "bold"))
            for reason in convention.reasons:
                if not (reason.amount.forward.flops or reason.amount.whole.flops):
                    continue  # a difference in MACCs alone, which the data has
                amounts = (signed(reason.amount.forward.flops), signed(reason.amount.whole.flops))
                rows.append(SheetRow((reason.what, *amounts), "", 1))
        title = "Differences: FLOPs more (+) or fewer (-) than the matrix products of `matmul`"
        twice = "Formulas of publications count the backward pass as twice the forward pass, as for matrix products."
        notes = (twice, *_refusals(answer))
        return Sheet(title, ("", "forward", "in all"), tuple(rows), notes)

    return _fitting(make, width)


def _refusals(answer: Conventions) -> Iterator[str]:
    """Yield why books have no count of the model, grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for convention in answer.conventions:
        if convention.refused:
            reasons.setdefault(convention.refused.removeprefix(f"price book {convention.book.name} is "), []).append(
                convention.book.name
            )
    for reason, names in reasons.items():
        yield f"{', '.join(names)}: {reason}."


def _counters(answer: Conventions, width: int) -> Sheet:
    def make(written: Callable[[int], str]) -> Sheet:
        columns = (
            TableColumn("counter", attrgetter("name"), words=True),
            *words_of("unit"),
            TableColumn("with matmul", lambda counter: written(counter.by_matmul)),
            TableColumn("fused", lambda counter: written(counter.fused)),
        )
        rules = dict.fromkeys(
            f"{counter.name.partition(',')[0]} ({counter.version}): {counter.rule}." for counter in answer.counters
        )
        title = "Common counters, with attention by matmul or by the fused kernel"
        notes = (*rules, "Forward, or all: forward, backward and weight update.")
        return table(title, columns, answer.counters, notes)

    return _fitting(make, width)

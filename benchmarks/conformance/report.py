"""The results as text, a table for each counter, and as Markdown, a table for each quantity; a summary in both."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

import torch

from conformance.cases import Case
from conformance.counter import Counter
from conformance.verdict import QUANTITIES, Result
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, number

_HEADS = {"forward": "forward", "training": "both passes", "parameters": "parameters", "trained": "trained"}
_LEGEND = (
    "Differences from the truth, in MACCs (in both passes: forward and backward) and parameters; - is not offered, "
    "refused is an error. Every counter ran twice on the same module in a fresh process."
)


def text(counters: Sequence[Counter], cases: Sequence[Case], results: Sequence[Result]) -> str:
    """A table for each counter with what its differences are, and the summary."""
    sheets = [_sheet_of(counter, cases, [r for r in results if r.counter == counter.name]) for counter in counters]
    return "\n\n\n".join(sheet.text(WIDTH) for sheet in (*sheets, summary(counters, results)))


def markdown(counters: Sequence[Counter], cases: Sequence[Case], results: Sequence[Result]) -> str:
    """The summary, a table of cases by counters for each quantity, and why each counter says what it says."""
    parts = [summary(counters, results).markdown()]
    for quantity, title in QUANTITIES.items():
        cells = {(r.counter, r.case): r.verdict.cell for r in results if r.quantity == quantity}
        own = [c for c in counters if any(cells[c.name, case.name] not in ("-", "") for case in cases)]
        rows = [
            SheetRow((f"`{case.name}`", number(truth), *(cells[counter.name, case.name] for counter in own)))
            for case in cases
            if (truth := getattr(case.truth, quantity)) is not None
        ]
        columns = ("case", "truth", *(counter.name for counter in own))
        parts.append(Sheet(title[0].upper() + title[1:], columns, tuple(rows)).markdown())
    parts += [
        f"{_LEGEND} Measured with torch {torch.__version__.partition('+')[0]}.",
        "\n".join(f"- **{counter.name}**: {' '.join(_notes(counter, results))}" for counter in counters),
    ]
    return "\n\n".join(parts)


def summary(counters: Sequence[Counter], results: Sequence[Result]) -> Sheet:
    """How many of the cases that a counter offers a count of it has right."""
    rows = []
    for counter in counters:
        cells = []
        for quantity in QUANTITIES:
            kinds = [r.verdict.kind for r in results if r.counter == counter.name and r.quantity == quantity]
            asked = [kind for kind in kinds if kind not in ("not offered", "no case")]
            cells.append(f"{asked.count('right')} of {len(asked)}" if asked else "-")
        rows.append(SheetRow((counter.name, _version(counter), counter.unit.value, *cells)))
    columns = ("right", "version", "unit", *_HEADS.values())
    return Sheet("What counters have right", columns, tuple(rows), left=frozenset({0, 1, 2}))


def _version(counter: Counter) -> str:
    """The version without the date that some releases carry, which the requirements name in full."""
    return (counter.version or "").partition(".post")[0].partition("-")[0]


def _sheet_of(counter: Counter, cases: Iterable[Case], results: Sequence[Result]) -> Sheet:
    cells = {(result.case, result.quantity): result.verdict.cell for result in results}
    rows = [SheetRow((case.name, *(cells[case.name, quantity] for quantity in _HEADS))) for case in cases]
    title = f"{counter.name}, version {counter.version}, counts {counter.unit.value}s"
    return Sheet(title, ("case", *_HEADS.values()), tuple(rows), tuple(_notes(counter, results)))


def _notes(counter: Counter, results: Iterable[Result]) -> list[str]:
    """The counter's own reading, the differences that have a name, errors, and what it leaves behind."""
    reasons: dict[str, dict[str, None]] = {}
    left: dict[str, None] = {}
    for result in results:
        if result.counter != counter.name:
            continue
        left |= dict.fromkeys(result.left)
        if result.verdict.because:
            reason = textwrap.shorten(result.verdict.because, 70, placeholder=" ...")
            if result.verdict.kind == "refused":
                reason = f"refused ({reason})"
            reasons.setdefault(reason[0].upper() + reason[1:], {})[result.case] = None
    notes = [counter.reading] if counter.reading else []
    notes += [f"{reason}: {', '.join(names)}." for reason, names in reasons.items()]
    if left:
        notes.append(f"Left replaced in torch: {', '.join(left)}.")
    return notes

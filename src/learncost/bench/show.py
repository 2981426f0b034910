"""How a measurement is shown: a table a case, with what was left out, and the machine under the last one."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from html import escape
from typing import TYPE_CHECKING

from learncost.bench.machine import described
from learncost.bench.result import Bench, Case, SideFound
from learncost.bench.sides import ENGINE, FLOOR
from learncost.ledger.sheet import WIDTH, Row, Sheet, significant, styled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

COLUMNS = ("", "ms a step", "tokens/s", "of best peer", "of floor", "peak MiB", "beyond MiB", "of leanest peer")

_MIB = 2**20


class BenchTable:
    """The renderable of rich."""

    def __init__(self, found: Bench) -> None:
        self.found = found

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(_lines(self.found, options.max_width))


def bench_table(found: Bench) -> BenchTable:
    """The measurement for rich."""
    return BenchTable(found)


def as_text(found: Bench, width: int = WIDTH) -> str:
    """The measurement as plain text."""
    return "\n".join(line for line, _ in _lines(found, width))


def as_markdown(found: Bench) -> str:
    """The measurement as tables of Markdown."""
    return "\n\n".join([*(_sheet(case).markdown() for case in found.cases), *_notes(found)])


def as_html(found: Bench) -> str:
    """The measurement as tables for a notebook."""
    notes = "".join(f"<div>{escape(note)}</div>" for note in _notes(found))
    return f'<div class="learncost">{"".join(_sheet(case).html() for case in found.cases)}{notes}</div>'


def _notes(found: Bench) -> tuple[str, ...]:
    """What goes for all cases."""
    ended = ("Interrupted: not all that was asked for is here.",) if found.interrupted else ()
    return (*_METHOD, *ended, f"{described(found.machine)}.")


_METHOD = (
    "Medians over rounds in which the sides take turns; ratios are medians of those within a round, to its best peer.",
    "beyond: of the peak, what is neither the runtime after its imports nor weights and the optimizer's state. floor: "
    "the step's matrix products alone, causal ones in half, and a copy of the bytes that AdamW moves.",
)


def _lines(found: Bench, width: int) -> Iterator[tuple[str, str]]:
    for case in found.cases:
        yield from _sheet(case).lines(width)
        yield "", ""
    for note in _notes(found):
        for part in textwrap.wrap(note, width, break_on_hyphens=False):
            yield part, "dim"


def _sheet(case: Case) -> Sheet:
    subject = case.subject
    title = (
        f"{subject.model}, {subject.dtype}: {subject.batch_size:,} × {subject.seq_len:,} tokens a step, "
        f"{subject.parameters:,} parameters; {_rounds(case)}"
    )
    rows = tuple(_row(case, side) for side in case.sides.values())
    plan = case.sides[ENGINE].facts.get("plan")
    notes = [f"engine: plan {plan}."] if plan else []
    notes += [f"{side.name} is left out: {side.left_out}." for side in case.sides.values() if side.left_out]
    notes += [f"{side.name}: {side.difference}." for side in case.learners if side.difference and not side.left_out]
    return Sheet(title, COLUMNS, rows, tuple(notes))


def _rounds(case: Case) -> str:
    count = max(len(side.rounds) for side in case.sides.values())
    steps = max((len(seconds) for side in case.learners for seconds in side.rounds), default=0)
    each = f" of {steps} steps" if steps > 1 else ""
    return f"{count} round{'' if count == 1 else 's'}{each}"


def _row(case: Case, side: SideFound) -> Row:
    name, style = side.name, "bold" if side.name == ENGINE else ""
    step = "-" if side.step is None else significant(1000 * side.step)
    if name == FLOOR:
        return Row((name, step, *[""] * (len(COLUMNS) - 2)), "dim")
    memory, beyond = (None, None) if side.memory is None else (side.memory.peak, case.beyond(name))
    cells = (
        *(step, "-" if side.step is None else f"{case.subject.tokens / side.step:,.0f}"),
        *(_ratio(case.over_peers(name)), _ratio(case.over_floor(name))),
        *(_mib(memory), _mib(beyond), _ratio(case.beyond_over_peers(name))),
    )
    return Row((name, *cells), style)


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mib(value: int | None) -> str:
    return "-" if value is None else f"{value / _MIB:,.0f}"

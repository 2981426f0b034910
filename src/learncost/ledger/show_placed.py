"""How a placed step is shown: what a device sends, then its lines, each collective with why it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from learncost.equation.table import Repeat, Word
from learncost.ledger.over import RING, fields_of
from learncost.ledger.sheet import WIDTH, Row, Sheet, number, size_of
from learncost.vocabulary import entry

if TYPE_CHECKING:
    from learncost.ledger.placed import PlacedStep


def sheets(step: PlacedStep, width: int = WIDTH) -> tuple[Sheet, ...]:
    """What a device sends in all, and its table."""
    return _sent(step), _table(step)


def records(step: PlacedStep) -> Iterator[dict[str, Any]]:
    """A row a collective."""
    for collective in step.collectives:
        yield fields_of(collective)


def title(step: PlacedStep) -> str:
    """What is placed, over what."""
    plan = f", plan {step.plan}" if step.plan else ""
    over = f"over {step.over.mesh} ({number(step.over.devices)} devices)"
    return (
        f"{step.model}, {step.procedure} with {step.optimizer}, {over}: "
        f"batch_size {number(step.batch_size)} of all devices, seq_len {number(step.seq_len)}, {step.precision}{plan}"
    )


def _sent(step: PlacedStep) -> Sheet:
    over = step.over
    rows = tuple(
        Row((row.mesh_axis, row.word, number(row.runs), size_of(row.payload), size_of(row.ring))) for row in over.sent
    )
    notes = (
        f"Cut by: {', '.join(over.clauses)}.",
        f"payload: the larger of what goes in and what comes out, on one device, of all runs; sent: {RING}.",
    )
    columns = ("mesh axis", "word", "runs", "payload", "sent")
    return Sheet(title(step), columns if rows else (), rows, notes, frozenset({0, 1}), over.sentence)


def _table(step: PlacedStep) -> Sheet:
    rows: list[Row] = []
    macro = ""
    for depth, line, collective in step.statements():
        if isinstance(line, Repeat):
            rows.append(Row((str(line).partition("\n")[0], ""), depth=depth))
            continue
        if line.tag.macro != macro:
            macro = line.tag.macro
            rows.append(Row((macro.replace("_", " "), ""), "bold", depth))
        is_moved = isinstance(line, Word) and entry(line.word).kind == "collective"
        rows.append(Row((f"{'> ' if is_moved else ''}{line}", size_of(collective.payload_bytes) if collective else "")))
        rows[-1] = Row(rows[-1].cells, "", depth)
        if is_moved:
            times = f" {number(collective.times)} times." if collective and collective.times > 1 else ""
            why = line.tag.why[:1] + line.tag.why[1:]
            rows.append(Row((f"{why}.{times}", ""), "dim", depth + 2))
    notes = ("> moves arrays between devices, or takes a device's part (shard); rules: docs/many-devices.md.",)
    return Sheet("The table of every device", ("line", "payload"), tuple(rows), notes)

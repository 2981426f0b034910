"""How a placed step is shown: what a device sends, then its lines, each collective with why it is there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from learncost.equation.table import Repeat, Word
from learncost.ledger.sheet import WIDTH, Row, Sheet, number, size_of
from learncost.vocabulary import entry

if TYPE_CHECKING:
    from learncost.ledger.placed import PlacedStep

RING = "of a ring: 2(p-1)/p of an all_reduce, (p-1)/p of the others"


def sheets(step: PlacedStep, width: int = WIDTH) -> tuple[Sheet, ...]:
    """What a device sends in all, and its table."""
    return _sent(step), _table(step)


def records(step: PlacedStep) -> Iterator[dict[str, Any]]:
    """A row a collective."""
    from learncost.ledger.placed import vars_of

    for collective in step.collectives:
        yield vars_of(collective)


def title(step: PlacedStep) -> str:
    """What is placed, over what."""
    plan = f", plan {step.plan}" if step.plan else ""
    return (
        f"{step.model}, {step.procedure} with {step.optimizer}, over {step.mesh} ({number(step.devices)} devices): "
        f"batch_size {number(step.batch_size)} of all devices, seq_len {number(step.seq_len)}, {step.precision}{plan}"
    )


def _sent(step: PlacedStep) -> Sheet:
    rows = tuple(
        Row((row.mesh_axis, row.word, number(row.runs), size_of(row.payload), size_of(row.ring))) for row in step.sent
    )
    clauses = f"Cut by: {', '.join(step.clauses)}."
    total = sum(row.ring for row in step.sent)
    answer = f"Every device sends {size_of(total)} in a step, in a ring." if rows else "Nothing is sent."
    notes = (f"payload: the larger of what goes in and what comes out, on one device, of all runs; sent: {RING}.",)
    columns = ("mesh axis", "word", "runs", "payload", "sent")
    return Sheet(title(step), columns if rows else (), rows, (clauses, *notes), frozenset({0, 1}), answer)


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

"""Display of a cost ledger: a sheet that fits its width, HTML, and flat tables for Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from learncost.cost_models import NOT_DERIVED
from learncost.cost_models.books import BOOKS, every
from learncost.ops.optimizers import OF_MATRICES
from learncost.reports.rows import notes as notes_of
from learncost.reports.sheet import (
    WIDTH,
    Sheet,
    SheetRow,
    batch_text,
    fitting,
    joules_of,
    microbatches_text,
    number,
    plan_text,
    rounded,
    seconds_of,
    size_of,
)

if TYPE_CHECKING:
    from learncost.reports.memory.memory import Memory
    from learncost.reports.memory.on_device import DeviceMemory
    from learncost.reports.record import Cache, Cost, LedgerRow
    from learncost.reports.timing import Timing


def words(name: str) -> str:
    """Return the displayed form of a JSON name."""
    return name.replace("_", " ")


def tables(cost: Cost) -> tuple[Sheet, ...]:
    """Return the ledger as a flat table."""
    return (_flat(cost),)


def records(cost: Cost) -> list[dict[str, Any]]:
    """Return the ledger's rows; counts are integers."""
    rows = [row.to_dict() | {"outside_paper": row.outside_paper} for row in cost.rows]
    if not any(row.not_derived for row in cost.rows):
        return rows
    return [{"not_derived": False, "at_least": False} | row for row in rows]


def sheets(cost: Cost, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return the ledger by macro-operation with totals; columns, then digits, are dropped to fit the width. The time of
    a recorded step is another table."""
    return (_fitting(cost, width), *([cost.recorded.sheet()] if cost.recorded else []))


def _fitting(cost: Cost, width: int) -> Sheet:
    moved = ("bytes",) if any(row.bytes for row in cost.rows) else ()  # formulas know nothing of bytes
    timed = _timed(cost)
    variants = product((number, rounded), ((*moved, "share"), moved, ()))
    return fitting((_sheet(cost, (*columns, *timed), written) for written, columns in variants), width)


def _timed(cost: Cost) -> tuple[str, ...]:
    """Return the columns for a device, or for one of a mesh; the time of a recorded step is not that of lines."""
    if cost.timing is None or cost.recorded:
        return ("payload",) if cost.over else ()
    if cost.over:
        return ("time", "payload")
    return ("time", "bound") if cost.timing.joules is None else ("time", "energy", "bound")


def _timed_cells(cost: Cost, rows: Sequence[LedgerRow]) -> dict[str, str]:
    """Return the cells of time, energy and bound of rows; time of no line is only in the total."""
    if cost.timing is None:
        return _payload(cost, rows)
    bounds: dict[str, float] = {}
    for row in rows:
        bounds[row.bound] = bounds.get(row.bound, 0.0) + (row.time or 0.0)
    inside = [name.partition(".")[2] for row in rows if row.timing for name in row.timing.inside]
    if inside and all(row.time is None for row in rows):
        return {"time": "", "energy": "", "bound": f"in {inside[0]}"}
    seconds = sum(bounds.values())
    watts = cost.timing.rates.watts
    return _payload(cost, rows) | {
        "time": seconds_of(seconds),
        "energy": joules_of(seconds * watts[1]) if watts else "",
        "bound": max(bounds, key=lambda name: bounds[name], default=""),
    }


def _payload(cost: Cost, rows: Sequence[LedgerRow]) -> dict[str, str]:
    return {"payload": size_of(sum(row.payload_bytes or 0 for row in rows))} if cost.over else {}


def _cells(
    cost: Cost,
    rows: Sequence[LedgerRow],
    more: tuple[str, ...],
    written: Callable[[int], str],
    sized: Callable[[int], str] = size_of,
) -> Iterator[str]:
    """Yield the cells of the MACCs and FLOPs of rows, and of the columns that are named."""
    maccs, flops = (sum(getattr(row, field) for row in rows) for field in ("maccs", "flops"))
    at_least = AT_LEAST if any(row.unknown for row in rows) else ""
    yield from (f"{at_least}{written(count)}" for count in (maccs, flops))
    share = f"{100 * flops / cost.total.flops:.1f} %" if cost.total.flops and not cost.at_least else ""
    moved = sized(sum(row.bytes or 0 for row in rows))
    cells = {"bytes": moved, "share": share} | _timed_cells(cost, rows)
    yield from (cells[name] for name in more)


def _sheet(cost: Cost, more: tuple[str, ...], written: Callable[[int], str]) -> Sheet:
    rows: list[SheetRow] = []
    two_sided = cost.target_len is not None

    def add(name: str, parts: Sequence[LedgerRow], depth: int, style: str = "") -> None:
        label = f"{name}{_marks(parts) if depth else ''}"
        rows.append(SheetRow((label, *_cells(cost, parts, more, written)), style, depth))

    for phase, (passes, _) in cost.macro_operations.items():
        parts = [row for row in cost.rows if row.macro_operation == phase]
        if not parts:
            continue
        times = f", {passes} passes" if passes > 1 else ""
        add(words(phase) + times, parts, 0, "" if cost.by == "macro-operation" else "bold")
        if cost.by == "equation":
            for lines in _grouped(parts):
                add(_place(lines[0], two_sided), lines, 1)
                for line in lines:
                    number_of = f" ({line.equation})" if line.equation not in ("", line.line) else ""
                    add(f"{line.line}{number_of}", (line,), 2)
        elif cost.by != "macro-operation":
            kinds = ("linear", "attention", "elementwise", NOT_DERIVED, "")
            for row in sorted(parts, key=lambda row: kinds.index(row.kind)):
                add(row.kind or row.module or _layer(row, two_sided), (row,), 1)
    add("total", cost.rows, 0, "bold")
    columns = ("", "MACCs", "FLOPs", *more)
    left = frozenset({0, columns.index("bound")} if "bound" in columns else {0})
    return Sheet(title(cost), columns, tuple(rows), _notes(cost, "bytes" in more, written is rounded), left)


AT_LEAST = ">= "
"""Before a number with something in it that nobody knows."""


def _marks(rows: Sequence[LedgerRow]) -> str:
    """Return the marks that the notes explain."""
    dagger = "†" if any(row.not_derived for row in rows) else ""
    return dagger + ("*" if any(row.outside_paper for row in rows) else "")


def _layer(row: LedgerRow, two_sided: bool) -> str:
    """Return the label of a layer: its block, if any, and the number of equal layers."""
    times = f" × {row.repeat}" if row.repeat > 1 else ""
    return f"{_place(row, two_sided)}{times}"


def _place(row: LedgerRow, two_sided: bool) -> str:
    """Return a module's path or a layer's name, after that of its block if there are two kinds of blocks."""
    if row.module:
        return row.module
    return f"{row.block} {row.layer}" if two_sided and row.block else row.layer or ""


def _grouped(rows: Iterable[LedgerRow]) -> Iterable[list[LedgerRow]]:
    """Return the rows grouped by equal layers, or by module."""
    groups: dict[tuple[str | None, ...], list[LedgerRow]] = {}
    for row in rows:
        groups.setdefault((row.block, row.layer, row.module), []).append(row)
    return groups.values()


def title(cost: Cost) -> str:
    """Return the title of a step, with a remark if it does not fit the device."""
    return f"{step_title(cost)}{cost.recorded.note if cost.recorded else ''}{cost.memory.note if cost.memory else ''}"


def step_title(cost: Cost, procedure: str = "") -> str:
    """Return the title of a step: the model, the procedure, the precision, the batch and the lengths."""
    name = "standard input" if cost.model == "-" else cost.model
    step = "one step of " if cost.is_training or cost.context is not None else ""
    plan = plan_text(cost.plan, cost.timing.plan if cost.timing else "")
    over = f", on {cost.over.devices:,} devices together; counts of one device" if cost.over else ""
    if cost.over and cost.over.parallel:
        over = microbatches_text(cost.over.parallel.microbatches) + over
    return f"{name}, {procedure or f'{step}{procedure_of(cost)}'} in {cost.dtype}{plan}: {batch_of(cost)}{over}"


def procedure_of(cost: Cost) -> str:
    """Return the procedure with what is trained for: bp for dpo."""
    return f"{cost.procedure} for {cost._request.task}" if cost._request and cost._request.task else cost.procedure


def batch_of(answer: Cost | Memory) -> str:
    """Return the batch and the lengths of a step."""
    lengths = answer.batch_size, answer.seq_len, answer.target_len, answer.context
    return batch_text(*lengths, answer._sample, answer.letters, answer._length_note)


def _cache_notes(cost: Cost, cache: Cache) -> Iterator[str]:
    if cost.last_only:
        yield "The head computes the logits of the last position of each sequence only."
    if cache.state:
        in_bytes = f", {cache.state * cache.width:,} bytes in {cost.dtype}" if cache.width else ""
        yield f"State: {cache.state:,} elements a sequence{in_bytes}, after any number of tokens."
        if not cache.elements and not cache.source:
            return
    text = f"Cache: {cache.elements:,} elements a token"
    if cache.width:
        text += f", {cache.elements * cache.width:,} bytes in {cost.dtype}"
    for window, part in cache.windows:
        text += f"; {part:,} of them in layers with a window of {window:,} tokens, which cache the last {window - 1:,}"
    if cache.source:
        text += f"; {cache.source:,} elements a token of the encoder"
    tokens = cost.context if cost.context is not None else cost.target_len or cost.seq_len
    filled = f"{tokens:,} token{'' if tokens == 1 else 's'}"
    if cache.source:
        filled += f" and {cost.seq_len:,} of the encoder"
    each = f" in each of {cost.batch_size:,} sequences" if cost.batch_size > 1 else ""
    each_device = " on each device" if cost.over else ""
    each += f" in pages of {cache.page_size:,} tokens" if cache.page_size > 1 else ""
    with_state = ", the state included" if cache.state else ""
    held = f" With {filled}{each} it holds {cache.bytes:,} bytes{each_device}{with_state}." if cache.width else ""
    yield f"{text}.{held}"
    if cache.remade:
        yield "Each decode step recomputes keys and values of all cached tokens: projections are not absorbed."


def _served(cost: Cost, served: Mapping[str, float]) -> str:
    """The latency and the throughput of inference, with what they do not include."""
    (name, seconds), (_, per_second) = served.items()
    rate = f"{per_second:,.0f}" if per_second >= 1000 else f"{per_second:.3g}"
    unit, beyond = ("samples", "") if cost.cache is None else ("tokens", ", scheduling and sampling")
    sentence = f"{name.replace('_', ' ').capitalize()}: {seconds_of(seconds)}; {rate} {unit} per second"
    return f"{sentence} of the whole batch. Not included: data transfer from the host{beyond}."


def _twice(cost: Cost) -> list[str]:
    return [name for name, (passes, _) in cost.macro_operations.items() if passes > 1]


def _notes(cost: Cost, moved: bool, is_rounded: bool) -> tuple[str, ...]:
    notes = []
    if is_rounded:
        notes.append("Rounded to fit; --format json has every digit.")
    if any(row.outside_paper for row in cost.rows):
        notes.append("* includes lines that are not in the publication, priced by run.")
    notes.extend(notes_of(cost.not_derived))
    notes.append(f"{cost.parameters:,} parameters{active(cost)}{learning(cost)}. Counted: {cost.counted}.")
    whole = OF_MATRICES.get(cost.optimizer)
    optimizer = f" Optimizer: {cost.optimizer}{f' ({whole.description})' if whole else ''}." if cost.is_training else ""
    notes.append(f"{convention(cost.price_book)}.{optimizer}")
    if cost.cache:
        notes.extend(_cache_notes(cost, cost.cache))
    if moved:
        notes.append(
            "Bytes: memory traffic without kernel fusion: each op reads its inputs and writes its output once, in "
            f"{cost.dtype}."
        )
    elif any(row.bytes is None for row in cost.rows):
        notes.append(f"Bytes are not available in {cost.dtype}: the recipe decides the type of each tensor.")
    if cost.recorded:
        notes.extend(cost.recorded.notes())
    elif cost.timing:
        notes.extend(_timing_notes(cost.timing))
    if cost._instead:
        notes.append(f"The time is that of the table's lines, since {cost._instead}.")
    if cost.over:
        payload = "payload: the larger of input and output of each collective, on one device."
        notes += [cost.over.sharding, payload, cost.over.sentence]
    if of_all := cost.total_of_all_devices:
        notes.append(f"All devices together: {of_all['maccs']:,} MACCs, {of_all['flops']:,} FLOPs.")
    if cost.memory and cost.memory.batch_size:
        notes.append(_largest(cost, cost.memory))
    if cost._request and cost._request.task:
        passes, _ = cost.macro_operations["forward"]
        more = f"; {passes - 1} of {passes} forward passes are without gradients" if passes > 1 else ""
        notes.append(f"Task {cost._request.task}: the loss is counted as a cross-entropy{more}.")
    if cost.memory and cost.memory.offload:
        notes.append(cost.memory.offload)
        if cost.memory.copying and cost.timing and cost.time:
            time = cost.recorded or cost.timing.time
            step, low, high = map(seconds_of, cost.memory.with_copies(cost.time, time.low, time.high))
            notes[-1] += f" With these copies {step} a step, from {low} to {high}."
    elif cost._request and cost._request.offload and not cost.memory:
        notes.append("What is offloaded changes no count; on a published device (--on) its copies are timed.")
    if cost.memory:
        notes.extend(cost.memory.notes)
    if cost.over_time and not cost.recorded:
        from learncost.reports.mesh_time import notes as of_mesh  # imported where it is needed: start-up counts

        notes.extend(of_mesh(cost.over_time))
        if cost._built and cost._built.configuration.layer and cost._built.configuration.layer.steps:
            notes.append(
                "The time is that of the module's equations; that of its recorded step is there on one device, and "
                "under FSDP2 with --engine eager."
            )
    if cost.served:
        notes.append(_served(cost, cost.served))
    if training := cost.training:
        maccs, flops = training["maccs"], training["flops"]
        notes.append(
            f"Training on {training['tokens']:,} tokens takes {training['steps']:,} steps: "
            f"{maccs:,} MACCs, {flops:,} FLOPs."
        )
    return tuple(notes)


def _largest(cost: Cost, memory: DeviceMemory) -> str:
    """Return the note on the largest batch of inference that fits the device."""
    if cost.letters:
        return f"Up to B = {memory.batch_size:,} fits in {size_of(memory.available)}."
    batch, tokens = memory.batch_size or 0, cost.seq_len if cost.target_len is None else cost.target_len
    several = f"{batch:,} {cost._sample}" + ("s" if batch > 1 else "")
    each = f"of {tokens:,} tokens" if cost.context is None else f"after {cost.context:,} tokens"
    return f"In {size_of(memory.available)} fit{'' if batch > 1 else 's'} {several} {each}."


def _timing_notes(timing: Timing) -> Iterator[str]:
    time, rates = timing.time, timing.rates
    what, of_device = ("of compute a step", " of one device") if timing.whole else ("a step", "")
    between = f"from {seconds_of(time.low)} to {seconds_of(time.high)}"
    parts = ", ".join(f"{seconds_of(seconds)} by {name}" for name, seconds in time.bounds.items() if seconds)
    yield f"Time on {rates.name}: {seconds_of(time.total)} {what}, {between}; bound {parts}."
    how = (
        "operator by operator, like PyTorch's autograd" if rates.operators else "with this package's kernels, in place"
    )
    how += f", under {timing.plan}: attention is one kernel (--plan none: several)" if timing.plan else ""
    yield f"It runs {how}. {timing.sources}."
    if timing.joules:
        low, usual, high = timing.joules
        between = f"from {joules_of(low)} to {joules_of(high)}"
        yield f"Energy, modelled as time x power: {joules_of(usual)} a step{of_device}, {between}."


def active(cost: Cost) -> str:
    """Return the note on active parameters per token; "" if all are active."""
    if cost.active_parameters == cost.parameters:
        return ""
    return f" ({cost.active_parameters:,} active per token)"


def learning(cost: Cost) -> str:
    """Return the note on trainable parameters; "" if all are trained."""
    if cost.trained == "all":
        return ""
    share = 100 * cost.trained_parameters / cost.parameters
    return f", {cost.trained_parameters:,} trainable ({share:.3g} %): {cost.trained}"


def convention(price_book: str) -> str:
    """Return the note under every table of counts."""
    books = BOOKS if price_book in BOOKS else every()
    meaning = f" - {books[price_book].title}" if price_book in books else ""
    return f"1 MACC = 2 FLOPs; price book: {price_book}{meaning}"


def _flat(cost: Cost) -> Sheet:
    fields = {
        "layer": ("macro_operation", "layer", "block", "repeat"),
        "macro-operation": ("macro_operation",),
        "equation": ("macro_operation", "layer", "block", "repeat", "line", "equation"),
        "kind": ("macro_operation", "kind"),
        "module": ("macro_operation", "module"),
    }[cost.by]
    if cost.by == "equation" and any(row.module for row in cost.rows):
        fields = (*fields[:3], "module", *fields[3:])
    rows, stored = [], any(row.bytes is not None for row in cost.rows)
    more = (*(["bytes"] if stored else []), *_timed(cost))
    for row in cost.rows:
        values = [getattr(row, field) for field in fields]
        texts = ["" if value is None else str(value) for value in values]
        texts[0] = words(texts[0]) + _marks((row,))
        rows.append(SheetRow((*texts, *_cells(cost, (row,), more, number, number))))
    blank = ("",) * (len(fields) - 1)
    rows.append(SheetRow(("total", *blank, *_cells(cost, cost.rows, more, number, number)), "bold"))
    left = frozenset(place for place, field in enumerate(fields) if field != "repeat")
    columns = (*map(words, fields), "MACCs", "FLOPs", *more)
    return Sheet(title(cost), columns, tuple(rows), _notes(cost, stored, False), left)

"""Display of a comparison of learning procedures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from learncost.ir.errors import counted
from learncost.procedures.procedure import MACRO_OPERATIONS
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.run import left_out_text
from learncost.reports.sheet import WIDTH, Sheet, SheetRow, fitting, in_units, number, rounded, seconds_of, sizes_of
from learncost.reports.show import active, convention, learning, step_title, words

if TYPE_CHECKING:
    from learncost.reports.compare import Comparison, Crossover
    from learncost.reports.memory.on_device import DeviceMemory
    from learncost.reports.record import Amount, Cost

_JACOBIANS = (
    "The paper counts backpropagation with explicit Jacobians (of softmax and of normalization), which real "
    "implementations avoid, so PEPITA and MEMPEPITA look cheaper than they run. `run` counts executed operations."
)


def records(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Return every macro-operation by price book and procedure; counts are integers."""
    for book, costs in comparison.costs.items():
        for procedure, cost in costs.items():
            phases: dict[str, tuple[int | str, Amount]] = {**cost.macro_operations, "total": ("", cost.total)}
            for phase, (passes, amount) in phases.items():
                fields = {"price_book": book, "procedure": procedure, "macro_operation": phase, "passes": passes}
                yield fields | amount.to_dict()


def sheets(comparison: Comparison, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return macro-operations by procedure, ratios to bp by book, and crossovers."""
    return (
        fitting((_counts(comparison, power) for power in (0, 6, 9, 12, 15, 18, None)), width),
        *((_ratios(comparison),) if {*comparison.procedures} > {"bp"} else ()),
        *((_crossings(comparison),) if comparison.overtaking else ()),
    )


def _counts(comparison: Comparison, power: int | None) -> Sheet:
    """Return exact counts for the power 0, else in millions and so on with three decimals; None: rounded."""
    costs = comparison.costs[comparison.price_book]
    written = rounded if power is None else partial(in_units, power) if power else number
    rows = []
    for kind in ("MACCs", "FLOPs"):
        unit = f", 10^{power}" if power else ""
        rows.append(SheetRow((f"{kind}{unit}", *("" for _ in costs)), "dim"))
        for phase in MACRO_OPERATIONS:
            amounts = [cost.macro_operations[phase] for cost in costs.values()]
            if any(passes for passes, _ in amounts):
                values = [written(getattr(amount, kind.lower())) if passes else "-" for passes, amount in amounts]
                rows.append(SheetRow((words(phase), *values), depth=1))
        totals = [getattr(cost.total, kind.lower()) for cost in costs.values()]
        rows.append(SheetRow(("total", *map(written, totals)), "bold", 1))
    first = comparison.first
    rows += _on_device(costs)
    programs = "".join(f"; {name} {cost.recorded.program}" for name, cost in costs.items() if cost.recorded)
    heading = step_title(first, "one step") + programs + _misfits(costs)
    notes = ["Rounded; --format json has every digit."] if power != 0 else []
    notes += [f"{convention(comparison.price_book)}. {_optimizers(comparison)}."]
    notes.append(f"{first.parameters:,} parameters{active(first)}{learning(first)}. Counted: {first.counted}.")
    if first.training:
        notes.append(f"Training on {first.training['tokens']:,} tokens takes {first.training['steps']:,} steps.")
    if unknown := {name: memory.unavailable for name, memory in _memories(costs).items() if memory.unavailable}:
        notes.append(f"Peak memory, {left_out_text(unknown)}.")
    if of_lines := {name: cost._instead for name, cost in costs.items() if cost._instead}:
        notes.append(f"Time of kernels, {left_out_text(of_lines)}.")
    if (asked := first._request) and counted(asked.microbatches) != 1:
        more, split = ("", " time and") if first.recorded else (" and time", "")
        notes.append(f"Counts{more} are of the undivided batch,{split} memory of {asked.accumulate} microbatches.")
    if comparison.left_out:
        notes.append(f"{comparison.left_out}.")
    if len(costs) > 1 and not comparison.varied:
        notes.append(f"{first.model}: the sequence length is fixed, so there are no crossover lengths.")
    return Sheet(heading, ("", *costs), tuple(rows), tuple(notes))


def _on_device(costs: Mapping[str, Cost]) -> Iterator[SheetRow]:
    """Yield the rows of a device: the time and the peak memory of a step under each procedure."""
    timings = [cost.timing for cost in costs.values()]
    if not all(timings):
        return
    yield SheetRow((f"on {timings[0].rates.name}" if timings[0] else "", *("" for _ in costs)), "dim")
    yield SheetRow(("time", *(seconds_of(cost.time or 0.0) for cost in costs.values())), depth=1)
    if memories := _memories(costs):
        *peaks, _ = _sizes(memories)
        yield SheetRow(("peak memory", *peaks), depth=1)
        yield SheetRow(("  by engine", *(memory.engine or "-" for memory in memories.values())), depth=1)


def _memories(costs: Mapping[str, Cost]) -> dict[str, DeviceMemory]:
    """Return the memory of each procedure on the device; empty if that of the device is not known."""
    return {name: cost.memory for name, cost in costs.items() if cost.memory is not None}


def _sizes(memories: Mapping[str, DeviceMemory]) -> list[str]:
    """Return the peaks, and the memory of the device."""
    several = [*memories.values()]
    *peaks, available = sizes_of(*(memory.peak for memory in several), several[0].available)
    return [*(peak if memory.peak else "-" for peak, memory in zip(peaks, several, strict=True)), available]


def _misfits(costs: Mapping[str, Cost]) -> str:
    """Return the remark that procedures do not fit the device, with their peaks; empty if all do."""
    memories = _memories(costs)
    unfit = [name for name, memory in memories.items() if not memory.fits]
    return f"; does not fit in {_sizes(memories)[-1]}: {', '.join(unfit)}" if unfit else ""


def _optimizers(comparison: Comparison) -> str:
    """Return the optimizer, and the books that have another one."""
    optimizer = comparison.first.optimizer
    by_book = {name: next(iter(costs.values())).optimizer for name, costs in comparison.costs.items()}
    others = (f"; under {name} {another}" for name, another in by_book.items() if another != optimizer)
    return f"Optimizer: {optimizer}{''.join(others)}"


def _ratios(comparison: Comparison) -> Sheet:
    rows = []
    for book in comparison.costs:
        for kind in ("MACCs", "FLOPs"):
            ratios = [comparison.ratio(name, book, kind.lower()) for name in comparison.procedures]
            cells = ("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
            rows.append(SheetRow((f"{book}, {kind}", *cells)))
    notes = [_JACOBIANS] if any(find_procedure(name).compares for name in comparison.procedures) else []
    return Sheet(
        "Ratios of one step to one step of bp, by price book", ("", *comparison.procedures), tuple(rows), tuple(notes)
    )


def _crossings(comparison: Comparison) -> Sheet:
    pairs = dict.fromkeys(overtaking.procedures for overtaking in comparison.overtaking)
    rows = []
    for pair in pairs:
        of_pair = [overtaking for overtaking in comparison.overtaking if overtaking.procedures == pair]
        sentences = {_sentence(overtaking) for overtaking in of_pair}
        rows.append(SheetRow((f"{pair[0]}, {pair[1]}", sentences.pop() if len(sentences) == 1 else "")))
        if sentences:
            for overtaking in of_pair:
                label = f"{overtaking.price_book}, {overtaking.quantity.upper()[:-1]}s"
                rows.append(SheetRow((label, _sentence(overtaking)), depth=1))
    notes = []
    if comparison.positions and any(
        c.beyond_positions for overtaking in comparison.overtaking for c in overtaking.crossings
    ):
        notes.append(f"* beyond the {comparison.positions:,} positions that the model learns.")
    lengths = " = ".join(name.replace("_", "-") for name in comparison.varied)
    heading = f"The cheaper procedure at every sequence length from 1 to 10^12 ({lengths}, all else as above)"
    return Sheet(heading, ("", ""), tuple(rows), tuple(notes), frozenset({0, 1}))


def _sentence(overtaking: Crossover) -> str:
    start = overtaking.cheaper[0].procedure
    if not overtaking.crossings:
        return "never: both cost the same" if start is None else f"never: {start} is cheaper at every length"
    parts = []
    for stretch, following in zip(overtaking.cheaper, (*overtaking.cheaper[1:], None), strict=True):
        name = stretch.procedure or "both the same"
        star = "*" if stretch.beyond_positions else ""
        last = "" if following is None else following.seq_len - 1
        if following is None:
            parts.append(f"{name} from {stretch.seq_len:,}{star}")
        elif stretch.seq_len == last:
            parts.append(f"{name} at {last:,}{star}")
        else:
            parts.append(f"{name} to {last:,}")
    return ", ".join(parts)

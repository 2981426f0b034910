"""Sheets of a run's cost, of devices and of published runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from learncost.devices.figure import Figure
from learncost.ir.dataclass import replace
from learncost.program.autograd.mixers import RECURRENCES, has_recurrences
from learncost.reports.run_cost.published import PublishedRun
from learncost.reports.run_cost.record import TOTALS, RunCost
from learncost.reports.sheet import (
    WIDTH,
    Sheet,
    SheetRow,
    TableColumn,
    batch_text,
    joules_of,
    microbatches_text,
    number,
    plan_text,
    scaled,
    seconds_of,
    significant,
    size_of,
    sizes_of,
    table,
)
from learncost.reports.show import convention, procedure_of

if TYPE_CHECKING:
    from learncost.reports.search.spread import SpreadStep

_NAMES = {
    "flops": "FLOPs",
    "hardware_flops": "FLOPs as they run",
    "petaflop_s_days": "petaflop/s-days",
    "best_product": "best product",
    "tokens_per_second": "tokens per second",
    "tokens_per_second_per_device": "tokens per second, device",
    "step": "a step",
    "step_mfu": "MFU of that step",
    "modelled_step": "a step as modelled",
    "modelled_step_mfu": "MFU as modelled",
    "modelled_step_hfu": "HFU as modelled",
    "memory": "memory per device",
    "bubble": "pipeline bubble",
    "waiting": "waiting for collectives",
    "step_energy": "energy of a step",
    "device_power": "power, device only",
    "power": "power, with host",
    "mfu": "MFU",
    "published_mfu": "MFU of published runs",
    "time_at_published_mfu": "time at that MFU",
    "hfu": "HFU",
    "device_hours": "device-hours",
    "pue": "PUE",
    "co2": "CO2e",
    "price_per_hour": "price per hour",
}
_SHARES = ("mfu", "hfu", "step_mfu", "modelled_step_mfu", "modelled_step_hfu", "published_mfu")
_COUNTS = ("", "FLOP", "h", "PF/s-days", "1/s")
_REQUIRED = {"energy": "no energy without --power", "price": "no price without --price-per-hour"}
_ANSWERS = ("time", "energy", "co2", "price")


def sheets(run: RunCost, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Return the figures with intervals and labels, the requested ones in bold, and their sources below."""
    rows = []
    for name, figure in run.figures.items():
        write = _share if name in _SHARES else _written(figure.unit)
        between = _between(figure, write) if figure.interval else ""
        style = "bold" if name in _ANSWERS else ""
        rows.append(SheetRow((_named(name), write(figure.value), between, figure.label), style))
    rows += [SheetRow((_named(name), "-", "", "")) for name in run.unknown]
    columns = ("", "value", "interval", "label")
    sheets = [Sheet(_title(run), columns, tuple(rows), (), frozenset({0, 3}), answer(run))]
    if run.spread is not None and run.spread.step.parallel.stages > 1:
        sheets.append(_stages(run.spread))
    if run.utilizations:
        sheets.append(_utilizations(run))
    return (*sheets[:-1], replace(sheets[-1], notes=(*sheets[-1].notes, *_notes(run))))


def answer(run: RunCost, total: bool = True) -> str:
    """Return the rate and the utilization in one sentence, with `total` also the time, the energy and the price;
    another one says which code of recurrences is timed.
    """
    figures = run.figures
    rate, each = (plain(figures[f"tokens_per_second{of}"].value) for of in ("", "_per_device"))
    share = next((f", MFU {_share(figures[name].value)}" for name in ("mfu", "step_mfu") if name in figures), "")
    rate_text = f"{rate} tokens per second, {each} per device{share}"
    timed = run.step._built if {"step", "modelled_step"} & {*figures} else None
    code = f" {RECURRENCES}; these kernels are faster." if timed and has_recurrences(timed.table) else ""
    if not total:
        return f"{rate_text}.{code}"
    used = [_written(figures[name].unit)(figures[name].value) for name in ("energy", "price") if name in figures]
    totals = [time(figures["time"].value), *used, *(_REQUIRED[name] for name in run.unknown if name in _REQUIRED)]
    return f"{rate_text}: {', '.join(totals)}.{code}"


def _utilizations(run: RunCost) -> Sheet:
    """Return the MFU under every convention, and the HFU."""
    columns = (
        TableColumn("", lambda each: each.kind, words=True),
        TableColumn("convention", lambda each: each.convention, words=True),
        TableColumn("FLOPs per token", lambda each: number(round(each.flops_per_token))),
        TableColumn("share of the peak", lambda each: f"{significant(100 * each.value)} %"),
    )
    notes = ["A price book that prices the optimizer step counts it."]
    notes += [f"Without a count of this model: {', '.join(run.refused)}."] if run.refused else []
    return table("The utilization under every convention", columns, run.utilizations, tuple(notes))


MOST_STAGES = 16
"""Stages that are shown; of more the first ones and the last one."""


def _stages(spread: SpreadStep) -> Sheet:
    """Return the sheet of a pipeline's stages: the memory of a device, and the time of a microbatch."""
    stages = list(enumerate(spread.step.stages))
    if len(stages) > MOST_STAGES:
        stages = [*stages[: MOST_STAGES - 1], stages[-1]]
    columns = (
        TableColumn("stage", lambda each: str(each[0])),
        TableColumn("blocks", lambda each: str(each[1].layers)),
        TableColumn("weights", lambda each: size_of(each[1].static.weights + each[1].static.gradients)),
        TableColumn("states", lambda each: size_of(each[1].static.states + each[1].static.masters)),
        TableColumn("values", lambda each: size_of(each[1].activations)),
        TableColumn("in all", lambda each: size_of(each[1].peak)),
        TableColumn("forward", lambda each: seconds_of(each[1].forward)),
        TableColumn("backward", lambda each: seconds_of(each[1].backward + each[1].update)),
    )
    notes = (
        "Per device: weights with gradients, optimizer states with master weights, activations of the microbatches in "
        "flight; seconds per microbatch, with the weight update in backward; exposed communication.",
    )
    return table("The stages of the pipeline", columns, stages, notes)


def _named(name: str) -> str:
    return _NAMES.get(name, name.replace("_", " "))


def _title(run: RunCost) -> str:
    model = "standard input" if run.step.model == "-" else run.step.model
    tokens, number = int(run.figures["tokens"].value), int(run.figures["devices"].value)
    note = run.memory.note if run.memory else ""
    note += " on each device, without --mesh" if note and number > 1 and run.spread is None else ""
    step, plan = run.step, plan_text(run.step.plan, run.plan)
    batch, letters = step.batch_size, step.letters
    if run.spread is not None:
        batch = run.spread.step.tokens // (step.target_len or step.seq_len)
        letters = letters.replace(f"B = {step.batch_size:,}", f"B = {batch:,}", 1)
    a_step = batch_text(batch, step.seq_len, step.target_len, step.context, step._sample, letters, step._length_note)
    what = f"{model}, {tokens:,} tokens by {procedure_of(step)} in {run.precision}{plan}"
    if number > 1 and run.spread is None:
        return f"{what}: {a_step} a step of one device, on {number:,} x {run.device.name} without communication{note}"
    used = f"{number:,} x {run.device.name}"
    if run.spread is not None and number == 1 < (present := run.spread.step.cluster.devices):
        used = f"1 of the {present} x {run.device.name} of {run.spread.step.cluster.name} (--devices)"
    several = microbatches_text(run.spread.step.parallel.microbatches) if run.spread else ""
    return f"{what}: {a_step} a step{several}, on {used}{note}"


def _notes(run: RunCost) -> tuple[str, ...]:
    notes = [f"{convention(run.step.price_book)}. {run.step.parameters:,} parameters. Counted: {run.step.counted}."]
    if run.step.target_len is not None:
        notes.append("Tokens are the decoder's; the encoder's are additional.")
    if run.flops_by_book and not run.utilizations:
        others = ", ".join(f"{name} {f'{flops:.4g}'.replace('e+', 'e')}" for name, flops in run.flops_by_book.items())
        notes.append(f"FLOPs of the run under other price books: {others}.")
    derived = {name: figure for name, figure in run.figures.items() if figure.computed}
    notes.append("; ".join(f"{_named(name)} = {figure.source}" for name, figure in derived.items()) + ".")
    for name, figure in run.figures.items():
        if name not in derived and figure.label not in ("counted", "given"):
            notes.append(f"{_named(name)}, {figure.label}: {figure.source.removesuffix('.')}.")
    notes.append(f"Run time uses {TOTALS[run.total_by]}.")
    if run.memory and run.spread is None:
        notes += run.memory.notes
    if run.spread is not None:
        notes += _of_mesh(run.spread)
    notes += [f"{_named(name)}: {needed}." for name, needed in run.unknown.items()]
    others = "evaluation, other trials" if run.step.is_training else "scheduling, sampling, idle devices"
    notes.append(f"Not included: {others}, storage and network, hardware production.")
    return tuple(notes)


def _of_mesh(spread: SpreadStep) -> list[str]:
    """Return the notes on a mesh: whether it fits, its messages, and the assumptions."""
    from learncost.autoshard.step import ASSUMED
    from learncost.reports.search.spread import described  # only where there is a mesh: start-up counts

    step = spread.step
    needed, present = sizes_of(spread.peak, int(spread.memory))
    fits = (
        f"It fits in the {present} of a device without a reserve"
        if spread.fits
        else f"It does not fit: {needed} of {present}"
    )
    sent = [
        f"{row.op} over {row.mesh_axis} of {row.role} {size_of(int(row.sent))} by {row.algorithm} on {row.link}"
        for row in sorted(step.sent, key=lambda row: -row.sent)
        if row.sent >= 1e6
    ]
    return [
        f"{fits}: {described(step)}." + ("" if spread.fits else " `learncost search` finds meshes that fit."),
        "Sent per device and step: " + ("; ".join(sent) or "less than a megabyte") + ".",
        f"Assumed: {'; '.join(ASSUMED.values())}.",
    ]


def _between(figure: Figure, write: Callable[[float], str]) -> str:
    """Return both ends of an interval; a common unit once."""
    low, high = (write(value) for value in figure.interval or ())
    number, _, unit = low.rpartition(" ")
    return f"{number} to {high}" if number and high.endswith(f" {unit}") else f"{low} to {high}"


def plain(value: float) -> str:
    """Return four digits, or all integer digits if they are few, with separators."""
    if value >= 10**9:
        digits, _, power = f"{value:.3e}".partition("e+")
        return f"{float(digits):g}e{int(power)}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _share(value: float) -> str:
    return f"{100 * value:.3g} %"


time = partial(scaled, units=((1, "days"), (1 / 24, "hours"), (1 / 1440, "minutes"), (1 / 86_400, "s")))
energy = partial(scaled, units=((1e3, "MWh"), (1.0, "kWh"), (1e-3, "Wh")))
mass = partial(scaled, units=((1e3, "t"), (1.0, "kg"), (1e-3, "g")))


def money(value: float) -> str:
    """Return US dollars, with cents for small amounts."""
    return f"{value:,.0f} USD" if value >= 1000 else f"{value:,.2f} USD"


_UNITS: dict[str, Callable[[float], str]] = {
    "s": lambda seconds: seconds_of(seconds) or "0 s",
    "J": joules_of,
    "d": time,
    "kWh": energy,
    "kg": mass,
    "USD": money,
}


def _written(unit: str) -> Callable[[float], str]:
    """Return the function that formats a value in a unit; counts have no unit."""
    if unit in _UNITS:
        return _UNITS[unit]
    return plain if unit in _COUNTS else lambda value: f"{plain(value)} {unit}"


def published(run: PublishedRun) -> str:
    """Return a published run on one line: inputs, their product, the printed result and the source."""
    inputs = [
        ("device-hours", run.device_hours, ""),
        ("devices", run.devices, ""),
        ("days", run.days, ""),
        ("FLOPs", run.flops, ""),
        ("measured rate", run.tflops, " TFLOP/s"),
        (f"power ({run.power})", run.power_w, " W"),
        ("energy of the devices", run.device_mwh, " MWh"),
        ("PUE", run.pue, ""),
        ("carbon intensity", run.intensity, " kg/kWh"),
        ("price per hour", run.price_per_hour, " USD"),
    ]
    inputs_text = ", ".join(f"{name} {plain(value)}{unit}" for name, value, unit in inputs if value is not None)
    products = [
        (run.printed[name], figure.value / scale, unit)
        for name, figure, scale, unit in (
            ("mwh", run.energy, 1e3, "MWh"),
            ("t", run.co2, 1e3, "t CO2e"),
            ("usd", run.price, 1.0, "USD"),
        )
        if name in run.printed and figure is not None
    ]
    results = ", ".join(f"{plain(value)} {unit} (printed {plain(printed)})" for printed, value, unit in products)
    return f"{inputs_text}: {results}. {run.source}"

"""The time of a run: by measured tokens per second, by a utilization of the peak, or by steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from learncost.devices.device import Device
from learncost.devices.figure import Figure, computed
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.reports.cost import cost
from learncost.reports.request import Request
from learncost.reports.run_cost import published
from learncost.reports.run_cost.record import Utilization

if TYPE_CHECKING:
    from learncost.reports.memory.on_device import DeviceMemory
    from learncost.reports.search.spread import SpreadStep


def step_on(request: Request, measured: bool) -> tuple[Figure | str, str, Figure | None]:
    """Return the seconds of one step on one device, as `cost` models it, or why they are unknown; its plan; and the
    mean watts of a recorded step.
    """
    try:
        step = cost(request, by="macro-operation")
    except InputError as error:
        if measured:
            raise
        return error.written, "", None
    timing, recorded = step.timing, step.recorded
    assert timing is not None  # it is on a device
    if recorded is not None:
        source = f"as in `learncost cost --on`. {' '.join(recorded.notes()[:3])}"
        return Figure(recorded.seconds, "s", "modelled", source, recorded.low, recorded.high), "", recorded.watts
    source = f"as in `learncost cost --on`. Rates: {timing.rates.source}"
    return Figure(timing.seconds, "s", "modelled", source, timing.time.low, timing.time.high), timing.plan, None


def with_copies(seconds: Figure | str, memory: DeviceMemory | None) -> Figure | str:
    """Return the step with the copies of what is offloaded."""
    if isinstance(seconds, str) or memory is None or not memory.offload:
        return seconds
    value, low, high = memory.with_copies(seconds.value, seconds.low or seconds.value, seconds.high or seconds.value)
    source = f"{seconds.source}. {memory.offload.removesuffix('.')}"
    return replace(seconds, value=value, source=source, low=low, high=high)


def show_step(figures: dict[str, Figure], seconds: Figure | str, tokens: int, together: Sequence[Figure] = ()) -> None:
    """Add the number of steps and, if they are known, a step's seconds and the resulting utilization.

    together  the number of devices that run one step together, over a mesh
    """
    steps = -(-int(figures["tokens"].value) // tokens)  # as in `cost --tokens`: the last one may be partly filled
    figures["steps"] = Figure(steps, "", "arithmetic", "tokens / tokens of a step, rounded up", computed=True)
    if isinstance(seconds, str):
        return
    figures["step"] = seconds
    if "peak" in figures:
        flops = figures["flops"].value * tokens / figures["tokens"].value
        text = f"FLOPs of a step / (that step x peak{' x devices' if together else ''})"
        figures["step_mfu"] = computed("", text, [], [seconds, figures["peak"], *together], flops * 1e-12)


def up_to(most: float, share: Figure) -> Figure:
    """Return a share of the peak, with its interval bounded by the largest measured one."""
    return share if share.high is None else replace(share, high=max(share.value, min(share.high, most)))


def show_step_over(figures: dict[str, Figure], many: SpreadStep) -> None:
    """Add the step of all devices, the bytes of the fullest one, its waits, and the steps of the run."""
    from learncost.reports.search.spread import described  # is there by now

    step = many.step
    source = f"{described(step)} on {step.cluster.name}; {'; '.join((many.placed, *map(str, step.padded)))}"
    seconds = Figure(step.seconds, "s", "modelled", source, step.seconds * step.low, step.seconds * step.high)
    show_step(figures, seconds, step.tokens, [figures["devices"]])
    figures["memory"] = Figure(
        many.peak / 1e9, "GB", "counted", "of the device with the highest peak, from the sharded step"
    )
    idle = step.bubble * (step.computing + step.waiting)
    figures["bubble"] = Figure(idle, "s", "modelled", "idle time of the pipeline in a step")
    figures["waiting"] = Figure(step.waiting, "s", "modelled", "for collectives that are not overlapped with compute")


def days_over(figures: dict[str, Figure], typed: Mapping[str, Figure], device: str) -> str:
    """Add the days, and return the figure that makes them: given tokens per second, or the steps of all devices."""
    if "tokens_per_second" in typed:
        _days_of_measured(figures, typed["tokens_per_second"], device)
        _show_implied_step(figures, "mfu", "time / steps", [])
        return "tokens_per_second"
    figures["time"] = computed(
        "d", "steps x step", [figures["steps"], figures["step"]], (), 1 / published.SECONDS_A_DAY
    )
    return "mesh"


def show_attained(figures: dict[str, Figure], usual: Figure | None, most: float) -> None:
    """Add what published runs attained, and how long the run would take at that utilization."""
    if usual and "peak" in figures:
        figures["published_mfu"] = up_to(most, usual)
        at_it = [figures[name] for name in ("flops", "devices", "peak", "published_mfu")]
        figures["time_at_published_mfu"] = published.days(*at_it)


def show_rate(figures: dict[str, Figure]) -> None:
    """Add the tokens per second of all devices, and of one."""
    if "tokens_per_second" not in figures:
        figures["tokens_per_second"] = computed(
            "1/s", "tokens / time", [figures["tokens"]], [figures["time"]], 1 / published.SECONDS_A_DAY
        )
    of_all, devices = figures["tokens_per_second"], figures["devices"]
    figures["tokens_per_second_per_device"] = computed("1/s", "tokens per second / devices", [of_all], [devices])


def utilizations(
    figures: Mapping[str, Figure], book: str, by_book: Mapping[str, int], executed: Mapping[str, Figure]
) -> tuple[Utilization, ...]:
    """Return the utilization under every convention, at the measured rate: MFU by price books, HFU of what runs.

    executed  FLOPs of the run with what is recomputed, by a description
    """
    of_all = [figures[name] for name in ("time", "devices", "peak")]
    others = {name: Figure(count, "FLOP", "counted", name) for name, count in by_book.items()}
    rows = [("MFU", name, flops) for name, flops in {book: figures["flops"], **others}.items()]
    rows += [("HFU", name, flops) for name, flops in executed.items()]
    return tuple(
        Utilization(kind, name, flops.value / figures["tokens"].value, published.utilization(flops, *of_all).value)
        for kind, name, flops in rows
    )


def days_on(
    figures: dict[str, Figure],
    typed: Mapping[str, Figure],
    machine: Device,
    kind: str,
    usual: Figure | None,
    most: float,
) -> str:
    """Add the days, and return the figure that makes them: given tokens per second, a given utilization, or the steps;
    if the step is unknown, the utilization that published runs attained.

    usual  what published runs attained; None of inference
    most   the share of the peak that nothing was ever measured above
    """
    if "tokens_per_second" in typed:
        _days_of_measured(figures, typed["tokens_per_second"], f"{machine.name} in {kind}")
        _show_implied_step(figures, "mfu", "time x devices / steps", [figures["devices"]])
        return "tokens_per_second"
    if "step" in figures and not typed.keys() & {"mfu", "hfu"}:
        apart = [figures["steps"], figures["step"]], [figures["devices"]]  # each device runs some of the steps
        figures["time"] = computed("d", "steps x step / devices", *apart, 1 / published.SECONDS_A_DAY)
        show_attained(figures, usual, most)
        return "step"
    if "peak" in figures:
        _days_of_utilization(figures, typed, usual, most)
        by = "hfu" if "hfu" in typed else "mfu"
        _show_implied_step(figures, by, "time x devices / steps", [figures["devices"]])
        return by
    has = ", ".join(machine.peak_tflops) or "none"
    raise InputError(
        f"no peak rate of {machine.name} in {kind} is published (known: {has}); give --peak-tflops, or "
        "--tokens-per-second as measured"
    )


def _show_implied_step(figures: dict[str, Figure], by: str, formula: str, devices: Sequence[Figure]) -> None:
    """Add the step that a rate implies; the modelled step and its utilization become comparisons with it.

    by       mfu, or hfu where the FLOPs are those of the hardware, recomputation included
    formula  how the step follows from the time
    devices  their number where each runs steps alone, and none where all of them run one together
    """
    names = {"step": "modelled_step", "step_mfu": f"modelled_step_{by}"}
    modelled = {now: figures.pop(name) for name, now in names.items() if name in figures}
    figures["step"] = computed("s", formula, [figures["time"], *devices], [figures["steps"]], published.SECONDS_A_DAY)
    figures |= modelled


def _days_of_measured(figures: dict[str, Figure], rate: Figure, device: str) -> None:
    """Add the days of a measured number of tokens per second, and the utilization."""
    figures["tokens_per_second"] = rate
    tokens, formula = figures["tokens"], "tokens / tokens a second"
    figures["time"] = computed("d", formula, [tokens], [rate], 1 / published.SECONDS_A_DAY)
    if "peak" not in figures:
        return
    for name, flops in (("mfu", "flops"), ("hfu", "hardware_flops")):
        if flops in figures:
            figures[name] = published.utilization(figures[flops], figures["time"], figures["devices"], figures["peak"])
    if (times := figures["mfu"].value) > 1:
        raise InputError(
            f"tokens_per_second {rate.value:g} would be {times:.3g} times the peak of "
            f"{figures['devices'].value:,.0f} x {device}; it is of all devices together"
        )


def _days_of_utilization(
    figures: dict[str, Figure], typed: Mapping[str, Figure], usual: Figure | None, most: float
) -> None:
    """Add the given or usual utilization, and its days."""
    name = "hfu" if "hfu" in typed else "mfu"
    if "hardware_flops" in figures:  # what runs again is work of the device, which it does at no higher rate
        most *= figures["flops"].value / figures["hardware_flops"].value
    figures[name] = typed[name] if usual is None else typed.get(name) or up_to(most, usual)
    figures["time"] = published.days(figures["flops"], figures["devices"], figures["peak"], figures[name])
    if "hardware_flops" in figures:
        executed = [figures["mfu"], figures["hardware_flops"]]
        figures["hfu"] = computed("", "MFU x FLOPs as they run / FLOPs", executed, [figures["flops"]])

"""The cost of a whole training run on devices: days, energy, carbon, price."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from typing import TYPE_CHECKING

from learncost.cost_models.books import every
from learncost.devices import assumptions
from learncost.devices.cluster import cluster_of, cluster_with
from learncost.devices.device import RATES, Device
from learncost.devices.device import device as find_device
from learncost.devices.figure import Figure, computed
from learncost.devices.rates import calibrated
from learncost.devices.sustained import highest_share_of_peak
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, counted, shown
from learncost.ir.loop import check_known
from learncost.ir.precision import BYTES, check_stored, either, training_precision
from learncost.models.tables import check_batch
from learncost.procedures.optimizer import check_placed
from learncost.procedures.procedure import INFERENCE
from learncost.procedures.procedure import procedure as find_procedure
from learncost.reports.cost import cost
from learncost.reports.record import Cost
from learncost.reports.request import ON_DEVICE, Request, takes_request
from learncost.reports.run import check_tokens
from learncost.reports.run_cost import published, record
from learncost.reports.run_cost.duration import (
    days_on,
    days_over,
    show_attained,
    show_rate,
    show_step,
    show_step_over,
    step_on,
    utilizations,
    with_copies,
)
from learncost.reports.run_cost.record import RunCost
from learncost.timing.rates import Rates

if TYPE_CHECKING:
    from learncost.reports.search.spread import SpreadStep


CONVENTION = "matmul"
"""The default price book: utilization is of matrix products."""

# The books that are compared with the chosen one: exact published, and the formulas of the field.
OTHER_BOOKS = ("matmul", "causal-exact", "gpt3", "kaplan")

HOUR = 3600
"""Seconds of the run whose tokens are not given."""


@dataclass(frozen=True)
class RunAssumptions:
    """The quantities of a run that are given instead of assumed: utilization, rates, power, carbon and price."""

    mfu: float | str | None = None
    hfu: float | str | None = None
    tokens_per_second: float | str | None = None
    peak_tflops: float | str | None = None
    power: float | str | None = None
    pue: float | str | None = None
    country: str | None = None
    year: int | str | None = None
    carbon_intensity: float | str | None = None
    price_per_hour: float | str | None = None

    @property
    def typed(self) -> dict[str, Figure]:
        """Return the given numbers. Raises `InputError`."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        typed = {name: record.figure(name, given[name]) for name in given if name not in ("country", "year")}
        record.check_exclusive(typed, self.country, self.year)
        return typed


@takes_request(
    "model tokens on devices * mesh place placement schedule microbatch chunks plan procedure price_book dtype "
    "precision batch_size seq_len target_len optimizer dropout train train_layers lora lora_rank lora_alpha dora "
    f"engine context page_size accumulate communication_buffers offload task teacher no_sync "
    f"checkpoint_every {ON_DEVICE}",
    RunAssumptions,
    price_book=CONVENTION,
    devices=1,
)
def run_cost(request: Request, given: RunAssumptions) -> RunCost:
    """The time, energy, CO2 and price of a whole training run, or of serving, each with its source and interval.

    Parameters
    ----------
    tokens
        Tokens in the run, such as 3e11; the decoder's tokens for an encoder-decoder, and with `procedure` decode those
        that are generated, with prefill those of prompts. Required, except with
        `tokens_per_second`: the figures are then those of an hour. learncost cost has the same flag, for the number of
        operations only.
    on
        A device (`learncost list devices`), a file in TOML or JSON that describes one, here (after learncost
        calibrate), or a file of learncost calibrate `out`.
    devices
        The number of devices. Without a mesh or a cluster they share the steps, and communication is not included.
    mesh
        The devices as axes, such as pp=4,dp=8,tp=8: the time is that of a step over this mesh, with the links of the
        cluster. For a cluster (`learncost list clusters`) the default is the fastest mesh that fits.
    plan
        Memory optimizations, such as flash,fused,recompute=block (`learncost list plans`). The default is flash, for
        time and memory only.
    price_book
        The price book, which defines what counts as an operation: matmul, the convention of utilization, or another
        (`learncost list price-books`).
    dtype
        Short form of `precision`; also tf32, of which only the peak is known. The default is the first of bf16, fp16
        and fp32 that the device supports, over a mesh with fp32 master weights.
    precision
        Data type of weights, activations, gradients and optimizer states (`learncost list precisions`); the peak rate
        is that of the activations' type.
    mfu
        Model FLOPs utilization, above 0 and at most 1; it determines the time of the run. By default that is the number
        of steps times the time of a step, and its utilization is compared with that of published runs.
    hfu
        Hardware FLOPs utilization: recomputed operations (`procedure` recompute) count as work too.
    tokens_per_second
        The measured rate of all devices together, instead of a utilization. Shows the MFU under every convention.
    peak_tflops
        The peak rate of one device in TFLOP/s, if none is published.
    power
        The measured power of one device with its share of the host, in watts. The default is published or modelled.
    pue
        The power usage effectiveness of the data centre. The default is 1.1, an assumption.
    country
        The country of the data centre, as a name or three letters, for the carbon intensity of its electricity.
    year
        The year of the carbon intensity. The default is the latest known.
    carbon_intensity
        Carbon intensity in kilograms of CO2 equivalents per kWh, instead of a country's.
    batch_size
        Sequences in one step of a device, by default 1; over a mesh the global batch, by default about 4 million
        tokens.
    optimizer
        adamw, sgd or momentum, for price books that count the optimizer. The default is adamw, and sgd under the
        paper's books.

    Returns
    -------
    RunCost
        The figures.

    Raises
    ------
    InputError
        As for `lc.cost`, and if the device is unknown.

    Commands
    --------
    learncost run-cost llama-3-8b --tokens 15e12 --on H100-SXM --devices 1024
        Time, energy, CO2 and price of a whole training run.
    learncost run-cost gpt2 --tokens 1e10 --on A100-SXM-40GB --country France
        The CO2 of a training run in France.
    learncost run-cost gpt2 --on A100-SXM-40GB --devices 8 --tokens-per-second 1.2e6
        The MFU of a measured rate, under every convention.
    learncost run-cost llama-3-8b --procedure decode --context 4096 --batch-size 16 --tokens 1e9 --on H100-SXM
        The time and energy of generating tokens.
    learncost run-cost llama-3-8b --tokens 15e12 --on DGX-H100 --devices 64 --mesh dp=32,tp=2
        The same over a mesh, with its links; without --mesh the fastest mesh that fits is used.

    Examples
    --------
    >>> run = lc.run_cost("gpt3-175b", "300e9", "V100", 10_000, mfu=0.1968, power=330, pue=1.1, price_book="gpt3")
    >>> round(run.days, 2), round(run.energy_kwh)
    (14.79, 1288239)
    >>> run.figures["mfu"].label
    'given'
    """
    return run_over(request, given)


def run_over(request: Request, given: RunAssumptions, many: SpreadStep | None = None) -> RunCost:
    """Return the cost of a run; `many` is its step over a mesh, where a search has found it. Raises `InputError`."""
    from learncost.reports.memory.on_device import DeviceMemory, memory_on_device

    procedure = request.procedure
    if request.tokens is None and given.tokens_per_second is None:
        raise InputError(
            "run-cost requires the tokens of the run, for example --tokens 3e11, or --tokens-per-second as measured"
        )
    if (on := request.on) is None:
        raise InputError("run-cost requires a device: --on NAME (see `learncost list devices`)")
    number = record.devices(request.devices)
    typed = given.typed
    tokens = _tokens(request.tokens, typed)
    count = int(tokens.value)
    grid_place = _place(typed, given.country, given.year)
    group = cluster_of(on)
    over_devices = group is not None or request.mesh is not None or bool(request.place or request.placement)
    if over_devices and (flag := "offload" if request.offload else "task" if request.task else ""):
        raise InputError(f"run-cost does not time --{flag} over a mesh: give one device, or learncost memory --mesh")
    if over_devices and procedure in INFERENCE:
        raise InputError(f"run-cost serves from single devices: learncost cost --procedure {procedure} has --mesh")
    if over_devices:
        check_placed(request.optimizer)
    if over_devices and (speeds := [name for name in ("mfu", "hfu") if name in typed]):
        raise InputError(
            f"--{speeds[0]} and the mesh both set the speed: give one of them, or a device in place of a cluster"
        )
    dtype, precision = _type(request.dtype, request.precision)
    if group is not None:
        on = group.device
    machine, attained = _machine(on, dtype)
    one = replace(request, tokens=None, on=None, mesh=None, place=None, placement=None, dtype=None, precision=precision)
    if over_devices:  # operations are counted on one device, without microbatches and stages
        one = replace(one, plan=None, microbatch=None, chunks=None, schedule="1f1b", accumulate=None)
    step = cost(one, by="macro-operation")
    if step._built is not None:
        check_batch(step._built.table, step.model, step._built.configuration.layer)
        check_known(step._built.table.lines, "a run's cost")
    again = "forward again" in find_procedure(procedure, INFERENCE).moves
    model_flops = replace(one, procedure="bp" if again else procedure, plan=None, checkpoint_every=1)
    # what is run again is no part of MFU
    useful = step if model_flops == one or "hfu" in typed else cost(model_flops, by="macro-operation")
    figures = {"tokens": tokens, "flops": _flops(useful, count)}
    if useful.total != step.total:
        figures["hardware_flops"] = _flops(step, count)
    figures["petaflop_s_days"] = computed(
        "PF/s-days", "FLOPs / 10^15 / 86,400", [figures["flops"]], (), 1 / published.PETAFLOP_DAY
    )
    figures["devices"] = number
    kind = _peak(figures, typed, machine, dtype or (attained.dtype if attained else None))
    precision = precision or (training_precision(kind) if request.is_training else kind)
    most = highest_share_of_peak(machine, kind)
    tunes = any(value is not None for value in (request.train, request.train_layers, request.lora))
    usual = assumptions.mfu(machine, tunes) if request.is_training else None
    unknown, watts = dict[str, str](), None
    on_device: DeviceMemory | None
    if over_devices:
        asked = replace(request, dtype=None, precision=precision, devices=int(number.value))
        if many is None:
            from learncost.reports.search.spread import spread  # only where a mesh is asked for: start-up counts

            many = spread(asked, group or cluster_with(machine))
        on_device = DeviceMemory(int(many.memory), many.peak, many.engine)
        number = figures["devices"] = Figure(many.step.parallel.devices, "", number.label, number.source)
        show_step_over(figures, many)
        total_by, plan = days_over(figures, typed, f"{machine.name} in {kind}"), many.plan
        show_attained(figures, usual, most)
    else:
        alone = replace(one, price_book="run", on=on, precision=precision)
        on_device = memory_on_device(alone)
        seconds, plan, watts = step_on(alone, attained is not None or not request.is_training)
        seconds = with_copies(seconds, on_device)
        show_step(figures, seconds, step.tokens_per_step)
        unknown = {"modelled_step": seconds} if isinstance(seconds, str) else {}
        total_by = days_on(figures, typed, machine, kind, usual, most)
    show_rate(figures)
    figures["device_hours"] = published.device_hours(figures["time"], number)
    unknown |= _energy(figures, typed, machine, grid_place, watts) | _price(figures, typed)
    measured = total_by == "tokens_per_second"
    counted_step, books = (useful, [*every()]) if measured else (step, OTHER_BOOKS)
    others, refused = _flops_by_book(replace(one, plan=None, checkpoint_every=1), counted_step, count, books)
    run = RunCost(step, machine, kind, precision or kind, figures, unknown, others, total_by, many, on_device, plan)
    if not measured or "peak" not in figures:
        return run
    executed = {"as it runs": figures["hardware_flops"]} if "hardware_flops" in figures else {}
    if not executed and find_procedure(procedure, INFERENCE).differentiates:
        with suppress(InputError):
            recomputing = cost(replace(one, plan=None, procedure="recompute", checkpoint_every=1), by="macro-operation")
            executed = {"with gradient checkpointing": _flops(recomputing, count)}
    return replace(run, utilizations=utilizations(figures, step.price_book, others, executed), refused=refused)


def _tokens(tokens: int | str | None, typed: Mapping[str, Figure]) -> Figure:
    """Return the tokens of the run: as given, else those of an hour at the measured rate."""
    if tokens is not None:
        return Figure(check_tokens("tokens", tokens), "", "given", "--tokens")
    of_an_hour = computed("", "tokens per second x 3,600, an hour", [typed["tokens_per_second"]], (), HOUR)
    return replace(of_an_hour, value=max(1, round(of_an_hour.value)))


def _type(dtype: str | None, precision: str | None) -> tuple[str | None, str | None]:
    """Return the type whose peak rate applies, and the precision of that type, if one is named."""
    if dtype in RATES and dtype not in BYTES:
        check_stored(dtype)
        if precision is not None:
            raise InputError(f"dtype {dtype} and precision {precision} are the same setting: give one of them")
        return dtype, None
    if dtype is None and precision is None:
        return None, None
    kind = either(dtype, precision)
    return kind.values, kind.name


def _machine(on: str | Device | Rates, dtype: str | None) -> tuple[Device, Rates | None]:
    """Return the device, and its attained rates if they were measured."""
    device = calibrated(on, dtype)
    if device is None:
        return find_device(on), None
    return Device(device.name, device.source, "measured here"), device


def _flops(step: Cost, tokens: int) -> Figure:
    exact = Fraction(step.total.flops, step.tokens_per_step) * tokens
    return Figure(round(exact), "FLOP", "counted", f"{step.procedure}, price book {step.price_book}, a token x tokens")


def _peak(figures: dict[str, Figure], typed: Mapping[str, Figure], machine: Device, dtype: str | None) -> str:
    """Add the known figures of the peak, and return its data type."""
    kind = machine.trained_in if dtype is None else dtype
    if kind not in RATES:
        raise InputError(f"dtype must be one of {', '.join(RATES)}, not {shown(kind)}")
    if "peak_tflops" in typed:
        figures["peak"] = typed["peak_tflops"]
    elif kind in machine.peak_tflops:
        figures["peak"] = Figure(machine.peak_tflops[kind], "TFLOP/s", "published", f"{kind}, dense: {machine.cited}")
    if kind in machine.measured_tflops:
        best = machine.measured_tflops[kind]
        figures["best_product"] = Figure(best, "TFLOP/s", "published", f"measured matrix product: {machine.cited}")
    return kind


def _energy(
    figures: dict[str, Figure],
    typed: Mapping[str, Figure],
    machine: Device,
    place: Figure,
    recorded: Figure | None = None,
) -> dict[str, str]:
    """Add energy and CO2, or the figures that they require; `recorded` are the mean watts of a recorded step."""
    alone = None if "power" in typed else assumptions.device_power(machine)
    if alone is not None:
        figures["device_power"] = alone
    drawn = typed.get("power") or recorded or assumptions.power(machine)
    if drawn is None:
        return {"energy": f"no power of {machine.name} is published; give --power in watts"}
    figures["power"] = drawn
    if "step" in figures:
        of_all = [figures["step"], drawn] + ([figures["devices"]] if "waiting" in figures else [])
        text = "step x power with the host" + (" x devices" if "waiting" in figures else "")
        figures["step_energy"] = computed("J", f"{text}, without PUE", of_all)
    figures["pue"] = typed.get("pue") or assumptions.PUE
    figures["energy"] = published.energy(figures["device_hours"], drawn, figures["pue"])
    figures["carbon_intensity"] = place
    figures["co2"] = published.carbon(figures["energy"], place)
    return {}


def _price(figures: dict[str, Figure], typed: Mapping[str, Figure]) -> dict[str, str]:
    """Add the price, or the figure that it requires."""
    if "price_per_hour" not in typed:
        return {"price": "give --price-per-hour in USD for one device"}
    figures["price_per_hour"] = typed["price_per_hour"]
    figures["price"] = published.price(figures["device_hours"], typed["price_per_hour"])
    return {}


def _place(typed: Mapping[str, Figure], country: str | None, year: int | str | None) -> Figure:
    if "carbon_intensity" in typed:
        return typed["carbon_intensity"]
    when = None
    if year is not None:
        when = counted(year)
        if when is None:
            raise InputError(f"year must be a whole number such as 2022, not {shown(year)}")
    return published.of_the_world(when) if country is None else published.intensity(country, when)


def _flops_by_book(
    request: Request, step: Cost, tokens: int, books: Sequence[str]
) -> tuple[dict[str, int], dict[str, str]]:
    """Return the FLOPs of the run by other books, and the books that do not apply to the model with their reasons."""
    by_book, refused = dict[str, int](), dict[str, str]()
    request = replace(request, procedure=step.procedure)
    for name in books:
        if name == step.price_book:
            continue
        try:
            by_book[name] = int(_flops(cost(replace(request, price_book=name), by="macro-operation"), tokens).value)
        except InputError as error:
            refused[name] = str(error)
    return by_book, refused

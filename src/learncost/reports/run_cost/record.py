"""The cost of a whole training run on devices, as data.

What a user gives of a run is checked here, with one clear line for what cannot be.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING

from learncost.devices.device import Device
from learncost.devices.figure import Figure
from learncost.ir.dataclass import OPTIONAL, Key, Serializable, attributes, dataclass, field
from learncost.ir.errors import InputError, counted, real_number, shown
from learncost.models.sizes import check_size
from learncost.reports.record import Cost
from learncost.reports.sheet import TabularAnswer

if TYPE_CHECKING:
    from learncost.reports.memory.on_device import DeviceMemory
    from learncost.reports.search.spread import SpreadStep


# What makes the time of the run, by the name of the figure that it rests on.
TOTALS = {
    "tokens_per_second": "the given tokens per second; the step as modelled is a comparison",
    "hfu": "the given HFU; the step as modelled is a comparison",
    "mfu": "the MFU; the step as modelled is a comparison",
    "step": "the modelled steps; communication between devices is not included",
    "mesh": "the modelled step of all devices, with links, pipeline and waiting times",
}


_STEP = attributes("model procedure price_book seq_len target_len counted parameters trained_parameters")
_MESH = attributes(
    cluster="step.cluster.name",
    mesh="step.parallel.mesh",
    placement="placed",
    **{name: f"step.parallel.{name}" for name in ("schedule", "chunks", "microbatch", "microbatches")},
    memory="peak",
    split="split",
    fits="fits",
    **{name: f"step.{name}" for name in ("computing", "waiting", "bubble", "once", "sent")},
)


@dataclass(frozen=True)
class Utilization(Serializable):
    """The share of the peak under a convention.

    kind        MFU, of the model's FLOPs, or HFU, of the executed ones
    convention  the price book, or what runs
    """

    kind: str
    convention: str
    flops_per_token: float
    value: float


@dataclass(frozen=True, repr=False)
class RunCost(TabularAnswer):
    """The cost of a whole training run, figure by figure.

    Attributes
    ----------
    step
        The ledger of one step, a `Cost`.
    device
        The device.
    dtype
        The data type whose peak counts.
    precision
        The precision of the step, which may have other types: bf16-true computes in bf16.
    figures
        The figures by name, each a `Figure`, in the order in which one follows from those before it.
    unknown
        The unknown inputs of figures that have no value, by the figure's name.
    flops_by_book
        FLOPs of the whole run by other price books.
    total_by
        The figure that determines the time of the run, such as mfu.
    spread
        The step over a mesh of devices; None where none was asked for.
    memory
        The peak memory of a step on a device, and the memory of the device; None where that is not known.
    plan
        The plan of the step whose time is predicted, if it is not that of the counts.
    utilizations
        At a measured rate the MFU under every price book, and the HFU; else empty.
    refused
        The price books that do not apply to the model, each with the reason, if utilizations are shown.

    Examples
    --------
    >>> run = lc.run_cost("gpt2", "1e9", "A100-SXM-80GB", mfu=0.4)
    >>> run.flops == run.figures["flops"].value
    True
    >>> run.price_usd is None, "price" in run.unknown
    (True, True)
    """

    _sheets_module = "learncost.reports.run_cost.show"
    _schema = 1

    step: Cost = field(metadata=Key(form=_STEP, inline=True).field)
    device: Device = field(metadata=Key(form=attrgetter("name")).field)
    dtype: str
    precision: str
    figures: Mapping[str, Figure]
    unknown: Mapping[str, str] = field(default_factory=dict)
    flops_by_book: Mapping[str, int] = field(default_factory=dict, metadata=Key("flops_by_price_book").field)
    total_by: str = "mfu"
    spread: SpreadStep | None = field(default=None, metadata=Key("mesh", form=_MESH, optional=True).field)
    memory: DeviceMemory | None = field(default=None, metadata=Key(optional=True, after="total_by").field)
    plan: str = field(default="", metadata=Key(optional=True, after="precision").field)
    utilizations: tuple[Utilization, ...] = field(default=(), metadata=OPTIONAL)
    refused: Mapping[str, str] = field(default_factory=dict, metadata=OPTIONAL)

    @property
    def flops(self) -> int:
        """FLOPs of the whole run, as the price book counts them."""
        return int(self.figures["flops"].value)

    @property
    def time(self) -> float:
        """The time of the run in seconds."""
        return 86_400 * self.days

    @property
    def days(self) -> float:
        """The time of the run in days."""
        return self.figures["time"].value

    @property
    def energy_kwh(self) -> float | None:
        """Energy in kWh; None if unknown."""
        return self._value("energy")

    @property
    def co2_kg(self) -> float | None:
        """CO2e in kilograms; None if unknown."""
        return self._value("co2")

    @property
    def price_usd(self) -> float | None:
        """The price in US dollars; None without a price per hour."""
        return self._value("price")

    def answer(self, total: bool = True) -> str:
        """Return the rate and the utilization in one sentence, with `total` also the time, the energy and the price."""
        from learncost.reports.run_cost.show import answer  # is built on this module

        return answer(self, total)

    def _value(self, name: str) -> float | None:
        return self.figures[name].value if name in self.figures else None


# name: (unit, lowest, highest, what would be right); the ends are what can be, not what is usual.
_LIMITS: Mapping[str, tuple[str, float, float, str]] = {
    "mfu": ("", 1e-6, 1.0, "a share of the peak above 0 and at most 1, such as 0.4"),
    "hfu": ("", 1e-6, 1.0, "a share of the peak above 0 and at most 1, such as 0.5"),
    "tokens_per_second": ("1/s", 1e-9, 1e15, "tokens a second of all devices together, above 0"),
    "peak_tflops": ("TFLOP/s", 1e-9, 1e9, "teraFLOP/s of one device, above 0"),
    "power": ("W", 1e-6, 1e6, "watts of one device, above 0 and at most 10^6"),
    "pue": ("", 1.0, 10.0, "the energy of the data centre over that of its machines, from 1 to 10, such as 1.1"),
    "carbon_intensity": ("kg/kWh", 0.0, 2.0, "kilograms of CO2 equivalents a kWh, from 0 to 2; 429 g is 0.429"),
    "price_per_hour": ("USD/h", 0.0, 1e6, "US dollars for one device and hour, from 0 to 10^6"),
}
MOST_DEVICES = 10**8


def figure(name: str, value: object) -> Figure:
    """Return a given figure after checking its limits."""
    unit, least, most, right = _LIMITS[name]
    if not least <= (number := real_number(counted(value) or value)) <= most:
        raise InputError(f"{name} must be {right}, not {shown(value)}")
    return Figure(number, unit, "given", f"--{name.replace('_', '-')}")


def devices(value: object) -> Figure:
    """Return a number of devices."""
    return Figure(check_size("devices", value, MOST_DEVICES), "", "given", "--devices")


def check_exclusive(typed: Mapping[str, Figure], country: str | None, year: int | str | None) -> None:
    """Refuse two figures for the same quantity."""
    speeds = [name for name in ("mfu", "hfu", "tokens_per_second") if name in typed]
    if len(speeds) > 1:
        both = " and ".join(f"--{name.replace('_', '-')}" for name in speeds)
        raise InputError(f"{both} both set the speed of the run: give one of them")
    if "carbon_intensity" in typed and (country is not None or year is not None):
        raise InputError(
            "--carbon-intensity and --country (with its --year) both set the carbon intensity: give one of them"
        )

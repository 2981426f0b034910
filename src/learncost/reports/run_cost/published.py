"""Published training runs (runs.toml): their inputs, what is printed, and the same products taken again."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from learncost.devices.figure import Figure, computed
from learncost.reports.run_cost.products import carbon, energy, price

FILE = Path(__file__).with_name("runs.toml")


@dataclass(frozen=True)
class PublishedRun:
    """A run as a publication gives it; runs.toml says what each field is. None: not printed there."""

    name: str
    source: str
    device: str
    printed: Mapping[str, float] = field(hash=False)
    devices: int | None = None
    days: float | None = None
    device_hours: float | None = None
    flops: float | None = None
    tflops: float | None = None
    power_w: float | None = None
    power: str = ""
    device_mwh: float | None = None
    pue: float | None = None
    intensity: float | None = None
    price_per_hour: float | None = None

    def figure_of(self, name: str, unit: str) -> Figure:
        """One of the inputs as a published figure."""
        return Figure(float(getattr(self, name)), unit, "published", self.source)

    @property
    def hours(self) -> Figure | None:
        """Device-hours: printed, or by operations and their rate, or by days as they are rounded."""
        if self.device_hours is not None:
            return self.figure_of("device_hours", "h")
        if self.flops is not None:
            rate = self.figure_of("tflops", "TFLOP/s")
            return computed("h", "operations / rate", [self.figure_of("flops", "FLOP")], [rate], 1e-12 / 3600)
        if self.days is not None:
            return computed("h", "days x devices", [self.figure_of("days", "d"), self.figure_of("devices", "")], (), 24)
        return None

    @property
    def energy(self) -> Figure | None:
        """kWh of the data centre; None where neither watts nor kilowatt-hours are printed."""
        if self.device_mwh is not None:
            formula = "energy of the devices x PUE"
            return computed("kWh", formula, [self.figure_of("device_mwh", "MWh"), self.figure_of("pue", "")], (), 1000)
        if self.hours is None or self.power_w is None:
            return None
        return energy(self.hours, self.figure_of("power_w", "W"), self.figure_of("pue", ""))

    @property
    def co2(self) -> Figure | None:
        """Kilograms of CO2 equivalents."""
        return carbon(self.energy, self.figure_of("intensity", "kg/kWh")) if self.energy else None

    @property
    def price(self) -> Figure | None:
        """US dollars."""
        if self.price_per_hour is None or self.hours is None:
            return None
        return price(self.hours, self.figure_of("price_per_hour", "USD/h"))


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """All of them, in the order of the file."""
    return tuple(PublishedRun(**row) for row in tomllib.loads(FILE.read_text(encoding="utf-8"))["run"])

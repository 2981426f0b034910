"""Published training runs (runs.toml): their inputs, printed results, and the recomputed products.

A run's time, energy, carbon and price are products of figures; grid.csv has the carbon intensity of electricity by
country and year.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import quantiles

from learncost.devices.figure import Figure, computed
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, nearest, shown

HOURS_A_DAY, SECONDS_A_DAY = 24, 86_400
PETAFLOP_DAY = 10**15 * SECONDS_A_DAY  # operations of a petaflop/s-day


def days(flops: Figure, devices: Figure, peak: Figure, utilization: Figure) -> Figure:
    """Return the days: operations over devices x peak (teraFLOP/s) x utilization."""
    return computed(
        "d", "FLOPs / (devices x peak x utilization)", [flops], [devices, peak, utilization], 1e-12 / SECONDS_A_DAY
    )


def utilization(flops: Figure, time: Figure, devices: Figure, peak: Figure) -> Figure:
    """Return the share of the peak (teraFLOP/s) that operations in a time (days) attain."""
    formula = "FLOPs / (time x devices x peak)"
    return computed("", formula, [flops], [time, devices, peak], 1e-12 / SECONDS_A_DAY)


def device_hours(time: Figure, devices: Figure) -> Figure:
    """Return the hours of all devices."""
    return computed("h", "days x 24 x devices", [time, devices], (), HOURS_A_DAY)


def energy(hours: Figure, power: Figure, pue: Figure) -> Figure:
    """Return kWh of the data centre: device-hours x watts of a device x PUE (power usage effectiveness)."""
    return computed("kWh", "device-hours x power x PUE", [hours, power, pue], (), 1e-3)


def carbon(energy: Figure, intensity: Figure) -> Figure:
    """Return the kilograms of CO2 equivalents of kWh."""
    return computed("kg", "energy x carbon intensity", [energy, intensity])


def price(hours: Figure, per_hour: Figure) -> Figure:
    """Return the US dollars of device-hours."""
    return computed("USD", "device-hours x price", [hours, per_hour])


FILE = Path(__file__).with_name("runs.toml")


@dataclass(frozen=True)
class PublishedRun:
    """A published run; runs.toml describes each field. None: not printed."""

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
        """Return one of the inputs as a published figure."""
        return Figure(float(getattr(self, name)), unit, "published", self.source)

    @property
    def hours(self) -> Figure | None:
        """Device-hours: printed, or from operations and their rate, or from rounded days."""
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
        """kWh of the data centre; None if neither watts nor kilowatt-hours are printed."""
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
    """Return all published runs, in the order of the file."""
    return tuple(PublishedRun(**row) for row in tomllib.loads(FILE.read_text(encoding="utf-8"))["run"])


GRID_FILE = Path(__file__).with_name("grid.csv")

UNIT = "kg/kWh"
SOURCE = "Ember, by Our World in Data (CC BY 4.0)"
WORLD = "WORLD"


@dataclass(frozen=True)
class Country:
    """A country by its ISO 3166 alpha-3 code, with kilograms of CO2 equivalents per kilowatt-hour by year."""

    code: str
    name: str
    by_year: Mapping[int, float]


@cache
def countries() -> Mapping[str, Country]:
    """Return the countries of the table, and the world as WORLD."""
    lines = [line for line in GRID_FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    years = [int(year) for year in lines[0].split(",")[2:]]
    by_code = {}
    for line in lines[1:]:
        code, name, *values = line.split(",")
        by_year = {year: float(value) / 1000 for year, value in zip(years, values, strict=True) if value}
        by_code[code] = Country(code, name, by_year)
    return by_code


def intensity(name: object, year: int | None = None) -> Figure:
    """Return the mean intensity of a country in a year, by default in the last one of the table.

    `name` is the country's own or its three letters. Raises `InputError`.
    """
    country = _country(name)
    when = max(country.by_year) if year is None else year
    if when not in country.by_year:
        years = ", ".join(map(str, country.by_year))
        raise InputError(f"no carbon intensity of {country.name} in {shown(year)}: the table has {years}")
    return Figure(country.by_year[when], UNIT, "published", f"{country.name}, {when}: {SOURCE}")


def of_the_world(year: int | None = None) -> Figure:
    """The world's mean, as an assumption about a place that is not known: from the tenth of countries with the least
    to the tenth with the most, each country counted once."""
    mean = intensity(WORLD, year)
    when = max(countries()[WORLD].by_year) if year is None else year
    values = [
        country.by_year[when] for code, country in countries().items() if code != WORLD and when in country.by_year
    ]
    tenths = quantiles(values, n=10)
    source = f"{mean.source}; from the lowest tenth of countries to the highest"
    return Figure(mean.value, UNIT, "assumed", source, tenths[0], tenths[-1])


def _country(name: object) -> Country:
    for code, country in countries().items():
        if isinstance(name, str) and name.casefold() in (code.casefold(), country.name.casefold()):
            return country
    spellings = [spelling for code, country in countries().items() for spelling in (country.name, code)]
    hint = nearest(name, spellings) or "; name one as `learncost list countries` does, such as France or FRA"
    raise InputError(f"no country is called {shown(name)}{hint}")

"""The carbon intensity of electricity by country and year: grid.csv, which says where it is from and its licence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import quantiles

from learncost.devices.figure import Figure
from learncost.ir.errors import InputError, nearest, shown

FILE = Path(__file__).with_name("grid.csv")

UNIT = "kg/kWh"
SOURCE = "Ember, by Our World in Data (CC BY 4.0)"
WORLD = "WORLD"


@dataclass(frozen=True)
class Country:
    """A country by its three letters of ISO 3166; kilograms of CO2 equivalents a kilowatt-hour, by year."""

    code: str
    name: str
    by_year: Mapping[int, float]


@cache
def countries() -> Mapping[str, Country]:
    """The countries of the table, and the world as WORLD."""
    lines = [line for line in FILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    years = [int(year) for year in lines[0].split(",")[2:]]
    by_code = {}
    for line in lines[1:]:
        code, name, *values = line.split(",")
        by_year = {year: float(value) / 1000 for year, value in zip(years, values, strict=True) if value}
        by_code[code] = Country(code, name, by_year)
    return by_code


def intensity(name: object, year: int | None = None) -> Figure:
    """The mean intensity of a country in a year, by default the last that the table has of it.

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

"""The time of a step in the ledger: of every row, what bounds it, and the energy where the power is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from learncost.equation.errors import InputError
from learncost.readings.price import Book, Row
from learncost.readings.time import Rates, Time, time


@dataclass(frozen=True)
class Timing:
    """The predicted time of a step on a device, with its interval; joules where watts are known."""

    rates: Rates
    time: Time
    of_rows: Mapping[int, tuple[float, str]]  # by the identity of a priced row: seconds, and what bounds it

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self.time.total

    @property
    def joules(self) -> tuple[float, float, float] | None:
        """Of a step: lowest, expected, highest. Seconds times watts, which is modelled."""
        if self.rates.watts is None:
            return None
        seconds = (self.time.low, self.time.total, self.time.high)
        low, usual, high = (time * watts for time, watts in zip(seconds, self.rates.watts, strict=True))
        return low, usual, high

    def of(self, rows: Iterable[Row]) -> tuple[float, str]:
        """The seconds of priced rows together, and by what most of them are bound."""
        found: dict[str, float] = {}
        for row in rows:
            if id(row) in self.of_rows:
                seconds, bound = self.of_rows[id(row)]
                found[bound] = found.get(bound, 0.0) + seconds
        return sum(found.values()), max(found, key=lambda name: found[name], default="")

    def to_dict(self) -> dict[str, Any]:
        """The time as the JSON has it."""
        result: dict[str, Any] = {
            "device": self.rates.name,
            "source": self.rates.source,
            "seconds": self.time.total,
            "low": self.time.low,
            "high": self.time.high,
            "seconds_beside_lines": self.time.step,
            "seconds_by_bound": {str(name): own for name, own in self.time.bounds.items()},
        }
        if self.joules is not None:
            low, usual, high = self.joules
            result["energy"] = {"joules": usual, "low": low, "high": high, "label": "modelled"}
        return result


def timing(rows: Sequence[Row], sizes: Mapping[str, int], rates: Rates, dtype: str, book: Book) -> Timing:
    """The time of rows that a book priced on a device. Raises `InputError`, also for a book of what does not run."""
    if book.rule == "formula" or book.jacobian:
        raise InputError(f"time is of what runs, which price book {book.name} is not about: take run or matmul")
    found = time(rows, sizes, rates, dtype)
    return Timing(rates, found, {id(rows[place]): (own, str(bound)) for place, (own, bound) in found.of_rows().items()})

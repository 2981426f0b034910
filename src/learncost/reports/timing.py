"""The time of a step's rows in the ledger, their bounds, and the energy if the power is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from learncost.backends.precision import rounds_states
from learncost.cost_models import Book, PricedLine
from learncost.devices.figure import Figure, computed
from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, attributes, dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.precision import BYTES, Precision
from learncost.ir.table import Table
from learncost.passes.rematerialization import first_name
from learncost.timing.predict import Time, time
from learncost.timing.rates import Rates


@dataclass(frozen=True)
class TimedKernel:
    """Lines of one kernel. One of them has the kernel's time, the others have none.

    seconds, bound  of all its iterations, and what bounds it: compute, memory or launch
    flops, bytes    what it computes, and what it reads and writes
    main            the priced line that has it
    """

    main: PricedLine
    seconds: float
    bound: str
    flops: float
    bytes: int


@dataclass(frozen=True)
class RowTime(Serializable):
    """Seconds of priced rows and their main bound; FLOPs and bytes of their kernels.

    None seconds: they run inside the kernels of the lines `inside`, which other rows have. A roofline's dot is
    kernel_flops over seconds, at kernel_flops over kernel_bytes.
    """

    seconds: float | None
    bound: str
    flops: int = field(metadata=Key("kernel_flops").field)
    bytes: int = field(metadata=Key("kernel_bytes").field)
    inside: tuple[str, ...] = field(metadata=Key(form=lambda lines: ", ".join(lines) or None).field)


def _times(time: Time) -> dict[str, Any]:
    seconds = {"seconds": time.total, "low": time.low, "high": time.high, "seconds_beside_lines": time.step}
    return {**seconds, "seconds_by_bound": {str(name): taken for name, taken in time.bounds.items()}}


@dataclass(frozen=True)
class Timing(Serializable):
    """The predicted time of a step on a device, with its interval; joules if watts are known."""

    rates: Rates = field(metadata=Key(form=attributes(device="name", source="source"), inline=True).field)
    time: Time = field(metadata=Key(form=_times, inline=True).field)
    kernels: Mapping[int, TimedKernel] = field(metadata=HIDDEN)  # by the place of every priced row that runs in one
    shares: Mapping[int, float] = field(metadata=HIDDEN)  # and what share of the kernel's operations is the row's
    rows: Sequence[PricedLine] = field(metadata=HIDDEN)  # the rows as they run
    places: Mapping[int, int] = field(metadata=HIDDEN)  # of these, the place of the row that each is shown as
    updated: Mapping[str, int] | None = field(default=None, metadata=HIDDEN)  # see `timing`
    plan: str = field(default="", metadata=OPTIONAL)  # of the rows as they run, where counts are of no plan
    whole: tuple[float, float, float] | None = field(default=None, metadata=HIDDEN)  # over a mesh, with its waits

    @property
    def seconds(self) -> float:
        """The seconds of a step."""
        return self.time.total

    @property
    def joules(self) -> tuple[float, float, float] | None:
        """The joules of a device in a step: lowest, expected, highest; seconds times modelled watts."""
        if self.rates.watts is None:
            return None
        least, usual, most = self.rates.watts
        total, low, high = self.whole or (self.time.total, self.time.low, self.time.high)
        watts = Figure(usual, "W", "modelled", "", least, most)
        energy = computed("J", "", [Figure(total, "s", "modelled", "", low, high), watts])
        low, high = energy.interval or (energy.value, energy.value)
        return low, energy.value, high

    @property
    @Key(optional=True)
    def energy(self) -> dict[str, float | str] | None:
        """Return the joules of a step with their interval; None where no watts are known."""
        if self.joules is None:
            return None
        low, usual, high = self.joules
        return {"joules": usual, "low": low, "high": high, "label": "modelled"}

    @property
    def sources(self) -> str:
        """Return the source of the rates, after the note on recurrences that run operator by operator."""
        from learncost.program.autograd.mixers import MIXERS, RECURRENCES  # imported when used, for a fast start

        has_them = any(row.layer in MIXERS for row in self.rows)
        note = f"{RECURRENCES}; these kernels are faster. " if self.rates.operators and has_them else ""
        return f"{note}Rates: {self.rates.source}"

    def inside(self, row: PricedLine) -> str:
        """Return the line with the time of a row's kernel, if it is another row's."""
        kernel = self.kernels.get(row.place)
        return "" if kernel is None or kernel.main is row else f"{kernel.main.layer}.{kernel.main.line}"

    def of_lines(self, rows: Sequence[PricedLine]) -> RowTime:
        """Return the time of lines: a kernel's time is at its main line, its other lines have none."""
        mine = [(self.kernels[row.place], 1.0) for row in rows if row.place in self.kernels and not self.inside(row)]
        others = tuple(dict.fromkeys(filter(None, map(self.inside, rows))))
        joined_time = _together(mine, others)
        return replace(joined_time, seconds=None) if others and not mine else joined_time

    def of(self, rows: Iterable[PricedLine]) -> RowTime:
        """Return the time of all rows of a layer or kind: for shared kernels, by their share of
        the operations."""
        places = [row.place for row in rows if row.place in self.kernels]
        return _together([(self.kernels[place], self.shares[place]) for place in places])


def _together(kernels: Sequence[tuple[TimedKernel, float]], inside: tuple[str, ...] = ()) -> RowTime:
    """Return the sum of kernels or shares of them."""
    bounds: dict[str, float] = {}
    for kernel, share in kernels:
        bounds[kernel.bound] = bounds.get(kernel.bound, 0.0) + share * kernel.seconds
    return RowTime(
        sum(bounds.values()),
        max(bounds, key=lambda name: bounds[name], default=""),
        round(sum(share * kernel.flops for kernel, share in kernels)),
        round(sum(share * kernel.bytes for kernel, share in kernels)),
        inside,
    )


def timing(
    rows: Sequence[PricedLine],
    sizes: Mapping[str, int],
    rates: Rates,
    dtype: str,
    book: Book,
    updated: Mapping[str, int] | None = None,
    counted: tuple[Sequence[PricedLine], str] | None = None,
) -> Timing:
    """Return the time of priced rows on a device. Raises `InputError`, also for a book of operations that do not run.

    updated  bytes of a number of what the optimizer reads and writes, by array, where they are not those of `dtype`
    counted  the rows of the step as counted, and the plan under which it runs instead: the rows have the times of their
             kernels, with recomputation inside these
    """
    if book.rule == "formula" or book.jacobian:
        raise InputError(f"time requires --price-book run or matmul, not {book.name}")
    predicted = time(rows, sizes, rates, dtype, updated)
    shown = _shown(rows, counted[0]) if counted else {row.place: row for row in rows}
    kernels: dict[int, TimedKernel] = {}
    shares: dict[int, float] = {}
    for part in predicted.parts:
        flops = {place: int(rows[place].flops.at(sizes)) for place in part.rows}
        own = [place for place in part.rows if place in shown]
        main = part.main if part.main in shown else max(own, key=lambda place: flops[place])
        kernel = TimedKernel(shown[main], part.total, str(part.bound), part.visible * sum(flops.values()), part.moved)
        several = sum(flops[place] for place in own)
        for place in own:
            kernels[shown[place].place] = kernel
            shares[shown[place].place] = flops[place] / several if several else float(place == main)
        shown |= {place: shown[main] for place in part.rows if place not in shown}
    places = {place: row.place for place, row in shown.items()}
    return Timing(rates, predicted, kernels, shares, rows, places, updated, counted[1] if counted else "")


def optimizer_widths(
    table: Table, kind: Precision, whole: Table | None = None, holds: Mapping[str, str] = MappingProxyType({})
) -> dict[str, int]:
    """Return the bytes of an element that an optimizer reads and writes, by array; masters replace weights.

    whole, holds  the table before it was placed on a mesh, and the array of it that each part holds
    """
    whole, widths = whole or table, dict[str, int]()
    states = 1 if rounds_states(whole) else BYTES.get(kind.states, kind.value)  # none in inference
    for name in {**table.known, **holds, **dict.fromkeys(whole.weights)}:
        held = holds.get(name, name)
        value = whole.known.get(held) or table.known.get(name)  # a part of new weights, before it is gathered
        if held in whole.weights:
            widths[name] = kind.master or kind.weight
        elif value is None:
            continue
        elif value.role == "state" or (value.role == "new" and whole.known[value.of].role == "state"):
            widths[name] = states
        elif value.role == "gradient":
            widths[name] = kind.gradient
        elif value.role == "new":
            widths[name] = kind.master + kind.weight
    return widths


def _shown(rows: Sequence[PricedLine], counted: Sequence[PricedLine]) -> dict[int, PricedLine]:
    """Return the counted row of each row as it runs, by its place; those that only run again have none."""

    def key(row: PricedLine) -> Any:
        makes = row.source.makes if isinstance(row.source, Line) else ()
        return row.macro_operation, row.layer, tuple(map(first_name, makes))

    waiting: dict[Any, list[PricedLine]] = {}
    for row in reversed(counted):
        waiting.setdefault(key(row), []).append(row)
    return {row.place: waiting[key(row)].pop() for row in rows if waiting.get(key(row))}

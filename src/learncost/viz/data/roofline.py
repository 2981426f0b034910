"""Every line of a step on a device: what its kernel computes and moves, how fast, and what limits it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from learncost.ir.dataclass import Serializable, asdict, dataclass, made_of, replace
from learncost.ir.errors import InputError
from learncost.layers.active import shown_layer
from learncost.reports.record import Cost, LedgerRow
from learncost.reports.rows import lines_by


@dataclass(frozen=True)
class Point:
    """A kernel, at the line that most of it is: all its iterations in a step together.

    flops, bytes   what it computes, and what it reads and writes
    intensity      FLOPs a byte; `speed`, FLOPs a second
    limit          compute, memory or launch
    inside         the other lines that run in it, as layer.line
    """

    line: str
    layer: str
    block: str | None
    macro_operation: str
    equation: str
    repeat: int
    flops: int
    bytes: int
    seconds: float
    intensity: float
    speed: float
    limit: str
    inside: tuple[str, ...]


@dataclass(frozen=True)
class Roof:
    """A bandwidth of the device, bytes a second, and its ridge: the FLOPs a byte from which on it computes."""

    name: str
    bandwidth: float
    ridge: float


@dataclass(frozen=True)
class Roofline(Serializable):
    """The lines of a step on a device.

    model, procedure, device, dtype, batch_size, seq_len, target_len  what step it is, and where it runs
    source  what the device's rates rest on
    seconds, low, high  of the table's lines in a step, and between which it is expected
    outside  seconds of a step outside of its lines
    peak  FLOPs a second of the largest products
    roofs  the bandwidths: of memory first; of a measured device that of its caches too
    limits  seconds by what limits them
    points  one for each kernel, in the order of the step. Lines that compute nothing have intensity 0
    """

    model: str
    procedure: str
    plan: str
    device: str
    dtype: str
    batch_size: int
    seq_len: int
    target_len: int | None
    source: str
    seconds: float
    low: float
    high: float
    outside: float
    peak: float
    roofs: tuple[Roof, ...]
    limits: Mapping[str, float]
    points: tuple[Point, ...]
    letters: str = ""  # of a run of a table: its sizes as the table calls them
    of_kernels: str = ""  # the time of the step's own kernels, if they are known: the points are the table's

    @property
    def finding(self) -> str:
        """The finding of the picture in one sentence."""
        order = sorted(self.limits, key=lambda name: -self.limits[name])
        bounds = [f"{share(self.limits[name], self.seconds)} {name}-bound" for name in order if self.limits[name]]
        return ", ".join(bounds)

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each point."""
        for point in self.points:
            yield asdict(point) | {"inside": " ".join(point.inside)}


def share(part: float, total: float) -> str:
    """Return a share in percent: an integer from ten on, one digit more below."""
    percent = 100 * part / total if total else 0.0
    if 0 < percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.1f} %"


def roofline(answer: Cost) -> Roofline:
    """Return the roofline of an answer of `lc.cost(..., by="equation", on=device)`. Raises `InputError` for another."""
    timing = answer.timing
    if timing is None or answer.by != "equation" or answer._priced is None:
        raise InputError('a roofline requires lines on a device: use lc.cost(model, by="equation", on=device)')
    lines = lines_by(answer._priced, "equation", timing)  # whose rows have no time where the kernels' time is known
    rows = (replace(row, timing=timing.of_lines(of_row)) for row, (_, of_row) in zip(answer.rows, lines, strict=True))
    rates = timing.rates
    peak = max(max(grid.rates) for grid in (*rates.products.values(), rates.inner))
    memory, cache = rates.bandwidth.values[-1], max(rates.bandwidth.values)
    bandwidths = {"memory": memory} | ({"cache": cache} if cache > 1.1 * memory else {})
    return made_of(
        Roofline,
        answer,
        plan=answer.plan or timing.plan,
        device=rates.name,
        source=rates.source,
        seconds=timing.time.total,
        low=timing.time.low,
        high=timing.time.high,
        outside=timing.time.step,
        peak=peak,
        roofs=tuple(Roof(name, bandwidth, peak / bandwidth) for name, bandwidth in bandwidths.items()),
        limits={str(name): seconds for name, seconds in timing.time.bounds.items()},
        points=tuple(_points(tuple(rows))),
        of_kernels=answer.recorded.sentence if answer.recorded else "",
    )


def _points(rows: tuple[LedgerRow, ...]) -> Iterator[Point]:
    hosts = [row for row in rows if row.time]
    guests = [(row, _hosts_of(row, hosts)) for row in rows if row.timing is not None and row.time is None]
    for row in hosts:
        timing, seconds = row.timing, row.time
        assert timing is not None
        assert seconds is not None
        yield made_of(
            Point,
            row,
            layer=row.layer or "",
            flops=timing.flops,
            bytes=timing.bytes,
            seconds=seconds,
            intensity=timing.flops / timing.bytes if timing.bytes else 0.0,
            speed=timing.flops / seconds,
            limit=timing.bound,
            inside=tuple(
                f"{guest.layer}.{guest.line}" for guest, by in guests if any(kernel_row is row for kernel_row in by)
            ),
        )


def _hosts_of(guest: LedgerRow, rows: Sequence[LedgerRow]) -> list[LedgerRow]:
    """Return the rows in whose kernels a row without separate time runs: of its pass if there are such."""
    assert guest.timing is not None
    names = {(shown_layer(layer), line) for layer, _, line in (name.partition(".") for name in guest.timing.inside)}
    hosts = [row for row in rows if (row.layer, row.line) in names and row.block == guest.block]
    return [row for row in hosts if row.macro_operation == guest.macro_operation] or hosts

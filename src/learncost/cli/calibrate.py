"""`learncost calibrate`: measure the attained rates of this machine, and save them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from learncost.calibration.calibrate import calibrate as measure
from learncost.devices.calibration import Calibration, calibration_path, check_place, save
from learncost.ir.errors import InputError, counted, shown
from learncost.reports.question import question
from learncost.reports.sheet import wrapped


@question()
def calibrate(*, out: str | None = None, quick: bool = False, processes: int | str | None = None) -> str:
    """Measure the rates of single operations on this machine, in under two minutes, and save them in a file.

    learncost cost MODEL --on here then predicts the time of a step. Run nothing else meanwhile. Ctrl-C stops it without
    writing.

    Parameters
    ----------
    out
        The output file. The default is the file that `on` here reads; `on` FILE reads any other.
    quick
        Measure a coarser grid of matrix products: takes seconds and is less exact.
    processes
        Measure instead the rate of torch.distributed between this number of processes on this machine, gloo or NCCL, as
        a link for a cluster's file: inside = "link.json".

    Commands
    --------
    learncost calibrate
        Measure this machine; learncost cost gpt2 --on here then predicts the time of a step.
    learncost calibrate --quick --out mine.json
        A short measurement, into a file.
    learncost calibrate --processes 2 --out link.json
        Measure collectives between two processes, as a link.
    """
    path = calibration_path() if out is None else Path(out)
    if out is not None and (path.is_dir() or path.suffix.lower() != ".json"):
        raise InputError(f"--out must be a file that ends in .json, not {shown(out)}")
    check_place(path)
    if processes is not None:
        return _links(processes, path, out, quick)
    with _progress() as report:
        calibration = measure(report, quick)
    save(calibration, path)
    return _summary(calibration, path, "here" if out is None else out)


def _links(processes: int | str, path: Path, out: str | None, quick: bool) -> str:
    """Measure collectives between processes, and save the resulting link."""
    from learncost.calibration.links import measure as measure_links  # only where it is asked for
    from learncost.calibration.links import save as save_link

    number = counted(processes) or 0
    if not 2 <= number <= 64:
        raise InputError(f"--processes must be a whole number from 2 to 64, not {shown(processes)}")
    if out is None:
        raise InputError("--processes writes a link: say where, as in --out link.json")
    with _progress() as report:
        links = measure_links(number, quick, report)
    save_link(links, path)
    return "\n".join(
        map(wrapped, (*str(links).splitlines(), f'written to {path}; a cluster names it: inside = "{out}"'))
    )


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Yield a reporter of measurements on standard error: one changing line on a terminal, else a line each."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("calibrating") as status:
        yield lambda text: status.update(f"calibrating: {text}")


def _summary(calibration: Calibration, path: Path, on: str) -> str:
    threads = f"{calibration.threads} thread{'s' if calibration.threads > 1 else ''}"
    lines = [f"{calibration.name}, {threads}, {calibration.library}"]
    for engine, types in calibration.rates.items():
        for dtype, rates in types.items():
            best = max(max(grid.rates) for grid in rates.products.values()) / 1e9
            memory = rates.bandwidth.values[-1] / 1e9
            cached = max(rates.bandwidth.values) / 1e9
            lines.append(
                f"{engine}, {dtype}: products up to {best:,.0f} GFLOP/s, {memory:,.1f} GB/s from memory and up to "
                f"{cached:,.0f} from caches, {rates.launch * 1e6:.1f} us a call; steps are expected to take "
                f"{rates.low:.2f} to {rates.high:.2f} times as long as predicted"
            )
    return "\n".join(map(wrapped, (*lines, f"written to {path}; try: learncost cost gpt2 --on {on}")))

"""`learncost calibrate`: measure this machine, and keep what it attains."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from learncost.devices.calibration import Calibration, check_place, own_file, save
from learncost.equation.errors import InputError
from learncost.hardware.calibrate import calibrate as measure
from learncost.ledger.question import question
from learncost.ledger.sheet import wrapped
from learncost.models.wording import shown


@question()
def calibrate(*, out: str | None = None, quick: bool = False) -> str:
    """Time single operations on this machine, in under two minutes, and keep what it attains in a file.

    learncost cost MODEL --on here then predicts the time of a step. Nothing else should run meanwhile. Ctrl-C stops it,
    and nothing is written.

    Parameters
    ----------
    out
        The file to write. The default is where `on` here looks for it; `on` FILE takes any other.
    quick
        Measures a coarser grid of products, which takes seconds and is less exact.

    Commands
    --------
    learncost calibrate
        Measures this machine; learncost cost gpt2 --on here then tells the time of a step.
    learncost calibrate --quick --out mine.json
        A short measurement, into a file.
    """
    path = own_file() if out is None else Path(out)
    if out is not None and (path.is_dir() or path.suffix.lower() != ".json"):
        raise InputError(f"--out must be a file that ends in .json, not {shown(out)}")
    check_place(path)
    with _progress() as tell:
        calibration = measure(tell, quick)
    save(calibration, path)
    return _said(calibration, path, "here" if out is None else out)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """What is being measured, on standard error: one line that changes on a terminal, a line each elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("calibrating") as status:
        yield lambda text: status.update(f"calibrating: {text}")


def _said(calibration: Calibration, path: Path, on: str) -> str:
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

"""`learncost sweep MODEL`: the cost of all combinations of sizes, as comma-separated values or a Parquet file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learncost.reports.columns import check_path, write, write_csv
from learncost.reports.question import question
from learncost.reports.sweep import Sweep
from learncost.reports.sweep import sweep as compute

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0  # seconds before a bar of progress appears


@question(compute, "procedure price_book by skip_invalid optimizer dropout precision on")
def sweep(model: str, /, *, output: str | None = None, **sizes: Any) -> None:
    """The cost of one training step for all combinations of sizes; any row equals `learncost cost` of its sizes.

    One row a configuration, procedure and price book: the sizes, procedure, price_book, parameters, maccs, flops and
    exact; with a device also seconds, memory and fits. Counts are 64-bit floats; exact is false where one reached 2^53
    and may be rounded.

    Parameters
    ----------
    output
        The output file, .csv or .parquet (which needs the extra sweep). By default CSV goes to standard output.
    sizes
        Any size, including `batch_size`, `seq_len` and `target_len`: one value, a comma-separated list, or a range as
        in Python: start:stop or start:stop:step, without stop.

    Commands
    --------
    learncost sweep gpt2 --num-hidden-layers 6,12 --seq-len 256:1025:256
        Eight configurations as CSV.
    learncost sweep gpt2 --seq-len 256:1025:256 --batch-size 1,8 --on A100-SXM-40GB
        The time and the peak memory of each on a device, too.
    learncost sweep gpt2 --hidden-size 256:4097:64 --skip-invalid -o widths.csv
        Many widths, into a file.
    """
    path = None if output is None else Path(output)
    if path is not None:
        check_path(path)
    with _SweepBar() as bar:
        combinations = compute(model, progress=bar.at, **sizes)
    if path is None:
        write_csv(combinations, sys.stdout)
    else:
        write(combinations, path)
    for note in notes(combinations, path):
        print(note, file=sys.stderr)


def notes(combinations: Sweep, output: Path | None) -> list[str]:
    """Return the notes about the rows."""
    result = []
    if output is not None:
        result.append(f"{len(combinations):,} rows of {combinations.configurations:,} configurations in {output}")
    if combinations.left_out:
        result.append(combinations.left_out)
    if combinations.unfit:
        result.append(f"rows that do not fit the device, or whose memory is not known: {combinations.unfit:,}")
    if combinations.dropped:
        result.append(f"invalid combinations left out: {combinations.dropped:,}")
    if combinations.inexact:
        result.append(f"rows with counts from 2^53 on, which may be rounded (exact is false): {combinations.inexact:,}")
    return result


class _SweepBar:
    """Progress on standard error, shown on a terminal."""

    def __init__(self) -> None:
        self.start = time.monotonic()
        self.shown: Progress | None = None
        self.task: Any = None

    def __enter__(self) -> _SweepBar:
        return self

    def __exit__(self, *_: object) -> None:
        if self.shown is not None:
            self.shown.stop()

    @property
    def at(self) -> Callable[[int, int], None] | None:
        return self._at if sys.stderr.isatty() else None

    def _at(self, done: int, count: int) -> None:
        if self.shown is None:
            if time.monotonic() - self.start < PATIENCE:
                return
            from rich.console import Console
            from rich.progress import Progress

            self.shown = Progress(console=Console(stderr=True), transient=True)
            self.shown.start()
            self.task = self.shown.add_task("configurations", total=count)
        self.shown.update(self.task, completed=done)

"""`learncost sweep MODEL`: the cost of all combinations of sizes, as comma-separated values or a Parquet file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learncost.reports.columns import check_path
from learncost.reports.question import question
from learncost.reports.sweep import Sweep
from learncost.reports.sweep import sweep as compute


@question(compute, "procedure price_book by skip_invalid optimizer dropout precision on")
def sweep(model: str, /, *, output: str | None = None, **sizes: Any) -> None:
    """The cost of one training step for all combinations of sizes; any row equals `learncost cost` of its sizes.

    A row for each configuration, procedure and price book: the sizes, procedure, price_book, parameters, maccs, flops
    and exact; with a device also seconds, memory and fits. Counts are 64-bit floats; exact is false where one reached
    2^53 and may be rounded.

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
    with _bar() as progress:
        combinations = compute(model, progress=progress, **sizes)
    if path is None:
        combinations.write_csv(sys.stdout)
    else:
        combinations.write(path)
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


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function that shows on a terminal how many configurations are done, of all."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("configurations", total=None)
        yield lambda done, count: progress.update(task, completed=done, total=count)

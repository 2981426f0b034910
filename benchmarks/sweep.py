"""A million configurations of gpt2, five sizes varied, all procedures: seconds of one core for each price book.

    python benchmarks/sweep.py

Computing is everything from the arrays of sizes to the columns of counts, the pricing of the tables included. Writing
is apart.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

from measure import show

import learncost as lc

SIZES = {
    "batch_size": range(1, 11),
    "seq_len": range(64, 704, 64),
    "hidden_size": range(96, 1056, 96),
    "num_hidden_layers": range(1, 101),
    "vocab_size": range(10_000, 60_000, 5_000),
}
REPEATS = 5


def main() -> None:
    """Print the times; with a row of each series checked against `cost`."""
    on_one_core()
    rows = []
    for price_book in ("run", "paper", "run,paper"):
        times = []
        for _ in range(REPEATS):
            start, wall = time.process_time(), time.perf_counter()
            found = lc.sweep("gpt2", "all", price_book, **SIZES)
            times.append((time.process_time() - start, time.perf_counter() - wall))
        assert found.configurations == 10**6
        check(found)
        processor, wall_times = zip(*times, strict=True)
        text = (f"{statistics.median(processor):.2f}", f"{min(processor):.2f}", f"{statistics.median(wall_times):.2f}")
        rows.append((f"compute {price_book}, {len(found):,} rows", *text))
    suffixes = (".csv", ".parquet") if find_spec("polars") else ()
    with tempfile.TemporaryDirectory() as folder:
        for suffix in suffixes:
            path = Path(folder) / f"sweep{suffix}"
            start, wall = time.process_time(), time.perf_counter()
            found.write(path)
            text = f"{time.process_time() - start:.2f}"
            size = f"{path.stat().st_size / 1e6:.0f} MB"
            rows.append((f"write {suffix}, {size}", text, text, f"{time.perf_counter() - wall:.2f}"))
    title = "A million configurations of gpt2, bp, recompute, pepita and mempepita"
    show(title, ("", "CPU s, median", "best", "wall s"), rows)


def on_one_core() -> None:
    """The libraries that could take more threads are told before they are imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ.setdefault(name, "1")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def check(found: lc.Sweep) -> None:
    """One row of each series equals the ledger."""
    for place, series in enumerate(found.series):
        i = (place + 1) * 99_991 % found.configurations
        row = {name: int(column[i]) for name, column in found.sizes.items()}
        total = lc.cost("gpt2", series.procedure, series.price_book, **row).total
        if (total.maccs, total.flops) != (int(series.maccs[i]), int(series.flops[i])):
            sys.exit(f"row {i} of {series.procedure}, {series.price_book} differs from the ledger")


if __name__ == "__main__":
    main()

"""How long `learncost cost gpt3-175b` spends in each of its stages: CPU milliseconds, nothing remembered between runs.

    python benchmarks/reading.py [MODEL]

The reading itself is the last two lines together: pricing every line of the step as polynomials, and evaluating them.
"""

from __future__ import annotations

import functools
import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from measure import milliseconds, show

from learncost.cost_models.books import book, price
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.procedures.procedure import procedure
from learncost.procedures.step import step
from learncost.reports.rows import ledger

REPEATS = 41


def forget() -> None:
    """Empty every cache of the package."""
    for found in gc.get_objects():
        if type(found) is functools._lru_cache_wrapper and str(found.__module__).startswith("learncost"):
            found.cache_clear()


def stages(model: str, price_book: str) -> dict[str, float]:
    """One run, stage by stage."""
    times: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        times[name] = time.process_time() - start
        return result

    chosen = book(price_book)
    configuration = timed("configuration", lambda: configure(model))
    built = timed("tables of the model", lambda: build(configuration))
    table = timed("derive, procedure, optimizer", lambda: step(built, "bp", "sgd", chosen.jacobian))
    rows = timed("price", lambda: price(table, {}, chosen).rows)
    axes = run_sizes(built, 1, None, None)
    timed(
        "evaluate",
        lambda: ledger(built, procedure("bp"), rows, axes, "layer", "fp32", None, "sgd", price_book),
    )
    times["price and evaluate"] = times["price"] + times["evaluate"]
    return times


def main() -> None:
    """Print a table for the price books run, matmul and paper."""
    model = sys.argv[1] if len(sys.argv) > 1 else "gpt3-175b"
    for price_book in ("run", "matmul", "paper"):
        runs = []
        gc.disable()
        for _ in range(REPEATS + 1):
            forget()
            runs.append(stages(model, price_book))
        gc.enable()
        rows = [(name, *milliseconds([run[name] for run in runs[1:]])) for name in runs[0]]
        show(f"cost {model}, bp, price book {price_book}", ("stage", "median ms", "best ms"), rows)
        print()


if __name__ == "__main__":
    main()

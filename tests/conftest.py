"""What holds for every test."""

from __future__ import annotations

import gc
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

# Two workers share two cores: threads of theirs that wait for each other took a third of the processor's time. It must
# stand before NumPy and PyTorch are loaded; what a test starts inherits it.
for library in ("OMP", "OPENBLAS", "MKL"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# What is compiled is kept, the package and the rewritten assertions; git ignores it. The processes that tests start
# read it and write none: one whose files may not grow would leave half of one behind.
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
sys.dont_write_bytecode = False

# Tables are many small objects without cycles: a search for cycles after every 700 new ones took a seventh of the time,
# and one after every 100,000 still a twentieth.
gc.set_threshold(1_000_000, 20, 20)

# What XLA has compiled is kept for other tests, processes and runs: a training that is resumed compiles its step again.
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "learncost"
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE / "xla-of-tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

# Optimizing every kernel fully takes longer than running it on arrays of a few numbers; `optimized` is what users have.
os.environ.setdefault("CFLAGS", "-O1")


def pytest_configure(config: pytest.Config) -> None:
    """By default XLA optimizes nothing, which halves the time; `-m slow` compiles with the flags that users have."""
    if config.option.markexpr == "not slow":
        os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")


@pytest.fixture
def optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are compiled with the flags that users have."""
    monkeypatch.delenv("CFLAGS")


@pytest.fixture
def heard_signals() -> Iterator[None]:
    """SIGINT and SIGHUP are handled as on a terminal, also where the tests run in the background or under nohup."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True, scope="module")
def _looked_through_once() -> None:
    """What the files before have left (tables in caches, libraries) is not walked again by every collection.

    Only what is young is looked through first: to walk all that a file has left took a second between two files.
    """
    gc.collect(0)
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Pytest collects once more at the end: what all tests have left is not walked again."""
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of a test marked `one_in`, the first case and every so-many-th after it run by default; the others are slow.

    LEARNCOST_TEST_SHARE=0.05 draws that share of all collected cases by LEARNCOST_TEST_SEED.
    """
    if (share := float(os.environ.get("LEARNCOST_TEST_SHARE", "1"))) < 1:
        seed, whole = os.environ.get("LEARNCOST_TEST_SEED", ""), [*items]
        items[:] = [item for item in whole if random.Random(f"{seed} {item.nodeid}").random() < share]
        config.hook.pytest_deselected(items=[item for item in whole if item not in items])
    cases: Counter[str] = Counter()
    for item in items:
        identical = item.get_closest_marker("one_in")
        if identical is None or item.get_closest_marker("slow"):
            continue
        test = item.nodeid.partition("[")[0]
        if cases[test] % identical.kwargs["every"]:
            item.add_marker(pytest.mark.slow)
        cases[test] += 1

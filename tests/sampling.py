"""Which of many alike cases run by default; the others are marked `slow`, and `pytest -m slow` runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable
from typing import Any

import pytest

from learncost.layers.layer import shipped, shipped_layer


def sampled(
    cases: Iterable[Any], every: int, kind: Callable[[Any], Hashable] = lambda case: None, start: int = 0
) -> list[Any]:
    """All cases for a test's parameters; by default run, of each kind, the `start`-th and each `every`-th after it."""
    seen: Counter[Hashable] = Counter()
    found = []
    for case in cases:
        own = kind(case)
        values = case if isinstance(case, tuple) else (case,)
        found.append(case if seen[own] % every == start else pytest.param(*values, marks=pytest.mark.slow))
        seen[own] += 1
    return found


def _learns(name: str) -> bool:
    """Whether a layer has an input or a weight with a gradient: layers that make positions have none."""
    table = shipped_layer(name).table
    return bool({*table.inputs, *table.weights} - table.indices - table.constants)


LEARNING = [name for name in shipped() if _learns(name)]
"""The layers that come with the package and have a gradient."""

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
    counts: Counter[Hashable] = Counter()
    marked = []
    for case in cases:
        case_kind = kind(case)
        values = case if isinstance(case, tuple) else (case,)
        marked.append(case if counts[case_kind] % every == start else pytest.param(*values, marks=pytest.mark.slow))
        counts[case_kind] += 1
    return marked


def _learns(name: str) -> bool:
    """Whether a layer has an input or a weight with a gradient: layers that make positions have none."""
    table = shipped_layer(name).table
    return bool({*table.inputs, *table.weights} - table.indices - table.constants)


LEARNING = [name for name in shipped() if _learns(name)]
"""The layers that come with the package and have a gradient."""

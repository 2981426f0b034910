"""What holds for every test."""

from __future__ import annotations

import gc

import pytest


@pytest.fixture(autouse=True, scope="module")
def _looked_through_once() -> None:
    """What the files before have left (tables in caches, libraries) is not walked again by every collection."""
    gc.collect()
    gc.freeze()

"""Disable the argument checks of torch.distributions, which compare numbers that an export does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchecked() -> Iterator[None]:
    """Disable argument validation of distributions inside, as `python -O` does."""
    from torch.distributions import Distribution

    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checks)

"""torch.distributions holds what it is given to what it may be by numbers, which an export does not have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def unchecked() -> Iterator[None]:
    """Inside, distributions compute what they compute and check nothing, as under `python -O`."""
    from torch.distributions import Distribution

    checks = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(checks)

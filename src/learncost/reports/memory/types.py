"""Bytes as text, in both directions, and the bytes of a token index."""

from __future__ import annotations

from learncost.ir.errors import BYTES, InputError, counted, shown
from learncost.reports.request import Request
from learncost.reports.sheet import size_of, sizes_of

INDEX = 4
"""Bytes of a token's number, whatever the type of the rest: int32."""

RESERVED = {"graph": (1.16, 2.2), "eager": (1.12, 1.55)}
"""The range of bytes with allocators, NCCL and contexts, over those that an engine predicts for a device of several: 46
and 46 of 51 published rows lie in it.

BigScience's tr11-176B (9e64edec) and torchtitan (b5bcd76c) on A100s and H100s; benchmarks/clusters.py prints each.
"""


def without_reserve(ram: int, engines: str) -> int:
    """Return the bytes of a device of several that arrays may use, where the least that was reserved is kept free."""
    return int(ram / max(RESERVED.get(name.strip(), (1.0, 1.0))[0] for name in engines.split(",")))


def bytes_of(name: str, text: object) -> int:
    """Return the bytes of a text such as 8G, 8GB, 24GiB, 16 GB or 1e9. Raises `InputError`."""
    number = counted(text.strip() if isinstance(text, str) else text, BYTES) or 0
    if not 1 <= number < 10**18:
        raise InputError(f"{name} must be bytes such as 8GB, 256KiB or 1e9, not {shown(text)}")
    return number


def communication_buffers_of(request: Request) -> int:
    """Return the bytes of communication buffers of a request. Raises `InputError`."""
    given = request.communication_buffers
    return 0 if given is None else bytes_of("communication_buffers", given)


def bytes_text(count: int) -> str:
    """Return bytes in decimal units, and also in binary units if only those are round."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count % (size // 2**6) == 0 and count >= size and count % 10**3:
            return f"{size_of(count)} ({count / size:g} {unit})"
    return size_of(count)


def excess(peak: int, available: float, unfit: str = "", is_bound: bool = False, where: str = "") -> str:
    """Return the remark of a first line that a peak exceeds the available memory; empty if it does not.

    unfit     why the arrays do not fit the regions of the memory, though they are small enough together
    is_bound  whether the peak is only a lower bound
    where     whose memory it is, where that is not plain
    """
    if peak > available:
        needed, present = sizes_of(peak, int(available))
        return f"; does not fit: {'at least ' if is_bound else ''}{needed} of {present}{where}"
    return f"; does not fit: {unfit}" if unfit else ""

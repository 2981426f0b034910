"""Zigzag order of an axis, in which every shard has one chunk of its beginning and one of its end.

Of 2 p chunks of an axis, the i-th of p devices has the i-th and the i-th last. Under a causal condition all devices
have the same number of pairs, where with p contiguous shards the last device has the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from learncost.ir.polynomial import base, whole


def position(place: Any, size: Any, devices: Any) -> Any:
    """Return the position that an index has in zigzag order; elementwise for arrays."""
    part, stretch = size // devices, size // (2 * devices)
    device, rest = place // part, place % part
    is_late = rest >= stretch
    return rest + device * stretch + is_late * (2 * devices - 2 - 2 * device) * stretch


def devices_of(axis: str, zigzag: Mapping[str, tuple[str, ...]] | None, sizes: Mapping[str, int]) -> int:
    """Return the number of devices of an axis in zigzag order, also for a shard of it; 0 where it is in plain order."""
    over = (zigzag or {}).get(base(whole(axis)))
    return prod(sizes[name] for name in over) if over else 0


def devices_name(axis: str) -> str:
    """Return the key in `sizes` of the number of devices of an axis in zigzag order."""
    return f"{base(whole(axis))}:zigzag"

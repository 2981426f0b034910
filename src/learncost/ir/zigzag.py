"""Zigzag: an axis in another order, so that every device has a stretch of its beginning and one of its end.

Of 2 p stretches of an axis the i-th of p devices has the i-th and the i-th last. Under a causal condition all devices
see as many pairs, where of p stretches one after another the last device sees the most.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from learncost.ir.polynomial import base, whole


def position(place: Any, size: Any, devices: Any) -> Any:
    """Which position of an axis stands at a place of it in zigzag; of arrays element by element."""
    part, stretch = size // devices, size // (2 * devices)
    device, rest = place // part, place % part
    is_late = rest >= stretch
    return rest + device * stretch + is_late * (2 * devices - 2 - 2 * device) * stretch


def devices_of(axis: str, zigzag: Mapping[str, tuple[str, ...]] | None, sizes: Mapping[str, int]) -> int:
    """Over how many devices an axis, or the one that it is a part of, stands in zigzag; 0 where it does not."""
    over = (zigzag or {}).get(base(whole(axis)))
    return prod(sizes[name] for name in over) if over else 0


def devices_name(axis: str) -> str:
    """What sizes call the number of devices over which an axis stands in zigzag."""
    return f"{base(whole(axis))}:zigzag"

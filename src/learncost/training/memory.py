"""The memory of this process, as the operating system counts it."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")


def anonymous() -> int:
    """Bytes in memory that no file backs: arrays, not mapped tokens and libraries. 0 where the system does not say."""
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = next((line.split() for line in lines if line.startswith("RssAnon:")), ["", "0"])
    return int(found[1]) * 1024

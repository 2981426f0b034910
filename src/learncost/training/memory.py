"""The memory of this process, as the operating system counts it."""

from __future__ import annotations

import sys
from pathlib import Path

_STATUS = Path("/proc/self/status")


def resident() -> int:
    """Bytes that the process has in memory now; 0 where the system does not say (elsewhere than on Linux)."""
    return _field("VmRSS")


def peak() -> int:
    """The most bytes that the process ever had in memory."""
    found = _field("VmHWM")
    if found:
        return found
    try:
        import resource
    except ImportError:
        return 0
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else used * 1024


def _field(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    found = next((line.split() for line in lines if line.startswith(f"{name}:")), ["", "0"])
    return int(found[1]) * 1024

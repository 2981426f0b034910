"""The memory of this process, as counted by the operating system."""

from __future__ import annotations

import sys
from pathlib import Path


def highest() -> int:
    """Return the peak memory of this process in bytes (VmHWM on Linux)."""
    most = _status("VmHWM")
    if most is None:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most


def reset_peak() -> None:
    """Reset the peak, if supported (clear_refs in proc(5)), so that initialization is not counted."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _status(name: str) -> int | None:
    """Return the bytes of a line of /proc/self/status (proc(5)); None if missing."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)

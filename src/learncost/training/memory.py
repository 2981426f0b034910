"""The memory of this process, as the operating system counts it."""

from __future__ import annotations

import sys
from pathlib import Path


def highest() -> int:
    """The most memory that this process has had, in bytes (VmHWM on Linux)."""
    most = _status("VmHWM")
    if most is None:
        import resource

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return most


def forget_highest() -> None:
    """Count from now on, where the system can (clear_refs in proc(5)): drawing the weights is not the steps' memory."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return


def _status(name: str) -> int | None:
    """The bytes of a line of /proc/self/status (proc(5)); None where there is none."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), None)

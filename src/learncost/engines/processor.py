"""The processor of this machine, as Linux says it in /proc/cpuinfo (proc(5)), or else Python's platform."""

from __future__ import annotations

import platform
from pathlib import Path


def cpu_field(key: str) -> str:
    """What stands behind a key of the first core, such as vendor_id; empty where nothing does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(key)), "")


def name() -> str:
    """What the processor is called."""
    return cpu_field("model name") or platform.processor() or platform.machine()

"""The machine and the programs that figures were measured with."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from learncost.engines import processor

PACKAGES = ("learncost", "numpy", "torch", "triton", "jax", "jaxlib")


def machine() -> dict[str, Any]:
    """What there is, by name; what cannot be found out is None."""
    return {
        "processor": processor.name(),
        "cores": _cores(),
        "memory_bytes": _memory(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in PACKAGES},
        "compiler": _compiler(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def described(facts: Mapping[str, Any]) -> str:
    """The same as a few words."""
    versions = ", ".join(
        f"{name} {version}" for name, version in facts["versions"].items() if version and name != "jaxlib"
    )
    memory = facts["memory_bytes"]
    parts = [
        f"{facts['processor']}, {facts['cores']} cores",
        f"{memory / 2**30:.0f} GiB" if memory else "",
        facts["system"],
        f"Python {facts['python']}",
        versions,
        facts["compiler"] or "no C compiler",
        f"OMP_NUM_THREADS={facts['threads']}" if facts["threads"] else "",
        f"load {facts['load']} before" if facts["load"] is not None else "",
        facts["date"][:10],
    ]
    return "; ".join(filter(None, parts))


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _compiler() -> str | None:
    """The first line of what the C compiler says of itself."""
    path = next(filter(None, map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))), None)
    if path is None:
        return None
    try:
        version_text = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return next(iter(version_text.splitlines()), None)

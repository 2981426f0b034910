"""A device "cuda" without a GPU: a guard that is compiled against the installed PyTorch and loaded before it."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from learncost.ir.errors import InputError
from learncost.models.files import user_folder

SOURCE = Path(__file__).with_name("device_guard.cpp")

_loaded: list[ctypes.CDLL] = []


def load_guard() -> None:
    """Make tensors without values of device "cuda" run under autograd and autocast in this process, without a GPU.

    Raises `InputError` if torch is imported already, is a build with CUDA or is missing, or if there is no compiler.
    """
    if "torch" in sys.modules:
        raise InputError("the guard of device cuda is loaded before torch: record in a new process")
    _loaded.append(ctypes.CDLL(str(compiled()), mode=ctypes.RTLD_GLOBAL))


def is_guarded() -> bool:
    """Return whether this process has the guard, so that tensors of device "cuda" run without a GPU."""
    return bool(_loaded)


def _torch() -> Path:
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        raise InputError("recording a module requires torch")
    return Path(spec.origin).parent


def is_with_cuda() -> bool:
    """Return whether the installed PyTorch is a build with CUDA."""
    return (_torch() / "lib" / "libc10_cuda.so").exists()


def compiled() -> Path:
    """Return the shared library of the guard, compiled on first use for this version of PyTorch."""
    torch = _torch()
    if is_with_cuda():
        raise InputError("recording for a GPU without one requires a build of torch without CUDA")
    library = user_folder("recorder") / f"device_guard-{version('torch')}.so"
    if library.exists():
        return library
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise InputError("recording for a GPU without one requires a C++ compiler: install g++, or set CXX")
    library.parent.mkdir(parents=True, exist_ok=True)
    made = library.with_suffix(f".{os.getpid()}")
    command = [
        compiler,
        "-shared",
        "-fPIC",
        "-O1",
        "-std=c++20",
        f"-I{torch / 'include'}",
        str(SOURCE),
        "-o",
        str(made),
    ]
    command += [f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        line = next((each for each in done.stderr.splitlines() if "error" in each), "no message")
        raise InputError(f"{compiler} does not compile the guard of device cuda: {line}")
    made.rename(library)
    return library

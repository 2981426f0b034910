"""Compile C code with the machine's compiler into a cached library, and call it."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path

from learncost.backends.c import KernelFunction, source
from learncost.ir.errors import InputError
from learncost.models.files import user_folder

# -ffast-math allows sums in the order of vector lanes. Compiled and linked separately: linked with it, gcc before
# 13 lets the library switch subnormal numbers off for the whole process. The first set that the compiler takes is used:
# clang without its OpenMP library runs on one thread.
_FLAGS: tuple[str, ...] = ("-O3", "-march=native", "-ffast-math", "-fPIC", "-std=gnu11")
if platform.machine() in ("x86_64", "AMD64"):
    _FLAGS += ("-mprefer-vector-width=512",)  # compilers take 256 bits, as processors of 2017 ran slower with more
_THREADS = (("-fopenmp",), ())


@cache
def compiler() -> tuple[str, ...] | None:
    """Return the command of the C compiler: $CC, or the first of cc, gcc, clang on the path; None without one."""
    command = shlex.split(os.environ.get("CC", ""))
    if command:
        return tuple(command) if shutil.which(command[0]) else None
    command_name = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return (command_name,) if command_name else None


def compiled(text: str) -> ctypes.CDLL:
    """Compile C code into a library, or load it from the cache of this compiler and machine.

    $CC and $CFLAGS are respected. Raises `InputError` without a compiler, with the compiler's first error, or if the
    cache cannot be written.
    """
    command = compiler()
    if command is None:
        variable = os.environ.get("CC")
        raise InputError(
            f"CC is {variable}, which does not exist: set it to a C compiler"
            if variable
            else "no C compiler found: install one of cc, gcc, clang"
        )
    failure = ""
    for threads in _THREADS:
        options = (*_FLAGS, *shlex.split(os.environ.get("CFLAGS", "")), *threads)
        key = hashlib.sha256("\n".join((text, *_version(command), *options)).encode()).hexdigest()[:32]
        folder = _writable_folder()
        library = folder / f"{key}.so"
        if not library.exists():
            try:
                failure = failure or _compile(command, options, text, library)
            except OSError as problem:  # a full disk
                raise InputError(f"cannot write compiled kernels to {folder}: {problem.strerror}") from None
        if library.exists():
            return ctypes.CDLL(str(library))
    raise InputError(f"{command[0]} could not compile the kernels: {failure}")


@lru_cache(maxsize=8)
def _version(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the cache key of a compiler and processor."""
    version = subprocess.run((*command, "--version"), capture_output=True, text=True, check=False).stdout
    target = subprocess.run(
        (*command, "-march=native", "-E", "-dM", "-x", "c", os.devnull), capture_output=True, text=True, check=False
    ).stdout
    return (*command, version, target, sys.platform)


@cache
def _writable_folder() -> Path:
    """Return the cache folder; a temporary one if the user's cannot be written."""
    folder = user_folder("kernels")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except OSError:
        return Path(tempfile.mkdtemp(prefix="learncost-kernels-"))


def _compile(command: Sequence[str], options: Sequence[str], text: str, library: Path) -> str:
    """Compile to a temporary file and rename it, so that readers never load an incomplete library."""
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        library_made, source = Path(folder) / library.name, Path(folder) / "kernels.c"
        source.write_text(text, encoding="utf-8")
        threads = [option for option in options if option == "-fopenmp"]
        steps = (
            (*command, *options, "-c", str(source), "-o", f"{library_made}.o"),
            (*command, "-shared", *threads, f"{library_made}.o", "-o", str(library_made), "-lm"),
        )
        for step in steps:
            done = subprocess.run(step, capture_output=True, text=True, check=False)
            if done.returncode:
                return next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
        os.replace(library_made, library)
        return ""


Call = Callable[..., None]


class CompiledKernels:
    """Compiled functions: `kernels[name](*addresses, *sizes)`, ints in the order of Function."""

    def __init__(self, functions: Sequence[KernelFunction]) -> None:
        self._library = compiled(source(functions))
        self._calls: dict[str, Call] = {}
        for function in functions:
            call = getattr(self._library, function.name)
            call.restype = None
            arrays = len(function.reads) + len(function.writes)
            call.argtypes = [ctypes.c_void_p] * arrays + [ctypes.c_ssize_t] * len(function.sizes)
            self._calls[function.name] = call
        bind(self._library)

    def __getitem__(self, name: str) -> Call:
        return self._calls[name]

    def __iter__(self) -> object:
        return iter(self._calls)


def bind(library: ctypes.CDLL, addresses: Mapping[str, int] | None = None) -> None:
    """Give a library of kernels the addresses of the matrix products of PyTorch's math library, if there is one.

    addresses   addresses to use instead, by BLAS's names
    """
    products_found = products() if addresses is None else addresses
    library.bind.argtypes = [ctypes.c_void_p] * 2
    library.bind.restype = None
    library.bind(products_found.get("sgemm_"), products_found.get("dgemm_"))


def products() -> Mapping[str, int]:
    """Return the addresses of the BLAS products in PyTorch, if it is imported; NumPy has no products under these
    names."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    folder = Path(str(torch.__file__)).parent / "lib"
    path = next((p for p in (folder / "libtorch_cpu.so", folder / "libtorch_cpu.dylib") if p.exists()), None)
    if path is None:
        return {}
    library = ctypes.CDLL(str(path))
    addresses = {}
    for name in ("sgemm_", "dgemm_"):
        try:
            address = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        except AttributeError:
            continue
        if address:
            addresses[name] = address
    return addresses

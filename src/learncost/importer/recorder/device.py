"""A device "cuda" without a GPU: a guard that is compiled against the installed PyTorch and loaded before it, and the
process that records the step of a file's module with it.

Nothing is patched in the process that asks. Records are cached by the file, the sizes, the request and all versions.
"""

from __future__ import annotations

import atexit
import base64
import ctypes
import io
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from learncost.importer.files.user_file import Target
from learncost.ir.errors import InputError
from learncost.models.files import user_folder
from learncost.program.program import Buffer, Operand, Program, ProgramOp, StepRequest

SOURCE = Path(__file__).with_name("device_guard.cpp")

_loaded: list[ctypes.CDLL] = []


def load_guard() -> None:
    """Make tensors without values of device "cuda" run under autograd and autocast in this process, without a GPU.

    Raises `InputError` if torch is imported already, is a build with CUDA or is missing, or if there is no compiler.
    """
    if "torch" in sys.modules:
        raise InputError("torch is loaded already, and a GPU is simulated only before that: record in a new process")
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
    command = [compiler, "-shared", "-fPIC", "-O1", "-std=c++20", f"-I{torch / 'include'}", str(SOURCE)]
    command += ["-o", str(made), f"-L{torch / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch / 'lib'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        line = next((each for each in done.stderr.splitlines() if "error" in each), "no message")
        raise InputError(f"{compiler} does not compile the guard of device cuda: {line}")
    made.rename(library)
    return library


class RecordingProcess:
    """A process that has the guard, and records one step after the other of a file's module.

    inputs  the module's inputs, one text each; none: those that the file specifies
    """

    def __init__(self, wanted: Target, inputs: tuple[str, ...]) -> None:
        self._wanted, self._inputs = wanted, inputs
        self._running: subprocess.Popen[bytes] | None = None

    def record(self, sizes: Mapping[str, int], request: StepRequest) -> tuple[Program, set[Path]]:
        """Return the program of the step, and the files that it depends on. Raises `InputError` if it has none."""
        if self._running is None:
            self._running = self._start()
        process = self._running
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, (dict(sizes), request))
            answer = _receive(process.stdout)
        except (OSError, EOFError):
            self._running = None
            raise InputError(f"the process that records {self._wanted} ended (exit {process.wait()})") from None
        if isinstance(answer, str):
            raise InputError(answer)
        recorded: tuple[Program, set[Path]] = answer
        return recorded

    def _start(self) -> subprocess.Popen[bytes]:
        paths = os.pathsep.join(each for each in sys.path if each)
        environment = {**os.environ, "PYTHONPATH": paths}
        command = [sys.executable, "-c", f"from {__name__} import serve; serve()"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        atexit.register(process.kill)
        assert process.stdin is not None
        _send(process.stdin, (self._wanted, self._inputs))
        return process


def _send(stream: IO[bytes], value: Any) -> None:
    data = pickle.dumps(value)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> Any:
    size = stream.read(8)
    if len(size) < 8:
        raise EOFError
    return pickle.loads(stream.read(int.from_bytes(size, "little")))


def serve() -> None:
    """Answer requests from standard input; what the user's code prints goes to standard error."""
    given, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    wanted, inputs = _receive(given)
    record: Callable[..., Any] | None = None
    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        while True:
            sizes, request = _receive(given)
            try:
                record = record or _recorder(wanted, inputs)
                _send(answers, record(sizes, request))
            except InputError as error:
                _send(answers, str(error))


def _recorder(wanted: Target, inputs: tuple[str, ...]) -> Callable[..., Any]:
    from learncost.importer.recorder.device import load_guard

    load_guard()
    import warnings

    from learncost.importer.files.build import built
    from learncost.importer.files.user_file import watched
    from learncost.importer.inputs import MOST, parse_inputs, sized
    from learncost.importer.recorder.module_step import ModuleStep

    with watched() as files, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answer = built(wanted, False, lambda _: None, parse_inputs(inputs))
    given = answer.inputs or ()
    step = ModuleStep(lambda: answer.module, lambda sizes: sized(given, sizes, {}, MOST))
    return lambda sizes, request: (step(sizes, request), files)


def packed(program: Program) -> str:
    """Return a program as text, for the cache."""
    return base64.b85encode(zlib.compress(pickle.dumps(program), 1)).decode()


def unpacked(text: str) -> Program | None:
    """Return the program of a text from the cache; None for a text that has anything else."""
    try:
        program = _ProgramReader(io.BytesIO(zlib.decompress(base64.b85decode(text)))).load()
    except (ValueError, EOFError, zlib.error, pickle.UnpicklingError):
        return None
    return program if isinstance(program, Program) else None


class _ProgramReader(pickle.Unpickler):
    """Reads programs and plain values alone: no other class or function of a file in the cache is loaded."""

    def find_class(self, module: str, name: str) -> Any:
        known = {each.__name__: each for each in (Program, ProgramOp, Operand, Buffer)}
        if module != Program.__module__ or name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a program")
        return known[name]

"""The near end of a process that runs a side."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from against_torch_and_jax.subject import Subject

_ENVIRONMENT = {
    # JAX would else take three quarters of a device's memory at once, and leave none to the others.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
}


class SideError(Exception):
    """A side cannot go on; the message is one line."""


class Process:
    """A fresh process with one side; it is waited for until it has imported everything. Raises SideError."""

    def __init__(self, side: str) -> None:
        self.side = side
        self._error_output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close
        found = (os.environ.get("PYTHONPATH"), str(Path(__file__).parents[1]))  # this package lies in the latter
        # A session of its own: Ctrl-C is for this process alone, which then ends that one and all that it started.
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.worker", side],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._error_output,
            text=True,
            encoding="utf-8",
            start_new_session=True,
            env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, found))},
        )
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def begin(self, subject: Subject) -> dict[str, Any]:
        """Make the model."""
        return self._ask("begin", subject=subject.to_dict())

    def turn(self, count: int) -> dict[str, Any]:
        """Take steps."""
        return self._ask("turn", count=count)

    def gradients(self, folder: Path) -> None:
        """Have the gradients of the first step written to a folder."""
        self._ask("gradients", folder=str(folder))

    def memory(self) -> dict[str, Any]:
        """Bytes."""
        return self._ask("memory")

    def _ask(self, request: str, **values: Any) -> dict[str, Any]:
        assert self._process.stdin
        with suppress(BrokenPipeError):  # it has ended; its answer, which is none, says so
            self._process.stdin.write(json.dumps({"do": request, **values}) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SideError(self._end())
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SideError(answer["error"])
        return answer

    def _end(self) -> str:
        """How the process ended, with the last line that it said."""
        code = self._process.wait()
        if code == -signal.SIGKILL:
            return "its process was killed, as for want of memory"
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        self._error_output.seek(0)
        lines = self._error_output.read().decode("utf-8", "replace").strip().splitlines()
        return f"its process ended {how}" + (f": {lines[-1].strip()}" if lines else "")

    def close(self) -> None:
        """End it, and all that it has started."""
        if self._error_output.closed:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._error_output):
            with suppress(OSError):
                stream.close()  # type: ignore[union-attr]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

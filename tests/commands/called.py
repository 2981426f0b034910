"""A command line run in this process, and what holds of every command line: what it may print, and how it may end."""

from __future__ import annotations

import io
import re
import shlex
import signal
import sys
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass

from learncost.cli.command import main

MOST_SECONDS = 60.0
"""Of the processor for one command line, where the system can tell it."""


@dataclass(frozen=True)
class Called:
    """What a command line did. `code` is None where it did not end as it should: `out` is then the traceback."""

    line: str
    code: int | None
    out: str
    err: str
    seconds: float

    @property
    def refusal(self) -> str:
        """The one line with which it was refused; empty where it was not."""
        return self.err.strip().removeprefix("learncost: ") if self.code == 2 else ""


class _TooLongError(BaseException):
    """No `except Exception` on the way swallows it."""


def call(line: str) -> Called:
    """Run a command line of learncost, without its first word; nothing stands on its standard input."""
    out, err, typed = io.StringIO(), io.StringIO(), sys.stdin
    start = time.process_time()
    code: int | None = None
    sys.stdin = io.StringIO()
    _limit(MOST_SECONDS)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(shlex.split(line))
        printed = out.getvalue()
    except KeyboardInterrupt:
        raise
    except _TooLongError:
        printed = f"more than {MOST_SECONDS:g} seconds of the processor"
    except BaseException:
        printed = traceback.format_exc()
    finally:
        _limit(0)
        sys.stdin = typed
    return Called(line, code, printed, err.getvalue(), time.process_time() - start)


def _limit(seconds: float) -> None:
    if hasattr(signal, "SIGPROF"):
        signal.signal(signal.SIGPROF, _stop)
        signal.setitimer(signal.ITIMER_PROF, seconds)


def _stop(*_: object) -> None:
    raise _TooLongError


def ending(called: Called) -> str:
    """What is wrong with how it ended: a result and exit code 0, or one line on standard error and exit code 2."""
    if called.code is None:
        frames = re.findall(r'learncost[\\/]([^"]*\.py)", line (\d+)', called.out)
        return f"{called.out.strip().splitlines()[-1]} at {':'.join(frames[-1]) if frames else 'the test'}"
    if called.code not in (0, 2):
        return f"exit code {called.code}: {called.err.strip()[:200]}"
    if called.code == 0:
        return "" if called.out.strip() or "--output" in called.line else "exit code 0 and nothing on standard output"
    if called.out:
        return f"exit code 2 and something on standard output: {called.out[:80]!r}"
    if not called.err.startswith("learncost: ") or called.err.count("\n") != 1 or not called.refusal:
        return f"exit code 2 without one line: {called.err[:200]!r}"
    if not called.refusal.isprintable():
        return f"a refusal with characters that no terminal shows: {called.refusal[:200]!r}"
    return ""

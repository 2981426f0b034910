"""Trace training steps line by line: the time and the memory when each line of the emitted program starts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any, TypeVar

from learncost.ir.dataclass import dataclass, field

EMITTED = "<emitted by learncost>"
"""The file name of emitted programs."""

SOURCE = "__source__"
"""The name of an emitted program's text in its namespace."""

Given = TypeVar("Given")


@dataclass(frozen=True)
class TraceMark:
    """An event of a trace: a program's function is called, reaches a line, or returns.

    at      the clock's nanoseconds
    event   call, line or return
    line    the number of the line in the program's text
    memory  the resident bytes of the process; 0 if the system does not report them
    """

    at: int
    event: str
    function: str
    line: int
    memory: int
    text: str


@dataclass(frozen=True)
class TracedStep:
    """A traced step: its number, start, end and events."""

    number: int
    began: int
    ended: int
    marks: tuple[TraceMark, ...]


@dataclass
class Tracer:
    """A tracer of up to the requested number of steps; the first step of a run is not traced, as it compiles."""

    steps: int
    traced: list[TracedStep] = field(default_factory=list)
    seen: int = 0

    def step(self, number: int, take: Callable[[], Given]) -> Given:
        """Run a step, and trace it if it is one of the steps to trace."""
        self.seen += 1
        if self.seen == 1 or len(self.traced) >= self.steps:
            return take()
        with _ResidentMemory() as memory:
            marks: list[TraceMark] = []
            watched: dict[CodeType, str] = {}

            def mark(event: str, frame: FrameType, text: str) -> None:
                code = frame.f_code
                marks.append(TraceMark(perf_counter_ns(), event, code.co_name, frame.f_lineno, memory.bytes, text))

            def inside(frame: FrameType, event: str, _: Any) -> Any:
                if event in ("line", "return"):
                    mark(event, frame, watched[frame.f_code])
                return inside

            def called(frame: FrameType, event: str, _: Any) -> Any:
                code = frame.f_code
                if code.co_filename != EMITTED or event != "call" or code.co_name.startswith("<"):
                    return None
                text = frame.f_globals.get(SOURCE, "")
                if code not in watched:
                    watched[code] = text if has_headings(text, code.co_firstlineno) else ""
                if not watched[code]:
                    return None  # the function of an operator, such as softmax
                mark("call", frame, text)
                return inside

            before = sys.gettrace()
            began = perf_counter_ns()
            sys.settrace(called)
            try:
                return take()
            finally:
                sys.settrace(before)
                self.traced.append(TracedStep(number, began, perf_counter_ns(), tuple(marks)))


def has_headings(text: str, first: int) -> bool:
    """Return whether a function has headings of layers, as the step and iterations of loops have."""
    lines = text.splitlines()[first:]
    for line in lines:
        if line.startswith("    # "):
            return True
        if line and not line.startswith((" ", ")")):
            return False
    return False


class _ResidentMemory:
    """A reader of this process's resident memory, which is the second number of Linux's statm, in pages (proc(5))."""

    def __enter__(self) -> _ResidentMemory:
        self._file = -1
        with suppress(OSError):
            self._file = os.open(Path("/proc/self/statm"), os.O_RDONLY)
        self._page = os.sysconf("SC_PAGE_SIZE") if self._file >= 0 else 0
        return self

    @property
    def bytes(self) -> int:
        if self._file < 0:
            return 0
        return int(os.pread(self._file, 128, 0).split()[1]) * self._page

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

"""Steps of a training that are timed line by line: when each line of the emitted program began, and the memory then."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns
from types import CodeType, FrameType
from typing import Any, TypeVar

EMITTED = "<emitted by learncost>"
"""The file name of emitted programs."""

SOURCE = "__source__"
"""The name in an emitted program's namespace that holds its text."""

Given = TypeVar("Given")


@dataclass(frozen=True)
class TraceMark:
    """A moment: a function of a program is called, reaches a line, or returns.

    at      nanoseconds of the clock
    event   call, line or return
    line    its number in the program's text
    memory  bytes that the process holds; 0 where the system does not say
    """

    at: int
    event: str
    function: str
    line: int
    memory: int
    text: str


@dataclass(frozen=True)
class TracedStep:
    """A step with its number, when it began and ended, and its marks."""

    number: int
    began: int
    ended: int
    marks: tuple[TraceMark, ...]


@dataclass
class Tracer:
    """Traces steps, as many as are asked for; the first step of a run, which compiles, is none of them."""

    steps: int
    traced: list[TracedStep] = field(default_factory=list)
    seen: int = 0

    def step(self, number: int, take: Callable[[], Given]) -> Given:
        """Take a step, and trace it where it is to be traced."""
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
                    return None  # a word, such as softmax
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
    """Whether a function has layers, with a heading each: it is the step, or a turn of a repeat."""
    lines = text.splitlines()[first:]
    for line in lines:
        if line.startswith("    # "):
            return True
        if line and not line.startswith((" ", ")")):
            return False
    return False


class _ResidentMemory:
    """The bytes that this process holds, as Linux says them (proc(5), statm): its second number, in pages."""

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

"""The far end of a process: one side, told by lines of JSON on standard input what to do.

    {"do": "begin", "subject": {...}}    makes the weights
    {"do": "turn", "count": 3}           takes steps
    {"do": "gradients", "folder": "..."}  writes those of the first step, a .npy file a weight
    {"do": "memory"}                     bytes: after the imports, at most until now, and of a device

Every line is answered by one: what was found, or {"error": "..."}. Between two lines a process waits and does nothing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from against_torch_and_jax.sides import SIDES, Side
from against_torch_and_jax.subject import Subject
from learncost.ir.errors import InputError
from learncost.training.memory import highest, reset_peak


class Worker:
    """A side and what can be asked of it."""

    def __init__(self, name: str) -> None:
        self.side: Side = SIDES[name].make()
        self.runtime = highest()
        self.device = self.side.peak() or 0

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """What was asked for."""
        requests: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "begin": self._begin,
            "turn": lambda request: self.side.turn(request["count"]),
            "gradients": self._gradients,
            "memory": lambda request: self._memory(),
        }
        return requests[request["do"]](request)

    def _begin(self, request: Mapping[str, Any]) -> dict[str, Any]:
        facts = self.side.begin(Subject(**request["subject"]))
        reset_peak()
        return facts

    def _gradients(self, request: Mapping[str, Any]) -> dict[str, Any]:
        for name, array in self.side.gradients().items():
            np.save(Path(request["folder"]) / f"{name}.npy", array)
        return {}

    def _memory(self) -> dict[str, Any]:
        on_device = self.side.peak()
        if on_device is not None:
            return {"runtime": self.device, "peak": on_device, "where": "device"}
        return {"runtime": self.runtime, "peak": highest(), "where": "process"}


def message(error: Exception) -> str:
    """An error as one line."""
    first = next(iter(str(error).strip().splitlines()), "")
    return first if isinstance(error, InputError) else f"{type(error).__name__}: {first}".rstrip(": ")


def main(name: str) -> int:
    """Answer until standard input ends."""
    # Libraries may print: that goes to standard error, so that the answers are alone on their pipe.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def say(value: Mapping[str, Any]) -> None:
        answers.write(f"{json.dumps(value)}\n")
        answers.flush()

    try:
        worker = Worker(name)
    except Exception as error:
        say({"error": message(error)})
        return 1
    say({})
    for line in sys.stdin:
        try:
            say(worker.answer(json.loads(line)))
        except Exception as error:
            say({"error": message(error)})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

"""Every counter asked about every case, each question twice in a fresh process; the tables of what came out."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from conformance.adapters import COUNTERS
from conformance.cases import CASES, Case
from conformance.counter import Counter
from conformance.report import markdown, text
from conformance.verdict import QUANTITIES, Answer, Result, judge

PATIENCE = 120
"""Seconds after which a question is given up."""

# What counters patch. Some leave their own functions behind, and the process counts, or is wrong, for good.
_PATCHED = [
    (torch, ("matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "softmax")),
    (torch.Tensor, ("matmul", "__matmul__", "bmm", "baddbmm", "mul", "add", "softmax")),
    (torch.nn.functional, ("linear", "scaled_dot_product_attention", "softmax", "gelu", "layer_norm", "embedding")),
]


def question(counter: Counter, case: Case, quantity: str) -> tuple[Answer, tuple[str, ...]]:
    """The answer of a counter that is asked twice, in this process, and what of torch it left replaced."""
    before = _functions()
    try:
        first = getattr(counter, quantity)(case)
        answer = Answer(first, None if first is None else getattr(counter, quantity)(case))
    except Exception as error:  # whatever a counter raises is its answer
        line = next(iter(str(error).strip().splitlines()), "")
        answer = Answer(error=f"{type(error).__name__}: {line}")
    after = _functions()
    return answer, tuple(name for name, function in before.items() if after[name] is not function)


def _functions() -> dict[str, object]:
    return {
        f"{getattr(owner, '__name__', owner)}.{name}": getattr(owner, name)
        for owner, names in _PATCHED
        for name in names
    }


def _alone(counter: str, case: str, quantity: str, sender: Connection) -> None:
    """In the fresh process: nothing that the counter prints is seen."""
    warnings.simplefilter("ignore")
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sender.send(question(COUNTERS[counter], CASES[case], quantity))


def ask(counter: str, case: str, quantity: str) -> Result:
    """Ask a counter about a case in a fresh process; what it does not offer needs none."""
    if getattr(type(COUNTERS[counter]), quantity) is getattr(Counter, quantity):
        return _result(counter, case, quantity, Answer())
    # This process has imported torch and counted nothing, and a fork of it starts at once; not all systems allow that.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_alone, args=(counter, case, quantity, sender))
    process.start()
    sender.close()
    answer, left = Answer(error=f"no answer within {PATIENCE} seconds"), ()
    try:
        if receiver.poll(PATIENCE):
            answer, left = receiver.recv()
    except EOFError:
        process.join()
        answer = Answer(error=f"the process ended with exit code {process.exitcode}")
    process.kill()
    process.join()
    return _result(counter, case, quantity, answer, left)


def _result(counter: str, case: str, quantity: str, answer: Answer, left: tuple[str, ...] = ()) -> Result:
    verdict = judge(CASES[case], quantity, COUNTERS[counter].unit, answer)
    return Result(counter, case, quantity, answer, verdict, left)


def installation(counter: Counter) -> str:
    """How to install a counter, as it was measured."""
    pins = Path(__file__).with_name("requirements.txt").read_text(encoding="utf-8")
    pin = re.search(rf"^{re.escape(counter.package)}==\S+", pins, re.MULTILINE)
    return f"pip install {pin[0] if pin else counter.package}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit code is 0 whatever the counters say, and 2 where nothing could be asked."""
    parser = argparse.ArgumentParser(prog="conformance", description="Counters held to modules of known cost.")
    parser.add_argument("--counter", action="append", choices=COUNTERS, metavar="NAME", help=_choices(COUNTERS))
    parser.add_argument("--case", action="append", choices=CASES, metavar="NAME", help=_choices(CASES))
    parser.add_argument("--format", default="text", choices=("text", "md", "json"))
    options = parser.parse_args(arguments)
    counters = [COUNTERS[name] for name in dict.fromkeys(options.counter or COUNTERS)]
    cases = [CASES[name] for name in dict.fromkeys(options.case or CASES)]
    for counter in counters:
        if counter.version is None:
            print(f"{counter.name} is not installed, skipped: {installation(counter)}", file=sys.stderr)
    present = [counter for counter in counters if counter.version is not None]
    if not present:
        return 2
    results = [ask(own.name, case.name, quantity) for own in present for case in cases for quantity in QUANTITIES]
    show = {"text": text, "md": markdown, "json": _json}[options.format]
    print(show(present, cases, results))
    return 0


def _choices(names: Iterable[str]) -> str:
    return f"one of {', '.join(names)}; may be given several times; all by default"


def _json(counters: Sequence[Counter], cases: Sequence[Case], results: Sequence[Result]) -> str:
    units = {counter.name: counter for counter in counters}
    rows = [
        {
            "counter": result.counter,
            "version": units[result.counter].version,
            "unit": units[result.counter].unit.value,
            "case": result.case,
            "quantity": result.quantity,
            "truth": getattr(CASES[result.case].truth, result.quantity),
            "answers": [result.answer.first, result.answer.second],
            "verdict": result.verdict.kind,
            "difference": str(result.verdict.difference),
            "because": result.verdict.because,
            "left_replaced": result.left,
        }
        for result in results
    ]
    return json.dumps(rows, indent=1)

"""Every report with its answer, its oracle and the verdict."""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence

from reports.asked import Report, Verdict, judged, listed


def main(words: Sequence[str] | None = None) -> int:
    """Ask, print, and end with 1 where an answer is not right."""
    parser = argparse.ArgumentParser(prog="python benchmarks/reports", description=__doc__)
    parser.add_argument("--only", default="", help="parts of sources, with commas between them: fvcore,peft#282")
    parser.add_argument("--failed", action="store_true", help="print what is not right alone")
    chosen = parser.parse_args(words)
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    kinds: Counter[str] = Counter()
    for report in listed():
        if any(part in report.source for part in chosen.only.split(",")):
            verdict = judged(report)
            kinds[verdict.kind] += 1
            if verdict.kind != "right" or not chosen.failed:
                print(shown(report, verdict), flush=True)
    print(", ".join(f"{count} {kind}" for kind, count in kinds.most_common()))
    return int(set(kinds) != {"right"})


def shown(report: Report, verdict: Verdict) -> str:
    """The report in a few lines."""
    lines = [f"{report.source}: {verdict.kind}", f"  {report.asked}", f"  learncost {report.ask}"]
    lines += _answers(report.answer, verdict)
    if verdict.message:
        lines.append(f"  {verdict.message}")
    return "\n".join([*lines, f"  oracle: {report.oracle}", ""])


def _answers(answer: Mapping[str, str], verdict: Verdict) -> list[str]:
    lines = []
    for where in answer:
        right = f"{verdict.right[where]:,}" if where in verdict.right else answer[where]
        lines.append(f"    {where} = {_number(verdict.predicted.get(where))}, right: {right}")
    return lines


def _number(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else "nothing"

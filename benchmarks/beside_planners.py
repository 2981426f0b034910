"""Published times of trainings on many devices, as learncost, Calculon and SimuMax have them.

    python benchmarks/beside_planners.py --calculon DIR [--python PYTHON] --simumax DIR

Each DIR is a clone: calculon-ai/calculon, which runs under PYTHON (with pandas and psutil, which it imports), and
MooreThreads/SimuMax, of which the predictions are read that it publishes beside its measured steps on 8 B200
(docs/b200). What is not named is left out; learncost answers the rows of clusters.json and clusters_later.json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median

from published_trainings.answers import answer

HERE = Path(__file__).parent
SUMMARY = "docs/b200/b200_release_v1.2_summary.json"

CALCULON = """
import calculon, json, logging, pathlib, time
from calculon.util import pick
from calculon.llm import *
system = System(calculon.io.read_json_file("systems/a100_80g.json"))
for path in sorted(pathlib.Path("validation/seqsel/tab5").glob("*.json")):
    begin = time.process_time()
    model = Llm(Llm.Application(calculon.io.read_json_file(f"models/{path.stem.rpartition('_')[0]}.json")),
                logging.getLogger())
    model.compile(system, Llm.Execution.from_json(calculon.io.read_json_file(str(path))))
    model.run(system)
    print(json.dumps([path.stem, model.get_stats_json(False)["total_time"], time.process_time() - begin]))
"""
"""All rows of Korthikanti et al. 2022, table 5: seconds of an iteration, and of the processor."""


def main() -> int:
    """Print the rows of each that was named, and how far either is off."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calculon", type=Path, help="a clone of calculon-ai/calculon")
    parser.add_argument("--python", default=sys.executable, help="the Python that has what Calculon imports")
    parser.add_argument("--simumax", type=Path, help="a clone of MooreThreads/SimuMax")
    asked = parser.parse_args()
    if not (asked.calculon or asked.simumax):
        parser.error("name a clone: --calculon DIR, --simumax DIR")
    rows = {}
    for name in ("clusters.json", "clusters_later.json"):
        rows |= {row["id"]: row for row in json.loads((HERE / name).read_text(encoding="utf-8"))["rows"]}
    for title, others in (("Calculon", calculon(asked)), ("SimuMax", simumax(asked))):
        errors: list[tuple[float, float]] = []
        for name, theirs in others:
            if name not in rows or (ours := answer(rows[name])).kind != "time":
                continue
            errors.append((abs(ours.off), abs(theirs / ours.published - 1)))
            print(
                f"{name:62} {ours.published:10,.2f} {ours.unit:3} learncost {100 * ours.off:+6.1f} %  "
                f"{title} {100 * (theirs / ours.published - 1):+6.1f} %"
            )
        for tool, several in zip(("learncost", title), zip(*errors, strict=True), strict=False):
            print(f"{tool}: {100 * median(several):.1f} % in the median, {100 * max(several):.1f} % at worst")
    return 0


def calculon(asked: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """What Calculon says of its own validation's rows, by the names of ours."""
    if not asked.calculon:
        return
    ran = subprocess.run(
        [asked.python, "-c", CALCULON], cwd=asked.calculon, capture_output=True, text=True, check=False
    )
    if ran.returncode:
        raise SystemExit(f"Calculon does not run in {asked.calculon}: {ran.stderr.strip().splitlines()[-1]}")
    took = []
    for line in ran.stdout.splitlines():
        name, seconds, processor = json.loads(line)
        took.append(processor)
        model, mode = name.rsplit("_", 1)
        yield f"korthikanti-tab5-{model}-{mode}", seconds
    print(f"Calculon takes {1e3 * median(took):.1f} ms of the processor for a configuration")


def simumax(asked: argparse.Namespace) -> Iterator[tuple[str, float]]:
    """What SimuMax publishes of its own predictions, by the names of ours."""
    if not asked.simumax:
        return
    path = asked.simumax / SUMMARY
    if not path.exists():
        raise SystemExit(f"{asked.simumax} has no {SUMMARY}: is it a clone of MooreThreads/SimuMax?")
    summary: Mapping[str, list[Mapping[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    for row in summary["rows"]:
        yield f"simumax-{row['case']}-time", row["perf_ms"]


if __name__ == "__main__":
    sys.exit(main())

"""Report, figures and traces of every preset: what is refused, what is wrong, and which reports take longest.

    python benchmarks/pictures.py --log FILE

A preset is asked for a report, a figure of every kind and traces in both formats; formats and widths of figures go
round, so that each kind is drawn in each. A file is opened as what its name says it is. With a log it goes on where it
was ended. The exit code is 0 where every command wrote such a file or was refused in one line.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
import traceback
import xml.etree.ElementTree as ElementTree
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path

from measure import show

from learncost.cli.command import main as learncost
from learncost.models.argument import preset_names
from learncost.viz.figures import FIGURES

DEVICE = "A100-SXM-80GB"
SOON = 5.0
"""CPU seconds in which a report shall be made."""


@dataclass(frozen=True)
class Asked:
    """What came of a command: CPU seconds; why it was refused; what is wrong with its answer."""

    line: str
    seconds: float
    refused: str = ""
    wrong: str = ""


def lines(place: int, preset: str) -> Iterator[tuple[list[str], str]]:
    """The commands of a preset, and the names of their files."""
    yield ["report", preset, "--on", DEVICE], "page.html"
    for number, kind in enumerate(FIGURES):
        ending, columns = ("pdf", "svg", "png")[(place + number) % 3], str(1 + (place // 3 + number) % 2)
        device = ["--on", DEVICE] if kind == "roofline" else []
        yield ["figure", kind, preset, *device, "--columns", columns, "--data"], f"figure.{ending}"
    yield ["trace", preset], "trace.json"
    yield ["trace", preset, "--on", DEVICE], "trace.pftrace"


def fault(path: Path) -> str:
    """What is wrong with a file, by its name's ending."""
    data = path.read_bytes()
    match path.suffix:
        case ".html":
            given = json.loads(data.decode().partition('id="data">')[2].partition("</script>")[0])
            for document in given["documents"]:
                for name in ("maccs", "flops"):
                    if sum(int(line.get(name, 0)) for line in document["lines"]) != int(document["totals"][name]):
                        return f"the lines of {document['summary']['procedure']} do not sum to its {name}"
            return "" if len(data) < 6_000_000 else f"{len(data):,} bytes"
        case ".json":
            events = json.loads(data)["traceEvents"]
            return "" if any(event["ph"] == "X" for event in events) else "no slices"
        case ".svg":
            return "" if ElementTree.fromstring(data).meta.endswith("svg") else "no SVG"
        case ".pdf" | ".png":
            return "" if data.startswith((b"%PDF", b"\x89PNG")) and len(data) > 2000 else "no picture"
    return "" if len(data) > 1000 else "empty"


def asked(ops: list[str], path: Path) -> Asked:
    """Run a command, and open what it wrote."""
    line, begun = f"{' '.join(ops)} -o {path.name}", time.process_time()
    path.unlink(missing_ok=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as error:
        try:
            code = learncost([*ops, "-o", str(path)])
            spent = time.process_time() - begun
            if code == 0:
                return Asked(line, spent, wrong=fault(path))
        except Exception:  # what must not come is what is looked for
            return Asked(line, time.process_time() - begun, wrong=traceback.format_exc())
    message = " ".join(error.getvalue().split())
    return Asked(line, spent, message, "" if code == 2 and not path.exists() else f"exit code {code}")


def main() -> None:
    """Print what was refused, what is wrong, and the reports that take longest."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--log", type=Path, help="what is done is kept here, and not done again")
    parser.add_argument("--only", default="", help="presets, with commas between")
    parser.add_argument("--part", default="0/1", help="every so-manieth preset, from one on: 0/4")
    chosen = parser.parse_args()
    start, every = map(int, chosen.part.split("/"))
    presets = chosen.only.split(",") if chosen.only else sorted(preset_names())[start::every]
    done: dict[str, list[Asked]] = {}
    if chosen.log and chosen.log.exists():
        for text in chosen.log.read_text(encoding="utf-8").splitlines():
            name, answers = json.loads(text)
            done[name] = [Asked(**answer) for answer in answers]
    with tempfile.TemporaryDirectory() as folder:
        for place, preset in enumerate(presets):
            if preset in done:
                continue
            done[preset] = [asked(ops, Path(folder) / name) for ops, name in lines(place, preset)]
            if chosen.log:
                with chosen.log.open("a", encoding="utf-8") as file:
                    print(json.dumps([preset, [asdict(answer) for answer in done[preset]]]), file=file)
    every_answer = [answer for answers in done.values() for answer in answers]
    refusals: dict[str, list[str]] = defaultdict(list)
    for answer in every_answer:
        if answer.refused:
            refusals[answer.refused].append(answer.line)
    for why, refused in refusals.items():
        print(f"refused {len(refused)}: {why} ({refused[0]})")
    for answer in every_answer:
        if answer.wrong:
            print(f"WRONG {answer.line}: {answer.wrong}")
    reports = sorted((a for a in every_answer if a.line.startswith("report")), key=lambda a: -a.seconds)
    late = sum(a.seconds > SOON for a in reports)
    title = f"{len(every_answer)} commands for {len(done)} presets; CPU s of a report, {late} above {SOON:g}"
    show(title, ("", "CPU s"), [(answer.line, f"{answer.seconds:.1f}") for answer in reports[:10]])
    sys.exit(any(answer.wrong for answer in every_answer))


if __name__ == "__main__":
    main()

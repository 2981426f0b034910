"""Learning scikit-learn's digits in C99: accuracy, RAM and instructions of a dense network and a vision transformer.

    python benchmarks/microcontroller.py --out microcontroller.json

Every program is emitted by `learncost emit --backend c99`, trained by the same text on this machine (the tests hold
its bits to those of emulated boards), and linked and run for one epoch on an emulated Cortex-M4F, which says its RAM,
its stack and its instructions. Instructions are no cycles. Of several learning rates the one is taken that is best on
images 1,100 to 1,300, in the mean of three seeds; what is reported are the other 497, after ten epochs, of five others.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import tempfile
from pathlib import Path
from runpy import run_path
from typing import Any

import learncost as lc
from learncost.cli.boards import HOST
from learncost.cli.emit_c99 import FirmwareOptions, FirmwareProgram, program_of
from learncost.engines.boards import BOARDS, build, run
from learncost.models.configuration import Configuration, configure
from learncost.training.contest.problem import VIT

EXAMPLE = Path(__file__).parent.parent / "examples" / "microcontroller"
BATCH, EPOCHS, SEEDS = 4, 10, (1, 2, 3, 4, 5)
CHOOSING = (0, 6, 7)
"""The seeds by which a rate is chosen: none of those that are reported."""
RATES = {"bp": (0.003, 0.01, 0.03), "pepita": (0.001, 0.003, 0.01)}
PROCEDURES = ("bp", "recompute", "pepita", "mempepita")
NOISE = """\
static inline void noise(net_real *x, int32_t points) { /* what is only added must not begin at 0 */
    static uint32_t state = 2463534242u;
    for (int32_t i = 0; i < points; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        x[i] = ((float)(state >> 8) / 16777216.0f - 0.5f) * 0.07f;
    }
}
"""


def task(program: FirmwareProgram, image: str) -> str:
    """What main.c has to know of a program, as task.h says it."""
    names = program.firmware.names
    answers = {"X": "targets", "image": "labels"}[image]
    begin = ""  # the network draws its matrices as ReLU wants them
    if image == "image":
        added = ("embeddings.T", "embeddings.P")
        calls = "".join(f" noise({names[n]}, (int32_t)(sizeof {names[n]} / sizeof *{names[n]}));" for n in added)
        begin = f"{NOISE}#define BEGIN do {{{calls} }} while (0)"
    defined = {"BATCH": BATCH, "INPUT": names[image], "ANSWERS": names[answers]}
    lines = ['#include "net.h"', *(f"#define {name} {text}" for name, text in defined.items()), begin, ""]
    return "\n".join(lines)


def emitted(
    configuration: Configuration, image: str, procedure: str, plan: str | None, precision: str = "fp32"
) -> FirmwareProgram:
    """A step and a prediction of a model, with momentum."""
    settings = FirmwareOptions(entry="both", prefix="net", plan=plan, batch_size=BATCH)
    learning: dict[str, Any] = {"procedure": procedure, "optimizer": "momentum", "precision": precision}
    if "pepita" in procedure:
        learning["projected"] = (image,)
    return program_of(configuration, settings, learning)


class Trained:
    """A program in a folder, compiled for this machine once, and run with any rate and seed."""

    def __init__(self, program: FirmwareProgram, image: str, folder: Path) -> None:
        self.program, self.folder = program, folder
        for name in ("main.c", "board.h"):
            shutil.copy(EXAMPLE / name, folder / name)
        run_path(str(EXAMPLE / "digits.py"))["main"](folder / "digits.h")
        written = {"net.c": program.firmware.source, "net.h": program.firmware.header, "task.h": task(program, image)}
        written |= {"host.c": HOST}
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")

    def accuracy(self, rate: float, seed: int) -> tuple[float, float]:
        """On the images by which rates are chosen, and on those that are reported, after all epochs."""
        flags = [f"-DRATE={rate}f", f"-DSEED={seed}", f"-DEPOCHS={EPOCHS}"]
        sources = [str(self.folder / name) for name in ("main.c", "net.c", "host.c")]
        binary = str(self.folder / "host")
        command = ["cc", "-std=c99", "-O2", f"-I{self.folder}", *flags, *sources, "-o", binary]
        subprocess.run(command, check=True)
        printed = subprocess.run([binary], check=True, capture_output=True, text=True).stdout
        last = [line for line in printed.splitlines() if line.startswith("epoch")][-1]
        chosen, right = re.findall(r"(?:by|right)/10000 (\d+)", last)
        return int(chosen) / 1e4, int(right) / 1e4

    def promise(self, rate: float) -> float:
        """How much of the images for that choice is right at a rate, in the mean of the seeds for it."""
        return statistics.mean(self.accuracy(rate, seed)[0] for seed in CHOOSING)

    def on_board(self) -> dict[str, int]:
        """Linked into 256 KiB of RAM where it fits, and one epoch under QEMU."""
        board = BOARDS["cortex-m4f"]
        sources = [self.folder / "main.c", self.folder / "net.c"]
        ram = 2**18 if self.program.firmware.program_memory.ram + 4096 < 2**18 else 2**20
        built = build(board, sources, self.folder, ram, 2**20, ["-DRATE=0.01f", "-DSEED=1", "-DEPOCHS=1"])
        printed = run(built, 1800)
        numbers = {
            name: int(found[1])
            for name in ("instructions a step", "stack")
            if (found := re.search(rf"{name} (\d+)", printed))
        }
        price = lc.price(self.program.tables["step"], self.program.sizes, lc.book("run"))
        return {
            "ram": built.ram,
            "predicted": self.program.firmware.program_memory.ram,
            "arena": self.program.firmware.program_memory.arena,
            "flash": built.code,
            "stack": numbers["stack"],
            "instructions": numbers["instructions a step"],
            "maccs": price.maccs,
        }


def main() -> None:
    """Train, link, run; print a row of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--models", default="mlp,vit")
    parser.add_argument("--plan", help="the plan of every step; the default is the one with the smallest arena")
    parser.add_argument("--procedures", default=",".join(PROCEDURES))
    parser.add_argument("--precision", default="fp32", help="of `learncost list precisions`, such as int8-saved")
    arguments = parser.parse_args()
    models = {
        "mlp": (configure(lc.layer((EXAMPLE / "net.table").read_text(encoding="utf-8")), {}), "X"),
        "vit": (configure(dict(VIT), {}), "image"),
    }
    rows = []
    for model in arguments.models.split(","):
        configuration, image = models[model]
        for procedure in arguments.procedures.split(","):
            with tempfile.TemporaryDirectory() as name:
                program = emitted(configuration, image, procedure, arguments.plan, arguments.precision)
                trained = Trained(program, image, Path(name))
                rates = RATES["pepita" if "pepita" in procedure else "bp"]
                rate = max(rates, key=trained.promise)
                right = [trained.accuracy(rate, seed)[1] for seed in SEEDS]
                row = {
                    "model": model,
                    "procedure": procedure,
                    "plan": program.plan,
                    "rate": rate,
                    "right": right,
                    "mean": statistics.mean(right),
                    "deviation": statistics.stdev(right),
                    **trained.on_board(),
                }
            rows.append(row)
            print(
                f"| {model} | {procedure} | {rate:g} | {100 * row['mean']:.1f} ± {100 * row['deviation']:.1f} % "
                f"| {row['ram']:,} | {row['arena']:,} | {row['stack']:,} | {row['flash']:,} | {row['maccs']:,} "
                f"| {row['instructions']:,} | {row['instructions'] / row['maccs']:.2f} |",
                flush=True,
            )
    if arguments.out:
        arguments.out.write_text(
            json.dumps({"batch": BATCH, "epochs": EPOCHS, "rows": rows}, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()

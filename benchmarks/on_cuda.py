"""What the package says of PyTorch, held to a GPU: values, trainings, memory, time.

    python benchmarks/on_cuda.py [--only values,...] [--quick] [--json FILE]
    python benchmarks/on_cuda.py --device cpu --quick

Needs torch, and transformers for rows of its modules. A row that fails says why, and the others go on. With
`--device cpu` everything is tried that needs no GPU, which says nothing of CUDA. What is measured:

values    the emitted step of a small model of every family, also in Triton, and the modules of `learncost.torch` with
          their gradients, in fp64 beside NumPy
training  `learncost train --device cuda` beside the same on a processor: losses, and checkpoints that move
memory    the peak that `memory` predicts beside the bytes that were asked of the caching allocator (`requested_bytes`,
          without its rounding) while two steps ran, and those that it handed out; libraries' workspaces apart
imported  the same of modules that were read
steps     the same of optimizers, accumulation, clipping and checkpoints
engine    the card; losses of 100 steps beside those of autocast; what is predicted of the engine on a GPU under two
          plans, one for time and one for memory; the floor (products, attention, AdamW's bytes); the first step, the
          median of steps and the allocator's peak of the engine, of torch.compile by default, of eager PyTorch, of
          `learncost.torch` and of torch.compile with max-autotune; the kernels of ours that take longest: GPT-2 of 124M
          at 4 and 16 sequences, a Llama of 1 B, ViT-B/16. It ends within ten minutes
time      the median of steps by CUDA's events, in turns, also of the step in Triton as a CUDA graph, beside what the
          published record of the card and a calibration say; MFU by the price book `matmul` over the published peak
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NoReturn

import torch
from measure import show
from on_gpu.asked import Asked, Row, message_of

COLUMNS: Mapping[str, Sequence[str]] = {
    "values": ("off",),
    "training": ("off", "steps", "first", "last"),
    "memory": ("predicted", "measured", "handed_out", "ratio"),
    "imported": ("predicted", "measured", "handed_out", "ratio"),
    "steps": ("predicted", "measured", "handed_out", "ratio"),
    "engine": ("off", "first", "seconds", "expected", "predicted", "measured", "ratio"),
    "time": ("seconds", "from", "to", "busy", "published", "calibrated", "mfu"),
}


SILENT = ("alive", "published_bounds", "calibrated_bounds")
"""What the file has alone."""


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)


def refuse(reason: str) -> NoReturn:
    """End with a line and exit code 2."""
    print(f"on_cuda.py: {reason}", file=sys.stderr)
    raise SystemExit(2)


def main() -> None:
    """Measure section by section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--only", default=",".join(COLUMNS))
    parser.add_argument("--rows", default="", help="parts of their names, with commas between: only these")
    parser.add_argument("--quick", action="store_true", help="few and small ones")
    parser.add_argument("--compile", action="store_true", help="time a step under torch.compile too")
    parser.add_argument("--json", type=Path, help="everything, into a file")
    parser.add_argument("--calibration", type=Path, help="where the calibration is written")
    given = parser.parse_args()
    chosen = given.only.split(",")
    if unknown := [section for section in chosen if section not in COLUMNS]:
        refuse(f"there is no section {unknown[0]}: give some of {', '.join(COLUMNS)}")
    if given.device == "cuda" and not torch.cuda.is_available():
        refuse("there is no GPU; --device cpu tries what needs none")
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from on_gpu.engine import engine  # learncost.torch asks where kernels run when it is imported
    from on_gpu.memory import CASES, cases, peaks_of, predicted_case
    from on_gpu.steps import timed
    from on_gpu.trainings import training
    from on_gpu.values import values

    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    asked = Asked(given.device, given.quick, tuple(given.rows.split(",")))
    began = time.perf_counter()
    everything: dict[str, Any] = {"torch": torch.__version__, "device": given.device}
    if given.device == "cuda":
        everything["device"] = torch.cuda.get_device_name()
    with ProcessPoolExecutor(max(1, (os.cpu_count() or 1) // 2), get_context("spawn")) as pool:
        futures = {
            section: [
                pool.submit(predicted_case, section, asked, number) for number, _ in enumerate(cases(section, asked))
            ]
            for section in CASES
            if section in chosen
        }
        sections: dict[str, Callable[[], Iterator[Row]]] = {
            "values": lambda: values(asked),
            "training": lambda: training(asked),
            "memory": lambda: peaks_of("memory", asked, futures["memory"]),
            "imported": lambda: peaks_of("imported", asked, futures["imported"]),
            "steps": lambda: peaks_of("steps", asked, futures["steps"]),
            "engine": lambda: engine(asked),
            "time": lambda: timed(asked, given.calibration, given.compile),
        }
        for section in (each for each in COLUMNS if each in chosen):
            rows: list[Row] = []
            try:
                for row in sections[section]():
                    rows.append(row)
                    cells = (f"{key}={_cell(value)}" for key, value in row.items() if key not in SILENT)
                    print(*cells, file=sys.stderr, flush=True)
                    if given.json:
                        given.json.write_text(json.dumps(everything | {section: rows}), encoding="utf-8")
            except Exception as error:  # the next section goes on
                rows.append({"what": section, "error": message_of(error)})
            everything[section] = rows
            columns = COLUMNS[section]
            show(
                f"\n{section}, {everything['device']}, torch {torch.__version__}, {time.perf_counter() - began:.0f} s",
                ["what", *columns],
                [[row["what"], *(_cell(row.get(column)) for column in columns)] for row in rows if "error" not in row],
            )
            for row in rows:
                if "error" in row:
                    print(f"failed: {row['what']}: {row['error']}")


if __name__ == "__main__":
    main()

"""The predicted time of a training step beside the measured one: the package's engine, and PyTorch with autograd.

    learncost calibrate
    python benchmarks/prediction.py [--on here] [--steps 5] [--budget 60]

Needs torch (extra `torch`) and a calibration of this machine. Prediction and run alternate, model by model: first what
the tables say, then the median of some steps. No shape of these models is among the operations that `calibrate` times.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping
from typing import Any

from against_torch_and_jax.engine_side import EngineSide
from against_torch_and_jax.sides import Learner
from against_torch_and_jax.subject import Subject
from against_torch_and_jax.torch_side import Eager
from measure import show

from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.devices.rates import rates
from learncost.ir.errors import InputError
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.reports.memory.planner import smallest
from learncost.timing.predict import Time
from learncost.timing.predict import time as predicted


def gpt2(layers: int, width: int, heads: int, length: int, vocabulary: int) -> Mapping[str, Any]:
    """GPT-2's kind as keys of a config.json."""
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": length, "vocab_size": vocabulary}
    return {"model_type": "gpt2", **sizes}


def llama(layers: int, width: int, heads: int, inner: int, length: int, vocabulary: int) -> Mapping[str, Any]:
    """Llama's kind as keys of a config.json."""
    return {
        "model_type": "llama",
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": length,
        "vocab_size": vocabulary,
    }


SUBJECTS = (
    Subject("gpt2 2 x 64", gpt2(2, 64, 2, 32, 96), 8, 32),
    Subject("gpt2 4 x 128", gpt2(4, 128, 4, 64, 96), 12, 64),
    Subject("gpt2 4 x 128", gpt2(4, 128, 4, 64, 96), 1, 64),
    Subject("llama 4 x 128", llama(4, 128, 4, 352, 128, 256), 4, 128),
    Subject("gpt2 2 x 256, long", gpt2(2, 256, 8, 1024, 96), 1, 1024),
    Subject("gpt2 4 x 256", gpt2(4, 256, 4, 128, 4096), 8, 128),
    Subject("gpt2 6 x 384", gpt2(6, 384, 6, 256, 96), 1, 256),
    Subject("gpt2 6 x 384", gpt2(6, 384, 6, 256, 96), 4, 256),
    Subject("llama 6 x 384", llama(6, 384, 6, 1024, 256, 96), 4, 256),
    Subject("gpt2 8 x 512", gpt2(8, 512, 8, 256, 8192), 2, 256),
    Subject("gpt2 3 x 768", gpt2(3, 768, 12, 128, 16384), 2, 128),
    Subject("llama 8 x 640", llama(8, 640, 10, 1728, 128, 16000), 1, 128),
    Subject("gpt2 10 x 768", gpt2(10, 768, 12, 128, 32768), 1, 128),
    Subject("gpt2 12 x 768", gpt2(12, 768, 12, 128, 50304), 1, 128),
)
"""From 0.1 to 124 million parameters."""


def predictions(subject: Subject, on: str) -> dict[str, Time]:
    """What the tables say of a step of the engine under the plan that it chooses, and of PyTorch's with autograd."""
    table, sizes = step(subject.built, "bp", "adamw"), subject.sizes
    found = {}
    for engine, plan in (("kernels", smallest(table, sizes)), ("operators", "flash")):
        rows = price(planned(table, plan), sizes, book("run")).rows
        found[engine] = predicted(rows, sizes, rates(on, "fp32", engine))
    return found


def measured(side: Learner, subject: Subject, steps: int) -> float:
    """The median of some steps, after two that fill caches and compile."""
    side.iteration(2)
    return statistics.median(side.iteration(steps)["seconds"])


def main() -> None:
    """Print the table; the errors are of the predicted against the measured time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--on", default="here", help="here, or a file of `learncost calibrate --out`")
    parser.add_argument("--steps", type=int, default=5, help="of which the median counts")
    parser.add_argument("--budget", type=float, default=float("inf"), help="seconds; models left then are left out")
    given = parser.parse_args()
    began, rows = time.perf_counter(), []
    errors: dict[str, list[float]] = {"kernels": [], "operators": []}
    inside = dict.fromkeys(errors, 0)
    sides: dict[str, Any] = {"kernels": EngineSide, "operators": Eager}
    for subject in SUBJECTS:
        if time.perf_counter() - began > given.budget:
            print(f"left out: {subject.model}", file=sys.stderr)
            continue
        cells = [subject.model, f"{subject.batch_size} x {subject.seq_len}", f"{subject.parameters / 1e6:.1f}"]
        try:
            expected = predictions(subject, given.on)
        except InputError as error:
            sys.exit(f"prediction.py: {error}")
        for engine, make in sides.items():
            side = make()
            side.begin(subject)
            taken, own = measured(side, subject, given.steps), expected[engine]
            del side
            errors[engine].append(own.total / taken - 1)
            inside[engine] += own.low <= taken <= own.high
            cells += [f"{own.total * 1e3:.2f}", f"{taken * 1e3:.2f}", f"{errors[engine][-1]:+.0%}"]
        rows.append(cells)
        print(" ".join(cells), file=sys.stderr, flush=True)
    heads = ("model", "batch", "M parameters", "engine predicted ms", "ms", "off", "PyTorch predicted ms", "ms", "off")
    show("Predicted and measured steps: learncost's engine, PyTorch with autograd", heads, rows)
    for engine, own in errors.items():
        share = statistics.median(map(abs, own))
        name = {"kernels": "engine", "operators": "PyTorch"}[engine]
        print(f"\n{name}: off by {share:.1%} in the median; {inside[engine]} of {len(own)} inside the interval", end="")
    print()


if __name__ == "__main__":
    main()

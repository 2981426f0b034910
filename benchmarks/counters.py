"""One estimate of a training step's FLOPs of GPT-2 124M: learncost beside torch's FlopCounterMode on meta tensors.

    python benchmarks/counters.py

Needs torch and transformers (extra `test`). Both count the matrix products of forward and backward of a batch of one
sequence of 1,024 tokens, in one process and by turns. learncost is measured with nothing remembered between runs, as in
a fresh process after its imports, and as a second question to the same process.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable

from measure import show
from reading import forget

import learncost as lc

REPEATS = 15


def by_learncost() -> int:
    """FLOPs of matrix products."""
    return int(lc.cost("gpt2", "bp", "matmul").total.flops)


def by_torch() -> tuple[Callable[[], object], Callable[[object], int]]:
    """How torch makes the model, and how it counts a step of it."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import GPT2Config, GPT2LMHeadModel

    def make() -> object:
        with torch.device("meta"):
            return GPT2LMHeadModel(GPT2Config(attn_implementation="eager"))

    def count(model: object) -> int:
        assert isinstance(model, GPT2LMHeadModel)
        tokens = torch.zeros((1, 1024), dtype=torch.long, device="meta")
        with FlopCounterMode(display=False) as counter:
            model(tokens, labels=tokens).loss.backward()
        return int(counter.get_total_flops())

    return make, count


def main() -> None:
    """Print medians, and whether both say the same."""
    try:
        make, count = by_torch()
    except ImportError as error:
        sys.exit(f"counters.py needs torch and transformers: {error}")
    rows = ("learncost, nothing remembered", "learncost, asked again", "torch: the model on meta", "torch: counting")
    times: dict[str, list[float]] = {name: [] for name in rows}
    answers = set()
    for iteration in range(REPEATS + 1):
        forget()
        marks = [time.perf_counter()]
        answers.add(by_learncost())
        marks.append(time.perf_counter())
        answers.add(by_learncost())
        marks.append(time.perf_counter())
        model = make()
        marks.append(time.perf_counter())
        answers.add(count(model))
        marks.append(time.perf_counter())
        if iteration:
            for name, start, end in zip(rows, marks, marks[1:], strict=False):
                times[name].append(end - start)
    import torch
    import transformers

    title = f"Matrix products of a step of gpt2; torch {torch.__version__}, transformers {transformers.__version__}"
    cells = [(name, f"{statistics.median(own) * 1e3:.2f}", f"{min(own) * 1e3:.2f}") for name, own in times.items()]
    show(title, ("", "median ms", "best ms"), cells)
    print("\nall say " + " and ".join(f"{answer:,}" for answer in sorted(answers)) + " FLOPs")


if __name__ == "__main__":
    main()

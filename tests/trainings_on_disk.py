"""What the tests of `learncost train` share: a run that says nothing, a text, and the command in a process."""

import json
import os
import subprocess
import sys

import numpy as np
from safetensors.numpy import load_file

COMMAND = [sys.executable, "-m", "learncost.cli.command"]
TINY = ["--num-hidden-layers", "1", "--hidden-size", "8", "--num-attention-heads", "2", "--batch-size", "2"]
TINY += ["--seq-len", "16", "--model", "gpt2"]
SIZES = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2}


def numbered_texts(folder, number=8):
    """The folder with some documents; every line but the numbers is foreseeable."""
    for document in range(number):
        lines = [f"line {line} of document {document * 7919 % 1000}\n" for line in range(30)]
        (folder / f"{document}.txt").write_text("".join(lines))
    return folder


class Silent:
    """Keeps the steps that it is told of."""

    def __init__(self):
        self.steps, self.notices, self.samples = [], [], []

    def say(self, text):
        self.notices.append(text)

    def begin(self, step, steps):
        self.began = (step, steps)

    def stepped(self, step):
        self.steps.append(step)

    def sampled(self, step, text):
        self.samples.append(text)


def environment():
    """One thread: what is compared are bits, and the machine is shared."""
    return {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def command(*arguments, **keys):
    """The command in a process of its own, to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)], capture_output=True, text=True, env=environment(), timeout=120, **keys
    )


def weights_of(folder):
    """Every array of a run: weights, and the optimizer's state."""
    (optimizer,) = folder.glob("optimizer-*.safetensors")
    return load_file(folder / "model.safetensors") | {
        f"{optimizer.name} {name}": array for name, array in load_file(optimizer).items()
    }


def same(one, other):
    """Whether two runs ended with the same weights and state, bit for bit, and with the same losses."""
    first, second = weights_of(one), weights_of(other)
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert losses_of(one) == losses_of(other)
    assert (one / "samples.txt").read_bytes() == (other / "samples.txt").read_bytes()
    return True


def losses_of(folder):
    """Each line of the metrics without what a clock says, or the operating system of memory."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if "second" not in name and name not in ("memory", "process")}
        for line in lines
    ]

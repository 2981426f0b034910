"""Weights from a board's words into a file: `make learned.safetensors`. Back: `learncost emit --weights FILE`."""

import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

SHAPES = {"W1": (64, 64), "b1": (64,), "W2": (64, 32), "b2": (32,), "W3": (32, 10), "b3": (10,)}


def read(text: str) -> dict[str, np.ndarray]:
    """The arrays of lines such as `weights b3 3c8a1f00 ...`."""
    arrays = {}
    for line in text.splitlines():
        head, _, rest = line.partition(" ")
        if head == "weights":
            name, *ops = rest.split()
            bits = np.array([int(op, 16) for op in ops], np.uint32)
            arrays[name] = bits.view(np.float32).reshape(SHAPES[name])
    return arrays


if __name__ == "__main__":
    save_file(read(sys.stdin.read()), Path(sys.argv[1]))

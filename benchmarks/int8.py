"""Training with numbers of 8 bits on scikit-learn's digits, five seeds: what it takes, and how well it learns.

    python benchmarks/int8.py [frozen] [learned] [integers] [--epochs 10]

`frozen`: the network of examples/microcontroller learns the digits in fp32; then they are shown lying on their sides,
and it learns these with its matrices frozen, in fp32 and in int8, which products read: the last layer alone, or paths
of low rank beside the others too. `learned`: it learns the digits from the start with matrices that are themselves of
8 bits. `integers`: it does so in whole numbers alone.

RAM, flash and MACCs are those of `learncost emit --backend c99`; what is learned is what NumPy computes, which
`learncost verify --engine c99` holds that program to, and of whole numbers what that program computes, on this machine.
Of the rates the one is taken that is best on images 1,100 to 1,300 with seed 0; reported are the other 497, of seeds 1
to 5, after so many times of the first 1,100, four by four.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import learncost as lc
from learncost.cli import boards
from learncost.cli.emit_c99 import FirmwareOptions, program_of
from learncost.engines import freestanding as alone
from learncost.engines.boards import BOARDS
from learncost.engines.rounding import whole
from learncost.ir.precision import precision_of
from learncost.models.configuration import Configuration, configure

EXAMPLE = Path(__file__).parent.parent / "examples" / "microcontroller"
BATCH, SEEDS, RATES = 4, (1, 2, 3, 4, 5), (0.003, 0.01, 0.03)
LEARNED, CHOSEN = 1100, 1300


def digits(sideways: bool = False) -> tuple[Any, Any]:
    """Images in one shuffled order, as the example has them, and their classes."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    images = found.images[order]
    images = np.rot90(images, axes=(1, 2)) if sideways else images
    return images.reshape(-1, 64) / 16, found.target[order]


def drawn(seed: int) -> dict[str, Any]:
    """Weights before a training: He et al. 2015, section 2.2."""
    rng = np.random.default_rng(seed)
    shapes = {"W1": (64, 64), "W2": (64, 32), "W3": (32, 10)}
    matrices = {name: rng.normal(size=shape) * np.sqrt(2 / shape[0]) for name, shape in shapes.items()}
    return matrices | {"b1": np.zeros(64), "b2": np.zeros(32), "b3": np.zeros(10)}


def learned(training: lc.Training, images: Any, classes: Any, epochs: int, seed: int) -> tuple[float, float]:
    """The shares that are right after a training."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(LEARNED)
        for first in range(0, LEARNED, BATCH):
            places = order[first : first + BATCH]
            training.step(X=images[places], targets=classes[places])

    return right(training, images, classes)


def right(training: lc.Training, images: Any, classes: Any) -> tuple[float, float]:
    """The shares that are right: of the images by which rates are chosen, and of those reported."""

    def of(places: slice) -> float:
        _, scores = training.look(X=images[places], targets=classes[places])
        return float(np.mean(np.argmax(scores, -1) == classes[places]))

    return of(slice(LEARNED, CHOSEN)), of(slice(CHOSEN, None))


Made = Callable[[int, float], lc.Training]


def best(made: Made, images: Any, classes: Any, epochs: int) -> tuple[float, list[float]]:
    """The rate that is best on the images for that, and what is right of the others, for every seed."""
    rate = max(RATES, key=lambda rate: learned(made(0, rate), images, classes, epochs, 0)[0])
    return rate, [learned(made(seed, rate), images, classes, epochs, seed)[1] for seed in SEEDS]


def taken(configuration: Configuration, learning: Mapping[str, Any]) -> str:
    """RAM, arena, flash and MACCs of a step as `emit --backend c99` writes it."""
    dtype = precision_of(learning["precision"]).computed
    program = program_of(configuration, FirmwareOptions(entry="step", batch_size=BATCH, dtype=dtype), learning)
    program_memory = program.firmware.program_memory
    maccs = lc.price(program.tables["step"], program.sizes, lc.book("run")).maccs
    return f"{program_memory.ram:,} | {program_memory.arena:,} | {program_memory.constants:,} | {maccs:,}"


def accuracy_text(right: list[float]) -> str:
    """Mean and deviation."""
    return f"{100 * statistics.mean(right):.1f} ± {100 * statistics.stdev(right):.1f} %"


def frozen(configuration: Configuration, epochs: int) -> None:
    """A network that knows the digits learns them lying on their sides, with frozen matrices."""
    upright, sideways = digits(), digits(sideways=True)
    known = {}
    for seed in (0, *SEEDS):
        training = lc.Training(configuration, "bp", "momentum", weights=drawn(seed), dtype=np.float32)
        learned(training, *upright, epochs, seed)
        known[seed] = training.weights
    print("| learns | precision | rate | right | RAM | arena | flash | MACCs |\n|---|---|---|---|---|---|---|---|")
    before = []
    for seed in SEEDS:
        training = lc.Training(configuration, "bp", "momentum", weights=known[seed], dtype=np.float32)
        before.append(learned(training, *sideways, 0, seed)[1])
    print(f"| nothing | fp32 | | {accuracy_text(before)} | | | | |")
    cases = {
        "everything": {},
        "head": {"train": "W3,b3"},
        "head and paths of rank 4": {"train": "W3,b3", "lora": "W1,W2", "lora_rank": 4, "lora_alpha": 4},
    }
    for name, learns in cases.items():
        for precision in ("fp32", "int8-frozen-fp32", "int8-frozen-products") if learns else ("fp32",):
            learning = {"procedure": "bp", "optimizer": "momentum", "precision": precision, **learns}

            def made(seed: int, rate: float, learning: Mapping[str, Any] = learning) -> lc.Training:
                more = {"weights": known[seed], "learning_rate": rate, "dtype": np.float32, "seed": seed}
                return lc.Training(configuration, **learning, **more)

            rate, right = best(made, *sideways, epochs)
            print(
                f"| {name} | {precision} | {rate:g} | {accuracy_text(right)} | {taken(configuration, learning)} |",
                flush=True,
            )


def codes(configuration: Configuration, epochs: int) -> None:
    """A network learns the digits with matrices in fp32 and in 8 bits."""
    data = digits()
    print("| optimizer | precision | rate | right | RAM | arena | flash | MACCs |\n|---|---|---|---|---|---|---|---|")
    for optimizer, factor in (("sgd", 10), ("momentum", 1)):
        for precision in ("fp32", "int8-learned", "int8-learned-products"):
            learning = {"procedure": "bp", "optimizer": optimizer, "precision": precision}

            def made(
                seed: int, rate: float, learning: Mapping[str, Any] = learning, factor: int = factor
            ) -> lc.Training:
                more = {"weights": drawn(seed), "learning_rate": rate * factor, "dtype": np.float32, "seed": seed}
                return lc.Training(configuration, **learning, **more)

            rate, right = best(made, *data, epochs)
            taken_here = taken(configuration, learning)
            print(
                f"| {optimizer} | {precision} | {rate * factor:g} | {accuracy_text(right)} | {taken_here} |", flush=True
            )


def integers(configuration: Configuration, epochs: int) -> None:
    """Whole numbers alone: here the program in C99 itself learns, on this machine."""
    images, classes = digits()
    learning = {"procedure": "bp", "optimizer": "sgd", "precision": "integer-only"}
    settings = FirmwareOptions("step", plan="epilogue-update", batch_size=BATCH, dtype="int32")

    def shares(seed: int, rate: float) -> tuple[float, float]:
        program = program_of(configuration, settings, learning, drawn(seed))
        training, rng = program.training, np.random.default_rng(seed)
        pixels = whole(training.table(), "X", images)
        batches = [
            {"X": pixels[order[first : first + BATCH]], "targets": classes[order[first : first + BATCH]]}
            for order in (rng.permutation(LEARNED) for _ in range(epochs))
            for first in range(0, LEARNED, BATCH)
        ]
        begin = {**training.weights, "lr": whole(training.table(), "lr", rate)}
        arrays = alone.run(program.firmware, begin, batches, ("-O2",)).arrays
        training.load({**training.weights, **arrays}, {}, len(batches))
        return right(training, images, classes)

    rate = max((rate * 10 for rate in RATES), key=lambda rate: shares(0, rate)[0])
    reported = [shares(seed, rate)[1] for seed in SEEDS]
    print("| precision | rate | right | RAM | arena | flash | MACCs |\n|---|---|---|---|---|---|---|")
    print(f"| integer-only | {rate:g} | {accuracy_text(reported)} | {taken(configuration, learning)} |", flush=True)

    print(f"A step on an emulated Cortex-M0 with 16 KiB of RAM: {on_microbit(configuration, settings, learning)}")


MICROBIT = replace(BOARDS["cortex-m3"], name="cortex-m0", flags=("-mcpu=cortex-m0", "-mthumb"), arguments=("microbit",))
"""QEMU's BBC micro:bit: 16 KiB of RAM, 256 KiB of flash."""

CLOCK = 25 / 16
"""Its counter has 16 MHz, where a program takes it for one of 25: by so much instructions are more than it says."""


def on_microbit(configuration: Configuration, settings: FirmwareOptions, learning: Mapping[str, Any]) -> str:
    """Instructions of a step, and whether its bits are this machine's."""
    if MICROBIT.missing:
        return f"not made, {MICROBIT.missing} is not installed"
    program = program_of(configuration, settings, learning)
    with TemporaryDirectory() as name:
        sources = boards.files(program.firmware, boards.inputs_of(program), 3, Path(name))
        here, there = boards.on_host(sources, Path(name)), boards.on_board(MICROBIT, sources, Path(name), 2**14, 2**18)
    same = "the same bits as here" if here.numbers == there.numbers else "other bits than here"
    return f"{there.instructions * CLOCK:,.0f} instructions, {same}"


PARTS = {"frozen": frozen, "learned": codes, "integers": integers}


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS], default=[])
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()
    configuration = configure(lc.layer((EXAMPLE / "net.table").read_text(encoding="utf-8")), {})
    for part in arguments.parts or PARTS:
        PARTS[part](configuration, arguments.epochs)


if __name__ == "__main__":
    main()

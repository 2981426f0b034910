"""Published figures on learning on microcontrollers beside what the tables say of the same: each difference explained.

python benchmarks/published_microcontrollers.py

The figures, with their sources, are in microcontrollers.json; the autoencoder of MLCommons-Tiny is autoencoder.table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import learncost as lc
from learncost.cli.emit_c99 import FirmwareOptions, FirmwareProgram, program_of
from learncost.models.configuration import configure

HERE = Path(__file__).parent
WIDTHS = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640)
"""Of the autoencoder: its input, nine hidden layers, its output."""

TERM = "their term for the error, one for each of the 640 outputs, is no matrix product"
STORED = "their rule leaves gradients of weights out: under the plan epilogue-update they are indeed never stored"
NOT_DERIVED = "Forward-Forward is no procedure of the tables: it needs negative data, which are another task"
NO_LAYERS = "the layers of this convolutional network are not in what was read; its tables are not written"
BESIDE = "32,898 a pass are no products: 28,672 residual sums, 4,096 pooled values, 130 for the softmax"
EXCERPT = "its table was not read, only an abstract or an excerpt: the network, or the rule, is not known"
TAKEN_OVER = ("pau-cycles-per-macc-g474", "trainlib-mac-per-cycle", "trainlib-vs-stm32l4")


@dataclass(frozen=True)
class Compared:
    """A published figure beside ours; None where it is not reproduced, with the reason."""

    name: str
    published: Any
    ours: float | None
    why: str


def figures() -> Mapping[str, Mapping[str, Any]]:
    """The published figures by their names."""
    rows = json.loads((HERE / "microcontrollers.json").read_text(encoding="utf-8"))["figures"]
    return {row["id"]: row for row in rows}


def autoencoder(procedure: str, plan: str) -> FirmwareProgram:
    """A step on one sample, as a program in C99."""
    text = (HERE / "autoencoder.table").read_text(encoding="utf-8")
    learning: dict[str, Any] = {"procedure": procedure, "optimizer": "sgd"}
    if "pepita" in procedure:
        learning["projected"] = ("X",)
    settings = FirmwareOptions(entry="step", prefix="auto", plan=plan, batch_size=1)
    return program_of(configure(lc.layer(text), {}), settings, learning)


def maccs(procedure: str) -> int:
    """Matrix products of a step on one sample, as priced."""
    program = autoencoder(procedure, "epilogue-update")
    return int(lc.price(program.tables["step"], program.sizes, lc.book("matmul")).maccs)


def buffers(procedure: str) -> int:
    """Elements of activations by the authors' rule.

    All buffers; of MEMPEPITA the two largest neighbours, and the larger of these once more.
    """
    if procedure != "mempepita":
        return sum(WIDTHS)
    return max(left + right + max(left, right) for left, right in pairwise(WIDTHS))


def compared() -> Iterator[Compared]:
    """Every figure that is published."""
    parameters = sum(left * right + right for left, right in pairwise(WIDTHS))
    inference = sum(left * right for left, right in pairwise(WIDTHS))
    ours: dict[str, tuple[float, str]] = {
        "pau-ae-parameters": (parameters, ""),
        "pau-ae-inference-macc": (inference, ""),
        "pau-ae-bp-ms-h735": ((maccs("bp") + WIDTHS[-1]) * 3 / 550e3, TERM),
        "pau-talk-fc": ((parameters + buffers("mempepita")) / (parameters + buffers("bp")) - 1, STORED),
        "pau-ds-cnn-parameters": (ds_cnn()[0], ""),
        "pau-ds-cnn-inference-macc": (
            ds_cnn()[1],
            "8,000 fewer for the values that are pooled; 228 are left: the softmax",
        ),
        "pau-resnet-parameters": (resnet()[0], ""),
        "pau-resnet-bp-macc": (3 * resnet()[1] - resnet()[2], f"{BESIDE}, in the forward pass; 4,166 are left"),
        "pau-resnet-pepita-macc": (3 * resnet()[1] + 3072 * 10, f"{BESIDE}, in two passes; 130 are left"),
        "pau-resnet-mempepita-macc": (4 * resnet()[1] + 3072 * 10, f"{BESIDE}, in three passes; 190 are left"),
    }
    known = figures()
    reductions = [
        known["pau-ds-cnn-mempepita-ram"]["value"] / known["pau-ds-cnn-bp-ram"]["value"] - 1,
        known["pau-mobilenet-mempepita-ram"]["value"] / known["pau-mobilenet-bp-ram"]["value"] - 1,
        (int(known["pau-resnet-parameters"]["value"]) + known["pau-resnet-mempepita-activations"]["value"])
        / (int(known["pau-resnet-parameters"]["value"]) + known["pau-resnet-bp-activations"]["value"])
        - 1,
    ]
    ours["pau-talk-cnn"] = (sum(reductions) / 3, "follows from their own figures of the three networks")
    for procedure in ("bp", "pepita", "mempepita"):
        ours[f"pau-ae-{procedure}-activations"] = (buffers(procedure), "")
        ours[f"pau-ae-{procedure}-ram"] = (parameters + buffers(procedure), STORED)
    for name, figure in known.items():
        if name in ours:
            yield Compared(name, figure["value"], *ours[name])
        elif name in TAKEN_OVER:
            yield Compared(name, figure["value"], None, "cost --on takes it over for the core: it is no count")
        else:
            ff = "-ff-" in name
            why = NOT_DERIVED if ff else NO_LAYERS if name.startswith("pau") else EXCERPT
            yield Compared(name, figure["value"], None, why)


def ds_cnn() -> tuple[int, int]:
    """Parameters and MACCs of DS-CNN (Banbury et al. 2021): a convolution, four pairs of them, a classifier."""
    places, channels = 25 * 5, 64
    pairs = 4 * (9 * channels + channels + channels * channels + channels)
    parameters = 40 * channels + channels + pairs + channels * 12 + 12
    products = places * channels * (40 + 4 * (9 + channels)) + channels * 12
    return parameters, products


def resnet() -> tuple[int, int, int]:
    """Parameters and MACCs of ResNet8 (Banbury et al. 2021), and those of its first layer, which has no backward pass.

    By kernel points, channels in and out, and places of the result.
    """
    convolutions = [(9, 3, 16, 1024), (9, 16, 16, 1024), (9, 16, 16, 1024)]
    for before, after, places in ((16, 32, 256), (32, 64, 64)):
        convolutions += [(9, before, after, places), (9, after, after, places), (1, before, after, places)]
    parameters = sum(points * inner * outer + outer for points, inner, outer, _ in convolutions) + 64 * 10 + 10
    products = [points * inner * outer * places for points, inner, outer, places in convolutions]
    return parameters, sum(products) + 640, products[0]


def executed() -> Iterator[tuple[str, str, int, int, int]]:
    """What the autoencoder takes when it runs in C99, in elements of fp32: weights, arena, all RAM."""
    for procedure in ("bp", "pepita", "mempepita"):
        for plan in ("fused-update", "epilogue-update"):
            program_memory = autoencoder(procedure, plan).firmware.program_memory
            yield procedure, plan, program_memory.weights // 4, program_memory.arena // 4, program_memory.ram // 4


def main() -> None:
    """Print both tables."""
    for row in compared():
        ours = "not reproduced" if row.ours is None else f"{row.ours:,.6g}" if row.ours % 1 else f"{int(row.ours):,}"
        print(f"| `{row.name}` | {row.published} | {ours} | {row.why} |")
    for procedure, published in (("bp", 711_296), ("pepita", 1_202_816), ("mempepita", 1_467_008)):
        print(f"| MACCs of a step, {procedure} | {published:,} | {maccs(procedure):,} | {TERM} |")
    for procedure, plan, weights, arena, ram in executed():
        print(f"| {procedure} | {plan} | {weights:,} | {arena:,} | {ram:,} |")


if __name__ == "__main__":
    main()

"""PEPITA against training the head alone, backpropagation and chance: a dense network on scikit-learn's digits.

The network is written in the notation; its updates are the ones that derivation gives, bound to the differences of two
forward passes. Recipe of Dellaferrera & Kreiman 2022: data in [0, 1], no biases, dropout that keeps 0.9 with one mask
for all passes, momentum 0.9, batches of 64, learning rate times 0.1 at 60 and 90 % of the epochs. Every method has the
same grid of learning rates; each is judged at its best one on a validation part, on a test part of its own.

    python examples/forward_learning.py [WIDTH ...]     widths of the hidden layers; 32 by default

The wider the hidden layer, the more the head alone can do with features that are never trained: with 32 units it stays
nine points behind PEPITA, with two layers of 64 and 32 thirteen, with 256 units it is as good.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
from sklearn.datasets import load_digits

import learncost as lc

SEEDS = (0, 1, 2)
RATES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
METHODS = ("pepita", "head only", "bp")
EPOCHS, BATCH, KEEP = 30, 64, 0.9
PARTS = (1000, 1300)  # training, validation, test: 1000, 300, 497 images


def network(hidden: int) -> lc.Layer:
    """A dense network without biases: products, relu, a mask of dropout, cross-entropy."""
    lines = []
    for i in range(hidden):
        source = "X" if i == 0 else f"D{i}"
        lines += [
            f"  H{i + 1}[B x{i + 1}] = {source}[B x{i}] W{i + 1}[x{i} x{i + 1}]",
            f"  G{i + 1}[B x{i + 1}] = relu(H{i + 1}[B x{i + 1}])",
            f"  D{i + 1}[B x{i + 1}] = G{i + 1}[B x{i + 1}] mask{i + 1}[B x{i + 1}]",
        ]
    masks = " ".join(f"mask{i + 1}" for i in range(hidden))
    weights = " ".join(f"W{i + 1}" for i in range(hidden + 1))
    source = f"D{hidden}" if hidden else "X"
    return lc.layer(
        f"network(X {masks} targets share; {weights}) -> loss\n"
        + "\n".join(lines)
        + f"""
  L[B c] = {source}[B x{hidden}] W{hidden + 1}[x{hidden} c]
  P[B c] = log_softmax[c](L[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
constants: {masks}
share: share of targets"""
    )


@dataclass(frozen=True)
class Data:
    """Images in [0, 1] and their digits, in three parts."""

    images: list[np.ndarray]
    digits: list[np.ndarray]


@cache
def data(seed: int) -> Data:
    """The digits, shuffled and parted by the seed."""
    found = load_digits()
    order = np.random.default_rng([seed, 1]).permutation(len(found.target))
    return Data(np.split(found.data[order] / 16, PARTS), np.split(found.target[order], PARTS))


def training(method: str, rate: float, seed: int, widths: list[int]) -> lc.LayerTraining:
    """A training at its start. PEPITA with a modulation of no strength updates the head alone."""
    generator = np.random.default_rng([seed, 2])
    sizes = list(pairwise([64, *widths, 10]))
    weights = {f"W{i + 1}": generator.uniform(-1, 1, s) * np.sqrt(6 / s[0]) for i, s in enumerate(sizes)}
    return lc.LayerTraining(
        network(len(widths)),
        weights,
        "pepita" if method == "head only" else method,
        "momentum",
        projected=("X",),
        scale=0.0 if method == "head only" else None,
        learning_rate=rate,
        momentum=0.9,
        seed=seed,
        dtype=np.float32,
    )


def accuracy(learned: lc.LayerTraining, images: np.ndarray, digits: np.ndarray, widths: list[int]) -> float:
    """How many digits are told right, without dropout."""
    masks = {f"mask{i + 1}": np.ones((len(digits), width)) for i, width in enumerate(widths)}
    values = learned.forward(X=images, targets=digits, **masks)
    return float((values["P"].argmax(axis=1) == digits).mean())


def learn(method: str, rate: float, seed: int, widths: list[int], epochs: int = EPOCHS) -> lc.LayerTraining:
    """Train on the first part."""
    found = data(seed)
    images, digits = found.images[0], found.digits[0]
    learned = training(method, rate, seed, widths)
    generator = np.random.default_rng([seed, 3])
    for epoch in range(epochs):
        if epoch in (epochs * 6 // 10, epochs * 9 // 10):
            learned.learning_rate *= 0.1
        order = generator.permutation(len(digits))
        for start in range(0, len(digits) - BATCH + 1, BATCH):
            rows = order[start : start + BATCH]
            drawn = {f"mask{i + 1}": generator.random((BATCH, width)) < KEEP for i, width in enumerate(widths)}
            masks = {name: mask / KEEP for name, mask in drawn.items()}
            learned.step(X=images[rows], targets=digits[rows], **masks)
    return learned


@dataclass(frozen=True)
class Result:
    """The chosen learning rate of a method, the accuracy on the test part for every seed, and what another rate of the
    grid would have given at best, chosen on the test part itself."""

    rate: float
    test: tuple[float, ...]
    hindsight: float

    @property
    def mean(self) -> float:
        return float(np.mean(self.test))


def compare(widths: list[int], epochs: int = EPOCHS) -> dict[str, Result]:
    """Every method at the learning rate that is best for it on the validation part, mean over the seeds."""
    results = {}
    for method in METHODS:
        found: dict[float, tuple[float, tuple[float, ...]]] = {}
        for rate in RATES:
            learned = [learn(method, rate, seed, widths, epochs) for seed in SEEDS]
            validation, test = (_accuracies(learned, part, widths) for part in (1, 2))
            found[rate] = float(np.mean(validation)), test
        rate = max(found, key=lambda rate: found[rate][0])
        hindsight = max(float(np.mean(test)) for _, test in found.values())
        results[method] = Result(rate, found[rate][1], hindsight)
    most = [np.bincount(data(seed).digits[0]).argmax() for seed in SEEDS]
    chance = tuple(float((data(seed).digits[2] == digit).mean()) for seed, digit in zip(SEEDS, most, strict=True))
    return {**results, "chance": Result(0.0, chance, float(np.mean(chance)))}


def _accuracies(learned: list[lc.LayerTraining], part: int, widths: list[int]) -> tuple[float, ...]:
    found = [data(seed) for seed in SEEDS]
    return tuple(
        accuracy(one, own.images[part], own.digits[part], widths) for one, own in zip(learned, found, strict=True)
    )


def main() -> None:
    """Print the comparison, and that MEMPEPITA ends where PEPITA does."""
    widths = [int(text) for text in sys.argv[1:]] or [32]
    print(f"64-{'-'.join(map(str, widths))}-10, seeds {SEEDS}, {EPOCHS} epochs; accuracy on 497 images")
    results = compare(widths)
    for method, result in results.items():
        each = " ".join(f"{value:.3f}" for value in result.test)
        rate = f"   learning rate {result.rate}; at best {result.hindsight:.3f}" if result.rate else ""
        print(f"{method:10} {result.mean:.3f}   ({each}){rate}")
    one, two = (learn(name, results["pepita"].rate, SEEDS[0], widths) for name in ("pepita", "mempepita"))
    same = all(np.array_equal(one.weights[name], two.weights[name]) for name in one.weights)
    print(f"MEMPEPITA's weights equal PEPITA's bit for bit: {same}")


if __name__ == "__main__":
    main()

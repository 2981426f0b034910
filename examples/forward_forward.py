"""Forward-Forward on digits: two layers that each learn from a goodness of their own, beside backpropagation.

It is no procedure of `--procedure`, because it wants other inputs than a model has: images with a label written into
them, right ones and wrong ones. As a table it is backpropagation with gradients stopped, examples/layers/
forward_forward.table, and so everything that is read off tables holds of it. An image is classified by the label
with which its goodness is largest, so that ten forward passes classify it.

    python examples/forward_forward.py          five seeds; half a minute of one processor
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import learncost as lc

Arrays = dict[str, np.ndarray]

FORWARD_FORWARD = lc.layer((Path(__file__).parent / "layers" / "forward_forward.table").read_text(encoding="utf-8"))
NETWORK = lc.layer("""network(X targets share; W1 b1 W2 b2 W3 b3) -> loss
  constants: X
  A1[B f] = X[B d] W1[d f]
  S1[B f] = A1[B f] + b1[f]
  H1[B f] = relu(S1[B f])
  A2[B e] = H1[B f] W2[f e]
  S2[B e] = A2[B e] + b2[e]
  H2[B e] = relu(S2[B e])
  A3[B c] = H2[B e] W3[e c]
  S3[B c] = A3[B c] + b3[c]
  P[B c] = log_softmax[c](S3[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
targets: index of c
share: share of targets""")

CLASSES, WIDTH, BATCH, TRAINED_ON = 10, 128, 64, 1300


def digits() -> tuple[Arrays, Arrays]:
    """Images of 64 pixels from 0 to 1, those that are learned from and the others."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    parts = order[:TRAINED_ON], order[TRAINED_ON:]
    first, second = ({"X": data.data[part] / 16, "targets": data.target[part]} for part in parts)
    return first, second


def with_labels(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The images with ten more pixels, of which that of the label is 1."""
    return np.concatenate([images, np.eye(CLASSES)[labels]], axis=1)


def start(generator: np.random.Generator, *widths: int) -> Arrays:
    """Weights whose products keep the size of what they multiply, halved by the rectifier, and biases of 0."""
    weights: Arrays = {}
    for number, (wide, made) in enumerate(pairwise(widths), 1):
        weights[f"W{number}"] = generator.standard_normal((wide, made)) * np.sqrt(2 / wide)
        weights[f"b{number}"] = np.zeros(made)
    return weights


def batches(data: Arrays, steps: int, generator: np.random.Generator) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Images drawn by chance, with their labels."""
    for _ in range(steps):
        drawn = generator.integers(0, len(data["targets"]), BATCH)
        yield data["X"][drawn], data["targets"][drawn]


def goodness(weights: Arrays, images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The goodness of both layers together."""
    values = lc.run(FORWARD_FORWARD, {"X": with_labels(images, labels), "y": np.ones(len(labels)), **weights})
    return values["g1"] + values["g2"]


def classified(weights: Arrays, images: np.ndarray) -> np.ndarray:
    """The label with which every image is best."""
    labels = (np.full(len(images), label) for label in range(CLASSES))
    return np.argmax([goodness(weights, images, each) for each in labels], axis=0)


def by_forward_forward(seed: int, steps: int, rate: float = 0.003) -> float:
    """The share of images that it classifies; negative ones are the same images with another label."""
    learned, other = digits()
    generator = np.random.default_rng(seed)
    weights = start(generator, 64 + CLASSES, WIDTH, WIDTH)
    training = lc.LayerTraining(FORWARD_FORWARD, weights, "bp", "adamw", learning_rate=rate)
    y = np.concatenate([np.ones(BATCH), -np.ones(BATCH)])
    for images, labels in batches(learned, steps, generator):
        wrong = (labels + generator.integers(1, CLASSES, BATCH)) % CLASSES
        X = np.concatenate([with_labels(images, labels), with_labels(images, wrong)])
        training.step(X=X, y=y)
    return float(np.mean(classified(training.weights, other["X"]) == other["targets"]))


def by_backpropagation(seed: int, steps: int, rate: float = 0.003) -> float:
    """The same of two layers of that width and a head."""
    learned, other = digits()
    generator = np.random.default_rng(seed)
    weights = start(generator, 64, WIDTH, WIDTH, CLASSES)
    training = lc.LayerTraining(NETWORK, weights, "bp", "adamw", learning_rate=rate)
    for images, labels in batches(learned, steps, generator):
        training.step(X=images, targets=labels)
    known = {**other, "share": np.zeros(len(other["targets"])), **training.weights}
    scores = lc.run(NETWORK, known)
    return float(np.mean(scores["S3"].argmax(axis=1) == other["targets"]))


def products(layer: lc.Layer, rows: int, inputs: int) -> int:
    """Multiply-accumulates of the matrix products of a step."""
    sizes = {"B": rows, "d": inputs, "f": WIDTH, "e": WIDTH, "c": CLASSES}
    step = lc.derive(layer).step
    return int(lc.price(step, sizes, lc.book("matmul")).maccs)


def main(seeds: int = 5, steps: int = 1000) -> None:
    """Print the accuracy of both, and what their products cost."""
    print(f"digits, {steps:,} steps of {BATCH} images, AdamW, {seeds} seeds: accuracy in %,")
    print("and multiply-accumulates of a step\n")
    for name, learn, macs in (
        ("Forward-Forward", by_forward_forward, products(FORWARD_FORWARD, 2 * BATCH, 64 + CLASSES)),
        ("backpropagation", by_backpropagation, products(NETWORK, BATCH, 64)),
    ):
        shares = [100 * learn(seed, steps) for seed in range(seeds)]
        print(f"{name:16} {np.mean(shares):5.1f} ± {np.std(shares):.1f} {macs:14,}")


if __name__ == "__main__":
    main()

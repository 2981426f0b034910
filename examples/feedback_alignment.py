"""PEPITA is feedback alignment in a network of two layers, with W_1 F as its feedback matrix.

Feedback alignment sends the output's error e back through a matrix other than W_2^T: dU = (e B) * a', dW_1 = x^T dU.
In two layers PEPITA's update of W_1 is that with B = W_1 F up to a sign, for a small modulation: it differs by terms of
the order of ||F||, and W_2's update by the modulated a_1 in place of a_1 (Srinivasan et al. 2023 call it adaptive
feedback alignment, for B changes as W_1 learns). Two trainings from the same start, one by PEPITA and one by feedback
alignment, therefore stay together, and B slowly turns towards W_2^T, through which backpropagation sends the error.

    python examples/feedback_alignment.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import learncost as lc

Arrays = dict[str, np.ndarray]

NETWORK = lc.layer("""network(X targets share; W1 W2) -> loss
  U[B h] = X[B i] W1[i h]
  A[B h] = tanh(U[B h])
  L[B c] = A[B h] W2[h c]
  P[B c] = log_softmax[c](L[B c])
  T[B] = P[B c=targets[B]]
  loss[] = T[B] share[B]
targets: index of c
share: share of targets""")

# The two layers as two tables, so that feedback alignment can send something else from one to the other.
FIRST = lc.layer("first(X; W1) -> A\n  U[B h] = X[B i] W1[i h]\n  A[B h] = tanh(U[B h])")
SECOND = lc.layer("second(A; W2) -> L\n  L[B c] = A[B h] W2[h c]")

INPUTS, HIDDEN, CLASSES, BATCH, RATE = 20, 16, 4, 64, 0.2
SIGN = -1  # x - F e: with this sign the feedback is +W_1 F


def start() -> Arrays:
    """The weights at the start; small, so that the feedback soon is what the network learned."""
    generator = np.random.default_rng(3)
    return {
        "W1": generator.standard_normal((INPUTS, HIDDEN)) * np.sqrt(1 / INPUTS),
        "W2": generator.standard_normal((HIDDEN, CLASSES)) * 0.1,
    }


def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
    """Points around four centres."""
    centres = np.random.default_rng(4).standard_normal((CLASSES, INPUTS))
    generator = np.random.default_rng([5, step])
    targets = generator.integers(0, CLASSES, BATCH)
    return centres[targets] + generator.standard_normal((BATCH, INPUTS)), targets


def pepita(weights: Arrays, strength: float) -> lc.LayerTraining:
    """A training by PEPITA; its F comes from its seed."""
    return lc.LayerTraining(
        NETWORK,
        weights,
        "pepita",
        "sgd",
        projected=("X",),
        scale=strength,
        sign=SIGN,
        learning_rate=RATE,
        seed=6,
        dtype=np.float64,
    )


def feedback(weights: Arrays, X: np.ndarray, targets: np.ndarray, projection: np.ndarray) -> Arrays:
    """The updates of feedback alignment with the feedback matrix F W_1; `projection` is F."""
    A = lc.run(FIRST, {"X": X, "W1": weights["W1"]})["A"]
    L = lc.run(SECOND, {"A": A, "W2": weights["W2"]})["L"]
    probabilities = np.exp(L - L.max(axis=1, keepdims=True))
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    e = (probabilities - np.eye(CLASSES)[targets]) / len(targets)
    # Here a gradient would be e W_2^T; feedback alignment has another matrix.
    first = lc.run(FIRST, {"X": X, "W1": weights["W1"], "dA": e @ projection @ weights["W1"]})
    second = lc.run(SECOND, {"A": A, "W2": weights["W2"], "dL": e})
    return {"W1": first["dW1"], "W2": second["dW2"]}


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Relative distance."""
    return float(np.linalg.norm(one - other) / np.linalg.norm(other))


def update_distances(strengths: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)) -> dict[float, dict[str, float]]:
    """How far the two procedures' first updates are from each other, for each strength of the modulation."""
    X, targets = batch(0)
    found = {}
    for strength in strengths:
        learned = pepita(start(), strength)
        ours = learned.updates(X=X, targets=targets)
        theirs = feedback(start(), X, targets, strength * learned.fixed["X.F"])
        found[strength] = {name: distance(ours[name], theirs[name]) for name in theirs}
    return found


@dataclass(frozen=True)
class Snapshot:
    """After some steps: the losses, how far the weights are apart, the angle between feedback and W_2^T in degrees."""

    step: int
    losses: tuple[float, float]
    apart: float
    angle: float


def trainings(steps: int = 1000, strength: float = 1.0, every: int = 200) -> list[Snapshot]:
    """Both trainings from the same start, on the same batches."""
    learned, weights, found = pepita(start(), strength), start(), []
    learned.updates(**dict(zip(("X", "targets"), batch(0), strict=True)))  # draws F
    projection = learned.fixed["X.F"]
    for step in range(steps + 1):
        X, targets = batch(step)
        if step % every == 0:
            share = np.full(BATCH, -1 / BATCH)
            arrays = {"X": X, "targets": targets, "share": share}
            losses = [float(lc.run(NETWORK, {**arrays, **own})["loss"]) for own in (learned.weights, weights)]
            apart = max(distance(learned.weights[name], weights[name]) for name in weights)
            degrees = angle(projection @ learned.weights["W1"], learned.weights["W2"].T)
            found.append(Snapshot(step, (losses[0], losses[1]), apart, degrees))
        learned.step(X=X, targets=targets)
        updates = feedback(weights, X, targets, strength * projection)
        weights = {name: array - RATE * updates[name] for name, array in weights.items()}
    return found


def angle(one: np.ndarray, other: np.ndarray) -> float:
    """Between two matrices, in degrees."""
    cosine = (one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other)
    return float(np.degrees(np.arccos(cosine)))


def main() -> None:
    """Print how far the updates are apart, and both trainings."""
    print("PEPITA's update less feedback alignment's, relative")
    print(f"{'strength':>9} {'W_1':>10} {'W_2':>10}")
    for strength, found in update_distances().items():
        print(f"{strength:9g} {found['W1']:10.2e} {found['W2']:10.2e}")
    print("\nTwo trainings from the same start")
    print(f"{'step':>5} {'loss: PEPITA':>13} {'feedback al.':>13} {'weights apart':>14} {'angle F W_1, W_2^T':>19}")
    for moment in trainings():
        losses = " ".join(f"{loss:13.4f}" for loss in moment.losses)
        print(f"{moment.step:5} {losses} {moment.apart:14.2e} {moment.angle:18.1f}°")


if __name__ == "__main__":
    main()

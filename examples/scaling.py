"""Why attention divides by sqrt(d_k): the variance of a product of queries and keys, and what it does to the softmax.

For independent q_i and k_i of mean 0 and variance 1, Var[q.k] = d_k, by the two rules of variance that the first part
checks. The second part runs softmax(q.k) with and without the division: unscaled, one key takes all the weight, and the
Jacobian through which every gradient must pass goes to 0.

    python examples/scaling.py
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import learncost as lc

WIDTHS = (4, 16, 64, 256, 512)
KEYS, QUERIES = 32, 300

SCORES = "  R[m n] = Q[m k] K[m n k]\n"
UNSCALED = lc.layer("unscaled(Q K) -> P\n" + SCORES + "  P[m n] = softmax[n](R[m n])")
SCALED = lc.layer(
    "scaled(Q K) -> P\n" + SCORES + "  S[m n] = R[m n] #k^-0.5[]\n  P[m n] = softmax[n](S[m n])"
)  # fmt: skip

# Pau & Aymone 2024, equation (11): diag(s) - s s^T for every row of the softmax.
JACOBIAN = lc.layer("""jacobian(P eye) -> J
  D[m n n'] = P[m n] eye[n n']
  O[m n n'] = P[m n] P[m n']
  J[m n n'] = D[m n n'] - O[m n n']""")


@dataclass(frozen=True)
class Moments:
    """Mean and variance of a random variable."""

    mean: float
    variance: float

    def __add__(self, other: Moments) -> Moments:
        """Of a sum of independent variables: means add, variances add."""
        return Moments(self.mean + other.mean, self.variance + other.variance)

    def __mul__(self, other: Moments) -> Moments:
        """Of a product of independent variables: prod(Var + E^2) - prod(E^2)."""
        squares = (self.variance + self.mean**2) * (other.variance + other.mean**2)
        mean = self.mean * other.mean
        return Moments(mean, squares - mean**2)


def score(width: int, q: Moments = Moments(0, 1), k: Moments = Moments(0, 1)) -> Moments:
    """Of q.k with `width` independent pairs, by the two rules."""
    total = Moments(0, 0)
    for _ in range(width):
        total = total + q * k
    return total


def sampled(width: int, q: Moments = Moments(0, 1), k: Moments = Moments(0, 1), samples: int = 10_000) -> Moments:
    """The same from random numbers."""
    generator = np.random.default_rng(width)
    arrays = [m.mean + np.sqrt(m.variance) * generator.standard_normal((samples, width)) for m in (q, k)]
    scores = np.einsum("sk,sk->s", *arrays)
    return Moments(float(scores.mean()), float(scores.var()))


@dataclass(frozen=True)
class Softness:
    """Of a softmax: its mean entropy, in nats, its greatest weight, and the norm of its Jacobian."""

    entropy: float
    greatest: float
    jacobian: float


def softness(layer: lc.Layer, width: int) -> Softness:
    """What the softmax over random keys looks like."""
    generator = np.random.default_rng(width)
    queries = generator.standard_normal((QUERIES, width))
    keys = generator.standard_normal((QUERIES, KEYS, width))
    weights = lc.run(layer, {"Q": queries, "K": keys})["P"]
    jacobian = lc.run(JACOBIAN, {"P": weights, "eye": np.eye(KEYS)})["J"]
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum(axis=1)
    norms = np.sqrt((jacobian**2).sum(axis=(1, 2)))
    return Softness(float(entropy.mean()), float(weights.max(axis=1).mean()), float(norms.mean()))


def main() -> None:
    """Print both parts."""
    print("Variance of q.k: by the rules, and of 10,000 samples")
    print(f"{'d_k':>5} {'E=0, Var=1':>22} {'E[q]=1, E[k]=-2, Var=1/2, 3':>32}")
    for width in WIDTHS:
        cells = []
        for q, k in ((Moments(0, 1), Moments(0, 1)), (Moments(1, 0.5), Moments(-2, 3))):
            cells.append(f"{score(width, q, k).variance:10,.1f} {sampled(width, q, k).variance:11,.1f}")
        print(f"{width:5} {cells[0]} {cells[1]:>32}")
    print(f"\nSoftmax over {KEYS} keys (uniform weights would have entropy {np.log(KEYS):.3f})")
    print(f"{'d_k':>5} {'entropy':>17} {'greatest weight':>17} {'norm of Jacobian':>18}")
    print(f"{'':5} {'unscaled  scaled':>17} {'unscaled  scaled':>17} {'unscaled  scaled':>18}")
    for width in WIDTHS:
        plain, scaled = softness(UNSCALED, width), softness(SCALED, width)
        pairs = [(getattr(plain, name), getattr(scaled, name)) for name in ("entropy", "greatest", "jacobian")]
        print(f"{width:5}" + "".join(f" {one:8.3f} {two:8.3f}" for one, two in pairs))


if __name__ == "__main__":
    main()

"""Equation (1) of Pau & Aymone 2024 and its sign: what PEPITA's first update is, when the modulation is small.

PEPITA runs the input x again as x + s F e, with the output's error e, a fixed random matrix F and a sign s; it updates
the first weights by (a_1 - a_1^err) (x + s F e)^T. Equation (1) says that this is about +[(W_1 F e) * a_1'] x^T. That
holds for s = -1; Algorithm 1 of the paper has s = +1, for which the update is minus that: the relative error is 2.

The right-hand side of (1) is the layer's own weight update with W_1 F e as the gradient of a_1.

    python examples/equation_one.py
"""

from __future__ import annotations

import numpy as np

import learncost as lc

FIRST = lc.layer("""first(x; W1) -> a
  u[B h] = x[B i] W1[i h]
  a[B h] = gelu_tanh(u[B h])""")

STRENGTHS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)


def draw(inputs: int = 20, hidden: int = 15, outputs: int = 7, batch: int = 5) -> dict[str, np.ndarray]:
    """A first layer, a batch, its errors, and F with the standard deviation 0.05 sqrt(2 / fan-in)."""
    generator = np.random.default_rng(1)
    return {
        "x": generator.standard_normal((batch, inputs)),
        "W1": generator.standard_normal((inputs, hidden)) / np.sqrt(inputs),
        "e": generator.standard_normal((batch, outputs)),
        "F": 0.05 * np.sqrt(2 / inputs) * generator.standard_normal((outputs, inputs)),
    }


def pepita(x: np.ndarray, W1: np.ndarray, e: np.ndarray, F: np.ndarray, sign: int) -> np.ndarray:
    """The update of Algorithm 1, line by line, for x + sign F e."""
    modulated = x + sign * e @ F
    a, a_err = (lc.run(FIRST, {"x": one, "W1": W1})["a"] for one in (x, modulated))
    return modulated.T @ (a - a_err)


def printed(x: np.ndarray, W1: np.ndarray, e: np.ndarray, F: np.ndarray) -> np.ndarray:
    """The right-hand side of equation (1)."""
    return lc.run(FIRST, {"x": x, "W1": W1, "da": e @ F @ W1})["dW1"]


def errors(sign: int, factor: int = 1) -> list[float]:
    """Relative distance of PEPITA's update from `factor` times equation (1), for each strength of F."""
    found = []
    for strength in STRENGTHS:
        arrays = draw()
        arrays["F"] *= strength
        right = factor * printed(**arrays)
        found.append(float(np.linalg.norm(pepita(**arrays, sign=sign) - right) / np.linalg.norm(right)))
    return found


def main() -> None:
    """Print the relative errors."""
    columns = {
        "x - Fe against (1)": errors(-1),
        "x + Fe against (1)": errors(+1),
        "x + Fe against -(1)": errors(+1, -1),
    }
    print("Relative error of PEPITA's first update")
    print(f"{'||F|| times':>11}" + "".join(f" {name:>20}" for name in columns))
    for place, strength in enumerate(STRENGTHS):
        print(f"{strength:11g}" + "".join(f" {found[place]:20.2e}" for found in columns.values()))


if __name__ == "__main__":
    main()

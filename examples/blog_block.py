"""The block of a blog post on the computation of transformers, run and counted: three dropouts, no biases, post-norm.

The post is a Chinese analysis of "计算量" (amounts of computation). Its block, in its letters (b sequences of s tokens,
width h, a heads, feed-forward 4h):

    Q = x W_Q, K = x W_K, V = x W_V
    x_self = Dropout[softmax(Q K^T / sqrt(d))] V
    x_attn = LN[Dropout(x_self w_o) + x]
    x_ffn  = GeLU(x_attn W_ff1) W_ff2
    x_o    = LN[Dropout(x_ffn) + x_attn]

It counts 24 b s h^2 + 4 b s^2 h for the forward pass, three times that with the backward pass, four times with
recomputation, and sums this up as 8 x tokens x parameters. The table below says the same; the counts are read off it,
as polynomials. Masks of dropout are drawn from outside and multiplied in.

    python examples/blog_block.py
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

import learncost as lc

# k is the post's h_a, the width of a head, and f the inner width of the feed-forward network; D1, D2, D3 are the masks.
BLOCK = lc.layer("""block(x D1 D2 D3; WQ WK WV wo g1 b1 w1 w2 g2 b2) -> xo
  Q[b s a k] = x[b s h] WQ[h a k]
  K[b s a k] = x[b s h] WK[h a k]
  V[b s a k] = x[b s h] WV[h a k]
  R[b a s s'] = Q[b s a k] K[b s' a k]
  S[b a s s'] = R[b a s s'] #k^-0.5[]
  P[b a s s'] = softmax[s'](S[b a s s'])
  PD[b a s s'] = P[b a s s'] D1[b a s s']
  xself[b s a k] = PD[b a s s'] V[b s' a k]
  O[b s h] = xself[b s a k] wo[a k h]
  OD[b s h] = O[b s h] D2[b s h]
  A[b s h] = OD[b s h] + x[b s h]
  xattn[b s h] = norm(A; g1 b1)
  U[b s f] = xattn[b s h] w1[h f]
  G[b s f] = gelu(U[b s f])
  xffn[b s h] = G[b s f] w2[f h]
  FD[b s h] = xffn[b s h] D3[b s h]
  B[b s h] = FD[b s h] + xattn[b s h]
  xo[b s h] = norm(B; g2 b2)
constants: D1 D2 D3""")

MASKS = {"D1": "b a s s", "D2": "b s h", "D3": "b s h"}

Polynomial = Mapping[tuple[str, ...], int]


def in_letters(terms: Polynomial) -> Polynomial:
    """A count in the post's letters: f = 4 h and a k = h."""
    total: Counter[tuple[str, ...]] = Counter()
    for sizes, coefficient in terms.items():
        names = list(sizes)
        factor = 4 ** names.count("f")
        names = ["h" if name == "f" else name for name in names]
        while "a" in names and "k" in names:
            names.remove("a")
            names.remove("k")
            names.append("h")
        total[tuple(sorted(names))] += coefficient * factor
    return dict(total)


def times(factor: int, polynomial: Polynomial) -> Polynomial:
    """A polynomial times a number."""
    return {sizes: factor * coefficient for sizes, coefficient in polynomial.items()}


def counts() -> dict[str, Polynomial]:
    """FLOPs of the matrix products of a forward pass, of a training step, and of one with recomputation."""
    forward = lc.price(BLOCK, book="matmul").flops
    step = lc.price(lc.derive(BLOCK).step, book="matmul").flops
    return {
        "forward": in_letters(forward.terms),
        "step": in_letters(step.terms),
        "recomputed": in_letters((step + forward).terms),
    }


def parameters() -> Polynomial:
    """Elements of the weights that stand in matrix products; the post counts no others."""
    table = BLOCK.table
    total: Counter[tuple[str, ...]] = Counter()
    for name in table.weights:
        if len(table.axes[name]) > 1:
            total.update(in_letters({tuple(table.axes[name]): 1}))
    return dict(total)


def arrays(sizes: Mapping[str, int], keep: float = 0.9, seed: int = 0) -> dict[str, np.ndarray]:
    """Random input and weights, and masks that keep a share of the values: 0, or 1/keep."""
    generator = np.random.default_rng(seed)
    made = {}
    for name in ("x", *BLOCK.table.weights):
        shape = [sizes[axis] for axis in BLOCK.table.axes[name]]
        made[name] = generator.standard_normal(shape) / np.sqrt(shape[0])
    for name, axes in MASKS.items():
        shape = [sizes[axis] for axis in axes.split()]
        made[name] = (generator.random(shape) < keep) / keep
    return made


def written(polynomial: Polynomial) -> str:
    """Such as 24 b s h^2 + 4 b s^2 h."""
    terms = []
    for sizes, coefficient in sorted(polynomial.items(), key=lambda item: item[0].count("s")):
        powers = [(name, sizes.count(name)) for name in "bsh" if name in sizes]
        terms.append(" ".join([str(coefficient), *(f"{n}^{p}" if p > 1 else n for n, p in powers)]))
    return " + ".join(terms)


def main() -> None:
    """Run the block, then print the counts and the post's identities."""
    sizes = {"b": 2, "s": 5, "h": 12, "a": 3, "k": 4, "f": 48}
    given = arrays(sizes)
    dropped, whole = (lc.run(BLOCK, {**given, **arrays(sizes, keep)})["xo"] for keep in (0.9, 1.0))
    print(f"xo {whole.shape}: dropout changes it by {abs(dropped - whole).max():.2f} at most")

    found = counts()
    for name, polynomial in found.items():
        print(f"{name:10} {written(polynomial)}")
    print(f"parameters {written(parameters())}")
    print(f"a step is 3 x forward: {found['step'] == times(3, found['forward'])}")
    print(f"with recomputation 4 x: {found['recomputed'] == times(4, found['forward'])}")
    linear = found["recomputed"]["b", "h", "h", "s"]
    print(f"its part in h^2 is 8 x tokens x parameters: {linear == 8 * parameters()['h', 'h']}")
    every = lc.price(lc.derive(BLOCK).step, {**sizes, "b": 1, "s": 2048, "h": 8192, "a": 64, "k": 128, "f": 32768})
    products = lc.price(lc.derive(BLOCK).step, every.sizes, "matmul")
    print(f"at h = 8192, s = 2048 all else that runs is {every.flops / products.flops - 1:.2%} of the products")


if __name__ == "__main__":
    main()

"""The adapter of learncost: the cases as tables of equations, priced under the book `matmul`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import learncost as lc
from conformance import cases
from conformance.cases import Case
from conformance.counter import Counter, Unit
from learncost.layers.active import parameters

ATTENTION = """
% Multi-head attention with biases; each of the h heads of keys and values serves g heads of queries.
biased_attention(XQ XK XV; WQ bQ WK bK WV bV WO bO) -> Y
  Q[B M h g k] = XQ[B M d] WQ[d h g k]
  Q[B M h g k] = Q[B M h g k] + bQ[h g k]
  K[B N h k] = XK[B N d] WK[d h k]
  K[B N h k] = K[B N h k] + bK[h k]
  V[B N h k] = XV[B N d] WV[d h k]
  V[B N h k] = V[B N h k] + bV[h k]
  R[B h g M N] = Q[B M h g k] K[B N h k]
  S[B h g M N] = R[B h g M N] #k^-0.5[]
  P[B h g M N] = softmax[N](S[B h g M N])
  A[B M h g k] = P[B h g M N] V[B N h k]
  Y[B M d] = A[B M h g k] WO[h g k d]
  Y[B M d] = Y[B M d] + bO[d]
"""

_QUERIES = "Q[B M h g k] = Q[B M h g k] + bQ[h g k]"
_VALUES = "V[B N h k] = V[B N h k] + bV[h k]"
ADAPTED = (
    ATTENTION.replace("biased_attention", "adapted_attention")
    .replace("bV WO bO", "bV WO bO downQ upQ downV upV")
    .replace(
        _QUERIES,
        f"""{_QUERIES}
  lowQ[B M r] = XQ[B M d] downQ[d r]
  byQ[B M h g k] = lowQ[B M r] upQ[r h g k]
  byQ[B M h g k] = byQ[B M h g k] 0.5[]
  Q[B M h g k] = Q[B M h g k] + byQ[B M h g k]""",
    )
    .replace(
        _VALUES,
        f"""{_VALUES}
  lowV[B N r] = XV[B N d] downV[d r]
  byV[B N h k] = lowV[B N r] upV[r h k]
  byV[B N h k] = byV[B N h k] 0.5[]
  V[B N h k] = V[B N h k] + byV[B N h k]""",
    )
)

BLOCK = """
block(X) -> X
  H[B M d] = norm(X; norm_1)
  A[B M d] = biased_attention(H, H, H; attention, N = M')
  X[B M d] = X[B M d] + A[B M d]
  G[B M d] = norm(X; norm_2)
  F[B M d] = feed_forward(G; feed_forward)
  X[B M d] = X[B M d] + F[B M d]
"""

MODEL = """
model(tokens; words positions) -> L
  E[B M d] = words[v=tokens[B M] d]
  X[B M d] = E[B M d] + positions[M d]
  X[B M d] = block(X; block_1)
  X[B M d] = block(X; block_2)
  Y[B M d] = norm(X; last)
  L[B M v] = Y[B M d] words[v d]
"""

_ONE = MODEL.replace("  X[B M d] = block(X; block_2)\n", "")
_UNTIED = MODEL.replace("words positions)", "words positions head)").replace("words[v d]", "head[v d]")
_ADAPTED_BLOCK = BLOCK.replace("biased_attention", "adapted_attention")

TIED = """
tied(tokens; words) -> L
  E[B M d] = words[v=tokens[B M] d]
  L[B M v] = E[B M d] words[v d]
"""

SELF = """
self(tokens; words) -> Y
  X[B M d] = words[v=tokens[B M] d]
  Y[B M d] = biased_attention(X, X, X; attention, N = M')
"""

CROSS = """
cross(tokens source; words) -> Y
  X[B M d] = words[v=tokens[B M] d]
  Z[B N d] = words[v=source[B N] d]
  Y[B M d] = biased_attention(X, Z, Z; attention)
"""

PLAIN = """
plain(X; W1 b1 W2 b2) -> Y
  H[B d'] = X[B d] W1[d d']
  H[B d'] = H[B d'] + b1[d']
  Y[B d] = H[B d'] W2[d' d]
  Y[B d] = Y[B d] + b2[d]
"""

GROUPED = """
grouped(X; W b V a) -> Y
  H[B g k y x] = X[B c y=(y + u - 1) x=(x + w - 1)] W[g k c u w]
  H[B g k y x] = H[B g k y x] + b[g k]
  Y[B g o y x] = H[B g k y=(y + u - 1) x=(x + w - 1)] V[g o k u w]
  Y[B g o y x] = Y[B g o y x] + a[g o]
"""

# Every expert on the c tokens that chose it, as the module runs it. The notation has no groups of unequal size; the
# counts are those of any, for they depend on the number of choices alone. (The layer `softmax_mixture_of_experts` reads
# for each token the weights of its own experts; products of single rows are none to the book `matmul`.)
EXPERTS = """
experts(tokens sequence place; words WR WG WU WD) -> Y
  X[B M d] = words[v=tokens[B M] d]
  L[B M e] = X[B M d] WR[d e]
  P[B M e] = softmax[e](L[B M e])
  Z[e c d] = X[B=sequence[e c] M=place[e c] d]
  U[e c f] = Z[e c d] WG[e d f]
  G[e c f] = silu(U[e c f])
  V[e c f] = Z[e c d] WU[e d f]
  H[e c f] = G[e c f] V[e c f]
  E[e c d] = H[e c f] WD[e f d]
  T[e c] = P[B=sequence[e c] M=place[e c] e]
  Y[e c d] = T[e c] E[e c d]
"""

SIZES = {
    "B": cases.B,
    "M": cases.S,
    "N": cases.S,
    "d": cases.D,
    "h": cases.HEADS,
    "g": 1,
    "k": cases.D // cases.HEADS,
    "f": cases.F,
    "v": cases.V,
}


@dataclass(frozen=True)
class Stated:
    """How learncost says a case: a table, the layers it calls, its sizes, how the names of what is trained begin."""

    text: str
    layers: tuple[str, ...] = ()
    sizes: Mapping[str, int] | None = None
    trained: tuple[str, ...] = ("",)

    @property
    def layer(self) -> lc.Layer:
        """The table, read."""
        known: dict[str, lc.Layer] = {}
        for text in self.layers:
            called = lc.layer(text, known)
            known[called.name] = called
        return lc.layer(self.text, known)


_BLOCK = Stated(_ONE, (ATTENTION, BLOCK))

# How attention is computed is no matter of the table: seven ways, and in evaluation, are one.
SAID: dict[str, Stated] = {
    "matmul": _BLOCK,
    "@": _BLOCK,
    "einsum": _BLOCK,
    "bmm": _BLOCK,
    "baddbmm": _BLOCK,
    "scaled_dot_product_attention": _BLOCK,
    "MultiheadAttention": _BLOCK,
    "MultiheadAttention in eval": _BLOCK,
    "tied head": Stated(TIED),
    "grouped queries": Stated(SELF, (ATTENTION,), {"h": cases.GROUPS, "g": cases.HEADS // cases.GROUPS}),
    "cross-attention": Stated(CROSS, (ATTENTION,), {"M": cases.TARGETS}),
    "plain input": Stated(PLAIN, sizes={"B": 16, "d": 32}),
    "grouped convolution": Stated(GROUPED, sizes={"g": 4, "c": 8, "k": 8, "o": 8, "y": 16, "x": 16, "u": 3, "w": 3}),
    "frozen layers": Stated(_UNTIED, (ATTENTION, BLOCK), trained=("block_2.", "last.", "head")),
    "LoRA": Stated(
        MODEL,
        (ADAPTED, _ADAPTED_BLOCK),
        {"r": cases.RANK},
        tuple(f"block_{n}.attention.{matrix}{name}" for n in (1, 2) for matrix in ("down", "up") for name in "QV"),
    ),
    "mixture of experts": Stated(
        EXPERTS, sizes={"e": cases.EXPERTS, "c": cases.TOKENS * cases.CHOSEN // cases.EXPERTS, "f": cases.HIDDEN}
    ),
}
"""How learncost says every case; one that is not here it cannot say."""


class Learncost(Counter):
    """The case's table, priced; what is trained is what gradients are derived for."""

    name, package, unit = "learncost", "learncost", Unit.MAC
    reading = (
        "It reads no modules here: every case is a table of equations, counted by the price book `matmul`, "
        "independent of the module's code. The table of the experts gathers the tokens of each, as the module does. "
        "The shipped layers of experts gather weights for each token instead, which are not matrix products in this "
        "book."
    )

    def forward(self, case: Case) -> int:
        """MACCs of the table."""
        stated, sizes = self._stated(case)
        return int(lc.price(stated.layer, sizes, "matmul").maccs)

    def training(self, case: Case) -> int:
        """MACCs of the table and of the gradients of what is trained."""
        stated, sizes = self._stated(case)
        step = lc.derive(stated.layer, wanted=self._trained(stated)).step
        return int(lc.price(step, sizes, "matmul").maccs)

    def parameters(self, case: Case) -> int:
        """Every weight of the table once."""
        stated, sizes = self._stated(case)
        return int(parameters(stated.layer.table).at(sizes))

    def trained(self, case: Case) -> int:
        """The weights whose gradients are derived."""
        stated, sizes = self._stated(case)
        return int(parameters(replace(stated.layer.table, weights=self._trained(stated))).at(sizes))

    def _stated(self, case: Case) -> tuple[Stated, dict[str, int]]:
        if case.name not in SAID:
            raise NotImplementedError(f"there is no table of {case.name!r}")
        stated = SAID[case.name]
        return stated, {**SIZES, **(stated.sizes or {})}

    def _trained(self, stated: Stated) -> tuple[str, ...]:
        return tuple(name for name in stated.layer.table.weights if name.startswith(stated.trained))

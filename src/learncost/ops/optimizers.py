"""Define the optimizers by the step of one parameter; the body of the step determines the operation counts."""

from __future__ import annotations

from collections.abc import Sequence

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.precision import BLOCKS
from learncost.ops.op_def import OpDef, define


@dataclass(frozen=True)
class Optimizer:
    """An optimizer and the operator that computes its step.

    name     the name in --optimizer
    op       the operator of its step
    state    operands that are stored between steps; `M2` is the new value of `M`
    scalars  operands that are numbers, the same for all weights
    description  a description of the state, with its source
    states   the type in which states are stored, rounded after every step; "" for the type of the precision
    tables   the steps of matrices, by the name of their tables (`procedures/matrix_steps.py`); "" for none
    hidden   whether these are of the matrices of blocks alone
    """

    name: str
    op: str
    state: tuple[str, ...]
    scalars: tuple[str, ...]
    description: str
    states: str = ""
    tables: str = ""
    hidden: bool = False


OPTIMIZERS: dict[str, Optimizer] = {}
"""The optimizers by name."""


def _optimizer(
    name: str, state: Sequence[str], scalars: Sequence[str], body: str, *, description: str, source: str
) -> None:
    """Register an operator that computes the new weight U and state from a weight W, its gradient G and its state.

    The scalars are lr, mu (the momentum), b1 and b2 (the betas) with c = 1 - b and k = 1/(1 - b^t) at step t, eps,
    decay = 1 - lr x weight decay, and Adafactor's rho = min(lr, t^-0.5) and fresh = t^-0.8.
    """
    outputs = ("U", *(f"{state_name}2" for state_name in state))
    define(OpDef(name, ("W", "G", *state, *scalars), outputs, body, pointwise=True, source=source))
    OPTIMIZERS[name] = Optimizer(name, name, tuple(state), tuple(scalars), description)


_optimizer(
    "sgd",
    (),
    ("lr",),
    """
    S[_] = G[_] lr[]
    U[_] = W[_] - S[_]
    """,
    description="W := W - eta dW",
    source="W := W - eta dW, Pau & Aymone 2024, Algorithms 1 and 2",
)
_optimizer(
    "momentum",
    ("V",),
    ("lr", "mu"),
    """
    A[_] = V[_] mu[]
    V2[_] = A[_] + G[_]
    S[_] = V2[_] lr[]
    U[_] = W[_] - S[_]
    """,
    description="torch.optim.SGD: one buffer",
    source="Polyak's momentum as in torch.optim.SGD",
)
_optimizer(
    "adamw",
    ("M", "V"),
    ("lr", "b1", "c1", "b2", "c2", "k1", "k2", "eps", "decay"),
    """
    A[_] = M[_] b1[]
    B[_] = G[_] c1[]
    M2[_] = A[_] + B[_]
    C[_] = V[_] b2[]
    Q[_] = G[_] G[_]
    D[_] = Q[_] c2[]
    V2[_] = C[_] + D[_]
    E[_] = M2[_] k1[]
    F[_] = V2[_] k2[]
    R[_] = sqrt(F[_])
    T[_] = R[_] + eps[]
    N[_] = divide(E[_], T[_])
    S[_] = N[_] lr[]
    O[_] = W[_] decay[]
    U[_] = O[_] - S[_]
    """,
    description="Loshchilov & Hutter 2019, Algorithm 2: m and v",
    source="Loshchilov & Hutter 2019, Algorithm 2; c = 1 - b, k = 1/(1 - b^t), decay = 1 - lr x weight decay",
)
_optimizer(
    "rmsprop",
    ("V",),
    ("lr", "b2", "c2", "eps"),
    """
    C[_] = V[_] b2[]
    Q[_] = G[_] G[_]
    D[_] = Q[_] c2[]
    V2[_] = C[_] + D[_]
    R[_] = sqrt(V2[_])
    T[_] = R[_] + eps[]
    N[_] = divide(G[_], T[_])
    S[_] = N[_] lr[]
    U[_] = W[_] - S[_]
    """,
    description="torch.optim.RMSprop: one average of squares",
    source="Tieleman & Hinton 2012, lecture 6.5, as torch.optim.RMSprop writes it; its alpha is the second beta",
)
_optimizer(
    "lion",
    ("M",),
    ("lr", "b1", "c1", "b2", "c2", "decay"),
    """
    A[_] = M[_] b1[]
    B[_] = G[_] c1[]
    C[_] = A[_] + B[_]
    D[_] = sign(C[_])
    S[_] = D[_] lr[]
    E[_] = M[_] b2[]
    F[_] = G[_] c2[]
    M2[_] = E[_] + F[_]
    O[_] = W[_] decay[]
    U[_] = O[_] - S[_]
    """,
    description="Chen et al. 2023, Symbolic discovery of optimization algorithms, Algorithm 2",
    source="Chen et al. 2023, Symbolic discovery of optimization algorithms, Algorithm 2; c = 1 - b",
)
OPTIMIZERS["adamw8bit"] = replace(
    OPTIMIZERS["adamw"], name="adamw8bit", states="int8-256", description=f"AdamW, {BLOCKS['int8-256'].source}"
)

LARGEST_SIDE = 10_000
"""The longest side of a matrix that SOAP preconditions (nikhilvyas/SOAP a1e5535, soap.py: max_precond_dim)."""

OF_MATRICES: dict[str, Optimizer] = {
    each.name: each
    for each in (
        Optimizer(
            "adafactor",
            "",
            (),
            ("rho", "fresh", "decay"),
            "Shazeer & Stern 2018, Adafactor, Algorithm 4 without momentum",
            tables="adafactor",
        ),
        replace(
            OPTIMIZERS["adamw"],
            name="muon",
            scalars=(*OPTIMIZERS["adamw"].scalars, "mu"),
            description="Jordan et al. 2024, Muon: momentum of matrices in blocks; AdamW's states of all else",
            tables="muon",
            hidden=True,
        ),
        replace(
            OPTIMIZERS["adamw"],
            name="soap",
            description="Vyas et al. 2024, SOAP, Algorithm 3: AdamW's states, and two squares of each side up to "
            "10,000; decompositions, before every tenth step, are not counted",
            tables="soap",
        ),
    )
}
"""The optimizers whose steps of matrices are products and sums of whole matrices; others have their op's step."""

define(
    OpDef(
        "stochastic_round",
        ("X", "S", "P"),
        ("Y",),
        """
        N[_] = hashed(S[_], P[_])
        C[_] = N[_] 5.960464477539063e-08[]
        R[_] = X[_] + C[_]
        Y[_] = floor(R[_])
        """,
        pointwise=True,
        source="up as often as X is near to the next whole number, as the numbers S and P draw it: Gupta et al. 2015, "
        "Deep learning with limited numerical precision, section 3",
    )
)

"""Optimizers: one step of one parameter. Two, four and fifteen operations, read off the bodies like all prices."""

from __future__ import annotations

from learncost.vocabulary.entry import Entry, define

define(
    Entry(
        "sgd",
        ("W", "G", "lr"),
        ("U",),
        body_text="""
        S[_] = G[_] lr[]
        U[_] = W[_] - S[_]
        """,
        pointwise=True,
        source="W := W - eta dW, Pau & Aymone 2024, Algorithms 1 and 2",
    )
)
define(
    Entry(
        "momentum",
        ("W", "G", "V", "lr", "mu"),
        ("U", "V2"),
        body_text="""
        A[_] = V[_] mu[]
        V2[_] = A[_] + G[_]
        S[_] = V2[_] lr[]
        U[_] = W[_] - S[_]
        """,
        pointwise=True,
        source="Polyak's momentum as torch.optim.SGD writes it",
    )
)
define(
    Entry(
        "adamw",
        ("W", "G", "M", "V", "lr", "b1", "c1", "b2", "c2", "k1", "k2", "eps", "decay"),
        ("U", "M2", "V2"),
        body_text="""
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
        pointwise=True,
        source="Loshchilov & Hutter 2019, Algorithm 2; c = 1 - b, k = 1/(1 - b^t), decay = 1 - lr x weight decay",
    )
)

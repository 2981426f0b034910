"""The word of losses over yes and no."""

from __future__ import annotations

from learncost.vocabulary.entry import Entry, define

define(
    Entry(
        "log_sigmoid",
        ("X",),
        ("Y",),
        body_text="""
        N[_] = -1[] X[_]
        m[_] = maximum(N[_], 0[])
        T[_] = 2[] m[_]
        a[_] = X[_] + T[_]
        R[_] = -1[] a[_]
        E[_] = exp(R[_])
        D[_] = E[_] + 1[]
        L[_] = log(D[_])
        S[_] = L[_] + m[_]
        Y[_] = -1[] S[_]
        """,
        gradient_text="""
        P[_] = exp(Y[_])
        Q[_] = 1[] - P[_]
        dX[_] = dY[_] Q[_]
        """,
        pointwise=True,
        source="log 1/(1 + exp(-x)) = -max(-x, 0) - log(1 + exp(-|x|)), stable; its derivative is 1 - sigmoid(x)",
    )
)

"""Words of the models after 2019: norms without a mean, shares of a sum."""

from __future__ import annotations

from learncost.equation.table import Literal
from learncost.vocabulary.entry import Entry, define

define(
    Entry(
        "rms_normalize",
        ("X", "e"),
        ("Y",),
        body_text="""
        q[_] = X[_ n] X[_ n]
        v[_] = q[_] #n^-1[]
        w[_] = v[_] + e[]
        g[_] = sqrt(w[_])
        Y[_ n] = divide(X[_ n], g[_])
        """,
        gradient_text="""
        c[_] = dY[_ n] Y[_ n]
        f[_] = c[_] #n^-1[]
        F[_ n] = Y[_ n] f[_]
        K[_ n] = dY[_ n] - F[_ n]
        dX[_ n] = divide(K[_ n], g[_])
        """,
        jacobian_text="""
        I[n n'] = eye()
        O[_ n n'] = Y[_ n] Y[_ n']
        M[_ n n'] = O[_ n n'] #n^-1[]
        B[_ n n'] = I[n n'] - M[_ n n']
        J[_ n n'] = divide(B[_ n n'], g[_])
        """,
        defaults=(Literal(1e-06),),
        source="x / RMS(x), Zhang & Sennrich 2019, equation (4), with epsilon inside the root as Llama has it",
    )
)
define(
    Entry(
        "proportion",
        ("X", "e"),
        ("Y",),
        body_text="""
        s[_] = X[_ n]
        w[_] = s[_] + e[]
        Y[_ n] = divide(X[_ n], w[_])
        """,
        gradient_text="""
        c[_] = dY[_ n] Y[_ n]
        D[_ n] = dY[_ n] - c[_]
        dX[_ n] = divide(D[_ n], w[_])
        """,
        defaults=(Literal(1e-20),),
        source="x / sum x, the gates of DeepSeek-V3's experts: DeepSeek-AI 2024, equation (13)",
    )
)

"""Operators of models after 2019 - norms without a mean, gates, sinks, bounds - and of binary losses."""

from __future__ import annotations

import math

from learncost.ir.term import Literal
from learncost.ops.op_def import OpDef, define

define(
    OpDef(
        "rms_normalize",
        ("X", "e"),
        ("Y",),
        makes="normal",
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
        spelled={
            "torch": "functional.rms_norm({X}, {shape}, eps={e})",
        },
        symmetric=True,
        source="x / RMS(x), Zhang & Sennrich 2019, equation (4), with epsilon inside the root as Llama has it",
    )
)
define(
    OpDef(
        "vector_norm",
        ("X",),
        ("Y",),
        body_text="""
        q[_] = X[_ n] X[_ n]
        Y[_] = sqrt(q[_])
        """,
        gradient_text="""
        O[_] = equal(Y[_], 0[])
        D[_] = select(O[_], 1[], Y[_])
        f[_] = divide(dY[_], D[_])
        dX[_ n] = X[_ n] f[_]
        """,
        tangent_texts={
            "X": """
            O[_] = equal(Y[_], 0[])
            D[_] = select(O[_], 1[], Y[_])
            p[_] = X[_ n] tX[_ n]
            tY[_] = divide(p[_], D[_])
            """
        },
        outside=0.0,
        spelled={"torch": "torch.linalg.vector_norm({X}, dim={axis}, keepdim=True)"},
        source="the root of the sum of squares; where all are 0 its derivative is taken as 0, as PyTorch has it",
    )
)
define(
    OpDef(
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
        tangent_texts={
            "X": """
            s[_] = tX[_ n]
            P[_ n] = Y[_ n] s[_]
            D[_ n] = tX[_ n] - P[_ n]
            tY[_ n] = divide(D[_ n], w[_])
            """
        },
        source="x / sum x, the gates of DeepSeek-V3's experts: DeepSeek-AI 2024, equation (13)",
    )
)
define(
    OpDef(
        "softmax_with_sink",
        ("X", "z"),
        ("Y",),
        makes="shares",
        body_text="""
        a[_] = max[n](X[_ n])
        m[_] = maximum(a[_], z[_])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        D[_] = z[_] - m[_]
        F[_] = exp(D[_])
        w[_] = s[_] + F[_]
        Y[_ n] = divide(E[_ n], w[_])
        """,
        gradient_text="""
        c[_] = dY[_ n] Y[_ n]
        G[_ n] = dY[_ n] - c[_]
        dX[_ n] = Y[_ n] G[_ n]
        q[_] = divide(F[_], w[_])
        r[_] = q[_] c[_]
        dz[_] = -1[] r[_]
        """,
        outside=-math.inf,
        symmetric=True,
        tangent_texts={
            "z": """
            q[_] = divide(F[_], w[_])
            r[_] = q[_] tz[_]
            S[_ n] = Y[_ n] r[_]
            tY[_ n] = -1[] S[_ n]
            """
        },
        source="softmax with one more logit z, whose share is dropped: OpenAI 2025 (gpt-oss model card), section 2.2",
    )
)
define(
    OpDef(
        "at_most",
        ("X", "Z"),
        ("Y",),
        body_text="Y[_] = minimum(Z[_], X[_])",
        gradient_text="""
        C[_] = less(Z[_], X[_])
        dX[_] = select(C[_], 0[], dY[_])
        """,
        pointwise=True,
        spelled={"torch": "torch.clamp({X}, max={Z})"},
        source="the smaller of X and a bound Z without a gradient; at the bound the gradient passes, as torch.clamp's",
    )
)
define(
    OpDef(
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
        spelled={"torch": "functional.logsigmoid({X})"},
        source="log 1/(1 + exp(-x)) = -max(-x, 0) - log(1 + exp(-|x|)), stable; its derivative is 1 - sigmoid(x)",
    )
)

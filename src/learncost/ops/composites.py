"""Define composite operators. A new one needs a body, a gradient and a source; `learncost verify` then checks it."""

from __future__ import annotations

import math

from learncost.ir.term import Literal
from learncost.ops.op_def import OpDef, define

SHARES_GRADIENT = """
c[_] = dY[_ n] Y[_ n]
D[_ n] = dY[_ n] - c[_]
dX[_ n] = Y[_ n] D[_ n]
"""
LOGARITHMS_GRADIENT = """
s[_] = dY[_ n]
E[_ n] = exp(Y[_ n])
T[_ n] = E[_ n] s[_]
dX[_ n] = dY[_ n] - T[_ n]
"""
LOGARITHMS_TANGENT = """
E[_ n] = exp(Y[_ n])
c[_] = E[_ n] tX[_ n]
tY[_ n] = tX[_ n] - c[_]
"""

define(
    OpDef(
        "softmax",
        ("X",),
        ("Y",),
        makes="shares",
        body_text="""
        m[_] = max[n](X[_ n])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        Y[_ n] = divide(E[_ n], s[_])
        """,
        gradient_text=SHARES_GRADIENT,
        jacobian_text="""
        I[n n'] = eye()
        D[_ n n'] = Y[_ n] I[n n']
        O[_ n n'] = Y[_ n] Y[_ n']
        J[_ n n'] = D[_ n n'] - O[_ n n']
        """,
        outside=-math.inf,
        empty="safe_softmax",
        spelled={
            "torch": "torch.softmax({X}, {axis})",
            "jax": "jax.nn.softmax({X}, {axis})",
        },
        symmetric=True,
        source="Pau & Aymone 2024 (3), (11); closed form: Jiang's blog, J = diag(a) - a a^T applied to dF/da",
    ),
    OpDef(
        "safe_softmax",
        ("X",),
        ("Y",),
        makes="shares",
        body_text="""
        a[_] = max[n](X[_ n])
        m[_] = maximum(a[_], -1e+29[])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        t[_] = maximum(s[_], 1[])
        Y[_ n] = divide(E[_ n], t[_])
        """,
        gradient_text=SHARES_GRADIENT,
        outside=-math.inf,
        symmetric=True,
        source="softmax, 0 where every X is minus infinity; of other rows the sum is 1 at least",
    ),
    OpDef(
        "log_softmax",
        ("X",),
        ("Y",),
        makes="logarithms",
        body_text="""
        m[_] = max[n](X[_ n])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        l[_] = log(s[_])
        Y[_ n] = C[_ n] - l[_]
        """,
        gradient_text=LOGARITHMS_GRADIENT,
        outside=-math.inf,
        empty="safe_log_softmax",
        spelled={
            "torch": "torch.log_softmax({X}, {axis})",
            "jax": "jax.nn.log_softmax({X}, {axis})",
        },
        tangent_texts={"X": LOGARITHMS_TANGENT},
        source="logarithm of (45); with the one-hot target its gradient is s - target, erratum E1",
    ),
    OpDef(
        "safe_log_softmax",
        ("X",),
        ("Y",),
        body_text="""
        a[_] = max[n](X[_ n])
        m[_] = maximum(a[_], -1e+29[])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        t[_] = maximum(s[_], 1[])
        l[_] = log(t[_])
        Y[_ n] = C[_ n] - l[_]
        """,
        gradient_text=LOGARITHMS_GRADIENT,
        outside=-math.inf,
        tangent_texts={"X": LOGARITHMS_TANGENT},
        source="log_softmax, minus infinity where every X is; of other rows the sum is 1 at least",
    ),
    OpDef(
        "normalize",
        ("X", "e"),
        ("Y",),
        makes="normal",
        body_text="""
        t[_] = X[_ n]
        m[_] = t[_] #n^-1[]
        C[_ n] = X[_ n] - m[_]
        q[_] = C[_ n] C[_ n]
        v[_] = q[_] #n^-1[]
        w[_] = v[_] + e[]
        g[_] = sqrt(w[_])
        Y[_ n] = divide(C[_ n], g[_])
        """,
        gradient_text="""
        a[_] = dY[_ n]
        b[_] = a[_] #n^-1[]
        c[_] = dY[_ n] Y[_ n]
        f[_] = c[_] #n^-1[]
        F[_ n] = Y[_ n] f[_]
        H[_ n] = dY[_ n] - b[_]
        K[_ n] = H[_ n] - F[_ n]
        dX[_ n] = divide(K[_ n], g[_])
        """,
        jacobian_text="""
        I[n n'] = eye()
        O[_ n n'] = Y[_ n] Y[_ n']
        M[_ n n'] = O[_ n n'] #n^-1[]
        A[n n'] = I[n n'] - #n^-1[]
        B[_ n n'] = A[n n'] - M[_ n n']
        J[_ n n'] = divide(B[_ n n'], g[_])
        """,
        defaults=(Literal(1e-05),),
        spelled={
            "torch": "functional.layer_norm({X}, {shape}, eps={e})",
        },
        symmetric=True,
        source="Pau & Aymone 2024 (40) without gamma and beta, with epsilon inside the root (E7); closed form: E8",
    ),
    OpDef(
        "gelu",
        ("X",),
        ("Y",),
        body_text=f"""
        A[_] = {math.sqrt(0.5)!r}[] X[_]
        B[_] = erf(A[_])
        C[_] = B[_] + 1[]
        H[_] = 0.5[] X[_]
        Y[_] = H[_] C[_]
        """,
        gradient_text=f"""
        A[_] = {math.sqrt(0.5)!r}[] X[_]
        B[_] = erf(A[_])
        C[_] = B[_] + 1[]
        P[_] = 0.5[] C[_]
        Q[_] = X[_] X[_]
        R[_] = -0.5[] Q[_]
        E[_] = exp(R[_])
        F[_] = {1 / math.sqrt(2 * math.pi)!r}[] E[_]
        G[_] = X[_] F[_]
        D[_] = P[_] + G[_]
        dX[_] = dY[_] D[_]
        """,
        pointwise=True,
        spelled={
            "torch": "functional.gelu({X})",
            "jax": "jax.nn.gelu({X}, approximate=False)",
        },
        source="x Phi(x), Hendrycks & Gimpel 2016; Hugging Face calls it gelu",
        aliases=("gelu_erf",),
    ),
    OpDef(
        "gelu_tanh",
        ("X",),
        ("Y",),
        body_text=f"""
        S[_] = X[_] X[_]
        K[_] = S[_] X[_]
        L[_] = 0.044715[] K[_]
        I[_] = X[_] + L[_]
        A[_] = {math.sqrt(2 / math.pi)!r}[] I[_]
        T[_] = tanh(A[_])
        U[_] = T[_] + 1[]
        H[_] = 0.5[] X[_]
        Y[_] = H[_] U[_]
        """,
        gradient_text=f"""
        S[_] = X[_] X[_]
        L[_] = 0.044715[] S[_]
        W[_] = L[_] + 1[]
        I[_] = X[_] W[_]
        A[_] = {math.sqrt(2 / math.pi)!r}[] I[_]
        T[_] = tanh(A[_])
        U[_] = T[_] + 1[]
        Q[_] = T[_] T[_]
        V[_] = 1[] - Q[_]
        N[_] = 3[] L[_]
        O[_] = N[_] + 1[]
        P[_] = {math.sqrt(2 / math.pi)!r}[] O[_]
        R[_] = V[_] P[_]
        G[_] = X[_] R[_]
        Z[_] = U[_] + G[_]
        D[_] = 0.5[] Z[_]
        dX[_] = dY[_] D[_]
        """,
        pointwise=True,
        spelled={
            "torch": 'functional.gelu({X}, approximate="tanh")',
            "jax": "jax.nn.gelu({X}, approximate=True)",
        },
        source="0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks & Gimpel 2016; gelu_new at Hugging Face",
        aliases=("gelu_new", "gelu_pytorch_tanh"),
    ),
    OpDef(
        "relu",
        ("X",),
        ("Y",),
        body_text="Y[_] = maximum(X[_], 0[])",
        gradient_text="""
        C[_] = less(0[], Y[_])
        dX[_] = select(C[_], dY[_], 0[])
        """,
        pointwise=True,
        spelled={
            "torch": "torch.relu({X})",
            "jax": "jax.nn.relu({X})",
        },
        source="max(0, x); its derivative at 0 is taken as 0",
    ),
    OpDef(
        "sigmoid",
        ("X",),
        ("Y",),
        body_text="""
        N[_] = -1[] X[_]
        E[_] = exp(N[_])
        D[_] = E[_] + 1[]
        Y[_] = divide(1[], D[_])
        """,
        gradient_text="""
        A[_] = 1[] - Y[_]
        B[_] = A[_] Y[_]
        dX[_] = dY[_] B[_]
        """,
        pointwise=True,
        spelled={
            "torch": "torch.sigmoid({X})",
            "jax": "jax.nn.sigmoid({X})",
        },
        source="1/(1 + exp(-z)) and sigma (1 - sigma): the blog on the computation of transformers (erratum group 001)",
    ),
    OpDef(
        "silu",
        ("X",),
        ("Y",),
        body_text="""
        S[_] = sigmoid(X[_])
        Y[_] = X[_] S[_]
        """,
        gradient_text="""
        S[_] = sigmoid(X[_])
        A[_] = 1[] - S[_]
        B[_] = X[_] A[_]
        C[_] = B[_] + 1[]
        D[_] = S[_] C[_]
        dX[_] = dY[_] D[_]
        """,
        pointwise=True,
        spelled={
            "torch": "functional.silu({X})",
            "jax": "jax.nn.silu({X})",
        },
        source="x sigma(x), Elfwing et al. 2017",
        aliases=("swish",),
    ),
    OpDef(
        "softplus",
        ("X",),
        ("Y",),
        body_text="""
        m[_] = maximum(X[_], 0[])
        T[_] = 2[] m[_]
        N[_] = X[_] - T[_]
        E[_] = exp(N[_])
        L[_] = log1p(E[_])
        Y[_] = m[_] + L[_]
        """,
        gradient_text="""
        S[_] = sigmoid(X[_])
        dX[_] = dY[_] S[_]
        """,
        pointwise=True,
        # Above its threshold of 20, PyTorch returns X, which is too small by 2e-9.
        spelled={"torch": "functional.softplus({X}, threshold=40)", "jax": "jax.nn.softplus({X})"},
        source="log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)), stable; Dugas et al. 2001",
    ),
    OpDef(
        "elu",
        ("X", "a"),
        ("Y",),
        body_text="""
        m[_] = minimum(X[_], 0[])
        E[_] = expm1(m[_])
        S[_] = a[] E[_]
        p[_] = maximum(X[_], 0[])
        Y[_] = p[_] + S[_]
        """,
        gradient_text="""
        C[_] = less(0[], X[_])
        D[_] = Y[_] + a[]
        H[_] = select(C[_], 1[], D[_])
        dX[_] = dY[_] H[_]
        """,
        defaults=(Literal(1.0),),
        pointwise=True,
        spelled={"torch": "functional.elu({X}, {a})", "jax": "jax.nn.elu({X}, {a})"},
        source="x, and a (exp(x) - 1) below 0, Clevert et al. 2015; its derivative at 0 is taken as a",
    ),
    OpDef(
        "sum",
        ("X",),
        ("Y",),
        body_text="Y[_] = 1[] X[_ n]",
        gradient_text="dX[_ n] = 1[] dY[_]",
        outside=0.0,
        inline=True,
        source="short for a product with 1[] of which the axes are not on the left",
    ),
    OpDef(
        "mean",
        ("X",),
        ("Y",),
        body_text="Y[_] = #n^-1[] X[_ n]",
        gradient_text="dX[_ n] = #n^-1[] dY[_]",
        inline=True,
        source="short for a product with one over the size of the axes, which are not on the left",
    ),
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
        source="x / RMS(x), Zhang & Sennrich 2019, equation (4), with epsilon inside the root as in Llama",
    ),
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
        source="the root of the sum of squares; where all are 0 its derivative is taken as 0, as in PyTorch",
    ),
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
    ),
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
    ),
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
    ),
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
    ),
)

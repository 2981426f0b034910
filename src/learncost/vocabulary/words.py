"""The words. A newcomer adds one here: its body, its gradient, and where they come from; `verify` then proves it."""

from __future__ import annotations

import math

from learncost.equation.table import Literal
from learncost.vocabulary.entry import Entry, define

# Primitives: what NumPy does in one operation. Elementwise ones cost one FLOP per element of their result, reductions
# one per element read, constants nothing.

define(Entry("exp", ("X",), ("Y",), gradient_text="dX[_] = dY[_] Y[_]", kind="elementwise", pointwise=True))
define(Entry("log", ("X",), ("Y",), gradient_text="dX[_] = divide(dY[_], X[_])", kind="elementwise", pointwise=True))
define(
    Entry(
        "tanh",
        ("X",),
        ("Y",),
        gradient_text="""
        S[_] = Y[_] Y[_]
        R[_] = 1[] - S[_]
        dX[_] = dY[_] R[_]
        """,
        kind="elementwise",
        pointwise=True,
    )
)
define(
    Entry(
        "sqrt",
        ("X",),
        ("Y",),
        gradient_text="""
        H[_] = 0.5[] dY[_]
        dX[_] = divide(H[_], Y[_])
        """,
        kind="elementwise",
        pointwise=True,
    )
)
define(
    Entry(
        "erf",
        ("X",),
        ("Y",),
        gradient_text=f"""
        S[_] = X[_] X[_]
        N[_] = -1[] S[_]
        E[_] = exp(N[_])
        D[_] = {2 / math.sqrt(math.pi)!r}[] E[_]
        dX[_] = dY[_] D[_]
        """,
        kind="elementwise",
        pointwise=True,
        source="d erf(x)/dx = 2 exp(-x^2)/sqrt(pi), Abramowitz & Stegun 7.1.1",
    )
)
define(
    Entry(
        "divide",
        ("X", "D"),
        ("Y",),
        gradient_text="""
        dX[_] = divide(dY[_], D[_])
        T[_] = dX[_] Y[_]
        dD[_] = -1[] T[_]
        """,
        kind="elementwise",
        pointwise=True,
    )
)
define(
    Entry(
        "maximum",
        ("X", "Z"),
        ("Y",),
        gradient_text="""
        C[_] = less(Z[_], X[_])
        dX[_] = select(C[_], dY[_], 0[])
        dZ[_] = select(C[_], 0[], dY[_])
        """,
        kind="elementwise",
        pointwise=True,
    )
)
define(
    Entry(
        "select",
        ("C", "X", "Z"),
        ("Y",),
        gradient_text="""
        dX[_] = select(C[_], dY[_], 0[])
        dZ[_] = select(C[_], 0[], dY[_])
        """,
        kind="elementwise",
        pointwise=True,
        source="X where C holds, Z elsewhere",
    )
)
define(Entry("less", ("X", "Z"), ("Y",), kind="elementwise", pointwise=True))
define(Entry("equal", ("X", "Z"), ("Y",), kind="elementwise", pointwise=True))
define(
    Entry(
        "max",
        ("X",),
        ("Y",),
        gradient_text="""
        E[_ n] = equal(X[_ n], Y[_])
        c[_] = E[_ n]
        H[_] = divide(dY[_], c[_])
        dX[_ n] = select(E[_ n], H[_], 0[])
        """,
        outside=-math.inf,
        kind="reduction",
        source="equal maxima share the gradient, as torch.amax does",
    )
)
define(Entry("zeros", (), ("Y",), kind="constant"))
define(Entry("eye", (), ("Y",), kind="constant", source="1 where the first half of the axes equals the second, else 0"))

# Words proper.

define(
    Entry(
        "softmax",
        ("X",),
        ("Y",),
        body_text="""
        m[_] = max[n](X[_ n])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        Y[_ n] = divide(E[_ n], s[_])
        """,
        gradient_text="""
        c[_] = dY[_ n] Y[_ n]
        D[_ n] = dY[_ n] - c[_]
        dX[_ n] = Y[_ n] D[_ n]
        """,
        jacobian_text="""
        I[n n'] = eye()
        D[_ n n'] = Y[_ n] I[n n']
        O[_ n n'] = Y[_ n] Y[_ n']
        J[_ n n'] = D[_ n n'] - O[_ n n']
        """,
        outside=-math.inf,
        source="Pau & Aymone 2024 (3), (11); closed form: Jiang's blog, J = diag(a) - a a^T applied to dF/da",
    )
)
define(
    Entry(
        "log_softmax",
        ("X",),
        ("Y",),
        body_text="""
        m[_] = max[n](X[_ n])
        C[_ n] = X[_ n] - m[_]
        E[_ n] = exp(C[_ n])
        s[_] = E[_ n]
        l[_] = log(s[_])
        Y[_ n] = C[_ n] - l[_]
        """,
        gradient_text="""
        s[_] = dY[_ n]
        E[_ n] = exp(Y[_ n])
        T[_ n] = E[_ n] s[_]
        dX[_ n] = dY[_ n] - T[_ n]
        """,
        outside=-math.inf,
        source="logarithm of (45); with the one-hot target its gradient is s - target, erratum E1",
    )
)
define(
    Entry(
        "normalize",
        ("X", "e"),
        ("Y",),
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
        source="Pau & Aymone 2024 (40) without gamma and beta, with epsilon inside the root (E7); closed form: E8",
    )
)
define(
    Entry(
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
        source="x Phi(x), Hendrycks & Gimpel 2016; Hugging Face calls it gelu",
    ),
    aliases=("gelu_erf",),
)
define(
    Entry(
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
        source="0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), Hendrycks & Gimpel 2016; gelu_new at Hugging Face",
    ),
    aliases=("gelu_new", "gelu_pytorch_tanh"),
)
define(
    Entry(
        "relu",
        ("X",),
        ("Y",),
        body_text="Y[_] = maximum(X[_], 0[])",
        gradient_text="""
        C[_] = less(0[], Y[_])
        dX[_] = select(C[_], dY[_], 0[])
        """,
        pointwise=True,
        source="max(0, x); its derivative at 0 is taken as 0",
    )
)
define(
    Entry(
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
        source="1/(1 + exp(-z)) and sigma (1 - sigma): the blog on the computation of transformers (erratum group 001)",
    )
)
define(
    Entry(
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
        source="x sigma(x), Elfwing et al. 2017",
    ),
    aliases=("swish",),
)

# Optimizers: one step of one parameter. Two, four and fifteen operations, read off the bodies like every other price.

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

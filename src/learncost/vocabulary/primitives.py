"""Primitives: what NumPy does in one operation.

Elementwise ones cost one FLOP per element of their result, reductions one per element read, constants nothing.
"""

from __future__ import annotations

import math

from learncost.vocabulary.entry import Entry, define

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
        conditions=("C",),
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
define(
    Entry(
        "append",
        ("X", "Z"),
        ("Y",),
        kind="constant",
        source="Z written behind X along the axis, where the array has room: it computes and moves nothing of its own",
    )
)

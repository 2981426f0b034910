"""Define the primitives: operators that NumPy computes in one operation.

Elementwise primitives cost one FLOP per element of the result, reductions one per element that they read, others none.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from learncost.ops.op_def import OpDef, define

MODULES = {"numpy": "np", "torch": "torch", "jax": "jnp"}
"""The names of the libraries' modules in emitted programs."""


def _elementwise(name: str, *inputs: str, gradient: str = "", **more: Any) -> None:
    """Register an elementwise function, by default of one operand X."""
    operands = inputs or ("X",)
    define(OpDef(name, operands, ("Y",), gradient_text=gradient, kind="elementwise", pointwise=True, **more))


_elementwise("exp", gradient="dX[_] = dY[_] Y[_]", c="exp_{real}(X)", work=10)
_elementwise("log", gradient="dX[_] = divide(dY[_], X[_])", c="log_{real}(X)", work=10)
_elementwise(
    "tanh",
    gradient="""
    S[_] = Y[_] Y[_]
    R[_] = 1[] - S[_]
    dX[_] = dY[_] R[_]
    """,
    c="tanh_{real}(X)",
    work=10,
)
_elementwise(
    "sqrt",
    gradient="""
    H[_] = 0.5[] dY[_]
    dX[_] = divide(H[_], Y[_])
    """,
    c="sqrt_{real}(X)",
    work=4,
)
_elementwise(
    "erf",
    gradient=f"""
    S[_] = X[_] X[_]
    N[_] = -1[] S[_]
    E[_] = exp(N[_])
    D[_] = {2 / math.sqrt(math.pi)!r}[] E[_]
    dX[_] = dY[_] D[_]
    """,
    spelled={"numpy": "erf({X})", "jax": "jax.scipy.special.erf({X})"},
    c="erf_{real}(X)",
    work=10,
    source="d erf(x)/dx = 2 exp(-x^2)/sqrt(pi), Abramowitz & Stegun 7.1.1",
)
_elementwise(
    "sin",
    gradient="""
    C[_] = cos(X[_])
    dX[_] = dY[_] C[_]
    """,
    work=10,
)
_elementwise(
    "cos",
    gradient="""
    S[_] = sin(X[_])
    T[_] = dY[_] S[_]
    dX[_] = -1[] T[_]
    """,
    work=10,
)
_elementwise(
    "atan",
    gradient="""
    S[_] = X[_] X[_]
    D[_] = S[_] + 1[]
    dX[_] = divide(dY[_], D[_])
    """,
    called="arctan",
    work=10,
    aliases=("arctan",),
    source="the angle whose tangent is x; its derivative is 1 / (1 + x^2), Abramowitz & Stegun 4.4.54",
)
_elementwise(
    "atan2",
    "X",
    "Z",
    gradient="""
    S[_] = X[_] X[_]
    T[_] = Z[_] Z[_]
    R[_] = S[_] + T[_]
    Q[_] = divide(dY[_], R[_])
    dX[_] = Q[_] Z[_]
    P[_] = Q[_] X[_]
    dZ[_] = -1[] P[_]
    """,
    called="arctan2",
    work=10,
    complex=False,
    aliases=("arctan2",),
    source="the angle of the point with x across and z along the axis, from -pi to pi, as in C; its derivatives "
    "are z and -x over the square of the distance from the origin",
)
_elementwise(
    "log1p",
    gradient="""
    D[_] = X[_] + 1[]
    dX[_] = divide(dY[_], D[_])
    """,
    work=10,
    source="log(1 + x), exact where x is small",
)
_elementwise(
    "expm1",
    gradient="""
    D[_] = Y[_] + 1[]
    dX[_] = dY[_] D[_]
    """,
    work=10,
    source="exp(x) - 1, exact where x is small",
)
_elementwise(
    "abs",
    gradient="""
    S[_] = sign(X[_])
    dX[_] = dY[_] S[_]
    """,
    number=abs,
    complex=False,
    c="fabs(X)",
    aliases=("absolute", "fabs"),
    source="|x|; its derivative at 0 is taken as 0",
)
_elementwise(
    "sign",
    number=lambda x: (x > 0) - (x < 0),
    complex=False,
    c="1 if X > 0 else -1 if X < 0 else 0",
    aliases=("sgn",),
    source="-1, 0 or 1; its derivative is taken as 0",
)
_elementwise("floor", complex=False, source="the largest whole number that is no larger; its derivative is taken as 0")
_elementwise(
    "divide",
    "X",
    "D",
    gradient="""
    dX[_] = divide(dY[_], D[_])
    T[_] = dX[_] Y[_]
    dD[_] = -1[] T[_]
    """,
    sign="/",
    c="X / D",
    aliases=("div", "true_divide"),
)
_elementwise(
    "power",
    "X",
    "Z",
    gradient="""
    U[_] = Z[_] - 1[]
    V[_] = power(X[_], U[_])
    S[_] = Z[_] V[_]
    O[_] = equal(Z[_], 0[])
    T[_] = select(O[_], 0[], S[_])
    dX[_] = dY[_] T[_]
    N[_] = equal(X[_], 0[])
    B[_] = select(N[_], 1[], X[_])
    L[_] = log(B[_])
    G[_] = Y[_] L[_]
    dZ[_] = dY[_] G[_]
    """,
    spelled={"torch": "torch.pow({X}, {Z})"},
    number=math.pow,
    c="pow(X, Z)",
    work=10,
    aliases=("pow",),
    source="x to the power z; where z is 0 and where x is 0 the derivatives by x and by z are taken as 0",
)
_elementwise(
    "maximum",
    "X",
    "Z",
    gradient="""
    C[_] = less(Z[_], X[_])
    dX[_] = select(C[_], dY[_], 0[])
    dZ[_] = select(C[_], 0[], dY[_])
    """,
    number=max,
    bound="min",
    c="X if X > Z else Z",
)
_elementwise(
    "minimum",
    "X",
    "Z",
    gradient="""
    C[_] = less(X[_], Z[_])
    dX[_] = select(C[_], dY[_], 0[])
    dZ[_] = select(C[_], 0[], dY[_])
    """,
    number=min,
    bound="max",
    c="X if X < Z else Z",
)
_elementwise(
    "select",
    "C",
    "X",
    "Z",
    gradient="""
    dX[_] = select(C[_], dY[_], 0[])
    dZ[_] = select(C[_], 0[], dY[_])
    """,
    conditions=("C",),
    called="where",
    c="X if C else Z",
    source="X where C holds, Z elsewhere",
)
_elementwise("less", "X", "Z", sign="<", truth=True, number=operator.lt, c="X < Z")
_elementwise("equal", "X", "Z", sign="==", truth=True, number=operator.eq, c="X == Z")
_elementwise(
    "hashed",
    "X",
    "Z",
    spelled=dict.fromkeys(MODULES, "hashed({X}, {Z})"),
    c="hashed_{real}(X, Z)",
    work=10,
    complex=False,
    source="a whole number below 2^24 that two whole numbers give, as if it were drawn: Mueller's hash of 32 bits",
)
_elementwise(
    "coin",
    "X",
    "Z",
    spelled=dict.fromkeys(MODULES, "coin({X}, {Z})"),
    c="coin_{real}(X, Z)",
    work=10,
    complex=False,
    source="1 or -1, as two whole numbers say: the highest bit of Mueller's hash of 32 bits",
)
_elementwise(
    "shift",
    "X",
    "Z",
    spelled={
        "numpy": "np.clip(np.floor({X} * 2.0 ** -np.clip({Z}, -64, 64) + 0.5), -1073741824, 1073741824)",
        "torch": "torch.clip(torch.floor({X} * 2.0 ** -torch.clip({Z}, -64, 64) + 0.5), -1073741824, 1073741824)",
        "jax": "jnp.clip(jnp.floor({X} * 2.0 ** -jnp.clip({Z}, -64, 64) + 0.5), -1073741824, 1073741824)",
    },
    c="shift_{real}(X, Z)",
    work=4,
    complex=False,
    source="X over 2 to the power Z as the nearest whole number, halves up, and no further from 0 than 2^30; on "
    "processors a shift of bits; its derivative is taken as 0",
)
_elementwise(
    "bits",
    spelled={
        "numpy": "(np.frexp({X})[1] + 0 * {X})",
        "torch": "(torch.frexp({X})[1] + 0 * {X})",
        "jax": "(jnp.frexp({X})[1] + 0 * {X})",
    },
    c="bits_{real}(X)",
    work=10,
    complex=False,
    source="how many bits |X| has: the least whole n of which 2^n is larger; of 0 it is 0; its derivative is 0",
)
define(
    OpDef(
        "stop_gradient",
        ("X",),
        ("Y",),
        kind="move",
        pointwise=True,
        called="real",
        spelled={"numpy": "{X}", "torch": "{X}.detach()", "jax": "jax.lax.stop_gradient({X})"},
        c="X",
        source="X as it is, through which no gradient passes",
        aliases=("detach",),
    )
)


def _reduction(name: str, by: str, outside: float, aliases: tuple[str, ...], source: str) -> None:
    """Register a maximum or minimum along axes; equal extreme elements share the gradient."""
    gradient = """
    E[_ n] = equal(X[_ n], Y[_])
    c[_] = E[_ n]
    H[_] = divide(dY[_], c[_])
    dX[_ n] = select(E[_ n], H[_], 0[])
    """
    tangent = """
    E[_ n] = equal(X[_ n], Y[_])
    c[_] = E[_ n]
    H[_] = E[_ n] tX[_ n]
    tY[_] = divide(H[_], c[_])
    """
    row = OpDef(
        name,
        ("X",),
        ("Y",),
        gradient_text=gradient,
        tangent_texts={"X": tangent},
        outside=outside,
        kind="reduction",
        source=source,
        by=by,
        aliases=aliases,
    )
    define(row)


_reduction("max", "maximum", -math.inf, ("amax",), "equal maxima share the gradient, as torch.amax does")
_reduction("min", "minimum", math.inf, ("amin",), "equal minima share the gradient, as torch.amin does")


def _scan(name: str, backwards: bool, other: str, spelled: dict[str, str]) -> None:
    """Register a cumulative sum along an axis; its gradient is the cumulative sum from the other end."""
    row = OpDef(
        name,
        ("X",),
        ("Y",),
        gradient_text=f"dX[_ n] = {other}[n](dY[_ n])",
        tangent_texts={"X": f"tY[_ n] = {name}[n](tX[_ n])"},
        kind="scan",
        outside=0.0,
        backwards=backwards,
        spelled=spelled,
        source=f"the sum of all places {'from each one on' if backwards else 'up to each one'}",
    )
    define(row)


_scan("cumsum", False, "reversed_cumsum", {backend: f"{at}.cumsum({{X}}, {{axis}})" for backend, at in MODULES.items()})
_scan(
    "reversed_cumsum",
    True,
    "cumsum",
    {
        backend: f"{at}.flip({at}.cumsum({at}.flip({{X}}, ({{axis}},)), {{axis}}), ({{axis}},))"
        for backend, at in MODULES.items()
    },
)


def _choice(name: str, chooses: str, largest: bool, spelled: dict[str, str], source: str, *aliases: str) -> None:
    """Register an operator that returns positions along an axis as indices without a gradient; ties keep their
    order."""
    more: dict[str, Any] = {"kind": "choice", "chooses": chooses, "largest": largest}
    more["outside"] = None if chooses == "all" else -math.inf if largest else math.inf
    define(OpDef(name, ("X",), ("Y",), spelled=spelled, source=source, aliases=aliases, **more))


for _name, _largest in (("argmax", True), ("argmin", False)):
    _call = {backend: f"{at}.{_name}({{X}}, -1)" for backend, at in MODULES.items()}
    _choice(
        _name, "one", _largest, _call, f"the index of the {'largest' if _largest else 'smallest'}, the first of several"
    )
_choice(
    "argsort",
    "all",
    False,
    {
        "numpy": 'np.argsort({X}, -1, kind="stable")',
        "torch": "torch.argsort({X}, dim=-1, stable=True)",
        "jax": "jnp.argsort({X}, -1, stable=True)",
    },
    "the positions of all in ascending order",
    "sort",
)
_choice(
    "topk",
    "some",
    True,
    {
        "numpy": 'np.argsort(-{X}, -1, kind="stable")[..., :{k}]',
        "torch": "torch.argsort({X}, dim=-1, descending=True, stable=True)[..., :{k}]",
        "jax": "jax.lax.top_k({X}, {k})[1]",
    },
    "the positions of the largest in descending order; as many as the axis of the result is long",
    "top_k",
)

define(
    OpDef("zeros", (), ("Y",), kind="constant", fill=0.0),
    OpDef("ones", (), ("Y",), kind="constant", fill=1.0),
    OpDef(
        "eye",
        (),
        ("Y",),
        kind="constant",
        source="1 where the first half of the axes equals the second, else 0",
        aliases=("identity", "diagonal"),
    ),
    OpDef(
        "join",
        ("X", "Z"),
        ("Y",),
        kind="constant",
        source="the concatenation along the axis: a sum of reads at positions that do not overlap",
    ),
    OpDef(
        "append",
        ("X", "Z"),
        ("Y",),
        kind="constant",
        source="Z appended to X along the axis, in a preallocated buffer: it computes and copies nothing itself",
    ),
)

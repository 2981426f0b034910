"""Numbers that follow from symbolic sizes, such as `x / x.shape[0]` or `M - 1`: a number of the notation, or lines."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import sympy
import torch._dynamo.config
from torch import SymInt, _refs
from torch._prims_common import is_contiguous_or_false, make_contiguous_strides_for
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy import functions as theirs
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod, PythonMod

from learncost.importer.axes import AxisClass
from learncost.importer.equations import NumberOperand
from learncost.importer.nodes import size_of
from learncost.importer.replaced import attributes_replaced
from learncost.ir.stated import LARGEST, Limit

if TYPE_CHECKING:
    from learncost.importer.reader import GraphReader
    from learncost.importer.views import View


def plain(expression: Any) -> Any:
    """Rewrite an expression of a graph with sympy's own functions."""
    replacements = {
        theirs.ToFloat: lambda x: x,
        theirs.FloatPow: sympy.Pow,
        theirs.PowByNatural: sympy.Pow,
        theirs.FloatTrueDiv: lambda x, y: x / y,
        theirs.IntTrueDiv: lambda x, y: x / y,
        theirs.OpaqueUnaryFn_sqrt: sympy.sqrt,
        theirs.OpaqueUnaryFn_log: sympy.log,
        theirs.OpaqueUnaryFn_exp: sympy.exp,
    }
    for kind, replacement in replacements.items():
        expression = expression.replace(kind, replacement)
    return expression


def expression_of(value: Any) -> Any:
    """Return a number of a graph as an expression in sizes; None for other values."""
    if hasattr(value, "free_symbols") or hasattr(getattr(value, "node", None), "expr"):
        size = size_of(value)
        return None if isinstance(size, int) else plain(size)
    return None


def number_of(expression: Any) -> NumberOperand | None:
    """Return an expression as a number of the notation, `#B#M^-0.5[]` or `#(B-1)^-1[]`: a number, or the product of
    sizes and their sums with one power.

    None if it needs lines, or depends on values.
    """
    if free_unbacked_symbols(expression):
        return None
    if expression.is_number:
        return NumberOperand(float(expression))
    coefficient, factors = expression.as_coeff_mul()
    pairs = [factor.as_base_exp() for factor in factors]
    powers = {power for _, power in pairs}
    whole = all(base.is_integer and base.is_polynomial(*base.free_symbols) for base, _ in pairs)
    if len(powers) != 1 or not whole:
        return None
    (power,) = powers
    several = (
        coefficient if power == 1 else 1 / coefficient if power == -1 else coefficient if coefficient == 1 else None
    )
    if not power.is_number or several is None or not several.is_integer or several < 0:
        return None
    axes = (*([] if several == 1 else [AxisClass(int(several))]), *(AxisClass(base) for base, _ in pairs))
    return NumberOperand(1.0, axes, float(power))


def lines_of(reader: GraphReader, expression: Any) -> NumberOperand | View:
    """Return any expression of sizes as an operand, recording lines for it if necessary."""
    if free_unbacked_symbols(expression):
        raise reader.refusal(
            "a number that depends on values", "; --as-run (in Python as_run=True) uses that of one run"
        )
    if (number := number_of(expression)) is not None:
        return number
    several = [lines_of(reader, each) for each in _parts(expression)]
    if expression.is_Add:
        return reader.add(*several, signs=[-1 if _is_negative(term) else 1 for term in expression.args])
    if expression.is_Mul:
        return reader.multiply(*several)
    if expression.is_Pow and expression.exp == -1:
        return reader.op("divide", 1.0, several[0])
    if expression.is_Pow:
        return reader.op("power", *several)
    if isinstance(expression, FloorDiv):
        return reader.op("floor", reader.op("divide", *several))
    ops = {sympy.log: "log", sympy.exp: "exp", sympy.Max: "maximum", Max: "maximum", Min: "at_most"}
    if (op := ops.get(expression.func)) is not None and len(several) < 3:
        return reader.op(op, *several)
    raise reader.refusal(f"the number {expression}, which follows from sizes")


def _parts(expression: Any) -> tuple[Any, ...]:
    """Return the parts of an expression: terms without their signs, factors of one power together."""
    if expression.is_Add:
        return tuple(-term if _is_negative(term) else term for term in expression.args)
    if not expression.is_Mul:
        return tuple(expression.args)
    together: dict[Any, Any] = {}
    for factor in expression.args:
        base, power = factor.as_base_exp()
        key = power if base.is_Symbol else factor
        together[key] = together.get(key, 1) * factor
    return tuple(together.values())


def _is_negative(term: Any) -> bool:
    return bool(term.as_coeff_mul()[0] < 0)


def without_rests(size: Any) -> Any:
    """Rewrite remainders in a size: M % 4 as M - 4 (M // 4)."""
    for kind in (Mod, PythonMod):
        size = size.replace(kind, lambda above, below: above - below * FloorDiv(above, below))
    return size


def exact(nodes: Iterable[Any]) -> dict[Any, Any]:
    """Return the floor divisions of sizes, M // 2, that a graph proves exact, by their quotient M/2.

    The proof is a guard, as where halves are multiplied, or a view whose number of elements only then matches, as
    `x.view(B, M // 2, -1)`.
    """
    nodes = list(nodes)
    sizes = [size for node in nodes for size in getattr(node.meta.get("val"), "shape", ()) if hasattr(size, "node")]
    whole = _by_guards(sizes[0].node.shape_env.guards) if sizes else {}
    for node in nodes:
        if str(node.target) in VIEWS:
            before, after = (
                prod(size.node.expr if hasattr(size, "node") else size for size in each.meta["val"].shape)
                for each in (node.args[0], node)
            )
            whole |= _by_view(before, after, whole)
    return whole


VIEWS = ("aten.view.default", "aten.reshape.default", "aten._unsafe_view.default", "aten.unflatten.int")


def _by_guards(guards: Iterable[Any]) -> dict[Any, Any]:
    """Return the floor divisions that follow from two sizes being equal.

    The floor of a/n is v if 0 <= a - n v < n; of several candidates the largest is used.
    """
    exact: dict[Any, Any] = {}
    for guard in guards:
        for part in guard.expr.atoms(FloorDiv, Max, Min) if isinstance(guard.expr, sympy.Eq) else ():
            whole = sympy.Dummy()
            apart = sympy.expand((guard.expr.lhs - guard.expr.rhs).xreplace({part: whole}))
            times = apart.coeff(whole)
            rest = apart - sympy.expand(times * whole)
            if times == 0 or rest.has(whole):
                continue
            value = sympy.cancel(-rest / times)
            if isinstance(part, Max | Min):
                exact |= {part: value} if value in part.args else {}
                continue
            above, below = part.args
            if not below.is_number:
                continue
            left = sympy.expand(above - below * value)
            if left.is_number and 0 <= left < below:
                exact[part] = value
    return exact


def _by_view(before: Any, after: Any, known: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the floor divisions by numbers in a view's sizes, if its number of elements matches only without
    remainders.
    """
    before, after = (sympy.sympify(each).xreplace(dict(known)) for each in (before, after))
    parts = {part: part.args[0] / part.args[1] for part in after.atoms(FloorDiv) if part.args[1].is_number}

    def places(size: Any, values: Mapping[Any, Any]) -> Any:
        size = size.xreplace(values)
        for part in sorted(size.atoms(FloorDiv), key=lambda each: len(str(each))):
            ratio = sympy.cancel(part.args[0] / part.args[1])
            size = size.xreplace({part: ratio})
        return sympy.expand(sympy.cancel(size))

    if not parts or sympy.expand(after - before) == 0:
        return {}
    return parts if sympy.expand(places(after, parts) - places(before, parts)) == 0 else {}


@contextmanager
def plain_sizes() -> Iterator[None]:
    """Keep, inside, the requested sizes of a view with symbolic sizes, and disable the cache of shapes.

    PyTorch changes a shape dimension by dimension, so that the size 64 of `x.view(B, -1, 64)` becomes `M // (M // 64)`,
    which nothing simplifies, and it tests divisibility at every step. This also affects the strides of contiguous
    results. It recomputes cached shapes to validate them, which takes longer than the cache saves.
    """
    by_dimension = _refs._reshape_view_helper_core_alg

    def fused_update(a: Any, shape: Sequence[Any], allow_copy: bool) -> Any:
        """Return the tensor with another shape; the number of elements was checked before."""
        if any(isinstance(size, SymInt) for size in shape) and is_contiguous_or_false(a):
            return a.as_strided(shape, make_contiguous_strides_for(tuple(shape)), a.storage_offset())
        return by_dimension(a, shape, allow_copy)

    with (
        attributes_replaced({(_refs, "_reshape_view_helper_core_alg"): fused_update}),
        torch._dynamo.config.patch(fake_tensor_cache_enabled=False),
    ):
        yield


def interval(guards: Iterable[Any], symbol: Any, example: int) -> Limit:
    """Return the range of sizes around an example in which all floor divisions keep the values that guards assume, as
    for an unrolled loop.
    """
    asked = [
        guard.expr
        for guard in guards
        if isinstance(guard.expr, sympy.Eq)
        and any(side.is_Integer for side in guard.expr.args)
        and any(isinstance(side, FloorDiv) for side in guard.expr.args)
        and guard.expr.free_symbols == {symbol}
    ]
    within = Limit()
    for equation in dict.fromkeys(asked):

        def holds(size: int, equation: Any = equation) -> bool:
            return bool(equation.xreplace({symbol: sympy.Integer(size)}) == sympy.true)

        least = 1 + bisect_left(range(1, example + 1), True, key=holds)
        beyond = bisect_left(range(example, LARGEST), True, key=lambda size: not holds(size))
        within &= Limit(least, example + beyond - 1 if example + beyond < LARGEST else LARGEST)
    return within


def open_sizes(nodes: Iterable[Any]) -> set[Any]:
    """Return the symbolic sizes of a graph's values."""
    return {
        size.node.expr for node in nodes for size in getattr(node.meta.get("val"), "shape", ()) if hasattr(size, "node")
    }


def constants(sizes: Iterable[Any], within: Mapping[Any, Limit]) -> dict[Any, int]:
    """Return the sizes, or parts of sizes, that are constant over the range of a symbol, if that range is small."""
    parts = {
        part
        for size in set(sizes)
        for part in sympy.preorder_traversal(size)
        if len(part.free_symbols) == 1 and part.has(FloorDiv, Mod, PythonMod, Max, Min)
    }
    found: dict[Any, int] = {}
    for part in parts:
        (symbol,) = part.free_symbols
        limit = within.get(symbol, Limit())
        if limit.most - limit.least > MOST_TRIED:
            continue
        values = {part.xreplace({symbol: sympy.Integer(n)}) for n in range(limit.least, limit.most + 1)}
        if len(values) == 1 and (value := values.pop()).is_Integer:
            found[part] = value
    return found


MOST_TRIED = 4096
"""The most sizes that are tried one by one."""

"""Numbers that follow from open sizes, `x / x.shape[0]` or `M - 1`: a number of the notation, or lines of numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from learncost.models.imported.axes import Axis
from learncost.models.imported.equations import Number

if TYPE_CHECKING:
    from learncost.models.imported.reader import Reader
    from learncost.models.imported.views import View


def plain(expression: Any) -> Any:
    """An expression of a graph in functions that are sympy's own."""
    import sympy
    from torch.utils._sympy import functions as theirs

    ways = {
        theirs.ToFloat: lambda x: x,
        theirs.FloatPow: sympy.Pow,
        theirs.PowByNatural: sympy.Pow,
        theirs.FloatTrueDiv: lambda x, y: x / y,
        theirs.IntTrueDiv: lambda x, y: x / y,
        theirs.OpaqueUnaryFn_sqrt: sympy.sqrt,
        theirs.OpaqueUnaryFn_log: sympy.log,
        theirs.OpaqueUnaryFn_exp: sympy.exp,
    }
    for kind, way in ways.items():
        expression = expression.replace(kind, way)
    return expression


def number_of(expression: Any) -> Number | None:
    """`#B#M^-0.5[]`: a number, or the product of sizes with one power; None for what takes lines, or no sizes give."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if free_unbacked_symbols(expression):
        return None
    if expression.is_number:
        return Number(float(expression))
    coefficient, factors = expression.as_coeff_mul()
    pairs = [factor.as_base_exp() for factor in factors]
    powers = {power for _, power in pairs}
    if coefficient != 1 or len(powers) != 1 or not all(base.is_Symbol for base, _ in pairs):
        return None
    (power,) = powers
    return Number(1.0, tuple(Axis(base) for base, _ in pairs), float(power)) if power.is_number else None


def lines_of(reader: Reader, expression: Any) -> Number | View:
    """The same of any expression, by lines for what has none."""
    import sympy
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
    from torch.utils._sympy.functions import FloorDiv, Max, Min

    if free_unbacked_symbols(expression):
        raise reader.refusal(
            "a number that depends on values", "; --as-run takes that of one run (in Python as_run=True)"
        )
    if (number := number_of(expression)) is not None:
        return number
    several = [lines_of(reader, each) for each in _parts(expression)]
    if expression.is_Add:
        return reader.add(*several, signs=[-1 if _is_negative(term) else 1 for term in expression.args])
    if expression.is_Mul:
        return reader.multiply(*several)
    if expression.is_Pow and expression.exp == -1:
        return reader.word("divide", 1.0, several[0])
    if expression.is_Pow:
        return reader.word("power", *several)
    if isinstance(expression, FloorDiv):
        return reader.word("floor", reader.word("divide", *several))
    words = {sympy.log: "log", sympy.exp: "exp", sympy.Max: "maximum", Max: "maximum", Min: "at_most"}
    if (word := words.get(expression.func)) is not None and len(several) < 3:
        return reader.word(word, *several)
    raise reader.refusal(f"the number {expression}, which follows from sizes")


def _parts(expression: Any) -> tuple[Any, ...]:
    """What an expression is made of: terms without their signs, factors of one power together."""
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


def exact(inputs: Iterable[Any]) -> dict[Any, Any]:
    """Quotients of sizes, M // 2, that a view of the graph has without a rest: M/2."""
    import sympy
    from torch.utils._sympy.functions import FloorDiv

    sizes = [size for node in inputs for size in getattr(node.meta.get("val"), "shape", ()) if hasattr(size, "node")]
    exact: dict[Any, Any] = {}
    for guard in sizes[0].node.shape_env.guards if sizes else ():
        for part in guard.expr.atoms(FloorDiv) if isinstance(guard.expr, sympy.Eq) else ():
            above, below = part.args
            whole = sympy.Dummy()
            apart = sympy.expand((guard.expr.lhs - guard.expr.rhs).xreplace({part: whole}))
            times = apart.coeff(whole)
            rest = apart - sympy.expand(times * whole)
            if below.is_number and times != 0 and not rest.has(whole) and sympy.cancel(-rest / times) == above / below:
                exact[part] = above / below
    return exact

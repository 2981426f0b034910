"""Complex numbers as pairs of real numbers."""

from __future__ import annotations

from typing import Any

from learncost.importer.nodes import operator_name
from learncost.importer.reader import GraphReader
from learncost.importer.rule import COMPLEX_RULES, RULES, complex_rule, rule
from learncost.importer.rules import indexing, movement, reductions  # noqa: F401 - their rules are read
from learncost.importer.rules.elementwise import div as real_div
from learncost.importer.rules.movement import joined
from learncost.importer.rules.reductions import guarded_power, vector_norm
from learncost.importer.rules.views import narrowed
from learncost.importer.views import Complex, GivenTensor, View


@rule("view_as_complex", "view_as_complex_copy")
def view_as_complex(reader: GraphReader, x: View) -> Complex:
    parts = [narrowed(reader, x, -1, place, 1) for place in (0, 1)]
    real, imaginary = (part.with_dims(part.dims[:-1]) for part in parts)
    return Complex(real, imaginary)


@rule("complex")
def complex_(reader: GraphReader, real: Any, imaginary: Any) -> Complex:
    return Complex(reader.view(real), reader.view(imaginary))


@rule("polar")
def polar(reader: GraphReader, size: Any, angle: Any) -> Complex:
    parts = (reader.multiply(size, reader.op(op, angle)) for op in ("cos", "sin"))
    return Complex(*parts)


def pair(reader: GraphReader, value: Any) -> Complex:
    """Return a tensor or a number as a pair."""
    if isinstance(value, Complex):
        return value
    if isinstance(value, GivenTensor) and value.node.meta["val"].dtype.is_complex:
        return Complex(*(reader.outside(GivenTensor(value.node), f"{part} part") for part in ("real", "imaginary")))
    if isinstance(value, complex):
        return Complex(value.real, value.imag)
    return Complex(value, 0.0)


@complex_rule("view_as_real", "view_as_real_copy")
def view_as_real(reader: GraphReader, x: Complex) -> View:
    real, imaginary = (reader.view(each) for each in (x.real, x.imaginary))
    dim = len(real.dims)
    several = [each.with_dims([*each.dims, ()]) for each in (real, imaginary)]
    return joined(reader, several, dim, [*real.shape, 2])


@complex_rule("abs")
def size(reader: GraphReader, x: Complex) -> View:
    if _is_real(x):
        return reader.op("abs", x.real)
    squares = [reader.multiply(each, each) for each in (x.real, x.imaginary)]
    return guarded_power(reader, reader.add(*squares), 0.5)


@complex_rule("linalg_vector_norm")
def norm(reader: GraphReader, x: Complex, *more: Any, **named: Any) -> View:
    return vector_norm(reader, size(reader, x), *more, **named)


@complex_rule("_conj", "_conj_physical")
def conjugate(reader: GraphReader, x: Complex) -> Complex:
    return Complex(x.real, _times(reader, x.imaginary, -1.0))


@complex_rule("exp")
def exp(reader: GraphReader, x: Complex) -> Complex:
    """e^(a + ib) = e^a (cos b + i sin b)."""
    parts = [reader.op(op, x.imaginary) for op in ("cos", "sin")]
    if _is_zero(x.real):
        return Complex(*parts)
    return Complex(*(reader.multiply(reader.op("exp", x.real), part) for part in parts))


@complex_rule("pow.Tensor_Scalar")
def power(reader: GraphReader, x: Complex, exponent: Any) -> Complex:
    if exponent != 2:
        raise reader.refusal(f"the power {exponent} of complex numbers")
    return mul(reader, x, x)


@complex_rule("reciprocal")
def reciprocal(reader: GraphReader, x: Complex) -> Complex:
    """1/(a + ib) = (a - ib)/(a^2 + b^2)."""
    size = reader.add(*(reader.multiply(each, each) for each in (x.real, x.imaginary)))
    return Complex(reader.op("divide", x.real, size), reader.op("divide", reader.multiply(-1.0, x.imaginary), size))


@complex_rule("div")
def div(reader: GraphReader, x: Any, z: Any) -> Complex:
    x, z = pair(reader, x), pair(reader, z)
    if not _is_real(z):
        return mul(reader, x, reciprocal(reader, z))
    return Complex(*(each if _is_zero(each) else real_div(reader, each, z.real) for each in (x.real, x.imaginary)))


@complex_rule("mul", "neg")
def mul(reader: GraphReader, x: Any, z: Any = -1.0) -> Complex:
    """(a + ib)(c + id) = ac - bd + i(ad + bc); times a real number each part."""
    x, z = pair(reader, x), pair(reader, z)
    if _is_real(z):
        return Complex(*(_times(reader, part, z.real) for part in (x.real, x.imaginary)))
    if _is_real(x):
        return Complex(*(_times(reader, part, x.real) for part in (z.real, z.imaginary)))
    real = reader.add(reader.multiply(x.real, z.real), reader.multiply(x.imaginary, z.imaginary), signs=[1, -1])
    imaginary = reader.add(reader.multiply(x.real, z.imaginary), reader.multiply(x.imaginary, z.real))
    return Complex(real, imaginary)


def _times(reader: GraphReader, part: Any, number: Any) -> Any:
    """Return a part of a number times a real one; None if there is no such part."""
    return 0.0 if _is_zero(part) else reader.multiply(part, number)


def _is_real(x: Complex) -> bool:
    return _is_zero(x.imaginary)


def _is_zero(part: Any) -> bool:
    return isinstance(part, float) and part == 0.0


@complex_rule("add", "sub")
def add(reader: GraphReader, x: Any, z: Any, *, alpha: Any = 1) -> Complex:
    if alpha != 1:
        raise reader.refusal("a sum of complex numbers with a factor")
    sign = -1 if reader.recorder.operator == "sub" else 1
    return _sum(reader, x, z, sign)


def _sum(reader: GraphReader, x: Any, z: Any, sign: int) -> Complex:
    """Return the sum, part by part; parts that are 0 are not added."""
    x, z = pair(reader, x), pair(reader, z)

    def part(a: Any, b: Any) -> Any:
        if _is_zero(b):
            return a
        if _is_zero(a):
            return b if sign > 0 else _times(reader, b, -1.0)
        return reader.add(a, b, signs=[1, sign])

    return Complex(part(x.real, z.real), part(x.imaginary, z.imaginary))


@complex_rule("mm", "bmm", "matmul", "mv", "dot", "linear", "convolution")
def product(reader: GraphReader, x: Any, z: Any, bias: Any = None, *more: Any) -> Complex:
    """Record four products of real matrices, or two if an operand is real; `more` are the windows of a convolution."""
    x, z = pair(reader, x), pair(reader, z)
    shift = Complex(None, None) if bias is None else pair(reader, bias)
    of_real = RULES[operator_name(reader.node.target)]

    def made(first: Any, second: Any, shift: Any = None) -> View:
        reader.recorder.operator = reader.recorder.name
        return of_real(reader, first, second, *([] if of_real is RULES["mm"] else [shift]), *more)  # type: ignore[no-any-return]

    if _is_real(z):
        return Complex(made(x.real, z.real, shift.real), made(x.imaginary, z.real, shift.imaginary))
    if _is_real(x):
        return Complex(made(x.real, z.real, shift.real), made(x.real, z.imaginary, shift.imaginary))
    real = reader.add(made(x.real, z.real, shift.real), made(x.imaginary, z.imaginary), signs=[1, -1])
    return Complex(real, reader.add(made(x.real, z.imaginary, shift.imaginary), made(x.imaginary, z.real)))


def _each(name: str, function: Any) -> None:
    """Register a rule of real numbers that treats both parts in the same way; a list of tensors is a list of parts."""

    @complex_rule(name)
    def apply(reader: GraphReader, x: Any, *more: Any, **named: Any) -> Any:
        several = [pair(reader, each) for each in x] if isinstance(x, list | tuple) else pair(reader, x)

        def part(which: str) -> Any:
            if isinstance(several, list):
                return function(reader, [_spread(reader, each, which) for each in several], *more, **named)
            return function(reader, reader.view(getattr(several, which)), *more, **named)

        real, imaginary = part("real"), part("imaginary")
        if isinstance(real, list):
            return [Complex(a, b) for a, b in zip(real, imaginary, strict=True)]
        return Complex(real, imaginary)


def _spread(reader: GraphReader, x: Complex, which: str) -> View:
    """Return a part of a tensor in a list; a part that is 0 has the shape of the other part."""
    part = getattr(x, which)
    return reader.filled(reader.view(x.real).shape, 0.0) if _is_zero(part) else reader.view(part)


SAME_FOR_BOTH = (
    *("view", "_unsafe_view", "squeeze", "unsqueeze", "permute", "transpose", "t", "expand", "repeat", "slice"),
    *("select", "split", "split_with_sizes", "unbind", "flip", "cat", "stack", "sum", "mean", "cumsum"),
    *("diagonal", "tril", "triu", "index.Tensor", "gather"),
)
"""Linear operators whose other arguments are real."""

for _name in SAME_FOR_BOTH:
    _each(_name, RULES[_name])


@complex_rule("constant_pad_nd")
def pad(reader: GraphReader, x: Complex, sizes: Any, *more: Any, **named: Any) -> Complex:
    if any(isinstance(each, int | float) and each for each in (*more, *named.values())):
        raise reader.refusal("padding with complex numbers other than 0")
    real, imaginary = (
        RULES["constant_pad_nd"](reader, reader.view(each), sizes, *more, **named) for each in (x.real, x.imaginary)
    )
    return Complex(real, imaginary)


@complex_rule("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full")
def made_like(reader: GraphReader, *_: Any, **__: Any) -> GivenTensor:
    return GivenTensor(reader.node)


@complex_rule("copy")
def copy(reader: GraphReader, _: Any, source: Any, *__: Any) -> Any:
    return COMPLEX_RULES["expand"](reader, source)


@complex_rule("clone", "_to_copy", "alias")
def same(reader: GraphReader, x: Complex, *_: Any, **__: Any) -> Complex:
    return x

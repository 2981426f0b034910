"""Complex numbers as pairs of real ones: rotations by angles."""

from __future__ import annotations

from typing import Any

from learncost.models.imported.reader import Complex, Outside, Reader, complex_rule, rule
from learncost.models.imported.rules import views
from learncost.models.imported.rules.movement import joined
from learncost.models.imported.rules.products import einsum, multiplied
from learncost.models.imported.rules.views import narrowed
from learncost.models.imported.views import View


@rule("view_as_complex", "view_as_complex_copy")
def view_as_complex(reader: Reader, x: View) -> Complex:
    parts = [narrowed(reader, x, -1, place, 1) for place in (0, 1)]
    real, imaginary = (part.with_dims(part.dims[:-1]) for part in parts)
    return Complex(real, imaginary)


@rule("complex")
def complex_(reader: Reader, real: Any, imaginary: Any) -> Complex:
    return Complex(reader.view(real), reader.view(imaginary))


@rule("polar")
def polar(reader: Reader, size: Any, angle: Any) -> Complex:
    parts = (reader.multiply(size, reader.word(word, angle)) for word in ("cos", "sin"))
    return Complex(*parts)


def pair(reader: Reader, value: Any) -> Complex:
    """A tensor or a number as a pair."""
    if isinstance(value, Complex):
        return value
    if isinstance(value, Outside) and value.node.meta["val"].dtype.is_complex:
        return Complex(*(reader.outside(Outside(value.node), f"{part} part") for part in ("real", "imaginary")))
    if isinstance(value, complex):
        return Complex(value.real, value.imag)
    return Complex(value, 0.0)


@complex_rule("view_as_real", "view_as_real_copy")
def view_as_real(reader: Reader, x: Complex) -> View:
    real, imaginary = (reader.view(each) for each in (x.real, x.imaginary))
    dim = len(real.dims)
    several = [each.with_dims([*each.dims, ()]) for each in (real, imaginary)]
    return joined(reader, several, dim, [*real.shape, 2])


@complex_rule("real")
def real(reader: Reader, x: Complex) -> Any:
    return x.real


@complex_rule("imag")
def imag(reader: Reader, x: Complex) -> Any:
    return x.imaginary


@complex_rule("abs")
def size(reader: Reader, x: Complex) -> View:
    squares = [reader.multiply(each, each) for each in (x.real, x.imaginary)]
    return reader.word("sqrt", reader.add(*squares))


@complex_rule("conj", "_conj", "conj_physical", "_conj_physical")
def conjugate(reader: Reader, x: Complex) -> Complex:
    return Complex(x.real, reader.multiply(-1.0, x.imaginary))


@complex_rule("exp")
def exp(reader: Reader, x: Complex) -> Complex:
    """e^(a + ib) = e^a (cos b + i sin b)."""
    parts = [reader.word(word, x.imaginary) for word in ("cos", "sin")]
    if isinstance(x.real, float) and x.real == 0.0:
        return Complex(*parts)
    return Complex(*(reader.multiply(reader.word("exp", x.real), part) for part in parts))


@complex_rule("neg")
def neg(reader: Reader, x: Complex) -> Complex:
    return Complex(*(reader.multiply(-1.0, each) for each in (x.real, x.imaginary)))


@complex_rule("mul.Tensor", "mul.Scalar")
def mul(reader: Reader, x: Any, z: Any) -> Complex:
    """(a + ib)(c + id) = ac - bd + i(ad + bc); times a real number each part."""
    x, z = pair(reader, x), pair(reader, z)
    if _is_real(z):
        return Complex(*(_times(reader, part, z.real) for part in (x.real, x.imaginary)))
    if _is_real(x):
        return Complex(*(_times(reader, part, x.real) for part in (z.real, z.imaginary)))
    real = reader.add(reader.multiply(x.real, z.real), reader.multiply(x.imaginary, z.imaginary), signs=[1, -1])
    imaginary = reader.add(reader.multiply(x.real, z.imaginary), reader.multiply(x.imaginary, z.real))
    return Complex(real, imaginary)


def _times(reader: Reader, part: Any, number: Any) -> Any:
    """A part of a number times a real one; nothing where there is none."""
    return 0.0 if isinstance(part, float) and part == 0.0 else reader.multiply(part, number)


def _is_real(x: Complex) -> bool:
    return isinstance(x.imaginary, float) and x.imaginary == 0.0


@complex_rule("add.Tensor", "sub.Tensor")
def add(reader: Reader, x: Any, z: Any, *, alpha: Any = 1) -> Complex:
    if alpha != 1:
        raise reader.refusal("a sum of complex numbers with a factor")
    sign = -1 if reader.recorder.operator == "sub" else 1
    x, z = pair(reader, x), pair(reader, z)
    return Complex(*(reader.add(a, b, signs=[1, sign]) for a, b in ((x.real, z.real), (x.imaginary, z.imaginary))))


@complex_rule("einsum", "mm", "bmm", "matmul")
def product(reader: Reader, *arguments: Any, **_: Any) -> Complex:
    """Four products of real matrices, two where an operand is real."""
    equation, operands = arguments if reader.recorder.name == "einsum" else ("", arguments)
    if len(operands) != 2:
        raise reader.refusal(f"a product of {len(operands)} tensors of complex numbers")
    x, z = (pair(reader, each) for each in operands)

    def made(first: Any, second: Any) -> View:
        reader.recorder.operator = reader.recorder.name
        if equation:
            return einsum(reader, equation, [first, second])
        return multiplied(reader, first, second)

    if _is_real(z):
        return Complex(made(x.real, z.real), made(x.imaginary, z.real))
    if _is_real(x):
        return Complex(made(x.real, z.real), made(x.real, z.imaginary))
    real = reader.add(made(x.real, z.real), made(x.imaginary, z.imaginary), signs=[1, -1])
    return Complex(real, reader.add(made(x.real, z.imaginary), made(x.imaginary, z.real)))


def _each(name: str, function: Any) -> None:
    @complex_rule(name)
    def apply(reader: Reader, x: Complex, *more: Any, **named: Any) -> Any:
        real, imaginary = (function(reader, reader.view(each), *more, **named) for each in (x.real, x.imaginary))
        if isinstance(real, list):
            return [Complex(a, b) for a, b in zip(real, imaginary, strict=True)]
        return Complex(real, imaginary)


for _name, _rules in {
    "_view": ("view", "reshape", "_unsafe_view"),
    "_reshape_to_result": ("flatten", "squeeze", "unsqueeze"),
    "_permute": ("permute",),
    "_transpose": ("transpose",),
    "_expand": ("expand",),
    "_slice": ("slice",),
    "_select": ("select",),
    "_unbind": ("unbind",),
}.items():
    for _rule in _rules:
        _each(_rule, getattr(views, _name))


@complex_rule("clone", "contiguous", "_to_copy", "alias", "resolve_conj")
def same(reader: Reader, x: Complex, *_: Any, **__: Any) -> Complex:
    return x

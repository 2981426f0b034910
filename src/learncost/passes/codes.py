"""Quantization of values to 8-bit codes with a scale per group, as lines of a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.term import Literal, Term
from learncost.ir.value import Role, Value

LAYER = "codes"
"""The layer of the lines that quantize and dequantize values."""

LARGEST, LEAST = 127, 1e-30
"""The largest code, and the smallest scale: a group of zeros has codes of 0."""

Values = dict[str, Value]


def coded(number: Term, name: str, inside: Sequence[str], values: Values, phase: str) -> Iterator[Line]:
    """Yield the lines that compute NAME.codes and NAME.scales of a value; the largest number of each group has the code
    127.

    inside  the axes along which numbers share a scale
    values  of the scope, to which the new ones are added
    """
    axes = number.declared
    rows = tuple(axis for axis in axes if axis not in inside)
    meta = Meta(LAYER, phase=phase)

    def term(part: str, of: tuple[str, ...], role: Role = "step", dtype: str = "") -> Term:
        values[f"{name}.{part}"] = Value(of, role, dtype=dtype)
        return Term(f"{name}.{part}", of)

    size, most, least = term("size", axes), term("most", rows), term("least", rows)
    scales, parts, places = term("scales", rows, "value"), term("parts", axes), term("places", axes)
    codes = term("codes", axes, "value", "int8")
    yield Op((size,), (number,), (), meta, "abs", (), "body", ("X",), ("Y",))
    yield Op((most,), (size,), (), meta, "max", tuple(inside), "body", ("X",), ("Y",))
    yield Product((least,), (most, Literal(1 / LARGEST)), (), meta)
    yield Op((scales,), (least, Literal(LEAST)), (), meta, "maximum", (), "body", ("X", "Z"), ("Y",))
    yield Op((parts,), (number, scales), (), meta, "divide", (), "body", ("X", "D"), ("Y",))
    yield Sum((places,), (parts, Literal(0.5)), (), meta, (1, 1))
    yield Op((codes,), (places,), (), meta, "floor", (), "body", ("X",), ("Y",))

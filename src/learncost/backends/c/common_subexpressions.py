"""Bring a kernel's lines into one scope: every axis has one name, copies are propagated, equal values computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

from learncost.ir.affine import Affine
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.loop import defined
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Term
from learncost.ir.value import Value
from learncost.ops import applied, entry
from learncost.passes.lower import lower


def terms(operands: Iterable[Operand | Affine]) -> Iterator[tuple[Term, bool]]:
    """Yield every named value among operands and indices, and whether it is read at an index."""
    for operand in operands:
        if isinstance(operand, Term):
            yield operand, operand.indexed
            yield from terms(axis.at for axis in operand.indexed_axes)


def needs(line: Line) -> Iterator[tuple[Term, bool]]:
    """Return the operands of a line and the indices on both sides."""
    yield from terms(line.right)
    for left in line.left:
        yield from terms(axis.at for axis in left.indexed_axes)


def unified(lines: Iterable[Line]) -> tuple[Line, ...]:
    """Return the lines with renamed axes, so that every value is read with the axes of its definition.

    `dV[B M h k] = dA[B M' h k] P[B h M' M]` after `P[B h M M'] = ...` becomes `dV[B M' h k] = dA[B M h k] P[B h M M']`.
    Raises `InputError` where a value is read with other axes in one line.
    """
    declared: dict[str, tuple[str, ...]] = {}
    result: list[Line] = []
    for line in lines:
        names: dict[str, str] = {}
        for term, _ in needs(line):
            for read_axis, made_axis in zip(term.axes, declared.get(term.name, ()), strict=False):
                if isinstance(read_axis, str) and names.setdefault(read_axis, made_axis) != made_axis:
                    raise InputError(
                        f"a kernel cannot read {term.name} along {read_axis} and {made_axis} at once, in line: {line}"
                    )
        if len(set(names.values())) < len(names):
            raise InputError(f"a kernel cannot read two axes as one, in line: {line}")
        for axis in line.loops:
            if axis not in names:
                name = axis
                while name in names.values():
                    name = f"{name}'" if name != axis or base(axis) == axis else base(axis)
                names[axis] = name
        line = line.renamed({}, names)
        declared.update({term.name: term.declared for term in line.left})
        result.append(line)
    return tuple(result)


def lowered(
    lines: Sequence[Line], axes: Mapping[str, tuple[str, ...]], outputs: frozenset[str], iterations: Sequence[str] = ()
) -> tuple[Line, ...]:
    """Return the lines in one scope of axes, in normal form, without copies and dead code."""
    lines = unified(lines)
    declared_now = {term.name: term.declared for line in lines for term in line.left}
    outputs &= defined(lines)
    values = {name: Value(declared) for name, declared in {**axes, **declared_now}.items()}
    table = lower(Table(lines, values, outputs=tuple(outputs)), joins=False)
    normal = [line for line in table.lines if isinstance(line, Line)]
    normal = _early(normal, frozenset(iterations))
    merged = _without_factors(_without_points(_without_copies(normal, outputs)), defined(lines))
    plain = _without_logarithms(merged)
    return _needed(eliminate_common_subexpressions(plain, outputs), outputs)


def _without_copies(lines: Sequence[Line], outputs: frozenset[str]) -> list[Line]:
    """Copy propagation: replace second names of a kernel's values, and name copied values by their outputs."""
    makers: dict[str, Line] = {}
    names: dict[str, str] = {}
    result: list[Line] = []
    for line in lines:
        line = line.renamed(names)
        left = line.left[0]
        (source, *more) = line.right or (None,)
        copy = isinstance(line, Sum | Product) and not more and isinstance(source, Term) and not line.where
        if (
            copy
            and isinstance(source, Term)
            and source.name in makers
            and source.axes == left.axes
            and not source.indexed
        ):
            if left.name not in outputs:
                names[left.name] = source.name
                continue
            if source.name not in outputs and not makers[source.name].left[0].indexed:
                new = {source.name: left.name}
                names = {old: new.get(name, name) for old, name in names.items()} | new
                result = [line_before.renamed(new) for line_before in result]
                makers = {new.get(name, name): maker.renamed(new) for name, maker in makers.items()}
                continue
        makers[left.name] = line
        result.append(line)
    return result


def is_point(line: Line) -> bool:
    """Return whether a line puts one number into a row of zeros, `dP[B M v=targets[B M]] = dT[B M]`."""
    left = line.left[0]
    if not (isinstance(line, Product) and left.indexed and len(line.right) == 1):
        return False
    plain = {axis for axis in left.axes if isinstance(axis, str)}
    return set(line.loops) <= plain


def _without_factors(lines: Sequence[Line], named: Collection[str]) -> list[Line]:
    """Merge a product into the scatter-add that reads it, so that it is multiplied in place, as it is priced.

    named  results of separate lines, which are priced so
    """
    reads = Counter(name for line in lines for name in line.reads)
    products = {
        line.name: line
        for line in lines
        if isinstance(line, Product)
        and not (line.where or line.left[0].indexed or line.name in named or reads[line.name] > 1)
        and set(line.loops) == set(line.left[0].loops)
    }
    result: list[Line] = []
    for line in lines:
        (factor, *more) = line.right or (None,)
        if isinstance(line, Product) and line.left[0].indexed and not more and isinstance(factor, Term):
            product = products.get(factor.name)
            if product is not None and factor.axes == product.left[0].axes and not is_point(line):
                line = replace(line, right=product.right)
                result = [other for other in result if other is not product]
        result.append(line)
    return result


def _without_points(lines: Sequence[Line]) -> list[Line]:
    """Replace the sum over a one-hot row by its number."""
    points = {line.name: line for line in lines if is_point(line)}
    result: list[Line] = []
    for line in lines:
        if isinstance(line, Product) and len(line.right) == 1 and line.right[0].name in points:
            term, point = line.right[0], points[line.right[0].name]
            read = {axis.axis for axis in point.left[0].indexed_axes}
            if set(term.loops) - set(line.left[0].loops) == read and term.axes == point.left[0].declared:
                line = replace(line, right=point.right)
        result.append(line)
    return result


def _early(lines: Sequence[Line], iterations: frozenset[str]) -> list[Line]:
    """Make the multiplier of a sum over iterations, which is complete after them, a late factor of its line
    (`schedule.Value`), and where it is zero goes to its terms."""
    result: list[Line] = []
    for line in lines:
        total = result[-1] if result else None
        (first_factor, *more) = line.right or (None,)
        late = (
            isinstance(total, Product)
            and total.left[0] == first_factor
            and not total.left[0].indexed
            and line.left[0].axes == total.left[0].axes
            and bool(iterations & {*total.loops} - {*total.left[0].loops})
            and not any(total.name in other.reads for other in lines if other is not line)
        )
        bounded = [condition for condition in line.where if condition.axes <= {*line.loops}]
        if late and isinstance(total, Product) and len(more) == 1 and isinstance(more[0], Literal):
            plain = len(total.right) == 1 or (len(total.right) == 2 and not total.sides.are_of_matrices)
            if isinstance(line, Product) and not bounded and plain:
                result[-1] = replace(line, right=(*total.right, *more), where=total.where)
                continue
            first = next((t for t in total.right if all(c.axes <= {*t.loops} for c in bounded)), None)
            if isinstance(line, Op) and line.op == "select" and more[0] == Literal(0.0) and isinstance(first, Term):
                inside = Term(f"{line.name}~inside", first.loops)
                result[-1] = replace(line, left=(inside,), right=(first, *more))
                right = tuple(inside if term is first else term for term in total.right)
                result.append(replace(total, left=line.left, right=right))
                continue
        result.append(line)
    return result


def _without_logarithms(lines: Sequence[Line]) -> list[Line]:
    """Replace exp(C - log s) by exp(C)/s: the gradient of a log_softmax needs no second exponential."""
    makers = {line.name: line for line in lines}

    def op(name: str, op_name: str) -> Line | None:
        maker = makers.get(name)
        return maker if isinstance(maker, Op) and maker.op == op_name else None

    result: list[Line] = []
    for line in lines:
        inner = makers.get(line.right[0].name) if line.right else None
        if op(line.name, "exp") and isinstance(inner, Sum) and inner.signs == (1, -1) and not inner.where:
            logarithm = op(inner.right[1].name, "log")
            power = next((e for e in result if op(e.name, "exp") and e.right == inner.right[:1]), None)
            if logarithm and power and power.left[0].axes == line.left[0].axes:
                line = applied("divide", line.left[0], (power.left[0], logarithm.right[0]), line.meta)
        result.append(line)
    return result


def _needed(lines: Sequence[Line], outputs: frozenset[str]) -> tuple[Line, ...]:
    needed = set(outputs)
    remaining: list[Line] = []
    for line in reversed(lines):
        if line.name in needed:
            remaining.append(line)
            needed |= set(line.reads)
    return tuple(reversed(remaining))


def is_reduction(line: Line) -> bool:
    """Return whether a line is a reduction."""
    if isinstance(line, Op):
        return line.op != "inside" and entry(line.op).kind == "reduction"
    return not line.left[0].indexed and bool(set(line.loops) - set(line.left[0].loops))


Monomial: TypeAlias = frozenset[tuple[object, int]]
Polynomial: TypeAlias = Mapping[Monomial, float]

_LONGEST = 8
"""The most monomials of a polynomial that is written out; a longer one is a separate variable."""


def eliminate_common_subexpressions(lines: Sequence[Line], outputs: Collection[str]) -> list[Line]:
    """Return the lines of one scope in normal form without duplicates of earlier values; outputs are kept.

    Common-subexpression elimination by algebra: GELU has tanh(c (x + a x^3)) and its gradient tanh(c x (1 + a x^2)).
    Every value is written as a polynomial in what is none: arrays, sums over axes, ops of polynomials.
    """
    values: dict[str, Polynomial] = {}
    first_of: dict[object, str] = {}
    names: dict[str, str] = {}
    result: list[Line] = []
    for line in lines:
        line = line.renamed(names)
        polynomial = _value(line, values)
        if polynomial is not None:
            key = _key(polynomial), line.left[0].axes
            if key in first_of and line.name not in outputs:
                names[line.name] = first_of[key]
                continue
            first_of.setdefault(key, line.name)
            values[line.name] = polynomial
        result.append(line)
    return result


def _value(line: Line, values: Mapping[str, Polynomial]) -> Polynomial | None:
    """Return the polynomial of an elementwise line; None for every other line."""
    (left, *more) = line.left
    if more or left.indexed or line.where or set(line.loops) - set(left.loops):
        return None
    operands = [_operand(operand, values) for operand in line.right]
    if isinstance(line, Op):
        return None if line.axes or not operands else _atom((line.op, *map(_key, operands), left.axes))
    if isinstance(line, Sum):
        return _short(_added(operands, line.signs))
    if (
        isinstance(line, Product) and sum(len(operand_polynomial) > 1 for operand_polynomial in operands) < 2
    ):  # (x - m)^2 is not multiplied out
        return _short(_multiplied(operands))
    return None


def _operand(operand: Operand, values: Mapping[str, Polynomial]) -> Polynomial:
    if isinstance(operand, Literal) and not operand.sizes:
        return {frozenset(): operand.value}
    elsewhere = isinstance(operand, Term) and operand.indexed  # its index differs
    return _atom(operand) if elsewhere else values.get(operand.name) or _atom(operand)


def _atom(value: object) -> Polynomial:
    return {frozenset({(value, 1)}): 1.0}


def _key(polynomial: Polynomial) -> frozenset[tuple[Monomial, float]]:
    """Return a key that is equal for equal polynomials, independent of the rounding of coefficients."""
    return frozenset((monomial, float(f"{number:.12g}")) for monomial, number in polynomial.items())


def _short(polynomial: Polynomial) -> Polynomial | None:
    return polynomial if len(polynomial) <= _LONGEST else None


def _added(parts: Sequence[Polynomial], signs: Sequence[int]) -> Polynomial:
    total: dict[Monomial, float] = {}
    for part, sign in zip(parts, signs, strict=True):
        for monomial, number in part.items():
            total[monomial] = total.get(monomial, 0.0) + sign * number
    return total


def _multiplied(factors: Sequence[Polynomial]) -> Polynomial:
    total: Polynomial = {frozenset(): 1.0}
    for factor in factors:
        total = {
            frozenset((Counter(dict(monomial)) + Counter(dict(other))).items()): number * times
            for monomial, number in total.items()
            for other, times in factor.items()
        }
    return total

"""Programs at sizes at which no step was recorded: polynomials through the numbers of recorded ones.

Programs of one structure run the same ops on the same buffers. Their extents have degree 1 in each size, so that bytes
and strides, which are products of extents, have degree 2 at most. A program is interpolated where recorded ones of one
structure are around it, and where every number follows from these even without any one of them: each was predicted
from the others. A module may pad a size to a multiple: one that is in no arithmetic sequence with recorded ones is
recorded. So are sizes of 0 and 1, whose strides PyTorch chooses differently.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import islice, product
from math import gcd, lcm, prod
from operator import mul
from typing import Any, NamedTuple

from learncost.ir.dataclass import replace
from learncost.program.program import Operand, Program, ProgramOp, StepRequest, Steps

DEGREES = (1, 2)
"""The degrees in each size that are tried: that of extents, and that of their products."""

MOST = 12
"""The most programs of a structure that are kept: ten determine degree 2 in two sizes, and check it."""


def weights(points: Sequence[Sequence[int]], place: Sequence[int], degree: int) -> list[Fraction] | None:
    """Return the weights with which the values of a polynomial at points add up to that at a place.

    None where the points do not determine it, for polynomials of this degree at most in each variable.
    """
    powers = list(product(range(degree + 1), repeat=len(place)))
    rows = [
        [Fraction(prod(x**power for x, power in zip(point, each, strict=True))) for point in (*points, place)]
        for each in powers
    ]
    solved = dict[int, int]()
    for column in range(len(points)):
        pivot = next((row for row in range(len(solved), len(rows)) if rows[row][column]), None)
        if pivot is None:
            continue
        at = len(solved)
        rows[at], rows[pivot] = rows[pivot], rows[at]
        rows[at] = [value / rows[at][column] for value in rows[at]]
        for row, values in enumerate(rows):
            if row != at and values[column]:
                rows[row] = [value - values[column] * of for value, of in zip(values, rows[at], strict=True)]
        solved[column] = at
    if any(row[-1] for row in rows[len(solved) :]):
        return None
    return [rows[solved[column]][-1] if column in solved else Fraction(0) for column in range(len(points))]


def combined(several: Sequence[Sequence[int]], by: Sequence[Fraction]) -> list[int] | None:
    """Return the sums of numbers times weights, which add up to 1; None where one is no whole number."""
    common = lcm(*(each.denominator for each in by))
    whole, result = [int(each * common) for each in by], list[int]()
    for values in zip(*several, strict=True):
        if values.count(values[0]) == len(values):
            result.append(values[0])
            continue
        total, rest = divmod(sum(map(mul, whole, values)), common)
        if rest:
            return None
        result.append(total)
    return result


def numbers_of(program: Program) -> tuple[Hashable, list[int]]:
    """Return the structure of a program, and all its numbers that sizes determine."""
    ops, numbers = list[Hashable](), list[int]()
    for op in program.ops:
        operands = list[Hashable]()
        for each in (*op.inputs, *op.outputs):
            operands.append((each.buffer, each.dtype, len(each.shape), len(each.strides)))
            numbers += (*each.shape, *each.strides, each.offset)
        arguments = tuple((name, _structure(value, numbers)) for name, value in op.arguments.items())
        numbers += (op.scratch, op.library)
        ops.append((*op[:2], len(op.inputs), tuple(operands), arguments, *op[5:10], op.synchronizes))
    buffers = list[Hashable]()
    for buffer in program.buffers:
        buffers.append((buffer.device, buffer.role, buffer.label, buffer.first, buffer.last, buffer.count))
        numbers.append(buffer.bytes)
    return (tuple(ops), tuple(buffers), program.device, program.repeats), numbers


def _structure(value: Any, numbers: list[int]) -> Hashable:
    """Return an argument without its numbers; a float, such as a scale, is no size."""
    if isinstance(value, tuple):
        return tuple(_structure(each, numbers) for each in value)
    if isinstance(value, int) and not isinstance(value, bool):
        numbers.append(value)
        return int
    return float if isinstance(value, float) else value


def with_numbers(program: Program, numbers: Sequence[int]) -> Program:
    """Return a program of the same structure with other numbers."""
    rest = iter(numbers)

    def operands(several: tuple[Operand, ...]) -> tuple[Operand, ...]:
        return tuple(
            Operand(each.buffer, tuple(islice(rest, len(each.shape))), each.dtype,
                    tuple(islice(rest, len(each.strides))), next(rest))
            for each in several
        )  # fmt: skip

    def ops() -> Iterator[ProgramOp]:
        for op in program.ops:
            inputs, outputs = operands(op.inputs), operands(op.outputs)
            arguments = {name: _filled(value, rest) for name, value in op.arguments.items()}
            yield op._replace(
                inputs=inputs, outputs=outputs, arguments=arguments, scratch=next(rest), library=next(rest)
            )

    filled = tuple(ops())
    return replace(program, ops=filled, buffers=tuple(replace(each, bytes=next(rest)) for each in program.buffers))


def _filled(value: Any, rest: Iterator[int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_filled(each, rest) for each in value)
    return next(rest) if isinstance(value, int) and not isinstance(value, bool) else value


class Interpolated:
    """The steps of a module: recorded, and interpolated where recorded ones determine them."""

    def __init__(self, record: Steps) -> None:
        self.record = record
        self._known: dict[Hashable, list[_Recorded]] = {}
        self._last: dict[Hashable, Hashable] = {}

    def __call__(self, sizes: Mapping[str, int], request: StepRequest) -> Program:
        """Return the program of a step. Raises `InputError` if it cannot be recorded."""
        asked, place = (tuple(sorted(sizes)), repr(request)), tuple(sizes[name] for name in sorted(sizes))
        special = min(place, default=0) < 2
        if not special and (program := _interpolated(self._known.get(self._last.get(asked), ()), place)):
            return program
        program = self.record(sizes, request)
        if not special:
            structure, numbers = numbers_of(program)
            self._last[asked] = asked, structure
            known = self._known.setdefault(self._last[asked], [])
            known[:] = [*known, _Recorded(place, program, numbers)][-MOST:]
        return program


class _Recorded(NamedTuple):
    place: tuple[int, ...]
    program: Program
    numbers: list[int]


def _interpolated(known: Sequence[_Recorded], place: tuple[int, ...]) -> Program | None:
    """Return the program at a place between recorded ones if these without any one of them determine it, and agree."""
    sizes = list(zip(*(each.place for each in known), strict=True))
    if not sizes or not all(_is_among(here, values) for values, here in zip(sizes, place, strict=True)):
        return None
    for each in known:
        if each.place == place:
            return each.program
    for degree in DEGREES if len(known) > len(DEGREES) else ():
        predictions = [_predicted([*known[:at], *known[at + 1 :]], place, degree) for at in range(len(known))]
        if predictions[0] is not None and all(each == predictions[0] for each in predictions):
            return with_numbers(known[0].program, predictions[0])
    return None


def _is_among(here: int, values: Sequence[int]) -> bool:
    """Return whether a size is between others, and as many of their common steps from them."""
    low = min(values)
    steps = gcd(*(each - low for each in values))
    return low <= here <= max(values) and gcd(steps, here - low) == steps


def _predicted(known: Sequence[_Recorded], place: tuple[int, ...], degree: int) -> list[int] | None:
    """Return the numbers at a place; None where these programs do not determine them."""
    places = [each.place for each in known]
    vary = [at for at, values in enumerate(zip(*places, place, strict=True)) if len({*values}) > 1]
    by = weights([[each[at] for at in vary] for each in places], [place[at] for at in vary], degree)
    return None if by is None else combined([each.numbers for each in known], by)

"""Polynomials in the sizes with rational coefficients: exact on ints, fast on arrays, printable.

Coefficients are integers except where a price book halves: M (M + 1) / 2 pairs are M^2/2 + M/2, an integer at every M.
"""

from __future__ import annotations

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, lru_cache
from math import lcm, prod
from typing import Any, TypeAlias, cast

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError

Monomial = tuple[str, ...]  # size names in sorted order; a square has the name twice
Coefficient: TypeAlias = Any  # an int, or a Fraction where a price book halves

LARGEST = 10**12
"""The largest size and integer of a table; a larger one is taken for a typing error."""

ROUND = "~"
"""The mark of a shard received from another device of a ring: `M/cp~` is as long as `M/cp`."""


def base(axis: str) -> str:
    """Return the size that an axis has: N for N' and for a received shard."""
    return axis.rstrip("'~")


def marked(axis: str) -> str:
    """Return the size with the mark of a received shard: `M/cp~` for `M/cp~'`."""
    return base(axis) + (ROUND if is_received_shard(axis) else "")


def is_received_shard(axis: str) -> bool:
    """Return whether an axis is a shard received from another device of a ring."""
    return ROUND in axis


_FACTOR = r"(?:(\d+)(?:/([1-9]\d*))?|([^\W\d]\w*)(?:\^([1-9]\d?))?)(?=\s|$)"
_SUMMAND = re.compile(r"([+-]?)([^+-]+)")


@lru_cache(maxsize=4096)
def summands(size: str) -> tuple[tuple[int, str], ...]:
    """Split a sum of sizes, numbers and their products, `M*N-1`, into signed summands."""
    return tuple((-1 if sign == "-" else 1, size_name) for sign, size_name in _SUMMAND.findall(size))


def factors(summand: str) -> tuple[str, ...]:
    """Split a product into sizes and numbers: M and N of `M*N`."""
    return tuple(summand.split("*"))


def names_of_sizes(size: str) -> tuple[str, ...]:
    """Return the sizes and numbers in a sum of products."""
    return tuple(base(name) for _, summand in summands(size) for name in factors(summand))


def size_of(axis: str, sizes: Mapping[str, Any]) -> Any:
    """Return the size of an axis: a number as digits, a named size, a part of one, or a sum of products, `M*N-1`.

    A part divides by a number, `n_layer/3`, or by the devices on axes of a mesh, `f/tp/dp`. Padded shards have their
    own entry in `sizes`. Raises `InputError` where a part is not an integer, KeyError where a size is unknown.
    """
    if axis in sizes:
        return sizes[axis]
    if len(several := summands(axis)) > 1:
        return sum(sign * size_of(summand, sizes) for sign, summand in several)
    if len(product := factors(axis)) > 1:
        return prod(size_of(factor, sizes) for factor in product)
    if (alone := base(axis)) in sizes:
        return sizes[alone]
    name, *parts = alone.split("/")
    size = int(name) if name.isdigit() else sizes[name]
    for part in parts:
        size = _part(size, part, name, sizes)
    return size


def _part(size: Any, part: str, name: str, sizes: Mapping[str, Any]) -> Any:
    """Divide a size into equal parts; `name` is the global size, for the message."""
    number = int(part) if part.isdigit() else sizes[part]
    rest = size % number
    if rest.any() if hasattr(rest, "any") else rest:
        whole = f"{name} is {size}, which is not divisible"
        if part.isdigit():
            raise InputError(f"{whole} into segments of {part}: choose a divisor")
        raise InputError(f"{whole} by {part} = {number}: the next divisible size is {size + number - rest}")
    return size // number


@lru_cache(maxsize=4096)
def whole(axis: str) -> str:
    """Return the global axis of a shard: `M'` of `M/cp'`."""
    size, primes = base(axis), axis[len(base(axis)) :]
    return size.partition("/")[0] + primes


@lru_cache(maxsize=4096)
def sharded_over(axis: str) -> tuple[str, ...]:
    """Return the mesh axes that an axis is sharded over, the outermost first: tp and dp of `f/tp/dp`."""
    return tuple(part for part in base(axis).split("/")[1:] if not part.isdigit())


def sharding_prefix(axis: str, mesh_axis: str) -> str:
    """Return an axis with its sharding up to and including a mesh axis: `e/tp/ep` of `e/tp/ep/dp`."""
    names = sharded_over(axis)
    return "/".join((base(axis).partition("/")[0], *names[: names.index(mesh_axis) + 1]))


def place_cut(axes: Iterable[str], mesh_axis: str) -> int | None:
    """Return the number of the first axis that is sharded over a mesh axis; None where there is none."""
    return next((place for place, axis in enumerate(axes) if mesh_axis in sharded_over(axis)), None)


def here(mesh_axis: str) -> str:
    """Return the key in `sizes` of a device's coordinate on a mesh axis, counted from 0."""
    return f"{mesh_axis}:here"


def first_of(axis: str, sizes: Mapping[str, Any]) -> int:
    """Return the global index of the first position of a device's shard; 0 for an axis that is not sharded."""
    return held(axis, sizes)[0] if sharded_over(axis) else 0


def held(axis: str, sizes: Mapping[str, Any]) -> tuple[int, int]:
    """Return the global index of the first position of a device's shard, and its length without padding.

    A shard that consists of padding alone begins at the end of the global axis.
    """
    mesh_axes, outer = sharded_over(axis), whole(axis)
    first, many = 0, int(size_of(outer, sizes))
    for mesh_axis in mesh_axes:
        is_round = mesh_axis == mesh_axes[-1] and is_received_shard(axis)
        outer = f"{base(outer)}/{mesh_axis}"
        size, place = int(size_of(outer, sizes)), sizes[here(f"{mesh_axis}{ROUND}" if is_round else mesh_axis)]
        first, many = first + min(place * size, many), max(0, min(size, many - place * size))
    return first, many


def came_from(mesh_axis: str, iteration: int, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Return the coordinate of the device whose shard arrived in an iteration: in iteration 0 the previous device."""
    return {here(f"{mesh_axis}{ROUND}"): (sizes[here(mesh_axis)] - 1 - iteration) % sizes[mesh_axis]}


def shape_of(axes: Iterable[str], sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the shape of an array with these axes, by `size_of`."""
    return tuple(size_of(axis, sizes) for axis in axes)


def least(axis: str, others: Iterable[str]) -> str:
    """Return the name of the minimum of an axis's size and of the product of other sizes: `min(e, B M t)`.

    It bounds the rows that a gather touches: no more than exist, and no more than are selected.
    """
    return f"min({base(axis)}, {' '.join(map(base, others))})"


@dataclass(frozen=True)
class Polynomial:
    """A polynomial such as 2 B M d + 5 B M N h: a mapping from monomials to coefficients."""

    terms: Mapping[Monomial, Coefficient] = field(default_factory=dict)

    @staticmethod
    def of(axes: Iterable[str], coefficient: Coefficient = 1) -> Polynomial:
        """Return the product of the axes' sizes, times a coefficient. Axes written as digits are numbers."""
        return _of(tuple(axes), coefficient)

    @staticmethod
    def parse(text: str) -> Polynomial:
        """Parse a polynomial as `str` prints it: `9 B M d e + 2 B^2 - 1`. Raises `InputError`."""
        from fractions import Fraction  # only where one is read

        count, signed = ZERO, text.strip() if text.strip()[:1] in ("+", "-") else f"+ {text.strip()}"
        terms = re.findall(r"([+-])([^+-]*)", signed)
        for sign, term in terms:
            factors = re.findall(_FACTOR, term)
            if not factors or re.sub(_FACTOR, "", term).strip():
                raise InputError(f"{text!r} is not a polynomial of sizes, such as 9 B M d e + 2 B^2")
            number, names = Fraction(1), list[str]()
            for whole, over, name, power in factors:
                if name.lower() in ("inf", "nan"):
                    raise InputError(f"{text.strip()!r} is not finite: {name} is not a size")
                if name and not name.isidentifier():
                    raise InputError(f"{text.strip()!r} is not a polynomial of sizes: {name} is not a name")
                number *= Fraction(int(whole), int(over or 1)) if whole else 1
                names += [name] * int(power or 1) if name else []
            number = -number if sign == "-" else number
            count += Polynomial.of(names, int(number) if number.denominator == 1 else number)
        return count

    @staticmethod
    def operations(text: str) -> Polynomial:
        """Return the number of operations in a text. Raises `InputError`, also for what is negative at all sizes."""
        count = Polynomial.parse(text)
        if count.terms and all(coefficient < 0 for coefficient in count.terms.values()):
            raise InputError(f"{text.strip()!r} is negative at all sizes: it counts nothing")
        return count

    def __add__(self, other: Polynomial) -> Polynomial:
        if not self.terms:
            return other
        terms = dict(self.terms)
        for monomial, coefficient in other.terms.items():
            total = terms.get(monomial, 0) + coefficient
            if total:
                terms[monomial] = total
            else:
                terms.pop(monomial, None)
        return Polynomial(terms)

    def __mul__(self, other: Polynomial | int) -> Polynomial:
        if isinstance(other, int):
            return Polynomial({m: c * other for m, c in self.terms.items()}) if other else Polynomial()
        if not self.terms or other.terms == _ONE:
            return self
        if len(other.terms) == 1:  # distinct monomials stay distinct
            ((m2, c2),) = other.terms.items()
            return Polynomial({tuple(sorted(m1 + m2)): c1 * c2 for m1, c1 in self.terms.items()})
        total = Polynomial()
        for m1, c1 in self.terms.items():
            total += Polynomial({tuple(sorted(m1 + m2)): c1 * c2 for m2, c2 in other.terms.items()})
        return total

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other * -1

    def __bool__(self) -> bool:
        return bool(self.terms)

    @cached_property
    def sizes(self) -> frozenset[str]:
        """The names of the sizes that occur."""
        return frozenset(name for monomial in self.terms for name in monomial)

    def at(self, sizes: Mapping[str, Any]) -> Any:
        """Return the value: an int for ints, an array for arrays; a `Polynomial` in the sizes that are left out.

        Raises `InputError` where the value is not an integer.
        """
        common, total = self._common, cast(Any, 0)
        try:
            for monomial, coefficient in self.terms.items():
                value: Any = coefficient.numerator * (common // coefficient.denominator)
                for name in monomial:
                    value = value * sizes[name]
                total = total + value
        except KeyError:
            derived = self._lesser(sizes) | self._parts(sizes)
            return self.at({**sizes, **derived}) if derived else self._partly(sizes)
        return total if common == 1 else self._whole(total, common)

    @cached_property
    def _common(self) -> int:
        """The least common multiple of the denominators."""
        return lcm(*[coefficient.denominator for coefficient in self.terms.values()])

    def with_sizes(self, sizes: Mapping[str, Any]) -> Polynomial:
        """Return `at` as a `Polynomial` always: a constant where every size is given."""
        value = self.at(sizes) if sizes else self
        return value if isinstance(value, Polynomial) else Polynomial.of((), value)

    def _parts(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of its sizes that are parts of known ones (`size_of`)."""
        parts = [name for name in self.sizes - sizes.keys() if name.partition("/")[0] in sizes]
        return {name: size_of(name, sizes) for name in parts if sizes.keys() >= {*sharded_over(name)}}

    def _lesser(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of its sizes that are minima of known ones (`least`)."""
        lesser = {}
        for name in self.sizes - sizes.keys():
            size_name, _, many = name.removeprefix("min(").removesuffix(")").partition(", ")
            names = many.split()
            if names and all(_is_known(factor, sizes) for factor in (size_name, *names)):
                product: Any = 1
                for factor in names:
                    product = product * size_of(factor, sizes)
                lesser[name] = smaller(size_of(size_name, sizes), product)
        return lesser

    def _whole(self, total: Any, common: int) -> Any:
        """Return the value of the polynomial times `common`, divided by it."""
        if not isinstance(total, int):
            return total / common
        if total % common:
            raise InputError(f"{self} is not a whole number at these sizes: the price book halves an odd number")
        return total // common

    def _partly(self, sizes: Mapping[str, Any]) -> Polynomial:
        terms: dict[Monomial, Coefficient] = {}
        for monomial, coefficient in self.terms.items():
            number = coefficient
            for name in monomial:
                if name in sizes:
                    if not isinstance(sizes[name], int):
                        left = ", ".join(sorted(self.sizes - sizes.keys()))
                        raise InputError(f"an array of sizes needs all other sizes: give {left}")
                    number *= sizes[name]
            left_open = tuple(name for name in monomial if name not in sizes)
            terms[left_open] = terms.get(left_open, 0) + number
        return Polynomial({monomial: number for monomial, number in terms.items() if number})

    def rename(self, names: Mapping[str, str]) -> Polynomial:
        """Return the polynomial with sizes renamed."""
        total = Polynomial()
        for monomial, coefficient in self.terms.items():
            total += Polynomial.of((names.get(name, name) for name in monomial), coefficient)
        return total

    def __str__(self) -> str:
        return written(sorted(self.terms.items(), key=lambda item: (-len(item[0]), item[0])))


def written(
    terms: Iterable[tuple[Monomial, Any]], times: str = " ", power: str = "^", number: Callable[[Any], str] = str
) -> str:
    """Return terms in this order, their sizes too, as text: `4 n d^2 + 2 n^2 d`."""
    text = ""
    for monomial, coefficient in terms:
        factors = [name + (f"{power}{often}" if often > 1 else "") for name, often in Counter(monomial).items()]
        if abs(coefficient) != 1 or not factors:
            factors.insert(0, number(abs(coefficient)))
        sign = ("- " if text else "-") if coefficient < 0 else ("+ " if text else "")
        text += (" " if text else "") + sign + times.join(factors)
    return text or "0"


def larger(first: Any, second: Any) -> Any:
    """Return the maximum of two numbers, elementwise for arrays."""
    return _of_two(max, "maximum", first, second)


def smaller(first: Any, second: Any) -> Any:
    """Return the minimum of two numbers, elementwise for arrays."""
    return _of_two(min, "minimum", first, second)


def _of_two(alone: Callable[[Any, Any], Any], of_arrays: str, first: Any, second: Any) -> Any:
    if not hasattr(first, "shape") and not hasattr(second, "shape"):
        return alone(first, second)
    import numpy  # only where many sizes are given at once

    return getattr(numpy, of_arrays)(first, second)


def _is_known(size: str, sizes: Mapping[str, Any]) -> bool:
    """Return whether a size has a value: a number, or a name that is known and whose parts are known."""
    names = [name for name in size.split("/") if not name.isdigit()]
    return sizes.keys() >= {*names}


def checked_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return sizes as counts need them: whole numbers from 1 as Python's exact ints, arrays as float64.

    Integer arrays would overflow silently. Raises `InputError` for anything else.
    """
    return {name: _checked(name, value) for name, value in sizes.items()}


def _checked(name: str, value: Any) -> Any:
    if hasattr(value, "dtype") and getattr(value, "shape", None):
        if value.dtype.kind not in "iuf":
            raise InputError(f"the sizes {name} must be numbers, not {value.dtype}")
        return value.astype("float64")
    if isinstance(value, list | tuple | range):
        import numpy  # only where many sizes are given at once

        return _checked(name, numpy.asarray(value))
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        is_whole = getattr(value, "is_integer", None)
        number = int(value) if callable(is_whole) and is_whole() else None
    if number is None or number < 1:
        raise InputError(f"the size {name} must be a whole number from 1 or an array of them, not {value!r}")
    return number


ZERO = Polynomial()
_ONE: Mapping[Monomial, int] = {(): 1}


@lru_cache(maxsize=4096)
def _of(axes: tuple[str, ...], coefficient: Coefficient) -> Polynomial:
    names = []
    for size in map(base, axes):
        if size.isdigit():
            coefficient *= int(size)
        else:
            names.append(size)
    return Polynomial({tuple(sorted(names)): coefficient}) if coefficient else ZERO


def total(counts: Iterable[Polynomial]) -> Polynomial:
    """Return the sum of many polynomials."""
    several = [count for count in counts if count.terms]
    if len(several) < 2:
        return several[0] if several else ZERO
    terms: dict[Monomial, Coefficient] = {}
    for count in several:
        for monomial, coefficient in count.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
    return Polynomial({m: c for m, c in terms.items() if c})

"""Counts are polynomials in the sizes with rational coefficients: exact on ints, fast on arrays, printable.

Coefficients are integers but where a price book halves: M (M + 1) / 2 pairs are M^2/2 + M/2, and whole at every M.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import lcm, prod
from typing import Any, TypeAlias, cast

from learncost.ir.errors import InputError

Monomial = tuple[str, ...]  # size names in sorted order, a name twice is its square
Coefficient: TypeAlias = Any  # an int, or a Fraction where a price book halves

LARGEST = 10**12
"""Sizes beyond this are slips of the keyboard; so are other whole numbers of a table."""

ROUND = "~"
"""What marks the part of an axis that came round a ring of devices: `M/cp~` is as long as `M/cp`, and another one's."""


def base(axis: str) -> str:
    """The size an axis has: N' is a second axis of N's size, and so is a part that came round."""
    return axis.rstrip("'~")


def marked(axis: str) -> str:
    """The size with the mark of a part that came round: `M/cp~` of `M/cp~'`."""
    return base(axis) + (ROUND if comes_round(axis) else "")


def comes_round(axis: str) -> bool:
    """Whether an axis is a part that came round a ring of devices."""
    return ROUND in axis


_FACTOR = re.compile(r"(?:(\d+)(?:/([1-9]\d*))?|([^\W\d]\w*)(?:\^([1-9]\d?))?)(?=\s|$)")
_SUMMAND = re.compile(r"([+-]?)([^+-]+)")


@lru_cache(maxsize=4096)
def summands(size: str) -> tuple[tuple[int, str], ...]:
    """A sum of sizes, numbers and their products, `M*N-1`, as these with their signs; a size alone is its only one."""
    return tuple((-1 if sign == "-" else 1, size_name) for sign, size_name in _SUMMAND.findall(size))


def factors(summand: str) -> tuple[str, ...]:
    """The sizes and numbers whose product a summand is: M and N of `M*N`."""
    return tuple(summand.split("*"))


def names_of_sizes(size: str) -> tuple[str, ...]:
    """The sizes and numbers in a sum of products of them."""
    return tuple(base(name) for _, summand in summands(size) for name in factors(summand))


def size_of(axis: str, sizes: Mapping[str, Any]) -> Any:
    """The size of an axis: a number as digits, a size by name, a part of one, or a sum of products, `M*N-1`.

    Parts are so many, `n_layer/3`, or one for each device on axes of a mesh, `f/tp/dp`. Raises `InputError` where the
    parts are not whole, KeyError where the size is not known. Of parts that are filled up the sizes have their own.
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
    """One of so many equal parts of a size, of which `name` is the whole."""
    number = int(part) if part.isdigit() else sizes[part]
    rest = size % number
    if rest.any() if hasattr(rest, "any") else rest:
        whole = f"{name} is {size} and cannot be cut"
        if part.isdigit():
            raise InputError(f"{whole} in segments of {part}: {part} must divide it")
        raise InputError(f"{whole} over {part}, which is {number}: the next size that can is {size + number - rest}")
    return size // number


@lru_cache(maxsize=4096)
def whole(axis: str) -> str:
    """The axis of which another one is a part: `M'` of `M/cp'`."""
    size, primes = base(axis), axis[len(base(axis)) :]
    return size.partition("/")[0] + primes


@lru_cache(maxsize=4096)
def sharded_over(axis: str) -> tuple[str, ...]:
    """The axes of a mesh that an axis is cut over, the outermost first: tp and dp of `f/tp/dp`."""
    return tuple(part for part in base(axis).split("/")[1:] if not part.isdigit())


def down_to(axis: str, mesh_axis: str) -> str:
    """An axis as it is cut down to an axis of the mesh: `e/tp/ep` of `e/tp/ep/dp`."""
    names = sharded_over(axis)
    return "/".join((base(axis).partition("/")[0], *names[: names.index(mesh_axis) + 1]))


def place_cut(axes: Iterable[str], mesh_axis: str) -> int | None:
    """Which of some axes an axis of a mesh cuts; None where it cuts none."""
    return next((place for place, axis in enumerate(axes) if mesh_axis in sharded_over(axis)), None)


def here(mesh_axis: str) -> str:
    """What sizes call the place of a device on an axis of its mesh, counted from 0."""
    return f"{mesh_axis}:here"


def first_of(axis: str, sizes: Mapping[str, Any]) -> int:
    """The first position that a device has of an axis that is cut over a mesh; 0 of one that is not."""
    return held(axis, sizes)[0] if sharded_over(axis) else 0


def held(axis: str, sizes: Mapping[str, Any]) -> tuple[int, int]:
    """The first position that a device has of an axis, and how many: fewer than its size where the part is filled up.

    A device that has nothing but what was added begins where the whole ends.
    """
    mesh_axes, outer = sharded_over(axis), whole(axis)
    first, many = 0, int(size_of(outer, sizes))
    for mesh_axis in mesh_axes:
        is_round = mesh_axis == mesh_axes[-1] and comes_round(axis)
        outer = f"{base(outer)}/{mesh_axis}"
        size, place = int(size_of(outer, sizes)), sizes[here(f"{mesh_axis}{ROUND}" if is_round else mesh_axis)]
        first, many = first + min(place * size, many), max(0, min(size, many - place * size))
    return first, many


def came_from(mesh_axis: str, iteration: int, sizes: Mapping[str, Any]) -> dict[str, int]:
    """Whose part it is that came round to this device in a turn: in turn 0 that of the device before it."""
    return {here(f"{mesh_axis}{ROUND}"): (sizes[here(mesh_axis)] - 1 - iteration) % sizes[mesh_axis]}


def shape_of(axes: Iterable[str], sizes: Mapping[str, Any]) -> tuple[Any, ...]:
    """The shape of an array with these axes, as `size_of` has each of them."""
    return tuple(size_of(axis, sizes) for axis in axes)


def least(axis: str, others: Iterable[str]) -> str:
    """The name of a size that is the lesser of an axis's and of the points of others: `min(e, B M t)`.

    Of e rows that B M t numbers choose, no more are touched than there are, and no more than are chosen.
    """
    return f"min({base(axis)}, {' '.join(map(base, others))})"


@dataclass(frozen=True)
class Polynomial:
    """A polynomial such as 2 B M d + 5 B M N h: a mapping from monomials to coefficients."""

    terms: Mapping[Monomial, Coefficient] = field(default_factory=dict)

    @staticmethod
    def of(axes: Iterable[str], coefficient: Coefficient = 1) -> Polynomial:
        """The number of points of the axes, times a coefficient. Axes written as digits are numbers."""
        return _of(tuple(axes), coefficient)

    @staticmethod
    def parse(text: str) -> Polynomial:
        """The polynomial that a text writes as `str` does: `9 B M d e + 2 B^2 - 1`. Raises `InputError`."""
        from fractions import Fraction  # only where one is read

        count, signed = ZERO, text.strip() if text.strip()[:1] in ("+", "-") else f"+ {text.strip()}"
        terms = re.findall(r"([+-])([^+-]*)", signed)
        for sign, term in terms:
            factors = _FACTOR.findall(term)
            if not factors or _FACTOR.sub("", term).strip():
                raise InputError(f"{text!r} is no polynomial of sizes, such as 9 B M d e + 2 B^2")
            number, names = Fraction(1), list[str]()
            for whole, over, name, power in factors:
                if name.lower() in ("inf", "nan"):
                    raise InputError(f"{text.strip()!r} is not finite: {name} is no size")
                if name and not name.isidentifier():
                    raise InputError(f"{text.strip()!r} is no polynomial of sizes: {name} is no name")
                number *= Fraction(int(whole), int(over or 1)) if whole else 1
                names += [name] * int(power or 1) if name else []
            number = -number if sign == "-" else number
            count += Polynomial.of(names, int(number) if number.denominator == 1 else number)
        return count

    @staticmethod
    def operations(text: str) -> Polynomial:
        """The number of operations that a text writes. Raises `InputError`, also for what is negative at all sizes."""
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
        """The value: an int for ints, an array for arrays; a Count in the sizes that are left out.

        Raises `InputError` where it is no whole number.
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
        """What makes every coefficient a whole number."""
        return lcm(*[coefficient.denominator for coefficient in self.terms.values()])

    def with_sizes(self, sizes: Mapping[str, Any]) -> Polynomial:
        """As `at`, but always a Count: of no size at all where every size is given."""
        value = self.at(sizes) if sizes else self
        return value if isinstance(value, Polynomial) else Polynomial.of((), value)

    def _parts(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes among its own that are parts of known ones (`size_of`)."""
        parts = [name for name in self.sizes - sizes.keys() if name.partition("/")[0] in sizes]
        return {name: size_of(name, sizes) for name in parts if sizes.keys() >= {*sharded_over(name)}}

    def _lesser(self, sizes: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes among its own that are the lesser of two (`least`), where the two are known."""
        lesser = {}
        for name in self.sizes - sizes.keys():
            size_name, _, many = name.removeprefix("min(").removesuffix(")").partition(", ")
            names = many.split()
            if names and all(_is_known(factor, sizes) for factor in (size_name, *names)):
                product: Any = 1
                for factor in names:
                    product = product * size_of(factor, sizes)
                size = size_of(size_name, sizes)
                # One is at most the other in 0 or 1 of the cases: arrays go element by element.
                lesser[name] = size * (size <= product) + product * (size > product)
        return lesser

    def _whole(self, total: Any, common: int) -> Any:
        """The value of the polynomial times `common`, divided by it."""
        if not isinstance(total, int):
            return total / common
        if total % common:
            raise InputError(f"{self} is no whole number at these sizes: a book that halves has odd numbers to halve")
        return total // common

    def _partly(self, sizes: Mapping[str, Any]) -> Polynomial:
        terms: dict[Monomial, Coefficient] = {}
        for monomial, coefficient in self.terms.items():
            number = coefficient
            for name in monomial:
                if name in sizes:
                    if not isinstance(sizes[name], int):
                        left = ", ".join(sorted(self.sizes - sizes.keys()))
                        raise InputError(f"where a size is an array no other may be left out: give {left}")
                    number *= sizes[name]
            left_open = tuple(name for name in monomial if name not in sizes)
            terms[left_open] = terms.get(left_open, 0) + number
        return Polynomial({monomial: number for monomial, number in terms.items() if number})

    def rename(self, names: Mapping[str, str]) -> Polynomial:
        """The same polynomial in other names."""
        total = Polynomial()
        for monomial, coefficient in self.terms.items():
            total += Polynomial.of((names.get(name, name) for name in monomial), coefficient)
        return total

    def __str__(self) -> str:
        def power(monomial: Monomial) -> list[str]:
            return [
                name if monomial.count(name) == 1 else f"{name}^{monomial.count(name)}"
                for name in dict.fromkeys(monomial)
            ]

        parts = []
        for monomial, coefficient in sorted(self.terms.items(), key=lambda item: (-len(item[0]), item[0])):
            factors = power(monomial)
            if abs(coefficient) != 1 or not factors:
                factors.insert(0, str(abs(coefficient)))
            parts.append(("- " if coefficient < 0 else "+ ") + " ".join(factors))
        text = " ".join(parts) or "0"
        return text.removeprefix("+ ") if not text.startswith("- ") else "-" + text[2:]


def larger(first: Any, second: Any) -> Any:
    """The larger of two numbers, or of each of two arrays of them."""
    return _of_two(max, "maximum", first, second)


def smaller(first: Any, second: Any) -> Any:
    """The smaller of two numbers, or of each of two arrays of them."""
    return _of_two(min, "minimum", first, second)


def _of_two(alone: Callable[[Any, Any], Any], of_arrays: str, first: Any, second: Any) -> Any:
    if not hasattr(first, "shape") and not hasattr(second, "shape"):
        return alone(first, second)
    import numpy  # only where many sizes are given at once

    return getattr(numpy, of_arrays)(first, second)


def _is_known(size: str, sizes: Mapping[str, Any]) -> bool:
    """Whether a size has a value: a number, or one whose name and whose parts' names have one."""
    names = [name for name in size.split("/") if not name.isdigit()]
    return sizes.keys() >= {*names}


def checked_sizes(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes as counts take them: whole numbers from 1 as Python's exact ints, arrays as float64.

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
    """The sum of many counts."""
    several = [count for count in counts if count.terms]
    if len(several) < 2:
        return several[0] if several else ZERO
    terms: dict[Monomial, Coefficient] = {}
    for count in several:
        for monomial, coefficient in count.terms.items():
            terms[monomial] = terms.get(monomial, 0) + coefficient
    return Polynomial({m: c for m, c in terms.items() if c})

"""Return the NumPy operation of each line of a lowered table, for the three kinds of lines.

The operations are matmul, the ufuncs multiply, add, subtract and those of primitives, their reduce, add.at, where, and
moves (transpose, reshape, indexing, stack, broadcast_to, zeros_like).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from learncost.interpreter.moves import (
    Array,
    Exchange,
    Reader,
    Sizes,
    collected,
    fill_values,
    index_of,
    move_of,
    reader,
    spread,
)
from learncost.ir.errors import InputError
from learncost.ir.line import RELATIONS, Condition, Line, Op, Product, Sum
from learncost.ir.polynomial import first_of, shape_of, size_of, whole
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.ops import OpDef, entry


def function_of(row: OpDef) -> Callable[..., Array]:
    """Return the function that computes a primitive on arrays."""
    return _OWN.get(row.name) or getattr(np, row.called or row.name)


def precision(values: Mapping[str, Array]) -> Any:
    """Return the data type of constants: the common type of the floating-point arrays."""
    types = {array.dtype for array in values.values() if hasattr(array, "dtype")}
    kinds = [dtype for dtype in types if dtype.kind in "fc"]
    return np.empty(0, np.result_type(*kinds) if kinds else float).real.dtype


def _erf(x: Array) -> Array:
    """Return the error function of an array: by SciPy's ufunc if it is installed, otherwise by Python's function per
    element."""
    global _erf_ufunc
    if _erf_ufunc is None:
        try:
            from scipy.special import erf as _erf_ufunc
        except ImportError:
            _erf_ufunc = np.frompyfunc(math.erf, 1, 1)
    if getattr(x, "dtype", None) == np.longdouble:  # which SciPy does not have
        return _erf(x.astype(float)).astype(np.longdouble)
    result = _erf_ufunc(x)
    return result if result.dtype != object else result.astype(getattr(x, "dtype", float))


_erf_ufunc: Any = None


def mixed(x: Array, z: Array) -> Any:
    """Return a 32-bit hash of two integers by T. Mueller, in which every input bit changes half of the bits on
    average."""
    bits, half, factor = np.uint64(0xFFFFFFFF), np.uint64(16), np.uint64(0x45D9F3B)
    first, second = (
        np.asarray(operand).view(np.ndarray).astype(np.int64).astype(np.uint64) & bits for operand in (x, z)
    )
    with np.errstate(over="ignore"):
        mixed = (first * np.uint64(0x9E3779B1) + second) & bits
        for _ in range(2):
            mixed = ((mixed ^ (mixed >> half)) * factor) & bits
    return mixed ^ (mixed >> half)


def _counted(result: Any, like: Array) -> Array:
    """Return numbers as the result of one operation on an array, so that an array that counts operations counts one per
    element."""
    array = np.asarray(result, precision({"": like}))
    return np.positive(array.view(type(like)) if isinstance(like, np.ndarray) else array)


def _shift(x: Array, z: Array) -> Array:
    numbers, places = (np.asarray(operand, float).view(np.ndarray) for operand in (x, z))
    shifted = np.floor(numbers * 2.0 ** -np.clip(places, -64, 64) + 0.5)
    return _counted(np.clip(shifted, -(2.0**30), 2.0**30), x)


def _bits(x: Array) -> Array:
    return _counted(np.frexp(np.asarray(x, float).view(np.ndarray))[1], x)


_OWN: Mapping[str, Callable[..., Array]] = {
    "erf": _erf,
    "hashed": lambda x, z: _counted(mixed(x, z) >> np.uint64(8), x),
    "coin": lambda x, z: _counted(1.0 - 2.0 * (mixed(x, z) >> np.uint64(31)), x),
    "shift": _shift,
    "bits": _bits,
}
"""The primitives that NumPy has no function for."""


Operation = Callable[[Mapping[str, Array], Sizes, Exchange | None], Array]
"""The function that computes the result of a line, from the values and the sizes. Collectives need an exchange."""


def prepared(line: Line, roles: Mapping[str, Value]) -> Operation:
    """Return the operation of a lowered line, which resolves the line's axes once for all executions."""
    if isinstance(line, Op) and line.op != "inside" and entry(line.op).kind == "collective":
        names = [term.name for term in line.right]
        return lambda values, sizes, exchange: collected(line, [values[name] for name in names], sizes, exchange)
    if isinstance(line, Product):
        return _product(line, roles)
    if isinstance(line, Sum):
        return _sum(line)
    assert isinstance(line, Op)
    return _op(line)


# The three kinds of line.


def _product(line: Product, roles: Mapping[str, Value]) -> Operation:
    if len(line.right) == 1:
        return _moving(line, roles)
    first, second = line.right
    want, sides = line.left[0].loops, line.sides
    rows, columns, batch = sides.rows, sides.columns, sides.batch
    summed = (*sides.summed, *sides.lone)
    if not summed:
        left, right = reader(first, want), reader(second, want)
        return lambda values, sizes, exchange: np.multiply(left(values, sizes), right(values, sizes))
    left, right = reader(first, (*batch, *rows, *summed)), reader(second, (*batch, *summed, *columns))
    after, over, back = len(batch), len(batch) + len(summed), move_of((*batch, *rows, *columns), want)
    are_matrices = len(rows) == len(columns) == len(summed) == 1

    def multiplied(values: Mapping[str, Array], sizes: Sizes, exchange: Exchange | None) -> Array:
        a, b = _numbers(left(values, sizes), values), right(values, sizes)
        if are_matrices:
            result = np.matmul(a, b)
        else:
            groups, a_rows, b_columns = a.shape[:after], a.shape[after : after + len(rows)], b.shape[over:]
            k = math.prod(a.shape[after + len(rows) :])
            a, b = a.reshape((*groups, math.prod(a_rows), k)), b.reshape((*groups, k, math.prod(b_columns)))
            result = np.matmul(a, b).reshape((*groups, *a_rows, *b_columns))
        return result if back is None else back(result)

    return multiplied


def _moving(line: Product, roles: Mapping[str, Value]) -> Operation:
    """Return the operation of a product with a single factor: a gather, scatter-add, reduction, transpose or
    broadcast."""
    left, (term,) = line.left[0], line.right
    want = left.loops
    if isinstance(term, Literal):
        return lambda values, sizes, exchange: np.full(shape_of(want, sizes), term.number(sizes))
    if term.indexed:
        return _gathering(term, want, roles[term.name].axes)
    if left.indexed:
        return _scattering(left, term, roles[left.name].axes)
    summed = tuple(i for i, axis in enumerate(term.loops) if axis not in want)
    have = tuple(axis for axis in term.loops if axis in want)
    name, move, is_spread = term.name, move_of(have, want), len(have) < len(want)

    def moved(values: Mapping[str, Array], sizes: Sizes, exchange: Exchange | None) -> Array:
        array = values[name]
        if summed:
            array = np.add.reduce(_numbers(array, values), axis=summed)
        if move is not None:
            array = move(array)
        return np.broadcast_to(array, shape_of(want, sizes), subok=True) if is_spread else array

    return moved


def _gathering(term: Term, want: tuple[str, ...], declared: tuple[str, ...]) -> Operation:
    beyond = fill_values(term)

    def gathered(values: Mapping[str, Array], sizes: Sizes, exchange: Exchange | None) -> Array:
        array, index = values[term.name], index_of(term, values, sizes, term.loops, declared)
        for place, outside in beyond:
            form = [*array.shape]
            form[place] = 1
            array = np.concatenate((array, np.full(form, outside, array.dtype)), axis=place)
        return spread(array[(*index, ...)], term.loops, want)  # the ellipsis keeps an array where one number is read

    return gathered


def _scattering(left: Term, term: Term, declared: tuple[str, ...]) -> Operation:
    want, beyond = left.loops, fill_values(left)

    def scattered(values: Mapping[str, Array], sizes: Sizes, exchange: Exchange | None) -> Array:
        array, shape = values[term.name], [*shape_of(declared, sizes)]
        everywhere = tuple(map(slice, shape))
        for place, _ in beyond:
            shape[place] += 1
        target = np.zeros_like(array, shape=tuple(shape))
        index, array = index_of(left, values, sizes, want, declared), spread(array, term.loops, want)
        if left.apart:
            target[index] = array
        else:
            np.add.at(target, index, array)
        return target[everywhere]

    return scattered


def _sum(line: Sum) -> Operation:
    want = line.left[0].loops
    if len(line.right) == 1:
        read = reader(line.right[0], want)
        return lambda values, sizes, exchange: read(values, sizes)
    function = np.add if line.signs[1] > 0 else np.subtract
    left, right = _of_numbers(reader(line.right[0], want)), reader(line.right[1], want)
    return lambda values, sizes, exchange: function(left(values, sizes), right(values, sizes))


def _numbers(array: Array, values: Mapping[str, Array]) -> Array:
    """Return booleans as numbers: NumPy adds booleans to a boolean, and computes their functions in half precision."""
    is_truth = getattr(getattr(array, "dtype", None), "kind", "") == "b"
    return array.astype(precision(values)) if is_truth else array


def _of_numbers(read: Reader) -> Reader:
    """Return the reader of an operand whose booleans are numbers."""
    return lambda values, sizes: _numbers(read(values, sizes), values)


def _op(line: Op) -> Operation:
    want = line.left[0].loops
    if line.op == "inside":
        return lambda values, sizes, exchange: _inside(line.where, want, sizes)
    row = entry(line.op)
    if row.fill is not None:
        return lambda values, sizes, exchange: np.full(shape_of(want, sizes), row.fill, precision(values))
    if line.op == "eye":
        return lambda values, sizes, exchange: _eye(want, sizes)
    if row.kind == "reduction":
        (term,) = line.right
        assert isinstance(term, Term)
        name, reduce = term.name, getattr(np, row.by).reduce
        acted = tuple(i for i, axis in enumerate(term.loops) if axis not in want)
        remaining = tuple(axis for axis in term.loops if axis in want)
        return lambda values, sizes, exchange: spread(reduce(values[name], axis=acted), remaining, want)
    if line.op in ("append", "join"):
        return lambda values, sizes, exchange: _joined(line, want, values, sizes)
    if row.kind in ("scan", "choice"):
        return lambda values, sizes, exchange: _along(line, row, values, sizes)
    names = row.inputs[-len(line.right) :]
    function, readers = (
        function_of(row),
        [
            read if name in row.conditions or row.truth else _of_numbers(read)
            for name, read in zip(names, (reader(term, want) for term in line.right), strict=True)
        ],
    )
    if len(readers) < len(row.inputs):  # the line's own condition is the mask
        readers.insert(0, lambda values, sizes: _inside(line.where, want, sizes))
    if len(readers) == 1:
        (read,) = readers
        return lambda values, sizes, exchange: function(read(values, sizes))
    return lambda values, sizes, exchange: function(*[read(values, sizes) for read in readers])


def _eye(want: tuple[str, ...], sizes: Sizes) -> Array:
    half = len(want) // 2
    first, second = (np.arange(math.prod(shape)).reshape(shape) for shape in _halves(want, half, sizes))
    return np.equal(spread(first, want[:half], want), spread(second, want[half:], want)).astype(float)


def _joined(line: Op, want: tuple[str, ...], values: Mapping[str, Array], sizes: Sizes) -> Array:
    """Return the concatenation of arrays in the order of the operands."""
    arrays, place = [values[term.name] for term in line.right], want.index(line.axes[0])
    joined = np.concatenate(arrays, axis=place)
    if line.op == "join" and joined.shape != shape_of(want, sizes):
        parts = " + ".join(str(array.shape[place]) for array in arrays)
        raise InputError(f"axis {line.axes[0]} is {size_of(line.axes[0], sizes)}, but the joined arrays have {parts}")
    return joined


def _along(line: Op, row: OpDef, values: Mapping[str, Array], sizes: Sizes) -> Array:
    """Return cumulative sums along an axis, or the positions along an axis that a choice selects."""
    (term,), want = line.right, line.left[0].loops
    assert isinstance(term, Term)
    others = tuple(axis for axis in term.loops if axis not in line.axes)
    array = spread(values[term.name], term.loops, (*others, *line.axes))
    if row.kind == "scan":
        reversed_array = array[..., ::-1] if row.backwards else array
        sums = np.add.accumulate(reversed_array, axis=-1)
        return spread(sums[..., ::-1] if row.backwards else sums, (*others, *line.axes), want)
    if row.chooses == "one":
        return spread((np.argmax if row.largest else np.argmin)(array, axis=-1), others, want)
    if not row.largest:
        order = np.argsort(array, axis=-1, kind="stable")
    else:  # from the end, so that equal values keep their order
        order = array.shape[-1] - 1 - np.argsort(array[..., ::-1], axis=-1, kind="stable")[..., ::-1]
    places = line.axes if row.chooses == "all" else tuple(axis for axis in want if axis not in others)
    count = shape_of(places, sizes)[0]
    if count > array.shape[-1]:
        raise InputError(f"{row.name} takes {count} of {array.shape[-1]}, in line: {line}")
    return spread(order[..., :count], (*others, *places), want)


def _halves(want: tuple[str, ...], half: int, sizes: Sizes) -> list[list[int]]:
    return [[*shape_of(part, sizes)] for part in (want[:half], want[half:])]


def _inside(where: tuple[Condition, ...], want: tuple[str, ...], sizes: Sizes) -> Array:
    mask: Array = np.True_
    for condition in where:
        lower, upper = (
            int(side) if side.isdigit() else spread(_all_of(side, over, sizes), (side,), want)
            for side, over in zip((condition.lower, condition.upper), condition.zigzag, strict=True)
        )
        mask = mask & RELATIONS[condition.relation](lower, upper)
        if condition.window is not None:
            mask = mask & (upper < lower + size_of(condition.window, sizes))
    return mask


def _all_of(axis: str, over: tuple[str, ...], sizes: Sizes) -> Array:
    """Return the positions of an axis as positions in the global array, in zigzag order over mesh axes, if any."""
    places = np.arange(size_of(axis, sizes)) + first_of(axis, sizes)
    return position(places, size_of(whole(axis), sizes), math.prod(sizes[name] for name in over)) if over else places


def position(place: Any, size: Any, devices: Any) -> Any:
    """Return the position that an index has in zigzag order; elementwise for arrays.

    Of 2 p chunks of an axis, the i-th of p devices has the i-th and the i-th last.
    """
    part, stretch = size // devices, size // (2 * devices)
    device, rest = place // part, place % part
    is_late = rest >= stretch
    return rest + device * stretch + is_late * (2 * devices - 2 - 2 * device) * stretch

"""Verify a table by running it: gradients by complex steps, prices by counting executed operations, line by line."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from importlib.util import find_spec
from itertools import count
from typing import Any

import numpy as np

from learncost.autodiff.derive import Derived, derive
from learncost.cost_models.books import price
from learncost.interpreter import execute
from learncost.ir.line import Line, Op, alias
from learncost.ir.loop import check_derived, walk
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.layers.layer import Layer, table_of
from learncost.ops import entry
from learncost.passes.lower import lower
from learncost.verification.report import Check, VerificationReport
from learncost.verification.sample import Array, random_arrays, small_sizes

Values = dict[str, Array]
Meaning = Callable[..., Any]  # a foreign implementation: from inputs and weights by name to the outputs in order
TOLERANCE = 1e-9
STEP = 1e-30
LARGER = 4.0  # times a sample, to reach limits: still small enough for logarithms of plain exponentials
ENTRIES = 4000  # above this many entries gradients are compared along random directions


def check_layer(layer: Layer | Table, meaning: Meaning | None = None) -> VerificationReport:
    """Prove a layer by running it at small sizes that are all different.

    Every entry of every gradient is compared with a complex step. The operations that run are counted by an array that
    knows no prices, and must equal the price book `run`, line by line. Where a word has an explicit Jacobian, the
    gradient through it must equal the one in closed form.

    Parameters
    ----------
    layer
        The layer, or a table.
    meaning
        Another implementation of the same layer: a function from its inputs and weights, in the order of the header, to
        its outputs. Nothing else can tell that a line reads the wrong axis.

    Returns
    -------
    Report
        The comparisons; `passed` is true if none failed. It prints as a list.

    Examples
    --------
    >>> linear = lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... ''')
    >>> lc.check_layer(linear, lambda X, W: X @ W).passed
    True
    """
    table = table_of(layer)
    name = layer.name if isinstance(layer, Layer) else table.title or "table"
    check_derived(table.lines, "it has no reference")
    return VerificationReport(f"proof of {name}", tuple(failures_as_checks(name, checks(table, name, meaning))))


def failures_as_checks(name: str, comparisons: Iterator[Check]) -> Iterator[Check]:
    """Yield the comparisons; an exception becomes a failed check with its text."""
    try:
        yield from comparisons
    except Exception as problem:
        yield Check(name, "running", f"{type(problem).__name__}: {problem}".splitlines()[0], False)


def checks(
    table: Table, name: str, meaning: Meaning | None = None, seed: int = 0, smallest: int = 2, larger: float = LARGER
) -> Iterator[Check]:
    """Yield the comparisons of a table, cheap ones first; values are also compared at samples `larger` times larger."""
    sizes = small_sizes(table, smallest)
    arrays = finite_arrays(table, sizes, seed)
    derived = derive(table)
    values = values_of(derived.step, {**arrays, **seeds_of(table, sizes, seed)}, sizes)
    if meaning is not None:
        yield _same_values(name, table, arrays, sizes, meaning, larger)
    yield count_operations(name, derived.step, {**arrays, **seeds_of(table, sizes, seed)}, sizes)
    yield _sum_of_passes(name, derived, sizes)
    yield _moved(name, derived.step, values, sizes)
    explicit = derive(table, jacobian=True)
    if str(explicit.step) != str(derived.step):
        all_arrays = {**arrays, **seeds_of(table, sizes, seed)}
        yield count_operations(f"{name} with explicit Jacobians", explicit.step, all_arrays, sizes)
        yield _jacobians(name, derived, values, explicit, values_of(explicit.step, all_arrays, sizes))
    if derived.gradients:
        yield gradients(name, table, derived.gradients, arrays, values, sizes, seed)


def finite_arrays(table: Table, sizes: Mapping[str, int], seed: int = 0) -> Values:
    """Return random arrays; positive ones where others give NaN, as under a logarithm or a root, and small ones where
    these do, too, as under exponentials of sums of many products.
    """
    drawn, found = random_arrays(table, sizes, seed), list[Values]()
    for changed in (np.asarray, lambda array: np.abs(array) + 0.1, lambda array: array / 10, lambda array: array / 100):
        arrays = {name: changed(array) if array.dtype.kind == "f" else array for name, array in drawn.items()}
        values = values_of(table, arrays, sizes)
        if all(np.isfinite(values[name]).all() for name in table.outputs):
            found.append(arrays)
            floats = (each for each in map(np.asarray, values.values()) if each.dtype.kind == "f")
            if not any(np.isposinf(each).any() for each in floats):
                return arrays
    return found[0] if found else arrays


def values_of(table: Table, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> Values:
    """Return every value of a table."""
    values = dict(arrays)
    execute(lower(table), values, sizes)
    return values


def seeds_of(table: Table, sizes: Mapping[str, int], seed: int = 0) -> Values:
    """Return random gradients of the outputs."""
    generator = np.random.default_rng(seed + 1)
    return {f"d{name}": generator.standard_normal(shape_of(table.axes[name], sizes)) for name in table.outputs}


def error(array: Array, expected: Array) -> float:
    """Return the largest error, relative above 1; infinite if shapes differ or a number is NaN."""
    array, expected = np.multiply(array, 1.0), np.multiply(expected, 1.0)
    if array.shape != expected.shape:
        return float("inf")
    with np.errstate(invalid="ignore"):
        errors = np.where(array == expected, 0.0, np.abs(array - expected) / (1 + np.abs(expected)))
    return float("inf") if np.isnan(errors).any() else float(errors.max(initial=0.0))


def worst(errors: Mapping[str, float]) -> tuple[str, bool]:
    """Return the largest error as text, and whether it is within the tolerance."""
    if not errors:
        return "nothing to compare", True
    name = max(errors, key=lambda key: errors[key])
    return f"worst error {errors[name]:.1e}, in {name}", errors[name] <= TOLERANCE


def _same_values(
    name: str, table: Table, arrays: Values, sizes: Mapping[str, int], meaning: Meaning, larger: float
) -> Check:
    """Compare output values at the samples and at larger ones, which reach limits such as a clamp's 7 and -7."""
    errors: dict[str, float] = {}
    for factor, remark in ((1.0, ""), (larger, f" of numbers {larger:g} times larger")):
        scaled = {key: array * factor if array.dtype.kind == "f" else array for key, array in arrays.items()}
        values = values_of(table, scaled, sizes)
        with np.errstate(all="ignore"):
            shape = {"shape": values[table.outputs[0]].shape} if getattr(meaning, "sized", False) else {}
            outputs = meaning(*scaled.values(), **shape)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        errors |= {
            f"{output}{remark}": error(values[output], other)
            for output, other in zip(table.outputs, outputs, strict=True)
        }
    return Check(name, "values against an independent implementation", *worst(errors))


# What is executed, line by line.


def count_operations(name: str, table: Table, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> Check:
    """Compare the units that an instrumented array counts in every line with the line's `run` price."""
    counted = executed(table, arrays, sizes)
    rows = price(table, sizes).rows
    compared = "executed operations against the price book run, line by line"
    for row, (flops, maccs) in zip(rows, counted, strict=True):
        expected = row.flops.at(sizes), row.maccs.at(sizes)
        if (flops, maccs) != expected:
            text = f"{flops} FLOPs and {maccs} MACCs executed, {expected[0]} and {expected[1]} priced"
            return Check(name, compared, f"{text}, in line: {row.text}", False)
    return Check(name, compared, f"{sum(flops for flops, _ in counted)} in {len(rows)} lines", True)


def executed(table: Table, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> list[list[int]]:
    """Return FLOPs and MACCs of every line of the table, over all iterations."""
    numbered = [[0, 0] for _ in walk(table.lines)]
    products: dict[int, int] = {}  # of each line: the products that it has made and not summed

    def watch(line: Line, values: MutableMapping[str, Array]) -> None:
        counts = numbered[line.meta.origin]
        counts[0] += CountingArray.units
        counts[1] += CountingArray.maccs
        products[line.meta.origin] = CountingArray.products or products.get(line.meta.origin, 0)
        if scattered := _added_up(line):  # a product that is added where an index says is a term of a sum
            size = np.size(values[scattered])
            counts[1] += size if products[line.meta.origin] == size else 0
        CountingArray.units = CountingArray.maccs = CountingArray.products = 0
        for term in line.left:  # what comes from nowhere (zeros, an identity) counts from here on
            values[term.name] = as_counting(values[term.name])

    lowered = lower(table)
    CountingArray.units = CountingArray.maccs = CountingArray.products = 0
    execute(lowered, {key: as_counting(array) for key, array in arrays.items()}, sizes, watch)
    return numbered


def _added_up(line: Line) -> str:
    """Return the array that a scatter-add line adds into; "" for other lines, also where no two terms meet."""
    left = line.left[0]
    meets = left.indexed and not left.apart and {*left.loops} - {axis for axis in left.axes if isinstance(axis, str)}
    return line.right[0].name if meets else ""


def _sum_of_passes(name: str, derived: Derived, sizes: Mapping[str, int]) -> Check:
    passes = {"forward": derived.forward, "backward": derived.backward, "update": derived.update}
    parts = {part: price(table, sizes).flops for part, table in passes.items()}
    step_flops = price(derived.step, sizes).flops
    text = " + ".join(f"{part} {flops}" for part, flops in parts.items()) + f", step {step_flops}"
    return Check(name, "prices of the passes against the price of the step", text, sum(parts.values()) == step_flops)


def _moved(name: str, table: Table, values: Values, sizes: Mapping[str, int]) -> Check:
    """Compare the elements read and written by each line outside loops with the sizes of its arrays."""
    compared = "bytes of every line against the sizes of the arrays"
    rows = price(table, sizes, dtype="int8").rows
    moved = 0
    for (line, nest), row in zip(walk(table.lines), rows, strict=True):
        if nest.loops:
            continue
        terms = [term for term in (*line.left, *line.right) if isinstance(term, Term)]
        elements = 0 if alias(line) else sum(_touched(term, values, sizes) for term in terms)
        moved += elements
        if elements != row.elements.at(sizes):
            text = f"{elements} elements, {row.elements.at(sizes)} priced, in line: {row.text}"
            return Check(name, compared, text, False)
    return Check(name, compared, f"{moved} elements outside loops", True)


def _touched(term: Term, values: Values, sizes: Mapping[str, int]) -> int:
    """Return the elements read of an operand; for an indexed read, at most so many, and those of the index."""
    if not term.indexed:
        return int(np.size(values[term.name]))
    reads = term.indexed_axes
    direct = [axis for axis in term.axes if isinstance(axis, str)]
    places = [min(size_of((r.axis,), sizes), size_of([a for a in r.at.loops if a not in direct], sizes)) for r in reads]
    inner = [read.at for read in reads if isinstance(read.at, Term)]
    return size_of(direct, sizes) * math.prod(places) + sum(_touched(at, values, sizes) for at in inner)


def size_of(axes: Iterable[str], sizes: Mapping[str, int]) -> int:
    """Return the product of the sizes of axes."""
    return math.prod(shape_of(axes, sizes))


# Gradients.


def _jacobians(name: str, derived: Derived, values: Values, explicit: Derived, other: Values) -> Check:
    errors = {
        name_of: error(other[explicit.gradients[name_of]], values[gradient])
        for name_of, gradient in derived.gradients.items()
    }
    return Check(name, "gradients through explicit Jacobians against the closed form", *worst(errors))


def gradients(
    name: str,
    table: Table,
    gradient_names: Mapping[str, str],
    arrays: Values,
    values: Mapping[str, Array],
    sizes: Mapping[str, int],
    seed: int = 0,
) -> Check:
    """Compare gradients with complex steps: every entry, or random directions if there are very many.

    `gradient_names` maps an input or weight to its gradient in `values`.
    """
    lowered = lower(table)
    seeds = seeds_of(table, sizes, seed)
    generator = np.random.default_rng(seed + 2)
    all_entries = sum(arrays[name_of].size for name_of in gradient_names) <= ENTRIES
    slope = _complex_slope if takes_complex(table) else _central_slope
    errors: dict[str, float] = {}
    count = 0
    for name_of, gradient in gradient_names.items():
        computed = values[gradient]
        if np.shape(computed) != arrays[name_of].shape:
            return Check(name, "gradients against complex steps", f"d{name_of} has another shape", False)
        slopes, expected = [], []
        for direction in _directions(arrays[name_of], all_entries, generator):
            slopes.append(slope(lowered, seeds, arrays, name_of, direction, sizes))
            expected.append(np.sum(computed * direction))
            count += 1
        errors[name_of] = error(np.array(expected), np.array(slopes))
    text, passed = worst(errors)
    kind = "entries" if all_entries else "random directions"
    if slope is _central_slope:
        return Check(name, f"gradients against differences, {count} {kind}", text, max(errors.values()) <= 1e-6)
    return Check(name, f"gradients against complex steps, {count} {kind}", text, passed)


def _complex_slope(
    lowered: Table, seeds: Values, arrays: Values, moved_name: str, direction: Array, sizes: Mapping[str, int]
) -> float:
    moved = {**arrays, moved_name: arrays[moved_name] + STEP * 1j * direction}
    execute(lowered, moved, sizes)
    return float(sum(np.sum(seeds[f"d{out}"] * np.imag(moved[out])) for out in lowered.outputs) / STEP)


def _central_slope(
    lowered: Table, seeds: Values, arrays: Values, moved_name: str, direction: Array, sizes: Mapping[str, int]
) -> float:
    step, total = 1e-5, 0.0
    still: list[Array] = []  # operands without gradient are constant

    def keep(line: Line, values: MutableMapping[str, Array]) -> None:
        if isinstance(line, Op) and line.op != "inside" and entry(line.op).kind == "move":
            still.append(values[line.name])

    def put_back(line: Line, values: MutableMapping[str, Array]) -> None:
        if isinstance(line, Op) and line.op != "inside" and entry(line.op).kind == "move":
            values[line.name] = still[next(places)]

    execute(lowered, dict(arrays), sizes, keep)
    for sign in (1, -1):
        moved, places = {**arrays, moved_name: arrays[moved_name] + sign * step * direction}, count()
        execute(lowered, moved, sizes, put_back)
        total += sign * float(sum(np.sum(seeds[f"d{out}"] * moved[out]) for out in lowered.outputs))
    return total / (2 * step)


def takes_complex(table: Table) -> bool:
    """Return whether its operators accept complex numbers in NumPy; Python's error function does not."""
    ops = {line.op for line, _ in walk(lower(table).lines) if isinstance(line, Op)} - {"inside"}
    return all(entry(op).complex for op in ops) and ("erf" not in ops or find_spec("scipy") is not None)


def _directions(array: Array, all_entries: bool, generator: np.random.Generator) -> Iterator[Array]:
    if not all_entries:
        for _ in range(4):
            yield generator.standard_normal(array.shape)
        return
    for index in np.ndindex(array.shape):
        direction = np.zeros(array.shape)
        direction[index] = 1.0
        yield direction


_MOVES = frozenset(
    ("broadcast_to", "concatenate", "real", "reshape", "shape", "ndim", "size", "stack", "transpose", "zeros_like")
)


class CountingArray(np.ndarray[Any, Any]):
    """An array that counts its operations in the units of the price book `run`.

    One unit per element of an elementwise result or reduction operand, and two per term of a matmul.
    """

    units = 0
    maccs = 0  # the terms of matmuls alone
    products = 0  # the elements of products of two arrays, element by element

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        plain = [_plain(value) for value in inputs]
        result = getattr(ufunc, method)(*plain, **keywords)
        if method == "at":
            CountingArray.units += np.broadcast(plain[0][plain[1]], plain[2]).size
            return None
        if method == "reduce":
            CountingArray.units += np.size(plain[0])
        elif ufunc is np.matmul:
            terms = np.size(result) * np.shape(plain[0])[-1]
            CountingArray.units += 2 * terms
            CountingArray.maccs += terms
        else:
            CountingArray.units += np.size(result)
            if ufunc is np.multiply and all(isinstance(value, CountingArray) for value in inputs):
                CountingArray.products = np.size(result)
        return as_counting(result)

    def __array_function__(self, function: Any, types: Any, arguments: Any, keywords: Any) -> Any:
        result = function(*map(_plain, arguments), **{name: _plain(value) for name, value in keywords.items()})
        if function is np.where:
            CountingArray.units += np.size(result)
        elif function in (np.argmax, np.argmin, np.argsort):
            CountingArray.units += np.size(_plain(arguments[0]))
        elif function.__name__ not in _MOVES:
            raise NotImplementedError(f"what does {function.__name__} cost?")
        return as_counting(result) if isinstance(result, np.ndarray) else result


def _plain(value: Any) -> Any:
    if isinstance(value, CountingArray):
        return value.view(np.ndarray)
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value))
    return value


def as_counting(value: Any) -> Any:
    """Return the array as a counting one; integers stay plain arrays."""
    array = np.asarray(value)
    return array if array.dtype.kind in "iu" else array.view(CountingArray)

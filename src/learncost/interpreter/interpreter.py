"""Execute tables in NumPy, which defines their meaning, on any arrays that follow NumPy's protocols."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from learncost.autodiff.derive import derive
from learncost.interpreter.moves import Array, Exchange, Sizes
from learncost.interpreter.operation import Operation, prepared
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op
from learncost.ir.loop import Loop, Statement, added, begun, check_derived, empty, walk, windows
from learncost.ir.polynomial import base, came_from, shape_of, size_of
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey, Value
from learncost.layers.layer import Layer, table_of
from learncost.passes.lower import lower
from learncost.passes.normal_forms import joined

Values = dict[str, Array]
Watch = Callable[[Line, MutableMapping[str, Array]], None]
Call = Callable[[Op, Sequence[Array]], Sequence[Array]]


def run(layer: Layer | Table, arrays: Mapping[str, Array], sizes: Mapping[str, int] | None = None) -> Values:
    """Run a layer on arrays. Return every named value, and every gradient if gradients of outputs are given.

    Parameters
    ----------
    layer
        The layer, or a table.
    arrays
        Inputs and weights by name, with the shapes that the layer declares. The weight of a loop is a stack, with the
        iteration as its first axis. With an output's gradient (`dY` for Y) the result has all gradients (`dX`, `dW`,
        ...).
    sizes
        Sizes by name that no array's shape determines, such as of windows, trip counts of loops, or an output whose
        positions determine the indices that are read; they may also be among `arrays`.

    Returns
    -------
    dict
        Arrays by name.

    Raises
    ------
    InputError
        Where an array is missing or has the wrong shape.

    Examples
    --------
    >>> import numpy as np
    >>> linear = lc.layer('''linear(X; W) -> Y
    ...   Y[B M f] = X[B M d] W[d f]
    ... ''')
    >>> X, W = np.ones((1, 2, 3)), np.ones((3, 4))
    >>> found = lc.run(linear, {"X": X, "W": W, "dY": np.ones((1, 2, 4))})
    >>> found["Y"].shape, found["dW"].shape, float(found["dW"][0, 0])
    ((1, 2, 4), (3, 4), 2.0)
    """
    return run_with(layer, arrays, sizes or {})


def run_with(
    layer: Layer | Table, arrays: Mapping[str, Array], sizes: Mapping[str, int], calls: Mapping[str, Call] = {}
) -> Values:
    """Run a layer as `run` does, with functions for its opaque lines, by the name of their first result."""
    table = table_of(layer)
    seeds = {name: f"d{table.header(name)}" for name in table.outputs}
    outputs = [name for name, seed in seeds.items() if seed in arrays and seed not in table.inputs]
    numbers = {name: int(value) for name, value in arrays.items() if name not in table.axes and _is_number(value)}
    sizes = {**numbers, **sizes}
    sizes = infer_sizes(table, arrays, sizes, table.sizes)
    values = {name: _array(arrays[name]) for name in (*table.inputs, *table.weights) if name not in sizes}
    if not outputs:
        table = _keeping(table)
        execute(lower(table), values, sizes, calls=calls)
        return _public(values, table)
    derived = derive(table, given=outputs)
    for name in outputs:
        seed = values[f"d{name}"] = _array(arrays[seeds[name]])
        shape = shape_of(table.axes[name], sizes)
        if np.shape(seed) != shape:
            raise InputError(f"{seeds[name]} has the shape {np.shape(seed)}, but its output has {shape}")
    step = _keeping(derived.step)
    execute(lower(step), values, sizes, calls=calls)
    for name, gradient in list(derived.gradients.items()):
        values[f"d{name}"] = values[gradient]
    for name in (*table.inputs, *table.weights):
        if name not in derived.gradients and name not in table.indices | table.constants:
            values[f"d{name}"] = np.zeros(np.shape(arrays[name]))
    return _public(values, replace(step, outputs=table.outputs))


def _keeping(table: Table) -> Table:
    """Return the table with a stack of every value that the iterations of a loop define, so that all values can be
    inspected."""

    def keeping(lines: Iterable[Statement], values: dict[str, Value]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Loop):
                stacked = tuple(name for name in sorted(line.inside) if name not in dict(line.each) | dict(line.keep))
                more = tuple((name, f"{name}*") for name in stacked)
                stacks = {stack: Value((line.count, *line.axes[name]), "saved", name) for name, stack in more}
                values |= {stack: value for stack, value in stacks.items() if stack not in values}
                inner = dict(line.values)
                line = replace(line, lines=keeping(line.lines, inner), values=inner, keep=(*line.keep, *more))
            result.append(line)
        return tuple(result)

    values = dict(table.values)
    return replace(table, lines=keeping(table.lines, values), values=values)


def _array(value: Array) -> Array:
    """Return lists and numbers as arrays, and an object that follows NumPy's protocols unchanged."""
    return value if hasattr(value, "__array_ufunc__") and hasattr(value, "shape") else np.asanyarray(value)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _public(values: Values, table: Table) -> Values:
    """Return all values by name, stacks as arrays: under plain names where these are unused, outputs under the names in
    the layer's header."""
    result: Values = {}
    for name, value in values.items():
        plain = name
        while plain in table.known and table.known[plain].role == "saved":
            plain = table.known[plain].of
        stacked = np.stack(value) if isinstance(value, list) else value
        result[plain if plain not in values else name] = stacked
    for name in table.outputs:
        result[table.header(name)] = result[name]
    return result


def infer_sizes(
    table: Table,
    arrays: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    fixed: Mapping[str, int] | None = None,
) -> dict[str, int]:
    """Return the size of every axis and window; a size that is not given is inferred from the shapes of arrays.

    fixed   sizes that the table declares, used where neither arrays nor `sizes` determine them
    """
    lengths: dict[str, int] = dict(sizes or {})
    origin: dict[str, str] = dict.fromkeys(lengths, "the given sizes")
    seeds = {f"d{table.header(name)}": table.axes[name] for name in table.outputs}
    declared = {name: table.axes[name] for name in (*table.inputs, *table.weights)}
    for name, axes in ({seed: axes for seed, axes in seeds.items() if seed in arrays} | declared).items():
        if name in lengths:
            continue
        if name not in arrays:
            raise InputError(f"the array {name}[{' '.join(axes)}] is missing: give it")
        shape = np.shape(arrays[name])
        if len(shape) != len(axes):
            raise InputError(f"{name} has {len(shape)} axes, but is declared {name}[{' '.join(axes)}]")
        for axis, size in zip(axes, shape, strict=True):
            expected = int(base(axis)) if base(axis).isdigit() else lengths.setdefault(base(axis), size)
            if expected != size:
                where = origin.get(base(axis), "the table")
                raise InputError(f"axis {axis} is {size} in {name}, but {expected} in {where}")
            origin.setdefault(base(axis), name)
    lengths = _filled(table, lengths, fixed or {})
    for window in windows(table.lines):
        if window not in lengths:
            raise InputError(f"the size of the window {window} is unknown: give {window} among the arrays or sizes")
        if not _is_number(lengths[window]) or lengths[window] < 1:
            raise InputError(f"the window {window} must be a whole number from 1, not {lengths[window]!r}")
    for joined_axis, parts in joined(table):
        if lengths.keys() >= {*parts}:
            lengths.setdefault(joined_axis, sum(lengths[part] for part in parts))
    for line, nest in walk(table.lines):
        for axis in (*nest.counts, *line.loops):
            if base(axis).partition("/")[0] not in lengths and not base(axis)[0].isdigit():
                raise InputError(f"the size of {base(axis)} is unknown: give {base(axis)} among the arrays or sizes")
    return lengths


def _filled(table: Table, lengths: dict[str, int], fixed: Mapping[str, int]) -> dict[str, int]:
    """Return the sizes completed by those that the table declares. Raises `InputError` where they contradict each
    other."""
    needed = {
        *windows(table.lines),
        *(base(a) for line, nest in walk(table.lines) for a in (*nest.counts, *line.loops)),
    }
    missing = sorted(needed & fixed.keys() - lengths.keys())
    other = next((axis for axis, size in lengths.items() if fixed.get(axis, size) != size), None)
    if not other:
        return {**fixed, **lengths}
    if missing:
        raise InputError(
            f"axis {other} is {lengths[other]}, but the table fixes {other}={fixed[other]} and further sizes that no "
            f"array determines: give arrays of that size, or {', '.join(missing)} among the sizes"
        )
    return lengths


def execute(
    table: Table,
    values: MutableMapping[str, Array],
    sizes: Sizes,
    watch: Watch | None = None,
    exchange: Exchange | None = None,
    calls: Mapping[str, Call] = {},
) -> None:
    """Run the lines of a lowered table. `values` receives every name; `watch` is called after every line.

    exchange  the communication with other devices, for the table of one device of a mesh
    calls     the functions of opaque lines, by the name of their first result
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        steps = _prepared(table.lines, table.values, calls=calls) if calls else program(table)
        _execute(steps, values, sizes, watch, exchange)


@dataclass(frozen=True, slots=True)
class _LineStep:
    """A step of a program that computes one line."""

    line: Line
    name: str
    operation: Operation


@dataclass(frozen=True, slots=True)
class _LoopProgram:
    """A step of a program that runs a loop."""

    line: Loop
    first: Program  # the first iteration that runs, in which accumulators begin with their first summands
    program: Program
    parts: Mapping[tuple[str, str], int]  # how many slices of a stack an iteration accesses
    stacked: frozenset[str]  # stacks that become arrays; saved tensors remain lists of slices


Program: TypeAlias = "tuple[_LineStep | _LoopProgram, ...]"


def program(table: Table) -> Program:
    """Return the program of a lowered table; programs are cached."""
    return _program(IdentityKey(table))


@lru_cache(maxsize=32)
def _program(same: IdentityKey[Table]) -> Program:
    table = same.content
    check_derived(table.lines, "it cannot be executed")
    return _prepared(table.lines, table.values)


def _prepared(
    lines: tuple[Statement, ...],
    roles: Mapping[str, Value],
    zeros: frozenset[str] = frozenset(),
    calls: Mapping[str, Call] = {},
) -> Program:
    """Return the program of one scope; `zeros` are loop-carried accumulators that are still zero."""
    nothing = zeros | empty(lines)

    def step(line: Statement) -> _LineStep | _LoopProgram:
        if isinstance(line, Loop):
            return _repeated(line, roles, nothing, calls)
        if isinstance(line, Op) and line.opaque:
            return _LineStep(line, line.name, _called(line, calls[line.opaque.call]))
        return _LineStep(line, line.name, prepared(added(line, zeros), roles))

    return tuple(map(step, lines))


def _called(line: Op, call: Call) -> Operation:
    """Return the operation of an opaque line: it sets the other results, and returns the first."""

    def operation(values: Any, sizes: Sizes, exchange: Exchange | None) -> Array:
        made = call(line, [values[term.name] for term in line.right])
        results = [np.reshape(each, shape_of(term.loops, sizes)) for each, term in zip(made, line.left, strict=True)]
        values.update(zip(line.makes, results, strict=True))
        return results[0]

    return operation


def _repeated(
    line: Loop, roles: Mapping[str, Value], nothing: frozenset[str], calls: Mapping[str, Call]
) -> _LoopProgram:
    parts = {pair: line.part(pair[0], roles[pair[1]].axes) for pair in (*line.each, *line.keep)}
    stacked = frozenset(outer for _, outer in line.keep if roles[outer].role != "saved")
    inside, starts = {**roles, **line.values}, begun(line, nothing)
    later = _prepared(line.lines, inside, calls=calls)
    first = _prepared(line.lines, inside, starts, calls) if starts else later
    return _LoopProgram(line, first, later, parts, stacked)


def _execute(
    steps: Program, values: MutableMapping[str, Array], sizes: Sizes, watch: Watch | None, exchange: Exchange | None
) -> None:
    for step in steps:
        if isinstance(step, _LoopProgram):
            _iterations(step, values, sizes, watch, exchange)
        else:
            values[step.name] = step.operation(values, sizes, exchange)
            if watch:
                watch(step.line, values)


def _iterations(
    iterations: _LoopProgram,
    values: MutableMapping[str, Array],
    sizes: Sizes,
    watch: Watch | None,
    exchange: Exchange | None,
) -> None:
    line, parts = iterations.line, iterations.parts
    try:
        count = size_of(line.count, sizes)
    except KeyError:
        raise InputError(f"the trip count of a loop is unknown: give {line.count} among the arrays or sizes") from None
    if count < 1:
        raise InputError(f"{line.count} must be a whole number from 1, not {count}")
    carried = {carry.start: values[carry.initial] for carry in line.carry}
    stacks: dict[str, list[Array]] = {pair[1]: [None] * count * (parts[pair] or 1) for pair in line.keep}
    order = range(count)
    for place, iteration in enumerate(reversed(order) if line.reverse else order):
        inner = _IterationScope(values)
        inner.update(carried)
        inner.update({pair[0]: _slice(values[pair[1]], iteration, parts[pair]) for pair in line.each})
        own_sizes = {**sizes, **came_from(line.around, iteration, sizes)} if line.around else sizes
        _execute(iterations.program if place else iterations.first, inner, own_sizes, watch, exchange)
        carried = {carry.start: inner[carry.end] for carry in line.carry}
        for inside, outer in line.keep:
            together = parts[inside, outer]
            for number in range(together):
                stacks[outer][iteration * together + number] = _slice(inner[inside], number)
            if not together:
                stacks[outer][iteration] = inner[inside]
    for carry in line.carry:
        values[carry.final] = carried[carry.start]
    for outer, stack in stacks.items():
        values[outer] = np.stack(stack) if outer in iterations.stacked else stack


def _slice(stack: Array | list[Array], iteration: int, together: int = 0) -> Array:
    """Return an iteration's slice of a stack, or its consecutive slices."""
    if together:
        return stack[iteration * together : (iteration + 1) * together]
    # the ellipsis returns an array also for one number
    return stack[iteration] if isinstance(stack, list) else stack[iteration, ...]


class _IterationScope(dict[str, Array]):
    """The values of one iteration; other names are looked up in the enclosing scope."""

    def __init__(self, outer: Mapping[str, Array]) -> None:
        super().__init__()
        self.outer = outer

    def __missing__(self, name: str) -> Array:
        return self.outer[name]

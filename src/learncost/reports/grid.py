"""The configurations of a sweep: combinations of values, lists, arrays or ranges, checked as arrays."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, shown
from learncost.layers.layer import Layer
from learncost.models.argument import layer_given
from learncost.models.configuration import Configuration, configure, family_of, in_order, size_meant
from learncost.models.expression import evaluate, names, quotients
from learncost.models.families import Family
from learncost.models.files import LARGEST_FILE
from learncost.models.sizes import CANONICAL, LARGEST, RUN_SIZES, check_size, spelled
from learncost.models.tables import check_open, passed

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 10**8  # configurations; their columns would fill the memory of a large machine
_RUN = tuple(size.name for size in RUN_SIZES)


@dataclass(frozen=True)
class SweepGrid:
    """Valid configurations: `columns` by canonical size, all of one length; `fixed` are the other sizes."""

    configuration: Configuration
    columns: Mapping[str, NDArray[np.int64]]
    fixed: Mapping[str, int]
    configurations: int
    dropped: int = 0


def values(text: str, name: str) -> NDArray[np.int64]:
    """Return the numbers of a text such as `256`, `256,512`, `128:1024:128` or a mixture of these.

    A range is Python's: start:stop:step goes from start up to, and without, stop; the step is 1 where it is left out.
    """
    numbers = []
    for part in text.split(","):
        bounds = [check_size(name, bound.strip()) for bound in part.split(":")]
        if len(bounds) > 3:
            raise InputError(f"{name}: {shown(part)} is not a range: write start:stop or start:stop:step")
        steps = range(*bounds) if len(bounds) > 1 else bounds
        if len(steps) > MOST:
            raise InputError(f"{name}: {shown(part)} has {len(steps):,} values; the limit is {MOST:,}")
        if not steps:
            raise InputError(f"{name}: {shown(part)} is empty; a range ends before its stop")
        numbers.append(np.array(steps) if isinstance(steps, list) else np.arange(steps.start, steps.stop, steps.step))
    return np.concatenate(numbers)


def grid_of(model: Any, values: Mapping[str, Any], grid: bool, skip_invalid: bool) -> SweepGrid:
    """Combine sizes into configurations, and check them as `configure` and `run_sizes` check one.

    `given` has sizes in any spelling, numbers or arrays of them, and settings. Raises `InputError`.
    """
    layer = layer_given(model)
    settings = {s: value for s, value in values.items() if spelled(s) not in CANONICAL and layer is None}
    arrays = {spelling: _array(spelling, values[spelling]) for spelling in values if spelling not in settings}
    read = _reader(layer or model)
    first = {spelling: int(array[0]) for spelling, array in arrays.items()}
    model_sizes = {s: value for s, value in first.items() if CANONICAL.get(spelled(s)) not in _RUN}
    configuration = read({**settings, **model_sizes}, False)
    family = family_of(configuration)
    if layer is not None:
        check_open(layer, configuration.name, {size_meant(family, spelling) for spelling in first})
    by_name: dict[str, NDArray[np.int64]] = {}
    for spelling, array in arrays.items():
        name = size_meant(family, spelling)
        if name in by_name:
            raise InputError(f"{name} is given twice")
        by_name[name] = array
    if "batch_size" not in by_name:
        by_name["batch_size"] = np.full(1, evaluate(family.batch, configuration.values), dtype=np.int64)
    columns = _together(by_name, grid)
    count = len(next(iter(columns.values())))
    columns, fixed = _complete(columns, configuration, count)
    wrong = list(_constraints(configuration, {**configuration.values, **fixed, **columns}))
    checked = _checked(SweepGrid(configuration, columns, fixed, count), wrong, skip_invalid)
    _hold(checked, lambda sizes: read({**settings, **sizes}, True), [name for name in by_name if name not in _RUN])
    return checked


def _hold(combinations: SweepGrid, read: Callable[[Mapping[str, int]], Configuration], names: list[str]) -> None:
    """Compare the first and last configurations with those that `configure` makes."""
    for i in (0, combinations.configurations - 1):
        row = {name: int(column[i]) for name, column in combinations.columns.items()}
        expected = {name: size for name, size in {**combinations.fixed, **row}.items() if name not in _RUN}
        assert read({name: row[name] for name in names}).sizes == expected, f"a derived size must be {expected}"


def _array(name: str, value: Any) -> NDArray[np.int64]:
    """Return a size as an array of integers from 1 to 10^12."""
    if isinstance(value, str):
        value = values(value, name)
    elif isinstance(value, set | frozenset):
        value = sorted(value)
    elif isinstance(value, range):
        value = np.arange(value.start, value.stop, value.step)
    if not isinstance(value, np.ndarray | list | tuple):
        return np.array([check_size(name, value)], dtype=np.int64)
    rule = f"{name} must be whole numbers from 1 to {LARGEST:,}, not "
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{rule}{shown(value)}") from None
    if array.dtype.kind not in "iuf" or array.ndim > 1:
        raise InputError(f"{rule}{shown(value)}")
    array = np.atleast_1d(array)
    if not array.size:
        raise InputError(f"{name} has no values")
    wrong = ~((array >= 1) & (array <= LARGEST))
    if array.dtype.kind == "f":
        wrong |= array != np.floor(array)
    if wrong.any():
        raise InputError(f"{rule}{shown(array[wrong][0].item())}")
    return array.astype(np.int64)


_Read = Callable[[Mapping[str, object], bool], Configuration]


def _reader(model: str | Layer) -> _Read:
    """Return `configure` for one model with any sizes; standard input is read once."""
    if model != "-":
        return lambda settings, exact: configure(model, settings, exact=exact)
    try:
        text = sys.stdin.read(LARGEST_FILE + 1)
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text") from None
    return lambda settings, exact: configure(model, settings, io.StringIO(text), exact)


def _together(arrays: Mapping[str, NDArray[np.int64]], grid: bool) -> dict[str, NDArray[np.int64]]:
    """Return all combinations of values, or arrays of equal length paired; single numbers combine with either."""
    many = {name: array for name, array in arrays.items() if len(array) > 1}
    if not grid:
        lengths = {name: len(array) for name, array in many.items()}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise InputError(f"without a grid all arrays need one length, not {text}")
        count = next(iter(lengths.values()), 1)
        _at_most(count)
        return {name: np.broadcast_to(array, count) for name, array in arrays.items()}
    count = 1
    for array in many.values():
        count *= len(array)
    _at_most(count, "; for columns of a table give grid=False")
    columns, repeats = {}, count
    for name, array in arrays.items():
        repeats //= len(array)
        columns[name] = np.tile(np.repeat(array, repeats), count // (repeats * len(array)))
    return columns


def _at_most(count: int, hint: str = "") -> None:
    if count > MOST:
        raise InputError(f"the sizes make {count:,} configurations; the limit is {MOST:,}{hint}")


def _complete(
    columns: dict[str, NDArray[np.int64]], configuration: Configuration, count: int
) -> tuple[dict[str, NDArray[np.int64]], dict[str, int]]:
    """Return derived sizes as columns, and the fixed sizes."""
    family = family_of(configuration)
    fixed = {name: size for name, size in configuration.sizes.items() if name not in columns}
    for name in (name for name in in_order(family) if name in configuration.derived and name not in columns):
        value = evaluate(family.derived[name], {**configuration.values, **fixed, **columns}, exact=False)
        if isinstance(value, np.ndarray):
            columns[name] = value
            del fixed[name]
    if "target_len" in columns and not configuration.two_sided:
        raise InputError(f"{configuration.name} is not an encoder-decoder: remove --target-len")
    everything = {**configuration.values, **fixed, **columns}
    if "seq_len" not in columns:
        longest = evaluate(family.fixed or family.usual_length, everything)
        if not isinstance(longest, np.ndarray) and not longest:
            raise InputError(f"{configuration.name} has no default length: give --seq-len")
        columns["seq_len"] = np.broadcast_to(longest, count)
    if configuration.two_sided and "target_len" not in columns:
        target = evaluate(family.usual_target_length, everything) if family.target_length else columns["seq_len"]
        columns["target_len"] = np.broadcast_to(target, count)
    order = [*_RUN[2:], *_RUN[:2], *family.sizes]
    return {name: columns[name] for name in order if name in columns}, fixed


_Violation = tuple["NDArray[np.bool_]", Callable[[int], str]]


def _constraints(configuration: Configuration, sizes: Mapping[str, Any]) -> Iterator[_Violation]:
    """Yield violated constraints: a mask of the configurations, and a function for the error of configuration i."""
    family = family_of(configuration)

    def at(value: Any, i: int) -> int:
        return int(value[i]) if isinstance(value, np.ndarray) else int(value)

    rules = [(family.derived[name], f"; change one, or give {name}") for name in configuration.derived]
    for rule, hint in [*rules, *((rule, "") for rule in family.axes.values())]:
        for above, below in quotients(rule):
            if not names(above) | names(below) <= sizes.keys():
                continue
            first, second = evaluate(above, sizes), evaluate(below, sizes)
            yield (
                np.asarray((second != 0) & (first % np.maximum(second, 1) != 0)),  # 0: the axis is not used
                lambda i, first=first, second=second, above=above, below=below, hint=hint: (  # type: ignore[misc]
                    f"{above} {at(first, i)} is not a multiple of {below} {at(second, i)}{hint}"
                ),
            )
    fixed = evaluate(family.fixed, sizes) if family.fixed else 0
    if family.fixed:
        yield (
            np.asarray(sizes["seq_len"] != fixed),
            lambda i: f"{configuration.name} reads {at(fixed, i):,} positions, not {at(sizes['seq_len'], i):,}",
        )
    if family.layer is not None:
        yield from _within(family, configuration.name, sizes, at)
        return
    longest = evaluate(family.limit, sizes) if family.limit else 0
    for name in ("seq_len", "target_len"):
        if name in sizes and not (family.fixed and name == "seq_len"):
            yield (
                np.asarray((sizes[name] > longest) & (np.asarray(longest) > 0)),
                lambda i, name=name: (  # type: ignore[misc]
                    f"{name} {at(sizes[name], i)} is longer than the "
                    f"{at(longest, i)} positions that {configuration.name} learns"
                ),
            )


def _within(
    family: Family, called: str, sizes: Mapping[str, Any], at: Callable[[Any, int], int]
) -> Iterator[_Violation]:
    """Yield violated limits of the sizes of a layer."""
    assert family.layer is not None
    for letter, limit in family.layer.limits.items():
        size = sizes.get(size_meant(family, letter), limit.least)
        yield (
            np.asarray((size < limit.least) | (size > limit.most)),
            lambda i, letter=letter, size=size, limit=limit: passed(letter, at(size, i), limit, called),  # type: ignore[misc]
        )


def _checked(combinations: SweepGrid, wrong: list[_Violation], skip_invalid: bool) -> SweepGrid:
    """Drop invalid combinations, or raise the error of the first."""
    count = combinations.configurations
    if not any(mask.any() for mask, _ in wrong):
        return combinations
    masks = [np.broadcast_to(mask, count) for mask, _ in wrong]
    bad = np.logical_or.reduce(masks)
    total = int(np.count_nonzero(bad))
    first = int(np.argmax(bad))
    text = next(say(first) for (_, say), mask in zip(wrong, masks, strict=True) if mask[first])
    if total == count:
        raise InputError(text if count == 1 else f"none of {count:,} combinations is valid: {text}")
    if not skip_invalid:
        more = f" ({total:,} of {count:,} combinations are invalid; --skip-invalid leaves them out)"
        raise InputError(text + more)
    columns = {name: column[~bad] for name, column in combinations.columns.items()}
    return SweepGrid(combinations.configuration, columns, combinations.fixed, count - total, total)

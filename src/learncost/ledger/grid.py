"""The configurations of a sweep: sizes given as values, lists, arrays or ranges, put together and checked as arrays."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.equation.errors import InputError
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.files import LARGEST_FILE
from learncost.models.sizes import CANONICAL, LARGEST, RUN_SIZES, check_size, spelled
from learncost.models.wording import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST = 10**8  # configurations; their columns would fill the memory of a large machine
_RUN = tuple(size.name for size in RUN_SIZES)


@dataclass(frozen=True)
class Grid:
    """Valid configurations: `columns` by canonical size, all of one length; `fixed` are the other sizes."""

    configuration: Configuration
    columns: Mapping[str, NDArray[np.int64]]
    fixed: Mapping[str, int]
    configurations: int
    dropped: int = 0


def values(text: str, name: str) -> NDArray[np.int64]:
    """The numbers that a text like `256`, `256,512`, `128:1024:128` or a mixture of these stands for.

    A range is Python's: start:stop:step goes from start up to, and without, stop; the step is 1 where it is left out.
    """
    numbers = []
    for part in text.split(","):
        bounds = [check_size(name, bound.strip()) for bound in part.split(":")]
        if len(bounds) > 3:
            raise InputError(f"{name}: {shown(part)} is not a range; write start:stop or start:stop:step")
        steps = range(*bounds) if len(bounds) > 1 else bounds
        if len(steps) > MOST:
            raise InputError(f"{name}: {shown(part)} has {len(steps):,} values; at most {MOST:,} are taken")
        if not steps:
            raise InputError(f"{name}: {shown(part)} is empty; a range ends before its stop")
        numbers.append(np.array(steps) if isinstance(steps, list) else np.arange(steps.start, steps.stop, steps.step))
    return np.concatenate(numbers)


def grid_of(model: str, given: Mapping[str, Any], grid: bool, skip_invalid: bool) -> Grid:
    """Put sizes together to configurations and check them as `configure` and `run_sizes` check one.

    `given` has sizes in any spelling, numbers or arrays of them, and settings. Raises `InputError`.
    """
    settings = {spelling: value for spelling, value in given.items() if spelled(spelling) not in CANONICAL}
    arrays = {spelling: _array(spelling, given[spelling]) for spelling in given if spelling not in settings}
    read = _reader(model)
    first = {spelling: int(array[0]) for spelling, array in arrays.items()}
    configuration, derived = _structure(read, settings, first)
    spellings = FAMILIES[configuration.family].spellings
    named: dict[str, NDArray[np.int64]] = {}
    for spelling, array in arrays.items():
        name = spellings.get(spelled(spelling)) or CANONICAL[spelled(spelling)]
        if name in named:
            raise InputError(f"{name} is given twice")
        named[name] = array
    named.setdefault("batch_size", np.ones(1, dtype=np.int64))
    columns = _together(named, grid)
    count = len(next(iter(columns.values())))
    columns, fixed = _complete(columns, configuration, derived, count)
    wrong = list(_constraints(configuration, derived, {**fixed, **columns}))
    found = _checked(Grid(configuration, columns, fixed, count), wrong, skip_invalid)
    _hold(found, lambda sizes: read({**settings, **sizes}), [name for name in named if name not in _RUN])
    return found


def _hold(found: Grid, read: Callable[[Mapping[str, int]], Configuration], given: list[str]) -> None:
    """The first and the last configuration against the one that `configure` makes of what was given."""
    for i in (0, found.configurations - 1):
        row = {name: int(column[i]) for name, column in found.columns.items()}
        wanted = {name: size for name, size in {**found.fixed, **row}.items() if name not in _RUN}
        assert read({name: row[name] for name in given}).sizes == wanted, (
            f"a size follows in a way of its own: {wanted}"
        )


def _array(name: str, value: Any) -> NDArray[np.int64]:
    """One size as an array of whole numbers from 1 to 10^12."""
    if isinstance(value, str):
        value = values(value, name)
    elif isinstance(value, set | frozenset):
        value = sorted(value)
    elif isinstance(value, range):
        value = np.arange(value.start, value.stop, value.step)
    if not isinstance(value, np.ndarray | list | tuple):
        return np.array([check_size(name, value)], dtype=np.int64)
    wanted = f"{name} must be whole numbers from 1 to {LARGEST:,}, not "
    try:
        array = np.asarray(value)
    except ValueError:
        raise InputError(f"{wanted}{shown(value)}") from None
    if array.dtype.kind not in "iuf" or array.ndim > 1:
        raise InputError(f"{wanted}{shown(value)}")
    array = np.atleast_1d(array)
    if not array.size:
        raise InputError(f"{name} has no values")
    wrong = ~((array >= 1) & (array <= LARGEST))
    if array.dtype.kind == "f":
        wrong |= array != np.floor(array)
    if wrong.any():
        raise InputError(f"{wanted}{shown(array[wrong][0].item())}")
    return array.astype(np.int64)


_Read = Callable[[Mapping[str, object]], Configuration]


def _reader(model: str) -> _Read:
    """`configure` for one model with any sizes; standard input is read once."""
    if model != "-":
        return lambda given: configure(model, given)
    try:
        text = sys.stdin.read(LARGEST_FILE + 1)
    except UnicodeDecodeError:
        raise InputError("standard input is not UTF-8 text, so it is not a configuration") from None
    return lambda given: configure(model, given, io.StringIO(text))


def _structure(
    read: _Read, settings: Mapping[str, Any], first: Mapping[str, int]
) -> tuple[Configuration, dict[str, int]]:
    """The configuration at the first values, and by which factor of the width a size follows where it does.

    head_dim is hidden_size over num_attention_heads where nothing gives it, factor 1; intermediate_size a multiple.
    Both are found by asking `configure` at two widths with one head, which is always valid.
    """
    model = {s: value for s, value in first.items() if CANONICAL[spelled(s)] not in _RUN}
    # Whether the first width is a multiple of the first heads is checked with all the others.
    open_heads = {} if "head_dim" in (CANONICAL[spelled(s)] for s in model) else {"head_dim": 1}
    configuration = read({**settings, **model, **open_heads})
    width = ("hidden_size", "num_attention_heads")
    others = {s: value for s, value in model.items() if CANONICAL[spelled(s)] not in width}
    one, two = (read({**settings, **others, "hidden_size": n, "num_attention_heads": 1}).sizes for n in (1, 2))
    derived = {name: one[name] for name in ("head_dim", "intermediate_size") if two[name] == 2 * one[name]}
    if "head_dim" not in derived:
        configuration = read({**settings, **model})
    return configuration, derived


def _together(named: Mapping[str, NDArray[np.int64]], grid: bool) -> dict[str, NDArray[np.int64]]:
    """All combinations of the values, or arrays of one length side by side; numbers go with either."""
    many = {name: array for name, array in named.items() if len(array) > 1}
    if not grid:
        lengths = {name: len(array) for name, array in many.items()}
        if len(set(lengths.values())) > 1:
            text = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
            raise InputError(f"without a grid all arrays need one length, not {text}")
        count = next(iter(lengths.values()), 1)
        _at_most(count)
        return {name: np.broadcast_to(array, count) for name, array in named.items()}
    count = 1
    for array in many.values():
        count *= len(array)
    _at_most(count, "; for columns of a table give grid=False")
    columns, repeats = {}, count
    for name, array in named.items():
        repeats //= len(array)
        columns[name] = np.tile(np.repeat(array, repeats), count // (repeats * len(array)))
    return columns


def _at_most(count: int, hint: str = "") -> None:
    if count > MOST:
        raise InputError(f"the sizes make {count:,} configurations; at most {MOST:,} are taken{hint}")


def _complete(
    columns: dict[str, NDArray[np.int64]], configuration: Configuration, derived: Mapping[str, int], count: int
) -> tuple[dict[str, NDArray[np.int64]], dict[str, int]]:
    """Sizes that follow from given ones become columns; the others are fixed."""
    fixed = {name: size for name, size in configuration.sizes.items() if name not in columns}
    width = columns.get("hidden_size", fixed.get("hidden_size"))
    heads = columns.get("num_attention_heads", fixed.get("num_attention_heads"))
    if "head_dim" in derived and "head_dim" not in columns:
        value = width // heads  # type: ignore[operator]  # every family has both
        if isinstance(value, np.ndarray):
            columns["head_dim"] = value
            del fixed["head_dim"]
        else:
            fixed["head_dim"] = int(value)
    if "intermediate_size" in derived and isinstance(width, np.ndarray) and "intermediate_size" not in columns:
        columns["intermediate_size"] = width * derived["intermediate_size"]
        del fixed["intermediate_size"]
    two_sided = configuration.family == "encoder-decoder"
    if "target_len" in columns and not two_sided:
        raise InputError(f"{configuration.name} has no decoder beside an encoder: --target-len does not apply")
    if "seq_len" not in columns:
        longest = columns.get("max_position_embeddings", fixed.get("max_position_embeddings"))
        if longest is None:
            raise InputError(f"{configuration.name} has no default length: give --seq-len")
        columns["seq_len"] = np.broadcast_to(longest, count)
    if two_sided:
        columns.setdefault("target_len", columns["seq_len"])
    order = [*_RUN[2:], *_RUN[:2], *FAMILIES[configuration.family].sizes]
    return {name: columns[name] for name in order if name in columns}, fixed


_Wrong = tuple["NDArray[np.bool_]", Callable[[int], str]]


def _constraints(
    configuration: Configuration, derived: Mapping[str, int], sizes: Mapping[str, Any]
) -> Iterator[_Wrong]:
    """What a combination must satisfy: where it does not, and the sentence about configuration i."""

    def at(name: str, i: int) -> int:
        value = sizes[name]
        return int(value[i]) if isinstance(value, np.ndarray) else int(value)

    if "head_dim" in derived:
        wrong = np.asarray(sizes["hidden_size"] % sizes["num_attention_heads"] != 0)
        yield (
            wrong,
            lambda i: (
                f"hidden_size {at('hidden_size', i)} is not a multiple of num_attention_heads "
                f"{at('num_attention_heads', i)}; change one, or give head_dim"
            ),
        )
    if configuration.positions == "learned":
        for name in ("seq_len", "target_len"):
            if name in sizes:
                yield (
                    np.asarray(sizes[name] > sizes["max_position_embeddings"]),
                    lambda i, name=name: (
                        f"{name} {at(name, i)} is longer than the "  # type: ignore[misc]
                        f"{at('max_position_embeddings', i)} positions that {configuration.name} learns"
                    ),
                )


def _checked(found: Grid, wrong: list[_Wrong], skip_invalid: bool) -> Grid:
    """Without the combinations that are wrong, or not at all."""
    count = found.configurations
    if not any(mask.any() for mask, _ in wrong):
        return found
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
    columns = {name: column[~bad] for name, column in found.columns.items()}
    return Grid(found.configuration, columns, found.fixed, count - total, total)

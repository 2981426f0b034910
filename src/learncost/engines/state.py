"""Map a module's state_dict to the arrays of its imported table, and back."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, Statement, repeats
from learncost.ir.polynomial import shape_of, size_of
from learncost.ir.stated import StateDictEntry
from learncost.ir.table import Table
from learncost.layers.layer import Layer, in_evaluation
from learncost.models.configuration import Configuration
from learncost.models.tables import family_of_layer
from learncost.procedures.statistics import statistics_of, with_statistics

Arrays = dict[str, Any]


@dataclass(frozen=True)
class StateArray:
    """An array of a table: its shape, whether it is stacked over iterations, and the path of its state_dict entry."""

    shape: tuple[int, ...]
    iterations: int | None
    entry: StateDictEntry

    @property
    def shape_there(self) -> tuple[int, ...]:
        """The shape of an entry of the state_dict."""
        own = self.shape if self.iterations is None else self.shape[1:]
        return own if self.entry.shape is None else self.entry.shape


def stored(layer: Layer, sizes: Mapping[str, int]) -> dict[str, StateArray]:
    """Return the weights, the running statistics and the buffers of a layer, by their names in it."""
    table = with_statistics(layer.table, layer.table)
    counts = {outer: repeat.count for repeat in repeats(table.lines) for _, outer in repeat.each}
    names = (*layer.table.weights, *statistics_of(layer.table), *(n for n in layer.stored if n in layer.table.inputs))
    result = {}
    for name in names:
        iterations = int(size_of(counts[name], sizes)) if name in counts else None
        entry = layer.stored.get(name, StateDictEntry(()))
        entry = entry if entry.paths else replace(entry, paths=StateDictEntry.usual(name, iterations).paths)
        result[name] = StateArray(shape_of(table.axes[name], sizes), iterations, entry)
    return result


def from_state(arrays: Mapping[str, StateArray], state: Mapping[str, Any], where: str) -> Arrays:
    """Return the arrays of a table that a state_dict has entries for.

    where  the name of the state_dict in an `InputError` about an entry with another number of elements
    """
    result: Arrays = {}
    for name, array in arrays.items():
        parts = []
        for paths in array.entry.paths:
            path = next((each for each in paths if each in state), None)
            if path is None:
                break
            part = np.asarray(state[path])
            part = np.stack([part.real, part.imag], -1) if np.iscomplexobj(part) else part
            own = array.shape if array.iterations is None else array.shape[1:]
            if part.size != prod(own):
                raise InputError(f"{where}: {path} is {part.shape}, but must be {array.shape_there}")
            parts.append(part.reshape(own))
        if len(parts) == len(array.entry.paths):
            result[name] = parts[0] if array.iterations is None else np.stack(parts)
    return result


def to_state(arrays: Mapping[str, StateArray], values: Mapping[str, Any], like: Mapping[str, Any] = {}) -> Arrays:
    """Return the entries of a state_dict from the arrays of a table.

    like  the entries of the target module, which give the types; entries without an array are copied
    """
    result: Arrays = dict(like)
    for name, array in arrays.items():
        if name not in values:
            continue
        iterations = [values[name]] if array.iterations is None else values[name]
        for paths, part in zip(array.entry.paths, iterations, strict=True):
            for path in paths if not like else like.keys() & paths:
                kind = np.asarray(like[path]).dtype if path in like else np.asarray(part).dtype
                kind = np.dtype(np.int64) if path not in like and path.endswith("num_batches_tracked") else kind
                result[path] = np.asarray(part).reshape(array.shape_there).astype(kind)
    return result


def matched(evaluation: Layer, training: Layer, sizes: Mapping[str, int], own: Mapping[str, int]) -> Layer:
    """Return a layer in evaluation mode whose arrays have the names of the layer in training mode.

    sizes, own  the sizes in training mode and in evaluation mode
    Raises `InputError` if only one of them has certain blocks in a loop.
    """
    known, mine = stored(training, sizes), stored(evaluation, own)
    by_paths = {array.entry.paths: name for name, array in known.items()}
    taken = {path for paths in by_paths for several in paths for path in several}
    names = {}
    for name, array in mine.items():
        if array.entry.paths in by_paths:
            names[name] = by_paths[array.entry.paths]
        elif any(path in taken for several in array.entry.paths for path in several):
            raise InputError(
                f"{training.name} merges other blocks in training than in evaluation: import it with --no-fold (in "
                "Python fold=False), or give --entry step"
            )
    entries = {names.get(name, name): entry for name, entry in evaluation.stored.items()}
    return replace(evaluation, table=renamed(evaluation.table, names), stored=entries)


def renamed(table: Table, names: Mapping[str, str]) -> Table:
    """Return a table with renamed inputs and weights."""
    names = {old: new for old, new in names.items() if old != new}
    if not names:
        return table

    def new(name: str) -> str:
        return names.get(name, name)

    def with_names(line: Statement) -> Statement:
        if isinstance(line, Loop):  # the slice of a weight has the name of its stack
            line = line.with_own({inside: names[outer] for inside, outer in line.each if inside == outer in names})
        return line.renamed(names)

    return replace(
        table,
        lines=tuple(map(with_names, table.lines)),
        values={new(name): value for name, value in table.values.items()},
        inputs=tuple(map(new, table.inputs)),
        weights=tuple(map(new, table.weights)),
    )


def evaluated(configuration: Configuration) -> Configuration:
    """Return the model's layer in evaluation mode, with the array names of training mode.

    Raises `InputError` where its module cannot be imported in evaluation mode.
    """
    training = configuration.layer
    assert training is not None
    evaluation = in_evaluation(training)
    if evaluation is training:
        return configuration
    given = {name: size for name, size in configuration.sizes.items() if name not in training.sizes}
    own = {**evaluation.sizes, **given}
    sizes = {**training.sizes, **configuration.sizes}
    layer = matched(evaluation, training, sizes, own)
    fixed = {name: size for name, size in family_of_layer(layer).sizes.items() if isinstance(size, int)}
    named = {name: size for name, size in given.items() if name in family_of_layer(layer).sizes}
    return replace(configuration, layer=layer, sizes={**fixed, **named})

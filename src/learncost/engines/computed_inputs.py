"""Compute the inputs of a model's table that positions and settings determine, by the lines of its family."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from learncost.interpreter import execute
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.parsed import Header, LayerCall, Parsed
from learncost.ir.table import Table
from learncost.ir.value import IdentityKey, Value
from learncost.layers.layer import defined
from learncost.models.compose import making
from learncost.models.configuration import Configuration, family_of
from learncost.models.expression import evaluate
from learncost.models.model import Model, axes_of, build
from learncost.passes.lower import lower

Number: TypeAlias = float | tuple[float, ...]


def names_computed(model: Model) -> frozenset[str]:
    """Return the inputs of a model's table that its family's lines compute."""
    return family_of(model.configuration).makes & frozenset(model.table.inputs)


def computed_inputs(configuration: Configuration, sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """Return the inputs that positions and settings determine, as float64, int64 (for positions) or booleans.

    sizes    the lengths of the run (M, N), and sizes of axes that differ from the configuration
    Raises `InputError`.
    """
    if configuration.layer is not None:
        return {}
    table, indices = input_table(IdentityKey(configuration))
    numbers_of = _ComputedValues(configuration, sizes)
    numbers = tuple((name, numbers_of.number(name)) for name in table.inputs)
    vectors = {table.axes[name][0]: len(number) for name, number in numbers if isinstance(number, tuple)}
    lengths = tuple((axis, vectors.get(axis) or numbers_of[axis]) for axis in axes_of(table))
    return _run(IdentityKey(table), numbers, lengths, indices)


def written(configuration: Configuration, sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the values of the inputs that the family's lines compute; empty if it has no such lines."""
    if configuration.layer is not None:
        return ()
    try:
        header, lines = making(configuration, build(replace(configuration, learned=None)).table.inputs)
    except InputError as refusal:
        return (f"{refusal}.",)
    numbers_of = _ComputedValues(configuration, sizes)
    read = ((name, numbers_of.number(name)) for name in header.inputs)
    values_text = ", ".join(
        f"{name} = {len(v)} numbers" if isinstance(v, tuple) else f"{name} = {v:g}" for name, v in read
    )
    return (
        *(line.text if isinstance(line, LayerCall) else str(line) for line in lines),
        *([f"{values_text}."] if values_text else []),
    )


@lru_cache(maxsize=32)
def input_table(configuration: IdentityKey[Configuration]) -> tuple[Table, frozenset[str]]:
    """Return the lines that compute inputs of the model's table from sizes, settings and numbers of its family, and
    the names of those outputs that are positions.

    Raises `InputError` for positions that the family does not have.
    """
    table = build(replace(configuration.content, learned=None)).table
    return _lines(*making(configuration.content, table.inputs)), table.indices


@lru_cache(maxsize=64)
def _lines(header: Header, lines: tuple[Parsed, ...]) -> Table:
    return lower(defined(header, lines, {}, dict.fromkeys(header.inputs, Value((), "constant"))).table)


class _ComputedValues(dict[str, Any]):
    """The values of names in a configuration's expressions, including the sizes of axes."""

    def __init__(self, configuration: Configuration, sizes: Mapping[str, int]) -> None:
        super().__init__({**configuration.values, **sizes})
        self.family = family_of(configuration)

    def __missing__(self, axis: str) -> Any:
        rule = self.family.axes.get(axis) or self.family.fixed  # M or N of a model with one length
        return evaluate(rule, self)

    def number(self, name: str) -> Number:
        """Return the value of a name: a number of the family, else a size or a setting."""
        value = evaluate(self.family.numbers[name], self) if name in self.family.numbers else self[name]
        return tuple(map(float, value)) if isinstance(value, list) else float(value)


@lru_cache(maxsize=16)
def _run(
    table: IdentityKey[Table],
    numbers: tuple[tuple[str, Number], ...],
    lengths: tuple[tuple[str, int], ...],
    indices: frozenset[str],
) -> Mapping[str, Any]:
    values = {name: np.array(number) for name, number in numbers}
    execute(table.content, values, dict(lengths))
    arrays = {}
    for name in table.content.outputs:
        input_name = table.content.header(name)
        kind = np.int64 if input_name in indices else bool if values[name].dtype == bool else np.float64
        array = arrays[input_name] = values[name].astype(kind)
        array.flags.writeable = False  # the cached array is shared
    return MappingProxyType(arrays)

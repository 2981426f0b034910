"""Small sizes, pairwise different, and random arrays for any table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from learncost.ir.affine import Affine
from learncost.ir.line import Op
from learncost.ir.loop import repeats, walk, windows
from learncost.ir.polynomial import base, shape_of, size_of
from learncost.ir.stated import places_read
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.layers.spelling import condition_names, read_place_by_place
from learncost.ops import entry
from learncost.passes.normal_forms import joined

Array = Any


FEW = 16
"""Return different sizes for the axes of a table; of more, those that no line has together may share one."""

SETTINGS = 6, 12
"""Between which numbers a setting is drawn: a width, a base, a factor, a count."""


def small_sizes(
    table: Table,
    smallest: int = 2,
    multiples: Mapping[str, int] = MappingProxyType({}),
    least: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, int]:
    """Return a size for every axis and count, no two equal, so that exchanged axes are detected.

    If there are more than `FEW`, no two of one line are equal. Sharded sizes are `multiples` of the number of shards,
    each shard as large as the smallest size. None is below its `least`. Where no such sizes are found, those of the
    table are taken.
    """
    multiples = {**grouped(table), **multiples}
    least = {name: max(smallest * multiples.get(name, 1), least.get(name, 0)) for name in _names(table)}
    for repeat in table.repeats:
        if repeat.carry and repeat.count in least:
            least[repeat.count] = max(least[repeat.count], 3)  # the third reads what the second made of the first's
    for line, _ in walk(table.lines):
        for read in line.indexed_axes:
            if isinstance(read.at, Affine) and read.at.fixed and base(read.axis) in least:
                axis = base(read.axis)
                least[axis] = max(least[axis], sum(part.factor for part in read.at.parts if not part.sizes) + 1)
    for line, _ in walk(table.lines):
        for condition in line.where:  # both what is inside of a number's condition and what is outside
            numbers = [int(side) for side in (condition.lower, condition.upper) if side.isdigit()]
            for axis in condition.axes if numbers else ():
                least[base(axis)] = max(least[base(axis)], *(number + 2 for number in numbers))
    for axis in _measured(table) & least.keys():  # places on both sides of the setting, such as a chunk's length
        least[axis] = max(least[axis], SETTINGS[1] + 2)
    others = _others(table, least)
    fixed = read_place_by_place(table.lines, table.sizes)
    sizes: dict[str, int] = {axis: table.sizes[axis] for axis in least if axis in fixed}

    def clashes(axis: str) -> bool:
        return any(sizes.get(other) == sizes[axis] for other in others[axis])

    for axis, low in least.items():
        if axis in fixed:
            continue
        sizes[axis] = low + -low % multiples.get(axis, 1)
        while clashes(axis):
            sizes[axis] += multiples.get(axis, 1)
    for axis, least_size in _covered(table, sizes):
        while sizes[axis] < least_size or clashes(axis):
            sizes[axis] += multiples.get(axis, 1)
    splits: dict[str, list[list[str]]] = {}
    for joined_axis, parts in joined(table):
        splits.setdefault(joined_axis, []).append(parts)
    for joined_axis, several in splits.items():
        if joined_axis in fixed:  # and so are its parts
            sizes |= {part: table.sizes[part] for parts in several for part in parts if part in table.sizes}
            continue
        sizes[joined_axis] = _summed(several, sizes)
        last = several[0][-1]
        if clashes(joined_axis) and last in sizes:
            sizes[last] = max(sizes.values()) + 1
            sizes[joined_axis] = _summed(several, sizes)
    rows = [(axis, parts) for axis, several in splits.items() for parts in several]
    if least.keys() <= table.sizes.keys() and any(
        sizes[axis] != sum(size_of(part, sizes) for part in parts) for axis, parts in rows
    ):  # axes that are joined again with others, as a packed batch is in both directions: those of the run
        return {axis: table.sizes[axis] for axis in least}
    return sizes


def _summed(several: Sequence[Sequence[str]], sizes: dict[str, int]) -> int:
    """Return the size of a concatenation; where parts sum to less than others along the axis, one part is enlarged."""
    totals: list[int] = [sum(size_of(part, sizes) for part in parts) for parts in several]
    times = Counter(part for parts in several for part in parts)
    for parts, total in zip(several, totals, strict=True):
        for part in [part for part in parts if times[part] == 1 and part in sizes][-1:]:
            sizes[part] += max(totals) - total
    return max(totals)


def _others(table: Table, names: Iterable[str]) -> Mapping[str, set[str]]:
    """Return, for each size, those that it must not equal."""
    names = tuple(names)
    if len(names) <= FEW:
        return {name: {*names} - {name} for name in names}
    others: dict[str, set[str]] = {name: set() for name in names}
    every = [(*line.loops, *(read.axis for read in line.indexed_axes)) for line, _ in walk(table.lines)]
    for together in (*every, *table.axes.values()):
        bases = {base(axis) for axis in together} & others.keys()
        for name in bases:
            others[name] |= bases - {name}
    counts = {loop.count for loop in repeats(table.lines)} & others.keys()
    for count in counts:
        others[count] |= others.keys() - {count}
    return others


def _measured(table: Table) -> set[str]:
    """Return the axes that only scalar settings determine, where there are such settings."""
    if not any(name in table.constants and not table.axes[name] for name in table.inputs):
        return set()
    given = {base(axis) for name in (*table.inputs, *table.weights) for axis in table.axes[name]}
    chosen = {base(axis) for line, _ in walk(table.lines) if isinstance(line, Op) for axis in line.chosen}
    return {*_names(table)} - given - chosen


def _covered(table: Table, sizes: Mapping[str, int]) -> Iterator[tuple[str, int]]:
    """Yield the sizes that axes read at indices need: those that an operator reads, as no maximum is taken where
    nothing is, and those indexed by a choice along another axis, such as the experts of a router.
    """
    chosen = {line.name: line.axes for line, _ in walk(table.lines) if isinstance(line, Op) and entry(line.op).chooses}
    for line, _ in walk(table.lines):
        for read in line.indexed_axes:
            if isinstance(read.at, Term) and read.at.name in chosen:
                yield base(read.axis), max(size_of(axis, sizes) for axis in chosen[read.at.name])
        if not isinstance(line, Op) or not line.axes:
            continue
        for read in line.indexed_axes:
            if isinstance(read.at, Affine) and not read.at.sizes:
                last = {axis: size_of(axis, sizes) - 1 for axis in read.at.loops}
                yield base(read.axis), int(read.at.number(sizes, last)) + 1


def _names(table: Table) -> list[str]:
    """Return every size of the table: windows, then trip counts, then axes in order of appearance.

    Windows have the smallest sizes, so that every window excludes something. Of the two axes of a window the upper
    one is smaller, so that every position on it has something inside.
    """
    counts = [*windows(table.lines), *(loop.count for loop in repeats(table.lines))]
    counts += [axis for line, _ in walk(table.lines) for c in line.where if c.window for axis in (c.upper, c.lower)]
    counts += [axis for line, _ in walk(table.lines) if isinstance(line, Op) for axis in line.chosen]
    axes = [axis for array in (*table.inputs, *table.weights) for axis in table.axes[array]]
    axes += [axis for line, _ in walk(table.lines) for axis in line.loops]
    axes += [read.axis for line, _ in walk(table.lines) for read in line.indexed_axes]
    names = (base(axis).partition("/")[0] for axis in (*counts, *axes))
    return [axis for axis in dict.fromkeys(names) if not axis.isdigit()]


def grouped(table: Table) -> dict[str, int]:
    """Return the counts of loops over groups of iterations, and the sizes of the groups."""
    parts = (base(count).partition("/") for _, nest in walk(table.lines) for count in nest.counts)
    return {name: int(several) for name, _, several in parts if several.isdigit() and not name.isdigit()}


def random_arrays(table: Table, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Array]:
    """Return inputs and weights: normal numbers, indices within their axis, masks that hold for the first of a row.

    Scalars without a gradient are settings and above 1, as widths, bases, factors and counts are.
    """
    generator = np.random.default_rng(seed)
    positions = places_read(table)
    conditions = condition_names(table.lines)
    arrays: dict[str, Array] = {}
    for name in (*table.inputs, *table.weights):
        form = shape_of(table.axes[name], sizes)
        if name in table.indices:
            arrays[name] = generator.integers(0, min(size_of(axis, sizes) for axis in positions[name]), form)
        elif name in conditions:
            arrays[name] = np.asarray(generator.random(form) < 0.6)
            arrays[name][(..., slice(1)) if form else ()] = True
        elif not form and name in table.constants:
            arrays[name] = np.asarray(generator.uniform(*SETTINGS))
        else:
            arrays[name] = generator.standard_normal(form)
    return arrays

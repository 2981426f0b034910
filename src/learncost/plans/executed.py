"""The memory of a step as NumPy executes it: the peak of the very program that `emit` writes of its table, exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from learncost.equation.count import shape_of
from learncost.equation.table import Table
from learncost.readings.emit import Program, fill, leaves, program
from learncost.readings.rooms import Account, Array, loaded

TYPES: Mapping[str, str] = {"fp32": "float32", "fp64": "float64"}
"""The data types in which NumPy computes what tables say."""


@dataclass(frozen=True)
class Taken:
    """A room at the worst moment: its bytes, and the program's line that took it (empty for what it was given)."""

    bytes: int
    line: str


@dataclass(frozen=True)
class Executed:
    """The most bytes that a program takes, what it was given included; the line that ran then, and who held them."""

    peak: int
    line: str
    rooms: tuple[Taken, ...] = ()


def executed(
    table: Table, sizes: Mapping[str, int], dtype: str = "fp32", rooms: bool = False, library: str = "numpy"
) -> Executed:
    """What one step of a table takes at its peak when NumPy runs its emitted program.

    sizes   of all axes, and the counts of repeats
    rooms   also find what is held at the peak, the largest first, which takes a second run
    Indices are of 8 bytes, all other arrays of the data type.
    """
    written = program(table, "numpy", sizes=sizes)
    first = _run(written, table, sizes, dtype, Account())
    text = written.text.splitlines()

    def said(at: int | str) -> str:
        return text[int(at) - 1].strip() if at else ""

    if not rooms:
        return Executed(first.peak, said(first.line))
    second = _run(written, table, sizes, dtype, Account(stop_at=first.peak))
    held = [Taken(size, said(at)) for size, at in second.rooms]
    return Executed(first.peak, said(first.line), tuple(sorted(held, key=lambda one: -one.bytes)))


def _run(written: Program, table: Table, sizes: Mapping[str, int], dtype: str, account: Account) -> Account:
    names = loaded(written.text, account)
    given = dict.fromkeys(name for tree in written.parameters for name in leaves(tree))
    values = {name: _given(account, table, name, sizes, dtype) for name in given}
    arguments = [fill(tree, values, names) for tree in written.parameters]
    result = names[written.function](*arguments)
    del result
    return account


def _given(account: Account, table: Table, name: str, sizes: Mapping[str, int], dtype: str) -> Any:
    shape = shape_of(table.axes[name], sizes)
    return Array.new(account, shape, "int64" if name in table.indices else TYPES[dtype])

"""Numbers that a step reads beside a batch, such as a learning rate, under names that no value of the table has."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.ir.value import Value


def names_of_numbers(table: Table, numbers: Iterable[str], owner: str) -> dict[str, str]:
    """What each number is called in a table: by its own name, or behind its owner's where a value has that already."""
    names = {number: f"{owner}.{number}" if number in table.known else number for number in numbers}
    if clashes := [name for name in names.values() if name in table.known]:
        raise InputError(f"{clashes[0]} is a value of the table and a number of {owner}: call the value otherwise")
    return names


def values_of_numbers(names: dict[str, str]) -> dict[str, Value]:
    """The numbers as inputs of a table, by their names there."""
    return {name: Value((), "number", number) for number, name in names.items()}

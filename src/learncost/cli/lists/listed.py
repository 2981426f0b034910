"""A list of entries as data and as table cells."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from learncost.ir.dataclass import attributes, dataclass, field, plain
from learncost.reports.sheet import WIDTH, Sheet, TableColumn, TabularAnswer, table

Known = dict[str, Any]
"""The fields of an entry by short names, as in the JSON: numbers are numbers."""

Cell = Callable[[Known], str] | str
"""The text of an entry: a function, or a template with the names of its fields."""


def entries_of(things: Iterable[object], names: str, **renamed: str) -> list[Known]:
    """Return dictionaries of objects' attributes, with the keys of `renamed` for some of them."""
    form = attributes(names, **renamed)
    return [plain(form(thing)) for thing in things]


_NUMBERS = frozenset(
    ("published", "predicted", "ratio", "parameters", "entries", "GB", "W", "kg CO2e/kWh", "FLOPs", "peak memory")
) | {"of bp", "of bp "}
"""The right-aligned columns of numbers."""


@dataclass(frozen=True, repr=False)
class Listed(TabularAnswer):
    """The entries of a list, and their cells by column heading."""

    entries: list[Known]
    _columns: Mapping[str, Cell] = field(default_factory=dict)
    _heading: str = ""
    _notes: tuple[str, ...] = ()
    _noted: Callable[[Known], Iterable[str]] = field(default=lambda entry: ())  # notes below the table, once each

    def __iter__(self) -> Iterator[Known]:
        return iter(self.entries)

    def __getitem__(self, place: int | slice) -> Any:
        return self.entries[place]

    def __len__(self) -> int:
        return len(self.entries)

    def to_dict(self) -> Any:
        """Return the entries as JSON data."""
        return self.entries

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        columns = (
            TableColumn(name, cell.format_map if isinstance(cell, str) else cell, words=name not in _NUMBERS)
            for name, cell in self._columns.items()
        )
        notes = dict.fromkeys(note for entry in self.entries for note in self._noted(entry))
        return (table(self._heading, columns, self.entries, (*self._notes, *notes)),)

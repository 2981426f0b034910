"""Placements by name, as presets.toml has them, and what is written with clauses or names as clauses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from learncost.equation.errors import InputError, named_one
from learncost.placement.clauses import Clause, clauses


@dataclass(frozen=True)
class Placement:
    """A row of presets.toml."""

    name: str
    title: str
    place: str
    source: str
    also: tuple[str, ...] = ()

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that its clauses cut over."""
        return tuple(dict.fromkeys(clause.mesh for clause in clauses(self.place)))


_TABLE = tomllib.loads((files("learncost.placement") / "presets.toml").read_text(encoding="utf-8"))

PLACEMENTS: Mapping[str, Placement] = {
    name: Placement(name, row["title"], row["place"], row["source"], tuple(row.get("also", ())))
    for name, row in _TABLE.items()
}
"""Placements by their names."""


def placement(name: str) -> Placement:
    """A placement by its name; an unknown one is refused with those that exist."""
    by_name = {**PLACEMENTS, **{other: row for row in PLACEMENTS.values() for other in row.also}}
    return named_one("placement", name, by_name)


def chosen(place: str | None, named: str | None) -> tuple[Clause, ...]:
    """The clauses of `--place` and `--placement`: those that are written first, then those of the names."""
    result = [*clauses(place or "")]
    for name in filter(None, (name.strip() for name in (named or "").split(","))):
        result += clauses(placement(name).place)
    if not result:
        raise InputError(
            "say what is cut over the mesh: --placement, as in --placement fsdp,megatron-sp, or --place with clauses "
            "such as `h f v over tp`"
        )
    return tuple(dict.fromkeys(result))

"""Read named placements from presets.toml, and parse placements that are given by names or clauses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, named_one

if TYPE_CHECKING:
    from learncost.sharding.clauses import Clause
    from learncost.sharding.mesh import Mesh


@dataclass(frozen=True)
class Placement:
    """A named placement, described by a row of presets.toml."""

    name: str
    title: str
    place: str
    source: str
    also: tuple[str, ...] = ()
    outer: bool = False

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """Return the mesh axes that its clauses shard over."""
        from learncost.sharding.clauses import clauses  # names only: start-up time matters

        return tuple(dict.fromkeys(clause.mesh for clause in clauses(self.place)))


_TABLE = tomllib.loads(Path(__file__).with_name("presets.toml").read_text(encoding="utf-8"))

PLACEMENTS: Mapping[str, Placement] = {
    name: Placement(
        name, row["title"], row["place"], row["source"], tuple(row.get("also", ())), row.get("outer", False)
    )
    for name, row in _TABLE.items()
}
"""Placements by name."""

NAMED = {name: row for row in PLACEMENTS.values() for name in (row.name, *row.also)}
"""Placements by all of their names."""


def placement(name: str) -> Placement:
    """Return a placement by its name. Raises `InputError` for an unknown name, with the known ones."""
    return named_one("placement", name, NAMED)


def chosen(place: str | None, named: str | None, axes: Sequence[str] = ()) -> tuple[Clause, ...]:
    """Return the clauses of `--place` and `--placement`: first the written clauses, then those of the named placements.

    The clauses of an outer placement precede those of the others, whose gathers then produce its shards. Without both
    they are the default ones of the axes of the mesh.
    """
    from learncost.sharding.clauses import clauses

    if not place and not named:
        place = usual(axes)
    result = [*clauses(place or "")]
    names = filter(None, (name.strip() for name in (named or "").split(",")))
    for each in sorted(map(placement, names), key=lambda row: not row.outer):
        result += clauses(each.place)
    return tuple(dict.fromkeys(result))


def chosen_for(
    mesh: Mesh, sizes: Mapping[str, int], place: str | None = None, named: str | None = None
) -> tuple[Clause, ...]:
    """Return the clauses of `--place` and `--placement` for a mesh; by default those of the names of its axes.

    A vocabulary that is not divisible remains unsharded unless a written clause shards it; all devices then compute the
    same head. Raises `InputError` for a mesh axis without a placement, and for an unknown axis.
    """
    from learncost.sharding.clauses import clauses

    written = clauses(place or "")
    result = []
    for clause in chosen(place, named, mesh.names):
        clause.check(mesh)
        divides = sizes.get("v", 0) % mesh.sizes.get(clause.mesh, 1) == 0
        if clause not in written and not divides and len(clause.axes) > 1:
            clause = replace(clause, axes=tuple(name for name in clause.axes if name != "v"))
        result.append(clause)
    return tuple(dict.fromkeys(result))


DEFAULT_RULES: Mapping[str, str] = {  # cp before tp: what is gathered over tp is then a part of a sequence still
    "pp": "blocks over pp",
    "cp": "M over cp, * over cp of states",
    "tp": "h g f v over tp, M over tp of values",
    "ep": "e over ep of experts, B over ep, * over ep of states",
    "dp": "B over dp, * over dp of states",
}
"""The default sharding rules of a mesh axis, by its name: ZeRO-1, and Megatron with sequence parallelism."""


def usual(axes: Sequence[str]) -> str:
    """Return the default sharding rules of a mesh by the names of its axes. Raises `InputError` for other names."""
    if others := [axis for axis in axes if axis not in DEFAULT_RULES]:
        raise InputError(
            f"mesh axis {others[0]} needs sharding rules: give --placement, as in --placement hsdp, or --place with "
            f"clauses such as `h f over {others[0]}` ({', '.join(DEFAULT_RULES)} have defaults)"
        )
    return ", ".join(text for axis, text in DEFAULT_RULES.items() if axis in axes)

"""Read named placements from presets.toml, and parse placements that are given by names or clauses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

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


def chosen(place: str | None, named: str | None) -> tuple[Clause, ...]:
    """Return the clauses of `--place` and `--placement`: first the written clauses, then those of the named placements.

    The clauses of an outer placement precede those of the others, whose gathers then produce its shards.
    """
    from learncost.sharding.clauses import clauses

    result = [*clauses(place or "")]
    names = filter(None, (name.strip() for name in (named or "").split(",")))
    for each in sorted(map(placement, names), key=lambda row: not row.outer):
        result += clauses(each.place)
    if not result:
        raise InputError(
            "--mesh requires a sharding: --placement, as in --placement fsdp,megatron-sp, or --place with clauses "
            "such as `h f v over tp`"
        )
    return tuple(dict.fromkeys(result))


def chosen_for(
    mesh: Mesh, sizes: Mapping[str, int], place: str | None = None, named: str | None = None
) -> tuple[Clause, ...]:
    """Return the clauses of `--place` and `--placement` for a mesh; by default those of the names of its axes.

    A vocabulary that is not divisible remains unsharded unless a written clause shards it; all devices then compute the
    same head. Raises `InputError` for a mesh axis without a placement, and for an unknown axis.
    """
    from learncost.sharding.clauses import clauses

    if not place and not named:
        for axis in mesh.names:
            if axis not in USUAL:
                raise InputError(
                    f"{axis} requires a sharding: --placement, or --place with clauses such as `h f over {axis}`; "
                    f"only {', '.join(USUAL)} have a default"
                )
        named = ",".join(USUAL[axis] for axis in mesh.names)
    written = clauses(place or "")
    result = []
    for clause in chosen(place, named):
        clause.check(mesh)
        divides = sizes.get("v", 0) % mesh.sizes.get(clause.mesh, 1) == 0
        if clause not in written and not divides and len(clause.axes) > 1:
            clause = replace(clause, axes=tuple(name for name in clause.axes if name != "v"))
        result.append(clause)
    return tuple(dict.fromkeys(result))


USUAL: Mapping[str, str] = {"dp": "ddp", "shard": "hsdp", "tp": "megatron", "cp": "cp", "ep": "ep", "pp": "pp"}
"""The default placement of a mesh axis, by its name."""

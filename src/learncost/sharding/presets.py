"""Placements by name, as presets.toml has them, and what is written with clauses or names as clauses."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import TYPE_CHECKING

from learncost.ir.errors import InputError, named_one

if TYPE_CHECKING:
    from learncost.sharding.clauses import Clause
    from learncost.sharding.mesh import Mesh


@dataclass(frozen=True)
class Placement:
    """A row of presets.toml."""

    name: str
    title: str
    place: str
    source: str
    also: tuple[str, ...] = ()
    outer: bool = False

    @property
    def mesh_axes(self) -> tuple[str, ...]:
        """The axes of the mesh that its clauses cut over."""
        from learncost.sharding.clauses import clauses  # names alone are asked for by every command: start-up counts

        return tuple(dict.fromkeys(clause.mesh for clause in clauses(self.place)))


_TABLE = tomllib.loads((files("learncost.sharding") / "presets.toml").read_text(encoding="utf-8"))

PLACEMENTS: Mapping[str, Placement] = {
    name: Placement(
        name, row["title"], row["place"], row["source"], tuple(row.get("also", ())), row.get("outer", False)
    )
    for name, row in _TABLE.items()
}
"""Placements by their names."""


def placement(name: str) -> Placement:
    """A placement by its name; an unknown one is refused with those that exist."""
    by_name = {**PLACEMENTS, **{other: row for row in PLACEMENTS.values() for other in row.also}}
    return named_one("placement", name, by_name)


def chosen(place: str | None, named: str | None) -> tuple[Clause, ...]:
    """The clauses of `--place` and `--placement`: those that are written first, then those of the names.

    An outer placement comes before the others: what they gather is then a part of what it cuts still.
    """
    from learncost.sharding.clauses import clauses

    result = [*clauses(place or "")]
    names = filter(None, (name.strip() for name in (named or "").split(",")))
    for each in sorted(map(placement, names), key=lambda row: not row.outer):
        result += clauses(each.place)
    if not result:
        raise InputError(
            "say what is cut over the mesh: --placement, as in --placement fsdp,megatron-sp, or --place with clauses "
            "such as `h f v over tp`"
        )
    return tuple(dict.fromkeys(result))


def chosen_for(
    mesh: Mesh, sizes: Mapping[str, int], place: str | None = None, named: str | None = None
) -> tuple[Clause, ...]:
    """The clauses of `--place` and `--placement` for a mesh; where neither is given, those of the names of its axes.

    A vocabulary that does not divide stays whole, as its tokenizer has it, where it is not written that it is cut: all
    devices compute the head alike. Raises `InputError` for an axis that no placement is about, or that there is not.
    """
    from learncost.sharding.clauses import clauses

    if not place and not named:
        for axis in mesh.names:
            if axis not in USUAL:
                raise InputError(
                    f"say what is cut over {axis}: --placement, or --place with clauses such as `h f over {axis}`; "
                    f"only {', '.join(USUAL)} say it themselves"
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
"""The placement of an axis of the mesh by its name."""

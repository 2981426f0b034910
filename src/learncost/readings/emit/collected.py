"""A collective as a call of its helper: which axis of the array moves is read off the two terms."""

from __future__ import annotations

from learncost.equation.count import place_cut
from learncost.equation.errors import InputError
from learncost.equation.table import Term, Word
from learncost.readings.emit.between import MESH
from learncost.readings.emit.expression import Code
from learncost.readings.emit.scope import Scope


def collected(scope: Scope, line: Word) -> Code:
    """The call of a collective. Raises `InputError` for a library or a word that has none."""
    if line.word not in scope.backend.helpers:
        raise InputError(f"{line.word} is between devices, which programs of {scope.backend.name} do not have yet")
    (mesh_axis,), (before,), after = line.axes, line.right, line.left[0]
    assert isinstance(before, Term)
    scope.helpers.library(line.word)
    scope.meets = True
    places = [place for term in (before, after) if (place := place_cut(term.declared, mesh_axis)) is not None]
    arguments = [scope.settled(before.name).text, MESH, f'"{mesh_axis}"']
    if not line.word.startswith("all_reduce"):
        arguments += map(str, places)
    return Code(f"{line.word}({', '.join(arguments)})")

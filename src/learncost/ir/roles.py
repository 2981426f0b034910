"""Declarations of inputs, one per line: `targets: index of v`, `share: share of targets`, `last: end of M`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from learncost.ir.errors import NotationError
from learncost.ir.loop import Loop, Statement
from learncost.ir.parse import split_names
from learncost.ir.parsed import Header
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Read, Term, terms_of
from learncost.ir.value import GIVEN, INDICES, Value

_ROLE = re.compile(r"^\s*([^\W\d][\w.]*)\s*:\s*(\w+)\s+of\s+([^\W\d][\w.]*'*)\s*$")
_CONSTANTS = "constants:"


def role(line: str) -> dict[str, Value]:
    """Parse the inputs that a line declares, with their roles; return {} for any other line.

    `tokens: index of v` holds indices on the axis v, and so does `types: kind of s`, which defaults to 0; `share: share
    of targets` holds -1/count where there is a target and 0 elsewhere, `sign: sign of targets` 1 for yes and -1 for no,
    `last: end of M` the last position of a sequence, `c: buffer of e` numbers that are stored with the weights and
    default to 0; `constants: S` have no gradient.
    """
    if line.strip().startswith(_CONSTANTS):
        return {name: Value((), "constant") for name in split_names(line.partition(":")[2])}
    match = _ROLE.match(line)
    if not match:
        return {}
    name, kind_text, of = match.groups()
    for kind in GIVEN:
        if kind == kind_text:
            return {name: Value((), kind, of)}
    raise NotationError(f"the role of an input must be one of {', '.join(sorted(GIVEN))}, not {kind_text}", line)


def spelled(roles: Mapping[str, Value], header: Header) -> dict[str, Value]:
    """Return the roles with `constants: share` next to targets as `share: share of targets`, the form it replaces."""
    spelled_roles = dict(roles)
    if "share" in spelled_roles and spelled_roles["share"].role == "constant" and "targets" in header.inputs:
        spelled_roles["share"] = Value((), "share", "targets")
    return spelled_roles


def check(table: Table, header: Header, roles: Mapping[str, Value]) -> None:
    """Raise `NotationError` for a declaration of an input that the lines contradict."""
    places = places_read(table)
    signed = {value.of for value in roles.values() if value.role == "sign"}
    for name, value in roles.items():
        statement = f"{name}: {value.role} of {value.of}"
        if name not in header.inputs:
            raise NotationError(f"{name} is not an input of {header.name}", statement if value.of else name)
        if value.role in INDICES:
            if name not in places:
                raise NotationError(f"{name} is read as a value, not as an index of {value.of}", statement)
            if base(value.of) not in map(base, places[name]):
                read = " and ".join(dict.fromkeys(places[name]))
                raise NotationError(f"{name} is read as an index of {read}, not of {value.of}", statement)
        elif value.role == "share" and value.of not in (*header.inputs, *signed):
            raise NotationError(f"{value.of} is not an input of {header.name}", statement)
        elif value.role == "share" and value.of not in (*places, *signed):
            raise NotationError(
                f"{value.of} holds values; a share needs targets that are indices: declare {value.of}: index of v",
                statement,
            )


def indexed(table: Table) -> dict[str, str]:
    """Return the axis that each index array indexes, in every scope; the first of several."""
    return {name: axes[0] for name, axes in places_read(table).items()}


def places_read(table: Table) -> dict[str, list[str]]:
    """Return the axes that each index array indexes, in every scope."""
    axis_of: dict[str, list[str]] = {}

    def visit(axes: Mapping[str, tuple[str, ...]], lines: Iterable[Statement]) -> None:
        for line in lines:
            if isinstance(line, Loop):
                visit({**axes, **line.axes}, line.lines)
                axis_of.update({stack: axis_of[iteration] for iteration, stack in line.each if iteration in axis_of})
                continue
            for term in (each for operand in (*line.left, *line.right) for each in terms_of(operand)):
                for place, axis in enumerate(term.axes):
                    if isinstance(axis, Read) and isinstance(axis.at, Term):
                        axis_of.setdefault(axis.at.name, []).append(axes[term.name][place])

    visit(table.axes, table.lines)
    return axis_of

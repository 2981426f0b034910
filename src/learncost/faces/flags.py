"""What the commands share: flags that are sizes, the choice of a format and its writing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, TypeVar

from cyclopts import Parameter

from learncost.equation.errors import InputError
from learncost.ledger.sheet import Shown
from learncost.models.configuration import SETTINGS
from learncost.models.families import FAMILIES
from learncost.models.sizes import CANONICAL, spelled
from learncost.models.wording import nearest, shown

# As they are shown in the help. Their values stay text until they are checked, so that the message is one of ours.
Number = Annotated[str, Parameter(metavar="N")]
Name = Annotated[str, Parameter(metavar="NAME")]
Procedures = Annotated[str, Parameter(name=["--procedure", "--procedures"], metavar="NAMES")]
Bytes = Annotated[str, Parameter(metavar="BYTES")]
Value = Annotated[str, Parameter(metavar="VALUE")]
Two = Annotated[tuple[Number, Number] | None, Parameter(negative=())]
Switch = Annotated[bool, Parameter(negative=(), show_default=False)]


def refuse_unknown(sizes: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """The sizes and settings that were given as flags, under names of Python; one that no model has is refused.

    `own` are the command's flags, which are suggested too. Raises `InputError`.
    """
    known = {*CANONICAL, *SETTINGS}
    result = {}
    for name, value in sizes.items():
        if spelled(name) not in known:
            known |= _of_families()
        if spelled(name) not in known:
            flags = [f"--{flag.replace('_', '-')}" for flag in (*known, *own)]
            hint = nearest(f"--{name}", flags) or "; `learncost list sizes` shows those that are sizes"
            raise InputError(f"unknown flag {shown('--' + name)}{hint}")
        result[name] = value
    return result


def _of_families() -> set[str]:
    """What only some families read; their files are opened for it."""
    every = [(f.sizes, f.settings, f.dropout, f.refused, f.spellings) for f in FAMILIES.values()]
    return {name for own in every for names in own for name in names}


def chosen(format: str, json: bool, formats: Iterable[str]) -> str:
    """The format that --format and --json ask for together."""
    if format not in formats:
        raise InputError(f"format must be one of {', '.join(formats)}, not {shown(format)}{nearest(format, formats)}")
    if json and format not in ("table", "json"):
        raise InputError(f"--json contradicts --format {format}")
    return "json" if json else format


Some = TypeVar("Some", bound=Shown)


def written(found: Some, wanted: str) -> Some | str:
    """What was found in the format that is wanted, or itself, which shows itself as a table."""
    return found if wanted == "table" else found.show(wanted)

"""Regions of RAM as a device's file has them."""

from __future__ import annotations

import re

from learncost.ir.errors import InputError
from learncost.models.wording import shown
from learncost.program.regions import Region


def regions_of(value: object, where: str) -> tuple[Region, ...]:
    """The regions that a file lists. Raises `InputError` for a key or a value that none has."""
    if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
        raise InputError(f'{where}: regions must be a list of {{ name = "SRAM", bytes = 131072 }}, not {shown(value)}')
    regions: list[Region] = []
    for row in value:
        if unknown := [key for key in row if key not in ("name", "bytes", "begin", "note")]:
            raise InputError(f"{where}: a region has no {shown(unknown[0])} (it has name, bytes, begin, note)")
        name, size, note = row.get("name"), row.get("bytes"), row.get("note", "")
        if (
            not isinstance(name, str)
            or not re.fullmatch(r"[A-Za-z]\w*", name)
            or name in ("FLASH", *(region.name for region in regions))
        ):
            raise InputError(f"{where}: a region's name must be a word that no other has, not {shown(name)}")
        if isinstance(size, bool) or not isinstance(size, int) or not 0 < size < 2**32 or size % 8:
            raise InputError(f"{where}: the bytes of region {name} must be a multiple of 8, not {shown(size)}")
        if not isinstance(note, str) or not note.isprintable() or "*/" in note:
            raise InputError(f"{where}: the note of region {name} must be one line of text, not {shown(note)}")
        begin = None if "begin" not in row else address(f"begin of region {name}", row["begin"], where)
        regions.append(Region(name, size, begin, note))
    return tuple(regions)


def address(key: str, value: object, where: str) -> int:
    """An address of 32 bits. Raises `InputError`."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32 or value % 8:
        raise InputError(f"{where}: {key} must be an address of 32 bits and a multiple of 8, not {shown(value)}")
    return value

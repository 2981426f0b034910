"""Regions of RAM: memory at several addresses, over which the arrays of a program are distributed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

TRIES = 20_000
"""The number of arrays placed in search of a layout, where the first one found does not fit all."""

ARENA = "@"
"""The prefix of an arena's name, which no array has."""

SEARCHED = 100
"""The number of arrays searched for, the largest; all others go to the first region with space."""


@dataclass(frozen=True)
class Region:
    """A region of RAM.

    Attributes
    ----------
    name
        Its name in the linker script.
    bytes
        Its size.
    begin
        Its first address; None where that is unknown.
    note
        What has to be done before a program may use it.
    """

    name: str
    bytes: int
    begin: int | None = None
    note: str = ""


def assigned(arrays: Mapping[str, int], regions: Sequence[Region]) -> dict[str, str] | None:
    """Return the region of every array, each of which must fit one region; None where no layout was found.

    arrays  bytes by name; "" stands for unnamed data, in the first region
    The first region is filled first. A depth-first search, the largest array first, tries at most `TRIES` placements.
    """
    order = sorted((name for name in arrays if name), key=lambda name: -arrays[name])
    free = [region.bytes for region in regions]
    free[0] -= arrays.get("", 0)
    if free[0] < 0 or sum(free) < sum(arrays[name] for name in order):
        return None
    places = _search([arrays[name] for name in order], free)
    if places is None:
        return None
    return {name: regions[place].name for name, place in zip(order, places, strict=True)} | {"": regions[0].name}


def _search(sizes: Sequence[int], free: list[int]) -> list[int] | None:
    """Return the number of the region of each array, the largest first; `free` bytes of each region."""
    tries = 0

    def placed(at: int, free: Sequence[int]) -> list[int] | None:
        nonlocal tries
        if at == len(sizes):
            return []
        tries += 1
        spaces = {space: place for place, space in reversed([*enumerate(free)]) if space >= sizes[at]}
        for place in sorted(spaces.values()) if tries <= TRIES else ():
            left = [space - sizes[at] * (place == number) for number, space in enumerate(free)]
            rest = _first(sizes[at + 1 :], left) if at + 1 >= SEARCHED else placed(at + 1, left)
            if rest is not None:
                return [place, *rest]
        return None

    return placed(0, free)


def _first(sizes: Sequence[int], free: list[int]) -> list[int] | None:
    """Return each array's region by first fit."""
    places = []
    for size in sizes:
        place = next((place for place, space in enumerate(free) if space >= size), None)
        if place is None:
            return None
        free[place] -= size
        places.append(place)
    return places


def too_large(arrays: Mapping[str, int], regions: Sequence[Region]) -> str:
    """Return why arrays do not fit regions: their total, and the largest of them."""
    largest = max(arrays, key=lambda name: arrays[name])
    free = " and ".join(f"{region.bytes:,} in {region.name}" for region in regions)
    each = f", of which {label(largest)} needs {arrays[largest]:,} in one region" if len(regions) > 1 else ""
    return f"{sum(arrays.values()):,} bytes{each}; available are {free}"


def label(name: str) -> str:
    """Return the name of an allocation in messages: an array's name, the arena, or single numbers."""
    return name.removeprefix(ARENA) or "single numbers"


def largest_assigned(arrays: Callable[[int], Iterable[Mapping[str, int]]], regions: Sequence[Region], most: int) -> int:
    """Return the largest batch up to `most` whose arrays fit the regions.

    arrays  for a batch: those of each program that has to fit
    """

    def fits(batch: int) -> bool:
        return all(assigned(each, regions) is not None for each in arrays(batch))

    low, high = 0, most + 1
    if not most or not fits(1):
        return 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low

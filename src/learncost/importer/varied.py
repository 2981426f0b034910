"""A size that a module's code makes a number of while it is exported, as `len(x)` does: read at several sizes.

The tables of these sizes must be one text, up to what the size is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from learncost.importer.axes import Size
from learncost.importer.export import Exported
from learncost.importer.walk import ImportedModule
from learncost.ir.errors import InputError

NEAR, FAR = (7, 11, 13, 17, 19, 23, 29, 31, 37), (67, 71, 73, 79, 83)
"""Sizes at which a module is read again: of a near one all that differs is told, and a far one is held to that."""


def varied(
    first: ImportedModule,
    at: Callable[[Mapping[str, int]], Exported],
    read: Callable[[Exported, Mapping[int, Size]], ImportedModule],
    taken: Iterable[int],
) -> tuple[ImportedModule, list[dict[str, int]]] | None:
    """The table of a module whose export fixes sizes, with these open, and the sizes at which it was read.

    None where tables of other sizes are others by more than the size.

    first  is what was read of it with these sizes as numbers
    at     exports the module with its fixed letters at these sizes
    read   reads an export, of which more is known of some sizes
    taken  sizes that mean something else

    Raises `InputError` where it takes no near size but its own.
    """
    import sympy

    fixed = dict(first.exported.letters.fixed)
    used = {*taken, *fixed.values()}
    if fixed.keys() & first.exported.letters.symbols.values():  # open in one input, a number in another
        first = read(at(fixed), {})
    exports, tried = [first.exported], [fixed]
    stated: dict[int, Size] = {}
    for letter, size in fixed.items():
        again = next(each for each in NEAR if each not in used)
        used.add(again)
        tried.append({**fixed, letter: again})
        exports.append(at(tried[-1]))
        other = read(exports[-1], {})
        if len(other.met) != len(first.met):
            return None
        for place, (here, there) in enumerate(zip(first.met, other.met, strict=True)):
            if here == there:
                continue
            if place in stated or not (isinstance(here, int) and isinstance(there, int)):
                return None
            times, rest = divmod(there - here, again - size)
            if rest:
                return None
            stated[place] = times * sympy.Symbol(letter) + here - times * size
    for sizes in (FAR, NEAR):  # a position that is looked up, say, has a last one
        far = dict(zip(fixed, (each for each in sizes if each not in used), strict=False))
        try:
            exports.append(at(far))
        except InputError:
            continue
        tried.append(far)
        break
    else:
        return None
    answers = [read(_open(each, fixed), stated) for each in exports]
    return (answers[0], tried) if len({each.text for each in answers}) == 1 else None


def _open(exported: Exported, letters: Iterable[str]) -> Exported:
    """An export whose fixed letters are names of sizes."""
    names: dict[str, str] = {letter: letter for letter in letters}
    return replace(exported, letters=replace(exported.letters, symbols=exported.letters.symbols | names, fixed={}))


def told(called: str, tried: list[dict[str, int]]) -> str:
    """What a user should know of a table that was read so."""
    sizes = "; ".join(", ".join(f"{letter} = {size}" for letter, size in each.items()) for each in tried)
    return f"{called} makes numbers of {', '.join(tried[0])}: read at {sizes}, and one table but for that"

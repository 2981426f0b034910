"""The peak of a step's memory as the largest of polynomials: bytes at every line, of any size."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from learncost.equation.count import Count
from learncost.equation.value import Same
from learncost.ledger.memory_step import Step
from learncost.pictures.data.polynomials import Monomials
from learncost.schedule.lifetimes import FEW


def peaks(step: Step) -> dict[str, Any]:
    """Polynomials of the bytes at the lines of a step, of which the largest is the peak, and of what lies beside them.

    turns   the axes that say how often blocks run; `few`, up to how many turns there are polynomials for each number
    levels  for numbers of turns (None: more than few) the polynomials; where there are none, the peak is not known
    beside  what is there at every line: states and master weights
    """
    monomials = Monomials()
    counts = step.turn_sizes
    several: Iterator[tuple[int | None, ...]]
    if "B" in counts:
        several = iter(())
    elif len(counts) == 1:
        several = ((turns,) for turns in (None, *range(1, FEW + 1)))
    else:
        as_it_is = tuple(None if step.sizes()[name] > FEW else step.sizes()[name] for name in counts)
        several = iter(dict.fromkeys((as_it_is, (None,) * len(counts))))
    beside = step.beside_by_axes
    has_polynomials = beside is not None and step.accumulate == 1
    return {
        "few": FEW,
        "turns": list(counts),
        "levels": [_of_turns(step, turns, monomials) for turns in several] if has_polynomials else [],
        "beside": monomials.exported(beside or Count()),
        "monomials": monomials.to_list(),
    }


def _of_turns(step: Step, turns: tuple[int | None, ...], monomials: Monomials) -> dict[str, Any]:
    counts = [monomials.exported(level) for level in _largest(Same(step.levels(turns)))]
    return {"turns": list(turns), "counts": counts}


@lru_cache(maxsize=128)
def _largest(levels: Same[tuple[Count, ...]]) -> list[Count]:
    """Those that are the largest at some sizes: one whose every coefficient another one reaches is left out."""
    largest: list[Count] = []
    for level in sorted(levels.content, key=lambda count: (-len(count.terms), -sum(count.terms.values()))):
        if not any(_reaches(other, level) for other in largest):
            largest.append(level)
    return largest


def _reaches(first: Count, other: Count) -> bool:
    """Whether one is at least the other at all sizes: its coefficients are, and none is negative."""
    mine, others = first.terms, other.terms
    for name, value in others.items():
        if mine.get(name, 0) < value:
            return False
    return all(value >= 0 or name in others for name, value in mine.items())

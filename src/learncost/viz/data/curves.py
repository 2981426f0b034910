"""Lines over an axis: what contests, sweeps and complexities are drawn from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from learncost.ir.serializable import Serializable


@dataclass(frozen=True)
class CurveLine:
    """A line by its points; of several that are called the same the last has the name at its end."""

    name: str
    places: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curves(Serializable):
    """Lines of one panel.

    Attributes
    ----------
    name, about
        What they are of.
    x, y
        What the axes are.
    lines
        The lines.
    logarithmic
        Whether each of the axes is.
    finding
        What the picture shows, in one sentence.
    notes
        What it rests on, in sentences.
    """

    name: str
    about: str
    x: str
    y: str
    lines: tuple[CurveLine, ...]
    logarithmic: tuple[bool, bool]
    finding: str
    notes: tuple[str, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each point."""
        for line in self.lines:
            for place, value in zip(line.places, line.values, strict=True):
                yield {"line": line.name, self.x: place, self.y: value}

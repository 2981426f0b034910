"""Print the blocks of numbered containers as text without block numbers, to find equal blocks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from learncost.importer.axes import AxisClass
from learncost.importer.equations import Equation
from learncost.importer.text import TextWriter
from learncost.importer.views import StoredValue

_NUMBER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


def checkpoints_of(item: Equation) -> list[str]:
    """Return the numbers of the checkpoints around a line."""
    return re.findall(r"\d+", item.again)


@dataclass(frozen=True)
class Looks:
    """Facts about all lines: which values learn, and how many lines are in each checkpoint, by its number."""

    learns: Callable[[StoredValue], object]
    lines: Mapping[str, int]


@dataclass
class ModuleBlock:
    """The lines of one numbered module, or of several modules that alternate, and their text.

    first   the number of its first module
    """

    items: list[Equation]
    containers: Sequence[str]
    first: int = 0
    signature: tuple[str, ...] = ()
    externals: list[StoredValue] = field(default_factory=list)
    made: list[StoredValue] = field(default_factory=list)
    axes: list[AxisClass] = field(default_factory=list)

    @cached_property
    def steps(self) -> list[tuple[str, str]]:
        """Return the module path and operation of every line; blocks that differ here are not compared further."""
        return [(_relative(item.module, self.containers, self.first), item.operator) for item in self.items]

    def look(self, looks: Looks) -> None:
        """Return its lines as text in which names, axes and checkpoints are numbered in order of appearance."""
        made = {read.view.stored for item in self.items for read in item.left}
        writer = _Numbering({}, made=made, learns=looks.learns)
        again = Counter(number for item in self.items for number in checkpoints_of(item))
        places = {number: f"{place}" for place, number in enumerate(again)}
        places |= {number: f"shared by {id(self)}" for number in again if again[number] < looks.lines[number]}
        self.signature = tuple(
            f"{writer.line(item).rpartition(' @ ')[0]} @ {path} {operator} "
            + re.sub(r"\d+", lambda match: places[match[0]], item.again)
            for item, (path, operator) in zip(self.items, self.steps, strict=True)
        )
        self.externals, self.made, self.axes = writer.externals, writer.numbered, list(writer.letters)


@dataclass
class _Numbering(TextWriter):
    made: set[StoredValue] = field(default_factory=set)
    learns: Callable[[StoredValue], object] = bool
    externals: list[StoredValue] = field(default_factory=list)
    numbered: list[StoredValue] = field(default_factory=list)

    def name(self, stored: StoredValue) -> str:
        if stored not in self.names:
            if stored in self.made:
                self.names[stored] = f"made{len(self.numbered)}"
                self.numbered.append(stored)
            else:
                shape = " ".join(self.letter(leaf) for axis in stored.axes for leaf in axis.leaves)
                kind = stored.kind if stored.kind != "value" else "input"
                kind = "carried" if kind in ("input", "value") else kind
                self.names[stored] = f"given{len(self.externals)}({kind} {shape} {self.learns(stored)})"
                self.externals.append(stored)
        return self.names[stored]

    def letter(self, axis: AxisClass) -> str:
        root = axis.root
        if root not in self.letters:
            self.letters[root] = f"a{len(self.letters)}_{root.size}_"
        return self.letters[root]


def numbered(path: str, containers: Sequence[str]) -> tuple[str, int, str] | None:
    """Return the container that a path is in, the number of its block there, and the rest of the path."""
    for container in containers:
        if container and not path.startswith(f"{container}."):
            continue
        number, _, inner = path[len(container) :].lstrip(".").partition(".")
        if number.isdigit():
            return container, int(number), inner
    return None


def _relative(path: str, containers: Sequence[str], first: int) -> str:
    """Return a path with the number of its block relative to the first of the pattern."""
    if (place := numbered(path, containers)) is None:
        return path
    container, number, inner = place
    return f"{container}.{number - first}.{inner}"


def containers_of(items: Sequence[Equation]) -> list[str]:
    """Return the paths of containers of numbered modules, outer ones first."""
    repeated_paths: dict[str, None] = {}
    for item in items:
        for match in _NUMBER.finditer(item.module):
            repeated_paths.setdefault(item.module[: match.start()])
    return sorted(repeated_paths, key=lambda path: (path.count(".") + bool(path), path))


def starred(path: str, containers: Sequence[str], first: int, several: bool) -> str:
    """Return a path with * for the number of the block; in a pattern of several blocks, with its position in the
    pattern.
    """
    if (place := numbered(path, containers)) is None:
        return path
    container, number, inner = place
    return ".".join(part for part in (container, f"*{number - first}" if several else "*", inner) if part)

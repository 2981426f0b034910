"""What a layer's text says before its names are bound: its header, lines, calls of layers, and repeats."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from learncost.ir.line import Condition, Line
from learncost.ir.loop import Carry
from learncost.ir.term import Term

OWN = "*"
"""In the place of a call's weights: they, and the values inside, keep the names that the called layer has for them."""


@dataclass(frozen=True)
class Header:
    """`name(inputs; weights) -> outputs`."""

    name: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class LayerCall:
    """`A[B M d] = attention(H, H, H; attn, N = M') where M' <= M`: replaced by the layer's lines when it is defined."""

    left: tuple[Term, ...]
    layer: str
    arguments: tuple[str, ...]
    weights: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]
    where: tuple[Condition, ...]
    text: str
    module: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the called lines become the caller's own."""
        return self.weights == (OWN,)


@dataclass(frozen=True)
class ParsedLoop:
    """A repeat before its names are bound. `each` and `keep` are pairs of a new name and what it is made of.

    own   weights of which every turn has its own; None: all but those `shared` and those read around it
    """

    count: str
    carry: tuple[Carry, ...]
    each: tuple[tuple[str, str], ...]
    keep: tuple[tuple[str, str], ...]
    shared: tuple[str, ...]
    lines: tuple[Parsed, ...]
    text: str
    backwards: bool = False
    own: tuple[str, ...] | None = None


Parsed = Line | LayerCall | ParsedLoop


def names_of(line: Parsed) -> Iterator[str]:
    """The names that a line reads, weights included."""
    if isinstance(line, Line):
        yield from line.reads
    elif isinstance(line, LayerCall):
        yield from (*line.arguments, *line.weights)
    else:
        yield from (*(handed.initial for handed in line.carry), *(old for _, old in line.each), *line.shared)
        for inner in line.lines:
            yield from names_of(inner)


def makes(line: Parsed) -> tuple[str, ...]:
    """The names that a line makes."""
    if isinstance(line, ParsedLoop):
        return (*(handed.final for handed in line.carry), *(new for new, _ in line.keep))
    return tuple(term.name for term in line.left)


def calls_of(lines: Iterable[Parsed]) -> Iterator[LayerCall]:
    """The calls among lines, in their order."""
    for line in lines:
        if isinstance(line, LayerCall):
            yield line
        elif isinstance(line, ParsedLoop):
            yield from calls_of(line.lines)

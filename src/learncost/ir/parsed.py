"""The syntax tree of a layer before its names are bound: header, lines, calls of layers, and loops."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from learncost.ir.dataclass import dataclass
from learncost.ir.line import Condition, Line
from learncost.ir.loop import Carry
from learncost.ir.term import Term

OWN_NAMES = "*"
"""In place of a call's weights: weights and values inside keep the names that the called layer has for them."""


@dataclass(frozen=True)
class Header:
    """The header of a layer, `name(inputs; weights) -> outputs`."""

    name: str
    inputs: tuple[str, ...]
    weights: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class LayerCall:
    """A call, `A[B M d] = attention(H, H, H; attn, N = M') where M' <= M`; the definition's lines replace it.

    `block` is the side, encoder or decoder, of the block that it is in; None: of none.
    """

    left: tuple[Term, ...]
    layer: str
    arguments: tuple[str, ...]
    weights: tuple[str, ...]
    axes: tuple[tuple[str, str], ...]
    where: tuple[Condition, ...]
    text: str
    module: str = ""
    block: str | None = None

    @property
    def is_own(self) -> bool:
        """Return whether the called lines are inlined under their own names."""
        return self.weights == (OWN_NAMES,)


@dataclass(frozen=True)
class ParsedLoop:
    """A loop before its names are bound. `each` and `keep` are pairs of a new name and its source.

    own   weights that are stacked, one per iteration; None: all but those `shared` and those read outside
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
    """Yield the names that a line reads, including weights."""
    if isinstance(line, Line):
        yield from line.reads
    elif isinstance(line, LayerCall):
        yield from (*line.arguments, *line.weights)
    else:
        yield from (*(handed.initial for handed in line.carry), *(old for _, old in line.each), *line.shared)
        for inner in line.lines:
            yield from names_of(inner)


def makes(line: Parsed) -> tuple[str, ...]:
    """Return the names that a line defines."""
    if isinstance(line, ParsedLoop):
        return (*(handed.final for handed in line.carry), *(new for new, _ in line.keep))
    return tuple(term.name for term in line.left)


def calls_of(lines: Iterable[Parsed]) -> Iterator[LayerCall]:
    """Yield the calls among lines, in their order."""
    for line in lines:
        if isinstance(line, LayerCall):
            yield line
        elif isinstance(line, ParsedLoop):
            yield from calls_of(line.lines)

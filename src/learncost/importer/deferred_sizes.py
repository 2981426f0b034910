"""Numbers that follow from settings and sizes alone: computed at once if the sizes are numbers, otherwise deferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learncost.importer.axes import Size

if TYPE_CHECKING:
    from learncost.importer.reader import GraphReader


@dataclass(frozen=True)
class OfSizes:
    """A function of open sizes, computed when these are known."""

    function: Callable[..., Any]
    sizes: tuple[Size, ...]

    def at(self, symbols: Mapping[str, int]) -> Any:
        """Return the numbers for these values of the graph's symbols."""
        return self.function(*(_known(size, symbols) for size in self.sizes))


def _known(size: Size, symbols: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return int(size.xreplace({each: symbols[str(each)] for each in size.free_symbols}))


def settled(reader: GraphReader, what: str, function: Callable[..., Any], *sizes: Size) -> Any:
    """Return the value of a function of sizes, deferred if they are open. A ValueError of the function, or a size that
    depends on values, is refused as unsupported.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if all(isinstance(size, int) for size in sizes):
        try:
            return function(*sizes)
        except ValueError as error:
            raise reader.refusal(str(error)) from None
    if any(not isinstance(size, int) and free_unbacked_symbols(size) for size in sizes):
        raise reader.refusal(f"{what} along a side of symbolic size")
    return OfSizes(function, sizes)

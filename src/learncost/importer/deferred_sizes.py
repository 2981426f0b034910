"""Numbers that settings and sizes alone give: at once where the sizes are numbers, else when these are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from learncost.importer.axes import Size

if TYPE_CHECKING:
    from learncost.importer.reader import GraphReader


@dataclass(frozen=True)
class OfSizes:
    """What a function gives of sizes that are open."""

    function: Callable[..., Any]
    sizes: tuple[Size, ...]

    def at(self, symbols: Mapping[str, int]) -> Any:
        """The numbers, with these sizes for the graph's symbols."""
        return self.function(*(_known(size, symbols) for size in self.sizes))


def _known(size: Size, symbols: Mapping[str, int]) -> int:
    if isinstance(size, int):
        return size
    return int(size.xreplace({each: symbols[str(each)] for each in size.free_symbols}))


def settled(reader: GraphReader, what: str, function: Callable[..., Any], *sizes: Size) -> Any:
    """What a function gives of sizes; what it says in a ValueError cannot be read, nor `what` of a size by values."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if all(isinstance(size, int) for size in sizes):
        try:
            return function(*sizes)
        except ValueError as error:
            raise reader.refusal(str(error)) from None
    if any(not isinstance(size, int) and free_unbacked_symbols(size) for size in sizes):
        raise reader.refusal(f"{what} of a side without a fixed size")
    return OfSizes(function, sizes)

"""Represent quantized weights by the arrays of their codes and scales, with axes and bytes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from learncost.ir.dataclass import dataclass
from learncost.ir.polynomial import base, shape_of
from learncost.ir.precision import BLOCKS, BYTES, BlockScales


@dataclass(frozen=True)
class QuantizedArray:
    """An array of a quantized weight: its axes, and its type, which is a block type for codes."""

    name: str
    axes: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Quantized:
    """A weight of a table that is stored as codes and scales.

    axes    the axes of the weight, beginning with that of the stack over iterations
    inside  the axes that its products sum, which are divided into blocks
    out     its other axes without the stack's
    """

    weight: str
    axes: tuple[str, ...]
    inside: tuple[str, ...]
    out: tuple[str, ...]
    kind: BlockScales
    group: str = ""  # for a part of a split loop: the weight of all iterations

    @property
    def stack(self) -> tuple[str, ...]:
        """The axis of the iterations, if each has a separate weight."""
        return self.axes[: len(self.axes) - len(self.inside) - len(self.out)]

    @property
    def second(self) -> BlockScales | None:
        """The type of the scales' codes, if scales are quantized."""
        return BLOCKS.get(self.kind.scales)

    @property
    def codes(self) -> QuantizedArray:
        return QuantizedArray(f"{self.weight}.codes", self.axes, self.kind.name)

    @property
    def scales(self) -> tuple[QuantizedArray, ...]:
        """The arrays of scales; with double quantization, their codes and the scales of these."""
        blocks = (blocks_axis(self.inside, self.kind),) if self.kind.block else ()
        if self.kind.powers:
            return (QuantizedArray(f"{self.weight}.power", self.stack, self.kind.scales),)
        if self.second is None:
            return (QuantizedArray(f"{self.weight}.scales", (*self.stack, *blocks, *self.out), self.kind.scales),)
        codes = QuantizedArray(f"{self.weight}.scale_codes", (*self.stack, *blocks, *self.out), self.kind.scales)
        outer = (*self.stack, *blocks, blocks_axis(self.out, self.second))
        return codes, QuantizedArray(f"{self.weight}.scale_scales", outer, self.second.scales)

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of the arrays that all weights share: levels, and block numbers."""
        names = [] if self.kind.scales_sums else [levels_of(self.kind)]
        if self.kind.block:
            names.append(places_of(self.inside, self.kind))
        if self.second is not None:
            names += [levels_of(self.second), places_of(self.out, self.second)]
        return tuple(names)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of all arrays that represent the weight: codes, scales, and shared ones."""
        return (self.codes.name, *(array.name for array in self.scales), *self.constants)

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes of the additional axes: the numbers of blocks and of levels."""
        counts = {} if self.kind.scales_sums else {levels_axis(self.kind): len(self.kind.levels or ())}
        if self.kind.block:
            counts[blocks_axis(self.inside, self.kind)] = -(-prod(shape_of(self.inside, sizes)) // self.kind.block)
        if self.second is not None:
            counts[levels_axis(self.second)] = len(self.second.levels or ())
            counts[blocks_axis(self.out, self.second)] = -(-prod(shape_of(self.out, sizes)) // self.second.block)
        return counts

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Return the bytes of codes and scales; `sizes` must include those of the additional axes."""
        return sum(bytes_of_array(array, sizes) for array in (self.codes, *self.scales))


def bytes_of_array(array: QuantizedArray, sizes: Mapping[str, int]) -> int:
    """Return the bytes of an array, in which codes are packed."""
    bits = BLOCKS[array.kind].bits if array.kind in BLOCKS else 8 * BYTES[array.kind]
    points: int = prod(shape_of(array.axes, sizes))
    return -(-points * bits // 8)


def blocks_axis(axes: Iterable[str], kind: BlockScales) -> str:
    """Return the name of an axis of blocks, such as d_blocks_64."""
    return f"{'_'.join(map(base, axes))}_blocks_{kind.block}"


def levels_of(kind: BlockScales) -> str:
    """Return the name of the array of a type's levels."""
    return f"{kind.name}.levels"


def levels_axis(kind: BlockScales) -> str:
    """Return the name of the axis of a type's levels."""
    return f"levels_{len(kind.levels or ())}"


def places_of(axes: Iterable[str], kind: BlockScales) -> str:
    """Return the name of the array with the block number of every position, such as d_block_64."""
    return f"{'_'.join(map(base, axes))}_block_{kind.block}"

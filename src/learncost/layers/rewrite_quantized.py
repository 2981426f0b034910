"""Quantized weights as a rewriting: a frozen matrix is read as codes and scales, and made anew before its product.

For X W of a weight in 4 bits with a scale for 64 numbers of a column:

    W[d f] = nf4-64.levels[level=W.codes[d f]] W.scales[d_blocks_64=d_block_64[d] f]
    Y[B M f] = X[B M d] W[d f]

Dettmers et al. 2023, QLoRA, equations (5) and (6): both products, and with double quantization the scales too are made
of codes and scales. Who reads the weight later makes it once more: it is never kept from forward to backward. A block
is of numbers that one result sums, as PyTorch stores them; a row that is no whole number of blocks ends with a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from learncost.equation.count import base, shape_of
from learncost.equation.errors import InputError
from learncost.equation.precision import BLOCKS, BYTES, Blocks
from learncost.equation.table import Line, Product, Read, Repeat, Statement, Table, Tag, Term, walk
from learncost.equation.value import Value
from learncost.layers.recompute import recomputed
from learncost.layers.rewrite_lora import is_linear

SCALES = "scales"
LAYER = "dequantization"
"""The layer of the lines that make weights of codes."""


@dataclass(frozen=True)
class Array:
    """An array that stands for a part of a quantized weight: its axes, and its type; of blocks it has the codes."""

    name: str
    axes: tuple[str, ...]
    kind: str


@dataclass(frozen=True)
class Quantized:
    """A weight of a table that is stored as codes and scales.

    axes    of the weight, those of the stack of all turns first
    inside  those that its products sum, of which blocks are made; `out` are its others but the stack's
    """

    weight: str
    axes: tuple[str, ...]
    inside: tuple[str, ...]
    out: tuple[str, ...]
    kind: Blocks
    group: str = ""  # of turns of a repeat that was split: the weight whose turns these are

    @property
    def stack(self) -> tuple[str, ...]:
        """The axis of the turns, where each has its own."""
        return self.axes[: len(self.axes) - len(self.inside) - len(self.out)]

    @property
    def second(self) -> Blocks | None:
        """What the scales are stored in, where they have scales themselves."""
        return BLOCKS.get(self.kind.scales)

    @property
    def codes(self) -> Array:
        return Array(f"{self.weight}.codes", self.axes, self.kind.name)

    @property
    def scales(self) -> tuple[Array, ...]:
        """The scales; with double quantization their codes, and the scales of these."""
        blocks = (blocks_of(self.inside, self.kind),) if self.kind.block else ()
        if self.second is None:
            return (Array(f"{self.weight}.scales", (*self.stack, *blocks, *self.out), self.kind.scales),)
        codes = Array(f"{self.weight}.scale_codes", (*self.stack, *blocks, *self.out), self.kind.scales)
        outer = (*self.stack, *blocks, blocks_of(self.out, self.second))
        return codes, Array(f"{self.weight}.scale_scales", outer, self.second.scales)

    @property
    def constants(self) -> tuple[str, ...]:
        """The names of what its lines read that is the same for every weight: levels, and places of blocks."""
        names = [levels_of(self.kind)]
        if self.kind.block:
            names.append(places_of(self.inside, self.kind))
        if self.second is not None:
            names += [levels_of(self.second), places_of(self.out, self.second)]
        return tuple(names)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of all that its lines read: codes, scales, and what is the same for every weight."""
        return (self.codes.name, *(array.name for array in self.scales), *self.constants)

    def sizes(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """How many blocks there are: the sizes of the axes that it adds."""
        counts = {_levels_axis(self.kind): len(self.kind.levels or ())}
        if self.kind.block:
            counts[blocks_of(self.inside, self.kind)] = -(-prod(shape_of(self.inside, sizes)) // self.kind.block)
        if self.second is not None:
            counts[_levels_axis(self.second)] = len(self.second.levels or ())
            counts[blocks_of(self.out, self.second)] = -(-prod(shape_of(self.out, sizes)) // self.second.block)
        return counts

    def bytes(self, sizes: Mapping[str, int]) -> int:
        """Of codes and scales; `sizes` with those of its own axes."""
        return sum(bytes_of_array(array, sizes) for array in (self.codes, *self.scales))


def bytes_of_array(array: Array, sizes: Mapping[str, int]) -> int:
    """Bytes of an array, codes packed."""
    bits = BLOCKS[array.kind].bits if array.kind in BLOCKS else 8 * BYTES[array.kind]
    points: int = prod(shape_of(array.axes, sizes))
    return -(-points * bits // 8)


def blocks_of(axes: Iterable[str], kind: Blocks) -> str:
    """The axis of the blocks of axes: d_blocks_64."""
    return f"{'_'.join(map(base, axes))}_blocks_{kind.block}"


def levels_of(kind: Blocks) -> str:
    """The name of the array of a type's levels."""
    return f"{kind.name}.levels"


def _levels_axis(kind: Blocks) -> str:
    return f"levels_{len(kind.levels or ())}"


def places_of(axes: Iterable[str], kind: Blocks) -> str:
    """The name of the array that says in which block every place of axes is: d_block_64."""
    return f"{'_'.join(map(base, axes))}_block_{kind.block}"


def with_quantized(
    table: Table, chosen: Callable[[Line, str, str], bool], kind: Blocks
) -> tuple[Table, tuple[Quantized, ...]]:
    """The table with codes and scales in place of the weights that blocks multiply by as matrices, and which they are.

    chosen  of a line of a repeat and of the weight that it multiplies by, by its names inside and outside
    """
    scope = _Scope(table, chosen, kind)
    lines = tuple(scope.repeat(line) if isinstance(line, Repeat) else line for line in table.lines)
    if not scope.quantized:
        return table, ()
    quantized = tuple(scope.quantized.values())
    codes = {weight.weight: weight.codes for weight in quantized}
    values = {name: value for name, value in table.values.items() if name not in codes} | scope.values
    shared = dict.fromkeys((*scope.shared, *(array.name for weight in quantized for array in weight.scales)))
    changed = replace(
        table,
        lines=lines,
        values=values,
        weights=tuple(codes[name].name if name in codes else name for name in table.weights),
        inputs=(*table.inputs, *shared),
    )
    return changed, quantized


@dataclass
class _Scope:
    """A table on its way: the weights that were found, the arrays that stand for them."""

    table: Table
    chosen: Callable[[Line, str, str], bool]
    kind: Blocks
    quantized: dict[str, Quantized] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    shared: dict[str, None] = field(default_factory=dict)  # what all weights of a type read: levels, places of blocks

    def repeat(self, repeat: Repeat) -> Repeat:
        """The body with its weights made before the lines that read them."""
        outer = {name: name for name in repeat.shared if name in self.table.weights} | dict(repeat.each)
        dequantizing: dict[str, list[Line]] = {}
        lines: list[Statement] = []
        values, each = dict(repeat.values), list(repeat.each)
        for line in repeat.lines:
            if isinstance(line, Repeat):
                raise InputError(f"weights of a repeat in a repeat are not quantized, such as those over {line.count}")
            for inside in line.reads:
                if inside in outer and inside not in dequantizing and is_linear(line, inside):
                    if not self.chosen(line, inside, outer[inside]):
                        continue
                    dequantizing[inside] = self._weight(line, inside, outer[inside], repeat, values, each)
                    lines += dequantizing[inside]
            lines.append(line)
        replaced = {(inside, outer[inside]) for inside in dequantizing}
        each = [pair for pair in each if pair not in replaced]
        return replace(repeat, lines=tuple(lines), values=values, each=tuple(each))

    def _weight(
        self,
        line: Line,
        inside: str,
        outer: str,
        repeat: Repeat,
        values: dict[str, Value],
        each: list[tuple[str, str]],
    ) -> list[Line]:
        (term,) = (term for term in line.right if term.name == inside)
        weight_axes = repeat.axes.get(inside, self.table.axes[outer])
        places = [place for place, axis in enumerate(term.axes) if axis in line.left[0].loops]
        out = tuple(weight_axes[place] for place in places)
        summed = tuple(axis for axis in weight_axes if axis not in out)
        quantized = Quantized(outer, self.table.axes[outer], summed, out, self.kind, self.table.values[outer].group)
        self.quantized[outer] = quantized
        values[inside] = Value(weight_axes)
        sliced = (inside, outer) in repeat.each

        def read_of(array: Array, ending: str) -> Term:
            """The turn's part of an array of the weight."""
            name = f"{inside}.{ending}" if sliced else array.name
            value = Value(array.axes, "index" if array.kind in BLOCKS else "constant", outer)
            self.values[array.name] = value
            if sliced:
                each.append((name, array.name))
                values[name] = value = value.along(array.axes[len(quantized.stack) :])
            return Term(name, value.axes)

        codes = read_of(quantized.codes, "codes")
        tag = Tag(LAYER, line.tag.block, local=_local(inside), module=line.tag.module)
        dequantizing: list[Line] = []
        first = read_of(quantized.scales[0], quantized.scales[0].name.rpartition(".")[2])
        if quantized.second is None:
            scales = first
        else:
            second = read_of(quantized.scales[1], "scale_scales")
            scales = Term(f"{inside}.scales", first.declared)
            values[scales.name] = Value(scales.declared)
            factor = self._at_block(second, out, quantized.second)
            right = (self._level(quantized.second, first), factor)
            types = (self.kind.scales, quantized.second.scales, quantized.second.scales)
            own_tag = replace(tag, local=_local(scales.name), types=types)
            dequantizing.append(Product((scales,), right, (), _bound(own_tag, right)))
        if self.kind.block:
            scales = self._at_block(scales, summed, self.kind)
        right = (self._level(self.kind, codes), scales)
        wide = quantized.second.scales if quantized.second else self.kind.scales
        dequantizing.append(
            Product(
                (Term(inside, weight_axes),), right, (), _bound(replace(tag, types=(self.kind.name, wide, "")), right)
            )
        )
        return dequantizing

    def _level(self, kind: Blocks, codes: Term) -> Term:
        name, axis = levels_of(kind), _levels_axis(kind)
        self.values[name], self.shared[name] = Value((axis,), "constant"), None
        return Term(name, (Read(axis, codes),))

    def _at_block(self, scales: Term, blocked: tuple[str, ...], kind: Blocks) -> Term:
        """The scales read for every place of the axes that have blocks."""
        name, axis = places_of(blocked, kind), blocks_of(blocked, kind)
        self.values[name], self.shared[name] = Value(blocked, "index"), None
        at = Read(axis, Term(name, blocked))
        return Term(scales.name, tuple(at if scale_axis == axis else scale_axis for scale_axis in scales.axes))


def _bound(tag: Tag, right: tuple[Term, ...]) -> Tag:
    axes = dict.fromkeys(axis for term in right for axis in term.loops)
    return replace(tag, locals=tuple(_local(term.name) for term in right), binding=tuple((axis, axis) for axis in axes))


def _local(name: str) -> str:
    return name.rpartition(".")[2]


def bits_of(line: Line, bits: int) -> dict[str, int]:
    """Bits of an element of each array of a line that makes a weight, or its scales, of codes; of any other line none.

    bits   of an element of what has the type of the run
    What says levels and places of blocks is inside of a kernel, and takes nothing.
    """
    if not line.tag.types:
        return {}
    levels, scales = line.right
    codes, wide = (_bits(kind, bits) for kind in (line.tag.types[0], line.tag.types[2]))
    bits_of_name = {line.name: wide, levels.name: 0, scales.name: _bits(line.tag.types[1], bits)}
    bits_of_name |= dict.fromkeys(scales.names[1:], 0)
    return bits_of_name | dict.fromkeys(levels.names[1:], codes)


def _bits(kind: str, bits: int) -> int:
    return BLOCKS[kind].bits if kind in BLOCKS else 8 * BYTES[kind] if kind else bits


def makes_weight(line: Line) -> bool:
    """Whether a line makes a weight, or its scales, of codes."""
    return line.tag.layer == LAYER


def makes_scales(line: Line) -> bool:
    """Whether a line makes scales, and not a weight: these are as wide as what they are made of."""
    return makes_weight(line) and line.tag.local == SCALES


def made_again(table: Table) -> Table:
    """The step in which the backward pass makes every quantized weight of its codes once more: none is kept for it."""
    if not any(makes_weight(line) for line, _ in walk(table.lines)):
        return table
    return recomputed(table, makes_weight)

"""Rewrite a table for quantized weights: a frozen matrix is stored as codes and scales, and dequantized before its
product.

For X W of a 4-bit weight with a scale for every 64 numbers of a column:

    W[d f] = nf4-64.levels[level=W.codes[d f]] W.scales[d_blocks_64=d_block_64[d] f]
    Y[B M f] = X[B M d] W[d f]

If one scale covers all numbers that a result sums, it may be applied after the sum, without dequantizing the weight:

    Y.sum[B M f] = X[B M d] W.codes[d f]
    Y[B M f] = Y.sum[B M f] W.scales[f]

Dettmers et al. 2023, QLoRA, equations (5) and (6). With double quantization, the scales are dequantized from codes and
scales, too. The backward pass dequantizes the weight again, as dequantized weights are never saved. A block has numbers
that one result sums, as PyTorch stores them; the last block of a row may be shorter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Product
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.precision import BLOCKS, BYTES, BlockScales
from learncost.ir.table import Table
from learncost.ir.term import Read, Term
from learncost.ir.value import Value
from learncost.passes.quantized import Quantized, QuantizedArray, blocks_axis, levels_axis, levels_of, places_of
from learncost.passes.rematerialization import Dequantization, dequantization, recomputed
from learncost.passes.rewrite_lora import is_linear

SCALES = "scales"
LAYER = "dequantization"
"""The layer of the lines that dequantize weights."""


def with_quantized(
    table: Table, chosen: Callable[[Line, str, str], bool], kind: BlockScales
) -> tuple[Table, tuple[Quantized, ...]]:
    """Return the table with codes and scales in place of matrices in blocks, and the quantized weights.

    chosen  whether to quantize the weight of a loop's line, by its names inside and outside of the loop
    """
    scope = _QuantizedScope(table, chosen, kind)
    lines = scope.outside()
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
class _QuantizedScope:
    """The state of the rewrite: the weights found, and the arrays that represent them."""

    table: Table
    chosen: Callable[[Line, str, str], bool]
    kind: BlockScales
    quantized: dict[str, Quantized] = field(default_factory=dict)
    values: dict[str, Value] = field(default_factory=dict)
    shared: dict[str, None] = field(default_factory=dict)  # the levels and block numbers of all weights

    def outside(self) -> tuple[Statement, ...]:
        """Return the lines of the table with quantized weights; lines outside of loops change only if products read
        codes."""
        weights = {name: name for name in self.table.weights}
        lines: list[Statement] = []
        for line in self.table.lines:
            if isinstance(line, Loop):
                lines.append(self.repeat(line))
            elif self.kind.scales_sums:
                lines += self._line_of_codes(line, weights, Loop("", (), {}), self.values, [])
            else:
                lines.append(line)
        return tuple(lines)

    @cached_property
    def _whole(self) -> frozenset[str]:
        """The weights that only products which may read codes read."""
        refused: set[str] = set()
        weights = {name: name for name in self.table.weights}
        for line in self.table.lines:
            outer = {**weights, **dict(line.each)} if isinstance(line, Loop) else weights
            for inner, _ in walk((line,)):
                refused |= {
                    outer[name]
                    for name in inner.reads
                    if name in outer and not (is_linear(inner, name) and self.chosen(inner, name, outer[name]))
                }
        return frozenset(weights) - refused

    def repeat(self, repeat: Loop) -> Loop:
        """Return a loop with its weights dequantized before the lines that read them."""
        outer = {name: name for name in repeat.shared if name in self.table.weights} | dict(repeat.each)
        dequantizing: dict[str, list[Line]] = {}
        lines: list[Statement] = []
        values, each = dict(repeat.values), list(repeat.each)
        for line in repeat.lines:
            if self.kind.scales_sums and isinstance(line, Line):
                lines += self._line_of_codes(line, outer, repeat, values, each)
                dequantizing |= {name: [] for name in line.reads if outer.get(name) in self.quantized}
                continue
            if isinstance(line, Loop):
                within = {name: outer[name] for name in line.shared if name in outer}
                within |= {name: outer[of] for name, of in line.each if of in outer}
                for inner, _ in walk((line,)):
                    for name in within.keys() & set(inner.reads):
                        if is_linear(inner, name) and self.chosen(inner, name, within[name]):
                            raise InputError(f"the weight {name} of a loop within a loop cannot be quantized")
                lines.append(line)
                continue
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

    def _line_of_codes(
        self, line: Line, outer: Mapping[str, str], repeat: Loop, values: dict[str, Value], each: list[tuple[str, str]]
    ) -> list[Line]:
        """Return the product of a line with codes in place of its weight, and the line that applies the scales to the
        sum."""
        for inside in line.reads:
            if outer.get(inside) not in self._whole or not is_linear(line, inside):
                continue
            quantized = self._quantized(line, inside, outer[inside], repeat)
            codes, scales = (
                self._read_of(quantized, array, inside, repeat, values, each)
                for array in (quantized.codes, *quantized.scales)
            )
            left, total = line.left[0], f"{line.name}.sum"
            values[total] = Value(left.declared)
            meta, local = line.meta, line.meta.local or line.name
            places = dict(zip(line.right, meta.locals, strict=False))
            right = tuple(Term(codes.name, term.axes) if term.name == inside else term for term in line.right)
            (weight,) = (term for term in line.right if term.name == inside)
            summed = replace(
                line, left=(Term(total, left.axes),), right=right, meta=replace(meta, local=f"{local}.sum")
            )
            out = () if self.kind.powers else tuple(axis for axis in weight.axes if axis in left.loops)
            factors = (Term(total, left.axes), Term(scales.name, out))
            names = (f"{local}.sum", f"{places.get(weight, inside)}.{SCALES}")
            plain_meta = replace(meta, locals=names, equation="", gradients=(), operator="")  # which the sum has
            scaled = Product(line.left, factors, (), plain_meta)
            return [summed, scaled]
        return [line]

    def _quantized(self, line: Line, inside: str, outer: str, repeat: Loop) -> Quantized:
        """Return the quantized weight that a line multiplies by."""
        (term,) = (term for term in line.right if term.name == inside)
        weight_axes = repeat.axes.get(inside, self.table.axes[outer])
        out = tuple(weight_axes[place] for place, axis in enumerate(term.axes) if axis in line.left[0].loops)
        summed = tuple(axis for axis in weight_axes if axis not in out)
        quantized = Quantized(outer, self.table.axes[outer], summed, out, self.kind, self.table.values[outer].group)
        self.quantized[outer] = quantized
        return quantized

    def _read_of(
        self,
        quantized: Quantized,
        array: QuantizedArray,
        inside: str,
        repeat: Loop,
        values: dict[str, Value],
        each: list[tuple[str, str]],
    ) -> Term:
        """Return the term that reads an array of a weight, or an iteration's slice of it."""
        sliced = (inside, quantized.weight) in repeat.each
        name = f"{inside}.{_local(array.name)}" if sliced else array.name
        is_index = array.kind in BLOCKS and not self.kind.scales_sums
        dtype = "int8" if array.kind in BLOCKS and self.kind.scales_sums else ""
        value = Value(array.axes, "index" if is_index else "constant", quantized.weight, dtype=dtype)
        if array.kind in BLOCKS and self.kind.learns:
            value = Value(array.axes, dtype=dtype)
        self.values[array.name] = value
        if sliced:
            if (name, array.name) not in each:
                each.append((name, array.name))
            values[name] = value = value.along(array.axes[len(quantized.stack) :])
        return Term(name, value.axes)

    def _weight(
        self, line: Line, inside: str, outer: str, repeat: Loop, values: dict[str, Value], each: list[tuple[str, str]]
    ) -> list[Line]:
        quantized = self._quantized(line, inside, outer, repeat)
        out, summed = quantized.out, quantized.inside
        weight_axes = repeat.axes.get(inside, self.table.axes[outer])
        values[inside] = Value(weight_axes)

        def read_of(array: QuantizedArray) -> Term:
            return self._read_of(quantized, array, inside, repeat, values, each)

        codes = read_of(quantized.codes)
        meta = Meta(LAYER, line.meta.block, local=_local(inside), module=line.meta.module)
        dequantizing: list[Line] = []
        first = read_of(quantized.scales[0])
        if quantized.second is None:
            scales = first
        else:
            second = read_of(quantized.scales[1])
            scales = Term(f"{inside}.scales", first.declared)
            values[scales.name] = Value(scales.declared)
            factor = self._at_block(second, out, quantized.second)
            right = (self._level(quantized.second, first), factor)
            types = Dequantization(self.kind.scales, quantized.second.scales, quantized.second.scales)
            own_meta = replace(meta, local=_local(scales.name), note=types)
            dequantizing.append(Product((scales,), right, (), _bound(own_meta, right)))
        if self.kind.block:
            scales = self._at_block(scales, summed, self.kind)
        right = (self._level(self.kind, codes), scales)
        wide = quantized.second.scales if quantized.second else self.kind.scales
        own_meta = replace(meta, note=Dequantization(self.kind.name, wide))
        dequantizing.append(Product((Term(inside, weight_axes),), right, (), _bound(own_meta, right)))
        return dequantizing

    def _level(self, kind: BlockScales, codes: Term) -> Term:
        name, axis = levels_of(kind), levels_axis(kind)
        self.values[name], self.shared[name] = Value((axis,), "constant"), None
        return Term(name, (Read(axis, codes),))

    def _at_block(self, scales: Term, blocked: tuple[str, ...], kind: BlockScales) -> Term:
        """Return the term that reads the scales at every position of the blocked axes."""
        name, axis = places_of(blocked, kind), blocks_axis(blocked, kind)
        self.values[name], self.shared[name] = Value(blocked, "index"), None
        at = Read(axis, Term(name, blocked))
        return Term(scales.name, tuple(at if scale_axis == axis else scale_axis for scale_axis in scales.axes))


def _bound(meta: Meta, right: tuple[Term, ...]) -> Meta:
    axes = dict.fromkeys(axis for term in right for axis in term.loops)
    return replace(
        meta, locals=tuple(_local(term.name) for term in right), binding=tuple((axis, axis) for axis in axes)
    )


def _local(name: str) -> str:
    return name.rpartition(".")[2]


def bits_of(line: Line, bits: int) -> dict[str, int]:
    """Return the bits of an element of each array of a dequantization line; empty for any other line.

    bits   the bits of an element in the data type of the run
    Levels and block numbers count 0 bits, as they are inside of a kernel.
    """
    if (types := dequantization(line)) is None:
        return {}
    levels, scales = line.right
    codes, narrow, wide = (_bits(kind, bits) for kind in types)
    bits_of_name = {line.name: wide, levels.name: 0, scales.name: narrow}
    bits_of_name |= dict.fromkeys(scales.names[1:], 0)
    return bits_of_name | dict.fromkeys(levels.names[1:], codes)


def _bits(kind: str, bits: int) -> int:
    return BLOCKS[kind].bits if kind in BLOCKS else 8 * BYTES[kind] if kind else bits


def makes_weight(line: Line) -> bool:
    """Return whether a line dequantizes a weight, or its scales."""
    return line.meta.layer == LAYER


def makes_scales(line: Line) -> bool:
    """Return whether a line dequantizes scales."""
    return makes_weight(line) and line.meta.local == SCALES


def made_again(table: Table) -> Table:
    """Return the step in which the backward pass dequantizes every weight again, so that no dequantized weight is
    saved."""
    if not any(makes_weight(line) for line, _ in walk(table.lines)):
        return table
    return recomputed(table, makes_weight)

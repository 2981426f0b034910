"""Matrix products of every kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from learncost.importer.axes import AxisClass
from learncost.importer.equations import NumberOperand
from learncost.importer.nodes import shape_of
from learncost.importer.operands import GivenTensor
from learncost.importer.reader import GraphReader
from learncost.importer.rule import rule
from learncost.importer.rules.movement import diagonal_of
from learncost.importer.rules.reductions import summed
from learncost.importer.rules.views import called
from learncost.importer.sized import settled
from learncost.importer.unit_dims import matrix_product
from learncost.importer.views import At, StoredValue, View


def shifted(reader: GraphReader, value: View, bias: Any) -> View:
    return value if bias is None else reader.add(value, bias)


@rule("linear")
def linear(reader: GraphReader, x: Any, weight: Any, bias: Any = None) -> View:
    x, weight = reader.view(x), reader.view(weight)
    called(x, "d")
    called(weight, *(("f", "d") if len(weight.dims) == 2 else ("d",)))
    front = [f"i{place}" for place in range(len(x.dims) - 1)]
    out = [*front, "f"] if len(weight.dims) == 2 else front
    letters = ["f", "d"] if len(weight.dims) == 2 else ["d"]
    if len(weight.dims) == 1:  # the name that it gives then
        reader.recorder.operator = "mv" if front else "dot"
    result = matrix_product(reader.recorder, x, weight, [*front, "d"], letters, out)
    return shifted(reader, result, bias)


def multiplied(reader: GraphReader, x: Any, z: Any) -> View:
    """Record torch.matmul: the last axis with the second to last, and all axes before them broadcast."""
    x, z = reader.view(x), reader.view(z)
    first = ["m", "n"] if len(x.dims) > 1 else ["n"]
    second = ["n", "p"] if len(z.dims) > 1 else ["n"]
    if len(z.dims) == 1 and reader.recorder.operator == "matmul":  # the name that it gives then
        reader.recorder.operator = "mv" if len(x.dims) > 1 else "dot"
    batch = max(len(x.dims) - len(first), len(z.dims) - len(second))
    front = [f"b{place}" for place in range(batch)]
    letters_x = [*front[batch - (len(x.dims) - len(first)) :], *first]
    letters_z = [*front[batch - (len(z.dims) - len(second)) :], *second]
    out = [*front, *first[:-1], *second[1:]]
    return matrix_product(reader.recorder, x, z, letters_x, letters_z, out)


@rule("mm", "bmm", "matmul", "mv", "dot", "vdot")
def mm(reader: GraphReader, x: Any, z: Any) -> View:
    return multiplied(reader, x, z)


@rule("addbmm")
def addbmm(reader: GraphReader, shift: Any, x: Any, z: Any, *, beta: Any = 1, alpha: Any = 1) -> View:
    result = summed(reader, multiplied(reader, x, z), [0])
    if alpha != 1:
        result = reader.multiply(result, alpha)
    return reader.add(shift if beta == 1 else reader.multiply(shift, beta), result)


@rule("einsum")
def einsum(
    reader: GraphReader, equation: str, operands: Sequence[Any], *, path: Sequence[int] | None = None, **__: Any
) -> View:
    """Record products of two operands at a time, in the order of torch's path, or from left to right without one."""
    equation = equation.replace(" ", "")
    ins, _, out = equation.partition("->")
    views = [reader.view(operand) for operand in operands]
    letters: list[list[str]] = []
    for text, view in zip(ins.split(","), views, strict=True):
        if "..." in text:
            before, after = text.split("...")
            count = len(view.dims) - len(before) - len(after)
            letters.append([*before, *[f"...{number}" for number in range(-count, 0)], *after])
        else:
            letters.append(list(text))
    flat = [letter for row in letters for letter in row]
    dots = sorted({letter for letter in flat if letter.startswith("...")}, key=lambda dot: int(dot[3:]))
    if "->" in equation:
        before, _, after = out.partition("...") if "..." in out else (out, "", "")
        outs = [*before, *dots, *after] if "..." in out else list(out)
    else:
        outs = [*dots, *sorted(letter for letter in set(flat) if flat.count(letter) == 1 and letter not in dots)]
    for place, row in enumerate(letters):
        while len(set(row)) < len(row):
            twice = next(letter for letter in row if row.count(letter) > 1)
            first, second, *_ = (dim for dim, letter in enumerate(row) if letter == twice)
            views[place] = diagonal_of(reader, views[place], first, second)
            row = [*(letter for dim, letter in enumerate(row) if dim not in (first, second)), twice]
            letters[place] = row
    flat = [letter for row in letters for letter in row]
    if len(views) > 1:  # an axis of a single operand is summed there
        for place, row in enumerate(letters):
            alone = [dim for dim, letter in enumerate(row) if letter not in outs and flat.count(letter) == 1]
            if alone:
                views[place] = summed(reader, views[place], alone)
                letters[place] = [letter for dim, letter in enumerate(row) if dim not in alone]
    for row, view in zip(letters, views, strict=True):
        for letter, dim in zip(row, view.dims, strict=True):
            if dim and letter.isalpha():
                root = dim[-1].axis.root
                root.letter = root.letter or letter
    reads = list(zip(views, letters, strict=True))
    pairs = list(zip(path[::2], path[1::2], strict=True)) if path else []
    while len(reads) > 2:
        first, second = sorted(pairs.pop(0)) if pairs else (0, 1)
        (x, row_x), (z, row_z) = reads[first], reads[second]
        rest = [read for place, read in enumerate(reads) if place not in (first, second)]
        later = {letter for _, row in rest for letter in row} | set(outs)
        kept = [letter for letter in dict.fromkeys([*row_x, *row_z]) if letter in later]
        made = (_paired(reader, [(x, row_x), (z, row_z)], kept), kept)
        reads = [*rest, made] if path else [made, *rest]
    if len(reads) == 1:
        view, row = reads[0]
        if sorted(row) == sorted(outs):
            return view.permuted([row.index(letter) for letter in outs])
        return reader.recorder.line([NumberOperand(1.0), (view, row)], outs)
    return _paired(reader, reads, outs)


def _paired(reader: GraphReader, reads: Sequence[tuple[View, Sequence[str]]], out: Sequence[str]) -> View:
    """Record the product of two operands; torch multiplies them element by element if nothing is summed."""
    (x, row_x), (z, row_z) = reads
    summed_letters = [letter for letter, dim in zip(row_x, x.dims, strict=True) if letter not in out and dim]
    reader.recorder.operator = "einsum" if summed_letters else "mul"
    if not summed_letters:
        return reader.recorder.line(list(reads), out)
    return matrix_product(reader.recorder, x, z, row_x, row_z, out)


@rule("affine_grid_generator")
def affine_grid(reader: GraphReader, theta: Any, _: Any, align_corners: bool = False) -> View:
    """Return the places of an image from -1 to 1, with a 1 behind each, times the matrix of each image."""
    sides = shape_of(reader.node)[1:-1]
    places = settled(reader, "an affine grid", partial(_places, align_corners), *sides)
    axes = [AxisClass(size) for size in (*sides, len(sides) + 1)]
    letters = [f"i{place}" for place in range(len(sides))]
    grid = (reader.given_numbers(places, *axes), [*letters, "d"])
    return reader.recorder.line([grid, (reader.view(theta), ["n", "e", "d"])], ["n", *letters, "e"])


def _places(align_corners: bool, *sides: int) -> Any:
    """Return the places of every point along its sides, the last side first, and 1."""

    def along(side: int, point: int) -> float:
        return (2 * point - (side - 1)) / max(side - 1 if align_corners else side, 1)

    def rows(point: tuple[int, ...]) -> Any:
        if len(point) < len(sides):
            return [rows((*point, each)) for each in range(sides[len(point)])]
        return [*(along(side, each) for side, each in zip(sides[::-1], point[::-1], strict=True)), 1.0]

    return rows(())


@rule("bilinear")
def bilinear(reader: GraphReader, x: Any, z: Any, weight: Any, bias: Any = None) -> View:
    x, z, weight = map(reader.view, (x, z, weight))
    front = [f"i{place}" for place in range(len(x.dims) - 1)]
    half = reader.recorder.matmul([(x, [*front, "d"]), (weight, "fde")], [*front, "f", "e"])
    return shifted(
        reader,
        reader.recorder.matmul([(half, [*front, "f", "e"]), (z, [*front, "e"])], [*front, "f"]),
        bias,
    )


@rule("transformers.grouped_mm_fallback", "_grouped_mm")
def grouped(reader: GraphReader, x: Any, weight: Any, offsets: Any = None, *_: Any, **__: Any) -> View:
    """Record a grouped product of rows: the matrix is indexed by the group of the row."""
    x, weight = reader.view(x), reader.view(weight)
    if not isinstance(offsets, GivenTensor) or len(x.dims) != 2 or len(weight.dims) != 3:
        raise reader.refusal("a grouped product without given offsets")
    weight.dims[0][0].axis.keep_whole()
    slots = x.dims[0]
    group = StoredValue("group", tuple(slot.axis for slot in slots), "groups", str(offsets.node.name))
    index = View.of(group, [len(slots)])
    experts = View(
        weight.stored,
        tuple(At(index) if each is weight.dims[0][0] else each for each in weight.index),
        (index.dims[0], *weight.dims[1:]),
        weight.spread,
    )
    return reader.recorder.line([(x, "sd"), (experts, "sdf")], "sf")

"""Rewrite the lines of a graph before they are printed: without dead code, gathers, and masks of causal softmaxes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from learncost.importer.equations import DimensionCondition, Equation, Item, NamedView, indices_of
from learncost.importer.views import StoredValue, View, ViewAxis
from learncost.ir.dataclass import replace

_Line = TypeVar("_Line", Equation, Item)


def needed(items: Sequence[_Line], outputs: Iterable[StoredValue]) -> list[_Line]:
    """Return the lines, or loops of lines, that outputs depend on, in order (dead code elimination)."""
    wanted = set(outputs)
    kept = []
    for item in reversed(items):
        if not wanted.isdisjoint(item.made):
            wanted.update(item.reads)
            kept.append(item)
    return kept[::-1]


def read_in_products(equations: Sequence[Equation], outputs: Iterable[StoredValue]) -> list[Equation]:
    """Fold a gather into the only product that sums over its index: `W[e=T[B M t] d f]`.

    The cost model then sees the matrix, and the selected rows use no memory. If the selected rows are the columns of a
    matrix, like vectors that are compared with queries, they remain an array.
    """
    readers: dict[StoredValue, list[Equation]] = {}
    for equation in equations:
        for stored in equation.reads:
            readers.setdefault(stored, []).append(equation)
    outputs = set(outputs)
    gathers = {equation.stored: equation for equation in equations if _is_gather(equation)}
    result = []
    for equation in equations:
        operands = list(equation.operands)
        for place, operand in enumerate(operands):
            gather = gathers.get(operand.view.stored) if isinstance(operand, NamedView) else None
            if gather is None or equation.kind != "product" or gather.stored in outputs:
                continue
            assert isinstance(operand, NamedView)
            view = operand.view.fresh()
            is_summed = any(letter not in equation.left[0].letters for letter in operand.letters)
            alone = readers[gather.stored] == [equation] and view.is_plain and len(operands) > 1
            if alone and is_summed and not _are_columns(equation, operand, gather):
                (source,) = gather.operands
                assert isinstance(source, NamedView)
                operands[place] = NamedView(through(view, gather, source), operand.letters)
        result.append(replace(equation, operands=tuple(operands)))
    return result


def _are_columns(equation: Equation, operand: NamedView, gather: Equation) -> bool:
    """Return whether a product with a gathered value is a matrix product by the axes of its index alone."""
    (source,) = gather.operands
    assert isinstance(source, NamedView)
    made, read, view = gather.left[0].view.fresh(), source.view.fresh(), operand.view.fresh()
    rows = dict(zip(source.letters, read.dims, strict=True))
    direct = set()
    for letter, row in zip(gather.left[0].letters, made.dims, strict=True):
        for mine, theirs in zip(row, rows[letter], strict=True):
            if any(each is theirs for each in read.index):
                place = next(number for number, each in enumerate(made.index) if each is mine)
                direct |= {
                    name for name, slots in zip(operand.letters, view.dims, strict=True) if view.index[place] in slots
                }
    others = {
        letter
        for each in equation.operands
        if isinstance(each, NamedView) and each is not operand
        for letter, row in zip(each.letters, each.view.dims, strict=True)
        if row
    }
    out = set(equation.left[0].letters)
    here = {name for name, row in zip(operand.letters, view.dims, strict=True) if row}
    return _is_of_matrices(here, others, out) and not _is_of_matrices(direct, others, out)


def _is_of_matrices(one: set[Hashable], other: set[Hashable], out: set[Hashable]) -> bool:
    """Return whether each factor keeps an axis that the other lacks, and both share a summed one."""
    return bool((one - other) & out and (other - one) & out and (one & other) - out)


def _is_gather(equation: Equation) -> bool:
    """Return whether a line does nothing but read a weight at an index."""
    if equation.kind != "product" or len(equation.operands) != 1 or len(equation.left) != 1 or equation.where:
        return False
    (operand,) = equation.operands
    return isinstance(operand, NamedView) and operand.view.stored.kind == "weight" and bool(indices_of(operand.view))


def through(view: View, line: Equation, source: NamedView) -> View:
    """Return a view of the value that a line makes as a view of one of its operands."""
    made, read = line.left[0].view.fresh(), source.view.fresh()
    rows = dict(zip(source.letters, read.dims, strict=True))
    slots: dict[ViewAxis, ViewAxis] = {}
    spread = set[ViewAxis]()
    for letter, row in zip(line.left[0].letters, made.dims, strict=True):
        theirs = rows.get(letter, ())
        for number, mine in enumerate(row):
            here = [each for each, index in zip(view.index, made.index, strict=True) if index is mine]
            for slot in (each for each in here if isinstance(each, ViewAxis)):
                if theirs:
                    slots[theirs[number]] = slot
                else:
                    spread.add(slot)
    moved = read.swapped(slots)
    return View(moved.stored, moved.index, view.dims, moved.spread | spread)


def before_masks(equations: Sequence[Equation]) -> list[Equation]:
    """Return the lines in which the softmax of causal scores reads them before their mask, under a condition."""
    makers = {each.stored: each for each in equations if each.hides is not None}
    return [_before_mask(each, makers) for each in equations]


def _before_mask(equation: Equation, makers: Mapping[StoredValue, Equation]) -> Equation:
    first = equation.operands[0] if equation.op == "softmax" else None
    line = makers.get(first.view.stored) if isinstance(first, NamedView) else None
    if line is None or line.hides is None or not isinstance(first, NamedView) or len(first.letters) < 2:
        return equation
    (place, mask), view, made = line.hides, first.view.fresh(), line.left[0].view.fresh()
    source, (row, column) = line.operands[place], first.letters[-2:]
    at = [[n for n, each in enumerate(of.index) if each in of.dims[dim]] for of in (view, made) for dim in (-2, -1)]
    if not view.is_plain or at[:2] != at[2:] or any(len(each) != 1 for each in at) or equation.acts != (column,):
        return equation
    assert isinstance(source, NamedView)
    scores = through(view, line, source)
    if any(slot in scores.spread for slots in scores.dims[-2:] for slot in slots):
        return equation
    where = DimensionCondition(column, "<=", row, mask.window)
    return replace(equation, operands=(NamedView(scores, first.letters), *equation.operands[1:]), where=(where,))

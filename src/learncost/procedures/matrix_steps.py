"""The steps of optimizers that multiply and sum whole matrices: Muon, Adafactor, SOAP.

A step is a layer of the table language in which letters stand for the axes of a weight: w all of them, d and f its two
sides, i what a layer reads and o what it puts out, _ the stack of matrices, and c, b and e the sides again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from math import prod
from pathlib import Path

from learncost.ir.dataclass import replace
from learncost.ir.line import Line
from learncost.ir.loop import Statement, map_lines, map_loops
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.layers.layer import Layer, layer
from learncost.ops.optimizers import LARGEST_SIDE, Optimizer
from learncost.procedures.optimizer import Matrix


def matrix_step(
    tables: str,
    weight: Term,
    gradient: Term,
    matrix: Matrix,
    numbers: Mapping[str, str],
    sizes: Mapping[str, int],
    module: str = "",
) -> tuple[list[Statement], dict[str, Value]]:
    """Return the lines of the step of one weight, and the Values of their results and of the states.

    numbers  the names in the step of the numbers that all weights share
    sizes    those that are known: they say which side is the shorter
    """
    owner, table = weight.name, _table(tables, matrix, sizes)
    names = {name: f"{owner}:{name}" for name in table.values}
    names |= {"W": owner, "G": gradient.name, "U": f"{owner}.new"} | dict(numbers)
    states = [name for name, value in table.values.items() if name in table.inputs and value.axes and name not in "WG"]
    names |= {name: f"{owner}.{name}" for name in states} | {f"{name}2": f"{owner}.{name}.new" for name in states}
    values = {names[name]: Value(value.axes) for name, value in table.values.items() if name not in table.inputs}
    values |= {names[name]: Value(table.axes[name], "state", owner) for name in states}
    values[names["U"]] = Value(weight.declared, "new", owner)
    values |= {names[f"{name}2"]: Value(table.axes[name], "new", names[name]) for name in states if f"{name}2" in names}
    renamed = [line.renamed(names) for line in table.lines]
    inner = map_loops(renamed, lambda loop: loop.with_own({name: f"{owner}:{name}" for name in loop.inside}))

    def of_step(line: Line) -> tuple[Line, ...]:
        meta = replace(line.meta, layer="optimizer", block=None, phase="optimizer_step", module=module)
        return (replace(line, meta=meta),)

    return [*map_lines(inner, of_step)], values


def _table(tables: str, matrix: Matrix, sizes: Mapping[str, int]) -> Table:
    """Return the table of the step of a weight, of which some axes may be numbers or groups of blocks."""
    stand_in = {axis: f"of{place}" for place, axis in enumerate(matrix.axes) if axis.isdigit() or "/" in axis}
    if not stand_in:
        return step_layer(tables, matrix, sizes).table
    axes, stack, rows = (tuple(stand_in.get(a, a) for a in side) for side in (matrix.axes, matrix.stack, matrix.rows))
    table = step_layer(tables, replace(matrix, axes=axes, stack=stack, rows=rows), sizes).table
    numbers = {name: axis for axis, name in stand_in.items()}

    def renamed(values: Mapping[str, Value]) -> dict[str, Value]:
        return {k: replace(v, axes=tuple(numbers.get(axis, axis) for axis in v.axes)) for k, v in values.items()}

    lines = map_lines(table.lines, lambda line: (line.renamed({}, numbers),))
    lines = map_loops(lines, lambda loop: replace(loop, values=renamed(loop.values)))
    return replace(table, lines=lines, values=renamed(table.values))


def _size(axes: Axes, sizes: Mapping[str, int]) -> int | None:
    """Return the number of entries along axes; None if a size is open."""
    known = [sizes.get(base(axis)) for axis in axes]
    return None if None in known else prod(size or 0 for size in known)


def has_step(optimizer: Optimizer, matrix: Matrix | None, sizes: Mapping[str, int]) -> bool:
    """Return whether an optimizer's tables have a step of a weight; others are stepped element by element."""
    if not optimizer.op:
        return True
    if matrix is None or not matrix.rows or (optimizer.hidden and not matrix.hidden):
        return False
    return optimizer.tables != SOAP or any(_preconditioned(axes, sizes) for axes in (matrix.rows, matrix.columns))


SOAP = "soap"


def _preconditioned(axes: Axes, sizes: Mapping[str, int]) -> bool:
    return (_size(axes, sizes) or 1) <= LARGEST_SIDE


@lru_cache(maxsize=256)
def lettered(text: str, letters: tuple[tuple[str, str], ...]) -> Layer:
    """Return the layer of a text with the axes in the place of its letters."""
    axes = dict(letters)
    comment, header, body = re.split(r"^(\w+\(.*\n)", text, maxsplit=1, flags=re.MULTILINE)
    wanted = "|".join(axes)
    return layer(comment + header + re.sub(rf"(?<![\w.'])({wanted})(?![\w.'])", lambda found: axes[found[1]], body))


def step_layer(tables: str, matrix: Matrix, sizes: Mapping[str, int] = {}) -> Layer:
    """Return the step of a weight as a layer."""
    ins, outs = _size(matrix.rows, sizes) or 1, _size(matrix.columns, sizes) or 1
    short, long = (matrix.rows, matrix.columns) if outs > ins else (matrix.columns, matrix.rows)
    if tables == SOAP:
        text = _soap(*(_preconditioned(axes, sizes) for axes in (short, long)))
    else:
        name = tables if matrix.rows else f"{tables}_of_vectors"
        text = Path(__file__).with_name(f"{name}.table").read_text(encoding="utf-8")
    taken = {*matrix.axes}

    def fresh(axis: str) -> str:
        """Return the axis with as many primes as no other one of its size has, as W[d d'] has two."""
        while axis in taken:
            axis += "'"
        taken.add(axis)
        return axis

    again = {axis: fresh(axis) for axis in matrix.axes}

    def axes(*primed: Axes) -> str:
        of_sides = [axis for side in primed for axis in side]
        return " ".join(again[axis] if axis in of_sides else axis for axis in matrix.axes)

    letters = {
        "w": axes(),
        "v": axes(short),
        "u": axes(long),
        "x": axes(short, long),
        "d": " ".join(short),
        "c": " ".join(again[axis] for axis in short),
        "b": " ".join(map(fresh, short)),
        "f": " ".join(long),
        "e": " ".join(again[axis] for axis in long),
        "i": " ".join(matrix.rows),
        "o": " ".join(matrix.columns),
        "_": " ".join(matrix.stack),
    }
    return lettered(text, tuple(letters.items()))


def _soap(short: bool, long: bool) -> str:
    """Return SOAP's step between two decompositions, which precede every tenth step, with a basis of one or both sides.

    As in nikhilvyas/SOAP a1e5535, soap.py: gradients are projected into the basis, where AdamW's step is, and back.
    The average of gradients is projected out of the basis and in again. Vyas et al. 2024, SOAP, Algorithm 3.
    """
    sides = [side for side, there in (("P L d c v", short), ("Q R f e u", long)) if there]

    def projected(name: str, result: str, back: bool = False) -> list[str]:
        """Return the products of a matrix with each basis: the sides of what they read are primed."""
        before = ["x", "u"] if len(sides) > 1 else [axes for *_, axes in map(str.split, sides)]
        made = [f"{result}_half[u]", f"{result}[w]"][-len(sides) :]
        lines, source = [], f"{name}[{before[0]}]"
        for side, product in zip(sides, made, strict=True):
            basis, _, one, again, _ = side.split()
            lines.append(f"{product} = {basis}[_ {f'{one} {again}' if back else f'{again} {one}'}] {source}")
            source = product
        return lines

    averages = [
        line
        for _, kept, old, new, axes in map(str.split, sides)
        for line in (
            f"{kept}_gram[_ {old} {new}] = G[w] G[{axes}]",
            f"{kept}_new[_ {old} {new}] = {kept}_gram[_ {old} {new}] c2[]",
            f"{kept}_old[_ {old} {new}] = {kept}[_ {old} {new}] b2[]",
            f"{kept}2[_ {old} {new}] = {kept}_old[_ {old} {new}] + {kept}_new[_ {old} {new}]",
        )
    ]
    kept = [side.split()[1] for side in sides]
    bases = [side.split()[0] for side in sides]
    states = " ".join(("M", "V", *kept, *bases))
    results = " ".join(("U", "M2", "V2", *(f"{name}2" for name in kept)))
    lines = (
        *projected("G", "seen"),
        "M_old[w] = M[w] b1[]",
        "M_new[w] = seen[w] c1[]",
        "average[w] = M_old[w] + M_new[w]",
        "squared[w] = seen[w] seen[w]",
        "V_old[w] = V[w] b2[]",
        "V_new[w] = squared[w] c2[]",
        "V2[w] = V_old[w] + V_new[w]",
        "root[w] = sqrt(V2[w])",
        "denominator[w] = root[w] + eps[]",
        "direction[w] = divide(average[w], denominator[w])",
        *projected("direction", "update", back=True),
        "corrected[] = sqrt(k2[])",
        "larger[] = lr[] k1[]",
        "rate[] = divide(larger[], corrected[])",
        "S[w] = update[w] rate[]",
        "stepped[w] = W[w] - S[w]",
        "U[w] = stepped[w] decay[]",
        *projected("average", "outside", back=True),
        *averages,
        *projected("outside", "M2"),
    )
    return f"soap(W G {states} lr b1 c1 b2 c2 k1 k2 eps decay) -> {results}\n" + "".join(
        f"  {line}\n" for line in lines
    )

"""Project the gradients of matrices to a few directions, in which the optimizer steps and stores its state."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache
from math import prod
from pathlib import Path

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, map_lines, map_loops
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Axes, Value
from learncost.layers.layer import layer
from learncost.models.model import Model
from learncost.ops import applied
from learncost.ops.optimizers import OPTIMIZERS
from learncost.procedures.directions import NUMBER, Directions, Site, sites
from learncost.procedures.needed import needed
from learncost.procedures.places import linears
from learncost.procedures.procedure import Procedure

_FILE = "singular_vectors.table"


def singular_vectors(
    matrix: Term, stack: Axes, rows: str, side: Axes, made: Term, meta: Meta
) -> tuple[list[Statement], dict[str, Value]]:
    """Return the lines that compute a matrix's singular vectors along a side, largest first, and their Values.

    stack  the axes of a stack of matrices
    rows   the axis whose rows are rotated, which is the side or the whole other side
    side   the axes of the vectors
    made   the vectors, with the axes stack, side and rank
    """
    others = tuple(axis for axis in matrix.declared if axis not in (*stack, rows))
    again = f"{rows}'"
    while again in matrix.declared:
        again += "'"
    table = _table(stack, rows, again, others, "P" if side == (rows,) else "Q")
    rank = made.declared[-1]
    names = {name: f"{made.name}:{name}" for name in table.values} | {table.outputs[0]: made.name}
    axes = {_RANK: rank}
    lines: list[Statement] = []
    first = Term(names["X"], (*stack, rows, *others))
    if first.axes == matrix.axes:
        names["X"] = matrix.name
    else:
        lines.append(Product((first,), (matrix,), (), meta))
    for line in table.lines:
        if isinstance(line, Loop):
            lines += map_loops((line.renamed(names),), lambda loop: _of(made.name, loop))
        else:
            lines.append(line.renamed(names, axes))
    values = {
        names[name]: replace(value, axes=tuple(axes.get(a, a) for a in value.axes), of=names.get(value.of, value.of))
        for name, value in table.values.items()
        if names[name] != matrix.name
    }
    values[made.name] = Value(made.declared)
    return [*map_lines(lines, lambda line: (replace(line, meta=meta),))], values


_RANK = "rank"


@lru_cache(maxsize=64)
def _table(stack: Axes, rows: str, again: str, others: Axes, wanted: str) -> Table:
    """Return the table of singular vectors with these axes, and only the lines for the vectors of one side."""
    _, header, body = re.split(r"^(singular_vectors.*\n)", _text(), maxsplit=1, flags=re.MULTILINE)
    letters = {"_": " ".join(stack), "d": rows, "c": again, "f": " ".join(others), "r": _RANK}
    table = layer(header + re.sub(r"(?<![\w.'])(_|d|c|f|r)(?![\w.'])", lambda found: letters[found[1]], body)).table
    return needed(replace(table, outputs=tuple(name for name in table.outputs if name == wanted)), (wanted,))


@cache
def _text() -> str:
    return Path(__file__).with_name(_FILE).read_text(encoding="utf-8")


def _of(owner: str, repeat: Loop) -> Loop:
    """Return the loop with its inner names prefixed by the owner's name, since execution identifies lines by name."""
    return repeat.with_own({name: f"{owner}:{name}" for name in repeat.inside})


_META = Meta("optimizer", phase="optimizer_step", local="projection")


def with_projection(table: Table, model: Model, chosen: Procedure, renews: bool = False) -> Table:
    """Return the step in which every matrix in blocks changes by P U, where U is the optimizer's update for P^T G.

    P is either random or computed. Random signs, divided by the root of the rank, are drawn again wherever they are
    read and change every `held` steps: Hao et al. 2024, Flora, section 2. Computed directions are the leading singular
    vectors of G along the smaller side of the matrix; a step that `renews` computes them, and they are kept for `held`
    steps: Zhao et al. 2024, GaLore, algorithm 2, which scales P U by `scale`. The optimizer's state has the rank in
    place of a side. Decoupled weight decay, as in AdamW, applies to the full weight. Raises `InputError` if no matrix
    is projected, or if more directions are drawn than the side has entries.
    """
    if NUMBER in table.inputs:
        raise InputError(
            f"{chosen.name} projects the gradients of a backward pass: random directions cannot be combined with it"
        )
    projecting = _Projecting(table, model, chosen, renews)
    lines: list[Statement] = []
    for line in table.lines:
        matrix = projecting.matrix_of(line)
        lines += [line] if matrix is None or not isinstance(line, Op) else projecting.stepped(line, matrix)
    if not projecting.done:
        name = model.configuration.name
        raise InputError(f"{chosen.name} needs trainable matrices in blocks, one per block, which {name} does not have")
    values, inputs = {**table.values, **projecting.values}, (*table.inputs, *projecting.states)
    outputs = (*table.outputs, *(f"{name}.new" for name in projecting.states if renews))
    if not chosen.finds:
        first = next(
            i for i, line in enumerate(lines) if isinstance(line, Line) and line.meta.phase == "optimizer_step"
        )
        lines[first:first] = [replace(line, meta=_META) for line in projecting.directions.lines]
        values |= projecting.directions.values
        inputs += (projecting.directions.drawn_by,)
    return replace(table, lines=tuple(lines), values=values, inputs=inputs, outputs=outputs)


@dataclass(frozen=True)
class _ProjectedMatrix:
    """A matrix of blocks: the positions of the axes that a product sums and of the others. One is a single axis."""

    site: Site
    summed: tuple[int, ...]
    others: tuple[int, ...]

    @property
    def alone(self) -> tuple[int, ...]:
        """Return the side with one axis: the summed one if both have one."""
        return self.summed if len(self.summed) == 1 else self.others


class _Projecting:
    """The rewriting of the optimizer's lines for the matrices of a model's blocks."""

    def __init__(self, table: Table, model: Model, chosen: Procedure, renews: bool) -> None:
        self.table, self.model, self.chosen, self.renews = table, model, chosen, renews
        self.rank = chosen.projected_to
        self.directions = Directions("held.draw", f"{NUMBER}/{chosen.held}")
        self.values: dict[str, Value] = {}
        self.states: list[str] = []
        self.done: list[str] = []
        self.places = {
            weight: matrix for weight in model.learning if (matrix := next(_matrix(model.table, weight), None))
        }

    def matrix_of(self, line: Statement) -> _ProjectedMatrix | None:
        """Return the block matrix that a line of the optimizer updates; None for any other line."""
        stepped = isinstance(line, Op) and line.op in OPTIMIZERS and line.meta.phase == "optimizer_step"
        return self.places.get(line.right[0].name) if stepped and isinstance(line, Op) else None

    def stepped(self, line: Op, matrix: _ProjectedMatrix) -> list[Statement]:
        """Return the lines of one matrix: P, P^T G, the optimizer's line, and the weight plus P U."""
        operands = dict(zip(line.given, line.right, strict=True))
        weight, gradient = operands["W"], operands["G"]
        assert isinstance(weight, Term)
        assert isinstance(gradient, Term)
        name, axes, counts = weight.name, weight.declared, matrix.site.counts
        if self.chosen.finds:
            lines, directions = self._found(name, gradient, matrix)
            before, after = Literal(), Literal(self.chosen.scale)
        else:
            lines, directions = self._drawn(name, axes, matrix)
            before = after = Literal(self.rank**-0.5)
        side, rank = directions.declared[len(counts) : -1], directions.declared[-1]
        low_axes = tuple(rank if axis == side[0] else axis for axis in axes if axis not in side[1:])

        def low(part: str) -> Term:
            return Term(f"{name}.{part}", low_axes)

        zero, seen, step = low("zero"), low("seen"), low("step")
        back, left, new = (Term(each, axes) for each in (f"{name}.back", f"{name}.left", line.left[0].name))
        states = {
            term.name: Term(term.name, low_axes)
            for key, term in operands.items()
            if isinstance(term, Term) and term.axes and key not in ("W", "G")
        }
        right = tuple(states.get(term.name, term) if isinstance(term, Term) else term for term in line.right)
        right = tuple(
            {weight.name: zero, gradient.name: seen}.get(t.name, t) if isinstance(t, Term) else t for t in right
        )
        made = tuple(Term(term.name, low_axes) for term in line.left[1:])
        self.values |= {term.name: Value(term.declared) for term in (zero, step, back)}
        self.values[seen.name] = Value(low_axes, "part", name)
        for term in (*states.values(), *made):
            self.values[term.name] = replace(self.table.values[term.name], axes=low_axes)
        self.done.append(name)
        kept = weight
        if "decay" in line.given:
            kept = left
            self.values[left.name] = Value(axes)
        return [
            *lines,
            Product((seen,), (directions, gradient, *_factor(before)), (), _META),
            applied("zeros", zero, (), _META),
            replace(line, left=(step, *made), right=right),
            Product((back,), (directions, step, *_factor(after)), (), _META),
            *([Product((left,), (weight, operands["decay"]), (), _META)] if kept is left else []),
            Sum((new,), (kept, back), (), _META, (1, 1)),
        ]

    def _drawn(self, name: str, axes: Axes, matrix: _ProjectedMatrix) -> tuple[list[Statement], Term]:
        """Return the lines that draw a random P of signs, and its term."""
        counts = matrix.site.counts
        axis = axes[len(counts) + matrix.alone[0]]
        there = self._size((axis,))
        if there is not None and there < self.rank:
            raise InputError(
                f"{self.chosen.name} draws {self.rank} directions, and {name} has {there} entries along {axis}: "
                f"project to fewer directions, or to singular vectors"
            )
        made = Term(f"{name}.P", (*counts, axis, str(self.rank)))
        seed = Term(self.directions.seed(name, counts), counts)
        lines, known = self.directions.drawn(seed, (axis, str(self.rank)), made.name, _META)
        self.values |= known
        return [*lines], made

    def _found(self, name: str, gradient: Term, matrix: _ProjectedMatrix) -> tuple[list[Statement], Term]:
        """Return the lines that compute a new P, or none if the stored one is used, and its term.

        P has at most as many vectors as the smaller side has entries. If both sides have the same size, the summed one
        is projected, as in the authors' code.
        """
        counts, axes = matrix.site.counts, gradient.declared

        def named(places: tuple[int, ...]) -> Axes:
            return tuple(axes[len(counts) + place] for place in places)

        alone, summed, others = map(named, (matrix.alone, matrix.summed, matrix.others))
        first, second = self._size(summed), self._size(others)
        side = alone if first is None or second is None else summed if first <= second else others
        rank = min(self.rank, self._size(side) or self.rank)
        kept = Term(f"{name}.P", (*counts, *side, str(rank)))
        if self.chosen.held > 1:
            self.values[kept.name] = Value(kept.declared, "state", name)
            self.states.append(kept.name)
        if not self.renews:
            return [], kept
        found = Term(f"{name}.P.new", kept.declared)
        rows = side[0] if len(side) == 1 else alone[0]
        lines, known = singular_vectors(gradient, counts, rows, side, found, _META)
        self.values |= known
        self.values[found.name] = Value(found.declared, "new", kept.name) if self.states else Value(found.declared)
        return lines, found

    def _size(self, axes: Axes) -> int | None:
        """Return the number of entries along axes; None if a size is open."""
        sizes = [self.model.sizes.get(base(axis)) for axis in axes]
        return None if None in sizes else prod(size or 0 for size in sizes)


def _factor(share: Literal) -> tuple[Literal, ...]:
    """Return a number as factors of a product: none if it is 1."""
    return () if share == Literal() else (share,)


def _matrix(table: Table, weight: str) -> Iterator[_ProjectedMatrix]:
    """Yield the matrix of a weight in blocks that is a factor of a summing product."""
    for site in sites(table, weight):
        for line, i in linears(site.place):
            term = line.right[i]
            if not site.place.repeats or not isinstance(term, Term) or term.name != site.name or term.indexed:
                continue
            summed = tuple(at for at, axis in enumerate(term.axes) if axis not in line.left[0].loops)
            others = tuple(at for at in range(len(term.axes)) if at not in summed)
            if 1 in (len(summed), len(others)):
                yield _ProjectedMatrix(site, summed, others)
                return

"""Projected gradients: the optimizer sees a matrix's gradient in a few drawn directions, and has its state there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from learncost.equation.errors import InputError
from learncost.equation.table import Line, Literal, Product, Statement, Sum, Table, Tag, Term, Word
from learncost.equation.value import Value
from learncost.models.model import Model
from learncost.procedures.directions import NUMBER, Directions, Site, sites
from learncost.procedures.places import linears
from learncost.procedures.procedure import Procedure
from learncost.vocabulary.optimizers import OPTIMIZERS

_TAG = Tag("optimizer", macro="optimizer_step", local="projection")


def with_projection(table: Table, model: Model, chosen: Procedure, rank: int) -> Table:
    """The step in which every matrix of the blocks is stepped as P U, of what the optimizer makes of P^T G and zeros.

    P has signs over the root of the rank, drawn again where it is read, another one every so many steps (`held`): Hao
    et al. 2024, Flora, section 2, in the place of the gradient's singular vectors of Zhao et al. 2024, GaLore. So the
    optimizer's state has the rank in the place of an axis. A share that the optimizer takes off weights by itself, as
    AdamW does, is that of the whole weight.
    Raises `InputError` where nothing is projected.
    """
    if NUMBER in table.inputs:
        raise InputError(f"{chosen.name} projects gradients of a backward pass: directions are drawn already")
    projecting = _Projecting(table, model, chosen, rank)
    lines: list[Statement] = []
    for line in table.lines:
        at = projecting.axis_of(line)
        lines += [line] if at is None or not isinstance(line, Word) else projecting.stepped(line, at)
    if not projecting.done:
        name = model.configuration.name
        raise InputError(f"{chosen.name} needs matrices that blocks have for themselves: {name} has none that learn")
    first = next(i for i, line in enumerate(lines) if isinstance(line, Line) and line.tag.macro == "optimizer_step")
    drawn = [replace(line, tag=_TAG) for line in projecting.directions.lines]
    lines[first:first] = drawn
    values = {**table.values, **projecting.directions.values, **projecting.values}
    inputs = (*table.inputs, projecting.directions.drawn_by)
    return replace(table, lines=tuple(lines), values=values, inputs=inputs)


class _Projecting:
    """The matrices of a model's blocks, and what is made of their optimizer's lines."""

    def __init__(self, table: Table, model: Model, chosen: Procedure, rank: int) -> None:
        self.table, self.rank = table, rank
        self.directions = Directions("held.draw", f"{NUMBER}/{chosen.held}")
        self.values: dict[str, Value] = {}
        self.done: list[str] = []
        self.places = {
            weight: matrix for weight in model.learning if (matrix := next(_matrix(model.table, weight), None))
        }

    def axis_of(self, line: Statement) -> tuple[Site, int] | None:
        """Where a line of the optimizer steps a matrix of the blocks, and which of its axes is projected."""
        stepped = isinstance(line, Word) and line.word in OPTIMIZERS and line.tag.macro == "optimizer_step"
        return self.places.get(line.right[0].name) if stepped and isinstance(line, Word) else None

    def stepped(self, line: Word, at: tuple[Site, int]) -> list[Line]:
        """The lines of one matrix: P, P^T G, the optimizer's own, and the weight with P U."""
        site, place = at
        operands = dict(zip(line.given, line.right, strict=True))
        weight, gradient = operands["W"], operands["G"]
        assert isinstance(weight, Term)
        assert isinstance(gradient, Term)
        name, axes, counts = weight.name, weight.declared, site.counts
        axis, rank = axes[len(counts) + place], str(self.rank)
        low_axes = tuple(rank if i == len(counts) + place else each for i, each in enumerate(axes))
        seed = self.directions.seed(name, counts)
        drawn, known = self.directions.signs(Term(seed, counts), (axis, rank), f"{name}.P", _TAG)
        matrix = Term(f"{name}.P", (*counts, axis, rank))
        share = Literal(self.rank**-0.5)

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
        self.values |= {**known, seen.name: Value(low_axes, "part", name)}
        for term in (*states.values(), *made):
            self.values[term.name] = replace(self.table.values[term.name], axes=low_axes)
        self.done.append(name)
        kept, lines = weight, list[Line]()
        if "decay" in line.given:
            kept = left
            self.values[left.name] = Value(axes)
            lines.append(Product((left,), (weight, operands["decay"]), (), _TAG))
        return [
            *drawn,
            Product((seen,), (matrix, gradient, share), (), _TAG),
            Word((zero,), (), (), _TAG, word="zeros", gives=("Y",)),
            replace(line, left=(step, *made), right=right),
            Product((back,), (matrix, step, share), (), _TAG),
            *lines,
            Sum((new,), (kept, back), (), _TAG, (1, 1)),
        ]


def _matrix(table: Table, weight: str) -> Iterator[tuple[Site, int]]:
    """Where a weight of blocks is a factor of a product that sums, and the place of the axis that stands alone there.

    That is the summed one, or where there are several of these the one that is not.
    """
    for site in sites(table, weight):
        for line, i in linears(site.place):
            term = line.right[i]
            if not site.place.repeats or not isinstance(term, Term) or term.name != site.name or term.indexed:
                continue
            summed = [at for at, axis in enumerate(term.axes) if axis not in line.left[0].loops]
            others = [at for at in range(len(term.axes)) if at not in summed]
            for places in (summed, others):
                if len(places) == 1:
                    yield site, places[0]
                    return

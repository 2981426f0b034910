"""Rewrite a step for feedback alignment: products of the backward pass read other matrices in place of weights."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.parse import parse_lines
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.ops import entry

WEIGHT = "W"
"""The name in these lines of the weight that is replaced."""


def with_feedback(table: Table, name: str, lines: Sequence[str] = ()) -> Table:
    """Return the step in which every backward product that sums over an axis of a weight W reads `W.name` instead.

    Lines compute `W.name` from W and other matrices of the same shape, as in `V[_] = S[_] F[_]`; a name without a line
    is a fixed random matrix, which is an input of the step. Elementwise weights, such as the gain of a norm, are read
    unchanged.
    """
    return _Feedback(name, lines).step(table)


def matrix_lines(texts: Sequence[str]) -> tuple[Line, ...]:
    """Return the parsed lines that compute a matrix entry by entry, as in `F[_] = sign(W[_])`, where `[_]` is the
    weight's shape.

    Raises `InputError` for other lines.
    """
    lines: list[Line] = []
    for text in texts:
        line = next(iter(parse_lines([text])), None)
        by_entry = isinstance(line, Line) and not line.where and (not isinstance(line, Op) or _pointwise(line))
        terms = (*line.left, *line.right) if isinstance(line, Line) else ()
        if not by_entry or any(term.axes != ("_",) for term in terms if not isinstance(term, Literal)):
            raise InputError(
                f"{text.strip()}: a matrix must be computed entry by entry, from matrices [_], numbers such as "
                f"0.5[] and elementwise ops: write F[_] = sign(W[_])"
            )
        assert isinstance(line, Line)
        lines.append(line)
    return tuple(lines)


def _pointwise(line: Op) -> bool:
    op = entry(line.op)  # raises an error for an unknown op
    return op.pointwise and not line.axes and len(line.left) == 1


class _Feedback:
    """The matrices that are read for a weight: computed by lines (`made_names`), or random inputs (`drawn`)."""

    def __init__(self, name: str, lines: Sequence[str]) -> None:
        self.name = name
        self.lines = matrix_lines(lines)
        self.made_names = [line.name for line in self.lines]
        read = dict.fromkeys((name, *(read_name for line in self.lines for read_name in line.reads)))
        self.drawn = [read_name for read_name in read if read_name not in (*self.made_names, WEIGHT)]

    def step(self, table: Table) -> Table:
        lines, read = self.scope(table.lines, frozenset(table.weights))
        values = dict(table.values)
        lines = self.with_made(lines, read, values)
        return replace(table, lines=lines, values=values, inputs=(*table.inputs, *self.names_of(read, self.drawn)))

    def scope(
        self, lines: Iterable[Statement], weights: frozenset[str]
    ) -> tuple[tuple[Statement, ...], dict[str, Line]]:
        """Return the rewritten lines of a scope, and the outer weights that they replace, each with its first
        reader."""
        statements: list[Statement] = []
        read: dict[str, Line] = {}
        for line in lines:
            if isinstance(line, Loop):
                line, names = self.repeat(line, weights)
            else:
                names = dict.fromkeys(_summed(line) & weights, line)
                places = {weight: f"{weight}.{self.name}" for weight in names}
                line = replace(line, right=tuple(term.renamed(places) for term in line.right))
            statements.append(line)
            read = names | read
        return tuple(statements), read

    def repeat(self, line: Loop, weights: frozenset[str]) -> tuple[Loop, dict[str, Line]]:
        """Return a loop whose iterations read slices of stacks of random matrices."""
        slices = dict(line.each)
        inside = frozenset(slice_name for slice_name, outer in slices.items() if outer in weights)
        lines, read = self.scope(line.lines, inside | (weights - line.inside))
        own_reads = {weight: first for weight, first in read.items() if weight in inside}
        values = dict(line.values)
        lines = self.with_made(lines, own_reads, values)
        still = {read_name for statement in lines for read_name in statement.reads}
        each = [pair for pair in line.each if pair[0] not in own_reads or pair[0] in still]
        outer = [slices[weight] for weight in own_reads]
        each += zip(self.names_of(own_reads, self.drawn), self.names_of(outer, self.drawn), strict=True)
        repeat = replace(line, lines=lines, values=values, each=tuple(each))
        return repeat, {slices.get(weight, weight): first for weight, first in read.items()}

    def with_made(
        self, lines: Iterable[Statement], read: dict[str, Line], values: dict[str, Value]
    ) -> tuple[Statement, ...]:
        """Return the lines of the scope that owns the weights, with the lines that compute their replacements."""
        statements: list[Statement] = []
        waiting = dict(read)
        for line in lines:
            for weight in [weight for weight in waiting if f"{weight}.{self.name}" in line.reads]:
                statements += self.making(weight, values[weight].axes, waiting.pop(weight))
            statements.append(line)
        for weight in read:
            new_names = self.names_of([weight], [*self.drawn, *self.made_names])
            values |= dict.fromkeys(new_names, Value(values[weight].axes, "projection", weight))
        return tuple(statements)

    def names_of(self, weights: Iterable[str], names: Iterable[str]) -> list[str]:
        return [f"{weight}.{name}" for weight in weights for name in names]

    def making(self, weight: str, axes: tuple[str, ...], reader: Line) -> Iterator[Line]:
        """Yield the lines that compute the replacement of a weight, in the layer that reads it."""
        for line in self.lines:
            left, *right = (
                term
                if isinstance(term, Literal)
                else Term(weight if term.name == WEIGHT else f"{weight}.{term.name}", axes)
                for term in (*line.left, *line.right)
            )
            assert isinstance(left, Term)
            local = tuple(term.name for term in line.right if isinstance(term, Term))
            meta = replace(reader.meta, local=line.name, locals=local, equation="", gradients=(), jacobian="")
            made_line = replace(line, left=(left,), right=tuple(right), meta=meta)
            if isinstance(made_line, Op):
                op = entry(made_line.op)
                made_line = replace(made_line, op=op.name, given=op.inputs, gives=op.outputs)
            yield made_line


def _summed(line: Line) -> frozenset[str]:
    """Return the factors of a backward product that have a summed axis; none for any other line."""
    if not isinstance(line, Product) or line.meta.phase != "backward":
        return frozenset()
    remaining = set(line.left[0].loops)
    return frozenset(
        term.name for term in line.right if isinstance(term, Term) and not remaining.issuperset(term.loops)
    )


def with_following(table: Table, name: str, decay: float) -> Table:
    """Return the step in which every `W.name` changes by the optimizer's step of W, and both decay by a share.

    Their difference then shrinks by that share in every step, independently of the gradients: Kolen & Pollack 1994,
    Backpropagation without weight transport. The optimizer has one state for both.
    """
    values, lines, outputs = dict(table.values), list[Statement](table.lines), list(table.outputs)
    followed = {
        other: value.of
        for other in table.inputs
        if (value := values[other]).role == "projection" and other == f"{value.of}.{name}"
    }
    for other, weight in followed.items():
        new = table.renewed.get(weight)
        if new is None:  # there is no optimizer step here, or the weight is frozen
            continue
        axes = values[weight].axes
        left, left_there, step = (Term(f"{weight}.{part}", axes) for part in ("left", f"{name}.left", "step"))
        at = next(place for place, line in enumerate(lines) if isinstance(line, Line) and new in line.makes)
        optimizing = lines[at]
        assert isinstance(optimizing, Line)
        right = tuple(left if term.name == weight else term for term in optimizing.right)
        meta = Meta("optimizer", phase="optimizer_step", local=f"{name} follows")
        last, share = Term(f"{other}.new", axes), Literal(1 - decay)
        lines[at : at + 1] = [
            Product((left,), (Term(weight, axes), share), (), meta),
            Product((left_there,), (Term(other, axes), share), (), meta),
            replace(optimizing, right=right),
            Sum((step,), (Term(new, axes), left), (), meta, (1, -1)),
            Sum((last,), (left_there, step), (), meta, (1, 1)),
        ]
        values |= {term.name: Value(axes) for term in (left, left_there, step)}
        values[last.name] = Value(axes, "new", other)
        outputs.append(last.name)
    return replace(table, lines=tuple(lines), values=values, outputs=tuple(outputs))

"""Add the lines of normalizations' running statistics: moving averages of a batch's mean and unbiased variance.

They are those of `torch.nn.BatchNorm` (Ioffe & Szegedy 2015, algorithm 2) and of `torch.nn.InstanceNorm`, whose
statistics are means over instances.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Op, Product, RunningStatistics, Sum
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Term
from learncost.ir.value import Value
from learncost.ops import applied

BEGIN = {"mean": 0.0, "variance": 1.0, "count": 0.0}
"""The initial statistics: `torch.nn.modules.batchnorm`, reset_running_stats."""


def statistics_of(table: Table) -> tuple[str, ...]:
    """Return the names of the running statistics in a table; those of normalizations in loops are stacks."""
    every = (line.meta.running for line, _ in walk(table.lines))
    return tuple(dict.fromkeys(name for running in every if running for name in running.names))


def with_statistics(table: Table, forward: Table) -> Table:
    """Return the step with running statistics as inputs, and lines that update them.

    forward  the model's forward pass; in a procedure with several passes, the pass with its names updates statistics
    """
    names = {line.name for line, _ in walk(forward.lines) if line.meta.running}
    if not names:
        return table
    added = _Added()
    lines = tuple(_with_lines(table.lines, added, names))
    kept = added.results
    return replace(
        table,
        lines=lines,
        values={**table.values, **added.values, **added.given, **kept},
        inputs=(*table.inputs, *added.given),
        outputs=(*table.outputs, *kept),
    )


@dataclass
class _Added:
    """The additional names of a scope: results of its lines (`values`), and the statistics that these read
    (`given`)."""

    values: dict[str, Value] = field(default_factory=dict)
    given: dict[str, Value] = field(default_factory=dict)
    latest: dict[str, Term] = field(default_factory=dict)  # the current term of each statistic

    @property
    def results(self) -> dict[str, Value]:
        """Return the Values of the updated statistics."""
        return {term.name: Value(self.given[name].axes, "new", name) for name, term in self.latest.items()}


def _with_lines(lines: Iterable[Statement], added: _Added, names: set[str]) -> Iterator[Statement]:
    for line in lines:
        if isinstance(line, Loop):
            inner = _Added()
            body = tuple(_with_lines(line.lines, inner, names))
            if not inner.given:
                yield line
                continue
            new = inner.results
            yield replace(
                line,
                lines=body,
                values={**line.values, **inner.values, **inner.given, **new},
                each=(*line.each, *((name, name) for name in inner.given)),
                keep=(*line.keep, *((name, name) for name in new)),
            )
            added.given |= {name: value.stacked(line.count) for name, value in inner.given.items()}
            added.latest |= {n: Term(t.name, added.given[n].axes) for n, t in inner.latest.items()}
            continue
        yield line
        running = line.meta.running
        if running and line.meta.phase == "forward" and line.name in names:
            yield from _NormalizationLines(line, running, added).written()


class _NormalizationLines:
    """The lines that update the statistics of one normalization."""

    def __init__(self, line: Line, running: RunningStatistics, added: _Added) -> None:
        assert isinstance(line, Op)
        self.line, self.running, self.added = line, running, added
        self.meta = Meta(line.meta.layer, line.meta.block, local="running", module=line.meta.module)
        result = line.left[0].axes
        self.batch = tuple(str(axis) for axis in result if axis in line.axes)
        self.each = tuple(str(axis) for axis in result if axis not in line.axes)
        self.axes = tuple(str(result[place]) for place in running.places)

    def written(self) -> Iterator[Line]:
        running, axes = self.running, self.axes
        given, result = self.line.right[0], self.line.left[0]
        assert isinstance(given, Term)
        yield self._product("mean", self.each, Literal(1.0, self._sizes(self.batch), -1.0), given)
        yield self._sum("centered", tuple(map(str, result.axes)), (given, self._term("mean", self.each)), (1, -1))
        centered = self._term("centered", tuple(map(str, result.axes)))
        yield self._product("squares", self.each, centered, centered)
        yield self._sum("others", (), (Literal(1.0, self._sizes(self.batch)), Literal(1.0)), (1, -1))
        yield self._quotient("variance", self.each, self._term("squares", self.each), self._term("others", ()))
        found = {kind: self._term(kind, self.each) for kind in ("mean", "variance")}
        if axes != self.each:  # statistics of instances are averaged over the instances
            several = tuple(axis for axis in self.each if axis not in axes)
            for kind, term in found.items():
                yield self._product(f"{kind}_of_all", axes, Literal(1.0, self._sizes(several), -1.0), term)
            found = {kind: self._term(f"{kind}_of_all", axes) for kind in found}
        share: Operand = Literal(1.0 if running.momentum is None else running.momentum)
        if running.count:
            counted = yield from self._moved(running.count, (), "count", Literal(1.0))
            if running.momentum is None:
                yield self._quotient("share", (), Literal(1.0), counted)
                share = self._term("share", ())
        for name, kind in ((running.mean, "mean"), (running.variance, "variance")):
            yield self._sum(f"{kind}_apart", axes, (found[kind], self._old(name, axes, kind)), (1, -1))
            yield self._product(f"{kind}_moved", axes, self._term(f"{kind}_apart", axes), share)
            yield from self._moved(name, axes, kind, self._term(f"{kind}_moved", axes))

    def _sizes(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(base, axes))

    def _term(self, name: str, axes: tuple[str, ...]) -> Term:
        term = Term(f"{self.line.name}:{name}", axes)
        self.added.values[term.name] = Value(axes, "step", self.line.name)
        return term

    def _old(self, name: str, axes: tuple[str, ...], kind: str) -> Term:
        """Return the current term of a statistic."""
        self.added.given.setdefault(name, Value(axes, "running", kind))
        return replace(self.added.latest.get(name, Term(name, ())), axes=axes)

    def _moved(self, name: str, axes: tuple[str, ...], kind: str, by: Operand) -> Generator[Line, None, Term]:
        """Yield the update of a statistic and return its term; a second update in a step gets another name."""
        old = self._old(name, axes, kind)
        new = Term(f"{old.name}.new", axes)
        if name in self.added.latest:
            self.added.values[old.name] = Value(axes, "step", self.line.name)
        self.added.latest[name] = new
        yield Sum((new,), (old, by), (), self.meta, (1, 1))
        return new

    def _product(self, name: str, axes: tuple[str, ...], *right: Operand) -> Line:
        return Product((self._term(name, axes),), right, (), self.meta)

    def _sum(self, name: str, axes: tuple[str, ...], right: tuple[Operand, ...], signs: tuple[int, ...]) -> Line:
        return Sum((self._term(name, axes),), right, (), self.meta, signs)

    def _quotient(self, name: str, axes: tuple[str, ...], above: Operand, below: Operand) -> Line:
        return applied("divide", self._term(name, axes), (above, below), self.meta)


def over_batch(table: Table) -> str:
    """Return the name of the first result that is normalized over the batch; "" if there is none."""
    lines = (line for line, _ in walk(table.lines) if isinstance(line, Op))
    found = (line.name for line in lines if line.op == "normalize" and "B" in map(base, map(str, line.axes)))
    return next(found, "")


def check_batches(table: Table, sizes: dict[str, int]) -> None:
    """Raise `InputError` for a batch with one value for each statistic, as `torch.nn.functional.batch_norm` does."""
    for line, _ in walk(table.lines):
        if line.meta.running and isinstance(line, Op):
            points = 1
            for axis in line.axes:
                points *= sizes[base(axis)]
            if points < 2:
                raise InputError(
                    f"{line.meta.module or line.name} needs more than one value for each of its statistics in "
                    "training: give a larger batch"
                )

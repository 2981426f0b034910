"""Keep the bf16 copies of trained weights from step to step: the optimizer writes them with the weights.

Products read them, so that no step rounds a weight again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from learncost.backends.precision import LOW
from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import FusedKernel, Line, Sum
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value


def with_copies(table: Table, dtypes: Mapping[str, str]) -> tuple[Table, Mapping[str, str]]:
    """Return a typed table without casts of the weights that it updates, and its types.

    A copy is an input, and its new value an output.
    """
    cast = {nest.stacks.get(line.reads[0], line.reads[0]) for line, nest in walk(table.lines) if _is_cast(line)}
    trained = {name: table.renewed[name] for name in table.weights if name in cast and name in table.renewed}
    if not trained:
        return table, dtypes
    scope = _Scope(table.known)
    lines = scope.of(table.lines, frozenset(trained))
    copies = {name + LOW: Value(table.axes[name], "copy", name) for name in trained}
    new = {after + LOW: Value(table.axes[after], "new", name + LOW) for name, after in trained.items()}
    result = replace(
        table,
        lines=lines,
        values={**table.values, **copies, **new},
        inputs=(*table.inputs, *copies),
        outputs=(*table.outputs, *new),
    )
    return result, {**dtypes, **dict.fromkeys((*scope.known, *copies, *new), "bf16")}


def _is_cast(line: Line) -> bool:
    return isinstance(line, Sum) and len(line.right) == 1 and line.name == f"{line.right[0].name}{LOW}"


@dataclass
class _Scope:
    """Rewrites the lines of scopes, from outer to inner ones.

    values  those of every scope
    known   the copies' names in loops
    needed  the weights of a scope, by their names there, whose copies its lines read or write
    made    the weights' new values in a scope, by their names there
    """

    values: Mapping[str, Value]
    known: set[str] = field(default_factory=set)
    needed: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)

    def of(self, lines: Iterable[Statement], weights: frozenset[str]) -> tuple[Statement, ...]:
        """Return the lines of a scope; `weights` are those with copies, by their names there."""
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Loop):
                result.append(self._loop(line, weights))
            elif _is_cast(line) and line.reads[0] in weights:
                self.needed.add(line.reads[0])
            else:
                result += self._updating(line, weights)
        return tuple(result)

    def _loop(self, loop: Loop, weights: frozenset[str]) -> Loop:
        slices = {inside: outer for inside, outer in loop.each if outer in weights}
        inner = _Scope({**self.values, **loop.values}, self.known)
        lines = inner.of(loop.lines, frozenset(slices) | (weights - loop.inside))
        each = [(inside + LOW, outer + LOW) for inside, outer in slices.items() if inside in inner.needed]
        keep = [(inside + LOW, outer + LOW) for inside, outer in loop.keep if inside in inner.made]
        self.needed |= {slices.get(name, name) for name in inner.needed}
        self.made |= {outer for inside, outer in loop.keep if inside in inner.made}
        values = dict(loop.values)
        for name in inner.needed & values.keys():
            values[name + LOW] = Value(values[name].axes, "copy", name)
        for name in inner.made:
            values[name + LOW] = Value(values[name].axes, "new", inner.values[name].of + LOW)
        self.known |= {inside for inside, _ in (*each, *keep)}
        return replace(loop, lines=lines, values=values, each=(*loop.each, *each), keep=(*loop.keep, *keep))

    def _updating(self, line: Line, weights: frozenset[str]) -> Sequence[Line]:
        """Return a line; with one in its kernel that writes the copy of a weight that it updates."""
        values = self.values
        new = [each for each in line.left if values[each.name].role == "new" and values[each.name].of in weights]
        if not new:
            return [line]
        (term,) = new
        self.needed.add(values[term.name].of)
        self.made.add(term.name)
        meta = replace(line.meta, kernel=line.meta.kernel or FusedKernel(f"update of {term.name}", ()))
        return [line.with_changed(meta=meta), Sum((Term(term.name + LOW, term.axes),), (term,), (), meta, (1,))]

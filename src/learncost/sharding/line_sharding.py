"""Shard a line: choose the axis that each mesh axis shards, and the layouts of its operands and results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import prod

from learncost.ir.affine import Affine
from learncost.ir.dataclass import replace
from learncost.ir.line import Condition, Line, Op, Product, Sum
from learncost.ir.polynomial import base
from learncost.ir.term import Axis, Literal, Operand, Read, Term, terms_of
from learncost.ir.value import Value
from learncost.ops import entry
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.lower import expanded
from learncost.sharding.layout import RoutedRows, RowChoice, ShardLayout, cut, rows_of
from learncost.sharding.padding import stays_zero
from learncost.sharding.scope import CollectiveReason, ShardingScope

Site = tuple[str, str]
"""The axis of a line that a mesh axis shards: ("along", an axis of the line), or ("at", an indexed axis)."""

ALONG, AT, SENT = "along", "at", "sent"


def place_line(scope: ShardingScope, line: Line) -> None:
    """Emit the collectives for a line's operands, and the line with its axes sharded."""
    sharding = LineSharding(scope, line)
    if sharding.through_body:
        lines, steps = expanded(line, {**scope.specs.known, **scope.steps})
        scope.steps |= steps
        for inner in lines:
            for name in {*inner.reads} & steps.keys():
                scope.readers[name] += 1
        for inner in lines:
            place_line(scope, inner)
        return
    sharding.place()


class LineSharding:
    """The sharding of a line: the site of every mesh axis, and the mesh axes over which a partial operand passes
    through it."""

    def __init__(self, scope: ShardingScope, line: Line) -> None:
        self.scope, self.line = scope, line
        self.rows = rows_of(scope, line)
        reads_part = any(scope.partial(term.name) for term in line.right if isinstance(term, Term))
        names = scope.specs.mesh.names if reads_part else ()
        self.passes = {q: how for q in names if (how := self._passing(q))}
        self._find_sites()
        if self.rows is not None and self.rows.at and self._choice(self.rows) != self.rows.choice:
            self.rows = replace(self.rows, sent=None, cut=())  # dispatched rows went to the owners of other shards
            self._find_sites()
            self.rows = replace(self.rows, choice=self._choice(self.rows))

    def _find_sites(self) -> None:
        """Find the site of every mesh axis, unless dispatched rows determine it."""
        self.whole = frozenset(whole_axes(self.line))
        self._over: dict[str, tuple[str, ...]] = {}
        self.sites: dict[str, Site] = {}
        forced = self._of_rows()
        for mesh_axis in self.scope.specs.mesh.names:
            if mesh_axis in forced:
                self.sites[mesh_axis] = forced[mesh_axis]
            elif mesh_axis not in self.passes and mesh_axis not in self.scope.busy:
                site = self._site(mesh_axis)
                if site is not None:
                    self.sites[mesh_axis] = site
        self._check_parts(forced)

    def _choice(self, rows: RoutedRows) -> RowChoice:
        """Return the choice of rows with the indexed axis sharded as in this line."""
        return rows.choice.reads(rows.at, self.sharded_over(Read(rows.at, Term(rows.choice.index, rows.axes))))

    def _of_rows(self) -> dict[str, Site]:
        """Return the sites that dispatched rows determine."""
        rows = self.rows
        if rows is None:
            return {}
        sites: dict[str, Site] = {rows.choice.mesh_axis: (SENT, rows.first)}
        if rows.sent is not None:
            for axis, names in zip(rows.axes, rows.cut, strict=True):
                sites |= {name: (ALONG, axis) for name in names if name != rows.choice.mesh_axis}
            self.whole |= {*rows.axes}
        return sites

    @property
    def through_body(self) -> bool:
        """Return whether an axis that an op acts on is sharded, so that its body must be sharded instead."""
        line = self.line
        if not isinstance(line, Op) or entry(line.op).pointwise or line.opaque:
            return False
        is_reduction = entry(line.op).kind == "reduction" and line.part == "body"
        return not is_reduction and any((ALONG, axis) in self.sites.values() for axis in line.axes)

    def _check_parts(self, forced: Mapping[str, Site]) -> None:
        """Drop the inner sites of an axis that several mesh axes together would shard unevenly."""
        for kind, axis in {*self.sites.values()}:
            together = [q for q, site in self.sites.items() if site == (kind, axis)]
            for mesh_axis in reversed(self.scope.specs.nested(axis, together)):
                parts = prod(self.scope.specs.mesh.sizes[q] for q in together)
                divides = not self.scope.specs.size(axis) % parts or self._is_filled(kind, axis, together)
                if not divides and mesh_axis not in forced:
                    together.remove(mesh_axis)
                    del self.sites[mesh_axis]

    def _is_filled(self, kind: str, axis: str, over: Iterable[str]) -> bool:
        """Return whether a line is sharded with padding: its result is padded, or it sums padded operands.

        A line that does not map 0 to 0, such as a quotient, is not sharded with padding, but reads gathered operands.
        """
        text = cut(base(axis), self.scope.specs.nested(axis, over))
        if kind != ALONG or text not in self.scope.specs.filled:
            return False
        remains = any(axis in term.axes for term in self.line.left)
        if not remains and not isinstance(self.line, Product):
            return False
        if remains and not stays_zero(self.line, axis, self.scope.values):
            return False
        terms = self.line.left if remains else [term for each in self.line.right for term in terms_of(each)]
        return any(text in self.scope.spec(term.name).cut(self.scope.value(term.name).axes) for term in terms)

    # Partial operands that pass through.

    def _passing(self, mesh_axis: str) -> str:
        """Return the reduction that a partial operand of a linear line leaves to its result; empty if the operand must
        be reduced first.
        """
        line, scope = self.line, self.scope
        if isinstance(line, Op):
            return ""
        terms = [term for term in line.right if isinstance(term, Term)]
        has_part = [self._is_partial(term.name, mesh_axis) for term in terms]
        inner = [term for term in line.terms if term not in terms]
        if not any(has_part) or any(self._is_partial(term.name, mesh_axis) for term in inner):
            return ""
        single = all(scope.readers[term.name] <= 1 for term, part in zip(terms, has_part, strict=True) if part)
        if isinstance(line, Sum):
            return "sum" if all(has_part) and single and len(terms) == len(line.right) else ""
        others = [term for term, part in zip(terms, has_part, strict=True) if not part] + inner
        others += [term for term in line.left if term.indexed]
        is_cut = any(mesh_axis in scope.spec(term.name).over for term in others)
        return "sum" if has_part.count(True) == 1 and single and not is_cut else ""

    def _is_partial(self, name: str, mesh_axis: str) -> bool:
        return (mesh_axis, "sum") in self.scope.pending(name)

    # Sites.

    def _site(self, mesh_axis: str) -> Site | None:
        """Return the site of the first clause among the candidates; on ties, that of most operands, then that of the
        result."""
        by_site: dict[Site, list[int]] = {}
        for terms, is_result in ((self.line.terms, 0), (self.line.left, 1)):
            for term in terms:
                if (candidate := self._candidate(term, mesh_axis, bool(is_result))) is None:
                    continue
                rank, site = candidate
                seen = by_site.setdefault(site, [rank, 0, 0])
                seen[0] = min(seen[0], rank)
                seen[1 + is_result] -= 1
        for rank, site in self._of_states(mesh_axis):
            by_site.setdefault(site, [rank, 0, 0])
        return min(by_site, key=lambda site: by_site[site]) if by_site else None

    def _of_states(self, mesh_axis: str) -> Iterator[tuple[int, Site]]:
        """Yield where the update of a weight would have its state, of an optimizer that has none: ZeRO shards it too.

        Rajbhandari et al. 2020, ZeRO, section 5.1: each process updates its partition of the parameters.
        """
        line, specs = self.line, self.scope.specs
        if not isinstance(line, Op) or line.op not in OPTIMIZERS or OPTIMIZERS[line.op].state:
            return
        weight = line.right[0]
        assert isinstance(weight, Term)
        axes = self.scope.value(weight.name).axes
        for axis, names in zip(
            axes, specs.spec(f"{weight.name}.state", Value(axes, "state", weight.name)), strict=True
        ):
            if mesh_axis in names:
                yield specs.rank(mesh_axis, axis), (ALONG, axis)

    def _candidate(self, term: Term, mesh_axis: str, is_result: bool) -> tuple[int, Site] | None:
        if is_result and term.name in self.scope.steps:
            return None  # values inside an op have the layout that their lines give them
        spec = self.scope.spec(term.name)
        place = next((place for place, names in enumerate(spec.split) if mesh_axis in names), None)
        if place is None or place >= len(term.axes):
            return None
        axis = term.axes[place]
        declared = self.scope.value(term.name).axes[place]
        rank = self.scope.specs.rank(mesh_axis, declared)
        if isinstance(axis, str):
            return None if axis in self.whole else (rank, (ALONG, axis))
        if isinstance(axis.at, Affine) or not isinstance(self.line, Product):
            return None
        if axis.axis in self.whole:
            return None
        return rank, (AT, axis.axis)

    # The sharded line.

    def place(self) -> None:
        line, scope = self.line, self.scope
        if self.rows is not None and self._leaves_rows():
            self._place_by_rows(self.rows)
            return
        shown = {mesh_axis: f"{_ON[kind]} {axis}" for mesh_axis, (kind, axis) in self.sites.items()}
        reason = CollectiveReason(2, line, shown)
        right = tuple(self.operand(term, reason) for term in line.right)
        left = tuple(self.term(term, term.name, reason) for term in line.left)
        where = tuple(self.condition(condition) for condition in line.where)
        names = {"left": left, "right": right, "where": where, "meta": self.meta()}
        if isinstance(line, Op):
            names["axes"] = tuple(map(self.axis, line.axes))
        scope.out.append(replace(line, **names))  # type: ignore[arg-type]
        for term in line.left:
            self.result(term)

    def _leaves_rows(self) -> bool:
        """Return whether an indexed line sums rows that are on several devices, as the rows of a token are."""
        assert self.rows is not None
        (left, *_), rows = self.line.left, self.rows
        return bool(rows.at) and not left.indexed and not {*rows.axes} <= {*left.axes}

    def _place_by_rows(self, rows: RoutedRows) -> None:
        """Emit the line with a result for every row, and the sum of the returned rows."""
        line, scope = self.line, self.scope
        left = line.left[0]
        more = tuple(axis for axis in left.axes if isinstance(axis, str) and axis not in rows.axes)
        term = Term(scope.fresh(line.name, "rows"), (*rows.axes, *more))
        of = scope.value(line.name)
        scope.steps[term.name] = Value(tuple(str(axis) for axis in term.axes), "step", line.name, dtype=of.dtype)
        scope.readers[term.name] += 1
        place_line(scope, replace(line, left=(term,)))
        place_line(scope, Product((left,), (term,), (), line.meta))

    def meta(self) -> object:
        meta = self.line.meta
        if meta.kernel is None:
            return meta
        blocks = meta.kernel.blocks and (self._queries(meta.kernel.blocks[0]), meta.kernel.blocks[1])
        return replace(meta, kernel=replace(meta.kernel, axes=tuple(map(self.axis, meta.kernel.axes)), blocks=blocks))

    def _queries(self, axis: str) -> str:
        """Return the sharded axis of queries; a line that reads pairs transposed may name its keys as queries."""
        same = (other for other in self.line.loops if base(other) == base(axis) and self.sharded_over(other))
        return cut(axis, self.sharded_over(next(same, axis)))

    def operand(self, operand: Operand, reason: CollectiveReason) -> Operand:
        if isinstance(operand, Literal):
            return operand
        partial = frozenset((q, how) for q, how in self.scope.pending(operand.name) if self.passes.get(q) == how)
        layout = ShardLayout(tuple(map(self.sharded_over, operand.axes)), partial)
        rows = self.rows
        if rows is not None and not operand.indexed and {*operand.axes} & {*rows.axes}:
            axes = (*rows.axes, *(axis for axis in operand.axes if axis not in rows.axes))
            if {*rows.axes} <= {*operand.axes}:
                axes = operand.axes
            split = tuple(map(self.sharded_over, axes))
            array = self.scope.dispatched(operand, layout, rows.choice, rows.axes, axes, split, reason)
            return Term(array, tuple(self.axis(str(axis)) for axis in axes))
        return self.term(operand, self.scope.at(operand.name, layout, reason), reason)

    def term(self, term: Term, name: str, reason: CollectiveReason) -> Term:
        return Term(name, tuple(self.placed_axis(axis, reason) for axis in term.axes))

    def placed_axis(self, axis: Axis, reason: CollectiveReason) -> Axis:
        if isinstance(axis, str):
            return self.axis(axis)
        at = axis.at
        if isinstance(at, Term):
            placed = self.operand(at, reason)
            assert isinstance(placed, Term)
            at = placed
        return Read(cut(axis.axis, self.sharded_over(axis)), at)

    def sharded_over(self, axis: Axis) -> tuple[str, ...]:
        """Return the mesh axes that shard an axis of a term in this line, outermost first."""
        if not self.sites:
            return ()
        if isinstance(axis, str):
            if axis not in self._over:
                sites = {(ALONG, axis), (SENT, axis)}
                self._over[axis] = self.scope.specs.nested(axis, (q for q, at in self.sites.items() if at in sites))
            return self._over[axis]
        if isinstance(axis.at, Affine):
            return ()
        sites = {(AT, axis.axis)}
        if self.rows is not None and axis.at.name == self.rows.choice.index:
            sites.add((SENT, self.rows.first))
        return self.scope.specs.nested(axis.axis, (q for q, where in self.sites.items() if where in sites))

    def axis(self, axis: str) -> str:
        return cut(axis, self.sharded_over(axis))

    def condition(self, condition: Condition) -> Condition:
        lower, upper = (side if side.isdigit() else self.axis(side) for side in (condition.lower, condition.upper))
        return replace(condition, lower=lower, upper=upper)

    # Results.

    def result(self, term: Term) -> None:
        scope, line = self.scope, self.line
        partial: dict[str, str] = dict(self.passes)
        joins = {q: f"{_partial_operand(scope, line, q)} is" for q in self.passes}
        plain = {axis for axis in term.axes if isinstance(axis, str)}
        at = {axis.axis for axis in term.indexed_axes}
        for mesh_axis, (kind, axis) in self.sites.items():
            if (kind == ALONG and axis in plain) or (kind == AT and axis in at) or kind == SENT:
                continue
            partial[mesh_axis] = entry(line.op).name if isinstance(line, Op) else "sum"
            joins[mesh_axis] = f"{line.name} " + (f"reads {axis} at an index" if kind == AT else f"sums over {axis}")
        sent = self.rows.choice.key if self.rows is not None and not at else ""
        layout = ShardLayout(tuple(map(self.sharded_over, term.axes)), frozenset(partial.items()), sent)
        if term.name not in scope.values:
            scope.step_specs[term.name] = replace(layout.whole(), sent="")
        scope.made_by[term.name] = line
        scope.joins[term.name] = joins
        scope.arrays.pop(term.name, None)
        scope.give(term.name, layout)
        if isinstance(line, Op) and line.op == "zeros":
            scope.zeros.add(term.name)


_ON = {ALONG: "on", AT: "at", SENT: "where its rows are sent by"}


def _partial_operand(scope: ShardingScope, line: Line, mesh_axis: str) -> str:
    for term in line.right:
        if isinstance(term, Term) and any(mesh_axis == over for over, _ in scope.pending(term.name)):
            return term.name
    return ""


def whole_axes(line: Line) -> Iterator[str]:
    """Yield the axes that must not be sharded in a line: indexed ones, and those along which an op needs all
    elements.
    """
    for axis in line.indexed_axes:
        if isinstance(axis.at, Affine):
            yield from (axis.axis, *axis.at.loops)
    if not isinstance(line, Op):
        return
    op = entry(line.op)
    if op.kind in ("choice", "scan") or op.name in ("append", "join"):
        yield from (*line.axes, *line.chosen)
    if line.opaque or op.name == "eye":
        yield from line.loops

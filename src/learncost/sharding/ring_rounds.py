"""The lines of a ring: the region with a device's own shard, the iterations with the others, and the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.polynomial import ROUND, base
from learncost.ir.term import Literal, Term
from learncost.ops import applied, is_softmax
from learncost.sharding.ring_step import (
    Normalizer,
    Ring,
    RingIteration,
    SoFar,
    sink_of,
    step_meta,
)


class Rounds:
    """The lines of a ring while they are written; `why` has the reason if that fails.

    normalizers  those of the forward pass, by the names of shares; `slice_of` makes its values available here
    """

    def __init__(self, ring: Ring, normalizers: Mapping[str, Normalizer], slice_of: Callable[[str], None]) -> None:
        self.ring, self.region, self.slice_of = ring, ring.region, slice_of
        shares = [line for line in self.region.lines if is_softmax(line) and line.part == "body"]
        self.earlier = {line.name: normalizers[line.name] for line in shares if line.name in normalizers}
        self.softmaxes = {line.name: line for line in shares}
        self.fresh = [line for line in shares if line.name not in self.earlier]
        # Of what is linear in unnormalized shares: these shares, and which of its axes are those of their rows.
        self.linear: dict[str, tuple[str, tuple[int, ...]]] = {}
        self.made_by = {name: line for line in self.region.lines for name in line.makes}
        self.finals: dict[str, Term] = {}

    def lines(self) -> list[Statement]:
        """Return all of its lines."""
        region, ring = self.region, self.ring
        for line in region.lines:
            self._linear(line)
        if self.fresh and region.scatters:
            self.region.refuse(self.fresh[0], "its shares are computed with gradients, and no device has their sum")
        corrections: dict[str, str] = {}
        first = [line for name in self.earlier for line in self._correction(name, corrections)]
        first += [line for op in region.lines for line in self._of_sinks(op, corrections)]
        if region.why:
            return []
        source = {name: line.right[0].name for name, line in region.gathers.items()}
        own = RingIteration(ring, "here", source, self.earlier, corrections)
        if not region.scatters:
            own.write()
            initial = {name: own.names[name] for name in region.totals}
            return [*first, *own.out, *self._iterations(own, initial), *self._ends(own)]
        # The own shard comes last, when the gradients of rotating shards are back at their owners.
        iterations = self._iterations(own, {})
        own.write()
        return [*first, *iterations, *own.out, *self._together(own)]

    def _linear(self, line: Line) -> None:
        """Record that a line is linear in shares whose normalizer is not known yet."""
        left = line.left[0]
        if line in self.fresh:
            axis = self.region.axis(line)
            self.linear[line.name] = line.name, tuple(place for place, each in enumerate(left.axes) if each != axis)
            return
        having = [term for term in line.right if isinstance(term, Term) and term.name in self.linear]
        if not having:
            return
        number = {Product: 1, Sum: len(line.right)}.get(type(line), 0)
        origins, rows = {self.linear[term.name][0] for term in having}, {self._rows(term) for term in having}
        if len(having) != number or len(origins) > 1 or len(rows) > 1 or not {*next(iter(rows))} <= {*left.axes}:
            self.region.refuse(
                line, "it is not linear, row by row, in shares whose sum is known after the last iteration"
            )
            return
        (names,), (origin,) = rows, origins
        self.linear[left.name] = origin, tuple(left.axes.index(name) for name in names)

    def _rows(self, term: Term) -> tuple[str, ...]:
        """Return the axes of rows of a value that is linear in shares, as a term has them."""
        return tuple(str(term.axes[place]) for place in self.linear[term.name][1])

    def _correction(self, shares: str, corrections: dict[str, str]) -> list[Statement]:
        """Return the lines for the sum over a row of shares times their gradients, by Euler's theorem for a function
        that is linear in them.
        """
        line, ring = self.softmaxes[shares], self.ring
        rows = tuple(axis for axis in line.left[0].axes if axis not in line.axes)
        reads = [name for each in self.region.lines for name in each.reads]
        self.slice_of(self.earlier[shares].logarithm)
        out: list[Statement] = []
        parts: list[Term] = []
        for total in self.earlier[shares].totals:
            gradient = next((name for name in reads if self._is_gradient(name, total)), "")
            axes = ring.known[gradient].axes if gradient else ()
            if not gradient or ring.before[total].axes != axes or not {*rows} <= {*axes}:
                self.region.refuse(line, f"the gradient of {total} has another layout than {total}")
                return []
            self.slice_of(total)
            parts.append(ring.step(shares, "correction", rows))
            meta = replace(step_meta(line.meta, parts[-1].name), phase="backward", kernel=None)
            out.append(Product((parts[-1],), (Term(total, axes), Term(gradient, axes)), (), meta))
        corrections[shares] = parts[0].name
        if len(parts) > 1:
            whole = ring.step(shares, "correction", rows)
            out.append(Sum((whole,), tuple(parts), (), replace(meta, local=whole.name), (1,) * len(parts)))
            corrections[shares] = whole.name
        return out

    def _of_sinks(self, line: Line, corrections: Mapping[str, str]) -> list[Statement]:
        """Return the lines for the gradient of a sink, row by row: its negated share times the mean gradient of its
        row.
        """
        if not is_softmax(line) or line.part != "gradient" or len(line.left) == 1:
            return []
        ring, left = self.ring, line.left[1]
        shares = next(term.names[0] for name, term in zip(line.given, line.right, strict=True) if name == "Y")
        sink = sink_of(self.softmaxes[shares]) if shares in corrections else None
        if sink is None:
            self.region.refuse(line, "the shares that it is the gradient of are not in the region")
            return []
        meta = replace(line.meta, kernel=None)
        logarithm, average = (Term(name, left.axes) for name in (self.earlier[shares].logarithm, corrections[shares]))
        less, share, part = (ring.step(shares, what, left.axes) for what in ("sink", "of_sink", "sinks"))
        return [
            Sum((less,), (sink, logarithm), (), step_meta(meta, less.name), (1, -1)),
            applied("exp", share, (less,), step_meta(meta, share.name)),
            Product((part,), (share, average), (), step_meta(meta, part.name)),
            Product((ring.made(left.name, left.axes, left.name),), (Literal(-1.0), part), (), meta),
        ]

    def _is_gradient(self, name: str, of: str) -> bool:
        value = self.ring.whole.get(self.ring.holds.get(name, name))
        return name not in self.region.at and value is not None and value.role == "gradient" and value.of == of

    # The iterations.

    def _iterations(self, own: RingIteration, initial: Mapping[str, str]) -> list[Statement]:
        """Return the loop over the received shards; totals begin as the results of the own shard, or as zeros."""
        region, ring = self.region, self.ring
        around, ring.values = ring.values, {}
        iteration = RingIteration(ring, "turn", {}, self.earlier, own.corrections, is_round=True)
        carries = [self._came(iteration, line) for line in region.gathers.values()]
        begin = dict(initial)
        starts = {name: self._start(name, iteration) for name in (*region.totals, *region.scatters)}
        for shares, so_far in own.now.items():
            several = {
                each.name: ring.made(ring.fresh(each.name, "start"), each.axes, each.name)
                for each in (so_far.largest, so_far.total)
            }
            for name, term in several.items():
                ring.values[term.name] = around[name]
            begin |= {name: name for name in several}
            starts |= several
            iteration.before = {**iteration.before, shares: SoFar(*several.values())}
        iteration.write()
        ends = {name: self._total(iteration, name, starts[name]).name for name in region.totals}
        ends |= {
            name: self._returned(iteration, line, name, starts[name]).name for name, line in region.scatters.items()
        }
        for shares, so_far in own.now.items():
            now = iteration.now[shares]
            ends |= {so_far.largest.name: now.largest.name, so_far.total.name: now.total.name}
        inside, ring.values = ring.values, around
        out: list[Statement] = []
        for name, start in starts.items():
            axes = tuple(axis.replace(ROUND, "") for axis in start.declared)
            if name not in begin:
                zeros, first = Term(ring.fresh(name, "zeros"), axes), region.lines[0].meta
                ring.values[zeros.name] = inside[start.name].along(axes)
                meta = replace(step_meta(first, zeros.name), kernel=None, phase=self._phase)
                out.append(applied("zeros", zeros, (), meta))
                begin[name] = zeros.name
            self.finals[name] = Term(ring.fresh(name, "all"), axes)
            ring.values[self.finals[name].name] = inside[start.name].along(axes)
            carries.append(Carry(start.name, ends[name], begin[name], self.finals[name].name))
        for carry in carries[: len(region.gathers)]:
            ring.values[carry.final] = ring.known[carry.initial]
        count = str(ring.devices - 1)
        return [*out, Loop(count, tuple(iteration.out), inside, tuple(carries), around=region.mesh_axis)]

    @property
    def _phase(self) -> str:
        return next((line.meta.phase for line in self.region.scatters.values()), self.region.lines[0].meta.phase)

    def _came(self, iteration: RingIteration, line: Op) -> Carry:
        """Return the carried name of a rotating shard, from the previous device to this one."""
        ring, source = self.ring, line.right[0]
        axes = list(source.declared)
        place = self.region.at[line.name]
        axes[place] = iteration.axis(axes[place])
        start, came = (ring.step(source.name, what, axes) for what in ("before", "pass_on"))
        for term in (start, came):
            ring.values[term.name] = ring.known[source.name].along(term.declared)
        value, over = ring.holds.get(source.name, source.name), self.region.mesh_axis
        named = base(self.region.gathered).partition("/")[0]
        sums = ", ".join(dict.fromkeys(ring.holds.get(name, name) for name in self.region.totals))
        why = f"{value} is sharded on {named} over {over}, and {sums} sums over all of it, "
        why += "one shard per iteration (rule 9)"
        iteration.out.append(self._passed(came, start, line, value, why))
        iteration.names[line.name] = came.name
        return Carry(start.name, came.name, source.name, ring.fresh(source.name, "last"))

    def _passed(self, left: Term, right: Term, line: Op, value: str, why: str) -> Op:
        """Return the line that passes an array to the next device."""
        self.ring.holds[left.name] = value
        meta = Meta(
            line.meta.layer, line.meta.block, line.meta.phase, local=left.name, module=line.meta.module, why=why
        )
        return applied("pass_on", left, (right,), meta, (self.region.mesh_axis,))

    def _start(self, name: str, iteration: RingIteration) -> Term:
        """Return the value of a total at the start of an iteration; for gradients of rotating shards, that of the
        received shard.
        """
        value = self.ring.known[name]
        axes = list(value.axes)
        if name in self.region.at:
            axes[self.region.at[name]] = iteration.axis(axes[self.region.at[name]])
        term = Term(self.ring.fresh(name, "start"), tuple(axes))
        self.ring.values[term.name] = value.along(axes)
        return term

    def _total(self, iteration: RingIteration, name: str, start: Term) -> Term:
        """Return the running total; if it is linear in unnormalized shares, earlier sums are rescaled to the new
        maximum.
        """
        line = self.made_by[name]
        (term,) = (term for term in line.left if term.name == name)
        scale = iteration.now[self.linear[name][0]].scale if name in self.linear else None
        scale = Term(scale.name, self._rows(term)) if scale else None
        add = Term(iteration.names[name], term.axes)
        return iteration.so_far(Term(start.name, term.axes), add, scale, iteration.meta(line))

    def _returned(self, iteration: RingIteration, line: Op, name: str, start: Term) -> Term:
        """Return the gradient of a received shard, with this device's contribution, on its way back to its owner."""
        add = Term(iteration.names[name], start.axes)
        so_far = iteration.so_far(start, add, None, line.meta)
        moved = self.ring.step(so_far.name, "pass_on", so_far.axes)
        why = f"{name} is summed over the shards of the others and reaches its owner after the last iteration (rule 9)"
        iteration.out.append(self._passed(moved, so_far, line, self.ring.holds.get(name, name), why))
        return moved

    # The results.

    def _ends(self, own: RingIteration) -> list[Statement]:
        """Return the totals after the last iteration: those of exponentials divided by their sum."""
        out: list[Statement] = []
        ring, sums = self.ring, dict[str, Term]()
        for line in self.fresh:
            largest, total = (self.finals[each.name] for each in (own.now[line.name].largest, own.now[line.name].total))
            meta = replace(line.meta, kernel=None)
            least, log, logarithm = (ring.step(line.name, w, total.axes) for w in ("least", "log", "logarithm"))
            out.append(applied("maximum", least, (total, Literal(1.0)), step_meta(meta, least.name)))
            out.append(applied("log", log, (least,), step_meta(meta, log.name)))
            out.append(Sum((logarithm,), (largest, log), (), step_meta(meta, logarithm.name), (1, 1)))
            sums[line.name] = least
            linear = tuple(name for name in self.region.totals if self.linear.get(name, ("",))[0] == line.name)
            ring.normalizers[line.name] = Normalizer(logarithm.name, linear)
        for name in self.region.totals:
            maker = self.made_by[name]
            (term,) = (term for term in maker.left if term.name == name)
            final, left = Term(self.finals[name].name, term.axes), ring.made(name, term.axes, name)
            meta = replace(step_meta(maker.meta, name), kernel=None)
            if name in self.linear:
                below = Term(sums[self.linear[name][0]].name, self._rows(term))
                out.append(applied("divide", left, (final, below), meta))
            else:
                out.append(Sum((left,), (final,), (), meta, (1,)))
        return out

    def _together(self, own: RingIteration) -> list[Statement]:
        """Return the sum of the results of the iterations and of the own shard."""
        out: list[Statement] = []
        for name in (*self.region.totals, *self.region.scatters):
            final, scatter = self.finals[name], self.region.scatters.get(name)
            left = Term(name, final.axes) if scatter is None else scatter.left[0]
            self.ring.made(left.name, left.axes, left.name)
            meta = replace(step_meta((scatter or self.made_by[name]).meta, left.name), kernel=None)
            out.append(Sum((left,), (final, Term(own.names[name], final.axes)), (), meta, (1, 1)))
        return out

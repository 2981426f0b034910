"""Write the lines of a ring: a region with a device's own shard, iterations with the received shards, and the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.line import Condition, Line, Meta, Op, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.polynomial import ROUND, base
from learncost.ir.term import Axis, Literal, Operand, Term
from learncost.ir.value import Value
from learncost.ops import applied, is_softmax
from learncost.sharding.ring_regions import RingRegion, refuse

LOWEST = Literal(-1e29)
"""The lower bound of the maximum score, so that fully masked rows have sums of zero, as in the op safe_softmax."""


def _sink_of(line: Op) -> Term | None:
    """Return the attention sink of a softmax, an additional score in every row, which takes a share of it."""
    sink = _operands(line).get("z")
    return sink if isinstance(sink, Term) else None


@dataclass(frozen=True)
class Normalizer:
    """The normalizer of a softmax over a ring: `logarithm`, the logarithm of the sum of all exponentials, and `totals`,
    the values that are linear in the shares, such as the output of attention.
    """

    logarithm: str
    totals: tuple[str, ...]


class OnlineSoftmax(NamedTuple):
    """The running statistics of an online softmax: the maximum score, the sum of the exponentials below it, and the
    factor that rescales earlier sums to a larger maximum.
    """

    largest: Term
    total: Term
    scale: Term | None = None


@dataclass
class RingLines:
    """The lines of a ring while they are written.

    region       the rotating arrays, and the lines that read them
    devices      the number of devices
    known        values of its scope and of the enclosing ones; before, those of the forward pass
    whole        values of the unsharded table
    holds        the values that results of collectives hold
    fresh        returns a name for a value that is derived from another
    forward      the normalizers of the forward pass by the names of shares
    values       the values of its results
    normalizers  of the softmaxes whose sums it computes
    linear       by what is linear in unnormalized shares: these, and which of its axes are those of their rows
    corrections  by shares: the sum over a row of shares times their gradients
    """

    region: RingRegion
    devices: int
    known: Mapping[str, Value]
    before: Mapping[str, Value]
    whole: Mapping[str, Value]
    holds: dict[str, str]
    fresh: Callable[[str, str], str]
    forward: Mapping[str, Normalizer]
    values: dict[str, Value] = field(default_factory=dict)
    normalizers: dict[str, Normalizer] = field(default_factory=dict)
    linear: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    corrections: dict[str, str] = field(default_factory=dict)
    finals: dict[str, Term] = field(default_factory=dict)

    def lines(self) -> list[Statement]:
        """Return all of its lines. Raises `RingError`."""
        region = self.region
        softmaxes = {line.name: line for line in region.body if is_softmax(line) and line.part == "body"}
        self.softmaxes: Mapping[str, Op] = softmaxes
        self.earlier = {name: self.forward[name] for name in softmaxes if name in self.forward}
        self.made_by = {name: line for line in region.body for name in line.makes}
        unknown = [line for name, line in softmaxes.items() if name not in self.earlier]
        for line in region.body:
            self._linear(line, unknown)
        if unknown and region.scatters:
            refuse(unknown[0], "its shares are computed with gradients, and no device has their sum")
        first = _RingWriter(self)
        for name in self.earlier:
            self._correction(first, name)
        for line in region.body:
            if is_softmax(line) and line.part == "gradient" and len(line.left) > 1:
                self._of_sinks(first, line)
        own = _Shard(self, [], "here", {name: line.right[0].name for name, line in region.gathers.items()})
        if region.scatters:  # the own shard comes last, when the gradients of rotating shards are back at their owners
            rounds = self._rounds(own)
            own.write()
            return [*first.out, *rounds, *own.out, *self._together(own)]
        own.write()
        return [*first.out, *own.out, *self._rounds(own), *self._ends(own, unknown)]

    def made(self, name: str, axes: Iterable[Axis], of: str) -> Term:
        """Declare a value with the kind of another one, and return its term."""
        term = Term(name, tuple(axes))
        self.values[name] = (self.values.get(of) or self.known.get(of) or Value(())).along(term.declared)
        return term

    def step(self, of: str, what: str, axes: Iterable[Axis]) -> Term:
        """Declare a value that is named after another one, and return its term."""
        return self.made(self.fresh(of, what), axes, of)

    def _linear(self, line: Line, unknown: list[Op]) -> None:
        """Record that a line is linear in shares whose normalizer is not known yet. Raises `RingError`."""
        left = line.left[0]
        if line in unknown:
            axis = self.region.axis(line)
            self.linear[left.name] = left.name, tuple(place for place, each in enumerate(left.axes) if each != axis)
            return
        having = [term for term in line.right if isinstance(term, Term) and term.name in self.linear]
        if not having:
            return
        number = {Product: 1, Sum: len(line.right)}.get(type(line), 0)
        origins, rows = {self.linear[term.name][0] for term in having}, {self.rows(term) for term in having}
        if len(having) != number or len(origins) > 1 or len(rows) > 1 or not {*next(iter(rows))} <= {*left.axes}:
            refuse(line, "it is not linear, row by row, in shares whose sum is known after the last iteration")
        (names,), (origin,) = rows, origins
        self.linear[left.name] = origin, tuple(left.axes.index(name) for name in names)

    def rows(self, term: Term) -> tuple[str, ...]:
        """Return the axes of rows of a value that is linear in shares, as a term has them."""
        return tuple(str(term.axes[place]) for place in self.linear[term.name][1])

    def _correction(self, first: _RingWriter, shares: str) -> None:
        """Write the sum over a row of shares times their gradients, by Euler's theorem for a function that is linear
        in them.
        """
        line = self.softmaxes[shares]
        rows = _rows_of(line)
        reads = [name for each in self.region.body for name in each.reads]
        meta = replace(line.meta, phase="backward", kernel=None)
        parts: list[Term] = []
        for total in self.earlier[shares].totals:
            gradient = next((name for name in reads if self._is_gradient(name, total)), "")
            axes = self.known[gradient].axes if gradient else ()
            if not gradient or self.before[total].axes != axes or not {*rows} <= {*axes}:
                refuse(line, f"the gradient of {total} has another layout than {total}")
            parts.append(first.step("*", shares, "correction", rows, (Term(total, axes), Term(gradient, axes)), meta))
        if len(parts) > 1:
            parts = [first.step("+", shares, "correction", rows, tuple(parts), meta)]
        self.corrections[shares] = parts[0].name

    def _is_gradient(self, name: str, of: str) -> bool:
        value = self.whole.get(self.holds.get(name, name))
        return name not in self.region.at and value is not None and value.role == "gradient" and value.of == of

    def _of_sinks(self, first: _RingWriter, line: Op) -> None:
        """Write the gradient of a sink, row by row: its negated share times the mean gradient of its row."""
        left, shares = line.left[1], _operands(line)["Y"].names[0]
        sink = _sink_of(self.softmaxes[shares]) if shares in self.corrections else None
        if sink is None:
            refuse(line, "the shares that it is the gradient of are not in the region")
        meta = replace(line.meta, kernel=None)
        logarithm, average = (Term(n, left.axes) for n in (self.earlier[shares].logarithm, self.corrections[shares]))
        less = first.step("-", shares, "sink", left.axes, (sink, logarithm), meta)
        share = first.step("exp", shares, "of_sink", left.axes, (less,), meta)
        part = first.step("*", shares, "sinks", left.axes, (share, average), meta)
        first.add("*", self.made(left.name, left.axes, left.name), (Literal(-1.0), part), meta)

    # The iterations.

    def _rounds(self, own: _Shard) -> list[Statement]:
        """Return the loop over the received shards; totals begin as the results of the own shard, or as zeros."""
        region = self.region
        around, self.values = self.values, {}
        received = _Shard(self, [], "round", {}, is_round=True)
        carries = [self._receive(received, line) for line in region.gathers.values()]
        begin = {} if region.scatters else {name: own.names[name] for name in region.totals}
        starts = {name: self._start(name, received) for name in (*region.totals, *region.scatters)}
        for shares, (largest, total, _) in own.now.items():
            several = {each.name: self.step(each.name, "start", each.axes) for each in (largest, total)}
            for name, term in several.items():
                self.values[term.name] = around[name]
            begin |= {name: name for name in several}
            starts |= several
            received.before[shares] = OnlineSoftmax(*several.values())
        received.write()
        ends = {name: self._total(received, name, starts[name]).name for name in region.totals}
        ends |= {
            name: self._returned(received, line, name, starts[name]).name for name, line in region.scatters.items()
        }
        for shares, so_far in own.now.items():
            ends |= {old.name: new.name for old, new in zip(so_far[:2], received.now[shares][:2], strict=True)}
        inside, self.values = self.values, around
        zeros, meta = _RingWriter(self), region.body[0].meta
        phase = next((line.meta.phase for line in region.scatters.values()), meta.phase)
        for name, start in starts.items():
            axes = tuple(axis.replace(ROUND, "") for axis in start.declared)
            value = inside[start.name].along(axes)
            if name not in begin:
                left = Term(self.fresh(name, "zeros"), axes)
                self.values[left.name] = value
                begin[name] = left.name
                zeros.add("zeros", left, (), replace(meta.of_step(left.name), phase=phase))
            self.finals[name] = Term(self.fresh(name, "all"), axes)
            self.values[self.finals[name].name] = value
            carries.append(Carry(start.name, ends[name], begin[name], self.finals[name].name))
        for carry in carries[: len(region.gathers)]:
            self.values[carry.final] = self.known[carry.initial]
        count = str(self.devices - 1)
        return [*zeros.out, Loop(count, tuple(received.out), inside, tuple(carries), around=region.mesh_axis)]

    def _receive(self, received: _Shard, line: Op) -> Carry:
        """Return the carried name of a rotating shard, from the previous device to this one."""
        source, region = line.right[0], self.region
        axes = list(source.declared)
        axes[region.at[line.name]] = received.axis(axes[region.at[line.name]])
        start, received_shard = (self.step(source.name, what, axes) for what in ("before", "pass_on"))
        value = self.holds.get(source.name, source.name)
        named = base(region.gathered).partition("/")[0]
        sums = ", ".join(dict.fromkeys(self.holds.get(name, name) for name in region.totals))
        why = f"{value} is sharded on {named} over {region.mesh_axis}, and {sums} sums over all of it, "
        self._passed(received, received_shard, start, line.meta, value, why + "one shard per iteration (rule 9)")
        received.names[line.name] = received_shard.name
        return Carry(start.name, received_shard.name, source.name, self.fresh(source.name, "last"))

    def _passed(self, received: _Shard, left: Term, right: Term, meta: Meta, value: str, why: str) -> None:
        """Write the line that passes an array to the next device."""
        self.holds[left.name] = value
        meta = meta.of_step(left.name, why)
        received.add("pass_on", left, (right,), meta, axes=(self.region.mesh_axis,))

    def _start(self, name: str, received: _Shard) -> Term:
        """Return the value of a total at the start of an iteration; for gradients of rotating shards, that of the
        received shard.
        """
        axes = list(self.known[name].axes)
        if name in self.region.at:
            axes[self.region.at[name]] = received.axis(axes[self.region.at[name]])
        return self.step(name, "start", axes)

    def _total(self, received: _Shard, name: str, start: Term) -> Term:
        """Return the running total; if it is linear in unnormalized shares, earlier sums are rescaled to the new
        maximum.
        """
        line = self.made_by[name]
        (term,) = (term for term in line.left if term.name == name)
        scale = received.now[self.linear[name][0]].scale if name in self.linear else None
        scale = Term(scale.name, self.rows(term)) if scale else None
        return received.so_far(
            Term(start.name, term.axes), Term(received.names[name], term.axes), scale, received.meta(line)
        )

    def _returned(self, received: _Shard, line: Op, name: str, start: Term) -> Term:
        """Return the gradient of a received shard, with this device's contribution, on its way back to its owner."""
        so_far = received.so_far(start, Term(received.names[name], start.axes), None, line.meta)
        moved = self.step(so_far.name, "pass_on", so_far.axes)
        why = f"{name} is summed over the shards of the others and reaches its owner after the last iteration (rule 9)"
        self._passed(received, moved, so_far, line.meta, self.holds.get(name, name), why)
        return moved

    # The results.

    def _ends(self, own: _Shard, unknown: Iterable[Op]) -> list[Statement]:
        """Return the totals after the last iteration: those of exponentials divided by their sum."""
        end, sums = _RingWriter(self), dict[str, Term]()
        for line in unknown:
            largest, total = (self.finals[each.name] for each in own.now[line.name][:2])
            meta = replace(line.meta, kernel=None)
            sums[line.name] = end.step("maximum", line.name, "least", total.axes, (total, Literal(1.0)), meta)
            log = end.step("log", line.name, "log", total.axes, (sums[line.name],), meta)
            logarithm = end.step("+", line.name, "logarithm", total.axes, (largest, log), meta)
            linear = tuple(name for name in self.region.totals if self.linear.get(name, ("",))[0] == line.name)
            self.normalizers[line.name] = Normalizer(logarithm.name, linear)
        for name in self.region.totals:
            maker = self.made_by[name]
            (term,) = (term for term in maker.left if term.name == name)
            final, left = Term(self.finals[name].name, term.axes), self.made(name, term.axes, name)
            meta = maker.meta.of_step(name)
            if name in self.linear:
                end.add("divide", left, (final, Term(sums[self.linear[name][0]].name, self.rows(term))), meta)
            else:
                end.add("+", left, (final,), meta)
        return end.out

    def _together(self, own: _Shard) -> list[Statement]:
        """Return the sum of the results of the iterations and of the own shard."""
        end, region = _RingWriter(self), self.region
        for name in (*region.totals, *region.scatters):
            final, scatter = self.finals[name], region.scatters.get(name)
            result = scatter.name if scatter else name
            meta = (scatter or self.made_by[name]).meta.of_step(result)
            end.add("+", self.made(result, final.axes, result), (final, Term(own.names[name], final.axes)), meta)
        return end.out


@dataclass
class _RingWriter:
    """Lines of a ring that are written one after another."""

    ring: RingLines
    out: list[Statement] = field(default_factory=list)

    def add(
        self,
        op: str,
        left: Term,
        right: tuple[Operand, ...],
        meta: Meta,
        where: tuple[Condition, ...] = (),
        axes: tuple[str, ...] = (),
    ) -> Term:
        """Write a line: a product `*`, a sum `+`, a difference `-`, or an operator."""
        if op == "*":
            self.out.append(Product((left,), right, where, meta))
        elif op in ("+", "-"):
            self.out.append(Sum((left,), right, where, meta, (1, *[1 if op == "+" else -1] * (len(right) - 1))))
        else:
            self.out.append(applied(op, left, right, meta, axes, where))
        return left

    def step(
        self,
        op: str,
        of: str,
        what: str,
        axes: Iterable[Axis],
        right: tuple[Operand, ...],
        meta: Meta,
        where: tuple[Condition, ...] = (),
    ) -> Term:
        """Write a line of a value that is named after another one."""
        left = self.ring.step(of, what, axes)
        return self.add(op, left, right, meta.of_step(left.name, kernel=meta.kernel), where)


@dataclass
class _Shard(_RingWriter):
    """The lines of a region with one shard: the device's own, or a received one.

    names     the names of the region's values here
    is_round  whether the shard was received
    before    the running statistics of softmaxes whose sums are not known; now, those with this shard
    """

    suffix: str = ""
    names: dict[str, str] = field(default_factory=dict)
    is_round: bool = False
    before: dict[str, OnlineSoftmax] = field(default_factory=dict)
    now: dict[str, OnlineSoftmax] = field(default_factory=dict)

    def write(self) -> None:
        """Write all lines."""
        for name, place in self.ring.region.slices.items():
            self._part(name, place)
        for line in self.ring.region.body:
            for name in line.makes:
                self.names[name] = self.ring.fresh(name, self.suffix)
            self._line(line)

    def _part(self, name: str, place: int) -> None:
        """Take the shard of an array that is replicated along the gathered axis."""
        ring, region = self.ring, self.ring.region
        whole = ring.known[name].axes
        axes = (*whole[:place], self.axis(whole[place]), *whole[place + 1 :])
        left = ring.step(name, "part", axes)
        ring.holds[left.name] = ring.holds.get(name, name)
        why = f"{name} has all of {base(whole[place])}, and an iteration reads a shard of it (rule 9)"
        meta = region.body[0].meta.of_step(left.name, why)
        self.add("part", left, (Term(name, whole),), meta, axes=(region.mesh_axis,))
        self.names[name] = left.name

    def axis(self, axis: str) -> str:
        """Return the name of a gathered axis here: `M/cp'` of `M'`, and `M/cp~'` for a received shard."""
        return base(self.ring.region.gathered) + (ROUND if self.is_round else "") + axis[len(base(axis)) :]

    def meta(self, line: Line) -> Meta:
        """Return the metadata of a line here; each iteration has separate kernels."""
        kernel = line.meta.kernel
        return replace(line.meta, kernel=kernel and replace(kernel, name=f"{kernel.name}_{self.suffix}"))

    def so_far(self, start: Term, add: Term, scale: Term | None, meta: Meta) -> Term:
        """Return the earlier sum plus the new term; the sum is rescaled first if the maximum changed."""
        if scale is not None:
            start = self.step("*", add.name, "scaled", add.axes, (start, scale), meta)
        return self.step("+", add.name, "so_far", add.axes, (start, add), meta)

    def _line(self, line: Line) -> None:
        region, axis = self.ring.region, self.ring.region.axis(line)
        new = line.renamed(self.names, {axis: self.axis(axis)})
        # Numbers that are sizes keep the global sizes.
        right = tuple(old if isinstance(old, Literal) else t for old, t in zip(line.right, new.right, strict=True))
        new = new.with_changed(right=right, meta=self.meta(line))
        for old, term in zip(line.left, new.left, strict=True):
            if old.name not in region.rows:
                self.ring.made(term.name, term.axes, old.name)
        if not is_softmax(new) or not is_softmax(line):
            self.out.append(new)
        elif line.part == "gradient":
            self._gradient(new, line)
        elif line.name in self.ring.earlier:
            self._exponentials(new, Term(self.ring.earlier[line.name].logarithm, _rows_of(new)))
        else:
            self._sums(new, line.name)

    def _exponentials(self, line: Op, below: Term) -> None:
        """Write shares, or their exponentials: of scores minus a number per row."""
        left, where = line.left[0], line.where
        less = self.step("-", left.name, "below", left.axes, (line.right[0], below), line.meta, where)
        self.add("exp", left, (less,), line.meta.of_step(left.name, kernel=line.meta.kernel), where)

    def _sums(self, line: Op, shares: str) -> None:
        """Write the running maximum, and unnormalized exponentials in place of shares, with their sum."""
        left, where, meta, rows = line.left[0], line.where, line.meta, _rows_of(line)
        before, sink = self.before.get(shares), _sink_of(line)
        largest = self.ring.step(left.name, "largest", rows)
        self.add("max", largest, line.right[:1], meta.of_step(largest.name, kernel=meta.kernel), where, line.axes)
        least = Term(before.largest.name, rows) if before else sink or LOWEST
        below = self.step("maximum", left.name, "max", rows, (largest, least), meta)
        self._exponentials(line, below)
        total = self.step("*", left.name, "sum", rows, (left,), meta, where)
        if not before:
            if sink:
                less = self.step("-", total.name, "sink", rows, (sink, below), meta)
                share = self.step("exp", total.name, "of_sink", rows, (less,), meta)
                total = self.step("+", total.name, "in_all", rows, (total, share), meta)
            self.now[shares] = OnlineSoftmax(below, total)
            return
        less = self.step("-", left.name, "less", rows, (least, below), meta)
        scale = self.step("exp", left.name, "scale", rows, (less,), meta)
        self.now[shares] = OnlineSoftmax(below, self.so_far(Term(before.total.name, rows), total, scale, meta), scale)

    def _gradient(self, new: Op, old: Op) -> None:
        """Write the gradient of a softmax: shares times the deviation of their gradients from the row's mean."""
        left, given, corrections = new.left[0], _operands(new), self.ring.corrections
        shares = _operands(old)["Y"].names[0]
        if shares not in corrections:
            refuse(old, "its shares are not computed with it")
        mean = Term(corrections[shares], _rows_of(new))
        more = self.step("-", left.name, "more", left.axes, (given["dY"], mean), new.meta, new.where)
        self.add("*", left, (given["Y"], more), new.meta, new.where)


def _rows_of(softmax: Op) -> tuple[Axis, ...]:
    """Return the axes of a softmax that it does not reduce."""
    return tuple(axis for axis in softmax.left[0].axes if axis not in softmax.axes)


def _operands(line: Op) -> Mapping[str, Operand]:
    """Return the operands of a line by the names of its operator's inputs."""
    return dict(zip(line.given, line.right, strict=True))

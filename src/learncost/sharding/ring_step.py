"""Write the lines of a region for one shard of the gathered array: the device's own, or a received one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Statement
from learncost.ir.polynomial import ROUND, base
from learncost.ir.term import Axis, Literal, Term
from learncost.ir.value import Value
from learncost.ops import applied, is_softmax
from learncost.sharding.ring_regions import RingRegion

LOWEST = Literal(-1e29)
"""The lower bound of the maximum score, so that fully masked rows have sums of zero, as in the op safe_softmax."""


SINK = "z"
"""The attention sink of a softmax: an additional score in every row, which takes a share of it."""


def sink_of(line: Op) -> Term | None:
    """Return the attention sink of a softmax; None if it has none."""
    given = zip(line.given, line.right, strict=True)
    return next((term for name, term in given if name == SINK and isinstance(term, Term)), None)


@dataclass(frozen=True)
class Normalizer:
    """The normalizer of a softmax over a ring: `logarithm`, the logarithm of the sum of all exponentials, and `totals`,
    the values that are linear in the shares, such as the output of attention.
    """

    logarithm: str
    totals: tuple[str, ...]


@dataclass
class Ring:
    """A region that becomes a ring.

    region       the rotating arrays, and the lines that read them
    devices      the number of devices
    known        values of its scope and of the enclosing ones; before, those of the forward pass
    whole        values of the unsharded table
    holds        the values that results of collectives hold
    fresh        returns a name for a value that is derived from another
    values       the values of its results
    normalizers  of the softmaxes whose sums it computes
    """

    region: RingRegion
    devices: int
    known: Mapping[str, Value]
    before: Mapping[str, Value]
    whole: Mapping[str, Value]
    holds: dict[str, str]
    fresh: Callable[[str, str], str]
    values: dict[str, Value] = field(default_factory=dict)
    normalizers: dict[str, Normalizer] = field(default_factory=dict)

    def made(self, name: str, axes: Iterable[Axis], of: str) -> Term:
        """Declare a value with the kind of another one, and return its term."""
        term = Term(name, tuple(axes))
        self.values[name] = (self.values.get(of) or self.known.get(of) or Value(())).along(term.declared)
        return term

    def step(self, of: str, what: str, axes: Iterable[Axis]) -> Term:
        """Declare a value that is named after another one, and return its term."""
        return self.made(self.fresh(of, what), axes, of)


def step_meta(meta: Meta, name: str) -> Meta:
    """Return the metadata of an additional line that defines a name, from that of another line."""
    return Meta(meta.layer, meta.block, meta.phase, local=name, kernel=meta.kernel, module=meta.module)


@dataclass
class SoFar:
    """The running statistics of an online softmax: the maximum score, the sum of the exponentials below it, and the
    factor that rescales earlier sums to a larger maximum.
    """

    largest: Term
    total: Term
    scale: Term | None = None


@dataclass
class RingIteration:
    """The lines of a region with one shard, while they are written.

    names        the names of the region's values here
    is_round     whether the shard was received, or is the device's own
    earlier      softmaxes whose sums are known
    corrections  the sum over a row of shares times their gradients, for these, if gradients are read
    before       the running statistics of the others
    """

    ring: Ring
    suffix: str
    names: dict[str, str]
    earlier: Mapping[str, Normalizer]
    corrections: Mapping[str, str]
    is_round: bool = False
    before: Mapping[str, SoFar] = field(default_factory=dict)
    now: dict[str, SoFar] = field(default_factory=dict)
    out: list[Statement] = field(default_factory=list)

    def write(self) -> None:
        """Write all lines."""
        for name, place in self.ring.region.slices.items():
            self._part(name, place)
        for line in self.ring.region.lines:
            for name in line.makes:
                self.names[name] = self.ring.fresh(name, self.suffix)
            self._line(line)

    def _part(self, name: str, place: int) -> None:
        """Take the shard of an array that is replicated along the gathered axis."""
        value, region = self.ring.known[name], self.ring.region
        axes = list(value.axes)
        axes[place] = self.axis(axes[place])
        left = self.ring.fresh(name, "part")
        self.ring.values[left] = value.along(axes)
        self.ring.holds[left] = self.ring.holds.get(name, name)
        first = region.lines[0].meta
        why = f"{name} has all of {base(value.axes[place])}, and an iteration reads a shard of it (rule 9)"
        meta = Meta(first.layer, first.block, first.phase, local=left, module=first.module, why=why)
        part = applied("part", Term(left, tuple(axes)), (Term(name, value.axes),), meta, (region.mesh_axis,))
        self.out.append(part)
        self.names[name] = left

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
            scaled = self.ring.step(add.name, "scaled", add.axes)
            self.out.append(Product((scaled,), (start, scale), (), step_meta(meta, scaled.name)))
            start = scaled
        end = self.ring.step(add.name, "so_far", add.axes)
        self.out.append(Sum((end,), (start, add), (), step_meta(meta, end.name), (1, 1)))
        return end

    def _line(self, line: Line) -> None:
        axis = self.ring.region.axis(line)
        new = line.renamed(self.names, {axis: self.axis(axis)})
        # Numbers that are sizes keep the global sizes.
        right = tuple(old if isinstance(old, Literal) else t for old, t in zip(line.right, new.right, strict=True))
        new = new.with_changed(right=right, meta=self.meta(line))
        for old, term in zip(line.left, new.left, strict=True):
            if old.name not in self.ring.region.rows:
                self.ring.made(term.name, term.axes, old.name)
        if not is_softmax(new) or not is_softmax(line):
            self.out.append(new)
        elif line.part == "gradient":
            self._gradient(new, line)
        elif line.name in self.earlier:
            rows = tuple(each for each in new.left[0].axes if each not in new.axes)
            self._exponentials(new, Term(self.earlier[line.name].logarithm, rows))
        else:
            self._sums(new, line.name)

    def _exponentials(self, line: Op, below: Term) -> None:
        """Write shares, or their exponentials: of scores minus a number per row."""
        left, scores, where = line.left[0], line.right[0], line.where
        less = self.ring.step(left.name, "below", left.axes)
        self.out.append(Sum((less,), (scores, below), where, step_meta(line.meta, less.name), (1, -1)))
        self.out.append(applied("exp", left, (less,), step_meta(line.meta, left.name), where=where))

    def _sums(self, line: Op, shares: str) -> None:
        """Write the running maximum, and unnormalized exponentials in place of shares, with their sum."""
        left, where, meta, ring = line.left[0], line.where, line.meta, self.ring
        rows = tuple(axis for axis in left.axes if axis not in line.axes)
        before = self.before.get(shares)
        largest, below = (ring.step(left.name, what, rows) for what in ("largest", "max"))
        self.out.append(applied("max", largest, line.right[:1], step_meta(meta, largest.name), line.axes, where))
        sink = sink_of(line)
        least = Term(before.largest.name, rows) if before else sink or LOWEST
        self.out.append(applied("maximum", below, (largest, least), step_meta(meta, below.name)))
        self._exponentials(line, below)
        total = ring.step(left.name, "sum", rows)
        self.out.append(Product((total,), (left,), where, step_meta(meta, total.name)))
        if sink and not before:
            total = self._with_sink(sink, below, total, meta)
        self.now[shares] = SoFar(below, total)
        if before:
            less, scale = (ring.step(left.name, what, rows) for what in ("less", "scale"))
            self.out.append(Sum((less,), (least, below), (), step_meta(meta, less.name), (1, -1)))
            self.out.append(applied("exp", scale, (less,), step_meta(meta, scale.name)))
            start = Term(before.total.name, rows)
            self.now[shares] = SoFar(below, self.so_far(start, total, scale, meta), scale)

    def _with_sink(self, sink: Term, below: Term, total: Term, meta: Meta) -> Term:
        """Return the sum of exponentials with that of the sink."""
        less, share, whole = (self.ring.step(total.name, what, total.axes) for what in ("sink", "of_sink", "in_all"))
        self.out.append(Sum((less,), (sink, below), (), step_meta(meta, less.name), (1, -1)))
        self.out.append(applied("exp", share, (less,), step_meta(meta, share.name)))
        self.out.append(Sum((whole,), (total, share), (), step_meta(meta, whole.name), (1, 1)))
        return whole

    def _gradient(self, new: Op, old: Op) -> None:
        """Write the gradient of a softmax: shares times the deviation of their gradients from the row's mean."""
        left, given = new.left[0], dict(zip(new.given, new.right, strict=True))
        shares = dict(zip(old.given, old.right, strict=True))["Y"].name
        if shares not in self.corrections:
            self.ring.region.refuse(old, "its shares are not computed with it")
            return
        rows = tuple(axis for axis in left.axes if axis not in new.axes)
        more, correction = self.ring.step(left.name, "more", left.axes), Term(self.corrections[shares], rows)
        step = step_meta(new.meta, more.name)
        self.out.append(Sum((more,), (given["dY"], correction), new.where, step, (1, -1)))
        self.out.append(Product((left,), (given["Y"], more), new.where, new.meta))

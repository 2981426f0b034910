"""Shard a loop: loop-carried values have one layout, and iterations over a sharded trip count run on several
devices."""

from __future__ import annotations

from collections.abc import Mapping

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Sum
from learncost.ir.loop import Carry, Loop
from learncost.ir.polynomial import base
from learncost.sharding.layout import ShardLayout, cut
from learncost.sharding.scope import CollectiveReason, ShardingScope, readers

Partial = frozenset[tuple[str, str]]


def place_repeat(scope: ShardingScope, repeat: Loop) -> None:
    """Emit a sharded loop, after the collectives for its inputs."""
    busy = _busy(scope, repeat)
    _move_shared(scope, repeat, busy)
    totals = {carry.start: _joinable(scope, carry) for carry in repeat.carry}
    while True:
        inner, ends = _iteration(scope, repeat, busy, totals)
        narrower = {start: partial & ends[start] for start, partial in totals.items()}
        if narrower == totals:
            break
        totals = narrower
    _finish(scope, repeat, busy, inner, totals)


def _busy(scope: ShardingScope, repeat: Loop) -> tuple[str, ...]:
    """Return the mesh axes that shard the iterations, as those of a loop over sequences.

    Dependent iterations run on all devices; their bodies may be sharded, for example by channels.
    """
    sharded_over: dict[str, tuple[str, ...]] = {}
    for inside, stack in (*repeat.each, *repeat.keep):
        axes = scope.value(stack).axes
        if axes and axes[0] == repeat.count and not repeat.part(inside, axes):
            sharded_over[stack] = scope.spec(stack).split[0]
    if not any(sharded_over.values()):
        return ()
    first = max(sharded_over.values(), key=len)
    if all(_is_total(repeat, carry) for carry in repeat.carry):
        return first
    parted = {
        name for value in repeat.values.items() for names in scope.specs.spec(*value, scope.busy) for name in names
    }
    return first if {*first} - parted else ()


def _move_shared(scope: ShardingScope, repeat: Loop, busy: tuple[str, ...]) -> None:
    """Emit the collectives that reduce shared inputs before the loop, and gather them over devices with different
    iterations."""
    for name in repeat.shared:
        held = scope.held(name)
        layout = next(iter(held))
        goal = layout.whole()
        if not layout.partial and not {*busy} & layout.over:
            continue
        if layout.partial:
            goal = scope.spec(name)
        goal = ShardLayout(tuple(tuple(q for q in names if q not in busy) for names in goal.split))
        scope.at(name, goal, CollectiveReason(5, None))


def _joinable(scope: ShardingScope, carry: Carry) -> Partial:
    """Return the mesh axes over which a total may be carried as a partial sum, which are all if it begins as zeros."""
    if carry.initial in scope.zeros:
        return frozenset((name, "sum") for name in scope.specs.mesh.names)
    return scope.pending(carry.initial)


def _carried(scope: ShardingScope, start: str, partial: Partial) -> ShardLayout:
    """Return the layout of a carried value: its spec, with its pending reductions."""
    spec = scope.spec(start)
    return replace(spec, partial=frozenset((q, how) for q, how in partial if q not in spec.over))


def _iteration(
    scope: ShardingScope, repeat: Loop, busy: tuple[str, ...], totals: Mapping[str, Partial]
) -> tuple[ShardingScope, dict[str, Partial]]:
    """Shard the body; return its scope, and the pending reductions of carried values at the end of an iteration."""
    inner = ShardingScope(scope.specs, repeat.values, scope.busy | {*busy}, scope)
    inner.readers = readers(repeat.lines, repeat.ends)
    for carry in repeat.carry:
        inner.give(carry.start, _carried(inner, carry.start, totals[carry.start]))
    for name, stack in repeat.each:
        layout = _stack_layout(scope, inner, repeat, (name, stack), busy)
        together = repeat.part(name, scope.value(stack).axes)
        inner.give(name, replace(layout, split=layout.split if together else layout.split[1:]))
    inner.statements(repeat.lines)
    return inner, {carry.start: inner.pending(carry.end) for carry in repeat.carry}


def _stack_layout(
    scope: ShardingScope, inner: ShardingScope, repeat: Loop, each: tuple[str, str], busy: tuple[str, ...]
) -> ShardLayout:
    """Return the layout of a stack whose slices iterations read: sharded like the iterations."""
    name, stack = each
    layout = next(iter(scope.held(stack)))
    if busy:
        others = (tuple(q for q in names if q not in busy) for names in scope.spec(stack).split[1:])
        return ShardLayout((busy, *others))
    layout = scope.spec(stack) if layout.partial else layout
    if layout.split[0] and not repeat.part(name, scope.value(stack).axes):
        return ShardLayout(((), *inner.spec(name).split))  # every device has all iterations
    return layout


def _finish(
    scope: ShardingScope, repeat: Loop, busy: tuple[str, ...], inner: ShardingScope, totals: Mapping[str, Partial]
) -> None:
    reason = CollectiveReason(5, None)
    over = frozenset(busy)
    carried, kept = [], []
    for carry in repeat.carry:
        layout = _carried(inner, carry.start, totals[carry.start])
        if over and (carry.initial not in scope.zeros or not _is_total(repeat, carry)):
            raise InputError(
                f"iterations over {repeat.count} carry {carry.start}, so they cannot run in parallel on the devices of "
                f"{' and '.join(busy)}"
            )
        initial = scope.at(carry.initial, layout, reason)
        carried.append(Carry(carry.start, inner.at(carry.end, layout, reason), initial, carry.final))
        partial = layout.partial | {(q, "sum") for q in busy}
        scope.made_by[carry.final] = inner.line_of(carry.end)
        scope.joins[carry.final] = dict(inner.joins.get(carry.end, {}))
        scope.joins[carry.final] |= {q: f"the iterations over {base(repeat.count)} run on its devices" for q in busy}
        scope.give(carry.final, ShardLayout(layout.split, partial))
    for name, stack in repeat.keep:
        layout = _kept_layout(inner, name, frozenset() if busy else scope.spec(stack).over)
        kept.append((inner.at(name, layout, reason), stack))
        together = repeat.part(name, scope.value(stack).axes)
        split = layout.split if together else (busy, *layout.split)
        scope.made_by[stack] = inner.line_of(name)
        scope.joins[stack] = dict(inner.joins.get(name, {}))
        scope.choices |= inner.choices
        scope.give(stack, ShardLayout(split, layout.partial, layout.sent))
    each = []
    for name, stack in repeat.each:
        each.append((name, scope.at(stack, _stack_layout(scope, inner, repeat, (name, stack), busy), reason)))
    scope.holds |= inner.holds
    scope.out.append(
        replace(
            repeat,
            count=cut(repeat.count, busy),
            lines=tuple(inner.out),
            values=inner.placed,
            carry=tuple(carried),
            each=tuple(each),
            keep=tuple(kept),
        )
    )


def _is_total(repeat: Loop, carry: Carry) -> bool:
    """Return whether a carried value is a total: lines only add to it, and no other lines read it."""
    sums = {carry.start}
    for line in repeat.lines:
        if sums & {*line.reads}:
            if not isinstance(line, Sum):
                return False
            sums |= {*line.makes}
    return carry.end in sums and not sums & {name for name, _ in repeat.keep}


def _kept_layout(inner: ShardingScope, name: str, over: frozenset[str]) -> ShardLayout:
    """Return the layout of a slice that is collected in a stack: its spec, but weight gradients remain partial.

    over  the mesh axes that shard the stack, over which other partial sums are reduced later
    """
    spec, layout = inner.spec(name), inner.partial(name)
    held = inner.held(name)
    if layout is None and all(each.sent for each in held):
        return next(iter(held))
    value = inner.value(name)
    if layout is None or value.role == "saved":
        return spec
    waiting = frozenset((q, how) for q, how in layout.partial if q not in spec.over)
    if inner.specs.kind(name, value)[0] != "gradients":
        waiting = frozenset((q, how) for q, how in waiting if q in over)
    return replace(spec, partial=waiting)

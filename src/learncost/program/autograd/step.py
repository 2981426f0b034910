"""A training step as PyTorch's autograd runs it: all gradients are in memory when the optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.program.autograd.called import after_makers, call_module, with_head_losses, with_mixers, with_parts
from learncost.program.autograd.calls import (
    CallScope,
    Experts,
    Linear,
    LinearLoss,
    LineCall,
    Loss,
    Norm,
    OperatorCall,
    Projection,
    local_name,
)
from learncost.program.autograd.operators import INTEGER, Storage, TapeTensor, cat
from learncost.program.autograd.state import (
    SavedForward,
    ScopeNames,
    StepOptions,
    StepState,
    Values,
    blocks_of,
    whole_block,
)
from learncost.program.autograd.tape import StopRecomputationError, Tape, TapeNode
from learncost.program.autograd.wrapped import BUCKETS, GATHERED
from learncost.program.optimizer_step import STEP, step_weights
from learncost.program.program import ACTIVATIONS, BEFORE, FORWARD, OPTIMIZER, WEIGHTS


def _calls(names: ScopeNames, lines: Sequence[Statement], outputs: Sequence[str]) -> list[OperatorCall | Loop]:
    """Return the calls of lines in the module's order."""
    module, known = names.module, names.state.table.values

    def joins(projections: Sequence[Projection]) -> Sequence[Sequence[Projection]]:
        outer = [names.weights[projection.weight][0] for projection in projections]
        return module.joins(projections, [known[name].group or name for name in outer])

    lines, view_parts = with_parts(lines, outputs, names.axes)
    in_order = list(CallScope(lines, names.weights, names.drawn, outputs, joins, module.gathers).calls())
    in_order = after_makers(in_order, view_parts)
    in_order = with_mixers(in_order) if module.mixes else in_order
    in_order = with_head_losses(in_order, names.state.asked.loss) if names.state.asked.loss else in_order
    place = next((at for at, call in enumerate(in_order) if local_name(call) == module.after), 0)
    if place:
        early = [call for call in in_order[:place] if isinstance(call, Experts)]
        in_order = [*(call for call in in_order[: place + 1] if call not in early), *early, *in_order[place + 1 :]]
    return in_order


def _run(names: ScopeNames, calls: Sequence[OperatorCall | Loop], values: Values) -> None:
    """Run call by call; the caller of a module holds its operands until it returns."""
    holds, operands = names.module.holds == "sublayers", list[TapeTensor]()
    last = {name: call for call in calls for name in call.reads}
    for at, call in enumerate(calls):
        if isinstance(call, Loop):
            _repeat(names, call, values)
        else:
            in_loop = names.axes is not names.state.table.axes
            if not in_loop and isinstance(call, Linear | LinearLoss | Loss):
                names.tape.offloads &= any(isinstance(later, Loop) for later in calls[at:])  # not of the head
            if isinstance(call, Linear | LinearLoss | Loss) and not names.around:
                names.state.release(names.state.embedded)  # the model has returned, and its head begins
            names.tape.label = call.title
            given = [values[name] for name in call.reads if name in values]
            try:
                call_module(names, call, values)
            except (
                StopRecomputationError
            ):  # the recomputation ends inside, where variables hold what later calls would read
                names.tape.hold(*(values[name] for later in calls[at:] for name in later.reads if name in values))
                raise
            finally:
                names.tape.hold(*given, *operands)
            if holds and isinstance(call, Linear | LineCall):
                operands += [values[name] for name in call.reads if name in values and last[name] is call]
            if isinstance(call, Norm):
                operands.clear()


def _repeat(names: ScopeNames, repeat: Loop, values: Values) -> None:
    tape, how, sharded = names.tape, names.state.asked.checkpoint, names.state.sharded
    number = names.state.numbers.get(id(repeat), -1)
    sharded = sharded if (number, 0) in names.state.blocks.values() else None
    weighted = any(outer in names.weights for _, outer in repeat.each)
    if not weighted:  # a recurrence within a block
        how = ""
    starts_given = [values.pop(carry.initial) for carry in repeat.carry]
    around = {name: names.found(name, values) for name in repeat.shared if names.is_value(name)}
    iterations, stacks = size_of(repeat.count, names.state.sizes), _unbound(names, repeat, values)
    inner = _inside(names, repeat, 0, around, values, stacks)
    parts = [
        (_calls(inner, lines, ends), starts, ends)
        for lines, starts, ends in (
            blocks_of(repeat, names.state.sharded_over) if how or sharded else (whole_block(repeat),)
        )
    ]
    kept: list[list[TapeTensor]] = [[] for _ in repeat.keep]
    order = range(iterations)[:: -1 if repeat.reverse else 1]
    asked = names.state.asked
    unlike = asked.between or sharded or stacks or kept or asked.whole or asked.every > 1 or tape.offloads
    few = range(iterations) if weighted and unlike else tape.iterations(iterations)
    for iteration in (order[place] for place in few):
        for place, (calls, starts, ends) in enumerate(parts):
            if sharded:
                group = names.state.group((number, place), iteration)
                sharded.before_forward(group)
                starts_given = sharded.entered(group, starts_given)
            inner = _inside(names, repeat, iteration, around, values, stacks)
            names.state.passed += weighted
            own = "" if weighted and (names.state.passed - 1) % asked.every else how
            if own == "reentrant":
                given = [*starts, *(name for name, tensor in around.items() if tensor.learns)]
                inner.around = {name: tensor for name, tensor in inner.around.items() if name not in given}
                more = [around[name] for name in given[len(starts) :]]
                results = tape.reentrant(_iteration(inner, calls, given, ends), [*starts_given, *more])
            else:
                run = _iteration(inner, calls, starts, ends)
                results = tape.checkpoint(run, starts_given, around.values()) if own else run(starts_given)
            tape.hold(*starts_given)
            starts_given = results
            if sharded:
                sharded.after_forward(group)
                starts_given = sharded.left(group, starts_given)
        for several in reversed(kept):
            several.append(starts_given.pop())
    tape.hold(*around.values())
    for carry, tensor in zip(repeat.carry, starts_given, strict=True):
        values[carry.final] = tensor
    for (_, stack), several in zip(repeat.keep, kept, strict=True):
        values[stack] = cat(several, elements=several[0].elements * iterations)


def _unbound(names: ScopeNames, repeat: Loop, values: Values) -> dict[str, list[TapeTensor]]:
    """Return the slices of the stacks that have gradients, by the names of the slices."""
    iterations, stacks = size_of(repeat.count, names.state.sizes), {}
    for inside, outer in repeat.each:
        if names.is_value(outer) and (stack := names.found(outer, values)).learns:
            stacks[inside] = stack.split([stack.elements // iterations] * iterations)
    return stacks


def _inside(
    names: ScopeNames,
    repeat: Loop,
    iteration: int,
    around: Values,
    values: Values,
    stacks: Mapping[str, Sequence[TapeTensor]],
) -> ScopeNames:
    """Return the scope of an iteration."""
    weights, drawn, slices = dict(names.weights), set(names.drawn), Values()
    for inside, outer in repeat.each:
        if outer in names.weights:
            weights[inside] = (*names.weights[outer], str(iteration))
        elif outer in names.drawn:
            drawn.add(inside)
        elif inside in stacks:
            slices[inside] = stacks[inside][iteration]
        else:
            slices[inside] = names.found(outer, values).viewed_as(names.count(repeat.axes[inside]))
    seen = {**names.around, **around, **slices}
    return ScopeNames(names.state, {**names.axes, **repeat.axes}, weights, frozenset(drawn), seen)


def _iteration(
    names: ScopeNames, calls: Sequence[OperatorCall | Loop], starts: Sequence[str], ends: Sequence[str]
) -> Callable[[Sequence[TapeTensor]], list[TapeTensor]]:
    """Return a function that runs an iteration, or a block of one, once or again, on its inputs."""

    def run(arguments: Sequence[TapeTensor]) -> list[TapeTensor]:
        values = dict(zip(starts, arguments, strict=True))
        _run(names, calls, values)
        return [values[name] for name in ends]

    return run


def run_step(tape: Tape, chunks: Sequence[Chunk], asked: StepOptions, passes: Sequence[StepPass] = ()) -> None:
    """Run one step on a tape.

    chunks  the forward tables of the model, or of the pipeline stages of a device, with their sizes
    passes  in their order; by default the forward and the backward pass of each microbatch in turn
    """
    states = [StepState(tape, table, sizes, asked) for table, sizes in chunks]
    state, builder, tape.selects = states[0], tape.builder, asked.selects
    for role, size in asked.given.items():
        builder.give(role, size, device=asked.place(role))
    builder.give(ACTIVATIONS, asked.module.buffers, "buffers")
    wrapping, syncs = asked.wrapping, asked.wrapping is None or asked.wrapping.syncs
    if wrapping and wrapping.parts == 1:
        learned = sum(each.count(each.table.axes[name]) for each in states for name in each.learning)
        builder.give(BUCKETS, learned * wrapping.reduced)
    other = _other(state) if asked.other else state
    several = min(asked.microbatches, RECORDED_MICROBATCHES if syncs else RECORDED_MICROBATCHES + 1)
    waiting, sums = dict[tuple[int, int], tuple[list[TapeTensor], SavedForward]](), False
    passes = passes or [(each, 0, number) for number in range(several) for each in "FB"]
    last = {chunk: number for letter, chunk, number in passes if letter == "B"}
    for letter, chunk, builder.microbatch in passes:
        state = states[chunk]
        if letter == "F":
            builder.phase = FORWARD
            if asked.other and asked.other.before:
                tape.without_gradients(partial(_forward, other))
            outputs = _forward(state)
            if asked.other and not asked.other.before:
                others = tape.without_gradients(partial(_forward, other))
                outputs = [asked.other.joined(outputs[0], others[0])] if asked.other.joined else outputs
                state.release(state.scores)
            waiting[chunk, builder.microbatch] = outputs, state.exchange()
            continue
        outputs, aside = waiting.pop((chunk, builder.microbatch))
        state.exchange(aside)
        if sums:
            tape.accumulate()
        sums = True
        if state.sharded:
            state.sharded.reduces = syncs or builder.microbatch == last[chunk]
            state.sharded.before_backward(state.root)
        tape.backward(outputs)
        named = zip(state.table.outputs, outputs, strict=False)
        tape.hold(*(each for name, each in named if name not in asked.between))  # Megatron frees what a stage has sent
        if state.sharded:
            state.sharded.finish()
        state.release(state.inputs)
        state.release_masks()
    tape.label, builder.phase = STEP, OPTIMIZER
    shapes = tape.learned
    if state.sharded:  # along the first axis
        shapes = [(state.sharded.wrapping.part(rows), *others) for rows, *others in shapes]
    step_weights(asked.stepping, shapes, builder)
    builder.run("optimizer")
    tape.hold(*(scores for each in states for scores in each.scores))
    tape.hold_gradients()


Chunk: TypeAlias = "tuple[Table, Mapping[str, int]]"
StepPass: TypeAlias = "tuple[str, int, int]"
"""F or B, with the chunk and the microbatch that it is of."""


def _other(state: StepState) -> StepState:
    """Return the state of the other model, with its weights, of which all are one buffer.

    `fully_shard` leaves the weights outside of blocks gathered behind a forward pass, and no backward pass frees them.
    """
    other, builder = state.asked.other, state.tape.builder
    assert other
    made = StepState(state.tape, other.table, other.sizes, other.asked, state.storages)
    if other.weights:
        made.storages = dict.fromkeys(other.table.weights, Storage(builder.give(other.name, other.weights)))
        if made.sharded:
            root = made.root
            root.storage.buffer = builder.give(GATHERED, root.elements * made.asked.width)
    return made


RECORDED_MICROBATCHES = 2
"""The microbatches that run: the first makes gradients, all others add to them; under `no_sync` the last reduces."""


def _forward(state: StepState) -> list[TapeTensor]:
    """Return the outputs of the model, after the allocation of its weights and inputs."""
    table, values, asked, builder = state.table, Values(), state.asked, state.tape.builder
    reads = {name for line in table.lines for name in line.reads} - {*table.weights}
    state.passed, state.tape.offloads = 0, ACTIVATIONS in asked.hosted
    for name in (*table.inputs, *table.weights):
        if name in asked.drawn or name in state.storages:
            continue
        elements = state.count(table.axes[name])
        width = INTEGER if name in table.indices else asked.width if name in table.weights else state.tape.width
        codes, scales = asked.coded.get(name, (elements * width, 0))
        size = codes + scales
        if state.sharded and name in table.weights:
            learned = state.sharded.wrapping.stored if name in asked.learning else width
            size = state.sharded.wrapping.part(state.stored(name, table.axes[name])) * learned + scales
        role = WEIGHTS if name in table.weights else ACTIVATIONS
        add = builder.make if name in reads else builder.allocate
        place = asked.place(role) if name in table.weights else ""
        storage = Storage(add(size, role, name, None if builder.ops else BEFORE, place))
        if name in table.weights:
            state.storages[name] = storage
        else:
            values[name] = TapeTensor(state.tape, elements, width, storage)
            # Images or sounds: the caller holds them. transformers' modules create their own constants.
            if name in asked.between and name not in table.indices:  # of the stage before, which takes its gradient
                values[name].node = TapeNode(None)
            role = table.values[name].role
            if role == "value" or (role == "constant" and not asked.module.of_family):
                state.inputs.append(values[name])
    weights = {name: (name,) for name in table.weights}
    names = ScopeNames(state, table.axes, weights, frozenset(asked.drawn), {})
    if state.sharded:
        state.sharded.before_forward(state.root)
    _run(names, _calls(names, table.lines, table.outputs), values)
    state.release(state.embedded)
    state.release(state.cache)
    state.release(state.hidden)
    state.tape.leave_autocast()
    if not asked.checkpoint:
        state.release_masks()
    if state.sharded:
        state.sharded.after_forward(state.root, keeps=True)
    return [values[name] for name in table.outputs]

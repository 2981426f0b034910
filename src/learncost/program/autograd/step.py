"""A training step as PyTorch's autograd runs it: all gradients are in memory when the optimizer steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.program.autograd.called import after_makers, call_module, with_chunked_losses, with_mixers, with_parts
from learncost.program.autograd.calls import (
    CallScope,
    Experts,
    Linear,
    LinearLoss,
    Loss,
    Norm,
    OperatorCall,
    Projection,
    Single,
    local_name,
)
from learncost.program.autograd.operators import INTEGER, TapeTensor, cat
from learncost.program.autograd.state import ROOT, ScopeNames, StepOptions, StepState, Values, blocks_of, whole_block
from learncost.program.autograd.tape import Tape, TapeValue
from learncost.program.autograd.wrapped import BUCKETS
from learncost.program.builder import BEFORE, Allocation
from learncost.program.optimizer_step import step_weights
from learncost.program.program import ACTIVATIONS, FORWARD, OPTIMIZER, WEIGHTS


def run_lines(names: ScopeNames, lines: Sequence[Statement], values: Values, outputs: Sequence[str]) -> None:
    """Run the lines of a scope on its inputs; their results are added to the values."""
    _run(names, _calls(names, lines, outputs), values, outputs)


def _calls(names: ScopeNames, lines: Sequence[Statement], outputs: Sequence[str]) -> list[OperatorCall | Loop]:
    """Return the calls of lines in the module's order."""
    module, known = names.module, names.state.table.values

    def joins(projections: Sequence[Projection]) -> Sequence[Sequence[Projection]]:
        outer = [names.weights[projection.weight][0] for projection in projections]
        return module.joins(projections, [known[name].group or name for name in outer])

    lines, parted = with_parts(lines, outputs, names.axes)
    in_order = list(CallScope(lines, names.weights, names.drawn, outputs, joins, module.gathers).calls())
    in_order = after_makers(in_order, parted)
    in_order = with_mixers(in_order) if module.mixes else in_order
    in_order = with_chunked_losses(in_order) if names.state.asked.chunked else in_order
    place = next((at for at, call in enumerate(in_order) if local_name(call) == module.after), 0)
    if place:
        early = [call for call in in_order[:place] if isinstance(call, Experts)]
        in_order = [*(call for call in in_order[: place + 1] if call not in early), *early, *in_order[place + 1 :]]
    return in_order


def _run(names: ScopeNames, calls: Sequence[OperatorCall | Loop], values: Values, outputs: Sequence[str]) -> None:
    """Run call by call; a value is freed when nothing reads it any more."""
    left = Counter(name for call in calls for name in call.reads) + Counter(outputs)
    module, values_read = names.module, Values()
    for call in calls:
        if isinstance(call, Loop):
            _repeat(names, call, values)
        else:
            if isinstance(call, Linear | LinearLoss | Loss) and not names.around:
                names.state.embedded.clear()  # the model has returned, and its head begins
            names.tape.label = call.title
            call_module(names, call, values)
        for name in call.reads:
            left[name] -= 1
            if not left[name] and name in values:
                tensor = values.pop(name)
                if module.holds == "sublayers" and isinstance(call, Linear | Single):
                    values_read[name] = tensor
                del tensor
        if isinstance(call, Norm):
            values_read.clear()


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
    for iteration in order if weighted else (order[place] for place in tape.iterations(iterations)):
        for place, (calls, starts, ends) in enumerate(parts):
            if sharded:
                group = names.state.group((number, place), iteration)
                sharded.before_forward(group)
                starts_given = sharded.entered(group, starts_given)
            inner = _inside(names, repeat, iteration, around, values, stacks)
            if how == "reentrant":
                given = [*starts, *(name for name, tensor in around.items() if tensor.learns)]
                inner.around = {name: tensor for name, tensor in inner.around.items() if name not in given}
                more = [around[name].value for name in given[len(starts) :]]
                results = tape.reentrant(
                    _iteration(inner, calls, given, ends), [*(tensor.value for tensor in starts_given), *more]
                )
            else:
                again = _held(_iteration(inner, calls, starts, ends), [tensor.value for tensor in starts_given])
                results = tape.checkpoint(again) if how else again()
            starts_given = [TapeTensor(tape, value) for value in results]
            del results
            if sharded:
                sharded.after_forward(group)
                starts_given = sharded.left(group, starts_given)
        for several in reversed(kept):
            several.append(starts_given.pop())
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
            stack, elements = names.found(outer, values).value, names.count(repeat.axes[inside])
            slices[inside] = TapeTensor(names.tape, TapeValue(elements, stack.width, stack.allocation, view=True))
    seen = {**names.around, **around, **slices}
    return ScopeNames(names.state, {**names.axes, **repeat.axes}, weights, frozenset(drawn), seen)


def _iteration(
    names: ScopeNames, calls: Sequence[OperatorCall | Loop], starts: Sequence[str], ends: Sequence[str]
) -> Callable[[Sequence[TapeValue]], list[TapeValue]]:
    """Return a function that runs an iteration, or a block of one, once or again, on its inputs."""
    tape = names.tape

    def run(arguments: Sequence[TapeValue]) -> list[TapeValue]:
        values = {name: TapeTensor(tape, value) for name, value in zip(starts, arguments, strict=True)}
        _run(names, calls, values, ends)
        return [values[name].value for name in ends]

    return run


def _held(
    run: Callable[[Sequence[TapeValue]], list[TapeValue]], arguments: Sequence[TapeValue]
) -> Callable[[], list[TapeValue]]:
    """Bind an iteration to its inputs, which it holds."""
    return lambda: run(arguments)


def run_step(tape: Tape, table: Table, sizes: Mapping[str, int], asked: StepOptions) -> None:
    """Run one step of a model's forward table on a tape."""
    state = StepState(tape, table, sizes, asked)
    builder = tape.builder
    for role, size in asked.given.items():
        builder.give(role, size)
    builder.give(ACTIVATIONS, asked.module.buffers, "buffers")
    if asked.wrapping and asked.wrapping.parts == 1:
        learned = sum(state.count(table.axes[name]) for name in asked.learning)
        builder.give(BUCKETS, learned * asked.wrapping.reduced)
    for builder.microbatch in range(min(asked.microbatches, DIFFERENT)):
        if builder.microbatch:
            tape.accumulate()
        builder.phase = FORWARD
        outputs = [tensor.value for tensor in _forward(state)]
        if state.sharded:
            state.sharded.before_backward(state.sharded.group(ROOT))
        tape.backward(outputs)
        outputs.clear()
        if state.sharded:
            state.sharded.finish()
        state.inputs.clear()
        state.masks.clear()
    tape.label, builder.phase = "optimizer step", OPTIMIZER
    step_weights(asked.stepping, tape.learned, tape.new)
    builder.run("optimizer")


DIFFERENT = 2
"""The microbatches that run: the first makes gradients, all others add to them."""


def _forward(state: StepState) -> list[TapeTensor]:
    """Return the outputs of the model, after the allocation of its weights and inputs."""
    table, values, asked = state.table, Values(), state.asked
    for name in (*table.inputs, *table.weights):
        if name in asked.drawn or name in state.allocations:
            continue
        elements = state.count(table.axes[name])
        width = INTEGER if name in table.indices else asked.width if name in table.weights else state.tape.width
        size = asked.coded.get(name, elements * width)
        if state.sharded and name in table.weights:
            learned = state.sharded.wrapping.stored
            size = state.sharded.wrapping.part(elements) * (learned if name in asked.learning else width)
        role = WEIGHTS if name in table.weights else ACTIVATIONS
        allocation = Allocation(state.tape.builder, size, role, name, None if state.tape.builder.ops else BEFORE)
        if name in table.weights:
            state.allocations[name] = allocation
        else:
            values[name] = TapeTensor(state.tape, TapeValue(elements, width, allocation))
            # Images or sounds: the caller holds them. transformers' modules create their own constants.
            role = table.values[name].role
            if role == "value" or (role == "constant" and asked.module.name == "plain"):
                state.inputs.append(values[name])
    weights = {name: (name,) for name in table.weights}
    names = ScopeNames(state, table.axes, weights, frozenset(asked.drawn), {})
    if state.sharded:
        others = [state.count(table.axes[name]) for name in table.weights if name not in state.blocks]
        root = state.sharded.group(ROOT, others)
        state.sharded.before_forward(root)
    run_lines(names, table.lines, values, table.outputs)
    state.embedded.clear()
    state.cache.clear()
    if not asked.checkpoint:
        state.masks.clear()
    if state.sharded:
        state.sharded.after_forward(root, keeps=True)
    return [values[name] for name in table.outputs]

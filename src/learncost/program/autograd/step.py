"""A training step as PyTorch's autograd runs it: all gradients are in memory when the optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from learncost.ir.table import Table
from learncost.program.account import Allocation
from learncost.program.autograd.asked import StepOptions
from learncost.program.autograd.loops import run_lines
from learncost.program.autograd.names import ScopeNames, Values
from learncost.program.autograd.operators import INTEGER, TapeTensor
from learncost.program.autograd.state import ROOT, StepState
from learncost.program.autograd.tape import Tape, TapeValue
from learncost.program.autograd.wrapped import BUCKETS


def run_step(tape: Tape, table: Table, sizes: Mapping[str, int], asked: StepOptions) -> None:
    """Run one step of a model's forward table on a tape."""
    state = StepState(tape, table, sizes, asked)
    tape.label = "optimizer state"
    allocations = [Allocation(tape.account, asked.state), Allocation(tape.account, asked.module.buffers)]
    if asked.wrapping and asked.wrapping.parts == 1:
        tape.label = BUCKETS
        learned = sum(state.count(table.axes[name]) for name in asked.learning)
        allocations.append(Allocation(tape.account, learned * asked.wrapping.reduced))
    outputs = [tensor.value for tensor in _forward(state)]
    if state.sharded:
        state.sharded.before_backward(state.sharded.group(ROOT))
    tape.backward(outputs)
    outputs.clear()
    if state.sharded:
        state.sharded.finish()
    state.inputs.clear()
    state.masks.clear()
    tape.label = "optimizer step"
    step_weights(*asked.stepping, tape.learned, tape.new)
    del allocations


def step_weights(optimizer: str, way: str, weights: Sequence[int], new: Callable[[int], object]) -> None:
    """Allocate and free the temporaries of a step of `torch.optim` over weights with these numbers of elements.

    way  fused, foreach or for-loop
    new  allocates an array of a number of elements
    """
    if way == "fused" or optimizer not in ROOTS:
        return
    if way == "foreach":  # torch._foreach_sqrt of all second moments
        roots = [new(elements) for elements in weights]
        del roots
        return
    denominator: object = None  # the name holds the previous weight's until it is reassigned
    for elements in weights:
        root = new(elements)
        denominator = new(elements) if ROOTS[optimizer] > 1 else root
        del root
    del denominator


ROOTS = {"adamw": 2, "rmsprop": 1}
"""Temporaries per weight in `_single_tensor_adamw` (exp_avg_sq.sqrt() / bias_correction2_sqrt) and
`_single_tensor_rmsprop` (square_avg.sqrt()) of torch.optim; SGD, with momentum or without, is in-place.
"""


def _forward(state: StepState) -> list[TapeTensor]:
    """Return the outputs of the model, after the allocation of its weights and inputs."""
    table, values, asked = state.table, Values(), state.asked
    for name in (*table.inputs, *table.weights):
        if name in asked.drawn:
            continue
        state.tape.label = name
        elements = state.count(table.axes[name])
        width = INTEGER if name in table.indices else asked.width if name in table.weights else state.tape.width
        size = asked.coded.get(name, elements * width)
        if state.sharded and name in table.weights:
            learned = state.sharded.wrapping.stored
            size = state.sharded.wrapping.part(elements) * (learned if name in asked.learning else width)
        allocation = Allocation(state.tape.account, size)
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

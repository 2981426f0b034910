"""Build the table of a step from a model's table by the moves of a procedure's schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from learncost.autodiff.derive import derive, derive_once
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.models.model import Model, Structure
from learncost.passes.rematerialization import checkpointed
from learncost.procedures.optimizer import check_projected, optimizer, with_optimizer
from learncost.procedures.procedure import LEARNING, MODES, PAPER, Procedure, procedure

if TYPE_CHECKING:
    from learncost.models.adaptation import Adaptation


def adaptation(chosen: Procedure, iteration: int = 0) -> Adaptation | None:
    """Return the trainable weights that a procedure fixes, if it does; `iteration` is the trained block if blocks
    alternate."""
    if not chosen.chooses:
        return None
    from learncost.models.adaptation import Adaptation  # imported when used, for a fast start

    return Adaptation(layers=str(iteration)) if chosen.by_iterations else Adaptation((chosen.part,))


def iterations_of(model: Model, chosen: Procedure) -> int:
    """Return the number of blocks that alternate in training, else 1. Raises `InputError` if a model has no single
    stack."""
    if not chosen.by_iterations:
        return 1
    from learncost.models.parts import NamedParts

    if number := sum(map(NamedParts(model).iterations, model.table.repeats)):
        return number
    raise _without(model, chosen)


def _without(model: Model, chosen: Procedure, part: str = "one stack of blocks with separate weights") -> InputError:
    return InputError(f"{chosen.name} needs {part}, which {model.configuration.name} does not have")


def trained_by(model: Model, name: str | Procedure, iteration: int = 0) -> Model:
    """Return the model with the trainable weights that a procedure fixes; it is unchanged if the procedure fixes none.

    iteration  the number of the trainable block if blocks alternate
    """
    chosen = procedure(name)
    if chosen.overrides:
        gradients = _reached(Structure(model), chosen)
        learning = tuple(weight for weight in model.learning if weight in gradients)
        return model if learning == model.learning else replace(model, trained=learning)
    part = adaptation(chosen, iteration)
    is_split = any(model.table.values[weight].group for weight in model.table.weights)
    if part is None or (chosen.by_iterations and is_split):  # it already is the model of one block
        return model
    from learncost.models.adaptation import adapted

    try:
        made = adapted(model, part)
    except InputError as refusal:
        needed = () if chosen.by_iterations else (f"{' and '.join(part.train)} weights to train",)
        raise _without(model, chosen, *needed) from refusal
    if chosen.by_iterations and not made.learning:
        raise _without(model, chosen)
    return made


def run_by(model: Model, name: str | Procedure) -> Model:
    """Return the model whose forward pass a procedure runs, as some procedures replace its blocks."""
    chosen = procedure(name)
    if "forward in two streams" not in chosen.moves:
        return model
    from learncost.procedures.two_streams import in_two_streams

    return in_two_streams(model, chosen.name)


@lru_cache(maxsize=64)
def _reached(structure: Structure, chosen: Procedure) -> frozenset[str]:
    """Return the weights that get a gradient or its replacement."""
    return frozenset(_by_gradients(structure.model, chosen, False)[1])


def step(
    model: Model,
    name: str | Procedure,
    optimizer_name: str | None = None,
    jacobian: bool = False,
    mode: str = PAPER,
    iteration: int = 0,
) -> Table:
    """Return one training step as a table: passes, updates and, if an optimizer is given, its step.

    Its inputs are the model's, the gradients of outputs if the model has no loss, and the scalars of the procedure and
    the optimizer. Its outputs are the model's, the weights' updates and, with an optimizer, the new weights and states.
    jacobian   whether the backward pass uses explicit Jacobians, as the paper prices it
    mode       "paper" or "stable", for a procedure with several modes
    iteration  the number of the trainable block if blocks alternate; 1 in a step that computes projection directions
    """
    chosen, stepping = procedure(name), optimizer(optimizer_name) if optimizer_name else None
    model = run_by(trained_by(model, name, iteration), name)
    if chosen.compares:
        from learncost.procedures.differences import by_differences  # imported when used, for a fast start

        table, gradients = by_differences(model, chosen, MODES[mode])
    elif "loss at blocks by HEAD" in chosen.moves:
        from learncost.procedures.local_losses import by_local_losses

        table, gradients = by_local_losses(model, chosen)
        if reading := chosen.moves.get("backward reading NAME for weights"):
            from learncost.procedures.feedback import with_feedback

            table = with_feedback(table, reading, chosen.lines)
    elif "update by tangents" in chosen.moves:
        from learncost.procedures.forward_gradients import by_tangents

        table, gradients = by_tangents(model, chosen)
    elif "update by both sides" in chosen.moves:
        from learncost.procedures.forward_gradients import by_two_sides

        table, gradients = by_two_sides(model, chosen)
    else:
        table, gradients = _by_gradients(model, chosen, jacobian)
    if model.saved:
        table = _with_saved_codes(table, chosen)
    if model.whole:
        from learncost.passes.rewrite_codes import with_whole

        table = with_whole(table)
    if stepping is None:
        return _in_integers(table, model) if model.integers else table
    table = with_optimizer(table, gradients, stepping, model.sizes)
    if follower := chosen.moves.get("NAME follows weights"):
        from learncost.procedures.feedback import with_following

        table = with_following(table, follower, chosen.decay)
    if model.integers:
        table = _in_integers(table, model)
    elif any(weight.kind.learns for weight in model.quantized):
        from learncost.procedures.code_updates import with_rounded  # imported when used, for a fast start

        table = with_rounded(table, model)
    if chosen.projected_to:
        check_projected(chosen.name, stepping.name)
        from learncost.procedures.projection import with_projection

        table = with_projection(table, model, chosen, bool(iteration) or chosen.held == 1)
    return table


def _in_integers(table: Table, model: Model) -> Table:
    from learncost.procedures.code_updates import in_integers  # imported when used, for a fast start

    return in_integers(table, model)


def _with_saved_codes(table: Table, chosen: Procedure) -> Table:
    """Return the step in which saved tensors are stored as codes until the backward pass."""
    from learncost.passes.rewrite_codes import with_saved_codes  # imported when used, for a fast start

    if set(chosen.schedule) - set(LEARNING["bp"].schedule) - set(LEARNING["recompute"].schedule):
        raise InputError(f"int8 activations work with the procedures bp and recompute, not {chosen.name}")
    return with_saved_codes(table)


def _by_gradients(model: Model, chosen: Procedure, jacobian: bool) -> tuple[Table, Mapping[str, str]]:
    """Return the step of a schedule with a backward pass, and the names of gradients; only lines that trainable weights
    need are derived."""
    reading = chosen.moves.get("backward reading NAME for weights")
    if reading and model.quantized:
        raise InputError(
            f"{chosen.name} replaces weights in the backward pass, which quantized weights do not "
            f"support: choose another precision"
        )
    drawn, made = {}, None
    wanted = (*model.differentiated, *model.learning)
    if chosen.overrides:
        from learncost.procedures.signals import signals

        made = signals(model, chosen)
        drawn = dict(made.inputs)
        derived = derive(model.table, wanted=wanted, jacobian=jacobian, overrides=made.overrides)
    else:
        derived = derive_once(model.table, wanted, jacobian)
    table = checkpointed(derived.step)
    if made is not None and made.directions is not None:
        from learncost.procedures.forward_gradients import with_tangents

        return with_tangents(model, derived, made)
    read = {name for statement in table.lines for name in statement.reads} | {*table.outputs}
    unread = {*table.inputs} - read - {*model.table.inputs}  # gradients of outputs that no trainable weight needs
    table = replace(table, inputs=tuple(name for name in table.inputs if name not in unread))
    drawn = {name: value for name, value in drawn.items() if name in read}
    if drawn:
        table = replace(table, values={**table.values, **drawn}, inputs=(*table.inputs, *drawn))
    if model.quantized:
        from learncost.passes.rewrite_quantized import made_again  # imported when used, for a fast start

        table = made_again(table)
    if "forward again" in chosen.moves:
        from learncost.passes.rematerialization import recomputed

        table = recomputed(table, chosen=lambda line: True, whole=True)
    if "forward again from outputs" in chosen.moves:
        from learncost.passes.recompute import inverted

        table = inverted(table)
    if reading:
        from learncost.procedures.feedback import with_feedback

        table = with_feedback(table, reading, chosen.lines)
    return table, {name: gradient for name, gradient in derived.gradients.items() if name in model.table.weights}

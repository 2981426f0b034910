"""The learning procedures: how often each macro-operation passes, and the table of one step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from learncost.equation.errors import InputError, named_one
from learncost.equation.table import Table
from learncost.models.model import Model
from learncost.procedures.backpropagation import backpropagation, recomputed
from learncost.procedures.optimizer import optimizer, with_optimizer

MACRO_OPERATIONS = (
    "forward",
    "recomputation",
    "backward",
    "error_projection",
    "weight_update",
    "optimizer_step",
)


@dataclass(frozen=True)
class Procedure:
    """A learning procedure: its passes, as in table 2 of Pau & Aymone (recompute is not in it)."""

    name: str
    title: str
    passes: Mapping[str, int]
    source: str

    def passes_over(self, model: Model) -> dict[str, int]:
        """Passes of every macro-operation; an error is projected only where there is an encoder and a decoder (E15)."""
        passes = {name: self.passes.get(name, 0) for name in MACRO_OPERATIONS}
        if not model.two_sided:
            passes["error_projection"] = 0
        return passes


_TABLE_2 = "Pau & Aymone 2024, table 2"
_ONE = {"weight_update": 1, "optimizer_step": 1}

PROCEDURES: Mapping[str, Procedure] = {
    procedure.name: procedure
    for procedure in (
        Procedure("bp", "backpropagation", {"forward": 1, "backward": 1, **_ONE}, _TABLE_2),
        Procedure(
            "recompute",
            "backpropagation with every block's forward run again",
            {"forward": 1, "recomputation": 1, "backward": 1, **_ONE},
            "Chen et al. 2016, Training deep nets with sublinear memory cost; every block",
        ),
        Procedure("pepita", "PEPITA", {"forward": 2, "error_projection": 1, **_ONE}, _TABLE_2),
        Procedure("mempepita", "MEMPEPITA", {"forward": 3, "error_projection": 1, **_ONE}, _TABLE_2),
    )
}

CONTROLS: Mapping[str, Procedure] = {
    procedure.name: procedure
    for procedure in (
        Procedure(
            "head-only",
            "backpropagation of the head alone, all else frozen: a control",
            {"forward": 1, "backward": 1, **_ONE},
            "cost --train head",
        ),
    )
}
"""What a learning procedure is held against; `compare` sets them beside it where they are named."""

_SERVING = "Pope et al. 2022, Efficiently scaling transformer inference, section 2"

INFERENCE: Mapping[str, Procedure] = {
    procedure.name: procedure
    for procedure in (
        Procedure("prefill", "the prompt's forward pass, which fills the cache", {"forward": 1}, _SERVING),
        Procedure("decode", "the forward pass of new tokens with the cache", {"forward": 1}, _SERVING),
    )
}


def several(procedures: Iterable[str] | str | None) -> tuple[str, ...]:
    """The names of several procedures, given as a list or with commas between."""
    given = procedures.split(",") if isinstance(procedures, str) else procedures or ()
    return tuple(str(name).strip() for name in given)


def procedure(name: str, also: Mapping[str, Procedure] | None = None) -> Procedure:
    """A learning procedure or a control by its name, or one of `also`; an unknown one is refused with all of them."""
    if "," in name:
        raise InputError(f"one procedure goes here, not {name!r}: compare, memory, fit, sweep and contest take several")
    kind = "procedure" if also else "learning procedure"
    return named_one(kind, name, {**PROCEDURES, **CONTROLS, **(also or {})})


def trained_by(model: Model, name: str) -> Model:
    """The model with the weights that learn under a procedure: itself, but for a control."""
    if name not in CONTROLS:
        return model
    from learncost.procedures.head_only import head_only  # only where it is asked for: start-up counts

    return head_only(model)


FORWARD_LEARNING = ("pepita", "mempepita")
"""The procedures that compare two forward passes; they have modes (`learncost.procedures.forward_learning`)."""

PAPER = "paper"
"""Their mode where none is named."""


def step(
    model: Model, name: str, optimizer_name: str | None = None, jacobian: bool = False, mode: str = PAPER
) -> Table:
    """One training step as a table: passes, updates and, where one is named, the optimizer.

    Its inputs are the model's, the gradients of its outputs where nothing else says what to learn, and the scalars of
    the procedure and the optimizer; its outputs the model's, the weights' updates and, with an optimizer, the new
    weights and states.
    jacobian   backward through explicit Jacobians, as the paper prices it
    mode       of PEPITA and MEMPEPITA: "paper", or "stable"
    """
    chosen, found = procedure(name), optimizer(optimizer_name) if optimizer_name else None
    model = trained_by(model, name)
    if chosen.name in FORWARD_LEARNING:
        if model.trained is not None:
            raise InputError(f"{chosen.name} updates every weight: frozen weights and LoRA are for bp and recompute")
        from learncost.procedures.forward_learning import (
            forward_learning,  # only where it is asked for: start-up counts
        )

        table = forward_learning(model, chosen.name == "mempepita", mode)
        gradients = {weight: f"d{weight}" for weight in model.table.weights}
    else:
        derived = backpropagation(model, jacobian)
        table = derived.step
        if model.quantized:
            from learncost.layers.rewrite_quantized import made_again  # only where it is asked for: start-up counts

            table = made_again(table)
        table = recomputed(table) if chosen.name == "recompute" else table
        gradients = dict(derived.gradients)
    return with_optimizer(table, gradients, found) if found else table

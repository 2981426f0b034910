"""The procedures, as procedures.toml has them: schedules of a step's moves, and the tables that come of them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from learncost.equation.errors import InputError, named_one
from learncost.equation.table import Table, walk
from learncost.layers.cuts import NONE
from learncost.layers.derive import derive
from learncost.models.model import Model, Structure
from learncost.procedures.moves import MOVES, Move, fault, move
from learncost.procedures.optimizer import optimizer, with_optimizer

if TYPE_CHECKING:
    from learncost.models.adaptation import Adaptation

MACRO_OPERATIONS = (
    "forward",
    "recomputation",
    "backward",
    "error_projection",
    "weight_update",
    "optimizer_step",
)


@dataclass(frozen=True)
class Mode:
    """Which pass an update reads its inputs from, how far values are followed, and how the input is modulated."""

    sign: float
    scale: float
    modulated_inputs: bool
    through_residuals: bool
    source: str


@dataclass(frozen=True, eq=False)
class Procedure:
    """A row of procedures.toml.

    schedule  sweeps over the model, each with its moves as they are written, with commas between
    usual     whether commands that take several have it unasked
    equals    the procedure that gives the same weights, where what is read for a weight is that weight
    modes     those of its differences
    lines     that make what its backward pass reads for a weight W, in the notation
    decay     where that follows the weights: the share that both lose in a step
    distance  how far weights are moved to either side, where they are
    held      for how many steps the same directions are drawn, or the same block learns
    """

    name: str
    title: str
    source: str
    schedule: Sequence[str]
    usual: bool = False
    equals: str = ""
    modes: Sequence[str] = ()
    lines: Sequence[str] = ()
    decay: float = 0.0
    distance: float = 0.001
    held: int = 200

    @property
    def sweeps(self) -> tuple[tuple[Move, ...], ...]:
        return tuple(tuple(map(move, sweep.split(","))) for sweep in self.schedule)

    @property
    def all_moves(self) -> tuple[Move, ...]:
        """The moves of all sweeps, in their order."""
        return tuple(move_of for sweep in self.sweeps for move_of in sweep)

    @property
    def moves(self) -> Mapping[str, str]:
        """The moves of all sweeps, with what is named in each."""
        return {move_of.form: move_of.named for move_of in self.all_moves}

    @property
    def learns(self) -> bool:
        return "weight_update" in self.passes

    @property
    def compares(self) -> bool:
        """Whether it takes differences of two forward passes for gradients."""
        return "update by differences" in self.moves

    @property
    def differentiates(self) -> bool:
        """Whether its gradients are those of the loss, by all that is to learn: what any autograd gives."""
        return self.moves.keys() <= {"forward", "forward again", "backward", "update"}

    @property
    def cuts(self) -> bool:
        """Whether its backward pass stops somewhere, or is given something else than gradients."""
        return not self.moves.keys().isdisjoint(("stopped at PLACE", "given SIGNAL at PLACE"))

    @property
    def part(self) -> str:
        """The part of a model that it updates; empty: all that is to learn."""
        return self.moves.get("update of PART", "")

    @property
    def by_turns(self) -> bool:
        """Whether one block learns, then another."""
        return "update of blocks by turns" in self.moves

    @property
    def chooses(self) -> bool:
        """Whether it says itself what learns."""
        return bool(self.part) or self.by_turns

    @property
    def passes(self) -> dict[str, int]:
        """How often each macro-operation passes; an optimizer steps once after the updates."""
        passes_made = [MOVES[move_of.form] for sweep in self.sweeps for move_of in sweep]
        passes_made += ["optimizer_step"] if "weight_update" in passes_made else []
        return {name: passes_made.count(name) for name in MACRO_OPERATIONS if name in passes_made}

    def passes_over(self, model: Model) -> dict[str, int]:
        """Passes of every macro-operation; an error is projected only where there is an encoder and a decoder (E15)."""
        passes = {name: self.passes.get(name, 0) for name in MACRO_OPERATIONS}
        if not model.two_sided:
            passes["error_projection"] = 0
        return passes


_TABLE = tomllib.loads((files("learncost.procedures") / "procedures.toml").read_text(encoding="utf-8"))

MODES: Mapping[str, Mode] = {name: Mode(**row) for name, row in _TABLE["modes"].items()}
"""Of procedures that compare two passes."""

PAPER = next(iter(MODES))
"""Their mode where none is named."""


_ALL = [Procedure(name, **row) for name, row in _TABLE["procedures"].items()]

LEARNING: Mapping[str, Procedure] = {procedure_of.name: procedure_of for procedure_of in _ALL if procedure_of.learns}
"""Those that learn."""

_READ: dict[str, tuple[str, Procedure]] = {}
"""Those of files, by path, each with the text that it was read from."""

PROCEDURES: Mapping[str, Procedure] = {procedure_of.name: procedure_of for procedure_of in _ALL if procedure_of.usual}
"""Those that are compared unasked."""

INFERENCE: Mapping[str, Procedure] = {
    procedure_of.name: procedure_of for procedure_of in _ALL if not procedure_of.learns
}
"""Those of a model that does not learn."""


def several(procedures: Iterable[str] | str | None) -> tuple[str, ...]:
    """The names of several procedures, given as a list or with commas between."""
    names = procedures.split(",") if isinstance(procedures, str) else procedures or ()
    return tuple(str(name).strip() for name in names)


def procedure(name: str, also: Mapping[str, Procedure] | None = None) -> Procedure:
    """A procedure that learns by its name, or one of `also`; an unknown one is refused with all of them."""
    if name.endswith(".toml"):
        return _of_file(name)
    if "," in name:
        raise InputError(f"one procedure goes here, not {name!r}: compare, memory, fit, sweep and contest take several")
    return named_one("procedure" if also else "learning procedure", name, {**LEARNING, **(also or {})})


_FIELDS = ("title", "source", "schedule", "lines", "decay", "distance", "held")
"""What a file of one's own may say of a procedure."""


def _of_file(path: str) -> Procedure:
    """The procedure that a file has. What was answered of it is remembered by its path: it may not change meanwhile."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is no file with a procedure: {str(error).splitlines()[0]}") from None
    if path not in _READ:
        _READ[path] = text, _read(path, text)
    text_read, procedure_read = _READ[path]
    if text != text_read:
        raise InputError(f"{path} has changed since it was read: save it under another name, or start Python again")
    return procedure_read


def _read(path: str, text: str) -> Procedure:
    """The procedure of a file's text: a title, a source, a schedule, and what procedures.toml says besides.

    Raises `InputError` in one line for a text that is none.
    """
    try:
        row = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is no file with a procedure: {str(error).splitlines()[0]}") from None
    if unknown := sorted(set(row) - set(_FIELDS)):
        raise InputError(f"{path} says {unknown[0]}; a procedure has {', '.join(_FIELDS)}")
    for name in ("schedule", "lines"):
        if not isinstance(row.get(name, []), list) or not all(isinstance(text, str) for text in row.get(name, [])):
            raise InputError(f"{path}: {name} is a list of texts")
    decay = row.get("decay", 0.0)
    if not isinstance(decay, (int, float)) or not 0 <= decay < 1:
        raise InputError(f"{path}: decay is a number from 0 to below 1")
    held = row.get("held", 1)
    if isinstance(held, bool) or not isinstance(held, int) or held < 1:
        raise InputError(f"{path}: held is a whole number of steps from 1")
    distance = row.get("distance", 1.0)
    if isinstance(distance, bool) or not isinstance(distance, (int, float)) or not 0 < distance < float("inf"):
        raise InputError(f"{path}: distance is a number above 0")
    if not row.get("schedule"):
        raise InputError(f"{path} needs a schedule, such as {json_of(LEARNING['bp'].schedule)}")
    read = Procedure(path, **{"title": path, "source": path, **row})
    forms = [move_of.form for move_of in read.all_moves]  # refuses a move that nobody knows
    if not read.learns or "update by differences" in forms:
        raise InputError(f"{path}: a schedule of one's own ends in update, update by tangents or by both sides")
    if wrong := fault(forms):
        raise InputError(f"{path}: its schedule {wrong}")
    return read


def json_of(texts: Sequence[str]) -> str:
    """A list of texts as TOML and JSON have it."""
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"


def adaptation(chosen: Procedure, turn: int = 0) -> Adaptation | None:
    """What learns under a procedure that says so itself; `turn` is the number of the block, where they take turns."""
    if not chosen.chooses:
        return None
    from learncost.models.adaptation import Adaptation  # only where it is asked for: start-up counts

    return Adaptation(layers=str(turn)) if chosen.by_turns else Adaptation((chosen.part,))


def turns_of(model: Model, chosen: Procedure) -> int:
    """How many blocks take turns; 1 where none do."""
    if not chosen.by_turns:
        return 1
    from learncost.models.parts import Parts, repeats

    return sum(map(Parts(model).turns, repeats(model.table)))


def trained_by(model: Model, name: str, turn: int = 0) -> Model:
    """The model with the weights that learn under a procedure: itself, but for one that updates a part.

    turn  where blocks take turns, the number of the one that learns
    """
    chosen = procedure(name)
    if chosen.cuts:
        gradients = _reached(Structure(model), chosen)
        learning = tuple(weight for weight in model.learning if weight in gradients)
        return model if learning == model.learning else replace(model, trained=learning)
    part = adaptation(chosen, turn)
    is_split = any(model.table.values[weight].group for weight in model.table.weights)
    if part is None or (chosen.by_turns and is_split):  # it is the model of a turn already
        return model
    from learncost.models.adaptation import adapted

    try:
        return adapted(model, part)
    except InputError as refusal:
        if not chosen.by_turns:
            raise
        name_of = model.configuration.name
        raise InputError(
            f"{chosen.name} needs one stack of blocks with weights of their own, which {name_of} does not have"
        ) from refusal


def run_by(model: Model, name: str) -> Model:
    """The model whose forward pass a procedure runs: itself, but for one that has other blocks."""
    chosen = procedure(name)
    if "forward in two streams" not in chosen.moves:
        return model
    from learncost.procedures.two_streams import in_two_streams

    return in_two_streams(model, chosen.name)


@lru_cache(maxsize=64)
def _reached(structure: Structure, chosen: Procedure) -> frozenset[str]:
    """The weights that get something for a gradient."""
    return frozenset(_by_gradients(structure.model, chosen, False)[1])


def step(
    model: Model,
    name: str,
    optimizer_name: str | None = None,
    jacobian: bool = False,
    mode: str = PAPER,
    turn: int = 0,
) -> Table:
    """One training step as a table: passes, updates and, where one is named, the optimizer.

    Its inputs are the model's, the gradients of its outputs where nothing else says what to learn, and the scalars of
    the procedure and the optimizer; its outputs the model's, the weights' updates and, with an optimizer, the new
    weights and states.
    jacobian   backward through explicit Jacobians, as the paper prices it
    mode       of a procedure that has several: "paper", or "stable"
    turn       where blocks take turns, the number of the one that learns
    """
    chosen, stepping = procedure(name), optimizer(optimizer_name) if optimizer_name else None
    model = run_by(trained_by(model, name, turn), name)
    if chosen.compares:
        from learncost.procedures.differences import by_differences  # only where it is asked for: start-up counts

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
    if model.kept:
        table = _kept(table, chosen)
    if model.whole:
        from learncost.layers.rewrite_whole import with_whole

        table = with_whole(table)
    if stepping is None:
        return table
    table = with_optimizer(table, gradients, stepping)
    if follower := chosen.moves.get("NAME follows weights"):
        from learncost.procedures.following import with_following

        table = with_following(table, follower, chosen.decay)
    if any(weight.kind.learns for weight in model.quantized):
        from learncost.procedures.rounded import with_rounded  # only where it is asked for: start-up counts

        table = with_rounded(table, model)
    if rank := chosen.moves.get("projected to NUMBER"):
        from learncost.procedures.projection import with_projection

        table = with_projection(table, model, chosen, int(rank))
    return table


def _kept(table: Table, chosen: Procedure) -> Table:
    """The step with codes of what waits for its backward pass."""
    from learncost.layers.rewrite_kept import with_kept  # only where it is asked for: start-up counts

    if set(chosen.schedule) - set(LEARNING["bp"].schedule) - set(LEARNING["recompute"].schedule):
        raise InputError(f"activations in int8 wait for the backward pass of bp and recompute, not of {chosen.name}")
    return with_kept(table)


def _by_gradients(model: Model, chosen: Procedure, jacobian: bool) -> tuple[Table, Mapping[str, str]]:
    """The step of a schedule with a backward pass: nothing is derived that no weight that learns needs."""
    reading = chosen.moves.get("backward reading NAME for weights")
    if reading and model.quantized:
        raise InputError(f"{chosen.name} reads other matrices for weights, which quantized ones have no room for")
    cuts, drawn, made = NONE, {}, None
    if chosen.cuts:
        from learncost.procedures.signals import signals

        made = signals(model, chosen)
        cuts, drawn = made.cuts, dict(made.inputs)
    wanted = (*model.differentiated, *model.learning)
    derived = derive(model.table, wanted=wanted, jacobian=jacobian, cuts=cuts)
    table = derived.step
    if made is not None and made.directions is not None:
        from learncost.procedures.forward_gradients import with_tangents

        return with_tangents(model, derived, made)
    read = {name for line, _ in walk(table.lines) for name in line.reads}
    drawn = {name: value for name, value in drawn.items() if name in read}
    if drawn:
        table = replace(table, values={**table.values, **drawn}, inputs=(*table.inputs, *drawn))
    if model.quantized:
        from learncost.layers.rewrite_quantized import made_again  # only where it is asked for: start-up counts

        table = made_again(table)
    if "forward again" in chosen.moves:
        from learncost.layers.recompute import recomputed

        table = recomputed(table, chosen=lambda line: True, whole=True)
    if "forward again from outputs" in chosen.moves:
        from learncost.layers.inverse import inverted

        table = inverted(table)
    if reading:
        from learncost.procedures.feedback import with_feedback

        table = with_feedback(table, reading, chosen.lines)
    return table, {name: gradient for name, gradient in derived.gradients.items() if name in model.table.weights}

"""Read learning procedures, which are schedules of moves, from procedures.toml or a user's file."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, named_one
from learncost.models.model import Model

ELSEWHERE = "error elsewhere by LAYER"

MOVES: Mapping[str, str] = {
    "forward": "forward",
    "forward again": "recomputation",
    "forward in two streams": "forward",
    "forward again from outputs": "recomputation",
    "forward with error": "forward",
    "forward filling the cache": "forward",
    "forward reading the cache": "forward",
    "error": "",
    ELSEWHERE: "error_projection",
    "backward": "backward",
    "backward reading NAME for weights": "backward",
    "stopped at PLACE": "",
    "given SIGNAL at PLACE": "",
    "tangents along PLACE": "forward",
    "loss at blocks by HEAD": "",
    "groups of NUMBER": "",
    "forward at plus": "forward",
    "forward at minus": "forward",
    "times NUMBER": "",
    "update": "weight_update",
    "update of PART": "weight_update",
    "update of alternating blocks": "weight_update",
    "NAME follows weights": "",
    "projected to NUMBER": "",
    "projected to NUMBER singular vectors": "",
    "update by differences": "weight_update",
    "update by tangents": "weight_update",
    "update by both sides": "weight_update",
}
"""The moves of a schedule, with arguments in capitals, and the phase that each belongs to."""


_BACK = {"forward", "backward", "backward reading NAME for weights", "update"}
_FOLLOWED = "NAME follows weights"
_PROJECTED = ("projected to NUMBER", "projected to NUMBER singular vectors")
_CUT = {*_BACK, "forward again", "stopped at PLACE", "given SIGNAL at PLACE"}
_STREAMS = {"forward in two streams", "forward again from outputs", "backward", "update"}
_LOCAL = {*_BACK, "loss at blocks by HEAD", "groups of NUMBER"}

TOGETHER: tuple[frozenset[str], ...] = tuple(
    map(
        frozenset,
        (
            *({*moves, last} for moves in (_CUT, _LOCAL) for last in (_FOLLOWED, *_PROJECTED)),
            {"forward", "forward again", "backward", "update of PART", "update of alternating blocks"},
            *({*_STREAMS, last} for last in _PROJECTED),
            {"forward", "tangents along PLACE", "update by tangents"},
            {"forward", "tangents along PLACE", "backward", "given SIGNAL at PLACE", "update"},
            {"forward at plus", "forward at minus", "times NUMBER", "update by both sides"},
        ),
    )
)
"""The sets of moves that a schedule may combine; any other combination is refused."""


NEEDS: Mapping[str, tuple[str, ...]] = {
    "groups of NUMBER": ("loss at blocks by HEAD",),
    "NAME follows weights": ("backward reading NAME for weights",),
    "tangents along PLACE": ("update by tangents", "given SIGNAL at PLACE"),
    "times NUMBER": ("forward at plus",),
    "forward again from outputs": ("forward in two streams",),
}
"""The moves that require another move, which is one of these."""


def fault(forms: Collection[str]) -> str:
    """Return the reason why moves cannot be combined; empty if they can."""
    if not any(together.issuperset(forms) for together in TOGETHER):
        pairs = combinations(dict.fromkeys(forms), 2)
        wrong = next((pair for pair in pairs if not any(each.issuperset(pair) for each in TOGETHER)), forms)
        return f"cannot have {' and '.join(wrong)}"
    lonely = next((form for form in forms if not set(NEEDS.get(form, forms)) & set(forms)), "")
    return f"has {lonely}, which needs {' or '.join(NEEDS[lonely])}" if lonely else ""


@dataclass(frozen=True)
class StepMove:
    """A move of `MOVES` with its arguments."""

    form: str
    names: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """Return the first argument; empty if there is none."""
        return self.names[0] if self.names else ""


@lru_cache(maxsize=4096)
def move(text: str) -> StepMove:
    """Return the move that a text in a schedule describes."""
    for form in MOVES:
        if not (form.startswith("NAME") or text.lstrip().startswith(form.partition(" ")[0])):
            continue  # before its pattern is compiled: start-up counts
        pattern = re.sub("[A-Z]+", r"(\\S+)", form.replace("NUMBER", "([1-9][0-9]*)"))
        if match := re.fullmatch(pattern, text.strip()):
            return StepMove(form, match.groups())
    raise InputError(f"no move is called {text.strip()!r}; there are: {', '.join(MOVES)}")


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
    """A mode of difference updates: sign and scale of the modulation, whether updates read the inputs of the modulated
    pass, and whether compared values are followed through residual sums."""

    sign: float
    scale: float
    modulated_inputs: bool
    through_residuals: bool
    source: str


@dataclass(frozen=True, eq=False)
class Procedure:
    """A learning procedure, described by a row of procedures.toml.

    schedule  the sweeps over the model, each with its comma-separated moves
    usual     whether commands that compare procedures include it by default
    equals    the procedure with the same updates, if every replacement of a weight equals the weight
    modes     the modes of its differences
    lines     the lines that compute the matrix which its backward pass reads in place of a weight W
    decay     if this matrix follows the weight: the share by which both decay in a step
    distance  the distance by which weights are moved to either side
    held      the number of steps with the same directions or the same trained block
    scale     the factor of an update in computed directions
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
    scale: float = 1.0

    @property
    def sweeps(self) -> tuple[tuple[StepMove, ...], ...]:
        return tuple(tuple(map(move, sweep.split(","))) for sweep in self.schedule)

    @property
    def all_moves(self) -> tuple[StepMove, ...]:
        """Return the moves of all sweeps, in order."""
        return tuple(move_of for sweep in self.sweeps for move_of in sweep)

    @property
    def moves(self) -> Mapping[str, str]:
        """Map the forms of all moves to their first arguments."""
        return {move_of.form: move_of.named for move_of in self.all_moves}

    @property
    def learns(self) -> bool:
        """Return whether it updates weights; the moves are not read for it, since start-up counts."""
        return any(text.strip().startswith("update") for sweep in self.schedule for text in sweep.split(","))

    @property
    def compares(self) -> bool:
        """Return whether it uses differences of two forward passes as gradients."""
        return "update by differences" in self.moves

    @property
    def differentiates(self) -> bool:
        """Return whether its gradients are those of the loss for all trainable weights, as autograd computes them."""
        return self.moves.keys() <= {"forward", "forward again", "backward", "update"}

    @property
    def overrides(self) -> bool:
        """Return whether its backward pass stops gradients, or replaces them by other signals."""
        return not self.moves.keys().isdisjoint(("stopped at PLACE", "given SIGNAL at PLACE"))

    @property
    def part(self) -> str:
        """Return the part of a model that it updates; empty for all trainable weights."""
        return self.moves.get("update of PART", "")

    @property
    def by_iterations(self) -> bool:
        """Return whether blocks are trained one after the other."""
        return "update of alternating blocks" in self.moves

    @property
    def projected_to(self) -> int:
        """Return the number of directions to which a matrix's gradient is projected; 0 without projection."""
        forms = ("projected to NUMBER", "projected to NUMBER singular vectors")
        return next((int(self.moves[form]) for form in forms if form in self.moves), 0)

    @property
    def finds(self) -> bool:
        """Return whether these directions are singular vectors, which are computed once every `held` steps."""
        return "projected to NUMBER singular vectors" in self.moves

    @property
    def chooses(self) -> bool:
        """Return whether it fixes the trainable parameters."""
        return bool(self.part) or self.by_iterations

    @property
    def passes(self) -> dict[str, int]:
        """Return the number of passes of each phase, including one optimizer step after updates."""
        passes_made = [MOVES[move_of.form] for sweep in self.sweeps for move_of in sweep]
        passes_made += ["optimizer_step"] if "weight_update" in passes_made else []
        return {name: passes_made.count(name) for name in MACRO_OPERATIONS if name in passes_made}

    def passes_over(self, model: Model) -> dict[str, int]:
        """Return the number of passes of every phase for a model; an error is projected only with an encoder and a
        decoder (E15)."""
        passes = {name: self.passes.get(name, 0) for name in MACRO_OPERATIONS}
        if not model.two_sided:
            passes["error_projection"] = 0
        return passes


_TABLE = tomllib.loads(Path(__file__).with_name("procedures.toml").read_text(encoding="utf-8"))

MODES: Mapping[str, Mode] = {name: Mode(**row) for name, row in _TABLE["modes"].items()}
"""The modes of procedures that use differences of two passes."""

PAPER = next(iter(MODES))
"""The default mode."""


_ALL = [Procedure(name, **row) for name, row in _TABLE["procedures"].items()]

LEARNING: Mapping[str, Procedure] = {procedure_of.name: procedure_of for procedure_of in _ALL if procedure_of.learns}
"""The procedures that learn."""

_READ: dict[str, tuple[str, Procedure]] = {}
"""The procedures that were read from files, by path, each with the text of its file."""

PROCEDURES: Mapping[str, Procedure] = {procedure_of.name: procedure_of for procedure_of in _ALL if procedure_of.usual}
"""The procedures that are compared by default."""

INFERENCE: Mapping[str, Procedure] = {
    procedure_of.name: procedure_of for procedure_of in _ALL if not procedure_of.learns
}
"""The procedures of a model that does not learn."""

FORWARD = "inference"
"""The forward pass of a model without a KV cache; for a model with a cache it means prefill and decode."""


def several(procedures: Iterable[str] | str | None) -> tuple[str, ...]:
    """Return the names of several procedures, given as a list or comma-separated. Raises `InputError` for others."""
    names = procedures.split(",") if isinstance(procedures, str) else procedures or ()
    if not isinstance(names, Iterable):
        raise InputError(f"--procedure must be names of procedures, such as bp,recompute, not {procedures!r}")
    return tuple(str(name).strip() for name in names)


def procedure(name: str | Procedure, also: Mapping[str, Procedure] | None = None) -> Procedure:
    """Return a learning procedure by its name; `also` has additional names. Raises `InputError` for an unknown name."""
    if isinstance(name, Procedure):
        return name
    if name.endswith(".toml"):
        return _of_file(name)
    if "," in name:
        raise InputError(f"give one procedure, not {name!r}; compare, memory, fit, sweep and contest take several")
    return named_one("procedure" if also else "learning procedure", name, {**LEARNING, **(also or {})})


_FIELDS = ("title", "source", "schedule", "lines", "decay", "distance", "held", "scale")
"""The keys of a procedure in a user's file."""

_NUMBERS: Mapping[str, tuple[tuple[type, ...], Callable[[Any], bool], str]] = {
    "decay": ((int, float), lambda value: 0 <= value < 1, "a number from 0 to below 1"),
    "held": ((int,), lambda value: value >= 1, "a whole number of steps from 1"),
    "distance": ((int, float), lambda value: 0 < value < inf, "a number above 0"),
    "scale": ((int, float), lambda value: 0 < value < inf, "a number above 0"),
}
"""Those of numbers, each with its types and its range."""


def _of_file(path: str) -> Procedure:
    """Return the procedure of a file. Procedures are cached by path, so a file that has changed is refused."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not a procedure file: {str(error).splitlines()[0]}") from None
    if path not in _READ:
        _READ[path] = text, _read(path, text)
    text_read, procedure_read = _READ[path]
    if text != text_read:
        raise InputError(f"{path} has changed since it was read: save it under another name, or restart Python")
    return procedure_read


def _read(path: str, text: str) -> Procedure:
    """Return the procedure that a text describes by a title, a source, a schedule, and other keys of procedures.toml.

    Raises `InputError` for an invalid text.
    """
    try:
        row = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path} is not a procedure file: {str(error).splitlines()[0]}") from None
    if unknown := sorted(set(row) - set(_FIELDS)):
        raise InputError(f"{path} has the unknown key {unknown[0]}; a procedure has {', '.join(_FIELDS)}")
    for name in ("schedule", "lines"):
        if not isinstance(row.get(name, []), list) or not all(isinstance(text, str) for text in row.get(name, [])):
            raise InputError(f"{path}: {name} must be a list of texts")
    for name, (kinds, holds, meant) in _NUMBERS.items():
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds) or not holds(value)):
            raise InputError(f"{path}: {name} must be {meant}")
    if not row.get("schedule"):
        raise InputError(f"{path} needs a schedule, such as {json.dumps(LEARNING['bp'].schedule)}")
    read = Procedure(path, **{"title": path, "source": path, **row})
    forms = [move_of.form for move_of in read.all_moves]  # raises an error for an unknown move
    if not read.learns or "update by differences" in forms:
        raise InputError(f"{path}: a schedule must end in update, update by tangents or update by both sides")
    if wrong := fault(forms) or _fault_of_names(read):
        raise InputError(f"{path}: its schedule {wrong}")
    return read


def _fault_of_names(read: Procedure) -> str:
    """Return the reason why the names in a schedule or its lines are invalid; empty if they are valid."""
    from learncost.procedures.feedback import matrix_lines  # imported when used, for a fast start

    reading, following = (
        read.moves.get(form, "") for form in ("backward reading NAME for weights", "NAME follows weights")
    )
    try:
        made = [name for line in matrix_lines(read.lines) for name in line.makes]
    except InputError as refusal:
        raise InputError(f"{read.name}: {refusal}") from None
    places = [move_of.names[1] for move_of in read.all_moves if move_of.form == "given SIGNAL at PLACE"]
    if following not in ("", reading):
        return f"reads {reading}, so that it is {reading} that follows weights, not {following}"
    if following in made:
        return f"has {following} follow weights, so that no line makes it"
    if made and reading not in made:
        needed = f"they make {', '.join(made)}" if reading else "it does not read their results"
        return (
            f"needs no lines, or lines that compute what it reads for "
            f"weights{f', {reading}' if reading else ''}: {needed}"
        )
    twice = next((place for place in places if places.count(place) > 1), "")
    return f"gives {twice} two signals" if twice else ""

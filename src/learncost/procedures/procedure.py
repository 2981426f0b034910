"""The procedures, as procedures.toml or a file of one's own has them: schedules of a step's moves."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import combinations
from pathlib import Path

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
    "update of blocks by turns": "weight_update",
    "NAME follows weights": "",
    "projected to NUMBER": "",
    "projected to NUMBER singular vectors": "",
    "update by differences": "weight_update",
    "update by tangents": "weight_update",
    "update by both sides": "weight_update",
}
"""What a schedule may say, in capitals what is named there, and the macro-operation that it is a pass of."""


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
            {"forward", "forward again", "backward", "update of PART", "update of blocks by turns"},
            *({*_STREAMS, last} for last in _PROJECTED),
            {"forward", "tangents along PLACE", "update by tangents"},
            {"forward", "tangents along PLACE", "backward", "given SIGNAL at PLACE", "update"},
            {"forward at plus", "forward at minus", "times NUMBER", "update by both sides"},
        ),
    )
)
"""The moves that one schedule may have together: what none of these has would be passed over."""


NEEDS: Mapping[str, tuple[str, ...]] = {
    "groups of NUMBER": ("loss at blocks by HEAD",),
    "NAME follows weights": ("backward reading NAME for weights",),
    "tangents along PLACE": ("update by tangents", "given SIGNAL at PLACE"),
    "times NUMBER": ("forward at plus",),
    "forward again from outputs": ("forward in two streams",),
}
"""The moves that say nothing without another one, or one of some."""


def fault(forms: Collection[str]) -> str:
    """What is wrong with the moves of a schedule together; empty where nothing is."""
    if not any(together.issuperset(forms) for together in TOGETHER):
        pairs = combinations(dict.fromkeys(forms), 2)
        wrong = next((pair for pair in pairs if not any(each.issuperset(pair) for each in TOGETHER)), forms)
        return f"cannot have {' and '.join(wrong)}"
    lonely = next((form for form in forms if not set(NEEDS.get(form, forms)) & set(forms)), "")
    return f"has {lonely}, which needs {' or '.join(NEEDS[lonely])}" if lonely else ""


@dataclass(frozen=True)
class StepMove:
    """A move as `MOVES` has it, with what is named in it."""

    form: str
    names: tuple[str, ...] = ()

    @property
    def named(self) -> str:
        """The first that is named in it, or nothing."""
        return self.names[0] if self.names else ""


@cache
def move(text: str) -> StepMove:
    """The move that a text of a schedule says."""
    for form in MOVES:
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
    held      for how many steps the same directions are drawn or kept, or the same block learns
    scale     of what is made in directions that were found, the share that a step takes
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
    def overrides(self) -> bool:
        """Whether its backward pass stops somewhere, or is given something else than gradients."""
        return not self.moves.keys().isdisjoint(("stopped at PLACE", "given SIGNAL at PLACE"))

    @property
    def part(self) -> str:
        """The part of a model that it updates; empty: all that is to learn."""
        return self.moves.get("update of PART", "")

    @property
    def by_iterations(self) -> bool:
        """Whether one block learns, then another."""
        return "update of blocks by turns" in self.moves

    @property
    def projected_to(self) -> int:
        """In how many directions of a matrix the optimizer sees its gradient; 0: in all."""
        forms = ("projected to NUMBER", "projected to NUMBER singular vectors")
        return next((int(self.moves[form]) for form in forms if form in self.moves), 0)

    @property
    def finds(self) -> bool:
        """Whether these directions are found, in one step of so many as they are held."""
        return "projected to NUMBER singular vectors" in self.moves

    @property
    def chooses(self) -> bool:
        """Whether it says itself what learns."""
        return bool(self.part) or self.by_iterations

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


def procedure(name: str | Procedure, also: Mapping[str, Procedure] | None = None) -> Procedure:
    """A procedure that learns by its name, or one of `also`; an unknown one is refused with all of them."""
    if isinstance(name, Procedure):
        return name
    if name.endswith(".toml"):
        return _of_file(name)
    if "," in name:
        raise InputError(f"one procedure goes here, not {name!r}: compare, memory, fit, sweep and contest take several")
    return named_one("procedure" if also else "learning procedure", name, {**LEARNING, **(also or {})})


_FIELDS = ("title", "source", "schedule", "lines", "decay", "distance", "held", "scale")
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
    scale = row.get("scale", 1.0)
    if isinstance(scale, bool) or not isinstance(scale, (int, float)) or not 0 < scale < float("inf"):
        raise InputError(f"{path}: scale is a number above 0")
    if not row.get("schedule"):
        raise InputError(f"{path} needs a schedule, such as {json_of(LEARNING['bp'].schedule)}")
    read = Procedure(path, **{"title": path, "source": path, **row})
    forms = [move_of.form for move_of in read.all_moves]  # refuses a move that nobody knows
    if not read.learns or "update by differences" in forms:
        raise InputError(f"{path}: a schedule of one's own ends in update, update by tangents or by both sides")
    if wrong := fault(forms) or _fault_of_names(read):
        raise InputError(f"{path}: its schedule {wrong}")
    return read


def _fault_of_names(read: Procedure) -> str:
    """What is wrong with what a schedule names, and its lines make; empty where nothing is."""
    from learncost.procedures.feedback import matrix_lines  # only where it is asked for: start-up counts

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
        needed = f"they make {', '.join(made)}" if reading else "it reads nothing that they make"
        return f"needs no lines, or such as make what it reads for weights{f', {reading}' if reading else ''}: {needed}"
    twice = next((place for place in places if places.count(place) > 1), "")
    return f"gives {twice} two signals" if twice else ""


def json_of(texts: Sequence[str]) -> str:
    """A list of texts as TOML and JSON have it."""
    return "[" + ", ".join(f'"{text}"' for text in texts) + "]"

"""Which command lines there are: the designs of designs.toml, their rows, and to whom they are dealt."""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from zlib import crc32

from learncost.cost_models.errata import errata
from learncost.models.argument import presets
from learncost.models.families import FAMILIES
from learncost.reports.formulas.subject import layers

FOLDER = Path(__file__).parent
DESIGNS = tomllib.loads((FOLDER / "designs.toml").read_text(encoding="utf-8"))
SUBJECTS = {"errata": ("", *(erratum.id for erratum in errata())), "layers": layers()}

USUAL, OTHER = 12, 24
"""One row in so many is dealt to a preset's usual class, and to its other classes; a plain call to all of them."""


@dataclass(frozen=True)
class Subject:
    """What a command is called with: a preset under one of its family's classes, or something that is no model.

    `place` says which rows it is dealt: the subjects of a family are dealt one after another, and what another family
    has changes nothing.
    """

    name: str = ""
    family: str = ""
    architecture: str = ""
    usual: bool = True
    place: int = 0

    @property
    def is_model(self) -> bool:
        return bool(self.family)


def covering(options: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Rows of one value an option in which every two values of different options meet; greedy, and always the same."""
    places = range(len(options))
    missing = {
        ((i, a), (j, b)): None for i, j in combinations(places, 2) for a in options[i] for b in options[j]
    }  # a dict, whose order is that of the options
    if len(options) < 2:
        return [(value,) for option in options for value in option]
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for place in places:
            if place not in row:
                row[place] = max(options[place], key=lambda value: _meets(missing, row, place, value))
        for pair in combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        rows.append(tuple(row[place] for place in places))
    return rows


def _meets(missing: dict, row: dict[int, str], place: int, value: str) -> int:
    """How many missing pairs a value makes with what the row has."""
    return sum(tuple(sorted([(place, value), other])) in missing for other in row.items())


@cache
def rows(command: str) -> tuple[str, ...]:
    """A command's options, row by row; of a command about models the first has none but what it cannot do without."""
    rows_found: dict[str, None] = {}
    for design in DESIGNS["design"]:
        if design["command"] == command and "subjects" not in design:
            rows_found |= dict.fromkeys(" ".join(filter(None, row)) for row in covering(design["options"]))
    return tuple(rows_found)


@cache
def about_models() -> tuple[str, ...]:
    """The commands that take a model."""
    return tuple(dict.fromkeys(design["command"] for design in DESIGNS["design"] if "subjects" not in design))


def subjects() -> Iterator[Subject]:
    """Every preset under every class of its family, the usual one first, which is the one that a preset names."""
    places = {family: crc32(family.encode()) for family in FAMILIES}
    for preset in presets():
        usual = str((preset.values.get("architectures") or [FAMILIES[preset.family].architectures[0].name])[0])
        names = [architecture.name for architecture in FAMILIES[preset.family].architectures]
        for name in sorted(names, key=lambda name: name != usual):
            is_usual = name == names[0] if usual not in names else name == usual
            yield Subject(preset.name, preset.family, name, is_usual, places[preset.family])
            places[preset.family] += 1


def lines(subject: Subject) -> Iterator[tuple[str, str]]:
    """The command lines of a subject: the command with its row, by which answers are known, and the whole line."""
    step = USUAL if subject.usual else OTHER
    for command in about_models():
        for at, row in enumerate(rows(command)):
            if at == 0 or (at + subject.place) % step == 0:
                yield f"{command} {row}".strip(), suited(command, row, subject)


def others() -> Iterator[tuple[str, str]]:
    """The command lines that are about no model."""
    for design in DESIGNS["design"]:
        if "subjects" in design:
            names = SUBJECTS[design["subjects"]] if isinstance(design["subjects"], str) else design["subjects"]
            for name in names:
                for row in covering(design["options"]):
                    line = " ".join(filter(None, (design["command"], name, *row)))
                    yield line, line


def suited(command: str, row: str, subject: Subject) -> str:
    """The whole line: with the model, its class, its own names of modules and its own way of saying a length."""
    words = shlex.split(row.replace("{modules}", DESIGNS["modules"].get(subject.family, "attention")))
    if "--seq-len" in words:
        at = words.index("--seq-len")
        other = DESIGNS["instead-of-seq-len"].get(subject.family, "--seq-len")
        words[at : at + 2] = [other, words[at + 1]] if other else []
    else:
        needs_no_length = (
            command == "emit" or "decode" in words
        )  # it reads lengths off arrays; what is new is one token
        words += [] if needs_no_length else DESIGNS["also-a-length"].get(subject.family, "").split()
    architecture_flags = ["--architecture", subject.architecture] if subject.architecture and not subject.usual else []
    return shlex.join([command, subject.name, *words, *architecture_flags])

"""One word has one meaning: retired words are no identifiers, class names are unique, docstrings are sentences."""

import ast
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.ir.errors import RETIRED
from learncost.ir.precision import PRECISIONS
from learncost.passes.plan import PLANS
from learncost.reports.memory.engines import memory_engines

SOURCES = sorted(Path(lc.__file__).parent.rglob("*.py"))
WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    Word WordPrice Repeat Count Sides Stay Held Stretch Stretches Room Rooms Account Runner Reach Cuts Elsewhere Homes
    Way Same Told Asked Taken Kept Thumb witnesses witness macro macros in_macro turns every_turn at_once in_product
    homes alike thumbs rooms_taken room rooms with_room give_room check_room room_of_tile _room ROOM _told RUNNERS
    runner_of runner_name by_runner Mine beside beside_rounds BESIDE stepped_beside turn TURN turns_round ring_turn
    told told_apart told_once TOLD tells stands Alike _alike made_anew word_called entry_of_word Moment Instant
    instants RemadeError Fewer Itself Single Stepping SetAside Ending Parted Said Typed Serving Served LookedAt Found
    Overtaking Fitting Shown Drawn Framed InLetters ApartError At How Looks GivenError OnValuesError
    WhileExportedError FixedError GradientTakenError ChangedError OpenError UnreadError ChosenPlaces Remembered
    WrongError Begin Beginning RefusedError Meeting Meetings EndedError Cutting CutSizes MeshCut mesh_cut Tally tally
    tallied Watched Stairs Fits Look Ran Issued FromFile Learned Adding SoFar Timed YARDSTICK all_ways comes_round
    down_to like_ctrl_c asked_to_stop counted_apart behind_another at_its_place carried_again filled_part own_part
    frugal forget_highest gradients_apart in_two_lines is_met kept_again kept_support layers_that learns_otherwise
    line_that_runs looked_back make_same most_of_peak named_once without_twins nearly_free own_functions_held ran_both
    raises_too ringed round_rings runs_otherwise said_bytes share_held sound_arrays survived weighs_tokens
    written_through above_0 beyond_of check_together check_whole every_of own_file usual_plan usual_module usual_names
    turned unturned said said_of said_of_mesh unsaid name_said with_kept kept_object kept_objects kept_arrays in_the_way
    _talk _talks orphan speaks _came _coming winners _winners _won _parted_repeat spoilt _spoilt
    AT_ONCE FINER CHOOSING PATIENCE LOOKING LATE BEAT SILENCE SHORTLY GONE KEEPING_ALL FOREVER TORCHTUNES LITGPTS
    LIGERS TRITONS_TILE ONE_TURN NO_CHANCE EITHER_WAY SELDOM LASTING OFTEN UNSAID SAID_ON_GPU
    """,
    )
)
"""Identifiers of earlier versions; docs/glossary.md has what they are called now."""
PACKAGES = {
    "equation",
    "vocabulary",
    "readings",
    "schedule",
    "ledger",
    "faces",
    "pictures",
    "books",
    "hardware",
    "placement",
    "parallel",
    "plans",
    "proof",
    "derivations",
    "contest",
    "bench",
}
"""Packages of earlier versions."""

CLAUSES = {"What", "Whether", "How", "Which", "Where", "Who", "Whose", "Whom", "When", "Why", "That"}
"""First words of docstrings that are a riddle in place of a sentence: "Return whether ..." says what is returned."""

REGISTRIES = {"engine": memory_engines(), "plan": PLANS, "precision": PRECISIONS}


def identifiers(file: Path) -> set[str]:
    with file.open("rb") as lines:
        return {token.string for token in tokenize.tokenize(lines.readline) if token.type == tokenize.NAME}


def test_retired_words_are_no_identifiers():
    found = {file.name: names for file in SOURCES if (names := identifiers(file) & WORDS)}
    assert not found
    assert not {file.parent.name for file in Path(lc.__file__).parent.glob("*/__init__.py")} & PACKAGES


def test_retired_words_are_in_no_page():
    pages = [file for kind in ("*.js", "*.html", "*.css") for file in Path(lc.__file__).parent.rglob(kind)]
    assert len(pages) > 20
    retired = re.compile(r"\b(room|beside|told|turns?|alike|stands|lies|anew)\b")
    assert not [(file.name, found[0]) for file in pages if (found := retired.search(file.read_text("utf-8")))]


class Defined(NamedTuple):
    """The classes of a module, and the docstrings of itself, its classes and functions, and of their attributes."""

    classes: list[str]
    docstrings: list[str]


def defined(text: str) -> Defined:
    found = Defined([], [])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            found.classes.append(node.name)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found.docstrings.append(node.value.value.strip())
    return found


@cache
def defined_in(file: Path) -> Defined:
    return defined(file.read_text(encoding="utf-8"))


def test_a_class_name_is_defined_once():
    names = Counter(name.lstrip("_") for file in SOURCES for name in defined_in(file).classes)
    assert len(names) > 500
    assert not [name for name, count in names.items() if count > 1]


def test_a_docstring_opens_with_no_clause():
    assert defined('"""What it is."""\nsize = 1\n"""How many."""').docstrings == ["What it is.", "How many."]
    found = [(file.name, text) for file in SOURCES for text in defined_in(file).docstrings]
    assert len(found) > 4000
    assert not [(name, text) for name, text in found if re.split(r"\W", text, maxsplit=1)[0] in CLAUSES]


@pytest.mark.parametrize(
    ("kind", "old", "new"), [(kind, old, new) for kind in REGISTRIES for old, new in RETIRED[kind].items()]
)
def test_a_retired_name_is_refused_with_todays(kind, old, new):
    with pytest.raises(lc.InputError, match=re.escape(f"the {kind} {old!r} is called {new!r} now")):
        lc.memory("gpt2", **{kind: old})
    assert new.split()[0] in REGISTRIES[kind]
    assert old not in REGISTRIES[kind]


def test_a_retired_list_and_a_retired_flag_are_refused_with_todays(capsys):
    assert main(["list", "words"]) == 2
    assert capsys.readouterr().err.strip() == "learncost: the list 'words' is called 'operators' now"
    assert main(["conventions", "gpt2", "--mine", "126.6G"]) == 2
    assert capsys.readouterr().err.strip() == "learncost: the flag '--mine' is called '--identify' now"
    assert main(["list", "operators", "--like", "softmax"]) == 0
    assert "softmax" in capsys.readouterr().out
    assert RETIRED.keys() == {*REGISTRIES, "list", "flag"}

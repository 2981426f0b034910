"""Retired phrases occur on no screen, in no help, no error and on no page: the field's words stand in their place."""

import ast
import re
from pathlib import Path

import pytest

import learncost as lc

ROOT = Path(__file__).parent.parent
SOURCE = Path(lc.__file__).parent
PHRASES = {
    "--flash is of one device": "--flash cannot be combined with --mesh",
    "a plan rewrites a training step": "does not apply to",
    "above 0 the masks are": "with dropout > 0, masks are allocated",
    "activations that wait": "saved tensors",
    "all else is minus infinity": "other scores are minus infinity",
    "and cannot be cut": "which is not divisible",
    "as the live module has it": "from the live module",
    "axis is filled up": "padded region",
    "a question of its own, and every": "one prediction",
    "beside calculon": "compared with Calculon",
    "beside published trainings": "compared with published trainings",
    "belongs to low-rank paths": "requires lora",
    "bytes are told": "bytes are shown",
    "cannot be cut in segments": "not divisible into segments",
    "cannot be cut into": "not divisible into",
    "cannot be cut over": "not divisible by",
    "counts places on": "sharded index offsets are unsupported in kernels",
    "each of which was tried": "suggested changes that fit (each verified)",
    "filled up, and what": "may be non-zero",
    "frozen in part or": "partly frozen or",
    "frozen ones lie in": "all weights are in GPU memory",
    "goes round the devices": "ring attention",
    "has no answer here": "does not support this step",
    "has no form in whole numbers": "has no integer form",
    "head and embedding are one matrix": "LM head tied to the token embedding",
    "how near the least of them": "how far the closest option is from fitting",
    "is no calibration of": "is not a calibration of",
    "is no file with": "is not a procedure file",
    "is of a training step": "works for training steps",
    "is one word too many": "unexpected second argument",
    "kept for backward": "saved for backward",
    "keys in a ring": "ring attention",
    "keys that go round": "ring attention",
    "knows no adapters": "does not support adapters",
    "made anew": "updated",
    "no price is typed": "costs are derived from each operation's definition",
    "nobody knows the cost": "unknown cost",
    "nothing is computed beside": "not overlapped with compute",
    "price is typed": "derived",
    "reads the last block alone": "reads only the last block",
    "rests on the MFU": "uses the assumed MFU",
    "says itself what learns": "fixes the trainable parameters",
    "size that can is": "next divisible size is",
    "stand side by side": "are compared",
    "that can is": "next divisible",
    "the next that can": "the next divisible size",
    "turns of a repeat inside": "a loop inside a block",
    "told by default": "the default",
    "values and temporaries": "activations and workspace",
    "ways to learn": "learning procedures",
    "weights of their own, which": "separate weights",
    "what does fit": "suggested changes that fit",
    "which lies elsewhere": "a copy would be needed",
    "whose RAM is known": "with exact static RAM",
    "whose state alone": "state size only",
}
"""What earlier versions said, in small letters, and what is said in its place."""


def said() -> dict[str, str]:
    """Texts that users read: string literals of the package but docstrings, data of screens, scripts, pages."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        documented = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        literals = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
        ]
        found[str(file.relative_to(ROOT))] = "\n".join(literals)
    data = [file for kind in ("*.toml", "*.json", "*.js", "*.html") for file in SOURCE.rglob(kind)]
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for file in [*data, *pages]:
        if file.name != "moved.md":
            found[str(file.relative_to(ROOT))] = file.read_text(encoding="utf-8")
    return {name: re.sub(r"\s+", " ", text).lower() for name, text in found.items()}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return said()


def test_everything_that_users_read_is_searched(texts):
    names = {Path(name).name for name in texts}
    assert {"flags.toml", "support.json", "polynomials.js", "README.md", "memory.md", "errata.toml"} <= names
    assert "which is not divisible" in texts["src/learncost/ir/polynomial.py"]


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_retired_phrase_is_said_nowhere(phrase, texts):
    assert phrase == phrase.lower() or "MFU" in phrase or "RAM" in phrase
    assert not [name for name, text in texts.items() if phrase.lower() in text]

"""Retired phrases occur on no screen, in no help, no error and on no page, where the field's words replace them."""

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
    "a question of its own, and every": "one prediction",
    "above 0 the masks are": "with dropout > 0, masks are allocated",
    "activations that wait": "saved tensors",
    "added up over the turns": "added up over the iterations",
    "all else is minus infinity": "other scores are minus infinity",
    "and cannot be cut": "which is not divisible",
    "as the live module has it": "from the live module",
    "axis is filled up": "padded region",
    "before all its turns": "before all iterations",
    "behind the colon stands": "write only the name after the colon",
    "belongs to low-rank paths": "requires lora",
    "beside calculon": "compared with Calculon",
    "beside published trainings": "compared with published trainings",
    "buckets lie beside": "in addition to the gradients",
    "bytes are told": "bytes are shown",
    "cannot be cut in segments": "not divisible into segments",
    "cannot be cut into": "not divisible into",
    "cannot be cut over": "not divisible by",
    "cannot scatter from one turn": "cannot scatter into another iteration",
    "counters of operations, held": "FLOP counters compared with exact counts",
    "counts places on": "sharded index offsets are unsupported in kernels",
    "each of which was tried": "suggested changes that fit (each verified)",
    "elements outside repeats": "elements outside loops",
    "every array anew": "allocates every array again",
    "filled up, and what": "may be non-zero",
    "frozen in part or": "partly frozen or",
    "frozen ones lie in": "all weights are in GPU memory",
    "goes round the devices": "ring attention",
    "gradients of their own": "custom gradients",
    "has no answer here": "does not support this step",
    "has no form in whole numbers": "has no integer form",
    "head and embedding are one matrix": "LM head tied to the token embedding",
    "hold the table to the module": "verify the table against the module",
    "how near the least of them": "how far the closest option is from fitting",
    "is no calibration of": "is not a calibration of",
    "is no file with": "is not a procedure file",
    "is of a training step": "works for training steps",
    "is one word too many": "unexpected second argument",
    "kept for backward": "saved for backward",
    "keys in a ring": "ring attention",
    "keys that go round": "ring attention",
    "knows no adapters": "does not support adapters",
    "knows no cycles": "has no cycle counts",
    "keep no such ratio": "have other ratios",
    "learns from a head of its own": "its own head",
    "lie one behind the other": "are contiguous",
    "limited by arithmetic": "compute-bound",
    "made anew": "updated",
    "no price is typed": "costs are derived from each operation's definition",
    "nobody has seen there": "has not connected yet",
    "nobody killed": "an undisturbed run",
    "nobody knows the cost": "unknown cost",
    "nobody learned from": "held-out examples",
    "nothing is computed beside": "not overlapped with compute",
    "one turn keeps": "saved tensors of one iteration",
    "price is typed": "derived",
    "reads the last block alone": "reads only the last block",
    "rests on the MFU": "uses the assumed MFU",
    "says itself what learns": "fixes the trainable parameters",
    "sets the prediction beside": "compares the prediction with",
    "size that can is": "next divisible size is",
    "stand side by side": "are compared",
    "stands for it, which is said": "used, with a note",
    "stands outside of the chip": "is outside of the chip",
    "take turns over what is summed": "cannot iterate over an axis that is summed",
    "that can is": "next divisible",
    "that never lies in memory": "never stored",
    "the next that can": "the next divisible size",
    "told by default": "the default",
    "told to the element": "predicted to the element",
    "train anew with": "start another run",
    "turns of a repeat inside": "a loop inside a block",
    "values and temporaries": "activations and workspace",
    "ways to learn": "learning procedures",
    "waits for calls": "launch-bound",
    "weights of their own, which": "separate weights",
    "what does fit": "suggested changes that fit",
    "what turns hand on": "a loop-carried value",
    "which lies elsewhere": "a copy would be needed",
    "whose RAM is known": "with exact static RAM",
    "whose state alone": "state size only",
}
"""Phrases of earlier versions, in small letters, with those of today."""


def texts_by_place() -> dict[str, str]:
    """Texts that users read: string literals of the package but docstrings, data of screens, scripts, pages."""
    found = {}
    for file in sorted(SOURCE.rglob("*.py")):
        literals, documented = [], set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):  # what documents is there before its text
            if isinstance(node, ast.Expr):
                documented.add(node.value)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in documented:
                literals.append(node.value)
        found[str(file.relative_to(ROOT))] = "\n".join(literals)
    data = [file for kind in ("*.toml", "*.json", "*.js", "*.html") for file in SOURCE.rglob(kind)]
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for file in [*data, *pages]:
        found[str(file.relative_to(ROOT))] = file.read_text(encoding="utf-8")
    return {name: re.sub(r"\s+", " ", text).lower() for name, text in found.items()}


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return texts_by_place()


def test_everything_that_users_read_is_searched(texts):
    names = {Path(name).name for name in texts}
    assert {"flags.toml", "support.json", "polynomials.js", "README.md", "memory.md", "errata.toml"} <= names
    assert "which is not divisible" in texts["src/learncost/ir/polynomial.py"]


@pytest.mark.parametrize("phrase", PHRASES)
def test_a_retired_phrase_is_said_nowhere(phrase, texts):
    assert phrase == phrase.lower() or "MFU" in phrase or "RAM" in phrase
    assert not [name for name, text in texts.items() if phrase.lower() in text]

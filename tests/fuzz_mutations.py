"""Mutated config.json: whatever is left of a published one, a command answers or says in one line what is wrong.

    python -m tests.fuzz --mutations 2000

The configurations of presets, and some of types that only transformers has: values of other types, keys missing,
renamed or of other types of models, texts cut, doubled, in other encodings.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import tempfile
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from commands.called import call, ending
from fuzz_calibration import OTHERS, changed_value
from fuzz_commands import bounded
from fuzz_configuration import keys_of, odd
from learncost.models.argument import presets
from learncost.models.families import FAMILIES

ASKED = (
    *("cost {}", "cost {} --seq-len 8", "cost {} --json --by equation", "compare {} --procedures bp,recompute"),
    *(
        "memory {} --engine graph --seq-len 64",
        "conventions {}",
        "rules {}",
        "formulas {}",
        "fit {} --budget 8GB",
        "explain {}",
    ),
    *(
        "run-cost {} --tokens 1e9 --on A100-SXM-40GB",
        "sweep {} --seq-len 4,8",
        "memory {} --seq-len 8",
        "cost {} --lora all-linear",
    ),
    *("emit {} --backend numpy", "place {} --mesh dp=2 --placement ddp", "cost {} --on A100-SXM-40GB"),
)

ELSEWHERE = (
    {"model_type": "resnet", "architectures": ["ResNetForImageClassification"], "embedding_size": 8, "depths": [1, 1]}
    | {"hidden_sizes": [8, 16], "layer_type": "basic", "num_labels": 3, "image_size": 32},
    {"model_type": "convnext", "architectures": ["ConvNextForImageClassification"], "depths": [1, 1], "num_stages": 2}
    | {"hidden_sizes": [8, 16], "num_labels": 3, "image_size": 32},
    {"model_type": "segformer", "num_encoder_blocks": 1, "depths": [1], "hidden_sizes": [8], "sr_ratios": [1]}
    | {"num_attention_heads": [1], "patch_sizes": [3], "strides": [4], "mlp_ratios": [2], "image_size": 32},
)
"""Of types that no family here has: transformers builds them, and PyTorch exports them, which takes seconds."""

SELDOM = 0.02
"""The share of those."""

READ = "learncost: read "
"""How the line begins that says beside an answer who reads a type that no family here has."""


def fuzz(count: int, seed: int = 0) -> list[str]:
    """What went wrong with so many files; the same files for the same seed."""
    chance = random.Random(seed)
    before = os.environ.get("XDG_CACHE_HOME")
    with bounded(), tempfile.TemporaryDirectory() as place, chdir(place):
        os.environ["XDG_CACHE_HOME"] = place
        try:
            return [fault for _ in range(count) if (fault := tried(chance, Path(place) / "config"))]
        finally:
            os.environ.pop("XDG_CACHE_HOME")
            if before is not None:
                os.environ["XDG_CACHE_HOME"] = before


def tried(chance: random.Random, folder: Path) -> str:
    """One file, and what is wrong with what a command says of it."""
    folder.mkdir()
    path = folder / "config.json"
    path.write_bytes(mutated(chance))
    named = chance.choice((folder, path))
    line = shlex.join(word.format(named) for word in chance.choice(ASKED).split())
    answer = call(line)
    refused = "".join(text for text in answer.err.splitlines(keepends=True) if not text.startswith(READ))
    fault = ending(replace(answer, err=refused))
    report = f"{fault}: {line}: {path.read_bytes()[:900]!r}" if fault else ""
    shutil.rmtree(folder)
    return report


def mutated(chance: random.Random) -> bytes:
    """The bytes of one file."""
    if chance.random() < SELDOM:
        values = {**chance.choice(ELSEWHERE)}
    else:
        values = dict(chance.choice(presets()).values) or {"model_type": chance.choice(list(FAMILIES))}
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        mutate(chance, values)
    text = json.dumps(values, indent=chance.choice((None, 2)))
    data = text.encode("utf-8", "surrogatepass")
    kind = chance.random()
    if kind < 0.03:
        return chance.choice(OTHERS)
    if kind < 0.06:
        return data[: chance.randrange(len(data))]
    if kind < 0.1:
        changed = bytearray(data)
        for _ in range(chance.choice((1, 2, 8))):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    if kind < 0.12:
        return text.encode(chance.choice(("utf-16", "utf-8-sig", "utf-32")), "surrogatepass")
    if kind < 0.14:
        return text.replace('": ', f'": {chance.choice(("NaN", "1e999", "-", "Infinity", "[", "0x1"))} ', 1).encode()
    return data


def mutate(chance: random.Random, values: dict[str, Any]) -> None:
    """Change one thing of a configuration."""
    kind = chance.randrange(7)
    if kind == 0:
        changed_value(chance, values)
    elif kind == 1:
        values[chance.choice(list(values) or ["x"])] = odd(chance)
    elif kind == 2:
        values[chance.choice(list(values) or ["x"])] = chance.choice((0, 1, 2, 3, 7, 64, 10**6, -1, 2.0, "8", None))
    elif kind == 3:
        values.pop(chance.choice([*values, "x"]), None)
    elif kind == 4:
        values["model_type"] = chance.choice((*FAMILIES, "lama", "", None, 3, ["gpt2"], "GPT2", "gpt-2", "nobody's"))
    elif kind == 5:
        values[chance.choice(keys_of(chance.choice(list(FAMILIES))))] = odd(chance)
    else:
        names = (
            "architectures",
            "auto_map",
            "text_config",
            "vision_config",
            "quantization_config",
            "rope_scaling",
            "_class_name",
        )
        values[chance.choice(names)] = chance.choice((odd(chance), {}, {**values}, ["GPT2LMHeadModel"], "AutoModel"))

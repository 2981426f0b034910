"""Damaged files: whatever stands in a file that a command reads, it answers, or says in one line what is wrong.

    python -m tests.fuzz --damaged 500

Checkpoints, weights, calibrations, devices, clusters, links, tables, procedures, configurations, tokenizers, logs: cut,
with bytes changed, doubled, exchanged or zeroed; with values of other types, missing, renamed and nested; arrays with
other shapes, types and numbers, under a digest that is right.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Mapping
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from commands.called import Called, call, ending
from fuzz_calibration import OTHERS, changed_value, good_calibration
from learncost.models.storage import read_arrays, write_arrays
from learncost.training.folder import LOGS
from learncost.viz.serve.runs import Runs

TEXT = "".join(f"line {number} of a text that can be learned\n" for number in range(60))
MODEL = "--model gpt2 --num-hidden-layers 1 --hidden-size 8 --num-attention-heads 2 --batch-size 2 --seq-len 8"
SMALL = {"model_type": "gpt2", "n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 12, "n_positions": 8}
DEVICE = {"peak_tflops": {"fp32": 10.0, "bf16": 100.0}, "bandwidth_gbs": 900.0, "memory_gb": 24.0}
CLUSTER = {
    "device": "H100 SXM",
    "devices": 8,
    "between": "InfiniBand NDR",
    "inside": {"name": "mine", "gbs": 25, "links": 18, "latency_us": 2},
}
PROCEDURE = 'title = "mine"\nschedule = ["forward", "backward reading F for weights", "update", "F follows weights"]\n'
TABLE = """mine(X targets share; W V) -> loss
% Two matrices and a loss.
sizes: d=6 v=5
  H[B f] = X[B d] W[d f]
  A[B f] = relu(H[B f])
  L[B v] = A[B f] V[f v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
targets: index of v
share: share of targets
"""
NEEDS = "--n-layer 1 --n-embd 8 --n-head 2 --vocab-size 10 --seq-len 4"


@dataclass(frozen=True)
class Case:
    """A good file, where it lies in its folder, and what reads it: command lines, `{folder}` and `{file}` in them."""

    file: str
    lines: tuple[str, ...]
    content: bytes = b""
    around: str = ""  # the folder of good files that it lies among

    @property
    def kind(self) -> str:
        return Path(self.file).suffix


def fuzz(count: int, seed: int = 0) -> list[str]:
    """What went wrong with so many files; the same files for the same seed."""
    chance = random.Random(seed)
    faults = []
    with tempfile.TemporaryDirectory() as place, chdir(place):
        before = {name: os.environ.get(name) for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME")}
        os.environ.update(dict.fromkeys(before, place))
        try:
            cases = made(Path(place))
            for number in range(count):
                faults += tried(chance, chance.choice(cases), Path(place) / f"tried-{number}")
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})
    return faults


def made(place: Path) -> list[Case]:
    """The good files: a run of two steps among them, with all that lies in its folder."""
    text = place / "text.txt"
    text.write_text(TEXT)
    run = place / "run"
    call_good(f"train {text} {MODEL} --engine numpy --steps 2 --save-every 1 --sample-every 1 --out {run}")
    resume = ("train --resume {folder} --steps 3 --save-every 1", "sample {folder} --tokens 2", "watched {folder}")
    cases = [Case(path.name, resume, path.read_bytes(), str(run)) for path in sorted(run.iterdir()) if path.is_file()]
    cases += [case for case in cases if case.kind == ".safetensors"]  # which have most that can be wrong
    start = f"train {text} --from {{folder}} --engine numpy --steps 1 --batch-size 2 --seq-len 8 --out {{folder}}/new"
    emit = "emit {folder}/config.json --backend c99 --batch-size 1 --seq-len 4 --output {folder}/out.c"
    emit += " --weights {folder}/model.safetensors"
    for name in ("model.safetensors", "config.json"):
        cases.append(Case(name, (start, emit, "cost {folder}"), (run / name).read_bytes(), str(run)))
    on = f"cost gpt2 {NEEDS} --on {{file}}", f"run-cost gpt2 {NEEDS} --tokens 1e6 --on {{file}}"
    calibration = json.dumps(good_calibration()).encode()
    cases += [Case("own.json", on, calibration), Case("device.json", on, json.dumps(DEVICE).encode())]
    cases.append(Case("device.toml", (*on, f"fit gpt2 {NEEDS} --on {{file}}"), as_toml(DEVICE)))
    over = f"run-cost gpt2 {NEEDS} --tokens 1e6 --batch-size 8 --mesh dp=8 --on {{file}}", "list clusters"
    cases += [Case("cluster.json", over, json.dumps(CLUSTER).encode()), Case("cluster.toml", over, as_toml(CLUSTER))]
    by = f"cost gpt2 {NEEDS} --procedure {{file}}", f"compare gpt2 {NEEDS} --procedure bp,{{file}}"
    cases += [Case("mine.toml", by, PROCEDURE.encode())] * 2
    read = "cost {file} --B 2 --f 3", "explain {file}", "formulas {file}", "memory {file} --B 2 --f 3 --engine graph"
    emitted = "emit {file} --backend c99 --B 1 --f 2 --output {folder}/out.c"
    cases += [Case("mine.table", (*read, emitted), TABLE.encode())] * 2
    asked = "cost {file}", "memory {folder}", "conventions {file}", "fit {file} --budget 8GB"
    cases.append(Case("config.json", asked, json.dumps(SMALL).encode()))
    if (tokens := tokenizer()) is not None:
        train = f"train {text} {MODEL} --engine numpy --steps 1 --tokenizer {{file}} --out {{folder}}/new"
        cases.append(Case("tokenizer.json", (train,), tokens))
    return cases


def tokenizer() -> bytes | None:
    """A small tokenizer.json; None without the package."""
    try:
        import tokenizers
    except ImportError:
        return None
    model = tokenizers.models.WordLevel({"<|endoftext|>": 0, "line": 1, "of": 2, "[UNK]": 3}, unk_token="[UNK]")
    own = tokenizers.Tokenizer(model)
    own.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return own.to_str().encode()


def call_good(line: str) -> None:
    """Run what makes a good file."""
    answer = call(line)
    assert answer.code == 0, (line, answer.err, answer.out)


def as_toml(row: Mapping[str, Any]) -> bytes:
    """A TOML file with these values, as far as TOML has them; JSON writes most values as TOML does."""
    return "\n".join(f"{json.dumps(str(key))} = {_toml(value)}" for key, value in row.items()).encode()


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(str(key))} = {_toml(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, float):
        return repr(value)
    return "{}" if value is None else json.dumps(value)


# Damage.


def tried(chance: random.Random, case: Case, folder: Path) -> list[str]:
    """A file that is damaged, and what is wrong with how it is read."""
    if case.around:
        shutil.copytree(case.around, folder)
    else:
        folder.mkdir()
    path = folder / case.file
    path.write_bytes(case.content)
    what = damage(chance, path)
    faults = []
    for line in chance.sample(case.lines, min(2, len(case.lines))):
        typed = line.format(folder=folder, file=path)
        if fault := watched(folder) if typed.startswith("watched") else wrong(call(typed)):
            kept = path.read_bytes()[:200] if path.is_file() else b""
            faults.append(f"{fault}: {line}, {what} {case.file}: {kept!r}")
    shutil.rmtree(folder)
    return faults


def wrong(answer: Called) -> str:
    """What is wrong with how a command ended: a training says how it goes before it says what is wrong."""
    printed = answer.err.splitlines(keepends=True)
    ours = "".join(line for line in printed if line.startswith("learncost: "))
    if answer.code == 2 and "Traceback" not in answer.err:
        return ending(Called(answer.line, 2, "", ours, answer.seconds))
    return ending(answer) or ("Traceback" in answer.err and "a traceback on standard error") or ""


def watched(folder: Path) -> str:
    """What is wrong with how the explorer shows a run."""
    try:
        json.dumps(Runs(folder).state(), allow_nan=False)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def damage(chance: random.Random, path: Path) -> str:
    """Change a file; what was done to it."""
    kinds: list[Callable[[random.Random, Path], str]] = [cut, flipped, flipped, moved, other]
    if path.suffix in (".json", ".toml"):
        kinds += [values] * 8
    if path.suffix == ".safetensors":
        kinds += [arrays] * 6 + [header] * 3
    if path.suffix in (".table", ".jsonl", ".txt"):
        kinds += [lines] * 3
    if path.name in LOGS or path.suffix in (".tokens", ".safetensors"):
        kinds.append(gone)
    return chance.choice(kinds)(chance, path)


def cut(chance: random.Random, path: Path) -> str:
    data = path.read_bytes()
    path.write_bytes(data[: chance.randrange(len(data) or 1)])
    return "cut"


def flipped(chance: random.Random, path: Path) -> str:
    changed = bytearray(path.read_bytes() or b"x")
    for _ in range(chance.choice((1, 1, 2, 5, 50))):
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes(changed))
    return "bits flipped in"


def moved(chance: random.Random, path: Path) -> str:
    """A piece is doubled, zeroed, taken out, or put elsewhere."""
    data = path.read_bytes()
    begin, end = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
    piece = data[begin:end]
    at = chance.randrange(len(data) + 1)
    path.write_bytes(
        chance.choice(
            (
                data[:end] + piece + data[end:],
                data[:begin] + bytes(len(piece)) + data[end:],
                data[:begin] + data[end:],
                data[:at] + piece + data[at:],
            )
        )
    )
    return "pieces moved in"


def other(chance: random.Random, path: Path) -> str:
    path.write_bytes(chance.choice(OTHERS))
    return "something else in"


def gone(chance: random.Random, path: Path) -> str:
    path.unlink()
    if chance.random() < 0.3:
        path.mkdir()
    return "no"


def lines(chance: random.Random, path: Path) -> str:
    """Lines are taken out, doubled, or exchanged."""
    text = path.read_text(encoding="utf-8").splitlines(keepends=True) or ["\n"]
    for _ in range(chance.choice((1, 2, 4))):
        one, two = chance.randrange(len(text)), chance.randrange(len(text))
        kind = chance.randrange(4)
        if kind == 0 and len(text) > 1:
            del text[one]
        elif kind == 1:
            text.insert(two, text[one])
        elif kind == 2:
            text[one], text[two] = text[two], text[one]
        else:
            text[one] = re.sub(r"\d+", str(chance.choice(("-1", "1e999", "NaN", "9" * 30, "null", '"x"'))), text[one])
    path.write_text("".join(text), encoding="utf-8")
    return "lines changed in"


def values(chance: random.Random, path: Path) -> str:
    """Values of JSON or TOML have other types, are missing, renamed or nested."""
    text = path.read_text(encoding="utf-8")
    row = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    what = "; ".join(changed_value(chance, row) for _ in range(chance.choice((1, 1, 1, 2, 4)))) if row else "nothing"
    path.write_bytes(json.dumps(row).encode() if path.suffix == ".json" else as_toml(row))
    return f"({what})"


def arrays(chance: random.Random, path: Path) -> str:
    """Arrays have other shapes, types, numbers or names, or are missing; the digest is that of what is there."""
    found, metadata = read_arrays(path, "")
    found = {name: np.array(array) for name, array in found.items()}
    name = chance.choice([*found])
    array = found[name]
    kinds = {
        "another shape": lambda: array.reshape(-1)[: chance.randrange(1, array.size + 1)],
        "an axis more": lambda: array[None],
        "reversed": lambda: array.T,
        "nothing in it": lambda: array[:0],
        "a number": lambda: np.float32(chance.random()).reshape(()),
        "half": lambda: array.astype(np.float16),
        "bytes": lambda: array.astype(np.uint8),
        "double": lambda: array.astype(np.float64),
        "nan": lambda: np.full_like(array, np.nan),
        "large": lambda: np.full_like(array, chance.choice((1e38, -3e38, 1e-45))),
    }
    kind = chance.choice([*kinds, "missing", "renamed", "facts", "facts"])
    if kind in kinds:
        found[name] = np.ascontiguousarray(kinds[kind]()) if kind != "a number" else kinds[kind]()
    elif kind == "missing":
        del found[name]
    elif kind == "renamed":
        found[chance.choice(("", "x", "é", name.upper(), f"{name}.M"))] = found.pop(name)
    else:
        facts = {key: value for key, value in metadata.items() if key != "digest"}
        key = chance.choice([*facts])
        facts[key] = chance.choice(("", "{}", "[]", "3", '{"steps": 10000000000}', '{"steps": -1}', '{"steps": null}'))
        metadata = facts
    write_arrays(path, found, {key: value for key, value in metadata.items() if key != "digest"})
    return f"{name[:30]} {kind} in"


def header(chance: random.Random, path: Path) -> str:
    """The header of a file of arrays says something else than what follows."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    row = json.loads(content[8 : 8 + length])
    what = changed_value(chance, row)
    text = json.dumps(row).encode()
    size = chance.choice((len(text), len(text), len(text), len(text) + 1, 0, 2**40, 2**64 - 1))
    path.write_bytes(size.to_bytes(8, "little") + text + content[8 + length :])
    return f"header ({what}) of"

"""Damaged calibration files: whatever stands in a file behind `--on`, or where `--on here` looks, gives a time or one
line of text and exit code 2, on the command line and in Python.

    python -m tests.fuzz --calibrations 2000

A good file is cut, its bytes and values changed: wrong types, NaN, negative, huge, nested, missing and doubled keys,
other JSON, other encodings; a folder, a file that cannot be read, none at all.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import learncost as lc
from learncost.cli.command import main
from learncost.devices.calibration import Calibration, calibration_path, save
from timings import flat

ODD = (
    None, True, False, 0, 1, -1, -0.0, 0.5, 1e-320, 1e308, 1e31, 10**40, 10**400, float("nan"), float("inf"),
    -float("inf"), "", "fp32", "two\nlines", "\x00", "\u202e", "é" * 400, [], {}, [1], [[]], [None], ["1"], {"a": 1},
    [float("nan")] * 8, [1e300] * 8, [1, 1], [2, 1], [0, 1], [1.5, 2.5], list(range(1, 100)), {"fp32": {}},
    {"operators": {"fp32": []}}, [10**300, 10**301],
)  # fmt: skip

OTHERS: tuple[bytes, ...] = (
    b"", b" ", b"null", b"[]", b"{}", b"3", b'"text"', b"[" * 100_000, b'{"a":' * 50_000, b"{", b"\xff\xfe\x00",
    b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b'{"learncost_calibration": 1}', b'{"learncost_calibration": 2}',
    b'{"learncost_calibration": true}', b'{"learncost_calibration": NaN}', b'{"learncost_calibration": 1, "rates": 1}',
    b'{"learncost_calibration": 1e999}', b'{"learncost_calibration": 1, "learncost_calibration": 1}',
    b'{"model_type": "gpt2"}', b'{"peak_tflops": {"fp32": 1}, "bandwidth_gbs": 10}', b'{"name": 3}', b"9" * 10_000,
)  # fmt: skip

MODEL = ("cost", "gpt2", "--n-layer", "1", "--n-embd", "8", "--n-head", "2", "--vocab-size", "10", "--seq-len", "4")
RUN = ("run-cost", *MODEL[1:], "--tokens", "1e6")


def fuzz(count: int, seed: int = 0) -> list[str]:
    """What went wrong with so many files; the same files for the same seed."""
    chance = random.Random(seed)
    with _spec() as spec:
        good = good_calibration()
        faults = (fault for _ in range(count) if (fault := _tried(chance, good, spec)))
        return list(faults)


@contextmanager
def _spec() -> Iterator[Path]:
    """A folder of its own, in which `here` lies."""
    before = os.environ.get("XDG_DATA_HOME")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_DATA_HOME"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["XDG_DATA_HOME"]
            else:
                os.environ["XDG_DATA_HOME"] = before


def good_calibration() -> dict[str, Any]:
    """What a calibration's file says."""
    rates = {
        engine: {dtype: flat(ops={"gelu": 1e-9}) for dtype in ("fp32", "bf16")} for engine in ("operators", "kernels")
    }
    save(Calibration("A machine", "2026-11-20", "PyTorch 9", rates, 2), calibration_path())
    good = dict(json.loads(calibration_path().read_text(encoding="utf-8")))
    calibration_path().unlink()  # the first one that is tried may be a folder
    return good


def _tried(chance: random.Random, good: dict[str, Any], spec: Path) -> str:
    """One file, and what went wrong with it."""
    path = chance.choice((calibration_path(), spec / "own.json"))
    kind = _put(chance, good, path)
    on = "here" if path == calibration_path() else str(path)
    dtype = chance.choice(((), ("--dtype", "fp32"), ("--dtype", "bf16"), ("--dtype", "fp8")))
    line = (*chance.choice((MODEL, RUN)), "--on", on, *dtype, *chance.choice(((), ("--json",))))
    message = _ending(line)
    if not message and chance.random() < 0.3:
        message = _in_python(on)
    _removed(path)
    return f"{message}: {kind}, {' '.join(line[-6:])}" if message else ""


def _put(chance: random.Random, good: dict[str, Any], path: Path) -> str:
    """Something where a calibration is looked for; what it is."""
    kind = chance.choice(("folder", "none", "unreadable", "other", "cut", "bytes") + ("values",) * 12)
    if kind == "folder":
        path.mkdir(parents=True, exist_ok=True)
        return kind
    if kind == "none":
        return kind
    path.parent.mkdir(parents=True, exist_ok=True)
    data = json.dumps(good).encode()
    if kind == "other":
        data = chance.choice(OTHERS)
        kind = f"other {data[:40]!r}"
    elif kind == "cut":
        data = data[: chance.randrange(len(data))]
        kind = f"cut to {len(data)}"
    elif kind == "bytes":
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 6)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        data = bytes(changed)
    elif kind == "values":
        row = copy.deepcopy(good)
        kind = "; ".join(changed_value(chance, row) for _ in range(chance.choice((1, 1, 1, 2, 5))))
        data = json.dumps(row).encode()
    path.write_bytes(data)
    if kind == "unreadable":
        path.chmod(0)
    return kind


def changed_value(chance: random.Random, row: dict[str, Any]) -> str:
    """Change one value of a file's, or take it out, or give it another name; what was changed."""
    if not row:
        return "nothing is left"
    place: Any = row
    keys: list[str] = []
    while isinstance(place, dict) and place:
        key = chance.choice(list(place))
        keys.append(key)
        if not isinstance(place[key], dict) or not place[key] or chance.random() < 0.15:
            break
        place = place[key]
    value = place[key]
    how = chance.choice(("odd", "odd", "odd", "gone", "renamed", "nested", "element"))
    if how == "gone":
        del place[key]
    elif how == "renamed":
        place[chance.choice(("", "fp33", "x\ny", "é"))] = place.pop(key)
    elif how == "nested":
        for _ in range(chance.choice((1, 3, 60))):
            value = chance.choice(([value], {"a": value}))
        place[key] = value
    elif how == "element" and isinstance(value, list) and value:
        place[key] = [*value]
        place[key][chance.randrange(len(value))] = chance.choice(ODD)
    else:
        place[key] = chance.choice(ODD)
    return f"{how} {'.'.join(keys)[:80]!r} {str(place.get(key))[:40]!r}"


def _ending(line: tuple[str, ...]) -> str:
    """What is wrong with how a command ends: exit code 0, or 2 with one line that a terminal can show."""
    out, err = io.StringIO(), io.StringIO()
    try:
        with redirect_stdout(out), redirect_stderr(err):
            code = main(list(line))
    except BaseException as error:  # whatever leaves the command is a fault
        return f"{type(error).__name__}: {str(error)[:100]}"
    printed = err.getvalue()
    if code == 0:
        wrong = [word for word in ("nan", "inf") if word in out.getvalue().lower().replace("info", "").split()]
        return f"{wrong} on the screen" if wrong else ""
    if code != 2 or out.getvalue():
        return f"exit code {code}, {len(out.getvalue())} characters printed"
    return "" if printed.count("\n") == 1 and printed.rstrip("\n").isprintable() else f"not one line: {printed[:100]!r}"


def _in_python(on: str) -> str:
    try:
        lc.cost("gpt2", seq_len=4, n_layer=1, n_embd=8, n_head=2, vocab_size=10, on=on)
    except lc.InputError as error:
        return "" if "\n" not in str(error) else "not one line"
    except BaseException as error:  # whatever else leaves it is a fault
        return f"{type(error).__name__} in Python: {str(error)[:100]}"
    return ""


def _removed(path: Path) -> None:
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)

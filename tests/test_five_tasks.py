"""The tasks that CONTRIBUTING names files for, done in a copy of the package by changing these files alone."""

import json
import os
import re
import shutil
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| ((?:add|fix) [^|]+?) \| ([^|]+) \|", TEXT, re.MULTILINE))
OPERATOR = '''
define(
    OpDef(
        "cube",
        ("X",),
        ("Y",),
        body_text="""
        T[_] = X[_] X[_]
        Y[_] = T[_] X[_]
        """,
        gradient_text="""
        T[_] = X[_] X[_]
        S[_] = %s[] T[_]
        dX[_] = dY[_] S[_]
        """,
        pointwise=True,
        source="the third power, whose derivative is three times the square",
    )
)
'''
CUBED = "cubed(X) -> Y\n  Y[B n] = cube(X[B n])"


SHAPES = {"XQ": "BMd", "XK": "BNd", "XV": "BNd", "WQ": "dhk", "WK": "dhk", "WV": "dhk", "WO": "hkd", "dY": "BMd"}


class Copy:
    """A copy of the package, in which a task may change the files of its row."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(ROOT / "src" / "learncost", folder / "learncost", ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, task: str, change, **named: str) -> None:
        (file,) = re.findall(r"`src/(\S+)`", ROWS[task])
        for old, new in named.items():
            file = file.replace(old, new)
        path = self.folder / file
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        after = change(before)
        assert after != before
        path.write_text(after, encoding="utf-8")

    def python(self, *words: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(self.folder)}
        command = [sys.executable, "-P", *words]
        ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_the_files_of_five_tasks_exist():
    assert len(ROWS) == 5
    for task, files in ROWS.items():
        for file in re.findall(r"`(src/\S+)`", files):
            assert (ROOT / file).exists() or (ROOT / file).parent.is_dir(), (task, file)


@pytest.mark.parametrize(("factor", "passes"), [(3, True), (2, False)])
def test_an_operator(copy, factor, passes):
    copy.write("add an operator", lambda text: text + OPERATOR % factor)
    asked = f"import learncost as lc; layer = lc.layer({CUBED!r}); print(lc.check_layer(layer).passed)"
    assert copy.python("-c", asked).strip() == str(passes)


def test_a_model_family(copy, tmp_path):
    copy.write("add a model family", lambda _: 'like = "gpt2"\nsource = "a test"\n', MODEL_TYPE="own_gpt")
    config = tmp_path / "config.json"
    totals = []
    for family in ("gpt2", "own_gpt"):
        config.write_text(json.dumps({"model_type": family, "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 11}))
        answer = json.loads(copy.python("-m", "learncost", "cost", str(config), "--seq-len", "4", "--json"))
        totals.append(answer["total"]["flops"])
    assert totals[0] == totals[1] > 0


def test_a_column_of_cost(copy):
    def added(text: str) -> str:
        text = text.replace('cells = {"bytes"', 'cells = {"lines": str(len(rows)), "bytes"')
        return text.replace('((*moved, "share")', '(("lines", *moved), (*moved, "share")')

    copy.write("add a column of `cost`", added)
    screen = copy.python("-m", "learncost", "cost", "gpt2", "--seq-len", "8", "--by", "macro-operation")
    head = next(line for line in screen.splitlines() if "MACCs" in line)
    assert head.split() == ["MACCs", "FLOPs", "lines", "bytes"]


def test_a_backend(copy, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", np)  # whose functions are called like NumPy's
    row = "BACKENDS: Mapping[str, Backend] = {backend.name: backend for backend in (_NUMPY, "
    own = '_OWN = Backend("cupy", ("import cupy as np",), "np", "np.ndarray", helpers=_NUMPY.helpers)\n'
    copy.write("add a backend", lambda text: text.replace(row, f"{own}{row}_OWN, "))
    drawn = np.random.default_rng(0)
    sizes = {"B": 2, "M": 3, "N": 4, "d": 6, "h": 2, "k": 5}
    arrays = {name: drawn.standard_normal([sizes[axis] for axis in axes]) for name, axes in SHAPES.items()}
    results = []
    for name in ("numpy", "cupy"):
        program = copy.python("-m", "learncost", "emit", "attention", "--backend", name)
        assert f"import {name} as np" in program
        names: dict = {}
        exec(program, names)
        results.append(names["step"](**{name: arrays[name] for name in signature(names["step"]).parameters}))
    assert len(results[0]) == 8  # Y, and the gradients of three inputs and four weights
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12)

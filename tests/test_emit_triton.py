"""Steps in Triton: NumPy's numbers in Triton's interpreter, one file without learncost, compiled without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import learncost as lc
from learncost.backends.expression import spelled
from learncost.backends.triton import emitted
from learncost.cli.command import main
from learncost.interpreter import execute
from learncost.ir.table import Table
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.verification.sample import random_arrays
from test_emit_c99 import CONVOLUTION, GPT2, LLAMA, MLP, RECURRENCE, VIT

pytest.importorskip("torch")
pytest.importorskip("triton")

RUN = """
import runpy, sys
sys.modules["learncost"] = None  # an import of it fails
import numpy, torch
for name in sys.argv[1:]:
    file = runpy.run_path(name + ".py")
    arrays = numpy.load(name + ".npz")
    given = {key: torch.from_numpy(arrays[key]).to(kind).reshape(form) for key, (form, kind) in file["GIVEN"].items()}
    m = file["lay_out"](given, torch.full((file["BYTES"],), 255, dtype=torch.uint8))
    file["step"](m, file["KERNELS"])
    made = {key: value for key, value in vars(m).items() if torch.is_tensor(value) and value.dtype != torch.bfloat16}
    numpy.savez(name, **{"made " + key: value.numpy() for key, value in made.items()}, **given)
"""


def _step(subject: Any, overrides: Any, optimizer: str, plan: str, batch: int, length: int | None) -> tuple[Table, Any]:
    model = build(configure(subject, overrides) if isinstance(overrides, dict) else subject)
    table = planned(without_gradients(step(model, "bp", optimizer)), plan, model.sizes)
    return table, run_sizes(model, batch, length, None)


def _compare(cases: Mapping[str, tuple[Table, Any]], dtype: str, near: float, folder: Path) -> None:
    """Compare every output of steps, loss and new weights among them, with the interpreter of tables."""
    expected = {}
    for name, (table, sizes) in cases.items():
        (folder / f"{name}.py").write_text(emitted(table, sizes, dtype, name), encoding="utf-8")
        arrays = random_arrays(table, sizes)
        np.savez(folder / f"{name}.npz", **{key: np.asarray(array) for key, array in arrays.items()})
        expected[name] = dict(arrays)
        execute(lower(table), expected[name], sizes)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", RUN, *cases], cwd=folder, env=environment, check=True)
    for name, (table, _) in cases.items():
        found = np.load(folder / f"{name}.npz")
        old = {new: weight for weight, new in table.renewed.items()}
        for output in table.outputs:
            array = found[old[output]] if output in old else found[f"made {spelled(output)}"]
            right = np.asarray(expected[name][output])
            np.testing.assert_allclose(array.reshape(right.shape), right, atol=near, err_msg=f"{name}: {output}")


CASES = {
    "mlp": (lc.layer(MLP), {}, "adamw", "fused", 5, None),
    "convolution": (lc.layer(CONVOLUTION), {}, "momentum", "fused", 3, None),
    "recurrence": (lc.layer(RECURRENCE), {}, "sgd", "fused,fused-update", 3, None),
    "gpt2": ("gpt2", GPT2, "adamw", "flash,fused,fused-update,chunked-loss", 3, 7),
    "llama": ("llama-3-8b", LLAMA, "adamw", "fused", 3, 7),
    "vit": ("vit-base-patch16-224", VIT, "momentum", "flash,fused,recompute=gelu+norm", 3, None),
    "mistral": ("mistral-7b", {**LLAMA, "sliding_window": 3}, "sgd", "flash,fused", 2, 7),
}
"""Sizes that divide no tile; masks, also with a window; heads that share keys; convolutions, pooling, loops."""


def test_every_output_is_that_of_the_interpreter(tmp_path: Path) -> None:
    _compare({name: _step(*case) for name, case in CASES.items()}, "fp64", 1e-10, tmp_path)

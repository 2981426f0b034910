"""Kernels in C99 without extensions: a compiler that takes nothing else, and the values of the interpreter."""

from __future__ import annotations

import ctypes
import operator
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kernels_in_c import Case, matched, needs_compiler
from learncost.autodiff.derive import derive
from learncost.backends.c.c99 import C99, products
from learncost.backends.c.printer import number
from learncost.backends.c.tree import Expression, NameExpression, OperationExpression
from learncost.backends.c99.functions import called, functions
from learncost.backends.c99.program import REAL
from learncost.engines import compiler
from learncost.ir.line import FusedKernel, Line
from learncost.ir.table import Table
from learncost.layers.layer import shipped_layer
from learncost.verification.sample import small_sizes

pytestmark = needs_compiler

STRICT = (
    "-std=c99",
    "-pedantic",
    "-Wall",
    "-Wextra",
    "-Wconversion",
    "-Wdouble-promotion",
    "-Werror",
    "-O0",
    "-fPIC",
    "-shared",
)
LAYERS = ("attention", "restricted_attention", "gated_feed_forward", "norm", "loss", "embedding", "convolution")
SIGNS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
ATTENTION = ["R", "S", "P", "A", "dP", "dV", "dS", "dR", "dQ", "dK"]


@cache
def _step(layer: str) -> Table:
    step = derive(shipped_layer(layer).table).step
    return replace(step, lines=tuple(line for line in step.lines if isinstance(line, Line)))


def _case(layer: str, lines: Sequence[Line], meta: FusedKernel, dtype: str) -> Case:
    step = _step(layer)
    others = {name for line in step.lines if line not in lines for name in line.reads} | {*step.outputs}
    outputs = {name for line in lines for name in line.makes} & others
    sizes = small_sizes(step)
    reads = {name for line in lines for name in line.reads}
    integers = {name: 2 for name in reads if step.values[name].role == "index"}
    masks = {name for name in reads if step.values[name].role == "mask"}
    more = {"integers": integers, "masks": masks, "constants": sizes, "printer": C99}
    return Case(lines, step.axes, outputs, sizes, meta, dtype, **more)


def _kernels(cases: list[Case], folder: Path) -> dict[str, Any]:
    """The compiled functions; the compiler says nothing."""
    text, made = folder / "kernels.c", folder / "kernels.so"
    dtype = cases[0].dtype
    kernels = "\n".join(case.function.text for case in cases).replace("static void", "void")
    real = f"#include <stdint.h>\ntypedef {REAL[dtype]} real;\n"
    text.write_text(real + "\n".join((C99.preamble, *products(called(kernels)), *functions(kernels, dtype), kernels)))
    command = (*(compiler.compiler() or ()), *STRICT, str(text), "-o", str(made))
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
    library = ctypes.CDLL(str(made))
    result = {}
    for case in cases:
        call = result[case.function.name] = getattr(library, case.function.name)
        call.restype = None
        function = case.function
        call.argtypes = [ctypes.c_void_p] * len((*function.reads, *function.writes, *function.scratch))
    return result


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_lines_of_layers_in_c99_give_what_the_interpreter_gives(dtype: str, tmp_path: Path) -> None:
    """Each line alone; all lines between the products of attention in blocks."""
    cases = [
        _case(layer, [line], FusedKernel(f"{layer}_{number}", ()), dtype)
        for layer in LAYERS
        for number, line in enumerate(_step(layer).lines)
    ]
    lines = [line for line in _step("attention").lines if line.name in ATTENTION]
    cases.append(_case("attention", lines, FusedKernel("in_blocks", ("B", "h"), ("M", 2)), dtype))
    kernels = _kernels(cases, tmp_path)
    for case in cases:
        case.compare(kernels)
        case.compare(kernels, matched(case.function.shares))


def test_brackets_stand_where_they_are_needed() -> None:
    """Random sums, differences and products: their text means what the tree says, with no more brackets than that."""
    random = Random(0)

    def tree(depth: int) -> tuple[Expression, int]:
        if depth == 0 or random.random() < 0.2:
            value = random.randrange(1, 9)
            return NameExpression(str(value)), value
        sign = random.choice("+-*")
        parts = [tree(depth - 1) for _ in range(random.randrange(2, 4))]
        return OperationExpression(sign, tuple(part for part, _ in parts)), reduce(
            SIGNS[sign], (value for _, value in parts)
        )

    for _ in range(300):
        expression, value = tree(4)
        assert eval(number(expression)) == value
    assert (
        number(
            OperationExpression(
                "*", (OperationExpression("+", (NameExpression("i"), NameExpression("j"))), NameExpression("k"))
            )
        )
        == "(i + j) * k"
    )

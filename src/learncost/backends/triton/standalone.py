"""A step in place on a GPU as one file that requires only PyTorch and Triton."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from learncost.backends.placed.kernels import KernelTable
from learncost.backends.placed.layout import InPlaceLayout, laid_out
from learncost.backends.placed.program import TYPES, in_place_program
from learncost.backends.triton.kernel import kernel
from learncost.backends.triton.preamble import HELPERS, MAIN, PREAMBLE, USE
from learncost.ir.errors import InputError
from learncost.ir.table import Table

LONGEST = 2**31 - 2**20
"""The most elements of an array: kernels compute offsets in 32 bits, also those of a last block beyond its end."""


def emitted(table: Table, sizes: Mapping[str, int], dtype: str, title: str) -> str:
    """Return the file of a step: documentation, the kernels, the step, its layout, and a command line.

    Raises `InputError` for a line that no kernel computes, or an array of too many elements.
    """
    layout = laid_out(table, sizes, dtype, KernelTable(sizes, kernel))
    for lifetime in layout.lifetimes.arrays:
        if prod(layout.shape(lifetime.axes)) > LONGEST:
            raise InputError(f"{lifetime.name} has more than {LONGEST:,} elements, the most of an array in Triton")
    placed = in_place_program(layout, ordered=True)
    kernels = "\n\n".join(function.text for function in placed.functions)
    helpers = [text for name, text in HELPERS.items() if re.search(rf"\b{name}[([]", kernels)]
    _, _, step = placed.text.partition("import torch\n")
    names = "".join(f"    {function.name}={function.name},\n" for function in placed.functions)
    found = re.findall(r"^    (\w+_kernel(?:_\d+)?)\[.*?num_warps=(\d+)", kernels, re.MULTILINE | re.DOTALL)
    warps = "".join(f"    {name}: {number},\n" for name, number in found)
    ending = f"KERNELS = SimpleNamespace(\n{names})\nWARPS = {{\n{warps}}}"
    parts = (PREAMBLE, *helpers, kernels, step.strip("\n"), f"{_given(layout)}\n{ending}", MAIN)
    return f'"""{title}\n{USE}"""\n\n' + "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _given(layout: InPlaceLayout) -> str:
    """Return the shape and type of every tensor that the caller allocates."""
    given = {name: (layout.shape(axes), TYPES[kind]) for name, (axes, kind) in layout.given.items()}
    rows = (f'    "{name}": ({shape}, torch.{kind}),\n' for name, (shape, kind) in given.items())
    return f"GIVEN = {{\n{''.join(rows)}}}"

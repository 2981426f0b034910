"""A step in place on a GPU as one file that requires only PyTorch and Triton."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from learncost.backends.placed.kernels import KernelTable
from learncost.backends.placed.layout import IN_PLACE, PYTORCH, WIDTHS, InPlaceLayout
from learncost.backends.placed.program import TYPES, InPlaceProgram, in_place_program
from learncost.backends.precision import typed
from learncost.backends.triton.attention import with_sums
from learncost.backends.triton.copies import with_copies
from learncost.backends.triton.kernel import writer
from learncost.backends.triton.preamble import HELPERS, MAIN, PREAMBLE, USE
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.loop import check_derived
from learncost.ir.table import Table
from learncost.program.calls import every_call

WORKSPACES = 2 * 2**25
"""The bytes of cuBLAS: on Hopper and Blackwell PyTorch gives it 32 MiB a stream (`parseChosenWorkspaceSize` in
`CublasHandlePool.cpp`; 8.1 MiB on older GPUs), one where the first step runs and one where its graph is captured."""

LONGEST = 2**31 - 2**20
"""The most elements of a kernel's array: offsets are computed in 32 bits, also those of a last block beyond its end."""


def laid_out(table: Table, sizes: Mapping[str, int], dtype: str) -> InPlaceLayout:
    """Return the layout of a step in place whose kernels are in Triton. Raises `InputError` for a line without one."""
    check_derived(table.lines, "no program computes it")
    typed_table, types, known = with_sums(*with_copies(*typed(table, dtype, IN_PLACE)), sizes)
    return InPlaceLayout(typed_table, types, sizes, KernelTable(sizes, writer(known)), PYTORCH)


def check_lengths(layout: InPlaceLayout) -> None:
    """Raise `InputError` if an array has too many elements."""
    name, elements = longest(layout)
    if elements > LONGEST:
        raise InputError(f"{name} has {elements:,} elements, more than {LONGEST:,}, the most of an array in Triton")


def longest(layout: InPlaceLayout) -> tuple[str, int]:
    """Return the array of most elements that a kernel reads or writes, such as one layer's part, and their number."""
    functions = [call.function for call in every_call(layout.items) if call.function]
    names = {name for function in functions for name in (*function.reads, *function.writes)}
    arrays = [array for fields in layout.lifetimes.fields.values() for name, array in fields.items() if name in names]
    elements = {array.name: prod(layout.shape(array.axes)) for array in arrays}
    return max(elements.items(), key=lambda item: item[1])


def needed(layout: InPlaceLayout) -> int:
    """Return the bytes of a step on a GPU: given arrays, the arena, and what libraries allocate."""
    given = sum(prod(layout.shape(axes)) * WIDTHS[kind] for axes, kind in layout.given.values())
    return given + layout.bytes + layout.allocates + WORKSPACES


def in_triton(table: Table, sizes: Mapping[str, int], dtype: str, title: str) -> InPlaceProgram:
    """Return the program of a step, whose text is a file: documentation, kernels, the step, its layout, a command line.

    Raises `InputError` for a line that no kernel computes, or an array of too many elements.
    """
    layout = laid_out(table, sizes, dtype)
    check_lengths(layout)
    placed = in_place_program(layout, ordered=True)
    kernels = "\n\n".join(function.text for function in placed.functions)
    helpers = [text for name, text in HELPERS.items() if re.search(rf"\b({name})[([]", kernels)]
    _, _, step = placed.text.partition("import torch\n")
    names = "".join(f"    {function.name}={function.name},\n" for function in placed.functions)
    launches = [launch for function in placed.functions for launch in function.launches]
    warps = "".join(
        f"    {launch.name}: {launch.warps},\n" for launch in launches if launch.warps and launch.name not in HELPERS
    )
    ending = f"KERNELS = SimpleNamespace(\n{names})\nWARPS = {{\n{warps}}}"
    parts = (PREAMBLE, *helpers, kernels, step.strip("\n"), f"{_given(layout)}\n{ending}", MAIN)
    text = f'"""{title}\n{USE}"""\n\n' + "\n\n\n".join(part.strip("\n") for part in parts) + "\n"
    return replace(placed, text=text)


def _given(layout: InPlaceLayout) -> str:
    """Return the shape and type of every tensor that the caller allocates, and the weights of bf16 copies."""
    given = ((name, each) for name, each in layout.given.items() if name not in layout.copies)
    rows = (f'    "{name}": ({layout.shape(axes)}, torch.{TYPES[kind]}),\n' for name, (axes, kind) in given)
    copies = (f'    "{name}": "{weight}",\n' for name, weight in layout.copies.items())
    return f"GIVEN = {{\n{''.join(rows)}}}\nCOPIES = {{\n{''.join(copies)}}}"

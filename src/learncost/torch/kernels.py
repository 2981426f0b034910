"""Passes of a table by the kernels of `learncost emit --backend triton`, as operators that torch.compile does not open.

Each pass is a custom operator of PyTorch with a fake kernel: its results by the shapes of what it is given. The
autograd function of `passes` calls them, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

import torch

from learncost.backends.placed.layout import IN_PLACE
from learncost.backends.placed.program import TYPES
from learncost.backends.precision import typed
from learncost.engines.in_triton import ProgramInTriton, is_interpreted
from learncost.ir.dataclass import replace
from learncost.ir.line import Line
from learncost.ir.loop import walk
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.passes.plan import planned

Pass = Callable[[Mapping[str, torch.Tensor], Mapping[str, int]], dict[str, torch.Tensor]]
PRECISIONS = {torch.float32: "fp32", torch.float64: "fp64"}


DEVICE = "cpu" if is_interpreted() else "cuda"
"""The type of device on which kernels run: a GPU, or a CPU in Triton's interpreter."""
HAS_TRITON = find_spec("triton") is not None


def precision_of_kernels(like: torch.Tensor) -> str:
    """Return the precision in which kernels compute with a weight; empty where PyTorch's operators run.

    Autocast to bf16 is bf16-masters: products and what they read in bf16, sums and weights in fp32.
    """
    device = like.device.type
    precision = PRECISIONS.get(like.dtype, "") if HAS_TRITON and device == DEVICE else ""
    if precision and torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device) == torch.bfloat16
        return "bf16-masters" if low and precision == "fp32" else ""
    return precision


def split(step: Table) -> tuple[Table, Table]:
    """Return the forward pass of a step, and the rest, each with what the other one reads, under the plan flash."""
    step = planned(step, "flash")
    cut = next(place for place, line in enumerate(step.lines) if _phases(line) != {"forward"})
    before, after = step.lines[:cut], step.lines[cut:]
    first, last = ({name for line in lines for name in line.reads} for lines in (before, after))
    made = [name for line in before for name in line.makes]
    saved = tuple(name for name in made if name in last and name not in step.outputs)
    outputs = tuple(name for name in step.outputs if name in made)

    def given(read: set[str], made: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs = tuple(name for name in (*made, *step.inputs) if name in read)
        return inputs, tuple(name for name in step.weights if name in read)

    inputs, weights = given(first, ())
    forward = replace(step, lines=before, outputs=(*outputs, *saved), inputs=inputs, weights=weights)
    inputs, weights = given(last, made)
    ends = tuple(name for name in step.outputs if name not in outputs)
    return forward, replace(step, lines=after, outputs=ends, inputs=inputs, weights=weights)


def _phases(line: Any) -> set[str]:
    return {each.meta.phase for each, _ in walk((line,)) if isinstance(each, Line)}


REGISTERED: dict[str, Any] = {}
"""The operators by name: equal passes of several modules are one."""


def opaque(table: Table, sizes: Mapping[str, int], precision: str, otherwise: Pass) -> Pass:
    """Return a table as a function of tensors and sizes by name, which is one operator for torch.compile.

    otherwise  what runs where a step in place has no place for a line
    """
    table = planned(table, "fused")
    given, outputs = (*table.inputs, *table.weights), table.outputs
    lengths = sorted({*sizes, *(axis.rstrip("'") for name in given for axis in table.axes[name] if not axis.isdigit())})
    _, types = typed(table, precision, IN_PLACE)
    kinds = {name: getattr(torch, TYPES[types[name]]) for name in outputs}
    programs: dict[tuple[int, ...], Any] = {}

    def run(tensors: list[torch.Tensor], numbers: list[int]) -> list[torch.Tensor]:
        key = tuple(numbers)
        if key not in programs:
            programs[key] = ProgramInTriton.of(table, dict(zip(lengths, numbers, strict=True)), precision)
        values, program = dict(zip(given, tensors, strict=True)), programs[key]
        if program is not None:
            made = program(values)
            return [made[name] for name in outputs]
        made = otherwise(values, dict(zip(lengths, numbers, strict=True)))
        return [made[name].to(kinds[name], copy=True) for name in outputs]

    def shapes(tensors: list[torch.Tensor], numbers: list[int]) -> list[torch.Tensor]:
        known = dict(zip(lengths, numbers, strict=True))
        return [tensors[0].new_empty(shape_of(table.axes[name], known), dtype=kinds[name]) for name in outputs]

    name = f"pass_{sha256(f'{table} {sizes} {precision}'.encode()).hexdigest()[:16]}"
    if name not in REGISTERED:
        schema = "(Tensor[] given, SymInt[] lengths) -> Tensor[]"
        REGISTERED[name] = torch.library.custom_op(f"learncost::{name}", run, mutates_args=(), schema=schema)
        REGISTERED[name].register_fake(shapes)
    operator = getattr(torch.ops.learncost, name).default

    def by_name(values: Mapping[str, torch.Tensor], known: Mapping[str, int]) -> dict[str, torch.Tensor]:
        found = operator([values[each] for each in given], [known[each] for each in lengths])
        return dict(zip(outputs, found, strict=True))

    return by_name

"""Round trip of a table: its forward pass is emitted for PyTorch, exported, and imported as a table again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from learncost.autodiff.derive import derive
from learncost.backends import fill, program
from learncost.cost_models import price
from learncost.cost_models.books import book as find_book
from learncost.importer.walk import read_module
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.table import Table
from learncost.layers.layer import Layer, layer
from learncost.layers.products import matrix_maccs
from learncost.reports.cost import cost
from learncost.verification.imported import ModuleParity, parity
from learncost.verification.sample import random_arrays

BOOKS = ("matmul", "run")


@dataclass(frozen=True)
class RoundTrip:
    """The result of a round trip.

    parity   the differences of the program and its imported table
    written  FLOPs of the emitted table, forward and in a full step, by price book
    read     FLOPs of the imported table
    apart_by  the difference of the imported table's FLOPs under `run`, by pass and operation, such as
              ("backward", "merge"), an addition of parts of a gradient; without the optimizer's
    """

    parity: ModuleParity
    written: Mapping[str, tuple[int, int]]
    read: Mapping[str, tuple[int, int]]
    apart_by: Mapping[tuple[str, str], int]

    @property
    def apart(self) -> float:
        """The largest difference of a value or gradient."""
        return max(self.parity.value, self.parity.gradient)


def round_trip(table: Table, sizes: Mapping[str, int]) -> RoundTrip:
    """Emit a table for PyTorch and import it again, at given sizes of all axes."""
    import torch

    arrays = {name: torch.as_tensor(np.array(array)) for name, array in random_arrays(table, sizes).items()}
    for name in (*table.inputs, *table.weights):
        if name not in table.indices | table.constants:
            arrays[name].requires_grad_()
    module = _module(table, arrays, sizes)
    given = {"inputs": {_plain(name): arrays[name] for name in table.inputs}}
    imported = read_module(module, given, fold=False)
    again = parity(module, given, imported)
    written = Layer("written", table, {}, "", "", sizes={name: sizes[name] for name in sizes})
    read = layer(imported.text)
    of_written, of_read = ({book: _flops(each, book) for book in BOOKS} for each in (written, read))
    more = _operations(read)
    more.subtract(_operations(written))
    return RoundTrip(again, of_written, of_read, {operation: flops for operation, flops in more.items() if flops})


def _operations(priced: Layer) -> Counter[tuple[str, str]]:
    """Return FLOPs under `run` by pass and operation."""
    of_lines: Counter[tuple[str, str]] = Counter()
    for row in price(derive(priced).step, priced.sizes, find_book("run")).rows:
        assert isinstance(row.source, Line)
        passes = "forward" if row.macro_operation == "forward" else "backward"
        of_lines[passes, _operation(row.source)] += int(row.flops.at(priced.sizes))
    return of_lines


def _operation(line: Line) -> str:
    if isinstance(line, Op):
        return f"gradient of {line.op}" if line.part == "gradient" else line.op
    if isinstance(line, Sum):
        return "merge" if line.meta.local == "merge" else "add"
    assert isinstance(line, Product)
    if matrix_maccs(line):
        return "product"
    several = len(line.right) > 1
    if not {*line.left[0].loops}.issuperset(line.loops):
        return "multiply and sum" if several else "sum"
    return "multiply" if several else "move" if line.left[0].apart else "write at places"


def _flops(priced: Layer, book: str) -> tuple[int, int]:
    """Return FLOPs of the forward pass, and of a step."""
    ledger = cost(priced, price_book=book)
    return int(ledger.macro_operations["forward"][1].flops), int(ledger.total.flops)


def _module(table: Table, arrays: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Return a module that runs the program of a table, with weights as parameters."""
    import torch

    written = program(table, "torch")
    names: dict[str, Any] = {"__name__": "emitted"}
    exec(compile(written.text, "emitted.py", "exec"), names)
    more = {size: sizes[name] for name, size in written.sizes.items()}

    class EmittedModule(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.ParameterDict(
                {_plain(name): torch.nn.Parameter(arrays[name].detach()) for name in table.weights}
            )

        def forward(self, inputs: Mapping[str, Any]) -> Any:
            values = {name: inputs[_plain(name)] for name in table.inputs}
            values |= {name: self.weights[_plain(name)] for name in table.weights}
            arguments = [fill(tree, values, names) for tree in written.parameters]
            return names[written.function](*arguments, **more)

    return EmittedModule()


def _plain(name: str) -> str:
    """Return a name without dots, which parameters may not have."""
    return name.replace(".", "_")

"""The forward pass of every shipped layer and family, written for PyTorch, exported, and read back as a table.

    python benchmarks/round_trip.py                    # all of them
    python benchmarks/round_trip.py --only gru,llama   # those whose names have one of these in them

Needs torch (extra `torch`). A line each: the largest difference of a value and of a gradient between the program and
the table that was read of it, and whether that has the FLOPs of the table that was written, forward and in a whole
step, under the books `matmul` and `run`; where not, both numbers, what FlopCounterMode counts, and of which operations
the table that was read has more or fewer: these FLOPs add up to the difference.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from module_parity import ModuleParity, parity, read_module
from torch.utils.flop_counter import FlopCounterMode

from learncost.autodiff.derive import derive
from learncost.backends import fill, program
from learncost.cost_models import price
from learncost.cost_models.books import book as find_book
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.table import Table
from learncost.layers.layer import Layer, layer, shipped, shipped_layer
from learncost.layers.products import matrix_maccs
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.reports.cost import cost
from learncost.verification.sample import random_arrays, small_sizes

LENGTHS = {"B": 2, "M": 7, "N": 5}

BOOKS = ("matmul", "run")


@dataclass(frozen=True)
class RoundTrip:
    """The result of a round trip.

    parity   the differences of the program and its imported table
    written  FLOPs of the emitted table, forward and in a full step, by price book
    read     FLOPs of the imported table
    counted  FLOPs of the program's forward pass by FlopCounterMode
    apart_by  the difference of the imported table's FLOPs under `run`, by pass and operation, such as
              ("backward", "merge"), an addition of parts of a gradient; without the optimizer's
    """

    parity: ModuleParity
    written: Mapping[str, tuple[int, int]]
    read: Mapping[str, tuple[int, int]]
    counted: int
    apart_by: Mapping[tuple[str, str], int]

    @property
    def apart(self) -> float:
        """The largest difference of a value or gradient."""
        return max(self.parity.value, self.parity.gradient)


def round_trip(table: Table, sizes: Mapping[str, int]) -> RoundTrip:
    """Emit a table for PyTorch and import it again, at given sizes of all axes."""
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
    with FlopCounterMode(display=False) as counter:
        module(**given)
    more = _operations(read)
    more.subtract(_operations(written))
    apart_by = {operation: flops for operation, flops in more.items() if flops}
    return RoundTrip(again, of_written, of_read, int(counter.get_total_flops()), apart_by)


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


def cases() -> Iterator[tuple[str, Callable[[], tuple[Table, Mapping[str, int]]]]]:
    """Layers, then small models of all families, by name, each as its table and sizes."""
    for name in shipped():
        table = shipped_layer(name).table
        if table.inputs or table.weights:  # a program that takes no array has no place to make its constants on
            yield name, lambda table=table: (table, small_sizes(table))
    for name in FAMILIES:
        yield f"family {name}", lambda name=name: _family(name)


def _family(name: str) -> tuple[Table, Mapping[str, int]]:
    model = build(small(name))
    return model.table, {**run_sizes(model, LENGTHS["B"], None, None), **LENGTHS, **model.sizes}


def difference_text(trip: RoundTrip) -> str:
    """What came of it, in a line."""
    ops = [f"{trip.apart:.0e}"]
    for book, (forward, step) in trip.written.items():
        read = trip.read[book]
        if read == (forward, step):
            ops.append(f"{book} equal")
            continue
        ops.append(f"{book} {forward:,} and {step:,}, read {read[0]:,} and {read[1]:,}")
        if book == "matmul":
            ops.append(f"FlopCounterMode {trip.counted:,} forward")
        else:
            ops += [f"{each} {operation} {flops:+,}" for (each, operation), flops in trip.apart_by.items()]
    return "; ".join(ops)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    only = parser.parse_args().only.split(",")
    warnings.filterwarnings("ignore")
    for name, case in cases():
        if not any(part in name for part in only):
            continue
        try:
            print(f"{name}: {difference_text(round_trip(*case()))}", flush=True)
        except InputError as error:
            print(f"{name}: refused: {error}", flush=True)


if __name__ == "__main__":
    main()

"""The forward pass of every shipped layer and family, written for PyTorch, exported, and read back as a table.

    python benchmarks/round_trip.py                    # all of them
    python benchmarks/round_trip.py --only gru,llama   # those whose names have one of these in them

Needs torch (extra `torch`). A line each: the largest difference of a value and of a gradient between the program and
the table that was read of it, and whether that has the FLOPs of the table that was written, forward and in a whole
step, under the books `matmul` and `run`; where not, both numbers, and of which operations the table that was read has
more or fewer: these FLOPs add up to the difference.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator, Mapping

from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.layers.layer import shipped, shipped_layer
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.verification.round_trip import RoundTrip, round_trip
from learncost.verification.sample import small_sizes

LENGTHS = {"B": 2, "M": 7, "N": 5}


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


def said(trip: RoundTrip) -> str:
    """What came of it, in a line."""
    ops = [f"{trip.apart:.0e}"]
    for book, (forward, step) in trip.written.items():
        read = trip.read[book]
        if read == (forward, step):
            ops.append(f"{book} equal")
            continue
        ops.append(f"{book} {forward:,} and {step:,}, read {read[0]:,} and {read[1]:,}")
        if book == "run":
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
            print(f"{name}: {said(round_trip(*case()))}", flush=True)
        except InputError as error:
            print(f"{name}: refused: {error}", flush=True)


if __name__ == "__main__":
    main()

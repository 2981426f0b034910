"""Every typed family beside the import of its class of transformers: the FLOPs of a step, by price book.

    python benchmarks/imported_families.py                   # all of them
    python benchmarks/imported_families.py --only llama,vit  # those whose names have one of these in them

Needs torch and transformers (extra `test`). A line for each, of a small model: under `matmul` forward, backward and
update are equal, or both numbers stand there; under `run` what its forward pass computes otherwise is named, by what
lines of one kind cost: how many FLOPs more (+) or fewer (-) the import has in products, in sums and in each word.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from module_parity import read_module

import learncost as lc
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.ir.errors import InputError
from learncost.ir.line import Op, Product, Sum
from learncost.ir.table import Table
from learncost.models.families import FAMILIES
from learncost.models.model import build, run_sizes

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_imported_families import BATCH, COUNTED_OTHERWISE, GENERIC, inputs_of, module_of


def line_of(family: str) -> str:
    """What is said of a family."""
    module, configuration = module_of(family)
    inputs, lengths = inputs_of(module, configuration)
    read = lc.layer(read_module(module, inputs).text)
    typed = lc.from_module(module)
    ledgers = lc.cost(typed, batch_size=BATCH, price_book="matmul", **lengths), lc.cost(read, price_book="matmul")
    findings = [_products(*ledgers)]
    model = build(replace(typed, learned=None))  # what learns is of no interest to a forward pass
    sizes = run_sizes(model, BATCH, lengths.get("seq_len"), lengths.get("target_len"))
    ours, theirs = _by_kind(model.table, sizes), _by_kind(read.table, read.sizes)
    apart = {name: theirs[name] - ours[name] for name in sorted(ours | theirs) if theirs[name] != ours[name]}
    total = f"run {sum(ours.values()):,}, read {sum(theirs.values()):,}"
    findings.append(
        f"{total}: {', '.join(f'{name} {count:+,}' for name, count in apart.items())}" if apart else "run equal"
    )
    if family in COUNTED_OTHERWISE:
        findings.append(f"its code runs {COUNTED_OTHERWISE[family](module.config):,} FLOPs of products more forward")
    return f"{family}: {'; '.join(findings)}"


def _products(typed: Any, read: Any) -> str:
    pairs = {
        name: (each[1].flops, read.macro_operations[name][1].flops) for name, each in typed.macro_operations.items()
    }
    apart = [f"{name} {ours:,}, read {theirs:,}" for name, (ours, theirs) in pairs.items() if ours != theirs]
    return f"matmul {', '.join(apart) or 'equal'}"


def _by_kind(table: Table, sizes: Mapping[str, int]) -> Counter[str]:
    """FLOPs of a forward pass by what a line is: a product, a sum, a word."""
    counts: Counter[str] = Counter()
    for row in price(table, sizes, book("run")).rows:
        line = row.source
        name = line.op if isinstance(line, Op) else "sums" if isinstance(line, Sum) else "products"
        assert isinstance(line, Op | Sum | Product)
        counts[name] += int(row.flops.at(sizes))
    return counts


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="parts of names, with commas between them")
    only = parser.parse_args().only.split(",")
    warnings.filterwarnings("ignore")
    for family in sorted(FAMILIES.keys() - GENERIC):
        if any(part in family for part in only):
            try:
                print(line_of(family), flush=True)
            except InputError as error:
                print(f"{family}: refused: {error}", flush=True)


if __name__ == "__main__":
    main()

"""What every family is good for, by doing it: costs, memory of every runner, emitted steps, trainings, verification.

    python benchmarks/support.py                     says which fields differ from those that are kept
    python benchmarks/support.py --write             keeps today's, in src/learncost/cli/lists/support.json
    python benchmarks/support.py --families t5,vit   only these
    python benchmarks/support.py --fields cost       only what begins so

Every field is done with a small model of the family, and what a step makes is compared with what NumPy makes of the
lines of its table. Two processes, some fifteen minutes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import cache, partial
from hashlib import sha256
from multiprocessing import Pool
from typing import Any

import numpy as np

from learncost.cli.lists.models import SUPPORT, stored_support
from learncost.engines.core import PreparedStep
from learncost.engines.emitted import EmittedProgram
from learncost.engines.inputs import random_data
from learncost.engines.numpy_engine import Training
from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.models.configuration import Configuration
from learncost.models.families import FAMILIES
from learncost.models.model import build, lengths_open
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.procedure import INFERENCE, LEARNING
from learncost.reports.cost import cost
from learncost.reports.memory.engines import memory_engines
from learncost.reports.memory.memory import Memory, memory
from learncost.reports.memory.planner import smallest
from learncost.reports.request import COMPILED
from learncost.training.engine import ENGINES, engine
from learncost.verification.verify import verify_table

BATCH_SIZE, LENGTHS = 2, (6, 5)
"""Lengths of what is read; of an encoder and a decoder where there are both."""

MANY = {"num_hidden_layers": 24, "first_k_dense_replace": 2}
"""Blocks of a larger model, of which patterns and groups come out whole."""

Field = Callable[[str], None]
"""It does what its name says with a small model of a family. Raises InputError, with the reason, where it cannot be."""

CLOSE = 1e-9
"""The largest difference of two programs of one table in fp64, relative to the largest weight."""


class WrongResultError(Exception):
    """A field is supported with a wrong result."""


def _cost(procedure: str, family: str) -> None:
    """Run `cost` with few blocks and with many: a refusal of one number alone does not count."""
    try:
        _priced(procedure, small(family))
    except InputError:
        _priced(procedure, small(family, **MANY))


def _priced(procedure: str, configuration: Configuration) -> None:
    answer = cost(configuration, procedure, "run", BATCH_SIZE, *lengths_open(configuration, *LENGTHS))
    if not answer.total.flops > 0:
        raise WrongResultError("it has no FLOPs")


def _memory(chosen_engine: str, family: str) -> None:
    configuration = small(family)
    answer = memory(configuration, "bp", BATCH_SIZE, *lengths_open(configuration, *LENGTHS), engine=chosen_engine)
    if not (isinstance(answer, Memory) and answer.peak > 0):
        raise WrongResultError("its peak is 0 bytes")


def _step(family: str) -> tuple[Training, dict[str, Any], PreparedStep]:
    """Return a training of the family's small model with AdamW, random data, and its prepared step."""
    configuration = small(family)
    training = Training(configuration, "bp", "adamw", learning_rate=0.01, dtype=np.float64, seed=1)
    data = random_data(training.model, BATCH_SIZE, *LENGTHS, seed=1)
    prepared = training.prepare(**data)
    return training, data, prepared


def _emit(backend: str, family: str) -> None:
    training, data, prepared = _step(family)
    table = without_gradients(prepared.table)
    table = planned(table, smallest(table, prepared.sizes, "fp64"), prepared.sizes)
    training.step(**data)
    _same(_RUN[backend](table, prepared.values, prepared.sizes), training.weights, table)


def _torch(table: Table, values: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    import torch

    tensors = {name: torch.as_tensor(np.array(array)) for name, array in values.items()}
    return EmittedProgram(table, sizes, "torch")(tensors)


def _jax(table: Table, values: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    import jax

    from learncost.training.jax_engine import exact

    with exact(np.dtype(np.float64)):
        arrays = {name: jax.numpy.asarray(array) for name, array in values.items()}
        program = EmittedProgram(table, sizes, "jax")
        program.function = jax.jit(program.function)
        return {name: np.asarray(array) for name, array in program(arrays).items()}


def _c(table: Table, values: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
    import torch

    from learncost.engines.in_place import InPlace

    changed = dict.fromkeys((*table.weights, *table.renewed))
    tensors = {name: torch.from_numpy(np.array(values[name], order="C")) for name in changed}
    InPlace(table, sizes, "fp64", tensors)(values)
    return {new: tensors[name] for name, new in table.renewed.items()}


_RUN: Mapping[str, Callable[[Table, Mapping[str, Any], Mapping[str, int]], dict[str, Any]]] = {
    "numpy": lambda table, values, sizes: EmittedProgram(table, sizes)(values),
    "torch": _torch,
    "jax": _jax,
    "c": _c,
}


def _same(results: Mapping[str, Any], expected: Mapping[str, Any], table: Table) -> None:
    """Raise `WrongResultError` if new weights differ from NumPy's."""
    for name, array in expected.items():
        if name not in table.renewed:
            continue
        error = np.abs(np.asarray(results[table.renewed[name]]) - array).max()
        if not error <= CLOSE * max(1.0, np.abs(array).max()):
            raise WrongResultError(f"{name} differs by {error:.1e}")


def _verify(family: str) -> None:
    model = build(small(family))
    for check in verify_table(model.table, family):
        if check.passed is False:
            raise WrongResultError(f"{check.compared}: {check.found}")


def _train(name: str, family: str) -> None:
    training, data, prepared = _step(family)
    options = Options(engine=name, optimizer="adamw", dtype="fp64", weight_decay=0.0, beta_2=0.999)
    trained = engine(training.configuration, options)
    trained.load(training.weights, training.state, 0)
    loss, expected_loss = trained.step(data, 0.01), training.step(**data)
    if not abs(loss - expected_loss) <= CLOSE * abs(expected_loss):
        raise WrongResultError(f"the loss is {loss}, not {expected_loss}")
    renewed = prepared.table.renewed
    new_weights = {renewed[name]: array for name, array in trained.weights.items() if name in renewed}
    _same(new_weights, training.weights, prepared.table)


@cache
def fields() -> Mapping[str, Field]:
    """Return the tests of every family by name."""
    by_name: dict[str, Field] = {}
    by_name |= {f"cost {name}": partial(_cost, name) for name in (*LEARNING, *INFERENCE)}
    # Engine compiled takes the modules of a file alone.
    by_name |= {f"memory {name}": partial(_memory, name) for name in memory_engines() if name != COMPILED}
    by_name |= {f"emit {name}": partial(_emit, name) for name in _RUN}
    by_name |= {f"train {name}": partial(_train, name) for name in ENGINES}
    return by_name | {"verify": _verify}


def reason(family: str, field: str) -> str:
    """Return why a family does not support a field; "" if it does. A wrong result begins with `wrong`."""
    try:
        fields()[field](family)
    except InputError as error:
        return error.written
    except WrongResultError as error:
        return f"wrong: {error}"
    return ""


def checksum(family: str) -> str:
    """Return the checksum of the table of the family's small model."""
    table = build(small(family)).table
    return sha256("\n".join((str(table), *map(str, table.inputs))).encode()).hexdigest()[:12]


def _family(name: str, begins: str) -> tuple[str, dict[str, Any]]:
    reasons = dict(stored_support()[name]["reasons"]) if begins else {}
    for field in fields():
        if not field.startswith(begins):
            continue
        try:
            reasons[field] = reason(name, field)
        except Exception as error:  # every field is to be answered for, whatever another one did
            reasons[field] = f"wrong: {type(error).__name__}: {error}"
    return name, {"table": checksum(name), "reasons": reasons}


def main() -> int:
    """What the flags ask for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what is found")
    parser.add_argument("--families", default=",".join(FAMILIES), help="with commas between")
    parser.add_argument("--fields", default="", help="how the fields begin that are done; the others stay")
    given = parser.parse_args()
    with Pool(2, maxtasksperchild=4) as pool:
        found = {}
        for name, one in pool.imap_unordered(
            partial(_family, begins=given.fields), given.families.split(","), chunksize=1
        ):
            found[name] = one
            wrong = [f"{field}: {text}" for field, text in one["reasons"].items() if text]
            print(f"{name}: {len(fields()) - len(wrong)} of {len(fields())}", *wrong, sep="\n  ", flush=True)
    before = stored_support() if SUPPORT.exists() else {}
    if given.write:
        merged = {name: found.get(name, before.get(name)) for name in FAMILIES}
        SUPPORT.write_text(json.dumps(merged, indent=1) + "\n", encoding="utf-8")
    wrong = any(text.startswith("wrong") for one in found.values() for text in one["reasons"].values())
    return int(wrong or (not given.write and any(before.get(name) != one for name, one in found.items())))


if __name__ == "__main__":
    sys.exit(main())

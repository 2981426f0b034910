"""Verification of learning procedures on a model: counts, and identities that must hold between procedures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from learncost.ir.errors import InputError
from learncost.models.model import Model
from learncost.ops.optimizers import OPTIMIZERS
from learncost.procedures.procedure import LEARNING
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import step, trained_by
from learncost.verification.check import sound_arrays, survived, tally, values_of
from learncost.verification.known import known
from learncost.verification.report import Check
from learncost.verification.sample import small_sizes
from learncost.verification.stepped import arrays_of, sizes_of


def verify_procedures(model: Model, name: str, procedures: Iterable[str] = LEARNING) -> Iterator[Check]:
    """Tallies of every step; procedures that are to give the same weights, such as recomputation, do bit for bit; and
    what else is known of each."""
    results: dict[str, Mapping[str, Any]] = {}
    for procedure in procedures:
        chosen = find_procedure(procedure)
        if chosen.part and procedures is LEARNING:
            continue  # another procedure on a model of which a part is frozen
        if not model.learns and chosen.compares:
            yield Check(f"{name}, {procedure}", "a step", "the model has no output with targets to learn from", None)
            continue
        try:
            step(model, procedure, "sgd")
        except InputError as refusal:  # such as weights that all iterations share, for pepita
            yield Check(f"{name}, {procedure}", "a step", str(refusal), None)
            continue
        for optimizer in {each.op: name for name, each in reversed(OPTIMIZERS.items())}.values():
            table = step(model, procedure, optimizer)
            sizes = small_sizes(table)
            arrays = sound_arrays(table, sizes)
            yield tally(f"{name}, {procedure} with {optimizer}", table, arrays, sizes)
        results[procedure] = _new_weights(trained_by(model, procedure), procedure)
        yield from survived(f"{name}, {procedure}", known(model, chosen, f"{name}, {procedure}"))
    for first, weights in results.items():
        second = find_procedure(first).equals
        if second:
            expected = results[second] if second in results else _new_weights(model, second)
            yield _bit_for_bit(name, first, second, weights, expected)


def _new_weights(model: Model, procedure: str) -> Mapping[str, Any]:
    table = step(model, procedure, "sgd")
    sizes = sizes_of(model, table)
    values = values_of(table, arrays_of(model, table, sizes), sizes)
    return {key: values[key] for key in table.renewed.values()}


def _bit_for_bit(name: str, first: str, second: str, weights: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    different = [key for key in expected if not np.array_equal(weights[key], expected[key])]
    text = f"{len(expected)} updated weights are the same" if not different else f"{different[0]} differs"
    same = bool(expected) and weights.keys() >= expected.keys() and not different
    return Check(name, f"{first} with {second}, bit for bit", text, same)

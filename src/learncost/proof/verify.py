"""Verify: every layer, word, model and procedure held to differences, tallies and foreign implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from learncost.books.book import price
from learncost.equation.errors import InputError
from learncost.equation.table import Product, Table, Term, check_derived, walk
from learncost.layers.derive import Derived, derive
from learncost.layers.layer import Layer, shipped, shipped_layer
from learncost.models.argument import GENERIC, layer_or_model
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build
from learncost.models.small import small
from learncost.procedures.procedure import LEARNING, step
from learncost.proof.check import (
    LARGER,
    Meaning,
    Values,
    checks,
    error,
    seeds_of,
    sound_arrays,
    survived,
    tally,
    values_of,
    worst,
)
from learncost.proof.plain import under_where
from learncost.proof.references import LAYERS, of_word
from learncost.proof.report import Check, Report
from learncost.proof.sample import small_sizes
from learncost.proof.tangents import along
from learncost.proof.words import consistent, word_layer
from learncost.vocabulary import Entry, entries
from learncost.vocabulary.optimizers import OPTIMIZERS


def verify(model: str | Model | Configuration | Layer | Table | None = None) -> Report:
    """Prove every layer and word that comes with the package; or one model, layer or table.

    Parameters
    ----------
    model
        A preset, a path or a generic model's name; a layer's name or its file in the notation; or a model,
        configuration, layer or table itself. None takes all layers and all words. Only the structure counts: it runs at
        small sizes that are all different.

    Returns
    -------
    Report
        The comparisons; `passed` is true if none failed. It prints as a table.

    Raises
    ------
    InputError
        For an unknown name.

    Examples
    --------
    >>> report = lc.verify("residual")
    >>> report.passed
    True
    """
    return Report(
        "verification of every word and every layer" if model is None else f"verification of {_title(model)}",
        tuple(_checks(model)),
    )


def _title(model: object) -> str:
    if isinstance(model, Model):
        return model.configuration.name
    if isinstance(model, str):
        return model
    return str(getattr(model, "name", "") or getattr(model, "title", "") or model)


def _checks(model: str | Model | Configuration | Layer | Table | None) -> Iterator[Check]:
    if model is None:
        yield from all_words()
        yield from all_layers()
        return
    if isinstance(model, str):
        model = layer_or_model(model)
    if isinstance(model, Layer):
        yield from verify_table(model.table, model.name, LAYERS.get(model.name))
    elif isinstance(model, Table):
        yield from verify_table(model, model.title or "table")
    else:
        yield from verify_model(model if isinstance(model, Model) else build(_configured(model)))


def _configured(model: str | Configuration | Layer) -> Configuration:
    if isinstance(model, Configuration):
        return model
    return small(model) if model in GENERIC else configure(model, {})


def all_words() -> Iterator[Check]:
    """Every word of the vocabulary that computes something."""
    for entry in entries():
        if entry.kind != "constant":
            yield from verify_word(entry)


def verify_word(entry: Entry) -> Iterator[Check]:
    """A word as a layer of one line: as such, of large numbers too, and where it can be, under a `where`.

    Of large numbers nothing overflows: an exponential is taken of what is shifted by the maximum.
    """
    name, meaning = entry.name, of_word(entry.name)
    yield consistent(entry)
    yield from verify_table(
        word_layer(entry).table, name, meaning, required=entry.chooses != "some", smallest=5, larger=1000
    )
    if meaning is not None and entry.outside is not None and not entry.inline and not entry.chooses:
        masked = word_layer(entry, masked=True).table
        yield from verify_table(
            masked, f"{name} under a where", lambda x, *more: under_where(meaning, x, *more), smallest=5, larger=1000
        )


def all_layers() -> Iterator[Check]:
    """Every layer that comes with the package."""
    for name in shipped():
        yield from verify_table(shipped_layer(name).table, name, LAYERS.get(name), required=True)


def verify_table(
    table: Table,
    name: str,
    meaning: Meaning | None = None,
    required: bool = False,
    smallest: int = 2,
    larger: float = LARGER,
) -> Iterator[Check]:
    """All comparisons for one table; a `required` foreign implementation that is missing is a failure."""
    check_derived(table.lines, "nothing proves it")
    if meaning is None and required:
        yield Check(name, "values with a foreign implementation", "there is none in learncost.proof.references", False)
    yield from survived(name, checks(table, name, meaning, smallest=smallest, larger=larger))
    yield from survived(name, along(table, name, smallest))
    yield from survived(name, with_torch(table, name))
    yield from survived(name, with_jax(table, name))


def with_torch(table: Table, name: str) -> Iterator[Check]:
    """Where PyTorch is installed: values and gradients with its autograd, FLOPs with its counter of matrix products."""
    if find_spec("torch") is None:
        yield Check(name, "values, gradients and FLOPs with torch", "torch is not installed", None)
        return
    from learncost.proof import torch_side

    yield _autograd(table, name, "torch's autograd", torch_side.autograd)
    # The gradients of a product of three factors may be taken in several orders, and torch chooses its own.
    sizes, derived = small_sizes(table), derive(table)
    steps = [table] if _has_long_products(table) else [table, derived.step]
    passes = (False, True)[: len(steps)]
    counted = [torch_side.flops(table, derived.gradients, sizes, backward) for backward in passes]
    priced = [price(table, sizes, "matmul").flops for table in steps]
    text = f"forward {counted[0]} counted, {priced[0]} priced"
    text += f"; and backward {counted[1]}, {priced[1]}" if len(steps) > 1 else ""
    yield Check(name, "FLOPs of matrix products with FlopCounterMode on meta", text, counted == priced)


def with_jax(table: Table, name: str) -> Iterator[Check]:
    """Where JAX is installed: values and gradients with its differentiation."""
    if find_spec("jax") is None:
        yield Check(name, "values and gradients with jax's grad", "jax is not installed", None)
        return
    from learncost.proof import jax_side

    yield _autograd(table, name, "jax's grad", jax_side.autograd)


def _autograd(table: Table, name: str, whose: str, autograd: Callable[..., tuple[dict[str, Any], ...]]) -> Check:
    """Values of the outputs and gradients of inputs and weights with those that a library differentiates itself."""
    sizes = small_sizes(table)
    arrays, seeds = sound_arrays(table, sizes), seeds_of(table, sizes)
    derived = derive(table)
    values = values_of(derived.step, {**arrays, **seeds}, sizes)
    outputs, gradients = autograd(table, arrays, seeds, derived.gradients, sizes)
    errors = {key: error(values[key], array) for key, array in outputs.items()}
    errors |= {f"d{key}": error(values[derived.gradients[key]], array) for key, array in gradients.items()}
    text, passed = worst(errors)
    if not passed:
        moved = _moved_by_rounding(derived, values, {**arrays, **seeds}, sizes)
        passed = moved <= ILL_CONDITIONED and max(errors.values()) <= ROUNDINGS * moved
        text += f"; rounding what is given moves gradients by {moved:.1e}" if passed else ""
    return Check(name, f"values and gradients with {whose}", text, passed)


ROUNDINGS = 8.0
"""How many times as much as one rounding of what is given two orders of the same sums may differ."""

ILL_CONDITIONED = 1e-7
"""Where one rounding moves a gradient by more, a comparison of numbers says nothing."""


def _moved_by_rounding(derived: Derived, values: Values, arrays: Values, sizes: Mapping[str, int]) -> float:
    """How far a gradient moves where every number that is given moves by a unit in its last place, up or down."""
    generator = np.random.default_rng(0)
    unit = np.finfo(np.float64).eps
    moved = {
        key: array * (1 + unit * generator.choice((-1.0, 0.0, 1.0), array.shape)) if array.dtype.kind == "f" else array
        for key, array in arrays.items()
    }
    others = values_of(derived.step, moved, sizes)
    return max(error(others[gradient], values[gradient]) for gradient in derived.gradients.values())


def _has_long_products(table: Table) -> bool:
    lines = [line for line, _ in walk(table.lines) if isinstance(line, Product)]
    return any(sum(isinstance(term, Term) for term in line.right) > 2 for line in lines)


# Models and learning procedures.


def verify_model(model: Model) -> Iterator[Check]:
    """A model's table, then a step of every procedure with every optimizer."""
    name = model.configuration.name
    yield from verify_table(model.table, name)
    yield from survived(name, verify_procedures(model, name))


def verify_procedures(model: Model, name: str) -> Iterator[Check]:
    """Tallies of every step; procedures that are to give the same weights, such as recomputation, do bit for bit."""
    results: dict[str, Mapping[str, Any]] = {}
    for procedure, procedure_of in LEARNING.items():
        if procedure_of.part:  # another procedure on a model of which a part is frozen
            continue
        if not model.learns and procedure_of.compares:
            yield Check(f"{name}, {procedure}", "a step", "the model has no output with targets to learn from", None)
            continue
        try:
            step(model, procedure, "sgd")
        except InputError as refusal:  # such as weights that all turns share, for pepita
            yield Check(f"{name}, {procedure}", "a step", str(refusal), None)
            continue
        for optimizer in OPTIMIZERS:
            table = step(model, procedure, optimizer)
            sizes = small_sizes(table)
            arrays = sound_arrays(table, sizes)
            yield tally(f"{name}, {procedure} with {optimizer}", table, arrays, sizes)
        table = step(model, procedure, "sgd")
        sizes = _shared_sizes(model, table)
        values = values_of(table, _shared_arrays(model, table, sizes), sizes)
        results[procedure] = {key: values[key] for key in _new_weights(table)}
    for first in results:
        if (second := LEARNING[first].equals) in results:
            yield _bit_for_bit(name, first, second, results[first], results[second])


def _new_weights(table: Table) -> Iterable[str]:
    return table.renewed.values()


def _shared_sizes(model: Model, table: Table) -> dict[str, int]:
    """The same sizes for every procedure: those of the model's own table."""
    return small_sizes(table) | small_sizes(model.table)


def _shared_arrays(model: Model, table: Table, sizes: Mapping[str, int]) -> dict[str, Any]:
    """The same arrays for every procedure: those that the model is given, then one for each further name.

    What is read for a weight is that weight.
    """
    arrays = sound_arrays(model.table, sizes)
    for name in table.inputs:
        if name not in arrays:
            shared, stands_for = Table((), table.values, (name,)), table.values[name].of
            fixed = table.values[name].role == "projection" and stands_for in table.weights
            fixed = fixed and table.values[name].axes == table.values[stands_for].axes  # not one for every block
            array_found = {name: arrays[stands_for]} if fixed else sound_arrays(shared, sizes, seed=sum(map(ord, name)))
            arrays |= array_found
    return arrays


def _bit_for_bit(name: str, first: str, second: str, weights: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    different = [key for key in expected if not np.array_equal(weights[key], expected[key])]
    text = f"{len(expected)} updated weights are the same" if not different else f"{different[0]} differs"
    same = bool(expected) and weights.keys() == expected.keys() and not different
    return Check(name, f"{first} with {second}, bit for bit", text, same)

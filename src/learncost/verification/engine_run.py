"""Comparison of the operations that engines execute with their price, for a model's step or every emitted layer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.autodiff.derive import derive
from learncost.backends.c import source
from learncost.engines.compiler import bind, compiled, compiler, products
from learncost.engines.core import Prepared
from learncost.engines.inputs import random_data
from learncost.engines.numpy_engine import Training
from learncost.ir.errors import InputError, named_one, to_install
from learncost.ir.line import Line
from learncost.ir.loop import map_lines
from learncost.ir.table import Table
from learncost.layers.layer import Layer
from learncost.layers.names import written_once
from learncost.models.argument import layer_or_model
from learncost.models.configuration import configure
from learncost.models.model import Model, build
from learncost.passes.plan import planned
from learncost.procedures.optimizer import DEFAULT, without_gradients
from learncost.reports.memory.planner import smallest
from learncost.verification import engine_in_place as in_place
from learncost.verification import engine_operators as operators
from learncost.verification.check import survived
from learncost.verification.engine import ExecutedLines
from learncost.verification.report import Check, VerificationReport

if TYPE_CHECKING:
    from learncost.engines.in_place import InPlace

BATCH_SIZE, SEQ_LEN = 2, 80
"""So that kernels that take some queries at a time have whole blocks and a part of one."""

ENGINES = ("torch", "jax")


def verify_engine(
    model: str | Layer | None,
    engine: str,
    *,
    plan: str | None = None,
    procedure: str = "bp",
    optimizer: str = DEFAULT,
    batch_size: int = BATCH_SIZE,
    seq_len: int = SEQ_LEN,
    sizes: Mapping[str, Any] | None = None,
) -> VerificationReport:
    """Run one step and compare its products and written arrays with the price of the step's table.

    model   a model as `cost` takes it, or a layer or its file; None: every layer
    plan    the plan of torch, as for `--plan`; None: the planner's choice
    sizes   sizes of the model, by any of their names
    Raises `InputError`, also where the engine's library is not installed.
    """
    named_one("engine that can be watched", engine, dict.fromkeys(ENGINES))
    if model is None:
        return VerificationReport(f"verification of every layer on {engine}", tuple(operators.verify_layers(engine)))
    _installed(engine)
    subject_found = layer_or_model(model)
    if isinstance(subject_found, Layer):
        checks = survived(
            subject_found.name, operators.verify_layer(derive(subject_found.table).step, subject_found.name, engine)
        )
        return VerificationReport(f"verification of {subject_found.name} on {engine}", tuple(checks))
    for name, length in (("batch-size", batch_size), ("seq-len", seq_len)):
        if length < 2:  # a single token has none after it
            raise InputError(f"{name} must be at least 2, not {length}")
    if engine == "jax" and plan:
        raise InputError("--engine jax does not support --plan")
    configuration = configure(model, dict(sizes or {}))
    built = build(configuration)
    if not built.learns:
        raise InputError(f"{configuration.name} {built.without_loss}")
    _fits(built)
    training = Training(configuration, procedure, optimizer, dtype=np.float64)
    prepared = training.prepare(**random_data(training.model, batch_size, seq_len, seq_len))
    prepared = replace(prepared, table=without_gradients(prepared.table))  # as the engines have it
    if engine == "torch":
        plan = smallest(prepared.table, prepared.sizes, "fp64") if plan is None else plan
    subject = f"{configuration.name}, {procedure} with {optimizer} on {engine}"
    return VerificationReport(f"verification of {subject}", tuple(_step(prepared, engine, plan or "", subject)))


def _fits(model: Model) -> None:
    """Refuse a model whose weights and gradients in fp64 exceed this machine's memory."""
    needed = 2 * 8 * int(model.parameters.at(model.sizes))
    if hasattr(os, "sysconf") and needed > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"):
        raise InputError(
            f"verify runs the step, and {model.configuration.name} needs over {needed / 1e9:,.0f} GB, more than this "
            "machine has: give small sizes, such as --num-hidden-layers 2 --hidden-size 64"
        )


def _installed(engine: str) -> None:
    from importlib.util import find_spec

    if find_spec(engine) is None:
        raise InputError(f"--engine {engine} needs {engine}: {to_install(engine)}")


def _step(prepared: Prepared, engine: str, plan: str, subject: str) -> Iterator[Check]:
    table = planned(prepared.table, plan, prepared.sizes)
    subject += f" under {plan}" if plan else ""
    if engine == "torch":
        try:
            yield from _in_place(table, prepared, subject)
            return
        except InputError as reason:
            subject += f", as {reason} on PyTorch's operators" if compiler() else ", on PyTorch's operators"
    table = replace(table, lines=map_lines(table.lines, _without_kernel))  # operators run whole arrays
    lines = ExecutedLines(table, prepared.sizes)
    _, written, products = operators.run(table, engine, prepared.values, prepared.sizes)
    operators.note(lines, written, products)
    yield from lines.checks(subject)


def _without_kernel(line: Line) -> tuple[Line]:
    return (replace(line, meta=replace(line.meta, kernel=None)),)


def _in_place(table: Table, prepared: Prepared, subject: str) -> Iterator[Check]:
    """Run the step in place and record every kernel and product."""
    import torch

    from learncost.engines.in_place import InPlace

    class Watched(InPlace):
        """The step with its kernels wrapped."""

        def wrap(self, wrapped: Callable[[str, Any], Any]) -> None:
            for name, call in list(vars(self._kernels).items()):
                setattr(self._kernels, name, wrapped(name, call))

    owned = dict.fromkeys((*table.weights, *table.renewed))
    tensors = {name: torch.from_numpy(np.array(prepared.values[name], order="C")) for name in owned}
    step = Watched(table, prepared.sizes, "fp64", tensors)
    once = written_once(table)
    lines = ExecutedLines(once, prepared.sizes)
    watch = in_place.StatementWatch(step.program)
    step.wrap(watch.kernel)
    _watched(step, watch, prepared.values)
    in_place.note(lines, once, step.program, prepared.sizes, watch.events)
    yield from lines.checks(subject)


def _watched(step: InPlace, watch: in_place.StatementWatch, values: Mapping[str, Any]) -> None:
    """Run one recorded step, and restore the products of the kernels' library."""
    library = compiled(source(step.program.functions))
    noted = in_place.counting(watch, products())
    if not noted:
        raise InputError("this PyTorch hands out no products, and those of the kernels' own loops cannot be seen")
    bind(library, {name: in_place.address(product) for name, product in noted.items()})
    try:
        with watch.watching():
            step(values)
    finally:
        bind(library)

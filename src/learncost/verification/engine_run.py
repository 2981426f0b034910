"""Comparison of the operations that engines execute with their price, for a model's step or every emitted layer."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.autodiff.derive import derive
from learncost.backends import ProgramText
from learncost.backends.c import source
from learncost.engines.compiler import bind, compiled, compiler, products
from learncost.engines.core import PreparedStep
from learncost.engines.emitted import EmittedProgram
from learncost.engines.inputs import random_data
from learncost.engines.numpy_engine import Training
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError, named_one, to_install
from learncost.ir.loop import map_lines
from learncost.ir.table import Table
from learncost.layers.layer import Layer, shipped, shipped_layer
from learncost.layers.names import written_once
from learncost.models.argument import layer_or_model
from learncost.models.configuration import configure
from learncost.models.model import Model, build
from learncost.passes.plan import planned
from learncost.procedures.optimizer import DEFAULT, without_gradients
from learncost.reports.memory.planner import smallest
from learncost.timing.traced import EMITTED
from learncost.verification import engine_in_place as in_place
from learncost.verification.check import error, failures_as_checks, finite_arrays, seeds_of, values_of, worst
from learncost.verification.engine_in_place import ExecutedLines
from learncost.verification.report import Check, VerificationReport
from learncost.verification.sample import small_sizes

if TYPE_CHECKING:
    from learncost.engines.in_place import InPlace


PRODUCTS = ("mm", "bmm", "addmm", "baddbmm")
Values = dict[str, Any]
Products = list[tuple[int, int, bool]]
"""Every product that ran: the line of the text that took it, its MACCs, and whether these were added at an index."""


def run(
    table: Table, backend: str, arrays: Mapping[str, Any], sizes: Mapping[str, int]
) -> tuple[Values, ProgramText, Products]:
    """Return the results of a table's emitted program by name, the program, and its products.

    JAX traces the program for its products and compiles it for its results. If products are added at an index,
    as the gradients of experts are, every element that is added is a MACC.
    """
    step, names = EmittedProgram(table, sizes, backend), (*table.inputs, *table.weights)
    results, products = {"torch": _torch, "jax": _jax}[backend](step, {name: arrays[name] for name in names})
    return {name: np.asarray(value) for name, value in results.items()}, step.program, products


def note(lines: ExecutedLines, written: ProgramText, products: Products) -> None:
    """Add products to the executed operations of the lines of their statements.

    Products with a vector, which have no price, are omitted.
    """
    statements = _statements(lines, written)
    sums = {number for number, _, added in products if not added}
    for number, maccs, added in products:
        at = statements.get(number)
        if at is not None and lines.maccs(at) and not (added and number in sums):  # else what a product made
            lines.ran[at].products += 1
            lines.ran[at].maccs += maccs


def _statements(lines: ExecutedLines, written: ProgramText) -> dict[int, int]:
    """Return the table's line for every line of the text that assigns one of its values.

    Values of one name are assigned in the same order in both.
    """
    makers: dict[str, list[int]] = {}
    for at, line in enumerate(lines.lines):
        for term in line.left:
            makers.setdefault(written.names.get(term.name, ""), []).append(at)
    line_of: dict[int, int] = {}
    assignments = [node for node in ast.walk(ast.parse(written.text)) if isinstance(node, ast.Assign)]
    for node in sorted(assignments, key=lambda node: node.lineno):
        targets = [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
        candidates = next((makers[name] for name in targets if name in makers), None)
        if candidates:
            at = candidates[0] if len(candidates) == 1 else candidates.pop(0)
            line_of.update(dict.fromkeys(range(node.lineno, (node.end_lineno or node.lineno) + 1), at))
    return line_of


def _torch(step: Callable[[Mapping[str, Any]], Values], arrays: Mapping[str, Any]) -> tuple[Values, Products]:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    products: Products = []

    class OperatorsMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            name = function.overloadpacket.__name__
            if name in PRODUCTS:
                left, right = arguments[-2:]
                products.append((_line(), prod(left.shape) * right.shape[-1], False))
            elif name in ("index_add_", "index_add"):
                products.append((_line(), arguments[3].numel(), True))
            elif name in ("index_put_", "index_put", "_index_put_impl_"):
                products.append((_line(), arguments[2].numel(), True))
            return function(*arguments, **(keywords or {}))

    tensors = {name: torch.as_tensor(np.array(array)) for name, array in arrays.items()}
    with torch.no_grad(), OperatorsMode():  # type: ignore[no-untyped-call]
        return step(tensors), products


def _line() -> int:
    """Return the number of the emitted program's running line."""
    frame = sys._getframe(2)
    while frame.f_code.co_filename != EMITTED:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_lineno


def _jax(step: Callable[[Mapping[str, Any]], Values], arrays: Mapping[str, Any]) -> tuple[Values, Products]:
    import jax

    products: Products = []

    def visit(equations: Iterable[Any], outer: int) -> None:
        for equation in equations:
            lines_of_file = (
                frame.line_num for frame in equation.source_info.traceback.frames if frame.file_name == EMITTED
            )
            line = outer or next(lines_of_file)
            if equation.primitive.name == "dot_general":
                left, right = (variable.aval.shape for variable in equation.invars)
                (_, summed), (_, batch) = equation.params["dimension_numbers"]
                columns = prod(size for axis, size in enumerate(right) if axis not in (*summed, *batch))
                products.append((line, prod(left) * columns, False))
            elif equation.primitive.name == "scatter-add":
                products.append((line, prod(equation.invars[2].aval.shape), True))
            for value in equation.params.values():
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    visit(inner.eqns, line)

    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        visit(jax.make_jaxpr(step)(arrays).jaxpr.eqns, 0)
        return jax.device_get(jax.jit(step)(arrays)), products


def verify_layers(backend: str) -> Iterator[Check]:
    """Verify the emitted forward and backward passes and weight updates of every layer of the package."""
    if find_spec(backend) is None:
        yield Check("every layer", f"as emitted for {backend}", f"{backend} is not installed", None)
        return
    for name in shipped():
        yield from failures_as_checks(name, verify_layer(derive(shipped_layer(name).table).step, name, backend))


def verify_layer(table: Table, name: str, backend: str) -> Iterator[Check]:
    """Compare a layer's values at small sizes with the interpreter's, and its products with their prices."""
    sizes = small_sizes(table)
    arrays = {**seeds_of(table, sizes), **finite_arrays(table, sizes)}
    results, written, products = run(table, backend, arrays, sizes)
    expected = values_of(table, arrays, sizes)
    text, passed = worst({key: error(array, expected[key]) for key, array in results.items()})
    yield Check(name, f"values as emitted for {backend} with the interpreter's", text, passed)
    lines = ExecutedLines(table, sizes)
    note(lines, written, products)
    yield from lines.checks(name)


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
        return VerificationReport(f"verification of every layer on {engine}", tuple(verify_layers(engine)))
    if find_spec(engine) is None:
        raise InputError(f"--engine {engine} needs {engine}: {to_install(engine)}")
    subject_found = layer_or_model(model)
    if isinstance(subject_found, Layer):
        checks = failures_as_checks(
            subject_found.name, verify_layer(derive(subject_found.table).step, subject_found.name, engine)
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


def _step(prepared: PreparedStep, engine: str, plan: str, subject: str) -> Iterator[Check]:
    table = planned(prepared.table, plan, prepared.sizes)
    subject += f" under {plan}" if plan else ""
    if engine == "torch":
        try:
            yield from _in_place(table, prepared, subject)
            return
        except InputError as reason:
            subject += f", as {reason} on PyTorch's operators" if compiler() else ", on PyTorch's operators"
    whole = map_lines(table.lines, lambda line: (replace(line, meta=replace(line.meta, kernel=None)),))
    table = replace(table, lines=whole)  # operators run whole arrays
    lines = ExecutedLines(table, prepared.sizes)
    _, written, products = run(table, engine, prepared.values, prepared.sizes)
    note(lines, written, products)
    yield from lines.checks(subject)


def _in_place(table: Table, prepared: PreparedStep, subject: str) -> Iterator[Check]:
    """Run the step in place and record every kernel and product."""
    import torch

    from learncost.engines.in_place import InPlace

    class InstrumentedStep(InPlace):
        """The step with its kernels wrapped."""

        def wrap(self, wrapped: Callable[[str, Any], Any]) -> None:
            for name, call in list(vars(self._kernels).items()):
                setattr(self._kernels, name, wrapped(name, call))

    owned = dict.fromkeys((*table.weights, *table.renewed))
    tensors = {name: torch.from_numpy(np.array(prepared.values[name], order="C")) for name in owned}
    step = InstrumentedStep(table, prepared.sizes, "fp64", tensors)
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
        raise InputError("this PyTorch does not expose its matrix products, so that executed ones cannot be counted")
    bind(library, {name: in_place.address(product) for name, product in noted.items()})
    try:
        with watch.watching():
            step(values)
    finally:
        bind(library)

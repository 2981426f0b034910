"""The observed execution of emitted programs: products that PyTorch dispatches or JAX traces, and results."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.util import find_spec
from math import prod
from typing import Any

import numpy as np

from learncost.autodiff.derive import derive
from learncost.backends import ProgramText, fill, program, unfold
from learncost.ir.table import Table
from learncost.layers.layer import shipped, shipped_layer
from learncost.verification.check import error, seeds_of, sound_arrays, survived, values_of, worst
from learncost.verification.engine import ExecutedLines
from learncost.verification.report import Check
from learncost.verification.sample import small_sizes

FILE = "<emitted by learncost>"
BACKENDS = ("torch", "jax")
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
    written = program(table, backend, sizes=sizes)
    namespace: dict[str, Any] = {"__name__": "learncost_emitted"}
    exec(compile(written.text, FILE, "exec"), namespace)
    names = (*table.inputs, *table.weights)
    more = {size_name: sizes[name] for name, size_name in written.sizes.items()}

    def step(values: Mapping[str, Any]) -> Values:
        result = namespace[written.function](*(fill(tree, values, namespace) for tree in written.parameters), **more)
        results = result if len(written.results) > 1 else (result,)
        trees = zip(written.results, results, strict=True)
        return {name: value for tree, result in trees for name, value in unfold(tree, result)}

    results, products = {"torch": _torch, "jax": _jax}[backend](step, {name: arrays[name] for name in names})
    return {name: np.asarray(value) for name, value in results.items()}, written, products


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
    while frame.f_code.co_filename != FILE:
        assert frame.f_back is not None
        frame = frame.f_back
    return frame.f_lineno


def _jax(step: Callable[[Mapping[str, Any]], Values], arrays: Mapping[str, Any]) -> tuple[Values, Products]:
    import jax

    products: Products = []

    def visit(equations: Iterable[Any], outer: int) -> None:
        for equation in equations:
            lines_of_file = (
                frame.line_num for frame in equation.source_info.traceback.frames if frame.file_name == FILE
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
        yield from survived(name, verify_layer(derive(shipped_layer(name).table).step, name, backend))


def verify_layer(table: Table, name: str, backend: str) -> Iterator[Check]:
    """Compare a layer's values at small sizes with the interpreter's, and its products with their prices."""
    sizes = small_sizes(table)
    arrays = {**seeds_of(table, sizes), **sound_arrays(table, sizes)}
    results, written, products = run(table, backend, arrays, sizes)
    expected = values_of(table, arrays, sizes)
    text, passed = worst({key: error(array, expected[key]) for key, array in results.items()})
    yield Check(name, f"values as emitted for {backend} with the interpreter's", text, passed)
    lines = ExecutedLines(table, sizes)
    note(lines, written, products)
    yield from lines.checks(name)

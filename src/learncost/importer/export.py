"""Export a module: its graph, the letters of open sizes, its parameters, inputs and outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import sympy
import torch

from learncost.importer.as_run import SELECTING
from learncost.importer.examples import arguments, distinct_examples, dynamic, flattened, parts_of
from learncost.importer.functions import check_hooks
from learncost.importer.registered import Unused
from learncost.importer.sized import constants, exact, interval, open_sizes
from learncost.importer.traced import traced
from learncost.importer.wrappers import readable
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError
from learncost.ir.stated import LARGEST, Limit


@dataclass
class Letters:
    """The letters of open sizes.

    symbols     the letters, by the graph's symbols
    where_open  the input dimension of a letter
    fixed       letters for which the module allows only one size
    same_sizes  symbols that are the same size, such as those of one letter, by the first of them
    limits      the allowed sizes of a letter, if the code behaves differently for others
    """

    symbols: dict[str, str] = field(default_factory=dict)
    where_open: dict[str, tuple[str, int]] = field(default_factory=dict)
    fixed: dict[str, int] = field(default_factory=dict)
    same_sizes: dict[Any, Any] = field(default_factory=dict)
    limits: dict[str, Limit] = field(default_factory=dict)


@dataclass
class ModuleParameters:
    """The parameters of a module.

    paths   their paths, by placeholder of the graph
    same    the first path of a tied parameter, by each other path
    learns  whether it is trainable, by path
    counts  the number of elements, by path; a complex element counts twice
    shapes  of parameters and buffers, by path
    """

    paths: dict[str, str]
    same: dict[str, str] = field(default_factory=dict)
    learns: dict[str, bool] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass
class Exported:
    """An exported graph with its inputs and outputs.

    inputs          the inputs' names, by placeholder
    outputs         the names of the results in order; None for those that the user's module does not return
    selecting       the nodes by whose values a traced run selected positions, returned behind its results
    changed         the buffers, parameters and inputs that are changed in place, by the node of the new value
    wants_gradient  whether a float input requires a gradient, by placeholder
    examples        the example inputs of whole numbers, by placeholder
    unused          dead products that the module computes, which the graph does not have
    """

    program: Any
    weights: ModuleParameters
    inputs: Mapping[str, str]
    outputs: Sequence[str | None]
    selecting: Sequence[str]
    changed: Sequence[tuple[str, str]]
    letters: Letters
    wants_gradient: Mapping[str, bool]
    unused: Unused
    examples: Mapping[str, Any] = field(default_factory=dict)


def export(module: Any, inputs: Any, symbols: Mapping[str, str]) -> Exported:
    """Return the functional graph of a module, with composite operators kept. Raises `InputError`."""
    readable(module)
    check_hooks(module)
    given = _given(module, inputs, symbols)
    shapes = {name: dynamic(name, value, symbols.get(name, "")) for name, value in given.items()}
    *others, last = distinct_examples(given, symbols)
    for examples in others:
        with suppress(Exception):  # any error that a user's module raises: it may require certain sizes
            graph = traced(module, examples, shapes)
            break
    else:
        try:
            graph = traced(module, last, shapes if symbols else None)
        except Exception as error:
            raise InputError(_message(error)) from error
    program, signature, flat = graph.program, graph.program.graph_signature, flattened(given)
    inputs_by_place = {node: node for node in signature.user_inputs if isinstance(node, str)}
    inputs_by_place |= dict(zip(signature.user_inputs, flat, strict=False))
    outputs = [
        spec.arg.name if spec.kind.name == "USER_OUTPUT" and hasattr(spec.arg, "name") else None
        for spec in signature.output_specs
    ]
    behind = len(outputs) - getattr(module, SELECTING, 0)
    outputs, selecting = [*outputs[:behind], *(None for _ in outputs[behind:])], outputs[behind:]
    changed = [
        (spec.arg.name, inputs_by_place.get(spec.target, spec.target))
        for spec in signature.output_specs
        if spec.kind.name in CHANGES
    ]
    wants = {
        place: place in graph.asked or bool(getattr(flat.get(name), "requires_grad", False))
        for place, name in inputs_by_place.items()
    }
    examples = {
        place: flat[name]
        for place, name in inputs_by_place.items()
        if str(getattr(flat.get(name), "dtype", "")).startswith(("torch.int", "torch.uint"))
    }
    letters = _letters(program, inputs_by_place, symbols)
    weights = _weights(module, signature)
    selected = [name for name in selecting if name]
    return Exported(
        program, weights, inputs_by_place, outputs, selected, changed, letters, wants, graph.unused, examples
    )


CHANGES = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")
"""The kinds of graph outputs that are new values of changed buffers, parameters or inputs."""


def _given(module: Any, inputs: Any, symbols: Mapping[str, str]) -> dict[str, Any]:
    """Return the example inputs by name; a tensor that is given several times is copied."""
    given = arguments(module, inputs)
    for name in symbols:
        if name not in given:
            raise InputError(f"there is no input {name}; the inputs are {', '.join(given)}")
    tensors = {id(v): None for v in given.values() if isinstance(v, torch.Tensor)}
    if len(tensors) < sum(isinstance(v, torch.Tensor) for v in given.values()):
        return {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
    return given


def _letters(program: Any, inputs: Mapping[str, str], symbols: Mapping[str, str]) -> Letters:
    """Return the letters of open sizes and the constraints of the exported program on them."""
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    letters = Letters()
    first_of: dict[str, Any] = {}
    follow: list[tuple[str, Any]] = []
    for place, name in inputs.items():
        value = placeholders[place].meta["val"] if place in placeholders else None
        ops = symbols.get(name, "").split()
        for dim, (op, size) in enumerate(zip(ops, getattr(value, "shape", ()), strict=False)):
            if op.isdigit():
                continue
            expression: Any = None if isinstance(size, int) else size.node.expr
            if not op.isidentifier():
                follow.append((op, size if expression is None else expression))
                continue
            letters.where_open.setdefault(op, (name, dim))
            if expression is None or expression.is_Integer:  # for example, an unrolled loop over it
                letters.fixed[op] = int(size)
                continue
            if op in first_of and first_of[op] != expression:
                letters.same_sizes[expression] = first_of[op]
            first_of.setdefault(op, expression)
            letters.symbols.setdefault(str(first_of[op]), op)
            limit = letters.limits.get(op, Limit()) & _limit(program.range_constraints.get(expression))
            letters.limits[op] = limit & interval(size.node.shape_env.guards, expression, int(size.node.hint))
    for op, expression in follow:
        times, letter, more = parts_of(op)
        if isinstance(expression, int) or expression.is_Integer:
            letters.fixed.setdefault(letter, (int(expression) - more) // times)
        elif expression.is_Symbol and (whole := first_of.get(letter)) is not None:
            if whole.has(expression):  # PyTorch writes the letter in terms of this size
                letters.symbols[letter] = letters.symbols.pop(str(whole))
                whole = sympy.Symbol(letter, integer=True, positive=True)
            letters.same_sizes[expression] = times * whole + more
    within = {first_of[op]: letters.limits[op] for op in first_of}
    known = exact(program.graph.nodes) | constants(open_sizes(program.graph.nodes), within)
    of_letters = dict(letters.same_sizes)
    letters.same_sizes |= {
        size: value if isinstance(value, int) else value.xreplace(of_letters) for size, value in known.items()
    }
    return letters


def _limit(values: Any) -> Limit:
    """Return the range of sizes that an export is valid for. PyTorch specializes size 1 and reports a minimum of 2."""
    if values is None:
        return Limit()
    least, most = (int(end) if end.is_Integer else None for end in (values.lower, values.upper))
    return Limit(least if least is not None and least > 2 else 1, LARGEST if most is None else min(most, LARGEST))


def _weights(module: Any, signature: Any) -> ModuleParameters:
    weights = ModuleParameters({s.arg.name: s.target for s in signature.input_specs if s.kind.name == "PARAMETER"})
    first: dict[int, str] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            weights.same[path] = first[id(parameter)]
        first.setdefault(id(parameter), path)
        weights.learns[path] = bool(parameter.requires_grad)
        weights.counts[path] = int(parameter.numel()) * (2 if parameter.is_complex() else 1)
        weights.shapes[path] = tuple(map(int, parameter.shape))
    for path, buffer in module.named_buffers(remove_duplicate=False):
        weights.shapes[path] = tuple(map(int, buffer.shape))
    return weights


def _message(error: Exception) -> str:
    text = str(error).strip()
    return f"PyTorch cannot export it: {text.splitlines()[0] if text else type(error).__name__}"

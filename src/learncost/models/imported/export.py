"""Exports a module: example inputs, symbols for sizes that stay open, and PyTorch's own graph, functional."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from learncost.equation.errors import InputError
from learncost.equation.stated import LARGEST, Limit
from learncost.models.imported.composed import WRITTEN_OUT
from learncost.models.imported.distributions import unchecked
from learncost.models.imported.functions import check_hooks, check_registered, held_to_their_lines
from learncost.models.imported.gradients import written_through
from learncost.models.imported.learning import ChangedError, learning_kept
from learncost.models.imported.packed import unpacked
from learncost.models.imported.refusals import FUNC, GradientTakenError, is_by_func
from learncost.models.imported.replaced import written_out
from learncost.models.imported.sized import exact
from learncost.models.imported.symbolic import constants, interval, open_sizes, plain_sizes
from learncost.models.imported.unseen import check_changes
from learncost.models.imported.unused import Unused, unused
from learncost.models.imported.whole_buffers import known
from learncost.models.imported.wrappers import named_inputs, plain, readable


@dataclass
class Exported:
    """An exported graph and what is known of its ends.

    parameters      the parameters' paths, by placeholder
    inputs          the inputs' names, by placeholder
    outputs         the names of what it returns, in their order; None for what is no value of the user's
    symbols         the letters of sizes, by the graph's symbols
    same            of a parameter that has several paths: the others, with the first
    learns, counts  whether a parameter learns, and how many numbers it has, a complex one two for each, by path
    limits          the sizes that a letter may have, where the code does not do the same for all
    unused          products that the module computes and nothing reads, which the graph does not have
    wants_gradient  whether a float input requires a gradient, by placeholder
    """

    program: Any
    parameters: Mapping[str, str]
    inputs: Mapping[str, str]
    outputs: Sequence[str | None]
    symbols: dict[str, str]
    same: Mapping[str, str] = field(default_factory=dict)
    learns: Mapping[str, bool] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    wants_gradient: Mapping[str, bool] = field(default_factory=dict)
    where_open: Mapping[str, tuple[str, int]] = field(default_factory=dict)  # a letter's dimension in an input
    fixed: Mapping[str, int] = field(default_factory=dict)  # letters that the module allows one size alone
    same_sizes: Mapping[Any, Any] = field(default_factory=dict)  # symbols of one letter, with the first of them
    limits: Mapping[str, Limit] = field(default_factory=dict)
    unused: Unused = field(default_factory=Unused)


def arguments(module: Any, inputs: Any) -> dict[str, Any]:
    """The example inputs by the names that forward has for them; of `*several` all under that name."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    several = list(inputs) if isinstance(inputs, tuple | list) else [inputs]
    given: dict[str, Any] = {}
    parameters = inspect.signature(module.forward).parameters
    for name, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            if several:
                given[name], several = tuple(several), []
        elif several and parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            given[name] = several.pop(0)
    if several:
        raise InputError(
            f"forward takes {', '.join(parameters) or 'nothing'}, and {len(several) + len(given)} inputs were given"
        )
    return given


def as_called(module: Any, given: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Named inputs as a module is called with them: in a row as far as `*several`, by name from there on.

    What has a `__call__` of its own, whose names are others, takes in a row what it can.
    """
    from torch import nn

    kinds = {name: parameter.kind for name, parameter in inspect.signature(module.forward).parameters.items()}
    row = next((name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL), "")
    before = list(kinds)[: list(kinds).index(row)] if row in given else []
    if not before and type(module).__call__ is not nn.Module.__call__:
        by_place = (name for name, kind in kinds.items() if kind is not inspect.Parameter.KEYWORD_ONLY)
        before = list(takewhile(given.__contains__, by_place))
    by_name = {name: value for name, value in given.items() if name not in (*before, row)}
    return (*(given[name] for name in before if name in given), *(given.get(row, ()))), by_name


def export(module: Any, inputs: Any, symbols: Mapping[str, str]) -> Exported:
    """The graph of a module in functional form, composite operators whole. Raises `InputError`."""
    import torch

    readable(module)
    check_hooks(module)
    given = arguments(module, inputs)
    for name in symbols:
        if name not in given:
            raise InputError(f"there is no input {name}; the inputs are {', '.join(given)}")
    tensors = {id(v): None for v in given.values() if isinstance(v, torch.Tensor)}
    if len(tensors) < sum(isinstance(v, torch.Tensor) for v in given.values()):
        given = {name: v.clone() if isinstance(v, torch.Tensor) else v for name, v in given.items()}
    shapes = {name: _dynamic(name, value, symbols.get(name, "")) for name, value in given.items()}
    *others, last = _apart(given, symbols)
    for examples in others:
        with suppress(Exception):  # whatever a user's module raises: sizes of its own choice it may need
            program, asked, left_out = _exported(module, examples, shapes)
            break
    else:
        try:
            program, asked, left_out = _exported(module, last, shapes if symbols else None)
        except Exception as error:
            raise InputError(_message(error)) from error
    signature = program.graph_signature
    placeholders = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
    inputs_by_place = {node: node for node in signature.user_inputs if isinstance(node, str)}
    letters: dict[str, str] = {}
    where_open: dict[str, tuple[str, int]] = {}
    inputs_by_place |= dict(zip(signature.user_inputs, flattened(given), strict=False))
    same_sizes: dict[Any, Any] = {}
    first_of: dict[str, Any] = {}
    fixed: dict[str, int] = {}
    limits: dict[str, Limit] = {}
    for place, name in inputs_by_place.items():
        value = placeholders[place].meta["val"] if place in placeholders else None
        for dim, (word, size) in enumerate(
            zip(symbols.get(name, "").split(), getattr(value, "shape", ()), strict=False)
        ):
            if word.isdigit():
                continue
            where_open.setdefault(word, (name, dim))
            expression: Any = None if isinstance(size, int) else size.node.expr
            if expression is None or expression.is_Integer:  # a loop over it, say, was run as often as it is long
                fixed[word] = int(size)
                continue
            if word in first_of and first_of[word] != expression:
                same_sizes[expression] = first_of[word]
            first_of.setdefault(word, expression)
            letters.setdefault(str(first_of[word]), word)
            limits[word] = limits.get(word, Limit()) & _limit(program.range_constraints.get(expression))
            limits[word] &= interval(size.node.shape_env.guards, expression, int(size.node.hint))
    sizes = open_sizes(program.graph.nodes)
    same_sizes |= exact(program.graph.nodes) | constants(sizes, {first_of[word]: limits[word] for word in first_of})
    outputs = [
        spec.arg.name if spec.kind.name == "USER_OUTPUT" and hasattr(spec.arg, "name") else None
        for spec in signature.output_specs
    ]
    parameters = {s.arg.name: s.target for s in signature.input_specs if s.kind.name == "PARAMETER"}
    first: dict[int, str] = {}
    same = {}
    learns, counts = {}, {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            same[path] = first[id(parameter)]
        first.setdefault(id(parameter), path)
        learns[path] = bool(parameter.requires_grad)
        counts[path] = int(parameter.numel()) * (2 if parameter.is_complex() else 1)
    flat = flattened(given)
    wants = {
        place: place in asked or bool(getattr(flat.get(name), "requires_grad", False))
        for place, name in inputs_by_place.items()
    }
    return Exported(
        program,
        parameters,
        inputs_by_place,
        outputs,
        letters,
        same,
        learns,
        counts,
        wants,
        where_open,
        fixed,
        same_sizes,
        limits,
        left_out,
    )


def _limit(values: Any) -> Limit:
    """The sizes that an export holds for: PyTorch takes none for 1, whose code may be another, and says 2 at least."""
    if values is None:
        return Limit()
    least, most = (int(end) if end.is_Integer else None for end in (values.lower, values.upper))
    return Limit(least if least is not None and least > 2 else 1, LARGEST if most is None else min(most, LARGEST))


def flattened(given: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs by name, those of rows and mappings each by a name of its own."""
    flat: dict[str, Any] = {}
    for name, value in given.items():
        if isinstance(value, list | tuple):
            flat |= flattened({f"{name}_{place}": each for place, each in enumerate(value)})
        elif isinstance(value, Mapping):
            flat |= flattened({f"{name}_{key}": each for key, each in value.items()})
        else:
            flat[name] = value
    return flat


def _exported(module: Any, given: Mapping[str, Any], shapes: Any) -> tuple[Any, set[str], Unused]:
    """The exported program: functional, composite operators whole, but those that no rule reads by their parts.

    And the placeholders of inputs of which the forward pass itself asks for a gradient, and what nothing reads.
    """
    try:
        return _traced(module, given, shapes)
    except (GradientTakenError, ChangedError) as error:
        try:
            written, asked = written_through(module, given, str(error))
        except GradientTakenError:
            raise error from None
        names = [name for name in given if name in inspect.signature(written.forward).parameters]
        program, _, left_out = _traced(
            written, {name: given[name] for name in names}, shapes and {name: shapes[name] for name in names}
        )
        places = zip(names, program.graph_signature.user_inputs, strict=True)
        return program, {place for name, place in places if name in asked}, left_out


@plain_sizes()
def _traced(module: Any, given: Mapping[str, Any], shapes: Any) -> tuple[Any, set[str], Unused]:
    import torch

    opt_einsum = torch.backends.opt_einsum.enabled
    opens = any(leaf is not None for leaf in torch.utils._pytree.tree_leaves(shapes))
    torch.backends.opt_einsum.enabled = opt_einsum and not opens  # it would fix the sizes of batches
    row, by_name = as_called(module, given)
    hook = module.register_forward_hook(_of_known_types)
    try:
        with (
            held_to_their_lines() as taken,
            learning_kept(module) as places,
            unchecked(),
            known(),
            written_out(),
            unpacked(),
            named_inputs(module, by_name),
        ):
            try:
                program = torch.export.export(module, row, by_name, dynamic_shapes=shapes, strict=False)
            except InputError:
                raise
            except Exception as error:
                if taken or is_by_func(error):
                    raise GradientTakenError(taken[0] if taken else FUNC) from None
                raise
        check_registered(program, module)
        asked = {name for place, name in enumerate(program.graph_signature.user_inputs) if place in places}
        check_changes(program, _with_gradient(program, module, given) | asked)
        _stop_gradients(program)
        left_out = unused(program)
        program = program.run_decompositions({})
        for _ in range(MOST_ROUNDS):
            if not (parts := _decompositions(program)):
                break
            program = program.run_decompositions(parts)
    finally:
        hook.remove()
        torch.backends.opt_einsum.enabled = opt_einsum
    return program, asked, left_out


def _of_known_types(module: Any, given: Any, results: Any) -> Any:
    """Results without objects that no exported program hands out, such as an encoder-decoder's cache beside a loss."""
    import torch

    tree, results = torch.utils._pytree, plain(results)
    if not any(isinstance(each, torch.Tensor) for each in tree.tree_leaves(results)):
        return results

    def known(leaf: Any) -> Any:
        return leaf if type(leaf).__module__.partition(".")[0] in ("builtins", "torch") else None

    return tree.tree_map(known, results)


def _with_gradient(program: Any, module: Any, given: Mapping[str, Any]) -> set[str]:
    """The placeholders of what learns, and of inputs that require a gradient."""
    learns = {path for path, each in module.named_parameters(remove_duplicate=False) if each.requires_grad}
    signature = program.graph_signature
    inputs = zip(signature.user_inputs, flattened(given).values(), strict=False)
    return {
        *(spec.arg.name for spec in signature.input_specs if spec.kind.name == "PARAMETER" and spec.target in learns),
        *(place for place, value in inputs if getattr(value, "requires_grad", False)),
    }


def _stop_gradients(program: Any) -> None:
    """What is computed under `torch.no_grad` hands out no gradient; without a mark its decomposition would not know."""
    import torch

    wrapped = torch.ops.higher_order.wrap_with_set_grad_enabled
    for part in [each for each in program.graph_module.modules() if isinstance(each, torch.fx.GraphModule)]:
        for node in part.graph.nodes:
            if node.op != "call_function" or node.target is not wrapped or node.args[0]:
                continue
            inside = getattr(part, node.args[1].target)
            output = next(each for each in inside.graph.nodes if each.op == "output")

            def stopped(each: Any, graph: Any = inside.graph, output: Any = output) -> Any:
                value = each.meta.get("val")
                if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
                    return each
                with graph.inserting_before(output):
                    mark = graph.call_function(torch.ops.aten.detach.default, (each,))
                mark.meta = dict(each.meta)
                return mark

            output.args = torch.fx.map_arg(output.args, stopped)
            inside.recompile()


MOST_ROUNDS = 6
"""How often what an operator consists of may itself consist of others."""


def _decompositions(program: Any) -> dict[Any, Any]:
    """PyTorch's own decompositions of the operators of a graph that no rule reads."""
    import torch
    from torch._export.utils import _get_decomp_for_cia

    from learncost.models.imported.nodes import operator_name
    from learncost.models.imported.rule import RULES

    table = torch._decomp.decomposition_table
    parts: dict[Any, Any] = {}
    learned = set()  # nodes that follow from weights or float inputs: what others are made of is of no interest
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder":
            if isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex):
                learned.add(node)
            continue
        if node.op != "call_function" or learned.isdisjoint(node.all_input_nodes):
            continue
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool | None):
            continue
        if isinstance(value, torch.Tensor) and not (value.dtype.is_floating_point or value.dtype.is_complex):
            continue  # places, or what is compared: no gradient comes back from there
        learned.add(node)
        if not isinstance(node.target, torch._ops.OpOverload):
            continue
        name = operator_name(node.target)
        if name in WRITTEN_OUT and WRITTEN_OUT[name][1](node):
            parts[node.target] = WRITTEN_OUT[name][0]
            continue
        if name in RULES or name.partition(".")[0] in RULES:
            continue
        if node.target._can_decompose():
            parts[node.target] = _get_decomp_for_cia(node.target)
        elif node.target in table and (torch.Tag.core not in node.target.tags or not _is_reference(table[node.target])):
            parts[node.target] = table[node.target]
    return parts


def _is_reference(function: Any) -> bool:
    """Whether a decomposition says with other primitives what an operator is, and is made of no smaller parts."""
    return str(getattr(function, "__module__", "")).startswith("torch._refs")


def _dynamic(name: str, value: Any, words: str) -> Any:
    """What stays open of an input, as PyTorch takes it."""
    import torch

    letters = words.replace(",", " ").split()
    if not letters:
        return torch.utils._pytree.tree_map(lambda _: None, value)
    shape = getattr(value, "shape", None)
    if shape is None or len(shape) != len(letters):
        count = "no tensor" if shape is None else f"of {len(shape)} dimensions"
        raise InputError(f"{name} is {count}, and `{words}` names {len(letters)}")
    return {place: torch.export.Dim.AUTO for place, letter in enumerate(letters) if not letter.isdigit()} or None


APART = (2, 5, 7, 11, 13, 17, 19, 23)
"""Sizes of examples, all different: PyTorch takes two equal ones for the same, and one of 1 for nothing."""


def _apart(given: Mapping[str, Any], symbols: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Examples to try in which no two letters have one size, and none is 1, and the given ones; these alone where that
    is so.

    Of a size that is taken some times as much is tried first, as a side has to be that is halved often, then a few.
    """
    sizes: dict[str, int] = {}
    for name, words in symbols.items():
        for letter, size in zip(words.split(), given[name].shape, strict=True):
            if not letter.isdigit() and sizes.setdefault(letter, int(size)) != size:
                raise InputError(f"{letter} is {sizes[letter]} and, in {name}, {int(size)}")
    if len(set(sizes.values())) == len(sizes) and 1 not in sizes.values():
        return [given]
    several = _all_different(sizes, lambda size: (size * times for times in (*range(1, 4), *APART)))
    few = _all_different(sizes, lambda size: (size, *APART))
    return [_of_sizes(given, symbols, several), _of_sizes(given, symbols, few), given]


def _all_different(sizes: Mapping[str, int], choices: Callable[[int], Iterable[int]]) -> dict[str, int]:
    """Of each letter the first choice, of those for its size, that no letter before it has, and that is not 1."""
    fresh: dict[str, int] = {}
    for letter, size in sizes.items():
        fresh[letter] = next(each for each in choices(size) if each > 1 and each not in fresh.values())
    return fresh


def _of_sizes(given: Mapping[str, Any], symbols: Mapping[str, str], sizes: Mapping[str, int]) -> Mapping[str, Any]:
    """Examples whose letters have these sizes."""
    import torch

    examples = dict(given)
    for name, words in symbols.items():
        value = given[name]
        shape = [sizes.get(letter, int(size)) for letter, size in zip(words.split(), value.shape, strict=True)]
        if shape != list(value.shape):
            made = torch.zeros(shape, dtype=value.dtype, device=value.device)
            examples[name] = made.requires_grad_(value.requires_grad)
    return examples


def _message(error: Exception) -> str:
    text = str(error).strip()
    return f"PyTorch cannot export it: {text.splitlines()[0] if text else type(error).__name__}"

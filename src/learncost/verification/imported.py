"""Comparison of a module with its imported table: values and gradients in float64, products with PyTorch's count."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from typing import Any
from warnings import catch_warnings

import numpy as np

from learncost.importer.examples import arguments, as_called, flattened, plain
from learncost.importer.nodes import operator_name
from learncost.importer.recorder.module_step import backward, ends
from learncost.importer.refusals import one_line
from learncost.importer.registered import FORMULAS, OVER_POSITIONS, run_bodies
from learncost.importer.tried import copied, restored
from learncost.importer.walk import WITHOUT_GRADIENT, ImportedModule
from learncost.interpreter import run_with
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import map_lines
from learncost.ir.polynomial import shape_of
from learncost.layers.layer import Layer, layer

SMALLEST = 1e-8
"""The smallest denominator of a relative difference in float64, for inputs of order one: smaller results are rounding
errors of zero, as of a mean after a normalization."""

SEED = 20_261_122
"""Far from the seeds that weights are drawn from: along the weights themselves a normalization has no gradient."""


@dataclass(frozen=True)
class ModuleRun:
    """The results of a module's exported graph in float64 under autograd, and the error of the imported table.

    given    the inputs by name, and `doubles` in float64
    of_node  the values of its nodes
    sizes    the table's, with those that follow from the values of this run
    results  with the gradient that each was given
    weights  by path, with their gradients
    value     the largest difference of the outputs, relative to the largest number of each
    gradient  that of all gradients, relative to the largest gradient
    """

    read: Layer
    given: Mapping[str, Any]
    doubles: Mapping[str, Any]
    of_node: Mapping[str, Any]
    sizes: Mapping[str, int]
    results: Sequence[tuple[Any, Any]]
    weights: Mapping[str, Any]
    value: float
    gradient: float


def run_both(module: Any, inputs: Any, imported: ImportedModule, read: Layer, seed: int = 0) -> ModuleRun:
    """Run a module's exported graph, and a table with NumPy on the same inputs."""
    import torch

    given = arguments(module, inputs)
    weights = _weights(module)
    doubles = torch.utils._pytree.tree_map(in_float64, given)
    flat = flattened(doubles)
    of_node = run_graph(imported, module, flat, weights)
    sizes = _sizes(read, imported, flat, of_node)
    arrays = arrays_of(read, imported, of_node, weights, sizes)
    results = [as_numbers(of_node[node]) for node in imported.output_nodes]
    for place, name in enumerate(imported.outputs):
        if name in imported.changed:  # no gradient comes back through what is changed in place
            results[place] = results[place].detach()
    generator = torch.Generator().manual_seed(SEED + seed)
    seeds = [
        torch.randn(r.shape, generator=generator, dtype=r.dtype) if r.dim() else torch.ones_like(r) for r in results
    ]
    for name, each in zip(imported.outputs, seeds, strict=True):
        arrays[f"d{name}"] = _shaped(each.detach().numpy(), read, read_output(read, name), sizes)
    if any(r.requires_grad for r in results):
        backward(
            [r for r in results if r.requires_grad], [s for s, r in zip(seeds, results, strict=True) if r.requires_grad]
        )
    calls = {name: partial(each.run, of_node) for name, each in imported.calls.items()}
    values = run_with(read, arrays, sizes, calls)
    value = 0.0
    for name, result in zip(imported.outputs, results, strict=True):
        theirs = _shaped(result.detach().numpy(), read, read_output(read, name), sizes)
        value = max(value, _apart(values[read_output(read, name)], theirs, float(np.abs(theirs).max(initial=0))))
    pairs = []
    for name, several in imported.weights.items():
        if any(weights[path].requires_grad for path in several):
            pairs.append((name, _stack([_gradient(weights[path]) for path in several])))
    for name, given_by in imported.inputs.items():
        if given_by[0].kind == "input":
            value_given = flat[imported.exported.inputs[given_by[0].target]]
            if value_given.requires_grad:
                pairs.append((name, _gradient(value_given)))
    largest = max((float(np.abs(g).max()) for _, g in pairs if g.size), default=1.0)
    gradient = 0.0
    for name, theirs in pairs:
        ours = values.get(f"d{name}")
        shaped = _shaped(theirs, read, name, sizes)
        gradient = max(gradient, _apart(np.zeros_like(shaped) if ours is None else ours, shaped, largest))
    pairs_of_results = [*zip(results, seeds, strict=True)]
    return ModuleRun(read, given, doubles, of_node, sizes, pairs_of_results, weights, value, gradient)


def as_numbers(result: Any) -> Any:
    """Return a result with booleans as 0 and 1."""
    import torch

    return result.double() if result.dtype is torch.bool else result


def in_float64(value: Any) -> Any:
    """Return a copy of an input in float64; integers and booleans keep their type."""
    import torch

    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().double().requires_grad_(value.requires_grad)
    return value


def _weights(module: Any) -> dict[str, Any]:
    """Return a module's parameters by path, in float64 or complex128."""
    import torch

    def double(weight: Any) -> Any:
        kind = torch.complex128 if weight.is_complex() else torch.float64
        return weight.detach().to(kind).requires_grad_(bool(weight.requires_grad))

    return {path: double(weight) for path, weight in module.named_parameters()}


def real(tensor: Any) -> Any:
    """Return a tensor as a dense real one: complex numbers become pairs."""
    import torch

    return torch.view_as_real(tensor.to_dense()) if tensor.is_complex() else tensor.to_dense()


def read_output(read: Layer, name: str) -> str:
    """Return the table's name of an output in the header."""
    return next((each for each in read.table.outputs if read.table.header(each) == name), name)


def _sizes(
    read: Layer, imported: ImportedModule, given: Mapping[str, Any], of_node: Mapping[str, Any] = {}
) -> dict[str, int]:
    """Return the sizes of a run: the table's, those of its open letters, and those that depend on values of nodes."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    sizes = dict(read.sizes)
    for letter, (name, dim) in imported.exported.letters.where_open.items():
        sizes[letter] = int(given[name].shape[dim])
    for node in imported.exported.program.graph.nodes:
        for place, size in enumerate(getattr(node.meta.get("val"), "shape", ())):
            if node.name in of_node and free_unbacked_symbols(size):
                sizes[str(size)] = int(of_node[node.name].shape[place])
    return sizes | {letter: imported.at(size, sizes) for letter, size in imported.derived.items()}


def arrays_of(
    read: Layer,
    imported: ImportedModule,
    of_node: Mapping[str, Any],
    weights: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> dict[str, Any]:
    """Return every input and weight of the table as an array."""
    arrays: dict[str, Any] = {}
    for name, paths in imported.weights.items():
        stacked = _stack([real(weights[path].detach()).numpy() for path in paths])
        arrays[name] = _shaped(stacked, read, name, sizes)
    for name, several in imported.inputs.items():
        arrays[name] = _shaped(_stack([_input(s, imported, of_node, sizes) for s in several]), read, name, sizes)
    return arrays


def _stack(several: Sequence[Any]) -> Any:
    """Stack the arrays of all iterations of a loop; return a single one unchanged."""
    return several[0] if len(several) == 1 else np.stack(several)


def _gradient(tensor: Any) -> Any:
    return np.zeros(tuple(real(tensor).shape)) if tensor.grad is None else real(tensor.grad).numpy(force=True)


def _input(stored: Any, imported: ImportedModule, of_node: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    value = of_node[stored.target]
    if stored.kind == "constant" and value.requires_grad and not _stops(stored, imported):
        raise InputError(
            f"{stored.name} depends on trainable weights but is outside of the table: this is an error of the importer"
        )
    value = value.detach().to_dense().numpy()
    if stored.kind == "leaf":
        return np.zeros(value.shape)
    if stored.kind == "groups":  # the group of each row, where groups end at these
        return np.searchsorted(value, np.arange(value[-1]), side="right")
    if stored.kind == "real part":
        return value.real
    if stored.kind == "imaginary part":
        return value.imag
    if stored.kind.startswith("unlike"):
        return (value != int(stored.kind.split()[1])).astype(float)
    if stored.kind.startswith("share"):
        _, reduction, ignore = stored.kind.split()
        there = value != int(ignore)
        return -(there / max(1, there.sum()) if reduction == "mean" else there.astype(float))
    if stored.kind in ("index", "targets") and stored.reads is not None:
        size = stored.reads.size
        if not isinstance(size, int):
            return np.where(value < 0, 0, value) if stored.kind == "targets" else value
        return np.where(value < 0, value + size if stored.kind == "index" else 0, value)
    return value.astype(float) if value.dtype == bool else value


def _stops(stored: Any, imported: ImportedModule) -> bool:
    """Return whether it is the result of an operator whose gradient is zero everywhere."""
    node = next(each for each in imported.exported.program.graph.nodes if each.name == stored.target)
    return node.op == "call_function" and operator_name(node.target).partition(".")[0] in WITHOUT_GRADIENT


def _shaped(array: Any, read: Layer, name: str, sizes: Mapping[str, int]) -> Any:
    return np.asarray(array).reshape(shape_of(read.table.axes[name], sizes))


def _apart(ours: Any, theirs: Any, scale: float) -> float:
    if ours.shape != theirs.shape:
        raise InputError(f"shapes differ: {ours.shape} and {theirs.shape}")
    if not theirs.size:
        return 0.0
    if np.isnan(ours).any() or np.isnan(theirs).any():
        return float("inf")  # no comparison of NaN says anything, and max would pass over it
    with np.errstate(invalid="ignore"):
        apart = np.where(ours == theirs, 0.0, np.abs(ours - theirs))
    return float(np.max(apart)) / max(scale, SMALLEST)


def twin_of(module: Any) -> Any:
    """Return a copy of a module, with its tensors of an earlier run detached, since they cannot be copied."""
    import torch

    held = [leaf for part in module.modules() for leaf in torch.utils._pytree.tree_leaves(dict(vars(part)))]
    computed = (leaf for leaf in held if isinstance(leaf, torch.Tensor) and not leaf.is_leaf)
    return deepcopy(module, {id(leaf): leaf.detach().clone() for leaf in computed})


def gradient_error(module: Any, ran: ModuleRun) -> tuple[float | None, str]:
    """Return the error of the module's gradients relative to the largest gradient of its graph; None
    where they cannot be compared, and why.

    An export keeps what a forward pass computes, not all of autograd's settings, as under `no_grad`.
    """
    import torch

    results, weights = ran.results, ran.weights
    try:
        twin = twin_of(module).double()
        row, by_name = as_called(twin, copied(ran.doubles))
        answer = twin(*row, **by_name)
    except Exception as error:  # code of the user's, which may not be for float64, nor be copied
        return None, f"it does not run in float64 ({one_line(error)})"
    tensors = [t for t in torch.utils._pytree.tree_leaves(plain(answer)) if isinstance(t, torch.Tensor)]
    pairs = []
    for mine, seed in results:
        near = [t for t in tensors if t.shape == mine.shape and t.dtype == mine.dtype]
        near = [t for t in near if torch.allclose(t, mine, rtol=1e-4, atol=1e-6, equal_nan=True)]
        if not near:  # the module converts it to another precision, or it is another value, which is already reported
            if not mine.requires_grad:
                continue
            return None, "its results differ in float64, as for a module that fixes its data type"
        nearest = min(near, key=lambda t: float((t - mine).detach().abs().max()))
        tensors = [t for t in tensors if t is not nearest]  # equal values, as zeros are, may be several outputs
        if nearest.requires_grad:
            pairs.append((nearest, seed))
    learning = {path: weight for path, weight in twin.named_parameters() if weight.requires_grad and path in weights}
    if not pairs or not learning:
        return 0.0, ""
    outputs, seeds = zip(*pairs, strict=True)
    try:
        gradients = torch.autograd.grad(outputs, [*learning.values()], seeds, allow_unused=True)
    except RuntimeError as error:  # of a forward pass that took two precisions
        return None, f"autograd has none ({one_line(error)})"
    ours = [_gradient(weights[path]) for path in learning]
    pairs_of = zip(ours, gradients, strict=True)
    theirs = [np.zeros(mine.shape) if g is None else real(g).numpy(force=True) for mine, g in pairs_of]
    scale = max((float(np.abs(mine).max(initial=0.0)) for mine in ours), default=0.0)
    return max(_apart(mine, other, scale) for mine, other in zip(ours, theirs, strict=True)), ""


@dataclass(frozen=True)
class Products:
    """FLOPs of the matrix products of a step, forward and backward, of the table and as PyTorch counts the module.

    reason   why they differ, if further or corrected formulas of PyTorch make them equal; "" if equal
    """

    table: tuple[int, int]
    torch: tuple[int, int]
    reason: str = ""

    @property
    def equal(self) -> bool:
        return self.table == self.torch


def products(
    module: Any,
    inputs: Any,
    imported: ImportedModule,
    table: Layer | None = None,
    sizes: Mapping[str, int] | None = None,
) -> Products:
    """Count a step by the table, and by FlopCounterMode over the module with attention as plain products.

    Raises InputError where an operation of the table has no count.

    table   a table to count instead of the imported one
    sizes   those of a run; without them, the sizes that follow from the inputs' shapes
    """
    from torch.utils.flop_counter import flop_registry

    if {"cond", "map_impl"} & {str(call.node.target) for call in imported.calls.values()}:
        raise InputError("FlopCounterMode counts no branch of cond backward and does not run map")  # nor does map after
    # Attention as plain products: as one operator it would compute its scores once more backward.
    read = _as_plain(layer(imported.text) if table is None else table, lambda name: "attention" in name)
    sizes = sizes or _sizes(read, imported, flattened(arguments(module, inputs)))
    ours = _counted_of_table(read, sizes)
    theirs = _counted(module, inputs, {})
    if ours == theirs:
        return Products(ours, theirs)
    # The book has PyTorch's formula of convolutions, where their weight is a parameter: as bmm they are put right, too.
    put_right = _counted_of_table(_as_plain(read, lambda name: name.startswith("conv")), sizes)
    lacking = {row.packet: row.flops for row in FORMULAS if row.packet not in flop_registry and imported.calls}
    attempts: list[tuple[dict[Any, Any], list[str]]] = [({}, []), (lacking, [_LACKING] * bool(lacking))]
    for formulas, reasons in (*attempts, (lacking | _formulas(), [*attempts[1][1], _CORRECTED])):
        if reasons and _counted(module, inputs, formulas) in (ours, put_right):
            return Products(ours, theirs, f"{', '.join(reasons)}: equal")
        if _counted_of_export(module, inputs, imported, formulas) in (ours, put_right):
            return Products(ours, theirs, f"{', '.join([*reasons, _OF_EXPORT])}: equal")
    return Products(ours, theirs)


def _as_plain(read: Layer, chosen: Callable[[str], bool]) -> Layer:
    """Return the table with the lines of the chosen operators replaced by plain products."""

    def change(line: Line) -> tuple[Line]:
        if not chosen(line.meta.operator):
            return (line,)
        return (replace(line, meta=replace(line.meta, operator="bmm")),)

    return replace(read, table=replace(read.table, lines=map_lines(read.table.lines, change)))


_CORRECTED = "PyTorch's formulas of grouped convolutions backward, of mv, dot and addmm_, of complex numbers, put right"
_LACKING = "formulas of Fourier transforms and factorizations, which PyTorch lacks"
_OF_EXPORT = (
    "the exported graph, without what the module computes and nothing reads, multiplies by a gradient of zeros, "
    "recomputes backward, or computes from positions and settings only"
)


def _counted_of_table(read: Layer, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return the table's counts of the operations that FlopCounterMode counts, forward and backward."""
    from learncost.models.tables import letters
    from learncost.reports.cost import cost

    open_sizes: Any = {each: sizes[each] for each in letters(read) if each not in {*read.sizes, *read.follows}}
    ledger = cost(read, price_book="torch-flop-counter", **open_sizes)
    forward = sum(row.flops for row in ledger.rows if row.macro_operation == "forward")
    return int(forward), int(ledger.total.flops - forward)


def _counted(module: Any, inputs: Any, formulas: Mapping[Any, Any]) -> tuple[int, int]:
    """Return the counts of FlopCounterMode for a module's forward and backward pass."""
    module.zero_grad(set_to_none=True)
    row, by_name = as_called(module, copied(arguments(module, inputs)))
    with restored(module):
        try:
            return _flops_of(lambda: ends(module(*row, **by_name)), formulas)
        except Exception as error:  # the module changes what autograd needs, or scans while it counts
            raise InputError(f"autograd has no gradients of the module itself ({one_line(error)})") from error


def _counted_of_export(
    module: Any, inputs: Any, imported: ImportedModule, formulas: Mapping[Any, Any]
) -> tuple[int, int]:
    """Return the counts of FlopCounterMode for the exported graph, whose inputs are those of the table."""
    weights = _weights(module)
    given = flattened({name: in_float64(value) for name, value in arguments(module, inputs).items()})
    known = run_graph(imported, module, given, weights)
    outside = {
        stored.target
        for several in imported.inputs.values()
        for stored in several
        if stored.kind not in ("input", "leaf")
    }
    nodes = imported.exported.program.graph.nodes
    outside |= {node.name for node in nodes if "_like" in str(node.target)}  # they read a shape alone
    there = {name: known[name] for name in outside if name in known}

    def results() -> list[Any]:
        values = run_graph(imported, module, given, weights, there)
        nodes = zip(imported.outputs, imported.output_nodes, strict=True)
        several = (values[node] for name, node in nodes if name not in imported.changed)
        return [each for each in several if each.requires_grad]

    return _flops_of(results, formulas)


def _flops_of(results: Callable[[], Sequence[Any]], formulas: Mapping[Any, Any]) -> tuple[int, int]:
    """Return the counts of FlopCounterMode for a forward pass that gives these results, and for its backward pass."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False, custom_mapping=dict(formulas))
    counter.mod_tracker = _SingleModule()  # type: ignore[assignment]
    with (
        catch_warnings(action="ignore", category=UserWarning),  # of TF32, which `flags` sets wherever it is
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),  # else a recurrence is one operator that counts nothing
        counter,
    ):
        floats = results()
        forward = int(counter.get_total_flops())
        if floats:
            backward(floats, [torch.ones_like(t) for t in floats])
        return forward, int(counter.get_total_flops()) - forward


class _SingleModule:
    """A replacement of FlopCounterMode's module tracker, whose hooks fail in modules that call autograd themselves."""

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _formulas() -> dict[Any, Any]:
    """Return corrected formulas of PyTorch: each product of a convolution's backward pass has the forward FLOPs."""
    import torch
    from torch.utils.flop_counter import conv_flop_count, flop_registry

    def convolution_backward(gradient: Any, x: Any, weight: Any, *settings: Any, out_shape: Any) -> int:
        _bias, _stride, _padding, _dilation, transposed, _output_padding, _groups, mask = settings
        count = conv_flop_count(list(x), list(weight), list(gradient), transposed=transposed)
        return int(count) * (bool(mask[0]) + bool(mask[1]))

    def mv(matrix: Any, vector: Any, *_: Any, **__: Any) -> int:
        return 2 * int(matrix[0]) * int(matrix[1])

    def dot(left: Any, right: Any, *_: Any, **__: Any) -> int:
        return 2 * int(left[0])

    aten = torch.ops.aten
    put_right = {aten.convolution_backward: convolution_backward, aten.mv: mv, aten.dot: dot}
    return (
        put_right
        | {aten.addmm_: flop_registry[aten.addmm], aten.baddbmm_: flop_registry[aten.baddbmm]}
        | {packet: _of_pairs(flop_registry[packet]) for packet in (aten.mm, aten.bmm, aten.addmm)}
    )


def _of_pairs(formula: Any) -> Any:
    """Return a formula that also counts complex numbers: their product is four real ones."""

    def count(*operands: Any, **named: Any) -> int:
        return int(formula(*operands, **named)) * (4 if any(each.is_complex() for each in operands[:2]) else 1)

    count._get_raw = True  # type: ignore[attr-defined]
    return count


# The exported graph, run: the values of a module's inputs, weights and outside tensors


def run_graph(
    imported: ImportedModule,
    module: Any,
    inputs: Mapping[str, Any],
    parameters: Mapping[str, Any],
    known: Mapping[str, Any] = {},
) -> dict[str, Any]:
    """Return the values of all nodes of the exported graph, run in float64 on inputs by name and parameters by path.

    `known` values are used instead of running their nodes, and nodes that only these need are not run.

    Conversions to single or half precision convert to double precision here.
    """
    import torch

    program = imported.exported.program
    floats = {torch.float32, torch.float16, torch.bfloat16}
    pairs = {torch.complex32, torch.complex64}
    of_node: dict[str, Any] = {}

    def double(value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float64 if value in floats else torch.complex128 if value in pairs else value
        if isinstance(value, torch.Tensor):
            if value.dtype in pairs:
                return value.to(torch.complex128)
            return value.double() if value.dtype in floats else value
        if isinstance(value, list | tuple):
            return type(value)(map(double, value))
        return value

    runs = _before_outputs(program.graph, known)

    class InDouble(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            if node.op == "call_function" and (node not in runs or node.name in known):
                return known.get(node.name)
            result = super().run_node(node)
            of_node[node.name] = result
            return result

        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if isinstance(target, torch._ops.HigherOrderOperator) and str(target) in ("cond", *OVER_POSITIONS):
                return double(run_bodies(str(target), args))
            if operator_name(target) == "_assert_tensor_metadata":
                return None
            if operator_name(target) == "with_effects":  # a check, with what orders it
                return None, None
            if operator_name(target) == "copy":  # it has no gradient under autograd
                base, source, *_ = args
                return double(source).expand(base.shape).to(double(base).dtype)
            if operator_name(target) == "view":  # strides differ where attention of doubles is another kernel
                return double(args[0]).reshape(args[1])
            named = {name: double(value) for name, value in kwargs.items()}
            return double(super().call_function(target, tuple(map(double, args)), named))

        def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
            return double(super().get_attr(target, args, kwargs))

    signature = program.graph_signature
    held = {**program.state_dict, **program.constants, **dict(module.named_buffers(remove_duplicate=False))}
    given = []
    names = imported.exported.inputs
    for spec in signature.input_specs:
        kind = spec.kind.name
        if kind == "PARAMETER":
            given.append(parameters[imported.exported.weights.same.get(spec.target, spec.target)])
        elif kind in ("BUFFER", "CONSTANT_TENSOR"):
            given.append(double(held[spec.target]))
        elif kind == "TOKEN":
            given.append(None)
        elif hasattr(spec.arg, "value"):  # not a tensor
            given.append(spec.arg.value)
        else:
            given.append(double(inputs[names[spec.arg.name]]) if hasattr(spec.arg, "name") else None)
    kind = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)  # computed from integers
    try:
        InDouble(program.graph_module).run(*given)
    finally:
        torch.set_default_dtype(kind)
    return of_node


def _before_outputs(graph: Any, known: Mapping[str, Any]) -> set[Any]:
    """Return the nodes that a graph's outputs depend on, without looking behind known ones; all nodes if nothing is
    known.
    """
    if not known:
        return set(graph.nodes)
    left = [node for node in graph.nodes if node.op == "output"]
    found = set(left)
    while left:
        for node in left.pop().all_input_nodes:
            if node not in found:
                found.add(node)
                left += [node] if node.name not in known else []
    return found

"""A module's forward and backward pass on tensors without values."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from learncost.importer.examples import plain
from learncost.importer.recorder.device import is_guarded
from learncost.importer.refusals import one_line, silenced
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.program.autograd.step import RECORDED_MICROBATCHES
from learncost.program.program import (
    ACTIVATIONS,
    BACKWARD,
    CUDA,
    FORWARD,
    GRADIENTS,
    OPTIMIZER,
    STATES,
    WEIGHTS,
    Program,
    StepRequest,
    starred,
)

TYPES = {"fp64": "float64", "fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
"""PyTorch's names of the types that it trains in."""


@dataclass(frozen=True)
class ModuleStep:
    """The training step of a module.

    module  the module, or a function that builds it
    inputs  example values by name, at sizes by letter
    """

    module: Callable[[], Any]
    inputs: Callable[[Mapping[str, int]], Mapping[str, Any]]

    def __call__(self, sizes: Mapping[str, int], request: StepRequest) -> Program:
        """Record the training step. Raises `InputError` if that needs values."""
        with _in_one_line():
            return self._recorded(self.module(), self.inputs(sizes), request)

    @staticmethod
    def _recorded(module: Any, given: Mapping[str, Any], request: StepRequest) -> Program:
        import torch

        from learncost.importer.examples import as_called
        from learncost.importer.recorder.cuda import on_gpu
        from learncost.importer.recorder.recorder import Recorder

        if request.device == CUDA and not (is_guarded() or torch.cuda.is_available()):
            raise InputError("PyTorch chooses kernels for a GPU where there is one")
        if (request.compiled or request.devices) and not is_guarded():
            kind = "compiled" if request.compiled else "sharded"
            raise InputError(f"a {kind} step is recorded in another process: name the module as FILE.py:NAME")
        guarded = request.device == CUDA and is_guarded()
        recorder = Recorder(request.device)
        kernels = on_gpu(request.capability, request.compiled) if guarded else nullcontext()
        with _several(recorder, request) as wrap, in_a_run(), kernels, _generated(recorder, request):
            with recorder:
                empty = _Empty(getattr(torch, TYPES[request.values]), recorder)
                module = empty.module(module)
                if request.weights:
                    learn_only(module, request.weights[1], request.weights[0])
                row, by_name = as_called(module, empty.inputs(given))
                with recorder.given(WEIGHTS, WEIGHTS):
                    module = wrap(module)
            runs = _compiled(module, request, row, by_name) if request.compiled else module
            with recorder, nullcontext() if request.compiled else attributed(module, recorder):
                record_step(recorder, module, request, lambda: runs(*row, **by_name))
        return recorder.program()


def _several(recorder: Any, request: StepRequest) -> AbstractContextManager[Callable[[Any], Any]]:
    if not request.devices:
        return nullcontext(lambda module: module)
    from learncost.importer.recorder.mesh import first_of_several  # imports torch.distributed

    return first_of_several(recorder, request)


def _generated(recorder: Any, request: StepRequest) -> AbstractContextManager[None]:
    if not request.compiled:
        return nullcontext()
    from learncost.importer.recorder.compiled import generated  # imports inductor, which takes seconds

    return generated(recorder, request)


def _compiled(module: Any, request: StepRequest, row: Any, by_name: Any) -> Any:
    """Return the module under torch.compile, after a step, which compiles both passes."""
    import torch

    result: Any = torch.compile(module)
    with _autocast(request):
        floats = ends(result(*row, **by_name))
    torch.autograd.backward(floats, [torch.empty_like(each) for each in floats])
    for weight in module.parameters():
        weight.grad = None
    return result


def record_step(recorder: Any, module: Any, request: StepRequest, forward: Callable[[], Any]) -> None:
    """Record the step of a module whose tensors have no values; `forward` returns the loss, or other results."""
    import torch

    from learncost.importer.recorder.optimizer import clip, in_phase, optimizer_of, temporaries, update

    stepping = request.optimizer
    weights = [each for each in module.parameters() if each.requires_grad]
    runs = bool(weights) and all(stepping.is_pytorchs(each.element_size()) for each in weights)
    for role, size in request.given.items():
        if not (runs and role == STATES):
            recorder.give(role, size)
    optimizers = {each: optimizer_of(recorder, stepping, [each]) for each in weights if runs and request.in_backward}
    optimizer = optimizer_of(recorder, stepping, weights) if runs and not request.in_backward else None

    def hook(weight: Any) -> None:
        recorder.settle()
        recorder.assign_all([weight.grad], GRADIENTS)
        if weight in optimizers:
            in_phase(recorder, OPTIMIZER, optimizers[weight].step)
        weight.grad = None

    hooks = [each.register_post_accumulate_grad_hook(hook) for each in weights if request.in_backward]
    for recorder.microbatch in range(min(request.microbatches, RECORDED_MICROBATCHES)):
        recorder.phase = FORWARD
        with _autocast(request):
            result = forward()
        floats = ends(result)
        seeds = [torch.empty_like(each) for each in floats]
        recorder.phase = BACKWARD
        torch.autograd.backward(floats, seeds)
        recorder.settle()
        del result, floats, seeds
    for each in hooks:
        each.remove()
    learned = [each for each in weights if each.grad is not None]
    recorder.assign_all([each.grad for each in learned], GRADIENTS)
    if stepping.clip and learned:
        clip(recorder, learned)
    if optimizer:
        in_phase(recorder, OPTIMIZER, optimizer.step)
    elif not runs:
        temporaries(recorder, stepping, learned)
        if recorder.device == CUDA and stepping.optimizer:
            recorder.ops.append(update(request.given, learned))


def _autocast(request: StepRequest) -> AbstractContextManager[None]:
    import torch

    device, kind = torch.device(request.device).type, getattr(torch, TYPES[request.autocast or request.values])
    return torch.autocast(device, kind, enabled=bool(request.autocast))


@contextmanager
def _in_one_line() -> Iterator[None]:
    """Report errors of a module without values in one line; its prints and logs are suppressed."""
    try:
        with silenced():
            yield
    except InputError:
        raise
    except Exception as error:  # any error that a user's module raises
        raise InputError(f"it cannot run without values ({one_line(error)})") from None


class _Empty:
    """A factory of tensors without values for a module and its arguments."""

    def __init__(self, kind: Any, recorder: Any) -> None:
        self.kind, self.recorder = kind, recorder

    def module(self, module: Any) -> Any:
        """Return a copy of the module with such tensors as parameters and buffers."""
        instead: dict[int, Any] = {}
        for path, parameter in module.named_parameters():
            self._instead(instead, parameter, starred(path), WEIGHTS)
        for path, buffer in module.named_buffers():
            self._instead(instead, buffer, starred(path), "buffers")
        for path, part in module.named_modules():
            for name, value in vars(part).items():
                if hasattr(value, "untyped_storage"):
                    self._instead(instead, value, starred(f"{path}.{name}"), "buffers")
        return copy.deepcopy(module, instead)

    def inputs(self, given: Mapping[str, Any]) -> Mapping[str, Any]:
        from torch import Tensor
        from torch.utils._pytree import tree_map_only

        def empty(tensor: Tensor) -> Any:
            return self._tensor(tensor, "inputs", ACTIVATIONS)

        return {name: tree_map_only(Tensor, empty, value) for name, value in given.items()}

    def _instead(self, instead: dict[int, Any], tensor: Any, label: str, role: str) -> None:
        if id(tensor) not in instead:
            instead[id(tensor)] = self._tensor(tensor, label, role)

    def _tensor(self, tensor: Any, label: str, role: str) -> Any:
        import torch

        from learncost.importer.recorder.recorder import knows

        kind = self.kind if tensor.is_floating_point() else tensor.dtype
        with self.recorder.given(role, label):
            empty = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=self.recorder.device)
            if isinstance(tensor, torch.nn.Parameter):
                return torch.nn.Parameter(empty, tensor.requires_grad)
        if role != WEIGHTS and tensor.device.type != "meta" and not tensor.requires_grad:
            with torch.utils._python_dispatch._disable_current_modes():
                knows(empty, tensor.to("cpu", kind, copy=True))
        return empty.requires_grad_(tensor.requires_grad)


@contextmanager
def attributed(module: Any, recorder: Any) -> Iterator[None]:
    """Attribute every operator to the module that runs it."""
    above: list[str] = []
    hooks = []

    def begins(path: str) -> Callable[..., None]:
        def begin(*_: Any) -> None:
            above.append(recorder.path)
            recorder.path = path

        return begin

    def end(*_: Any) -> None:
        recorder.path = above.pop() if above else ""

    for path, part in module.named_modules():
        hooks.append(part.register_forward_pre_hook(begins(path)))
        hooks.append(part.register_forward_hook(end, always_call=True))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def in_a_run() -> Iterator[None]:
    """Make tensors without values inside, and run what PyTorch and transformers run otherwise for these only."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from learncost.importer.replaced import attributes_replaced, unchecked

    library, name = sys.modules.get("transformers.utils.import_utils"), "is_fake_tensor"
    state = torch.get_rng_state().shape  # which checkpoints keep
    answers: dict[tuple[Any, str], Any] = {
        (torch, "get_rng_state"): lambda: torch.empty(state, dtype=torch.uint8),
        (torch, "set_rng_state"): lambda _: None,
    }
    answers |= {(library, name): lambda _: False} if hasattr(library, name) else {}
    operators: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    for key in ("AutogradCPU", "CPU", "AutogradCUDA", "CUDA"):
        operators.impl("linear", _linear, key)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), attributes_replaced(answers), unchecked():
            yield
    finally:
        operators._destroy()


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """Return `linear`, which adds a bias in place to the product of what is not contiguous (`Linear.cpp`)."""
    import torch

    run = torch.ops.aten.linear.default.decompose
    apart = bias is not None and x.dim() > 2 and not x.is_contiguous()
    return run(x, weight).add_(bias) if apart else run(x, weight, bias)


def learn_only(module: Any, learning: Iterable[str], weights: Iterable[str]) -> None:
    """Make the parameters of the weights `learning` trainable, and freeze the others.

    Weights of equal blocks are one in a table, with `each` for the block's number; behind @ are the blocks that are
    meant, as in blocks.each.norm.weight@0-4. Raises `InputError` for a weight that is no parameter of the module.
    """
    parameters = dict(module.named_parameters())
    single = {name for name in weights if name in parameters}
    chosen: set[str] = set()
    for name in learning:
        paths = [name] if name in single else _of_blocks(name, [path for path in parameters if path not in single])
        if not paths:
            raise InputError(f"the module has no parameter of the weight {name}")
        chosen.update(paths)
    for path, parameter in parameters.items():
        parameter.requires_grad_(path in chosen)


def _of_blocks(name: str, paths: Iterable[str]) -> list[str]:
    base, _, iterations = name.partition("@")
    pattern = re.compile(r"\.".join(r"(\d+)" if part == "each" else re.escape(part) for part in base.split(".")))
    found = sorted((tuple(map(int, match.groups())), path) for path in paths if (match := pattern.fullmatch(path)))
    first, _, last = iterations.partition("-")
    return [path for _, path in (found[int(first) : int(last or first) + 1] if iterations else found)]


def ends(result: Any) -> list[Any]:
    """Return all float results of a module that have a gradient, or the loss alone: a number that all others lead
    to.
    """
    import torch
    from torch.utils._pytree import tree_leaves

    floats = [each for each in tree_leaves(plain(result)) if isinstance(each, torch.Tensor) and each.requires_grad]
    for loss in floats:
        nodes = set() if loss.dim() else _backward_graph(loss)
        if nodes and all(each is loss or _node(each) in nodes or _node(each._base) in nodes for each in floats):
            return [loss]
    return floats


def backward(floats: Sequence[Any], seeds: Sequence[Any]) -> None:
    """Run autograd's backward pass. Raises `InputError` for an operator without a gradient in PyTorch."""
    import torch

    try:
        torch.autograd.backward(floats, seeds)
    except RuntimeError as error:
        message = str(error).partition("\n")[0]
        if not message.startswith("derivative for"):
            raise
        raise InputError(f"PyTorch has no backward pass of it ({message}): detach its inputs there") from None


def _node(tensor: Any) -> Any:
    """Return the autograd node that made a tensor, or the leaf itself."""
    return None if tensor is None else tensor if tensor.grad_fn is None else tensor.grad_fn


def _backward_graph(loss: Any) -> set[Any]:
    """Return every node through which the loss passes a gradient."""
    nodes: set[Any] = set()
    rest = [_node(loss)]
    while rest:
        node = rest.pop()
        if node not in nodes:
            nodes.add(node)
            rest += [each for each, _ in getattr(node, "next_functions", ()) if each is not None]
            nodes.update(each for each in (getattr(node, "variable", None),) if each is not None)
    return nodes

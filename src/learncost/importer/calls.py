"""Answer calls of a traced forward pass by PyTorch's own protocol for this, which replaces nothing in PyTorch."""

from __future__ import annotations

import inspect
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
import torch.utils.checkpoint as checkpoints
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.nn.attention import flex_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from learncost.importer.constants import NodeConstants
from learncost.importer.functions import (
    REQUIRES_GRAD,
    answers_of_gradients,
    answers_of_learning,
    changed_by,
    memory_of,
    moved,
    node_of,
    user_functions_as_operators,
)
from learncost.importer.nodes import CHECKPOINT_KEY, mark, operator_name
from learncost.importer.replaced import WRITTEN_OUT, attributes_replaced, calling, root, unchecked
from learncost.importer.tried import has_numbers
from learncost.ir.dataclass import dataclass, field


@dataclass
class TracedForward:
    """The record of a traced forward pass.

    given   its inputs, flattened
    asked   the positions of those for which it sets requires_grad
    taken   the functions by which it took a gradient
    let_go  the names of the nodes by which its code detaches a value; autograd adds other nodes of this kind
    """

    given: list[Any] = field(default_factory=list)
    asked: set[int] = field(default_factory=set)
    taken: list[str] = field(default_factory=list)
    let_go: set[str] = field(default_factory=set)

    def detach(self, tensor: Any) -> Any:
        """Return a detached tensor, and remember the node."""
        graph = _graph()
        before = 0 if graph is None else len(graph.nodes)
        result = tensor.detach()
        self.let_go.update(node.name for node in _behind(before))
        return result


@contextmanager
def answered(module: Any, *others: Mapping[Any, Callable[..., Any]], changes: bool = False) -> Iterator[TracedForward]:
    """Answer the calls of a module's forward pass inside. Raises `InputError` for what an export does not see.

    others   further answers, by function
    changes  whether it may change requires_grad, as a forward pass does that takes gradients
    """
    forward = TracedForward()
    answers = {**WRITTEN_OUT, **answers_of_gradients(forward), **answers_of_learning(forward, changes)}
    for each in others:
        answers |= each
    modes = ExitStack()
    numbers = {path: each.clone() for path, each in module.named_buffers(remove_duplicate=False) if _is_count(each)}

    def begin(_: Any, row: Any, by_name: Any) -> None:
        forward.given[:] = torch.utils._pytree.tree_leaves((row, by_name))
        for path, buffer in module.named_buffers(remove_duplicate=False):
            if path in numbers and hasattr(buffer, "constant"):  # PyTorch forgets it where the buffer is changed
                buffer.constant = numbers[path]
        modes.enter_context(TracedCalls(answers))

    def end(*_: Any) -> None:
        modes.close()

    hooks = [module.register_forward_pre_hook(begin, prepend=True, with_kwargs=True)]
    hooks.append(module.register_forward_hook(end, always_call=True))
    named: dict[tuple[Any, str], Any] = {(part, "to"): moved(part) for part in module.modules()}
    named |= {(math, "sqrt"): root}
    try:
        with unchecked(), switched(), user_functions_as_operators(), attributes_replaced(named):
            yield forward
    finally:
        modes.close()  # under an export, PyTorch does not call the hook after an error
        for hook in hooks:
            hook.remove()


def switched() -> AbstractContextManager[None]:
    """Set PyTorch's switch inside by which flex_attention is not compiled; scans are, which a stance would not let."""
    return attributes_replaced({(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"): True})


def _is_count(buffer: Any) -> bool:
    """Return whether a buffer is a known whole number, as for EnCodec's padding, or a switch of FakeQuantize."""
    is_number = buffer.numel() == 1 and not (buffer.is_floating_point() or buffer.is_complex())
    return is_number and type(buffer) is torch.Tensor and has_numbers(buffer)


def _graph() -> Any:
    """Return the graph that is being traced, if any."""
    mode: Any = get_proxy_mode()
    return None if mode is None else mode.tracer.graph


def _behind(count: int) -> list[Any]:
    """Return the nodes of the traced graph behind the first ones."""
    graph = _graph()
    return [] if graph is None else list(itertools.islice(graph.nodes, count, None))


class TracedCalls(TorchFunctionMode):
    """A mode in which calls of some functions are answered, and the nodes of checkpoints are marked."""

    def __init__(self, answers: Mapping[Any, Callable[..., Any]]) -> None:
        self.answers = answers
        self.checkpoints: dict[FrameType, _CheckpointCall] = {}
        self.enabled = torch.is_grad_enabled()

    def __torch_function__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        if torch.compiler.is_dynamo_compiling():
            return function(*args, **named)
        graph = _graph()
        before = 0 if graph is None else len(graph.nodes)
        around = [each for frame in [*_frames()][::-1] if (each := self._checkpoint(frame, graph)) is not None]
        result = self._answer(function, args, named)
        if around:
            for node in (each for each in _behind(before) if each.op == "call_function"):
                marks = "/".join(f"{each.name}{'-' if node in each.kept else ''}" for each in around)
                mark(node, CHECKPOINT_KEY, marks)
        return result

    def _answer(self, function: Any, args: Any, named: Mapping[str, Any]) -> Any:
        if named.get("requires_grad"):
            self.answers[REQUIRES_GRAD]()
        if function == torch._C._set_grad_enabled:
            return self._set_grad_enabled(*args)
        answer = self.answers.get(function, function)
        if torch.is_inference_mode_enabled():  # an export has no_grad, but nothing for this
            with torch.inference_mode(False), torch.no_grad():
                return answer(*args, **named)
        return answer(*args, **named)

    def _set_grad_enabled(self, enabled: bool) -> Any:
        """Turn gradients on or off; what checkpoints do for themselves is no part of the graph."""
        for frame in _frames():
            if frame.f_code.co_filename not in (torch.autograd.grad_mode.__file__, __file__):
                break
            inner = frame
        if frame.f_code.co_filename != checkpoints.__file__:
            self.enabled = enabled
        elif frame.f_code is not _REENTRANT or (self.enabled and any(map(_learns, frame.f_locals["args"]))):
            with torch._C.DisableTorchFunction():
                return torch._C._set_grad_enabled(enabled or frame.f_code is _REENTRANT)
        elif inner.f_code.co_name == "__exit__":  # the backward pass of others computes no gradient
            enabled = self.enabled
        return torch._C._set_grad_enabled(enabled)

    def _checkpoint(self, frame: FrameType, graph: Any) -> _CheckpointCall | None:
        """Return the checkpoint whose function a frame calls."""
        if frame.f_code not in (_REENTRANT, _OTHER):
            return None
        if frame not in self.checkpoints and (known := _CheckpointCall.of(frame, len(self.checkpoints) + 1, graph)):
            self.checkpoints[frame] = known
        return self.checkpoints.get(frame)


_REENTRANT, _OTHER = checkpoints.CheckpointFunction.forward.__code__, inspect.unwrap(checkpoints.checkpoint).__code__


def _frames() -> Iterator[FrameType]:
    """Yield the frames of the traced code, without those that handle a call."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _learns(value: Any) -> bool:
    return bool(getattr(value, "requires_grad", False))


@dataclass
class _CheckpointCall:
    """A checkpoint that is being traced, and the nodes whose results its policy saves."""

    name: str
    kept: set[Any] = field(default_factory=set)

    @classmethod
    def of(cls, frame: FrameType, number: int, graph: Any) -> _CheckpointCall | None:
        """Return the checkpoint of a frame of PyTorch, once it calls its function."""
        named = frame.f_locals
        if frame.f_code is _REENTRANT:
            return cls(f"{number}!!")
        generator = named.get("gen")
        if generator is None or generator.gi_running:
            return None
        stops = checkpoints._enable_checkpoint_early_stop
        new = cls(f"{number}{'' if (named['early_stop'] if stops is None else stops) else '!'}")
        around = generator.gi_frame.f_locals["forward_context"]
        if isinstance(around, checkpoints._CachingTorchDispatchMode):
            around.policy_fn = new._asking(around.policy_fn, graph)
        return new

    def _asking(self, policy: Callable[..., Any], graph: Any) -> Callable[..., Any]:
        """Return a policy that notes what another one saves, and saves nothing."""

        def asked(context: Any, function: Any, *given: Any, **named: Any) -> Any:
            answer = policy(context, function, *given, **named)
            if graph is not None and (answer if isinstance(answer, bool) else not answer.name.endswith("_RECOMPUTE")):
                self.kept.add(next(reversed(graph.nodes)))
            return checkpoints.CheckpointPolicy.PREFER_RECOMPUTE

        return asked


def decided() -> dict[Any, Callable[..., Any]]:
    """Return the answers to Python's questions for the numbers of a traced tensor, where every size gives the same.

    An export has no values and refuses them. Other tensors are left to it.
    """
    of_tensor, detects = torch.Tensor, torch.nn.modules.transformer._detect_is_causal_mask
    kinds: dict[Any, Any] = {
        of_tensor.__bool__: bool,
        of_tensor.__int__: int,
        of_tensor.__float__: float,
        of_tensor.item: lambda number: number,
    }

    def answer(function: Any) -> Callable[[Any], Any]:
        def number(tensor: Any) -> Any:
            if (known := known_number(tensor)) is not None:
                return kinds[function](known)
            if function is of_tensor.__bool__ and calling(__file__).f_code is detects.__code__:
                return False  # whether a mask is causal, for a faster kernel, where a caller did not declare it so
            if function is of_tensor.__bool__ and (known := _if_finite(node_of(tensor))) is not None:
                return known
            return function(tensor)

        return number

    def equal(one: Any, other: Any) -> bool:
        identical = one.shape == other.shape and (one == other).all()
        if identical is False or (known := known_number(identical)) is not None:
            return bool(identical is not False and known)
        return torch.equal(one, other)

    def repeated(x: Any, repeats: Any, *more: Any, **named: Any) -> Any:
        if isinstance(repeats, torch.Tensor) and (known := known_number(repeats.sum())) is not None:
            named["output_size"] = int(known)
        return torch.repeat_interleave(x, repeats, *more, **named)

    selecting: dict[Any, Any] = {of_tensor.__getitem__: _read_at, torch.nonzero: _nonzero, of_tensor.nonzero: _nonzero}
    counts = dict.fromkeys((torch.repeat_interleave, of_tensor.repeat_interleave), repeated)
    known = {each: answer(each) for each in kinds}
    return {**known, torch.equal: equal, of_tensor.equal: equal, **selecting, **counts}


def _if_finite(node: Any) -> bool | None:
    """Return the truth of a check for infinities and nan if all numbers are finite; None for another condition."""
    name = "" if node is None else operator_name(node.target).partition(".")[0]
    first, *others = (None,) if node is None else node.args or (None,)
    if name in ("isfinite", "isnan", "isinf", "isposinf", "isneginf"):
        return name == "isfinite"
    if name in ("eq", "ne") and others[0] in (first, math.inf):  # how PyTorch writes isfinite and isnan
        return (name == "eq") == (others[0] is first)
    if name in ("all", "any", "abs", "alias", "_to_copy"):
        return _if_finite(first)
    if name == "logical_not":
        return None if (known := _if_finite(first)) is None else not known
    pair = [_if_finite(each) for each in (first, *others) if hasattr(each, "target")]
    if len(pair) < 2 or None in pair:
        return None
    joins = {"mul": all, "logical_and": all, "bitwise_and": all, "logical_or": any, "bitwise_or": any}
    return joins[name](map(bool, pair)) if name in joins else None


def known_number(tensor: Any) -> Any:
    """Return the number of a traced tensor; None if it depends on inputs or on sizes."""
    known = _values(tensor) if isinstance(tensor, torch.Tensor) and tensor.numel() == 1 else None
    return None if known is None else known.item()


def _values(tensor: Any) -> Any:
    """Return the values of a traced tensor; None if they depend on inputs or on sizes."""
    mode: Any = get_proxy_mode()
    if (node := node_of(tensor)) is None:
        is_known = type(tensor) is torch.Tensor and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        return tensor if is_known and tensor.device.type != "meta" else None
    held = ((each, getattr(mode.tracer.root, each.target, None)) for each in node.graph.nodes if each.op == "get_attr")
    constants = _ConstantsInOrder({each: value for each, value in held if hasattr(value, "dtype")})
    with _disable_current_modes():
        found = constants.values(node)
        return found[0] if found and all(torch.equal(each, found[0]) for each in found) else None


def _places(x: Any) -> Any:
    """Return the indices of what is not zero in a traced tensor, one tensor for each dimension; None as `_values`."""
    if not isinstance(x, torch.Tensor) or (known := _values(x)) is None:
        return None
    with _disable_current_modes():
        rows = [each.tolist() for each in known.nonzero(as_tuple=True)]
    return tuple(torch.tensor(row, dtype=torch.long, device=x.device) for row in rows)


def _read_at(x: Any, index: Any) -> Any:
    several = index if isinstance(index, tuple) else (index,)
    masks = {id(each): _places(each) for each in several if getattr(each, "dtype", None) is torch.bool}
    return x[tuple(place for each in several for place in masks.get(id(each)) or (each,))] if masks else x[index]


def _nonzero(x: Any, *, as_tuple: bool = False) -> Any:
    places = _places(x)
    return x.nonzero(as_tuple=as_tuple) if places is None else places if as_tuple else torch.stack(places, -1)


class _ConstantsInOrder(NodeConstants):
    """Values of nodes of a graph that is being traced, whose operators may write into earlier values."""

    def at(self, node: Any, sizes: Any) -> Any:
        known: dict[Any, Any] = {}

        def of(value: Any) -> Any:
            return torch.fx.node.map_arg(value, known.__getitem__)

        for each in _in_order(node):
            known[each] = self._value(each, sizes, of)
        return known[node]


def _in_order(node: Any) -> Iterator[Any]:
    """Yield the nodes that a node follows from in their order, with those that write into the memory of others."""
    wanted, written = {node}, {memory_of(node)}
    for each in reversed(node.graph.nodes):
        if each in wanted or any(memory_of(other) in written for other in changed_by(each)):
            wanted.add(each)
            if not isinstance(each.meta.get("val"), torch.SymInt | torch.SymFloat | torch.SymBool):
                wanted |= {*each.all_input_nodes}
                written |= {memory_of(other) for other in each.all_input_nodes} - {None}
    yield from (each for each in node.graph.nodes if each in wanted)

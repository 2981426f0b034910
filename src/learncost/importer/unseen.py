"""Refuse what an export does not see: a forward pass that changes which parameters are trainable, and in-place changes
that autograd does not see, of which an export makes steps that stop gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from learncost.importer.nodes import LEAF, mark, place_of
from learncost.importer.replaced import calling
from learncost.ir.errors import InputError

if TYPE_CHECKING:
    from learncost.importer.calls import TracedForward

REQUIRES_GRAD = "requires_grad"
"""The key of the answer to a call that makes a tensor which requires a gradient."""


class ChangedError(InputError):
    """A forward pass changes requires_grad."""


def answers_of_learning(forward: TracedForward, changes: bool) -> dict[Any, Callable[..., Any]]:
    """Return the answers to calls that make a parameter or change requires_grad, which are refused with `InputError`.

    The inputs for which requires_grad is set, also through a view as in wav2vec 2.0 of transformers, are noted.

    changes   whether the forward pass may change requires_grad, as one does that takes gradients
    """
    flag: Any = torch._C.TensorBase.requires_grad  # a descriptor

    def made() -> None:
        if _caller():
            raise InputError(
                "a tensor that requires a gradient is made in a forward pass, where no optimizer sees it: "
                "make it an nn.Parameter in __init__, or leave out that it requires a gradient"
            )

    def check(tensor: Any, requires_grad: bool) -> None:
        if flag.__get__(tensor) == requires_grad:
            return
        base = tensor._base if tensor._is_view() else tensor
        places = {place for place, each in enumerate(forward.given) if each is base}
        if requires_grad and places:
            forward.asked.update(places)
            return
        if changes or _follows_from_nothing(base):
            return
        node = node_of(tensor)
        if requires_grad and node is not None and node.op == "call_function":
            mark(node, LEAF, "set")
            return
        raise ChangedError(
            "requires_grad is changed in a forward pass, which is not exported: set it on parameters before"
        )

    def set_by_call(tensor: Any, requires_grad: bool = True) -> Any:
        name = _caller()
        if name == "__new__" and requires_grad:
            made()
        elif name:
            check(tensor, requires_grad)
        return tensor.requires_grad_(requires_grad)

    def set_by_name(tensor: Any, requires_grad: bool) -> None:
        if _caller():
            check(tensor, requires_grad)
        flag.__set__(tensor, requires_grad)

    return {
        REQUIRES_GRAD: made,
        torch.Tensor.requires_grad_: set_by_call,
        torch.Tensor.requires_grad.__set__: set_by_name,  # type: ignore[attr-defined]
    }


_TORCH = str(Path(torch.__file__).parent)
_OF_MODULES = torch.nn.Module.requires_grad_.__code__.co_filename
_OF_PARAMETERS = torch.nn.Parameter.__new__.__code__


def _caller() -> str:
    """Return the name of the traced function that calls; "" for one of PyTorch's, but for those that pass a flag on."""
    frame: Any = calling(__file__)
    name = frame.f_code.co_name
    if frame.f_code is _OF_PARAMETERS:
        frame = frame.f_back
    file = frame.f_code.co_filename
    traced = get_proxy_mode() is not None and (file == _OF_MODULES or not file.startswith(_TORCH))
    return name if traced else ""


def moved(part: Any) -> Callable[..., Any]:
    """Return the method `to` of a module, which refuses a change of parameters while it is traced."""
    move = part.to

    def to(*arguments: Any, **named: Any) -> Any:
        if get_proxy_mode() is None:
            return move(*arguments, **named)
        device, kind, *_ = torch._C._nn._parse_to(*arguments, **named)
        for tensor in (*part.parameters(), *part.buffers()):
            if kind and tensor.is_floating_point() and tensor.dtype != kind:
                raise InputError(
                    f"parameters become {kind} in a forward pass, which is not exported: convert them before, "
                    "or convert the tensors computed from them"
                )
            if device and tensor.device != device:
                return move(*arguments, **named)
        return part  # unchanged: PyTorch would put the parameters in again, which an export forbids

    return to


def node_of(tensor: Any) -> Any:
    """Return the node of a traced tensor; None for another."""
    mode: Any = get_proxy_mode()
    proxy: Any = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return None if proxy is None else proxy.proxy.node


def _follows_from_nothing(tensor: Any) -> bool:
    """Return whether a traced tensor depends only on sizes and numbers, such as zeros: it passes no gradient on."""
    if (node := node_of(tensor)) is None:
        return False
    left, seen = [node], set[Any]()
    while left:
        node = left.pop()
        if node.op in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), torch.Tensor):
            return False
        left += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
    return True


def check_changes(program: Any, learns: set[str]) -> None:
    """Refuse a change under `torch.no_grad`, or through `detach`, of a value that has a gradient and is read again.

    program   the exported program before functionalization
    learns    the placeholders that have a gradient
    Raises `InputError` with the module's path, file, and line.
    """
    _Changes().walk(program.graph, {}, learns, True)


class _Changes:
    """The values that depend on trainable ones, and the memory of theirs that was changed, in a graph and its
    subgraphs.
    """

    def __init__(self) -> None:
        self.learns: set[Any] = set()  # nodes
        self.written: set[int] = set()  # memory into which autograd saw a write of a trainable value
        self.apart: set[Any] = set()  # nodes that share memory with others, and no gradient
        self.unseen: dict[int, Any] = {}  # the change by memory

    def walk(self, graph: Any, given: dict[Any, Any], learns: set[str], enabled: bool) -> Any:
        """Return the outputs of a graph. `given` are the outer nodes of its placeholders, `enabled` is the grad
        mode.
        """
        results: Any = ()
        for node in graph.nodes:
            if node.op == "placeholder":
                if node.name in learns or self.learned(given.get(node)):
                    self.learns.add(node)
            elif node.op == "output":
                results = node.args[0]
                if not given:
                    self._read(node)
            elif node.op == "call_function":
                self._step(node, enabled)
        return results

    def _step(self, node: Any, enabled: bool) -> None:
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            inside = getattr(node.graph.owning_module, node.args[1].target).graph
            places = [each for each in inside.nodes if each.op == "placeholder"]
            results = self.walk(inside, dict(zip(places, node.args[2:], strict=True)), set(), bool(node.args[0]))
            for getitem in node.users:
                if self.learned(results[getitem.args[1]]):
                    self.learns.add(getitem)
            return
        if getattr(node.target, "__name__", "") == "getitem":
            if enabled and self.learned(node.args[0]):
                self.learns.add(node)
            return
        memory, detached = memory_of(node), "detach" in str(node.target)
        if enabled and not detached:
            self._read(node)
        shares = [each for each in node.all_input_nodes if memory_of(each) == memory]
        if detached or (shares and all(each in self.apart for each in shares)):
            self.apart.add(node)
        changed = list(changed_by(node))
        for each in changed:
            touched = memory_of(each)
            if touched is None or (enabled and each not in self.apart):
                continue
            if touched in self.written or any(memory_of(other) == touched for other in self.learns):
                self.unseen.setdefault(touched, node)
        value = node.meta.get("val")
        if detached or (isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())):
            return
        if any(self.learned(each) for each in (node.all_input_nodes if enabled else changed)):
            self.learns.add(node)
            if enabled:
                self.written |= {memory_of(each) or 0 for each in changed if each not in self.apart}

    def learned(self, node: Any) -> bool:
        """Return whether a node has a gradient."""
        return node in self.learns or (
            isinstance(node, _node_type()) and node not in self.apart and memory_of(node) in self.written
        )

    def _read(self, node: Any) -> None:
        for each in node.all_input_nodes:
            change = self.unseen.get(memory_of(each) or 0)
            if self.learned(each) and change is not None:
                raise InputError(
                    f"an in-place change{place_of(change)} of a tensor with a gradient, which is read again, is not "
                    "seen by autograd, which an export does not keep: write y = x + (changed - x).detach(), and "
                    "use y from then on"
                )


def _node_type() -> type:
    return torch.fx.Node


def changed_by(node: Any) -> Iterator[Any]:
    """Yield the arguments that a step writes into."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, torch.fx.Node):
                yield value


def memory_of(node: Any) -> int | None:
    """Return the identity of a value's memory."""
    value = node.meta.get("val")
    try:
        return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None
    except (NotImplementedError, RuntimeError):  # a tensor of torch.func, or one without memory
        return None

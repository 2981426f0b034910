"""Refuse forward passes that change which parameters are trainable, which an export does not see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

from learncost.importer.nodes import LEAF, mark
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

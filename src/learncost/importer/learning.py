"""Refuse forward passes that change which parameters are trainable, which an export does not see."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from learncost.importer.replaced import attributes_replaced
from learncost.ir.errors import InputError

FACTORIES = ("tensor", "ones", "zeros", "empty", "full", "eye", "rand", "randn", "arange", "linspace")
"""PyTorch's functions that make a tensor and have a `requires_grad` argument."""


class ChangedError(InputError):
    """A forward pass changes requires_grad."""


@contextmanager
def learning_kept(module: Any, changes: bool = False) -> Iterator[set[int]]:
    """Refuse, inside, a forward pass that makes a parameter or changes requires_grad or the type of one. Raises
    `InputError`.

    Yields the positions, among the flattened inputs, of those for which it sets requires_grad, also through a view, as
    wav2vec 2.0 of transformers does.

    changes   whether it may change requires_grad, as a forward pass does that takes gradients
    """
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    folder = str(Path(torch.__file__).parent)
    of_modules = torch.nn.Module.requires_grad_.__code__.co_filename

    def by_forward() -> bool:
        """Return whether the caller is traced code, and not PyTorch itself."""
        file = sys._getframe(2).f_code.co_filename
        return get_proxy_mode() is not None and (file == of_modules or not file.startswith(folder))

    make, change = torch.nn.Parameter.__new__, torch.Tensor.requires_grad_
    flag: Any = torch._C.TensorBase.requires_grad  # a descriptor

    def made() -> InputError:
        return InputError(
            "a tensor that requires a gradient is made in a forward pass, where no optimizer sees it: "
            "make it an nn.Parameter in __init__, or leave out that it requires a gradient"
        )

    given, asked = list[Any](), set[int]()

    def starts(_: Any, row: Any, by_name: Any) -> None:
        given[:] = torch.utils._pytree.tree_leaves((row, by_name))

    def check(tensor: Any, requires_grad: bool) -> None:
        if flag.__get__(tensor) == requires_grad:
            return
        base = tensor._base if tensor._is_view() else tensor
        places = {place for place, each in enumerate(given) if each is base}
        if requires_grad and places:
            asked.update(places)
            return
        if changes or _follows_from_nothing(base):
            return
        raise ChangedError(
            "requires_grad is changed in a forward pass, which is not exported: set it on parameters before, and "
            "do not set it on computed tensors (for transformers: call gradient_checkpointing_enable() once, after "
            "get_peft_model(), and then disable_input_require_grads(): without use_reentrant it needs none)"
        )

    def new(kind: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if requires_grad and by_forward():
            raise made()
        return make(kind, data, requires_grad)

    def set_by_call(tensor: Any, requires_grad: bool = True) -> Any:
        if by_forward():
            check(tensor, requires_grad)
        return change(tensor, requires_grad)

    def set_by_name(tensor: Any, requires_grad: bool) -> None:
        if by_forward():
            check(tensor, requires_grad)
        flag.__set__(tensor, requires_grad)

    def kept(factory: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if named.get("requires_grad") and by_forward():
                raise made()
            return factory(*arguments, **named)

        return run

    move = torch.nn.Module.to

    def moved(module: Any, *arguments: Any, **named: Any) -> Any:
        if not by_forward():
            return move(module, *arguments, **named)
        device, kind, *_ = torch._C._nn._parse_to(*arguments, **named)
        for tensor in (*module.parameters(), *module.buffers()):
            if kind and tensor.is_floating_point() and tensor.dtype != kind:
                raise InputError(
                    f"parameters become {kind} in a forward pass, which is not exported: convert them before, "
                    "or convert the tensors computed from them"
                )
            if device and tensor.device != device:
                return move(module, *arguments, **named)
        return module  # unchanged: PyTorch would put the parameters in again, which an export forbids

    put_in: dict[tuple[Any, str], Any] = {
        (torch.nn.Parameter, "__new__"): new,
        (torch.nn.Module, "to"): moved,
        (torch.Tensor, "requires_grad_"): set_by_call,
        (torch.Tensor, "requires_grad"): property(flag.__get__, set_by_name),
        **{(torch, name): kept(getattr(torch, name)) for name in FACTORIES},
    }
    with attributes_replaced(put_in), module.register_forward_pre_hook(starts, with_kwargs=True):
        yield asked


def _follows_from_nothing(tensor: Any) -> bool:
    """Return whether a traced tensor depends only on sizes and numbers, such as zeros: it passes no gradient on."""
    import torch
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

    mode: Any = get_proxy_mode()
    proxy = get_proxy_slot(tensor, mode.tracer, None)
    if proxy is None:
        return False
    left, seen = [proxy.proxy.node], set[Any]()
    while left:
        node = left.pop()
        if node.op in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), torch.Tensor):
            return False
        left += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
    return True

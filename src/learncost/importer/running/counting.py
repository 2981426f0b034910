"""Record allocations and frees of operators that run on tensors without values.

PyTorch runs the step with its own autograd, which decides what is saved for the backward pass, which views share
memory, and when a Python name releases a tensor. Three things differ from a run with values and are corrected here:
accumulated gradients and filled zeros are allocated anew, where a run adds in place; workspace of kernels is not seen
(`kernels`); integers and booleans would have no values, so they are computed.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from learncost.importer.running.kernels import buffers, packed, results
from learncost.program.autograd.state import RunUsage

MOST = 2**22
"""The most elements of a tensor that is computed."""
_VALUE = "_learncost_value"


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records every new tensor storage as an allocation, until nothing refers to it.

    path  of the module whose forward runs
    made  the label of tensors that are made before the step, if any
    """

    def __init__(self, running: RunUsage) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.running, self.path, self.made, self.backwards = running, "", "", False
        self._there: dict[int, Any] = {}
        self._met: list[tuple[Any, str]] = []
        self._zeros: set[int] = set()
        self._paths: dict[int, str] = {}

    def take(self, tensor: torch.Tensor, label: str) -> None:
        """Record the memory of a tensor, if it is new."""
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._there:
            return
        size, account = memory.nbytes(), self.running.account

        def gone(_: object) -> None:
            if self._there.pop(key, None) is not None:
                self.running.label = label
                account.give(key, size)

        self.running.label = label
        self._there[key] = weakref.ref(memory, gone)
        account.take(key, size)

    def call_gradients(self, tensors: Iterator[torch.Tensor]) -> None:
        """Label these tensors as the gradients of weights."""
        for tensor in tensors:
            self.running.account.log.call(tensor.untyped_storage()._cdata, "gradients")

    def settle(self) -> None:
        """Record accumulated gradients and filled zeros after their operands are freed, whose memory they reuse in a
        run; if other references to the operands exist, they are not freed.
        """
        for met, label in self._met:
            if (there := met()) is not None:
                self.take(there, label)
        self._met = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.settle()
        answer = _answered(func, args, kwargs)
        if answer is not None:
            return answer[0]
        result = results(func, args, kwargs)
        _compute(func, args, kwargs, result)
        node = torch._C._current_autograd_node()
        new = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        new = [each for each in new if each.untyped_storage()._cdata not in self._there]
        label = self._label(func, node)
        if self.backwards and (self._meets(func, args) or self._fills(args)):
            self._met += [(weakref.ref(each), label) for each in new]
        else:
            for each in new:
                self.take(each, label)
        if self.backwards and "zeros" in func._schema.name:
            self._zeros = {each.untyped_storage()._cdata for each in new}
        self._buffered(func, args, kwargs, result, label)
        return result

    @staticmethod
    def _meets(func: Any, args: Any) -> bool:
        """Return whether the engine accumulates two gradients, adding the second to the first in place."""
        return func is torch.ops.aten.add.Tensor and _in_place(args[0])

    def _fills(self, args: Any) -> bool:
        """Return whether a formula fills zeros that it allocated, which a run does in place (`FunctionsManual.cpp`)."""
        first = args[0] if args else None
        return isinstance(first, torch.Tensor) and first.untyped_storage()._cdata in self._zeros

    def _buffered(self, func: Any, args: Any, kwargs: Any, result: Any, label: str) -> None:
        """Record the workspace of a CPU kernel while it runs."""
        if self.running.device != "cpu":
            return
        if size := packed(func, args, result):
            self.running.most = max(self.running.most, self.running.account.now + size)
        if size := buffers(func, args, kwargs, result):
            self.running.label = label
            self.running.account.buffer(size)

    def _label(self, func: Any, node: Any) -> str:
        """Return the label of an operation: an operator of a module, or its gradients."""
        if self.made:
            return self.made
        name = str(func).split(".")[1].strip("_")
        if node is None or not self.backwards:
            self._paths[torch.autograd._get_sequence_nr()] = self.path  # type: ignore[attr-defined]
            return f"{self.path}: {name}" if self.path else name
        path = self._paths.get(node._sequence_nr() + 1, "")
        return f"{path}: {name}, backward" if path else f"{name}, backward"


def starred(path: str) -> str:
    """Return a module's path with the number of a block as a wildcard: blocks.*.norm."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def knows(tensor: Any, value: torch.Tensor) -> None:
    """Attach the known values to a tensor without values."""
    setattr(tensor, _VALUE, value)


def _in_place(gradient: Any) -> bool:
    """Return whether the engine may add to a gradient in place (`input_buffer.cpp`): it must be contiguous and not
    shared.

    A view, as of a weight that is transposed for a read, shares the memory of its base.
    """
    if not isinstance(gradient, torch.Tensor) or gradient._is_view():
        return False
    return bool(torch.ops.aten.is_non_overlapping_and_dense(gradient))


def _known(tensor: Any) -> torch.Tensor | None:
    """Return the values of a tensor, if known: a tensor made of Python numbers has its values."""
    value: torch.Tensor | None = getattr(tensor, _VALUE, None if isinstance(tensor, FakeTensor) else tensor)
    return value


def _answered(func: Any, args: Any, kwargs: Mapping[str, Any]) -> tuple[Any] | None:
    """Return the answer to a query by Python for values that are known."""
    if func is torch.ops.aten._local_scalar_dense.default and (value := _known(args[0])) is not None:
        with torch.utils._python_dispatch._disable_current_modes():
            return (value.item(),)
    return None


def _compute(func: Any, args: Any, kwargs: Mapping[str, Any], result: Any) -> None:
    """Compute an operator whose operands all have known values, so that its results are known too."""
    results = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
    operands = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    known = [_known(each) for each in operands]
    if not results or any(value is None for value in known) or any(each.numel() > MOST for each in results):
        _forget(func, operands)
        return
    drawn = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name
    if drawn:
        _forget(func, operands)
        return
    values = iter(known)
    kwargs = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") else kwargs
    real_args, real_kwargs = tree_map(
        lambda each: next(values) if isinstance(each, torch.Tensor) else each, (args, dict(kwargs))
    )
    with torch.utils._python_dispatch._disable_current_modes():
        computed = func(*real_args, **real_kwargs)
    for each, value in zip(results, tree_leaves(computed), strict=True):
        knows(each, value)


def _forget(func: Any, operands: list[torch.Tensor]) -> None:
    """Mark the values of tensors that an operator writes to as unknown."""
    if func._schema.is_mutable:
        for each in operands:
            if hasattr(each, _VALUE):
                delattr(each, _VALUE)

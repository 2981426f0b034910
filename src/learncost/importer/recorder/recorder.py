"""Record the operators that run on tensors without values as a program.

PyTorch runs the step with its own autograd, which decides what is saved for the backward pass, which views share
memory, and when a Python name releases a tensor. Three things differ from a run with values and are corrected here:
accumulated gradients and filled zeros are allocated anew, where a run adds in place; workspace of kernels is not seen
(`workspace`); integers and booleans would have no values, so they are computed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves, tree_map

from learncost.importer.inputs import MOST
from learncost.importer.recorder.workspace import buffers, packed, results
from learncost.program.optimizer_step import STEP
from learncost.program.program import (
    BACKWARD,
    BEFORE,
    EVENT,
    FORWARD,
    OPTIMIZER,
    RECOMPUTE,
    Buffer,
    Operand,
    Program,
    ProgramBuilder,
    ProgramOp,
    made_in,
    starred,
)

_VALUE = "_learncost_value"


class Recorder(ProgramBuilder, TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that records every operator, and every storage until nothing refers to it.

    path  of the module whose forward runs
    """

    def __init__(self, device: str) -> None:
        ProgramBuilder.__init__(self, device)
        TorchDispatchMode.__init__(self)  # type: ignore[no-untyped-call]
        self.path = ""
        self._there: dict[int, tuple[int, Any]] = {}
        self._deferred: list[tuple[Any, str, int]] = []
        self._zeros: set[int] = set()
        self._paths: dict[int, str] = {}
        self._given: tuple[str, str] | None = None
        self._compiled, self.stream = False, 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Return that torch.compile need not inline it: what is compiled runs under it."""
        return True

    @contextmanager
    def in_compiled(self) -> Iterator[None]:
        """Record what runs inside as issued by generated code."""
        before, self._compiled = self._compiled, True
        try:
            yield
        finally:
            self._compiled = before

    def launch(self, name: str, inputs: list[Operand], outputs: list[Operand], arguments: Mapping[str, Any]) -> None:
        """Record a generated kernel."""
        where = self._phase(), self.microbatch, self._written(outputs, name.rpartition("::")[2])
        self.ops.append(ProgramOp(name, "", tuple(inputs), tuple(outputs), arguments, *where, compiled=True))

    def release(self, tensor: torch.Tensor) -> None:
        """Record that a tensor's memory is freed while the tensor stays, as FSDP2 does with gathered weights."""
        if there := self._there.pop(tensor.untyped_storage()._cdata, None):
            self.free(there[0])

    def mark(self, name: str, event: int, stream: int) -> None:
        """Record that a stream records an event, or waits for it."""
        if self.is_active:
            where = self._phase(), self.microbatch, name
            self.ops.append(ProgramOp(f"stream::{name}", "", (), (), {EVENT: event}, *where, stream=stream))

    @property
    def is_active(self) -> bool:
        """Return whether what runs now is recorded."""
        return _get_current_dispatch_mode() is self and not self._given

    def _written(self, outputs: Iterable[Operand], label: str) -> str:
        """Return the label of a compiled op, which it gives to the buffers that generated code allocated for it."""
        for each in outputs:
            if self.buffers[each.buffer].label.startswith("empty_strided"):
                self.buffers[each.buffer].label = label
        return label

    @contextmanager
    def given(self, role: str, label: str) -> Iterator[None]:
        """Record what is made inside as buffers that are there before the step, and no ops."""
        self._given = role, label
        try:
            yield
        finally:
            self._given = None

    def assign_all(self, tensors: Iterable[torch.Tensor], role: str) -> None:
        """Set the role of the buffers of tensors."""
        for tensor in tensors:
            if there := self._there.get(getattr(tensor, "_local_tensor", tensor).untyped_storage()._cdata):
                self.assign(there[0], role)

    def program(self) -> Program:
        """Return what was recorded; buffers that are not freed last to the end."""
        self.settle()
        return super().program()

    def settle(self) -> None:
        """Record accumulated gradients and filled zeros after their operands are freed, whose memory they reuse in a
        run; if other references to the operands exist, they are not freed.
        """
        for deferred, label, place in self._deferred:
            if (tensor := deferred()) is not None:
                op = self.ops[place]
                name = "aten::add_" if op.name == "aten::add" and op.inputs[0].buffer not in self._open else op.name
                self.ops[place] = op._replace(name=name, outputs=(*op.outputs, self.operand(tensor, label)))
        self._deferred = []

    def _take(self, tensor: torch.Tensor, label: str) -> int:
        """Return the buffer of a tensor, recorded if it is new."""
        memory = tensor.untyped_storage()
        key = memory._cdata
        if key in self._there:
            return self._there[key][0]
        role, label = self._given or (made_in(self._phase()), label)
        first = BEFORE if self._given else len(self.ops)
        place = self.add(Buffer(memory.nbytes(), tensor.device.type, role, label, first, BEFORE))

        def gone(_: object) -> None:
            if self._there.pop(key, None) is not None:
                self._zeros.discard(key)  # another storage may get the address
                self.free(place)

        self._there[key] = place, weakref.ref(memory, gone)
        return place

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.ops.prim.device.default:
            return func(*args, **kwargs)
        if any(hasattr(each, "_local_tensor") for each in tree_leaves((args, kwargs))):
            return NotImplemented  # a DTensor runs its operators on its part
        self.settle()
        inputs = _tensors((args, {name: each for name, each in kwargs.items() if name not in _written(func)}))
        answer = _answered(func, args, self.phase == OPTIMIZER)
        result = answer[0] if answer else results(func, args, kwargs)
        outputs = _tensors(result)
        if not answer:
            _compute(func, args, kwargs, inputs, outputs)
        if self._given:
            for each in outputs:
                self._take(each, "")
        elif inputs or outputs:
            self._record(func, args, kwargs, result, inputs, outputs)
        return result

    def _record(
        self, func: Any, args: Any, kwargs: Any, result: Any, inputs: list[torch.Tensor], outputs: list[torch.Tensor]
    ) -> None:
        node, phase = torch._C._current_autograd_node(), self._phase()
        path = self._path(node if phase == BACKWARD else None)
        label = _label(func, phase, path)
        read = tuple(self.operand(each, label) for each in inputs)
        if phase == BACKWARD and self._in_memory(func, args):
            new = {id(each) for each in outputs if each.untyped_storage()._cdata not in self._there}
            self._deferred += [(weakref.ref(each), label, len(self.ops)) for each in outputs if id(each) in new]
            outputs = [each for each in outputs if id(each) not in new]
        written = tuple(self.operand(each, label) for each in outputs)
        if phase == BACKWARD and "zeros" in func._schema.name:
            self._zeros = {each.untyped_storage()._cdata for each in outputs}
        op = ProgramOp(func._schema.name, func._schema.overload_name, read, written, _arguments(func, args, kwargs),
                phase, self.microbatch, label, path, node.name() if node is not None else "")  # fmt: skip
        if self.device == "cpu":
            op = op._replace(scratch=buffers(func, args, kwargs, result), library=packed(func, args, result))
        else:
            waits = func is torch.ops.aten._local_scalar_dense.default and inputs[0].device.type == self.device
            op = op._replace(synchronizes=waits, compiled=self._compiled, stream=self.stream)
        if func._schema.overload_name == "out":
            self._written(written, label)
        self.ops.append(op)

    def operand(self, tensor: torch.Tensor, label: str) -> Operand:
        """Return a tensor as an op reads or writes it."""
        dense = tensor.layout is torch.strided
        strides, offset = (tuple(tensor.stride()), int(tensor.storage_offset())) if dense else ((), 0)
        kind = str(tensor.dtype).removeprefix("torch.")
        return Operand(self._take(tensor, label), tuple(tensor.shape), kind, strides, offset)

    def _phase(self) -> str:
        """Return the phase; gradients are enabled in the backward pass only where a checkpoint computes again."""
        return RECOMPUTE if self.phase == BACKWARD and torch.is_grad_enabled() else self.phase

    def _in_memory(self, func: Any, args: Any) -> bool:
        """Return whether a run writes in place of its first operand: the engine adds a second gradient to it, or a
        formula fills zeros that it allocated (`FunctionsManual.cpp`)."""
        first = args[0] if args else None
        fills = isinstance(first, torch.Tensor) and first.untyped_storage()._cdata in self._zeros
        return fills or (func is torch.ops.aten.add.Tensor and _in_place(first))

    def _path(self, node: Any) -> str:
        """Return the module that runs an operator, or that ran what it is the gradient of."""
        if node is None:
            self._paths.setdefault(torch.autograd._get_sequence_nr(), self.path)  # type: ignore[attr-defined]
            return self.path
        return self._paths.get(node._sequence_nr() + 1, "")


def _label(func: Any, phase: str, path: str) -> str:
    """Return the label of an operator: a module and its operator, or the gradients of one."""
    if phase not in (FORWARD, RECOMPUTE, BACKWARD):
        return STEP
    name = str(func).split(".")[1].strip("_") + (", backward" if phase == BACKWARD else "")
    return f"{starred(path)}: {name}" if path else name


def knows(tensor: Any, value: torch.Tensor) -> None:
    """Attach the known values to a tensor without values."""
    setattr(tensor, _VALUE, value)


@lru_cache(maxsize=1024)
def _written(func: Any) -> frozenset[str]:
    """Return the names of an operator's arguments `out`."""
    return frozenset(each.name for each in func._schema.arguments if each.is_out)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(values) if isinstance(each, torch.Tensor)]


PLAIN = (bool, int, float, str, type(None))


def _arguments(func: Any, args: Any, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments other than tensors by name, types and devices as text."""
    named = {**{each.name: value for each, value in zip(func._schema.arguments, args, strict=False)}, **kwargs}
    plain = dict[str, Any]()
    for name, value in named.items():
        if isinstance(value, list | tuple):
            if not any(isinstance(each, torch.Tensor) for each in value):
                plain[name] = tuple(each if isinstance(each, PLAIN) else str(each) for each in value)
        elif not isinstance(value, torch.Tensor):
            plain[name] = value if isinstance(value, PLAIN) else str(value)
    return plain


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


def _answered(func: Any, args: Any, any_value: bool) -> tuple[Any] | None:
    """Return the answer to a query by Python for values that are known; 1 for others where any value will do."""
    if func is not torch.ops.aten._local_scalar_dense.default:
        return None
    if (value := _known(args[0])) is not None:
        with torch.utils._python_dispatch._disable_current_modes():
            return (value.item(),)
    return (1.0,) if any_value else None


def _compute(
    func: Any, args: Any, kwargs: Mapping[str, Any], inputs: list[torch.Tensor], outputs: list[torch.Tensor]
) -> None:
    """Compute an operator whose operands all have known values, so that its results are known too."""
    known = [_known(each) for each in inputs]
    if func is torch.ops.aten.rand.default and outputs[0].numel() == 1:  # as a module asks which layers to drop
        with torch.utils._python_dispatch._disable_current_modes():
            knows(outputs[0], torch.full(outputs[0].shape, 0.5))
        return
    drawn = torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name
    unknown = any(value is None for value in known) or any(each.numel() > MOST for each in outputs)
    changes = func._schema.is_mutable
    if drawn or unknown or not (outputs or changes):
        for each in inputs if changes else ():
            if hasattr(each, _VALUE):
                delattr(each, _VALUE)
        return
    values = iter(known)
    kwargs = {**kwargs, "device": torch.device("cpu")} if kwargs.get("device") else kwargs
    real_args, real_kwargs = tree_map(
        lambda each: next(values) if isinstance(each, torch.Tensor) else each, (args, dict(kwargs))
    )
    with torch.utils._python_dispatch._disable_current_modes():
        computed = func(*real_args, **real_kwargs)
    for each, value in zip(outputs, _tensors(computed), strict=True):
        knows(each, value)

"""Record a module's step on the first of several devices, without a GPU and without the other devices.

FSDP2 wraps the module under PyTorch's fake process group, which sends nothing: collectives are ops with their sizes,
and streams and events are recorded in place of those of CUDA. DDP's reducer reads the memory of gradients, and cannot
run without values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_param
from torch.distributed.fsdp._fully_shard._fsdp_param import free_storage
from torch.testing._internal.distributed.fake_pg import FakeStore

from learncost.importer.recorder.recorder import Recorder
from learncost.importer.replaced import attributes_replaced
from learncost.program.program import StepRequest


class _Streams:
    """Streams and events of a device without a GPU, by their numbers; the ops of a stream run in order."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.events, self.streams = recorder, 0, 0
        self.first = self.stream()

    def stream(self, *_: Any, **__: Any) -> _Stream:
        self.streams += 1
        return _Stream(self, self.streams - 1)

    def event(self, *_: Any, **__: Any) -> _StreamEvent:
        self.events += 1
        return _StreamEvent(self, self.events)

    def current(self, *_: Any) -> _Stream:
        return _Stream(self, self.recorder.stream)

    @contextmanager
    def on(self, stream: _Stream | None) -> Iterator[None]:
        before = self.recorder.stream
        self.recorder.stream = before if stream is None else stream.number
        try:
            yield
        finally:
            self.recorder.stream = before


class _Stream:
    def __init__(self, streams: _Streams, number: int) -> None:
        self.streams, self.number = streams, number

    def record_event(self, event: _StreamEvent | None = None) -> _StreamEvent:
        return (event or self.streams.event()).record(self)

    def wait_event(self, event: _StreamEvent) -> None:
        event.wait(self)

    def wait_stream(self, other: _Stream) -> None:
        self.wait_event(other.record_event())

    def synchronize(self) -> None:
        """Do nothing: no value is known that the CPU could wait for."""


class _StreamEvent:
    def __init__(self, streams: _Streams, number: int) -> None:
        self.streams, self.number = streams, number

    def record(self, stream: _Stream | None = None) -> _StreamEvent:
        self.streams.recorder.mark("record", self.number, (stream or self.streams.current()).number)
        return self

    def wait(self, stream: _Stream | None = None) -> None:
        self.streams.recorder.mark("wait", self.number, (stream or self.streams.current()).number)

    def synchronize(self) -> None:
        """Do nothing: no value is known that the CPU could wait for."""


@contextmanager
def first_of_several(recorder: Recorder, request: StepRequest) -> Iterator[Callable[[Any], Any]]:
    """Yield a function that wraps a module for the first of the request's devices."""
    assert request.devices
    streams = _Streams(recorder)

    def free(tensor: Any) -> None:
        recorder.release(tensor)
        free_storage(tensor)

    answers: dict[tuple[Any, str], Any] = {
        (torch.cuda, "current_device"): lambda: 0,
        (torch.cuda, "set_device"): lambda _: None,
        (torch.cuda, "current_stream"): streams.current,
        (torch.cuda, "stream"): streams.on,
        (torch.cuda, "Stream"): streams.stream,
        (torch.cuda, "Event"): streams.event,
        (_fsdp_param, "free_storage"): free,
    }
    kind = torch.device(request.device).type
    distributed.init_process_group("fake", rank=0, world_size=request.devices, store=FakeStore())
    try:
        with attributes_replaced(answers):
            devices = init_device_mesh(kind, (request.devices,))
            yield lambda module: wrapped(module, request, devices)
    finally:
        distributed.destroy_process_group()


def wrapped(module: Any, request: StepRequest, devices: Any) -> Any:
    """Return a module under FSDP2, block by block and then the rest."""
    narrow = torch.bfloat16 if request.gathered == "bf16" else None
    policy = MixedPrecisionPolicy(narrow, torch.float32 if narrow else None)
    for block in blocks(module):
        fully_shard(block, mesh=devices, mp_policy=policy, reshard_after_forward=request.placement != "zero-2")
    return fully_shard(module, mesh=devices, mp_policy=policy)


def blocks(module: Any) -> list[Any]:
    """Return the blocks of a module: the members of its outermost lists of modules of one class."""
    found, inside = list[Any](), list[str]()
    for path, part in module.named_modules():
        is_list = isinstance(part, nn.ModuleList | nn.Sequential) and len(part) > 1
        if is_list and len({type(each) for each in part}) == 1 and not path.startswith(tuple(inside)):
            inside.append(f"{path}.")
            found += list(part)
    return found

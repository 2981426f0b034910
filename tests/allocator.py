"""The most bytes that PyTorch's allocator hands out at once, as PyTorch says it."""

import gc
import re

import torch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint

PRODUCT = re.compile(
    r"aten::(addmm|mm|baddbmm|bmm|addmv|\w*(flash|efficient|cudnn)_attention\w*|mkldnn_\w+|\w*conv\w*)_?"
)
"""Operators whose kernels take buffers for themselves."""
SENDER = re.compile(r"c10d::\w+|gloo:\w+")
"""What sends for collectives, with copies of its own that its threads give back some time after the message."""


def looked_through():
    """Free what was there before and would go meanwhile; what stays is not walked again by the next call.

    PyTorch and transformers are more than a million objects, which take half a second.
    """
    gc.collect()
    gc.freeze()


def most(run, device="cpu"):
    """The peak of what `run` allocates and has not given back yet; what was there before does not count.

    On a processor the profiler's own record of every allocation, temporaries of operators among them; on CUDA what was
    asked of the caching allocator, without what it rounds up and what libraries keep.
    """
    looked_through()
    if device == "cuda":
        before = workspaces()
        torch.cuda.reset_peak_memory_stats()
        run()
        return torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    return apart(run)[0]


def workspaces():
    """The bytes that are there on a GPU once products with a bias ran in both types and both threads, that of the
    forward and that of the backward pass: cuBLAS keeps workspaces for each."""
    for dtype in (torch.float32, torch.bfloat16):
        layer = torch.nn.Sequential(*(torch.nn.Linear(256, 256, device="cuda", dtype=dtype) for _ in range(2)))
        x = torch.ones(256, 256, device="cuda", dtype=dtype, requires_grad=True)
        checkpoint(layer, x, use_reentrant=False).sum().backward()
    del layer, x
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_stats()["requested_bytes.all.current"]


def apart(run):
    """The peak on a processor, and the peak without what a product takes and gives back before it ends, and without
    the copies of who sends for collectives.

    How much that is depends on the processor and its library (oneDNN's packed operands), or on gloo, not on the module.
    """
    looked_through()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = []

    def collect(found, product):
        for event in found:
            if event.name == "[memory]":
                fields = event.extra_fields
                events.append((event.start_time_ns, fields.ptr, fields.alloc_size, product))
            else:
                inside = PRODUCT.fullmatch(event.name) or SENDER.fullmatch(event.name)
                collect(event.children, product or (event if inside else None))

    collect(profiled.profiler.kineto_results.experimental_event_tree(), None)
    events.sort(key=lambda event: event[0])
    open_rooms, buffers = {}, set()
    for number, (when, place, size, product) in enumerate(events):
        if size > 0:
            open_rooms[place] = number, product
        elif place in open_rooms:
            first, product = open_rooms.pop(place)
            if product and (when <= product.end_time_ns or SENDER.fullmatch(product.name)):
                buffers |= {first, number}
    return _peak(events), _peak(event for number, event in enumerate(events) if number not in buffers)


def _peak(events):
    alive, now, peak = {}, 0, 0
    for _, place, size, _ in events:
        if size > 0:
            alive[place] = size
            now += size
            peak = max(peak, now)
        else:
            now -= alive.pop(place, 0)
    return peak


def scratch():
    """What oneDNN may take from the allocator while it computes one product in bf16: most seen was 1.2 MiB a thread, on
    a processor with AMX, whatever the product."""
    return 2**21 * torch.get_num_threads()

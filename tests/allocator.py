"""The most bytes that PyTorch's allocator hands out at once, as PyTorch says it."""

import gc

import torch
from torch.profiler import ProfilerActivity, profile


def most(run, device="cpu"):
    """The peak of what `run` allocates and has not given back yet; what was there before does not count.

    On a processor the profiler's own record of every allocation, temporaries of operators among them; on CUDA what the
    caching allocator says.
    """
    gc.collect()  # what was there before and goes meanwhile
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events = []

    def collect(found):
        for event in found:
            if event.name == "[memory]":
                events.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
            collect(event.children)

    collect(profiled.profiler.kineto_results.experimental_event_tree())
    alive, now, peak = {}, 0, 0
    for _, place, size in sorted(events, key=lambda event: event[0]):
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

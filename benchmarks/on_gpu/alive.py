"""What is there at the peak of a run on a GPU, by PyTorch's profiler."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from allocator import PRODUCT  # of the tests, whose folder peaks.py has put on the path


def alive(run: Callable[[], object]) -> tuple[int, int, list[tuple[int, int, str]]]:
    """The peak by the profiler; the same without buffers, which the operator gives back that took them; and what is
    there at that moment: bytes, how many, and the operators that made it."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    events: list[tuple[int, int, int, int, str]] = []

    def collect(found: Any, ends: int, above: str, whole: bool = False) -> None:
        for event in found:
            if event.name == "[memory]":
                fields = event.extra_fields
                if "cuda" in str(fields.device).lower():
                    events.append((event.start_time_ns, fields.ptr, fields.alloc_size, ends, above))
                continue
            inside = PRODUCT.fullmatch(event.name) is not None
            until = event.end_time_ns if event.name.startswith("aten::") and not whole else ends
            collect(event.children, until, f"{above} < {event.name}"[-120:], whole or inside)

    collect(profiled.profiler.kineto_results.experimental_event_tree(), 0, "")
    events.sort()
    taken: dict[int, tuple[int, int, str]] = {}
    buffers: set[int] = set()
    for number, (when, place, size, ends, above) in enumerate(events):
        if size > 0:
            taken[place] = number, ends, above
        elif place in taken:
            first, until, _ = taken.pop(place)
            if when <= until:
                buffers |= {first, number}
    whole, _ = _most(events)
    without, there = _most([event for number, event in enumerate(events) if number not in buffers])
    return whole, without, there


def _most(events: Sequence[tuple[int, int, int, int, str]]) -> tuple[int, list[tuple[int, int, str]]]:
    there: dict[int, tuple[int, str]] = {}
    now, most, at_most = 0, 0, list[tuple[int, str]]()
    for _, place, size, _, above in events:
        if size > 0:
            there[place] = size, above
            now += size
            if now > most:
                most, at_most = now, [*there.values()]
        else:
            now -= there.pop(place, (0, ""))[0]
    groups = {each: at_most.count(each) for each in dict.fromkeys(at_most)}
    rows = [(size, many, above) for (size, above), many in groups.items()]
    return most, sorted(rows, key=lambda row: -row[0] * row[1])[:40]

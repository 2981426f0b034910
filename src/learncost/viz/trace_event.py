"""A timeline in the Trace Event Format, the JSON that Perfetto and chrome://tracing open.

The format: "Trace Event Format", Google, 2016: an object with traceEvents, of which X is a slice with its duration, C a
counter, M what a process or a thread is called; ts and dur are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from learncost.viz.timeline import Timeline, TimelineProcess

THREAD = 1


def trace_events(timeline: Timeline) -> dict[str, Any]:
    """The timeline as the object that such a file holds."""
    events = [event for number, process in enumerate(timeline.processes, 1) for event in _events(process, number)]
    return {"displayTimeUnit": "ns", "otherData": dict(timeline.facts), "traceEvents": events}


def _events(process: TimelineProcess, number: int) -> Iterator[dict[str, Any]]:
    where = {"pid": number, "tid": THREAD}
    yield {"ph": "M", "name": "process_name", **where, "args": {"name": process.name}}
    yield {"ph": "M", "name": "process_sort_index", **where, "args": {"sort_index": number}}
    yield {"ph": "M", "name": "thread_name", **where, "args": {"name": "step"}}
    for part in process.walk():
        times = {"ts": part.start / 1000, "dur": part.length / 1000}
        args = {"kind": part.kind, **part.facts}
        yield {"ph": "X", "name": part.name, "cat": part.category, **where, **times, "args": args}
    for counter in process.counters:
        for at, value in counter.values:
            event = {"name": counter.name, "cat": "memory", **where, "ts": at / 1000}
            yield {"ph": "C", **event, "args": {counter.unit: value}}

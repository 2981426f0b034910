"""The most bytes that a step of one process of several takes, as PyTorch's allocator hands them out."""

import time
from contextlib import contextmanager

import torch

from allocator import apart
from learncost.backends import fill, leaves, program
from learncost.engines.in_place import InPlace, library_products
from learncost.ir.polynomial import shape_of
from learncost.sharding.collective import bucketed

TRIES = 3
"""How often a step runs: what a thread of gloo still holds is more in one run, and less in another."""


@contextmanager
def letting_go(module=torch.ops._c10d_functional, names=("wait_tensor",)):
    """Wait a moment after each message: gloo's threads let go of what was sent some time after it is there, at a moment
    that is another one in every run.

    names  the functions of the module behind which a message is there
    """
    before = {name: getattr(module, name) for name in names}

    def waiting(function):
        def waited(*arguments, **flags):
            result = function(*arguments, **flags)
            time.sleep(0.01)
            return result

        return waited

    for name, function in before.items():
        setattr(module, name, waiting(function))
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(module, name, function)


def most_of_a_process(answer, devices):
    """The peak of a step of which `lc.memory` gave the answer: in place where that says so, else as operators."""
    table, sizes = bucketed(answer.over.placed.table), {**answer.over.sizes, **answer.over.placed.sizes}
    kind = torch.float64 if answer.dtype == "fp64" else torch.float32
    draw = torch.Generator().manual_seed(0)

    def array(name):
        shape = shape_of(table.axes[name], sizes)
        if name in table.indices:
            return torch.zeros(shape, dtype=torch.int64)
        return torch.rand(shape, dtype=kind, generator=draw)  # so that rows go to all experts: of zeros to the first

    owned = dict.fromkeys((*table.weights, *table.renewed))
    batch = {name: array(name).numpy() for name in table.inputs if name not in owned}

    def in_place():
        arena = torch.empty(answer.split["arena"], dtype=torch.uint8)
        step = InPlace(table, sizes, answer.dtype, {name: array(name) for name in owned}, arena, devices)
        assert step.arena is arena, "the arena is larger than predicted"
        step(batch)

    def operators():
        written = program(table, "torch", sizes=sizes, dtype=answer.dtype)
        names = {"__name__": "emitted", "__source__": written.text}
        exec(compile(written.text, "emitted", "exec"), names)
        parameters = dict.fromkeys(name for tree in written.parameters for name in leaves(tree))
        values = {name: array(name) for name in parameters}
        with torch.inference_mode():
            names[written.function](*(fill(tree, values, names) for tree in written.parameters), devices)

    with library_products():
        pass  # which library is exact here is tried once in a process, not in a step
    with letting_go():
        return min(apart(in_place if "arena" in answer.split else operators)[1] for _ in range(TRIES))

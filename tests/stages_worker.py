"""Programs of pipelines: what each of their places has, beside the unsplit step. As a script, one of several processes.

    python stages_worker.py JOBS FOLDER, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

JOBS are `{"steps": [[family, mesh, placement, place, plan, schedule, microbatches, optimizer, clips]]}`. The first
process writes what was found into FOLDER: for every step the largest relative difference, bytes sent and bytes priced.
"""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.distributed as distributed
from torch.utils._python_dispatch import TorchDispatchMode

from learncost.backends import fill, leaves, unfold
from learncost.engines.in_stages import StageUpdate, program_in_stages, step_in_stages
from learncost.ir.loop import Loop
from learncost.ir.polynomial import base
from learncost.models.model import build
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.passes.stages import iterations_of
from learncost.procedures.optimizer import with_clipping, without_gradients
from learncost.procedures.step import step
from learncost.program.pipeline import schedule
from learncost.sharding.collective import collectives
from learncost.sharding.devices import of_stage, part
from learncost.sharding.mesh import mesh
from learncost.sharding.presets import chosen
from learncost.sharding.stages import pipeline_of
from learncost.verification.check import finite_arrays, values_of
from learncost.verification.placements import dividing

WIDTHS = dict.fromkeys(("weights", "gradients", "states", "values", "inputs"), 8)


class Case:
    """A model's pipeline: its program, its stages, and the unsplit step of all microbatches."""

    def __init__(
        self, family, mesh_text, placement, where, plan, kind, microbatches, optimizer, clips=False, dtype=None
    ):
        self.grid, self.microbatches = mesh(mesh_text), microbatches
        model = build(small(family, num_key_value_heads=4))
        pipeline = pipeline_of(model.table, self.grid, chosen(where, placement))
        self.axis = pipeline.axis
        self.order = schedule(kind, self.grid.sizes[self.axis], microbatches, 2 if kind == "interleaved" else 1)
        pipeline = replace(pipeline, stages=self.order.stages)
        self.low = dtype is not None
        whole = planned(without_gradients(step(model, "bp", optimizer)), plan)
        whole = self.whole = with_clipping(whole) if clips else whole
        sizes = self.sizes = dividing(whole, pipeline.mesh, pipeline.clauses, plan=plan)
        counts = [base(line.count).partition("/") for line in model.table.lines if isinstance(line, Loop)]
        sizes |= {count: int(parts or 1) for count, _, parts in counts}
        count, _, parts = counts[-1]
        while iterations_of(model.table, sizes) < (sum(pipeline.blocks) or self.order.stages) or (
            not pipeline.blocks and iterations_of(model.table, sizes) % self.order.stages
        ):
            sizes[count] += int(parts or 1)
        self.large = {**sizes, "B": sizes["B"] * microbatches}
        self.arrays = {
            name: _sound(array, whole.values[name]) for name, array in finite_arrays(whole, self.large).items()
        }
        self.expected = values_of(whole, self.arrays, self.large)
        update = StageUpdate(optimizer, plan, clips)
        self.placed = step_in_stages(model, whole, update, pipeline, self.grid, sizes, self.order)
        program = program_in_stages(self.placed, whole.outputs, self.order, self.axis, sizes, "a test", dtype)
        self.text, self.functions = program.text, program.stages

    def ran(self, place, devices, **helpers):
        """The step of a place, among `devices`: its largest difference, and bytes priced."""
        namespace = {"__name__": "stages"}
        exec(compile(self.text, "stages.py", "exec"), namespace)
        namespace |= helpers
        mine = range(place[self.axis], self.order.stages, self.order.devices)
        given = {number: self.given(number, place, namespace) for number in mine}
        with torch.no_grad():
            results = namespace["step"](given, devices)
        gradients = [name for name, value in self.whole.values.items() if value.role == "gradient"]
        largest = max(np.abs(self.expected[name]).max() for name in gradients if name in self.expected)
        worst = max(
            np.abs(found.numpy() - right).max() / max(largest, np.abs(right).max())
            for number in mine
            for name, found, right in self.beside(number, place, results[number])
        )
        return float(worst), sum(map(self.priced, mine)), any("loss" in result for result in results.values())

    def part(self, number, place, name, arrays):
        """A place's part of an array of the whole."""
        stage = self.placed[number]
        here = {**self.large, **stage.iterations, **self.grid.sizes_at(place)}
        return np.array(part(of_stage(arrays[name], stage, name), stage.table.axes[name], here))

    def given(self, number, place, namespace):
        takes = self.functions[number].takes
        names = {name for tree in takes.values() for name in leaves(tree)}
        arrays = {name: torch.from_numpy(self.part(number, place, name, self.arrays)) for name in names}
        if self.low:
            arrays = {name: X.float() if X.is_floating_point() else X for name, X in arrays.items()}
        return {name: fill(tree, arrays, namespace) for name, tree in takes.items()}

    def beside(self, number, place, results):
        """Of every result what was found and what is right."""
        assert {*self.functions[number].gives} <= {*results}
        for name, tree in self.functions[number].gives.items():
            for array_name, found in unfold(tree, results[name]):
                yield array_name, found, self.part(number, place, array_name, self.expected)

    def priced(self, number):
        return sum(
            each.payload_bytes * each.times * (1 if each.phase == "optimizer_step" else self.microbatches)
            for each in collectives(self.placed[number], self.sizes, WIDTHS)
        )


def _sound(array, value):
    """States are above zero, and numbers of an optimizer below one."""
    if value.role == "state":
        return np.abs(array) + 0.5
    return array / (1 + np.abs(array)) if value.role == "number" else array


class Counted(TorchDispatchMode):
    """The bytes of every functional collective, of the larger of what goes in and what comes out."""

    sent = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace == "_c10d_functional" and "wait" not in function.__name__:
            self.sent += max(result.nbytes, args[0].nbytes)
        return result


def found(case):
    """Over processes: the largest difference of any, bytes sent and bytes priced of all."""
    case, send, sent = Case(*case), distributed.isend, []
    devices = distributed.device_mesh.init_device_mesh(
        "cpu", tuple(number for _, number in case.grid.axes), mesh_dim_names=case.grid.names
    )

    def isend(array, **given):
        sent.append(array.nbytes)
        return send(array, **given)

    distributed.isend = isend
    try:
        with Counted() as counted:
            place = dict(zip(case.grid.names, devices.get_coordinate(), strict=True))
            worst, priced, _ = case.ran(place, devices)
    finally:
        distributed.isend = send
    every = [None] * case.grid.devices
    distributed.all_gather_object(every, (worst, counted.sent + sum(sent), priced))
    return [max(each[0] for each in every), *(sum(each[place] for each in every) for place in (1, 2))]


def work(jobs, folder):
    rank, number = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=number)
    results = [found(case) for case in jobs["steps"]]
    distributed.destroy_process_group()
    if rank == 0:
        (folder / "steps.json").write_text(json.dumps(results))


if __name__ == "__main__":
    work(json.loads(sys.argv[1]), Path(sys.argv[2]))

"""One of several processes of a test: placed steps against the unsplit step, then trainings, as its jobs say.

    python gloo_worker.py JOBS FOLDER, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

JOBS are `{"steps": [[family, mesh, placement, optimizer, plan]], "memories": [flags of lc.memory], "trainings":
[[words]], "unlike": [[words]]}`. The first process writes what it found into FOLDER: for every step the largest
relative difference, bytes sent and bytes priced; of every memory the bytes predicted, and measured. Trainings that are
`unlike` have a C compiler on the first process alone.
"""

import copy
import json
import math
import os
import sys
from pathlib import Path

import numpy as np
import torch
import torch._dynamo  # FSDP and optimizers import it when they are made: before the fork it is one import for all
import torch.distributed as distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import learncost as lc
import learncost.torch
from learncost.cli.command import main
from learncost.engines.compiler import compiler
from learncost.engines.in_place import InPlace
from learncost.interpreter import execute
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of
from learncost.models.configuration import configure
from learncost.models.model import build, lengths_open, run_sizes
from learncost.models.small import small
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.sharding.collective import bucketed, collectives
from learncost.sharding.devices import part, together
from learncost.sharding.mesh import mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from learncost.training.torch_engine import TorchProgram
from learncost.verification.check import finite_arrays

SIZES = {"num_hidden_layers": 2, "vocab_size": 32, "num_key_value_heads": 4}
ROLES = ("weights", "gradients", "states", "values", "inputs")


class Counted(TorchDispatchMode):
    """The bytes of every functional collective, of the larger of what goes in and what comes out.

    Of rows that are sent what goes in: as many rows come out as the data say, and on all devices together as many as go
    in."""

    sent = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function.namespace == "_c10d_functional" and "wait" not in function.__name__:
            is_gathered = "all_gather" in function.__name__
            self.sent += result.nbytes if is_gathered else args[0].nbytes
        return result


def differences(family, mesh_text, names, optimizer, plan=""):
    """Of a placed step in fp64: the largest difference of a result, relative to its largest number; sent, priced."""
    model, grid = build(small(family, **SIZES)), mesh(mesh_text)
    sizes = run_sizes(model, -(-8 // grid.devices) * grid.devices, *lengths_open(model.configuration, 8, 8))
    table = planned(without_gradients(step(model, "bp", optimizer)), plan)
    arrays = finite_arrays(table, sizes)
    placed = place(table, grid, chosen(None, names), sizes, plan=plan)
    devices = torch.distributed.device_mesh.init_device_mesh(
        "cpu", tuple(number for _, number in grid.axes), mesh_dim_names=grid.names
    )
    here = sizes | placed.sizes_at(dict(zip(grid.names, devices.get_coordinate(), strict=True)))
    axes, given = placed.table.axes, (*placed.table.inputs, *placed.table.weights)
    values = {name: np.array(part(arrays[name], axes[name], here), order="C") for name in given}
    program = TorchProgram(placed.table, sizes | placed.sizes, "fp64", "cpu", devices=devices)
    tensors = {name: torch.from_numpy(values[name]) for name in placed.table.weights}
    with Counted() as counted:
        results = {name: tensor.numpy() for name, tensor in program.step(tensors, values).items()}
    ran = [(results, counted.sent)]
    changed = in_place(placed, values)
    try:
        engine = InPlace(bucketed(placed.table), sizes | placed.sizes, "fp64", changed, devices=devices)
    except InputError:
        pass  # operators alone compute it
    else:
        with Counted() as counted:
            results = {name: tensor.numpy() for name, tensor in engine(values).items()}
        results |= {new: changed[name].numpy() for name, new in table.renewed.items()}
        ran.append((results, counted.sent))
    everyones = [None] * grid.devices
    distributed.all_gather_object(everyones, ran)
    if distributed.get_rank():
        return []  # the first process compares
    whole = dict(arrays)
    execute(lower(table), whole, sizes)
    worst = 0.0
    for number, (results, _) in enumerate(ran):
        for name in results:
            found = together(
                [each[number][0][name] for each in everyones], placed.layouts[name], grid, whole[name].shape
            )
            worst = max(worst, float(np.abs(found - whole[name]).max() / (np.abs(whole[name]).max() or 1)))
    priced = sum(one.payload_bytes * one.times for one in collectives(placed, sizes, dict.fromkeys(ROLES, 8)))
    sent = [sum(each[number][1] for each in everyones) / grid.devices for number in range(len(ran))]
    return [worst, next((each for each in sent if each != priced), priced), priced, len(ran)]


def in_place(placed, values):
    """Weights and states that a step changes, apart from those that another one reads."""
    names = dict.fromkeys((*placed.table.weights, *placed.table.renewed))
    return {name: torch.from_numpy(values[name].copy()) for name in names}


def wrapped():
    """A module of learncost.torch under DDP and FSDP2 beside itself on the whole batch: how far gradients are apart."""
    torch.manual_seed(0)
    module = learncost.torch.model("gpt2", n_layer=2, n_embd=16, n_head=2, vocab_size=32, n_positions=8).double()
    tokens, targets = torch.randint(0, 32, (2, 4, 8))
    rows = slice(2 * distributed.get_rank(), 2 * distributed.get_rank() + 2)
    of_two = DistributedDataParallel(copy.deepcopy(module)), fully_shard(copy.deepcopy(module))
    for each, at in ((module, slice(None)), *((each, rows) for each in of_two)):
        torch.nn.functional.cross_entropy(each(tokens[at]).flatten(0, 1), targets[at].flatten()).backward()
    gradients = [parameter.grad for parameter in module.parameters()]
    shared, cut = ([parameter.grad for parameter in each.parameters()] for each in of_two)
    others = (shared, [gradient.full_tensor() for gradient in cut])
    return [max(float((one - two).abs().max()) for one, two in zip(gradients, other, strict=True)) for other in others]


def memories(cases):
    """Of each step its bytes as predicted, and as PyTorch's allocator hands them out."""
    from memories import most_of_a_process

    found = []
    for flags in cases:
        answer = lc.memory("gpt2", **flags)
        axes = answer.over.placed.mesh.sizes
        devices = torch.distributed.device_mesh.init_device_mesh(
            "cpu", tuple(axes.values()), mesh_dim_names=tuple(axes)
        )
        found.append([answer.peak, most_of_a_process(answer, devices)])
    return [found]


def odd():
    """Bytes of weights on the fullest process, ours and FSDP2's, of widths that three processes do not divide."""
    sizes = {"n_layer": 2, "n_embd": 22, "n_head": 2, "vocab_size": 101, "n_positions": 16}
    wrapped = fully_shard(learncost.torch.model("gpt2", **sizes))
    model, grid = build(configure("gpt2", sizes)), mesh(f"dp={distributed.get_world_size()}")
    whole = run_sizes(model, grid.devices, 16, None)
    placed = place(without_gradients(step(model, "bp", "adamw")), grid, chosen(None, "fsdp"), whole)
    numbers = [math.prod(shape_of(placed.table.axes[name], whole | placed.sizes)) for name in placed.table.weights]
    theirs = [None] * grid.devices
    distributed.all_gather_object(theirs, sum(each.to_local().nbytes for each in wrapped.parameters()))
    return [4 * sum(numbers), max(theirs)]


def work(jobs, folder):
    rank, number = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if jobs.get("steps"):
        distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=number)
        found = [*(differences(*case) for case in jobs["steps"]), *([wrapped()] if jobs.get("modules") else ())]
        found += [odd()] if jobs.get("odd") else []
        found += memories(jobs["memories"]) if jobs.get("memories") else []
        distributed.destroy_process_group()
        if rank == 0:
            (folder / "steps.json").write_text(json.dumps(found))
    for ops in jobs.get("trainings", ()):
        if code := main(["train", *ops]):
            return code
    if rank:
        os.environ["CC"] = "no-such-compiler"
        compiler.cache_clear()
    return max((main(["train", *ops]) for ops in jobs.get("unlike", ())), default=0)


if __name__ == "__main__":
    sys.exit(work(json.loads(sys.argv[1]), Path(sys.argv[2])))

"""The memory of a process of several: predicted by `learncost memory --mesh`, and what PyTorch's allocator hands out.

    python benchmarks/peaks_over_mesh.py [--only gpt2,llama] [--placement cp] [--engine torch] [--dtype bf16-masters]

Needs torch, for the engine `torch` a C compiler. Two, three or four processes of one thread meet by gloo on this
machine. Each has the parts of weights, states and batch that it has in `learncost train --mesh`, runs a step, and adds
up the profiler's record of every allocation (`tests/allocator.py`); the largest of the processes counts. What a product
takes and gives back before it ends is apart, as in benchmarks/peaks.py. All cases take some five minutes.

The engine `autograd` is transformers' own modules (needs transformers) in DistributedDataParallel, or `fully_shard` on
every block and on the whole, in the shapes of benchmarks/peaks.py. bf16 is there a module in bf16 throughout under DDP,
and weights in fp32 with MixedPrecisionPolicy(torch.bfloat16, torch.float32) under `fully_shard`. All of these take some
ten minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import learncost as lc
from learncost.ir.errors import InputError
from learncost.ir.precision import training_precision
from learncost.sharding.mesh import mesh

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

WIDTH = {"hidden_size": 192, "num_attention_heads": 4, "num_hidden_layers": 2}
LLAMA = {**WIDTH, "num_key_value_heads": 4, "intermediate_size": 512, "vocab_size": 1200}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "gpt2": {**WIDTH, "vocab_size": 1200},
    "tinyllama-1.1b": LLAMA,
    "bert-tiny": {**WIDTH, "intermediate_size": 768, "vocab_size": 1200, "architecture": "BertForMaskedLM"},
    "t5-small": {"d_model": 192, "d_kv": 48, "d_ff": 768, "num_layers": 2, "num_heads": 4, "vocab_size": 1200},
    "vit-base-patch16-224": {**WIDTH, "intermediate_size": 768, "image_size": 64, "patch_size": 8, "num_labels": 8},
    "mixtral-8x7b": {**LLAMA, "num_local_experts": 4, "intermediate_size": 64},
}
"""Small models whose axes two and four devices divide."""

PLACEMENTS = (
    ("ddp", "dp=2"),
    ("zero-1", "dp=2"),
    ("zero-2", "dp=2"),
    ("fsdp", "dp=2"),
    ("fsdp", "dp=3"),  # parts are filled up
    ("megatron", "tp=2"),
    ("megatron-sp", "tp=4"),
    ("cp", "cp=2"),
    ("ulysses", "cp=2"),
    ("hsdp", "dp=2,shard=2"),
    ("fsdp,megatron-sp", "dp=2,tp=2"),
    ("ep", "ep=2"),
)
ENGINES = {"torch": ("fp32", "bf16-masters"), "operators": ("fp32", "bf16-masters", "fp64")}
MODULES = ("gpt2", "llama", "bert", "t5", "vit", "mixtral")
WRAPPERS = (("ddp", "dp=2"), ("ddp", "dp=3"), ("fsdp", "dp=2"), ("fsdp", "dp=3"), ("hsdp", "dp=2,shard=2"))
LENGTH = 96


@dataclass(frozen=True)
class Case:
    """A model under a placement, by an engine in a precision; of a module that is wrapped, its shape, its blocks'
    checkpoints, and its microbatches."""

    model: str
    placement: str
    mesh: str
    engine: str
    dtype: str
    shape: str = ""
    setting: str = "plain"
    microbatches: int = 1

    @property
    def flags(self) -> dict[str, Any]:
        """What `lc.memory` is told."""
        lengths = {} if self.model.startswith("vit") else {"seq_len": LENGTH}
        return {"batch_size": 12, **lengths, "mesh": self.mesh, "placement": self.placement}


def cases(given: argparse.Namespace) -> Iterator[Case]:
    """Those that the flags leave. Every precision is tried with one model, and every model with one precision."""
    for model in [name for name in given.only.split(",") if name in MODELS] if given.only else MODELS:
        for names, grid in PLACEMENTS:
            if given.placement not in ("", names) or (names == "ep") != (model in EXPERTS):
                continue
            for engine, dtypes in ENGINES.items():
                for dtype in dtypes if model in EVERY else dtypes[:1]:
                    if given.engine in ("", engine) and given.dtype in ("", dtype):
                        yield Case(model, names, grid, engine, dtype)


EVERY, EXPERTS = ("gpt2", "tinyllama-1.1b"), ("mixtral-8x7b",)


def modules(given: argparse.Namespace) -> Iterator[Case]:
    """The same of modules that are wrapped."""
    for model in given.only.split(",") if given.only else MODULES:
        for names, grid in WRAPPERS:
            for dtype, setting in (("fp32", "plain"), ("bf16", "plain"), ("fp32", "checkpoints")):
                for shape in ("loss", "block", "optimizer") if setting == "plain" else ("block",):
                    for microbatches in (1, 3) if shape == "block" else (1,):
                        if given.placement in ("", names) and given.dtype in ("", dtype) and model in MODULES:
                            yield Case(model, names, grid, "eager", dtype, shape, setting, microbatches)


def wrapped(case: Case, devices: Any) -> Any:
    """How a module is wrapped, as PyTorch's documentation has it."""
    import torch
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from torch.nn.parallel import DistributedDataParallel

    def wrap(module: torch.nn.Module) -> torch.nn.Module:
        if case.placement == "ddp":
            return DistributedDataParallel(module)
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if case.dtype == "bf16" else MixedPrecisionPolicy()
        for block in blocks_of(module):
            fully_shard(block, mesh=devices, mp_policy=policy)
        return fully_shard(module, mesh=devices, mp_policy=policy)

    return wrap


def blocks_of(module: Any) -> list[Any]:
    """The modules of its lists, of those that lie in no other."""
    children = module.children()
    return [block for each in children for block in (each if type(each).__name__ == "ModuleList" else blocks_of(each))]


def most_of_a_module(case: Case, devices: Any) -> tuple[int, int]:
    """The peak that is predicted for two steps of a module that is wrapped, and the one of this process."""
    from functools import partial

    import peaks
    import torch.distributed as distributed

    from allocator import apart
    from memories import TRIES, letting_go

    of_ddp, number = case.placement == "ddp", mesh(case.mesh).devices
    flags = {
        "mesh": case.mesh,
        "placement": case.placement,
        **({} if of_ddp else {"precision": training_precision(case.dtype)}),
    }
    own = case.model, case.shape, case.dtype if of_ddp else "fp32", case.setting, "fused"  # else weights are floats
    flags |= {"accumulate": case.microbatches}
    predicted = peaks.predicted(*own, number * case.microbatches, **flags)
    run = partial(peaks.train, *own, wrapped(case, devices), case.microbatches)
    with letting_go(distributed, ("all_gather_single", "reduce_scatter_single", "all_reduce")):
        return predicted, min(apart(run)[1] for _ in range(TRIES))


def predicted(case: Case) -> Any:
    """What `learncost memory` says."""
    sizes = dict(MODELS[case.model])
    if case.engine != "operators":
        return lc.memory(case.model, engine=case.engine, dtype=case.dtype, **case.flags, **sizes)
    from on_operators import on_operators

    with on_operators():
        return lc.memory(case.model, engine="torch", plan="", dtype=case.dtype, **case.flags, **sizes)


def work(rendezvous: Path, several: list[Case]) -> None:
    """One process of several: what its steps take, a line for each case."""
    import torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh

    from memories import most_of_a_process

    torch.set_num_threads(1)
    whoever = {"rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])}
    distributed.init_process_group("gloo", init_method=rendezvous.as_uri(), **whoever)
    for case in several:
        grid = mesh(case.mesh)
        devices = init_device_mesh("cpu", tuple(number for _, number in grid.axes), mesh_dim_names=grid.names)
        try:
            if case.shape:
                print(
                    json.dumps(
                        [f"{case.shape}, {case.setting}, {case.microbatches}", *most_of_a_module(case, devices)]
                    ),
                    flush=True,
                )
                continue
            answer = predicted(case)
            how = "in place" if "arena" in answer.split else "operators"
            print(json.dumps([how, answer.peak, most_of_a_process(answer, devices)]), flush=True)
        except InputError as error:
            print(json.dumps([str(error), 0, 0]), flush=True)
    distributed.destroy_process_group()


def on_processes(number: int, several: list[Case]) -> Iterator[tuple[Case, str, int, int]]:
    """Cases over so many devices, as they come: how they ran, predicted, measured by the process that took most."""
    with TemporaryDirectory() as folder:
        jobs = json.dumps([asdict(case) for case in several])
        command = [sys.executable, __file__, "--meet", str(Path(folder).resolve() / "rendezvous"), "--work", jobs]
        everyone = {**os.environ, "WORLD_SIZE": str(number), "OMP_NUM_THREADS": "1"}
        processes = [
            subprocess.Popen(command, env=everyone | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
            for rank in range(number)
        ]
        try:
            for case in several:
                lines = [process.stdout.readline() for process in processes if process.stdout]
                if not all(lines):
                    raise SystemExit(f"{case}: a process ended")
                how, peak, _ = (found := [json.loads(line) for line in lines])[0]
                yield case, how, peak, max(most for _, _, most in found)
        finally:
            for process in processes:
                process.kill()
                process.wait()


def main() -> int:
    """Print a line a case - model, placement, mesh, engine, precision, how it ran, predicted, measured, their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for flag in ("--only", "--placement", "--engine", "--dtype", "--meet", "--work"):
        parser.add_argument(flag, default="")
    given = parser.parse_args()
    if given.work:
        work(Path(given.meet), [Case(**each) for each in json.loads(given.work)])
        return 0
    chosen, ratios = [*cases(given)], list[float]()
    chosen += modules(given) if given.engine in ("", "eager") else ()
    for number in sorted({mesh(case.mesh).devices for case in chosen}):
        several = [case for case in chosen if mesh(case.mesh).devices == number]
        for case, how, peak, most in on_processes(number, several):
            what = f"{case.model}  {case.placement}  {case.mesh}  {case.engine}  {case.dtype}"
            if not most:
                print(f"{what}  refused: {how}", flush=True)
                continue
            ratios.append(peak / most)
            print(f"{what}  {how}  {peak:,}  {most:,}  {ratios[-1]:.4f}", flush=True)
    print(f"{len(ratios)} of {len(chosen)}, predicted over measured {min(ratios):.4f} to {max(ratios):.4f}")
    return 0 if all(abs(ratio - 1) <= 0.02 for ratio in ratios) else 1


if __name__ == "__main__":
    sys.exit(main())

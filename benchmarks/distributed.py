"""Training over several processes beside PyTorch's DDP and FSDP2, on gloo: time of a step, peak memory, losses.

    python benchmarks/distributed.py [--processes 2] [--rounds 7] [--layers 4] [--width 256] [--json FILE]

The model is GPT-2's, theirs as transformers has it, from the same weights, batches and AdamW. In every round each
contender runs alone, after the others in turns: ours as `ddp` beside DDP, ours as `fsdp` beside FSDP2, each in new
processes with one thread. A round's time is the median of its steps, the slowest process's; what is told is the median
of the rounds. Memory is the most that a process held during its steps, above what it held before there were weights.
Give it a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from learncost.models.configuration import configure
from learncost.training import hugging_face, memory
from learncost.training.mesh_engine import MeshEngine
from learncost.training.options import Options

RATE, BETA_2, DECAY = 1e-3, 0.99, 0.01
PAIRS = {"ours, ddp": "DDP", "ours, fsdp": "FSDP2"}
EQUAL = 1e-4
"""How far losses in fp32 may be apart, relatively."""


def options(given: argparse.Namespace, **more: Any) -> Options:
    """What both are told."""
    return Options(
        batch_size=given.batch, seq_len=given.length, learning_rate=RATE, beta_2=BETA_2, weight_decay=DECAY, **more
    )


def configured(given: argparse.Namespace) -> Any:
    """The model."""
    sizes = {"n_layer": given.layers, "n_embd": given.width, "n_head": 4, "n_positions": given.length}
    return configure("gpt2", {**sizes, "vocab_size": given.words})


def batches(given: argparse.Namespace) -> Iterator[dict[str, np.ndarray]]:
    """Tokens of chance, and which follow."""
    draw = np.random.default_rng(0)
    for _ in range(given.steps):
        rows = draw.integers(0, given.words, (given.batch, given.length + 1))
        yield {"tokens": rows[:, :-1].copy(), "targets": rows[:, 1:].copy()}


def ours(given: argparse.Namespace, placement: str) -> Callable[[dict[str, np.ndarray]], float]:
    """Our step."""
    grid = f"dp={given.processes}"
    engine = MeshEngine(configured(given), options(given, mesh=grid, placement=placement))
    return lambda batch: engine.step(batch, RATE)


def theirs(given: argparse.Namespace, how: str) -> Callable[[dict[str, np.ndarray]], float]:
    """A step of DDP or FSDP2, of the module that people use."""
    import torch
    import torch.distributed as distributed
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel
    from transformers import GPT2Config, GPT2LMHeadModel

    configuration = configured(given)
    drawn = MeshEngine(configuration, options(given, mesh="dp=1", placement="ddp"))._training
    keys = hugging_face.config(configuration, 0.0, None)
    module: Any = GPT2LMHeadModel(GPT2Config(**keys, use_cache=False, bos_token_id=None, eos_token_id=None))
    weights = {
        name: torch.from_numpy(array) for name, array in hugging_face.to_theirs(drawn.model, drawn.weights).items()
    }
    missing, unexpected = module.load_state_dict(weights, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    del drawn, weights
    if how == "DDP":
        wrapped = DistributedDataParallel(module)
    else:
        grid = init_device_mesh("cpu", (given.processes,))
        for block in module.transformer.h:
            fully_shard(block, mesh=grid)
        wrapped = fully_shard(module, mesh=grid)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=RATE, betas=(0.9, BETA_2), weight_decay=DECAY)
    number, rank = given.batch // given.processes, distributed.get_rank()

    def step(batch: dict[str, np.ndarray]) -> float:
        rows = slice(rank * number, (rank + 1) * number)
        tokens, targets = (torch.from_numpy(batch[name][rows]) for name in ("tokens", "targets"))
        scores = wrapped(input_ids=tokens).logits
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        mean = loss.detach()
        distributed.all_reduce(mean)
        return float(mean) / given.processes

    return step


def work(given: argparse.Namespace) -> None:
    """One process of one contender: its losses, seconds and bytes go into a file."""
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    for module in ("torch.distributed.fsdp", "torch.distributed.device_mesh", "transformers.models.gpt2.modeling_gpt2"):
        import_module(module)  # by all alike: libraries are not what a step takes
    distributed.init_process_group("gloo")
    before = memory.highest()
    name = given.work
    take = ours(given, name.partition(", ")[2]) if name in PAIRS else theirs(given, name)
    losses, seconds = [], []
    for number, batch in enumerate(batches(given)):
        if number == given.warm:
            memory.forget_highest()
        distributed.barrier()
        began = perf_counter()
        losses.append(take(batch))
        seconds.append(perf_counter() - began)
    found = {"losses": losses, "seconds": seconds[given.warm :], "bytes": memory.highest() - before}
    Path(given.into, str(distributed.get_rank())).write_text(json.dumps(found))
    distributed.destroy_process_group()


def round_of(name: str, given: argparse.Namespace) -> dict[str, Any]:
    """A contender in new processes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    with tempfile.TemporaryDirectory() as into:
        command = [sys.executable, __file__, *sys.argv[1:], "--work", name, "--into", into]
        everyone = {**os.environ, "WORLD_SIZE": str(given.processes), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        everyone |= {"OMP_NUM_THREADS": "1"}
        running = [subprocess.Popen(command, env=everyone | {"RANK": str(rank)}) for rank in range(given.processes)]
        try:
            codes = [process.wait(600) for process in running]
        finally:
            for process in running:
                process.kill()
        assert not any(codes), f"{name}: exit codes {codes}"
        found = [json.loads(path.read_text()) for path in Path(into).iterdir()]
    return {
        "seconds": statistics.median(max(times) for times in zip(*(each["seconds"] for each in found), strict=True)),
        "bytes": max(each["bytes"] for each in found),
        "losses": found[0]["losses"],
    }


def main() -> None:
    """Measure, and say what was found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wholes = {"processes": 2, "rounds": 7, "steps": 12, "warm": 3, "layers": 4, "width": 256}
    for name, number in (wholes | {"words": 2048, "batch": 8, "length": 128}).items():
        arguments.add_argument(f"--{name}", type=int, default=number)
    for name in ("json", "work", "into"):
        arguments.add_argument(f"--{name}")
    given = arguments.parse_args()
    if given.work:
        return work(given)
    names = [name for pair in PAIRS.items() for name in pair]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for number in range(given.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            rounds[name].append(round_of(name, given))
    told = {
        name: {key: statistics.median(one[key] for one in of) for key in ("seconds", "bytes")}
        for name, of in rounds.items()
    }
    print(f"{given.processes} processes, medians of {given.rounds} rounds")
    for name, row in told.items():
        print(f"{name:12} {1e3 * row['seconds']:8.1f} ms a step {row['bytes'] / 1e6:8.1f} MB")
    for mine, other in PAIRS.items():
        apart = np.abs(np.divide(rounds[mine][0]["losses"], rounds[other][0]["losses"]) - 1).max()
        assert apart < EQUAL, f"losses of {mine} and {other} are {apart} apart"
        time, bytes_ = (told[mine][key] / told[other][key] for key in ("seconds", "bytes"))
        print(f"{mine} beside {other}: time {time:.2f}, memory {bytes_:.2f}, losses {apart:.1e} apart")
    if given.json:
        Path(given.json).write_text(json.dumps({"settings": vars(given), "rounds": rounds}, indent=1))
    return None


if __name__ == "__main__":
    main()

"""Training over several processes beside PyTorch's DDP and FSDP2, on gloo: time of a step, peak memory, losses.

    python benchmarks/beside_ddp.py [--processes 2] [--rounds 7] [--layers 4] [--width 256] [--json FILE]

The model is GPT-2's, theirs as transformers has it, from the same weights, batches and AdamW: ours as `ddp` beside DDP,
ours as `fsdp` beside FSDP2. Every contender has processes of its own with one thread each, which wait while another
one's turn is. A turn is a few steps; its time is the median of them, the slowest process's. In every round all have a
turn, in an order that changes, and its figures are printed; the ratios at the end are the medians of those of the
rounds. Memory is the most that a process held during its steps, above what it held before there were weights. What a
step takes of the processor, all threads of a process together, can be compared where other programs run, too.
Give it a machine that does nothing else: it takes two to three minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

import numpy as np

from learncost.engines import hugging_face
from learncost.engines.options import Options
from learncost.models.configuration import configure
from learncost.training import memory
from learncost.training.mesh_engine import MeshEngine

RATE, BETA_2, DECAY = 1e-3, 0.99, 0.01
PAIRS = {"ours, ddp": "DDP", "ours, fsdp": "FSDP2"}
FIGURES = ("seconds", "busy", "bytes")
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
    return configure("gpt2", {**sizes, "vocab_size": given.ops})


def batches(given: argparse.Namespace) -> Iterator[dict[str, np.ndarray]]:
    """Tokens of chance, and which follow."""
    draw = np.random.default_rng(0)
    while True:
        rows = draw.integers(0, given.ops, (given.batch, given.length + 1))
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
        name: torch.from_numpy(array) for name, array in hugging_face.to_checkpoint(drawn.model, drawn.weights).items()
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
    """One process of one contender: for every line that it reads it takes a turn, and prints what it found."""
    import torch
    import torch.distributed as distributed

    torch.set_num_threads(1)
    for module in ("torch.distributed.fsdp", "torch.distributed.device_mesh", "transformers.models.gpt2.modeling_gpt2"):
        import_module(module)  # by all alike: libraries are not what a step takes
    # They meet at a file: a port that is free when it is looked for may be another program's when they listen.
    whoever = {"rank": int(os.environ["RANK"]), "world_size": given.processes}
    distributed.init_process_group("gloo", init_method=Path(given.meet).as_uri(), **whoever)
    before = memory.highest()
    name = given.work
    take = ours(given, name.partition(", ")[2]) if name in PAIRS else theirs(given, name)
    every = batches(given)
    for number, _ in enumerate(sys.stdin):
        if number == 1:  # after the first turn, in which all is made that stays
            memory.reset_peak()
        losses, seconds, busy = [], [], process_time()
        for _ in range(given.steps):
            batch = next(every)
            distributed.barrier()
            began = perf_counter()
            losses.append(take(batch))
            seconds.append(perf_counter() - began)
        found = {"losses": losses, "seconds": seconds, "busy": (process_time() - busy) / given.steps}
        print(json.dumps(found | {"bytes": memory.highest() - before}), flush=True)
    distributed.destroy_process_group()


class Contender:
    """One of the four: its processes, which wait for their turns."""

    def __init__(self, name: str, given: argparse.Namespace, folder: Path) -> None:
        self.name = name
        command = [sys.executable, __file__, *sys.argv[1:], "--work", name, "--meet", str(folder / name)]
        everyone = {**os.environ, "WORLD_SIZE": str(given.processes), "OMP_NUM_THREADS": "1"}
        self.processes = [
            subprocess.Popen(
                command, env=everyone | {"RANK": str(rank)}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            )
            for rank in range(given.processes)
        ]

    def iteration(self) -> dict[str, Any]:
        """Some steps by all of its processes: the median of their seconds, the most bytes of one, their losses."""
        lines = []
        with suppress(BrokenPipeError):  # of one that ended there is no line either
            for process in self.processes:
                assert process.stdin
                process.stdin.write("\n")
                process.stdin.flush()
            lines = [process.stdout.readline() for process in self.processes if process.stdout]
        if not lines or not all(lines):
            raise SystemExit(f"{self.name}: a process ended")
        found = [json.loads(line) for line in lines]
        times = zip(*(each["seconds"] for each in found), strict=True)
        return {
            "seconds": statistics.median(map(max, times)),
            "busy": max(each["busy"] for each in found),
            "bytes": max(each["bytes"] for each in found),
            "losses": found[0]["losses"],
        }

    def end(self) -> None:
        """Of its processes, whatever they do."""
        for process in self.processes:
            process.kill()
            process.wait()


Rounds = Mapping[str, Sequence[Mapping[str, Any]]]


def iterations(given: argparse.Namespace) -> Rounds:
    """What every contender found in every round; they are printed as they come."""
    names = [name for pair in PAIRS.items() for name in pair]
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with ExitStack() as open_ones:
        contenders, folder = {}, Path(open_ones.enter_context(TemporaryDirectory())).resolve()
        for name in names:
            contenders[name] = Contender(name, given, folder)
            open_ones.callback(contenders[name].end)
        for contender in contenders.values():
            rounds[contender.name].append(contender.iteration())  # in which all is imported, compiled and warmed
        print("round  " + "".join(f"{name:>14}" for name in names) + "   ms a step", flush=True)
        for number in range(given.rounds):
            at = number % len(names)
            for name in names[at:] + names[:at]:
                rounds[name].append(contenders[name].iteration())
            row = "".join(f"{1e3 * rounds[name][-1]['seconds']:14.1f}" for name in names)
            print(f"{number + 1:5}  {row}", flush=True)
    return rounds


def main() -> None:
    """Measure, and say what was found."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wholes = {"processes": 2, "rounds": 7, "steps": 5, "layers": 4, "width": 256}
    for name, number in (wholes | {"words": 2048, "batch": 8, "length": 128}).items():
        arguments.add_argument(f"--{name}", type=int, default=number)
    for name in ("json", "work", "meet"):
        arguments.add_argument(f"--{name}")
    given = arguments.parse_args()
    if given.work:
        return work(given)
    rounds = iterations(given)
    print(f"{given.processes} processes, medians of {given.rounds} rounds of {given.steps} steps")
    for name, row in rounds.items():
        medians = {key: statistics.median(iteration[key] for iteration in row[1:]) for key in FIGURES}
        print(
            f"{name:12} {1e3 * medians['seconds']:8.1f} ms a step, of the processor {1e3 * medians['busy']:8.1f} ms, "
            f"{medians['bytes'] / 1e6:8.1f} MB"
        )
    for mine, other in PAIRS.items():
        pairs = list(zip(rounds[mine], rounds[other], strict=True))
        apart = max(np.abs(np.divide(one["losses"], two["losses"]) - 1).max() for one, two in pairs)
        time, busy, most = (statistics.median(one[key] / two[key] for one, two in pairs[1:]) for key in FIGURES)
        print(
            f"{mine} beside {other}: time {time:.2f}, of the processor {busy:.2f}, memory {most:.2f}, "
            f"losses {apart:.1e} apart"
        )
        assert apart < EQUAL, f"losses of {mine} and {other} are {apart} apart"
    if given.json:
        Path(given.json).write_text(json.dumps({"settings": vars(given), "rounds": rounds}, indent=1))
    return None


if __name__ == "__main__":
    main()

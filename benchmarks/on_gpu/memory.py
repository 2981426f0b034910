"""Peaks of memory that are predicted, beside those of PyTorch's allocator."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import imported_peaks
import peaks
import torch
from against_torch_and_jax.torch_models import module as plain_module
from prediction import gpt2, llama
from torch.utils.checkpoint import checkpoint

import learncost as lc
import test_memory_steps as steps  # of the tests, whose folder peaks.py has put on the path
from allocator import apart, workspaces
from learncost.models.configuration import configure
from on_gpu.alive import alive
from on_gpu.asked import Asked, Row, message_of, tried

Case = tuple[str, Callable[[], object], Callable[[], int]]
"""A name, two steps to run, and what is predicted of them."""

DTYPES = {"fp32": (torch.float32, "fp32"), "bf16": (torch.bfloat16, "bf16-true")}
LARGE = {
    "gpt2": peaks.Kind("GPT2LMHeadModel", {**peaks.GPT, "n_positions": 1024}, "c_attn"),
    "llama": peaks.Kind("LlamaForCausalLM", {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 4,
                                             "num_hidden_layers": 12, "intermediate_size": 2816}),
    "vit": peaks.Kind("ViTForImageClassification", {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}),
}  # fmt: skip
"""Models of transformers in sizes that people train."""


SHAPES = (
    ("gpt2", gpt2(12, 768, 12, 1024, 50257), 8),
    ("llama", llama(12, 1024, 16, 2816, 1024, 32000), 8),
    ("gpt2-medium", gpt2(24, 1024, 16, 1024, 50257), 4),
)
"""Plain modules, with sequences in a batch."""


PLACES = {"cpu": None, "cuda": "cuda"}
"""What `learncost memory --on` says of the device."""


def memory_cases(asked: Asked) -> Iterator[Case]:
    """Plain modules, then transformers' own, small and large."""
    implementation, on = ("cuda" if asked.device == "cuda" else "fused"), PLACES[asked.device]
    shapes = (("gpt2", gpt2(2, 128, 4, 64, 512), 2),) if asked.quick else SHAPES
    for (name, keys, batch), dtype, procedure in product(shapes, DTYPES, ("bp", "recompute")):
        own = keys, batch, dtype, procedure
        yield (
            f"plain {name}, {dtype} {procedure}",
            partial(_plain, *own),
            partial(_plain_predicted, *own, on),
        )
    for name, dtype, setting in product(asked.some([*peaks.KINDS][:11], 2), DTYPES, ("plain", "checkpoints")):
        case = name, "block", dtype, setting, implementation
        yield f"transformers {name}, {dtype} {setting}", partial(peaks.train, *case), partial(peaks.predicted, *case)
    for name, dtype, setting in product(asked.some(LARGE, 0), DTYPES, ("plain", "checkpoints", "lora", "dropout")):
        if setting == "dropout" and not any("drop" in key for key in LARGE[name].keys):
            continue
        own = name, dtype, setting, implementation
        run, expected = (partial(_large, asked, *own) for asked in (peaks.train, peaks.predicted))
        yield f"transformers {name}, large, {dtype} {setting}", run, expected


def _plain(keys: Mapping[str, Any], batch: int, dtype: str, procedure: str) -> None:
    """Two steps as a user of PyTorch writes them."""
    sizes = configure(keys).sizes
    network = plain_module(configure(keys)).to(DTYPES[dtype][0])
    if procedure == "recompute":
        for block in network.h if hasattr(network, "h") else network.layers:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
    steps = torch.optim.AdamW(network.parameters(), fused=True)
    shape = batch, sizes["max_position_embeddings"]
    tokens, targets = (torch.randint(0, sizes["vocab_size"], shape) for _ in range(2))
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        network(tokens, targets).backward()
        steps.step()


def _plain_predicted(keys: Mapping[str, Any], batch: int, dtype: str, procedure: str, on: str | None) -> int:
    length = configure(keys).sizes["max_position_embeddings"]
    found = lc.memory(configure(keys), procedure, batch, length, optimizer="adamw", engine="eager", on=on,
                      module="plain", precision=DTYPES[dtype][1])  # fmt: skip
    return found.peak


def _large(asked: Callable[..., Any], name: str, dtype: str, setting: str, *optimizer: str) -> Any:
    """What is asked of a small model of peaks.py, asked of a large one."""
    before, rate = peaks.KINDS[name], 0.1 if setting == "dropout" else 0.0
    dropped = {key: rate for key in LARGE[name].keys if "drop" in key}
    peaks.KINDS[name] = replace(LARGE[name], keys={**LARGE[name].keys, **dropped})  # type: ignore[index]
    peaks.SHAPES["large"] = (32, 0, 1000) if name == "vit" else (4, 1024, 32000)
    more = {"dropout": rate} if rate and asked is peaks.predicted else {}
    try:
        return asked(name, "large", dtype, "plain" if rate else setting, *optimizer, **more)
    finally:
        peaks.KINDS[name] = before  # type: ignore[index]


def imported_cases(asked: Asked) -> Iterator[Case]:
    """Modules of PyTorch, torchvision, timm, transformers and peft, as `imported_peaks.py` has them."""
    for (name, (build, given)), dtype in product(asked.some(imported_peaks.CASES.items(), 3), DTYPES):
        run = partial(imported_peaks.train, build, given, DTYPES[dtype][0])
        yield f"{name}, {dtype}", run, partial(imported_peaks.predicted, build, given, dtype, PLACES[asked.device])


def steps_cases(asked: Asked) -> Iterator[Case]:
    """Optimizers, accumulation, clipping and checkpoints, as `tests/test_memory_steps.py` has them."""
    small = [(case, None, steps.LENGTH) for case in steps.CASES]
    settings = (1, False, False), (4, True, False), (4, True, True)
    large = [
        ((name, optimizer, *setting), LARGE[name].keys, 1024)
        for name, optimizer, setting in product(("gpt2", "llama"), steps.OPTIMIZERS, settings)
    ]
    for case, keys, length in asked.some([*small, *large], 4):
        name, optimizer, microbatches, clip, checkpoints = case
        more = (", clipped" if clip else "") + (", checkpoints" if checkpoints else "") + (", large" if keys else "")
        what = f"{name} {optimizer}, microbatches {microbatches}{more}"
        asks = partial(_peak_of_steps, *case, keys, length, on=PLACES[asked.device])
        yield what, partial(steps.train, *case, keys, length), asks


def _peak_of_steps(*case: Any, on: str | None) -> int:
    return int(steps.predicted(*case, on=on).peak)


CASES: dict[str, Callable[[Asked], Iterator[Case]]] = {
    "memory": memory_cases,
    "imported": imported_cases,
    "steps": steps_cases,
}


def cases(section: str, asked: Asked) -> list[Case]:
    """Those of a section that are asked for."""
    return [case for case in CASES[section](asked) if asked.takes(case[0])]


def predicted_case(section: str, asked: Asked, number: int) -> int | str:
    """The prediction of a case by its number, in another process."""
    torch.set_num_threads(1)
    try:
        with torch.device(asked.device):
            return cases(section, asked)[number][2]()
    except Exception as error:  # the row says so
        return message_of(error)


def peaks_of(section: str, asked: Asked, futures: Sequence[Any]) -> Iterator[Row]:
    """Case by case."""
    kept = workspaces() if asked.device == "cuda" else 0
    yield {"what": "libraries' workspaces", "measured": kept}
    for (name, run, _), future in zip(cases(section, asked), futures, strict=True):
        yield tried({"what": name}, partial(_peak, run, asked.device, future, kept))


def _peak(run: Callable[[], object], device: str, future: Any, kept: int) -> Row:
    torch.manual_seed(0)
    gc.collect()
    if device == "cpu":
        handed, measured = apart(run)
    else:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with torch.device(device):
            run()
            stats = torch.cuda.memory_stats()
            handed = stats["allocated_bytes.all.peak"] - kept
            whole, without, there = alive(run)
        measured = stats["requested_bytes.all.peak"] - kept - (whole - without)
    expected = future.result()
    if isinstance(expected, str):
        raise RuntimeError(f"prediction: {expected} (measured {measured:,})")
    row = {"predicted": expected, "measured": measured, "handed_out": handed, "ratio": expected / measured}
    if device != "cpu" and abs(row["ratio"] - 1) > 0.003:
        row["alive"] = there
    return row

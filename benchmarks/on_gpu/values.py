"""Values of emitted steps and of modules, beside NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import imported_peaks
import numpy as np
import torch

import learncost as lc
import learncost.torch as lt
from learncost.engines.emitted import EmittedProgram
from learncost.engines.inputs import random_data
from learncost.engines.numpy_engine import Training
from learncost.models.families import FAMILIES
from learncost.models.small import small
from learncost.procedures.optimizer import without_gradients
from on_gpu.asked import Asked, Row, tried


def values(asked: Asked) -> Iterator[Row]:
    """The largest difference from NumPy over the largest weight, or of gradients over the largest gradient."""
    device = asked.device
    rows = {f"emitted step, {name}": partial(_emitted, name, device) for name in asked.some(FAMILIES, 4)}
    rows |= {f"emitted in Triton, {name}": partial(_in_triton, name, device) for name in asked.some(FAMILIES, 8)}
    rows |= {f"learncost.torch, {name}": partial(_module, name, device) for name in ("gpt2", "tinyllama-1.1b", *SIZES)}
    rows["learncost.torch, gpt2, torch.compile"] = partial(_module, "gpt2", device, torch.compile)
    rows["from_module, gpt2 of transformers"] = partial(_read, device)
    for name, found in rows.items():
        if asked.takes(name):
            yield tried({"what": name}, found)


def _read(device: str) -> Row:
    """FLOPs of a module that lies on the device, and of one on a processor."""
    build, given = imported_peaks.CASES["gpt2"]
    sides = []
    for place in ("cpu", device):
        with torch.device(place):
            inputs = given(torch.float32)
            module = imported_peaks.built(build, inputs)
        sides.append(lc.cost(lc.from_module(module, inputs)).total.flops)
    return {"off": abs(sides[1] / sides[0] - 1)}


def _emitted(name: str, device: str) -> Row:
    training = Training(small(name), "bp", "adamw", learning_rate=0.01, dtype=np.float64, seed=1)
    data = random_data(training.model, 2, 6, 5, seed=1)
    prepared = training.prepare(**data)
    table = without_gradients(prepared.table)
    tensors = {name: torch.as_tensor(np.array(array), device=device) for name, array in prepared.values.items()}
    results = EmittedProgram(table, prepared.sizes, "torch")(tensors)
    training.step(**data)
    return {"off": max(_off(results[new], training.weights[name]) for name, new in table.renewed.items()
                       if name in training.weights)}  # fmt: skip


def _in_triton(name: str, device: str) -> Row:
    """With momentum: AdamW makes a whole step of the rounding of a gradient that is 0, as of a key's bias."""
    from on_gpu.in_triton import EmittedStep  # triton

    training = Training(small(name), "bp", "momentum", learning_rate=0.01, dtype=np.float64, seed=1)
    data = random_data(training.model, 2, 6, 5, seed=1)
    emitted = EmittedStep(training.prepare(**data), "fp64", device)
    emitted.run()
    training.step(**data)
    return {"off": max(_off(emitted.given[name], array) for name, array in training.weights.items())}


SMALL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48}
SIZES = {"vit-b-16": {**SMALL, "image_size": 32, "patch_size": 8, "num_labels": 7}}


def _module(name: str, device: str, compiled: Callable[..., Any] = lambda module: module) -> Row:
    sides = []
    for place in ("cpu", device):
        torch.manual_seed(0)
        module = lt.model(name, **SIZES.get(name, {**SMALL, "vocab_size": 61, "max_position_embeddings": 16}))
        module = module.double().to(place)
        if name in SIZES:
            given = {"image": torch.randn(2, 3, 4, 8, 4, 8, dtype=torch.float64), "labels": torch.randint(0, 7, (2,))}
        else:
            given = {name: torch.randint(0, 61, (2, 16)) for name in ("tokens", "targets")}
        called = compiled(module) if place == device else module
        loss = called(**{name: each.to(place) for name, each in given.items()})
        loss.backward()
        sides.append([loss, *(each.grad for each in module.parameters())])
    return {"off": max(_off(ours, theirs.detach().numpy()) for theirs, ours in zip(*sides, strict=True))}


def _off(tensor: torch.Tensor, array: Any) -> float:
    return float(np.abs(tensor.detach().cpu().numpy() - array).max() / max(1.0, np.abs(array).max()))

"""Where right answers come from: torch's counters, its allocator, the classes of transformers, a compiler.

Nothing here asks learncost what something costs or takes; `static_ram` and `constants` compile what it emits, and
read the sizes off the object.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from reports import modules

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from allocator import apart
from counting import counting, tally_of
from low_rank import adapt

WORDS = 11
"""Tokens are below this."""


def tensor(text: str, sizes: Mapping[str, int]) -> torch.Tensor:
    """An input as a text of `--input` describes it, with numbers of chance."""
    kind, *shape = text.split()
    gradient = shape[-1] == "gradient"
    numbers = [sizes[size] if size in sizes else int(size) for size in (shape[:-1] if gradient else shape)]
    if kind == "int":
        return torch.randint(WORDS, numbers)
    return torch.randn(numbers, dtype=getattr(torch, kind)).requires_grad_(gradient)


def oracles(name: str, inputs: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Callable[..., int]]:
    """The functions that an answer may call, about the module of a report."""
    build = partial(built, name)
    given = dict(inputs.items())

    def tensors() -> dict[str, torch.Tensor]:
        torch.manual_seed(0)
        return {key: tensor(text, sizes) for key, text in given.items()}

    return {
        "forward_flops": lambda other=name: _counted(partial(built, other), tensors)[0],
        "backward_flops": lambda other=name: _counted(partial(built, other), tensors)[1],
        "elements": lambda: sum(parameter.numel() for parameter in build().parameters()),
        "learning": lambda: sum(p.numel() for p in build().parameters() if p.requires_grad),
        "allocated": lambda **settings: allocated(build, tensors, **settings),
        "static_ram": lambda **flags: _sizes(name, given, flags)[0],
        "constants": lambda **flags: _sizes(name, given, flags)[1],
        "continuous_time_flops": continuous_time_flops,
        "eight_bit_states": eight_bit_states,
        "low_rank_llama_flops": low_rank_llama_flops,
        "vision_transformer_flops": vision_transformer_flops,
    }


def built(name: str) -> Any:
    """The module of a name, with the same numbers every time."""
    torch.manual_seed(0)
    return getattr(modules, name)()


def _counted(build: Callable[[], Any], tensors: Callable[[], dict[str, torch.Tensor]]) -> tuple[int, int]:
    """FLOPs of FlopCounterMode, forward and in the backward pass of all numbers that come out."""
    module, inputs = build(), tensors()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        results = module(*inputs.values())
        forward = counter.get_total_flops()
        found = [each for each in _flat(results) if each.requires_grad]
        torch.autograd.backward(found, [torch.ones_like(each) for each in found])
    return forward, counter.get_total_flops() - forward


def _flat(results: Any) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for each in results for tensor in _flat(each)]


def allocated(
    build: Callable[[], Any],
    tensors: Callable[[], dict[str, torch.Tensor]],
    optimizer: str = "fused",
    dtype: str = "float32",
) -> int:
    """The peak of the allocator in two steps of AdamW, without what kernels of products take for themselves."""

    def train() -> None:
        inputs = tensors()
        module = build().to(getattr(torch, dtype))
        learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
        steps = torch.optim.AdamW(learning, **{optimizer: True})  # type: ignore[arg-type]
        for _ in range(2):
            steps.zero_grad(set_to_none=True)
            module(**inputs).backward()
            steps.step()

    return int(apart(train)[1])


def continuous_time_flops() -> int:
    """What NumPy executes of `continuous_time`."""
    weight, state, currents = (counting(np.ones(shape)) for shape in ((12, 12), (4, 12), (20, 4, 12)))

    def run() -> Any:
        now = state
        for current in currents:
            now = now + 0.1 * (1 / (1 + np.exp(-(now @ weight + current))) - now)
        return now

    return int(tally_of(run)[1])


def eight_bit_states() -> int:
    """Bytes of bitsandbytes' Adam in 8 bits for RoBERTa base with its masked head.

    optim/optimizer.py: blocks of 256, each with a float; of parameters below 4,096 numbers the states are fp32.
    """
    from transformers import RobertaConfig, RobertaForMaskedLM

    with torch.device("meta"):
        model = RobertaForMaskedLM(RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1))
    counts = [parameter.numel() for parameter in model.parameters()]
    return sum(8 * count if count < 4096 else 2 * count + 8 * ceil(count / 256) for count in counts)


def low_rank_llama_flops() -> int:
    """A step of two layers of Llama 3 70B with LoRA of rank 16 on all linear layers of blocks, 64 tokens, on meta."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 64, "num_key_value_heads": 8}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, attn_implementation="eager"))
        adapt(model, ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], rank=16)
        tokens = torch.zeros(1, 64, dtype=torch.long)
        mask = torch.zeros(1, 1, 64, 64)  # one of four axes is taken as it is; to make one, transformers reads values
    return _both(model, {"input_ids": tokens, "attention_mask": mask, "use_cache": False})


def vision_transformer_flops() -> int:
    """A step of ViT-L/16 with its classifier, one image, on meta."""
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
    with torch.device("meta"):
        model = ViTForImageClassification(ViTConfig(**sizes, num_labels=1000, attn_implementation="eager"))
        image = torch.zeros(1, 3, 224, 224)
    return _both(model, {"pixel_values": image})


def _both(model: nn.Module, inputs: Mapping[str, Any]) -> int:
    with FlopCounterMode(display=False) as counter:
        model(**inputs).logits.sum().backward()
    return int(counter.get_total_flops())


def _sizes(name: str, inputs: Mapping[str, str], flags: Mapping[str, str]) -> tuple[int, int]:
    """Bytes in RAM (.data, .bss) and constants (.rodata) of the emitted program for a Cortex-M4."""
    with TemporaryDirectory() as folder:
        words = [word for key, value in flags.items() for word in (f"--{key}", value)]
        inputs_typed = [word for key, text in inputs.items() for word in ("--input", f"{key}: {text}")]
        file = f"{Path(__file__).parent / 'modules.py'}:{name}"
        emit = [
            sys.executable,
            "-m",
            "learncost",
            "emit",
            file,
            "--backend",
            "c99",
            *inputs_typed,
            *words,
            "-o",
            "step.c",
        ]
        subprocess.run(emit, cwd=folder, check=True, capture_output=True)
        compile_for = ["arm-none-eabi-gcc", "-std=c99", "-O0", "-mcpu=cortex-m4", "-mthumb", "-c", "step.c"]
        subprocess.run(compile_for, cwd=folder, check=True)
        sizes = subprocess.run(["arm-none-eabi-size", "-A", "step.o"], cwd=folder, check=True, capture_output=True)
    rows = [line.split() for line in sizes.stdout.decode().splitlines()]
    taken = {row[0]: int(row[1]) for row in rows if len(row) == 3 and row[1].isdigit()}
    ram = sum(size for section, size in taken.items() if section.startswith((".data", ".bss")))
    return ram, sum(size for section, size in taken.items() if section.startswith(".rodata"))

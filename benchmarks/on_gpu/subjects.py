"""The models that the engine on a GPU is measured at, also images, and the plans of its two passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from against_torch_and_jax.subject import SEED, Subject
from prediction import gpt2, llama

from learncost.backends.triton import laid_out, needed
from learncost.engines.weights import generator
from learncost.ir.table import Table
from learncost.models.model import run_sizes
from learncost.passes.plan import planned
from learncost.reports.memory.planner import candidates
from on_gpu.asked import Asked


class Text(Subject):
    """Tokens and targets; the weights are drawn once for all sides."""

    inputs = ("tokens", "targets")
    causal = True

    @cached_property
    def drawn(self) -> dict[str, Any]:
        return super().weights()

    def weights(self) -> dict[str, Any]:
        return dict(self.drawn)

    @property
    def lengths(self) -> dict[str, int]:
        """What is said of the batch to `learncost.memory`."""
        return {"batch_size": self.batch_size, "seq_len": self.seq_len}

    def module(self) -> torch.nn.Module | None:
        """The peers' module; None: theirs of text."""
        return None


class Images(Text):
    """Images and their classes; `seq_len` is the number of patches, and of the token of the class."""

    inputs = ("image", "labels")
    causal = False

    @property
    def sizes(self) -> dict[str, int]:
        return run_sizes(self.built, self.batch_size, None, None)

    @property
    def lengths(self) -> dict[str, int]:
        return {"batch_size": self.batch_size}

    def batch(self, step: int) -> tuple[Any, Any]:
        drawn, sizes = generator(SEED, "batch", step), self.built.sizes
        shape = (self.batch_size, *(sizes[axis] for axis in "ciyjx"))  # rows and columns of patches
        labels = drawn.integers(0, sizes["l"], self.batch_size, dtype=np.int64)
        return drawn.normal(size=shape).astype(np.float32), labels

    def module(self) -> torch.nn.Module:
        from transformers import ViTConfig, ViTForImageClassification

        class Plain(ViTForImageClassification):
            def forward(self, image: torch.Tensor, labels: torch.Tensor) -> Any:
                pixels = image.flatten(4, 5).flatten(2, 3)
                return torch.nn.functional.cross_entropy(super().forward(pixels).logits, labels)

        config = {key: value for key, value in self.config.items() if key not in ("model_type", "architectures")}
        dropped = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        return Plain(ViTConfig(**config, **dropped, attn_implementation="sdpa"))


def vit(layers: int, width: int, heads: int, image: int, patch: int, labels: int) -> Mapping[str, Any]:
    """A vision transformer as keys of a config.json."""
    sizes = {"num_hidden_layers": layers, "hidden_size": width, "num_attention_heads": heads}
    sizes |= {"intermediate_size": 4 * width, "image_size": image, "patch_size": patch, "num_labels": labels}
    return {"model_type": "vit", "architectures": ["ViTForImageClassification"], **sizes}


def subjects(asked: Asked) -> tuple[Text, ...]:
    """GPT-2 of 124M at the two batches of the design, a Llama of 1 B, and ViT-B/16."""
    if asked.quick:
        text = Text("gpt2 2 x 16", gpt2(2, 16, 2, 8, 61), 2, 8, "bf16")
        return text, Images("vit 2 x 16", vit(2, 16, 2, 8, 4, 7), 2, 5, "bf16")
    small = Text("gpt2 124M", gpt2(12, 768, 12, 1024, 50304), 4, 1024, "bf16")
    return (
        small,
        replace(small, batch_size=16),
        Text("llama 1B", llama(16, 2048, 32, 8192, 2048, 32000), 2, 2048, "bf16"),
        Images("vit-b/16", vit(12, 768, 12, 224, 16, 1000), 64, 197, "bf16"),
    )


def leanest(table: Table, sizes: Mapping[str, int], dtype: str) -> str:
    """Return the plan of the pass for memory: the leanest of those with little recomputation."""
    plans = [plan for heads in candidates(table, sizes, dtype)[:4] for plan in heads]
    return min(plans, key=lambda plan: needed(laid_out(planned(table, plan), sizes, dtype)))

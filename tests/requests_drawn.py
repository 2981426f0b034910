"""Random requests: what may be asked of a step or of inference, drawn from a printed seed."""

import json
import random
import shlex
from dataclasses import replace

from learncost.cli.command import main
from learncost.procedures.procedure import INFERENCE
from learncost.reports.request import Request

SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512}
LLAMA = {
    "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 512,
}  # fmt: skip
BERT = {**LLAMA}
del BERT["num_key_value_heads"]
T5 = {
    "num_layers": 2, "num_decoder_layers": 2, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_heads": 4, "vocab_size": 512,
}  # fmt: skip
MAMBA = {"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 512}
MODELS = {
    "gpt2": SMALL, "llama-3-8b": LLAMA, "bert-base": BERT, "t5-small": T5, "mixtral-8x7b": LLAMA, "mamba-130m": MAMBA,
    "vit-b-16": {**BERT, "image_size": 64},
}  # fmt: skip
del MODELS["vit-b-16"]["vocab_size"]
LAYERS = {"gpt2": "n_layer", "t5-small": "num_layers"}
"""The name of the number of layers, where it is not num_hidden_layers."""

CHOICES = {
    "procedure": ("bp", "bp", "bp", "recompute", "pepita", "mempepita", "prefill", "decode", "inference"),
    "batch_size": (None, 1, 2, 8),
    "seq_len": (16, 32, 64),
    "optimizer": (None, "sgd", "momentum", "adamw"),
    "precision": (None, None, "fp32", "bf16-masters", "bf16-true", "fp64"),
    "plan": (None, None, "flash", "flash,fused", "fused-update"),
    "lora": (None, None, None, "attention"),
    "dropout": (0.0, 0.0, 0.1),
    "context": (None, 16, 48),
    "page_size": (None, None, 16),
}
"""What each field of a request may be, the usual values more often."""

OF_MEMORY = {
    "engine": ("", "", "eager", "graph", "numpy"),
    "accumulate": (1, 1, 2),
    "clip": (None, None, 1.0),
    "on": (None, None, "A100-SXM-40GB"),
}
"""What the memory of a step may be asked with, too."""

OVER = {
    None: (None, None, None, "ddp"),
    "dp=2": ("ddp", "fsdp", "zero-1", None),
    "dp=2,tp=2": ("zero-1,megatron", "fsdp,megatron-sp"),
    "dp=2,shard=2": ("hsdp", "zero-1"),
    "pp=2": ("ddp", "pp,zero-1", "pp"),
}
"""Meshes, each with placements."""

OF_TRAINING = {"optimizer": None, "lora": None, "dropout": 0.0, "plan": None}
"""Fields that inference refuses, and their defaults."""


def draw(chance: random.Random, **fixed) -> Request:
    """A request, whose fields may not go together."""
    model = chance.choice([*MODELS])
    fields = {name: chance.choice(values) for name, values in CHOICES.items()} | fixed
    if model == "vit-b-16":  # whose images have no length
        fields["seq_len"] = None
    if fields["procedure"] != "decode":
        fields["context"] = None
    if fields["procedure"] not in ("prefill", "decode") and chance.random() < 0.8:
        fields["page_size"] = None
    if fields["procedure"] in INFERENCE and chance.random() < 0.8:
        fields |= OF_TRAINING
    return Request(model, sizes=MODELS[model], **fields)


def draw_memory(chance: random.Random, request: Request) -> Request:
    """The same request about memory, over devices, by an engine and in microbatches, which may not go together."""
    fields = {name: chance.choice(values) for name, values in OF_MEMORY.items()}
    fields["mesh"] = chance.choice([None, *OVER])
    fields["placement"] = chance.choice(OVER[fields["mesh"]])
    if chance.random() < 0.8:  # what most often goes together
        fields["batch_size"] = 8
        if fields["engine"] == "numpy" or fields["mesh"] or request.procedure in INFERENCE:
            fields["clip"] = None
        if request.procedure in INFERENCE:
            fields |= {"accumulate": 1, "engine": ""}
    return replace(request, **fields)


def typed(capsys, command: str):
    """What a command line prints as JSON, or the line with which it refuses."""
    code = main([*shlex.split(command)[1:], "--json"])
    printed = capsys.readouterr()
    if code:
        assert code == 2, printed.err
        return printed.err.strip().removeprefix("learncost: ")
    return json.loads(printed.out)

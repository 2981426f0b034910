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


FILES = {
    "axolotl": {
        "base_model": None, "micro_batch_size": (1, 2), "sequence_len": (128, 256),
        "gradient_accumulation_steps": (None, 1, 4), "bf16": (None, True, False, "auto"), "max_grad_norm": (None, 0.0),
        "optimizer": (None, "adamw_torch", "adamw_bnb_8bit", "lion_8bit", "adafactor"), "sample_packing": (None, True),
        "adapter": (None, None, "lora"), "lora_r": (8,), "lora_alpha": (16,), "lora_target_linear": (True,),
        "lora_dropout": (None, 0.05), "gradient_checkpointing": (None, True), "dp_shard_size": (None, None, None, 2),
        "liger_fused_linear_cross_entropy": (None, None, True),
    },
    "trl": {
        "model_name_or_path": None, "packing": (True,), "per_device_train_batch_size": (1, 4), "max_length": (128, 256),
        "gradient_accumulation_steps": (None, 4), "bf16": (None, True, False), "use_liger_kernel": (None, None, True),
        "optim": (None, "adamw_torch", "adamw_torch_fused", "sgd"), "gradient_checkpointing": (None, True, False),
        "use_peft": (None, None, True), "lora_target_modules": (["q_proj"],), "lora_r": (8,),
    },
    "transformers": {
        "model_name_or_path": None, "do_train": (True,), "block_size": (128,), "per_device_train_batch_size": (1, 8),
        "optim": (None, "adamw_torch", "sgd"), "fp16": (None, None, True), "gradient_checkpointing": (None, True),
        "gradient_accumulation_steps": (None, 2), "fsdp": (None, None, None, "full_shard"),
    },
    "llamafactory": {
        "model_name_or_path": None, "template": ("default",), "per_device_train_batch_size": (1, 2),
        "cutoff_len": (128, 256), "finetuning_type": (None, "full", "lora"), "pure_bf16": (None, None, True),
        "quantization_bit": (None, None, 4), "disable_gradient_checkpointing": (None, True), "lora_rank": (None, 16),
        "gradient_accumulation_steps": (None, 4), "flash_attn": (None, "fa2", "disabled"), "stage": (None, "dpo"),
    },
    "litgpt": {
        "checkpoint_dir": None, "train.global_batch_size": (8,), "train.micro_batch_size": (1, 2),
        "train.max_seq_length": (128, 256), "precision": ("bf16-true", "32-true", "bf16-mixed"), "lora_r": (None, 8),
        "devices": (None, 1, 4),
    },
}  # fmt: skip
"""Keys of trainers' files with values; None is left out, and the model is that of the first key."""

NAMED = ("openai-community/gpt2", "meta-llama/Llama-3.2-1B", "Qwen/Qwen3-0.6B", "google/gemma-2-2b")


def draw_file(chance: random.Random) -> tuple[dict, dict]:
    """A trainer's file, and flags that replace what it says: a model of two blocks, on a device or over several."""
    keys = FILES[chance.choice([*FILES])]
    file = {key: chance.choice(values or NAMED) for key, values in keys.items()}
    file = {key: value for key, value in file.items() if value is not None}
    flags = {"n_layer" if NAMED[0] in file.values() else "num_hidden_layers": 2}
    if chance.random() < 0.2:
        flags["on"] = chance.choice(("H100-SXM", "A100-SXM-40GB"))
    if "dp_shard_size" in file or "fsdp" in file:
        flags["mesh"] = "dp=2"
    return file, flags


def typed(capsys, command: str):
    """What a command line prints as JSON, or the line with which it refuses."""
    code = main([*shlex.split(command)[1:], "--json"])
    printed = capsys.readouterr()
    if code:
        assert code == 2, printed.err
        return printed.err.strip().removeprefix("learncost: ")
    return json.loads(printed.out)

"""The published sources, each with its own words for a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from learncost.autoshard.step import ParallelConfig
from learncost.ir.errors import InputError
from published_trainings.any_source import any_source
from published_trainings.case import Case, integer_of, key_of, mesh_of
from published_trainings.frameworks import FRAMEWORKS, OTHER_PRODUCTS, SEQUENCE, TENSOR, ZERO_1, ZERO_3, bridge_of, cut


def korthikanti(row: Mapping[str, Any]) -> Case:
    """GPT of Megatron-LM on A100s."""
    config = row["config"]
    mode = config["mode"]
    overrides = {
        "n_embd": config["hidden"], "n_head": config["heads"], "n_layer": config["blocks"],
        "n_positions": config["seq"], "vocab_size": config["vocab"], "n_inner": config["feedforward"],
    }  # fmt: skip
    plan = "fused"
    if "full" in mode:
        plan += ",recompute=block"
    elif "selective" in mode:
        plan += ",recompute=attn.R+attn.S+softmax"  # from queries, keys and values
    tensor = SEQUENCE if "sequence" in mode or "SP" in mode else TENSOR
    tensor = tensor if config["tp"] > 1 else ""
    pipeline, chunks = config["pp"], config["interleave"]
    parallel = ParallelConfig(
        mesh_of(pp=pipeline, tp=config["tp"]),
        config["micro_batch"],
        config["global_batch"] // config["micro_batch"] // config["dp"],
        "interleaved" if chunks > 1 else "1f1b",
        chunks,
        overlap=False,
    )
    key = key_of("gpt2", overrides, True, parallel, tensor, plan, "megatron-2022", config["seq"])
    return Case(key, parallel, config["seq"], "megatron-2022", "DGX A100")


def simumax(row: Mapping[str, Any]) -> Case:
    """Megatron-LM with TransformerEngine on 8 B200."""
    config = row["config"]
    latent = config["model"].startswith("deepseek")
    names = {"llama3_70b": "llama-3-70b", "llama3_405b": "llama-3.1-405b", "deepseekv3": "deepseek-v3"}
    names |= {"deepseekv2": "deepseek-v2", "llama3_8b": "llama-3-8b"}
    overrides: dict[str, Any] = {"num_hidden_layers": config["layers"]}
    if latent:
        overrides["first_k_dense_replace"] = config["dense_layers"]
    else:
        overrides["num_key_value_heads"] = config["kv_heads"]
    experts = config["ep"]
    axes = mesh_of(pp=config["pp"], dp=config["dp"] // experts, ep=experts, cp=config["cp"], tp=config["tp"])
    parallel = ParallelConfig(
        axes, config["micro_batch"], config["micro_batches"], overlap=False, **FRAMEWORKS["megatron-te"].of_config
    )
    plan = FRAMEWORKS["megatron-te"].plan
    key = key_of(
        names[config["model"]], overrides, False, parallel, cut(axes, ZERO_1), plan, "megatron-te", config["seq"]
    )
    return Case(key, parallel, config["seq"], "megatron-te", "DGX B200")


def torchtitan(row: Mapping[str, Any]) -> Case:
    """FSDP2 with tensor, context and pipeline parallelism on H100s of 2.4 TB/s."""
    config = row["config"]
    name = {"8b": "llama-3-8b", "70b": "llama-3-70b", "405b": "llama-3.1-405b"}[config["model"].rsplit("-", 1)[1]]
    axes = mesh_of(pp=config.get("pp", 1), dp=config.get("fsdp", 1), cp=config.get("cp", 1), tp=config.get("tp", 1))
    text = cut(axes, ZERO_3, within="weights gradients states")
    framework = "fsdp-eager" if config.get("mode") == "eager" else "fsdp-compile"
    plan = FRAMEWORKS[framework].plan
    if config.get("recompute") == "full":
        plan += ",recompute=block"
    elif "selective" in config.get("recompute", ""):
        plan += f",recompute={OTHER_PRODUCTS}"
    pipeline = axes.get("pp", 1)
    batch = config["local_batch"]
    several = config.get("schedule") == "Interleaved1F1B"
    parallel = ParallelConfig(axes, 1 if pipeline > 1 else batch, batch if pipeline > 1 else 1,
              "interleaved" if several else "1f1b", 2 if several else 1,
              overlapped_axes=("tp",) if "async" in config.get("mode", "").lower() else ())  # fmt: skip
    overrides = {"max_position_embeddings": config["seq"]}
    key = key_of(name, overrides, False, parallel, text, plan, framework, config["seq"])
    return Case(key, parallel, config["seq"], framework, "DGX H100", bandwidth_gbs=2400, watts=500)


def bridge(row: Mapping[str, Any]) -> Case:
    """Megatron Bridge: the tables of its performance summary."""
    config = row["config"]
    names = {"DeepSeekV3": "deepseek-v3", "GPT-OSS-120B": "gpt-oss-120b", "Qwen3_235B_a22B": "qwen3-235b-a22b"}
    names |= {"Qwen3_30B_a3B": "qwen3-30b-a3b", "LLAMA3_8B": "llama-3-8b", "LLAMA3_70B": "llama-3-70b"}
    names |= {"LLAMA3.1_405B": "llama-3.1-405b"}
    systems = {"DGX-GB300": "GB300 NVL72", "DGX-GB200": "GB200 NVL72", "DGX-B200": "DGX B200", "DGX-H100": "DGX H100"}
    framework = bridge_of(config["model"])
    degrees = config["tp"] * config["pp"] * config["cp"] * config["ep"]
    if config["gpus"] % degrees:
        raise InputError("experts lie over other axes than the mesh has")
    chunks = int(config["vp"]) if str(config["vp"]).isdigit() else 1
    axes = mesh_of(pp=config["pp"], dp=config["gpus"] // degrees, ep=config["ep"], cp=config["cp"], tp=config["tp"])
    text = cut(axes, ZERO_3 if config["fsdp"] else ZERO_1)
    # What some rows print as accumulation is not what batch and mesh leave; the batch is taken.
    microbatches = max(1, config["gbs"] // config["mbs"] // (axes.get("dp", 1) * axes.get("ep", 1)))
    schedule = "interleaved" if chunks > 1 and config["pp"] > 1 else "1f1b"
    parallel = ParallelConfig(axes, config["mbs"], microbatches, schedule,
              chunks if config["pp"] > 1 else 1, **FRAMEWORKS[framework].of_config)  # fmt: skip
    plan = FRAMEWORKS[framework].plan
    key = key_of(names[config["model"]], {}, False, parallel, text, plan, framework, config["seq"])
    return Case(key, parallel, config["seq"], framework, systems[config["system"]])


def bigscience(row: Mapping[str, Any]) -> Case:
    """Megatron-DeepSpeed on A100s, as BigScience's chronicles tell: gigabytes as nvidia-smi shows them."""
    config = row["config"]
    degrees = {key: integer_of(config["parallel"], key) for key in ("dp", "tp", "pp")} | {
        "zero": config["parallel"].get("zero") or 0
    }
    overrides = {
        "n_embd": config["hidden"], "n_head": config["heads"], "n_layer": integer_of(config, "layers"),
        "n_positions": config["seq"], "vocab_size": config["vocab"], "n_inner": config["ffn"],
    }  # fmt: skip
    if config.get("activation_checkpointing") != "full" or degrees.get("zero", 0) > 1:
        raise InputError("only full recomputation and ZeRO-1 of this source are known here")
    plan = "fused,recompute=block"
    axes = mesh_of(pp=degrees["pp"], dp=degrees["dp"], tp=degrees["tp"])
    text = cut(axes, ZERO_1 if degrees["zero"] else "B over dp", TENSOR)
    microbatches = integer_of(config, "global_batch") // integer_of(config, "micro_batch") // degrees["dp"]
    parallel = ParallelConfig(axes, config["micro_batch"], max(1, microbatches), overlap=False)
    framework = "deepspeed-fp32" if "fp32 grad" in config["precision"] else "deepspeed"
    key = key_of("gpt2", overrides, False, parallel, text, plan, framework, config["seq"])
    return Case(key, parallel, config["seq"], framework, "DGX A100")


def composer(row: Mapping[str, Any]) -> Case:
    """llm-foundry on Composer."""
    return any_source({**row, "framework": "composer"})


SOURCES = {
    "korthikanti": korthikanti, "simumax": simumax, "torchtitan-t": torchtitan, "torchtitan-async": torchtitan,
    "bridge": bridge, "t/bigscience-a100": bigscience, "llmfoundry": composer,
}  # fmt: skip
"""By the beginning of a row's id."""


def case_of(row: Mapping[str, Any]) -> Case:
    """The case of a row. Raises `InputError` and `KeyError` where its configuration is not complete."""
    make = next((make for name, make in SOURCES.items() if row["id"].startswith(name)), any_source)
    return make(row)

"""A row of a source that is not known here by name: what it says, and what is usual where it says nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from learncost.autoshard.step import ParallelConfig
from learncost.ir.errors import InputError, nearest, shown
from published_trainings.case import (
    Case,
    cluster_of_row,
    family_called,
    integer_of,
    key_of,
    mesh_of,
    network_of_row,
    preset_called,
    settings_of,
)
from published_trainings.frameworks import (
    FRAMEWORKS,
    OTHER_PRODUCTS,
    SEQUENCE,
    TENSOR,
    ZERO_1,
    ZERO_2,
    ZERO_3,
    bridge_of,
    cut,
)

SIZES = {"n_embd": ("hidden",), "n_head": ("heads",), "n_layer": ("layers", "blocks"), "vocab_size": ("vocab",)}
"""What rows call the sizes of a GPT."""

GROUPED = {
    "hidden_size": ("hidden",), "num_attention_heads": ("heads",), "num_hidden_layers": ("layers", "blocks"),
    "vocab_size": ("vocab",), "intermediate_size": ("ffn", "feedforward"),
}  # fmt: skip
"""Those of a Llama, of a row that tells that its networks are gated; of StarCoder 2 where it tells of heads of keys."""

RECOMPUTED = {
    "full": "block", "true": "block", "selective": "attn.R+attn.S+softmax", "none": "", "false": "",
    "minimal": "gelu+norm+relu+silu", "layer": "block/2", "op": OTHER_PRODUCTS, "norm": "norm", "act": "gelu+relu+silu",
}  # fmt: skip
"""What rows say of recomputation, several with commas between. minimal is MaxText's: products are kept, all else is
made again; layer and op are torchtitan's: every second block, every second product. Under flash attention scores are
made again in any case."""

GENERATION_BEFORE = ("NVIDIA V100", "NVIDIA A100")
"""Devices of trainings whose scores of attention are stored, and whose gradients all devices have whole."""


def any_source(row: Mapping[str, Any]) -> Case:
    """A row of any other source whose configuration is complete: Megatron-LM as of its device's time, or ZeRO-3.

    `model` names a preset, or the sizes are a GPT's; tp, pp, cp and ep are 1 where nothing is said; dp, or gpus.
    """
    config = settings_of(row)
    machine = cluster_of_row(config)
    _refuse_unknown(row["config"], config)
    fully = bool(config.get("fsdp")) or config.get("zero") == 3 or "fsdp" in str(config.get("mode", "")).lower()
    flash = config.get("flash") or "flash" in str(config.get("attn", ""))
    old = machine is not None and machine.device.name.startswith(GENERATION_BEFORE)
    compiled = "-compile" if config.get("compile") else "-eager"
    usual = (
        f"fsdp{compiled}" if fully else "megatron-2022" if old and not flash else bridge_of(str(config.get("model")))
    )
    if (framework := str(config.get("framework") or usual)) not in FRAMEWORKS:
        raise InputError(f"its framework is {framework}, and {', '.join(FRAMEWORKS)} are known")
    name, overrides = _model_of(config)
    seq = integer_of(config, "seq", "seq_len")
    inner = {axis: int(config.get(axis) or 1) for axis in ("pp", "ep", "cp", "tp")}
    number = _data_parallel(config, prod(inner.values()))
    axes = mesh_of(pp=inner["pp"], dp=number, ep=inner["ep"], cp=inner["cp"], tp=inner["tp"])
    micro, microbatches = _batches(config, number * inner["ep"])
    chunks = int(config.get("interleave") or config.get("vp") or 1) if "pp" in axes else 1
    overlap = fully or not old
    schedule = str(config.get("schedule") or ("interleaved" if chunks > 1 else "1f1b")).lower()
    layers = tuple(map(int, config.get("stages") or ()))
    parallel = ParallelConfig(
        axes, micro, microbatches, schedule, chunks, layers, overlap, **FRAMEWORKS[framework].of_config
    )
    plan = _with(FRAMEWORKS[framework].plan, _recomputed(config))
    text = _placement(config, axes, old, fully, framework in WITH_THE_SEQUENCE)
    key = key_of(name, overrides, False, parallel, text, plan, framework, seq)
    return Case(key, parallel, seq, framework, machine.name if machine else "", network_gbps=network_of_row(config))


def _recomputed(config: Mapping[str, Any]) -> list[str]:
    """What a row makes again in its own words. Raises `InputError` for a word that is not known."""
    recompute = str(config.get("recompute") or config.get("activation_checkpointing") or "none").lower()
    ops = [part.split()[0] for part in recompute.partition("(")[0].split(",") if part.strip()]
    if unknown := [op for op in ops if op not in RECOMPUTED]:
        raise InputError(f"recomputation is {', '.join(RECOMPUTED)}, not {unknown[0]!r}")
    return ops


def _with(plan: str, ops: Sequence[str]) -> str:
    """A framework's plan with what a row makes again: beside what the framework does, or whole blocks in its place."""
    recomputed = [RECOMPUTED[op] for op in ops if not ("flash" in plan and op == "selective")]
    if not any(recomputed):
        return plan
    parts = [part for part in plan.split(",") if not part.startswith("recompute=")]
    others = [part for part in plan.split(",") if part not in parts and RECOMPUTED["full"] not in recomputed]
    again = [*(part.removeprefix("recompute=") for part in others), *filter(None, recomputed)]
    names = dict.fromkeys(name for part in again for name in part.split("+"))
    return ",".join((*parts, f"recompute={'+'.join(names)}"))


WITH_THE_SEQUENCE = ("bridge", "bridge-all-to-all", "nanotron")
"""Frameworks whose tensor parallelism has the sequence, where a row says nothing of it."""

AXES = ("dp", "tp", "pp", "cp", "ep", "vp", "zero", "fsdp", "interleave", "gpus", "mp_mode")
"""What a row may say of how it is parallel."""

SAYS = (
    *("device", "system", "gpu", "hardware", "network_gbps", "source"),
    *("model", "hidden", "heads", "kv_heads", "head_dim", "layers", "blocks", "ffn", "feedforward", "vocab"),
    *("gated", "tied", "experts", "seq", "seq_len"),
    *("parallel", *AXES, "etp", "n_gpus", "devices", "sequence_parallel", "schedule", "stages"),
    *("micro_batch", "mbs", "local_batch", "global_batch", "gbs", "grad_accum", "tokens_per_step"),
    *("framework", "compile", "mode", "flash", "attn", "recompute", "activation_checkpointing"),
    *("method", "cpu_offload", "precision", "dtype", "pos", "bias", "note"),
)
"""What a row may say in its configuration; note is prose, and biases are a thousandth of what is counted."""

OTHERWISE = ("lora", "offload", "8-bit", "adafactor", "unpacked")
"""Words of methods that hold or compute something else than a step of AdamW on all weights."""


def _refuse_unknown(written: Mapping[str, Any], config: Mapping[str, Any]) -> None:
    """Raises `InputError` for a row that says something of which nothing is known here.

    written   its configuration as it stands in the file; config, all that it says
    """
    for key in written:
        if key not in SAYS:
            raise InputError(
                f"a configuration has no {shown(key)}{nearest(key, SAYS) or ', and --help says what it has'}"
            )
    for axis, size in (config.get("parallel") or {}).items():
        if axis not in AXES and size not in (None, 1, False):
            raise InputError(f"it is cut over {axis}, of which nothing is known here")
    if not (positions := str(config.get("pos", "learned"))).startswith("learned"):
        raise InputError(f"its positions are {shown(positions)}, and those of a GPT told by its sizes are learned")
    tensor, experts = int(config.get("tp") or 1), int(config.get("ep") or 1)
    if experts > 1 and int(config.get("etp") or tensor) != tensor:
        raise InputError(
            f"its experts are cut over etp={config['etp']}, all else over tp={tensor}: they have to be one number"
        )
    method = str(config.get("method") or "").lower()
    if ops := [op for op in OTHERWISE if op in method] or ["offload"] * bool(config.get("cpu_offload")):
        raise InputError(f"its method has {ops[0]}, of which nothing is known here")
    kind = str(config.get("precision") or config.get("dtype") or "").lower()
    if "tf32" in kind or kind in ("fp32", "float32"):
        raise InputError(f"it computes in {kind}, and rates of trainings that go on are known in 16 bits")


def _model_of(config: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The preset that a row names; or GPT-2 with the sizes that it tells."""
    name = str(config.get("model", ""))
    if "hidden" not in config:
        return preset_called(name), {}
    if (other := family_called(name)) and other != "decoder":
        raise InputError(f"its model, {name}, is told by the sizes of a GPT, and is none")
    if "experts" in config:
        raise InputError("its sizes are told, and those of experts are known of presets alone")
    seq, width = (
        integer_of(config, "seq"),
        config.get("ffn") or config.get("feedforward") or 4 * integer_of(config, "hidden"),
    )
    if config.get("gated") or config.get("kv_heads"):
        sizes = {size: integer_of({**config, "ffn": width}, *names) for size, names in GROUPED.items()}
        sizes |= {"max_position_embeddings": seq, "tie_word_embeddings": bool(config.get("tied"))}
        sizes |= {} if config.get("gated") else {"use_bias": False}
        optional = {"num_key_value_heads": config.get("kv_heads"), "head_dim": config.get("head_dim")}
        sizes |= {size: int(value) for size, value in optional.items() if value}
        return "llama-2-7b" if config.get("gated") else "starcoder2", sizes
    return "gpt2", {
        "n_positions": seq, **{size: integer_of(config, *names) for size, names in SIZES.items()}, "n_inner": width,
    }  # fmt: skip


def _data_parallel(config: Mapping[str, Any], others: int) -> int:
    """How many parts the batch has: as a row says, or as the others leave. A word for fsdp means all that is left."""
    shards, replicas = config.get("fsdp") or 1, config.get("dp")
    if not isinstance(shards, str) and (shards > 1 or replicas is not None):
        return int(shards) * int(replicas or 1)
    devices = integer_of(config, "gpus", "n_gpus", "devices")
    if devices % others:
        raise InputError(f"{devices} devices are no multiple of the {others} of its other axes")
    return devices // others


def _batches(config: Mapping[str, Any], parts: int) -> tuple[int, int]:
    """Sequences of a microbatch, and microbatches of a step."""
    if (micro := config.get("micro_batch") or config.get("mbs") or config.get("local_batch")) is None:
        each = integer_of(config, "global_batch", "gbs") // parts
        if each != 1 and not config.get("grad_accum"):
            raise KeyError("micro_batch")
        micro = each // int(config.get("grad_accum", 1))
    if "MaxText" in str(config.get("dataset")):  # whose per_device_batch_size is of a chip, also over tp
        micro *= int(config.get("tp") or 1)
    whole = config.get("global_batch") or config.get("gbs") or int(micro) * parts * int(config.get("grad_accum", 1))
    if tokens := config.get("tokens_per_step"):
        whole = int(tokens) // integer_of(config, "seq", "seq_len")
    return int(micro), max(1, int(whole) // int(micro) // parts)


def _placement(config: Mapping[str, Any], axes: Mapping[str, int], old: bool, fully: bool, new_tensor: bool) -> str:
    """The clauses: sequence parallelism and ZeRO-1 of newer trainings, unless a row says otherwise."""
    several = new_tensor if config.get("sequence_parallel") is None else config["sequence_parallel"]
    zero = 3 if fully else config.get("zero")
    data = {0: "B over dp", 1: ZERO_1, 2: ZERO_2, 3: ZERO_3}[int(not old) if zero is None else int(zero)]
    return cut(axes, data, SEQUENCE if several else TENSOR)

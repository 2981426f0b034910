"""Types of transformers, drawn by a seed: each in its smallest configuration, read and held to itself as the zoo is.

    python benchmarks/drawn_types.py benchmarks/drawn_types.md --draw 30 --seed 5   # write which types before any runs
    python benchmarks/drawn_types.py benchmarks/drawn_types.md                      # run those without an outcome

The types of the zoo, of learncost's own families and of the file are not drawn again. A type whose class cannot be
built or run by PyTorch itself at these sizes stays in the table, with what it says. Needs the extra `zoo`.
"""

from __future__ import annotations

import argparse
import random
import re
import signal
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from zoo import row

HEAD = """# Types of transformers, drawn by a seed

| type | parameters | value | gradient | FLOPs forward / backward | PyTorch counts |
| --- | ---: | ---: | ---: | ---: | --- |
"""
DRAWN = "not run"
"""What a type's row says until it is run."""

SECONDS = 240
"""The longest time of a type, of processor."""

SMALL: Mapping[str, Any] = {
    r"(max_position_embeddings|max_(source|target)?_?(positions|length|seq_len)|n_positions|max_seq_len)": 64,
    r".*(vocab|vocabulary)_size.*": 64,
    r"(num_hidden|num|n|encoder|decoder|num_encoder|num_decoder|.*num)_?_?layers?": 2,
    r".*(key_value|kv)_heads?": 2,
    r".*(attention_heads|n_heads?|num_heads|encoder_heads)": 4,
    r"(head_dim|.*_head_dim|d_kv|attention_head_size|kv_channels|v_head_dim)": 8,
    r"(hidden_size|d_model|n_embd|embed_dim|hidden_dim|width|dim|model_dim|embedding_size|.*_hidden_size)": 32,
    r".*(intermediate_size|ffn_dim|d_ff|mlp_dim|n_inner|ffn_hidden_size|inner_dim)": 48,
    r"(num_local_experts|num_experts|n_routed_experts|moe_num_experts)": 4,
    r"(num_experts_per_tok|moe_k|moe_topk|top_k_experts)": 2,
    r"(n_group|topk_group|num_expert_group|n_shared_experts|num_shared_experts|first_k_dense_replace)": 1,
    r"(image_size|img_size)": 32,
    r"(patch_size)": 8,
    r"(q_lora_rank|kv_lora_rank|.*_rank)": 8,
    r"(num_queries)": 5,
    r"(sliding_window|attention_window|local_attention|chunk_size|window_size)": 16,
    r"(qk_nope_head_dim|qk_rope_head_dim)": 8,
    r"(num_mel_bins)": 16,
}
"""The sizes, by the names of settings."""


VIDEO = {
    "image_size": 16,
    "num_frames": 2,
    "tubelet_size": [1, 8, 8],
    "hidden_size": 32,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "num_auxiliary_layers": 1,
}
OF_TYPE: Mapping[str, Mapping[str, Any]] = {
    "convnextv2": {"image_size": 64, "patch_size": 4},
    "cvt": {"embed_dim": [8, 16, 32], "num_heads": [1, 2, 4], "depth": [1, 1, 1], "drop_path_rate": [0.0] * 3},
    "efficientnet": {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 0.2, "hidden_dim": 320},
    "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8},
    "mimi_decoder": {"upsample_groups": 32, "upsampling_ratios": [2, 2], "num_filters": 8},
    "ministral": {"head_dim": 8},
    "mobilevitv2": {"image_size": 64, "patch_size": 2, "base_attn_unit_dims": [8, 16, 24]},
    "sam2_hiera_det_model": {
        "image_size": [64, 64],
        "blocks_per_stage": [1, 1, 1, 1],
        "embed_dim_per_stage": [8, 16, 32, 64],
        "hidden_size": 8,
        "num_attention_heads": 1,
        "num_attention_heads_per_stage": [1, 2, 2, 4],
        "window_size_per_stage": [4, 2, 2, 1],
        "global_attention_blocks": [3],
    },
    "videoprism": {"vision_config": {**VIDEO, "num_spatial_layers": 1, "num_temporal_layers": 1}},
    "xlstm": {"hidden_size": 32, "embedding_dim": 32, "num_heads": 4, "num_blocks": 2, "num_hidden_layers": 2},
    "zamba": {
        "num_hidden_layers": 5,
        "attn_layer_period": 2,
        "mamba_dt_rank": 4,
        "attention_hidden_size": 64,
        "attention_head_dim": 16,
        "layers_block_type": [*["linear_attention", "hybrid"] * 2, "linear_attention"],
    },
}
"""Settings of a type that fit together otherwise."""

GIVEN: Mapping[str, Mapping[str, Any]] = {
    "cvt": {"pixel_values": (2, 3, 64, 64)},
    "glm46v": {"pixel_values": None},
    "glm4v_moe": {"pixel_values": None},
    "convnextv2": {"pixel_values": (2, 3, 64, 64)},
    "lightglue": {"pixel_values": (1, 2, 1, 32, 32)},
    "mimi_decoder": {"latents": (2, 32, 6)},
    "mobilevitv2": {"pixel_values": (2, 3, 64, 64)},
    "moss_transcribe_diarize": {"input_features": None},
    "musicflamingo": {"input_features": None},
    "pe_audio": {"input_values": (2, 1, 3840)},
    "pe_audio_video_encoder": {"input_values": (2, 1, 3840)},
    "speech_to_text": {"input_features": (2, 32, 80)},
    "video_llama_3": {"pixel_values": None},
    "timesformer": {"pixel_values": (2, 8, 3, 32, 32)},
    "ultravbert": {"pixel_values": (2, 1, 3, 32, 32)},
    "sam2_hiera_det_model": {"pixel_values": (1, 3, 64, 64)},
    "videoprism": {"pixel_values_videos": (2, 2, 3, 16, 16)},
}
"""Shapes of inputs that a configuration does not have; None: text alone."""


LEFT_OUT = ("architectures", "transformers_version", "dtype", "out_features", "out_indices", "stage_names")
"""Settings that follow from others, or that no class needs."""


def smallest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the small sizes, whose numbers of tokens are among them."""
    small: dict[str, Any] = {}
    for name, value in settings.items():
        if isinstance(value, list) and len(value) == settings.get("num_hidden_layers") > 2:  # of each layer
            of_one = next((size for part, size in SMALL.items() if re.fullmatch(part, name)), None)
            small[name] = [value[0], value[-1]] if of_one is None else [of_one] * 2
            continue
        if isinstance(value, Mapping) and name.endswith("_config"):
            small[name] = smallest(value)
        elif name.endswith("token_id") and isinstance(value, int) and value >= 64:
            small[name] = 1
        elif isinstance(value, int) and not isinstance(value, bool):
            small[name] = next((size for part, size in SMALL.items() if re.fullmatch(part, name)), value)
        elif name == "depths":
            small[name] = [1 for _ in value]
        elif name in ("hidden_sizes", "neck_hidden_sizes", "embed_dims") and isinstance(value, list | tuple):
            small[name] = [8 * 2**place for place in range(len(value))]
        elif isinstance(value, float) and ("dropout" in name or "drop" in name):
            small[name] = 0.0
        else:
            small[name] = value
    return {name: value for name, value in small.items() if name not in LEFT_OUT}


def built(kind: str) -> tuple[Any, Any]:
    """Return a type's module in evaluation, and its inputs, with which PyTorch runs it."""
    import torch
    import transformers

    from learncost.importer.configured import inputs_of, module_of
    from learncost.importer.inputs import tensors

    torch.manual_seed(0)
    settings = transformers.AutoConfig.for_model(kind).to_dict()
    module = module_of({**smallest(settings), **OF_TYPE.get(kind, {}), "model_type": kind}).eval()
    inputs = tensors(inputs_of(module), {"B": 2, "M": 5, "N": 6, "T": 32})
    for name, value in inputs.items():
        if isinstance(value, torch.Tensor) and not value.is_floating_point():
            inputs[name] = torch.randint(2, 10, value.shape) if value.dim() > 1 else value
    for name, shape in GIVEN.get(kind, {}).items():
        inputs[name] = None if shape is None else torch.randn(shape)
    inputs = {name: value for name, value in inputs.items() if value is not None}
    with torch.no_grad():
        module(**inputs)
    return module, inputs


def outcome(kind: str) -> str:
    """Return the row of a type."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"after {SECONDS} s of processor")

    try:
        module, inputs = built(kind)
    except Exception as error:  # any error of a class that has other needs than these sizes
        message = (str(error).strip().splitlines() or [""])[0].replace("|", "/")
        return f"| {kind} | not built | | | | PyTorch: {type(error).__name__}: {message} |"
    signal.signal(signal.SIGVTALRM, late)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    try:
        return row(kind, lambda: (module, inputs))
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def others(known: Mapping[str, str]) -> list[str]:
    """Return the types that are in no table: not in the zoo, not of a family, not in the file."""
    import transformers

    from learncost.models.families import FAMILIES

    zoo = re.sub(r"[^a-z0-9]", "", (Path(__file__).parent.parent / "docs" / "zoo.md").read_text().lower())
    kinds = transformers.models.auto.modeling_auto.MODEL_MAPPING_NAMES
    return sorted(
        kind for kind in {*kinds} - {*FAMILIES} - {*known} if f"transformers{kind.replace('_', '')}" not in zoo
    )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--draw", type=int, default=0, help="how many types to add, without running them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="types to run again, with commas between them")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    lines = arguments.file.read_text().splitlines() if arguments.file.exists() else []
    known = {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}
    known = {kind: line for kind, line in known.items() if kind not in ("type", "---")}

    seeds = [line for line in lines if line.startswith("Seed ")]

    def write() -> None:
        arguments.file.write_text(HEAD + "\n".join([*known.values(), "", *seeds]) + "\n")

    if arguments.draw:
        drawn = sorted(random.Random(arguments.seed).sample(others(known), arguments.draw))
        known |= {kind: f"| {kind} | | | | | {DRAWN} |" for kind in drawn}
        seeds.append(f"Seed {arguments.seed}: {', '.join(drawn)}.")
        write()
        return
    again = [each for each in arguments.only.split(",") if each]
    for kind in [each for each, line in known.items() if each in again or (not again and DRAWN in line)]:
        known[kind] = outcome(kind)
        print(known[kind], flush=True)
        write()


if __name__ == "__main__":
    main()

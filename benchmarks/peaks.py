"""The predicted peak of PyTorch's allocator in a training step of transformers' own modules beside the measured one.

    python benchmarks/peaks.py [--model gpt2,llama] [--setting plain,checkpoints,lora,both] [--dtype fp32,bf16]
                               [--optimizer fused] [--format table|md]

Needs torch and transformers (extra `test`). Two steps of AdamW run on a processor, the second with the optimizer's
state there from the start, and the profiler's record of every allocation is added up (`tests/allocator.py`). The shapes
are such that the loss, a block, or the optimizer is the worst moment. bf16 is a module in bf16 throughout. LoRA is
written out as the peft library does it (`tests/low_rank.py`), checkpoints are transformers' own.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from measure import show

import learncost as lc
from learncost.models.configuration import configure

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from allocator import apart
from low_rank import adapt, coded

WIDTH = {"hidden_size": 256, "num_attention_heads": 4, "num_hidden_layers": 3}
SHORT = {"n_embd": 256, "n_head": 4, "n_layer": 3}
LLAMA = {**WIDTH, "intermediate_size": 688, "num_key_value_heads": 2}
BERT = {**WIDTH, "intermediate_size": 1024, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
EXPERTS = {**LLAMA, "intermediate_size": 256, "num_experts_per_tok": 2}
GPT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

DISENTANGLED = {**BERT, "relative_attention": True, "position_biased_input": False, "type_vocab_size": 0}
LATENT = {
    **WIDTH, "num_key_value_heads": 4, "intermediate_size": 688, "moe_intermediate_size": 128, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1, "kv_lora_rank": 64, "q_lora_rank": 96,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64, "n_group": 1, "topk_group": 1,
}  # fmt: skip
DELTA = {
    **LLAMA, "head_dim": 64, "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_num_key_heads": 4,
    "linear_num_value_heads": 8, "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}  # fmt: skip
STATE = {"hidden_size": 64, "num_hidden_layers": 3}


@dataclass(frozen=True)
class Kind:
    """A model type: its class, the keys of its configuration, and the modules that LoRA is on."""

    architecture: str
    keys: Mapping[str, Any]
    lora: str = "q_proj,v_proj"


KINDS = {
    "gpt2": Kind("GPT2LMHeadModel", {**SHORT, **GPT}, "c_attn"),
    "llama": Kind("LlamaForCausalLM", LLAMA),
    "qwen2": Kind("Qwen2ForCausalLM", LLAMA),
    "gemma": Kind("GemmaForCausalLM", {**LLAMA, "head_dim": 64, "num_key_value_heads": 1}),
    "gptj": Kind("GPTJForCausalLM", {**SHORT, **GPT, "rotary_dim": 32, "n_positions": 512}),
    "phi": Kind("PhiForCausalLM", {**WIDTH, "intermediate_size": 1024}),
    "falcon": Kind("FalconForCausalLM", WIDTH, "query_key_value"),
    "opt": Kind("OPTForCausalLM", {**WIDTH, "ffn_dim": 1024, "word_embed_proj_dim": 256, "dropout": 0.0}),
    "bert": Kind("BertForMaskedLM", BERT, "query,value"),
    "t5": Kind(
        "T5ForConditionalGeneration",
        {"d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 3, "num_heads": 4, "dropout_rate": 0.0}
        | {"decoder_start_token_id": 0},
        "q,v",
    ),
    "mixtral": Kind("MixtralForCausalLM", {**EXPERTS, "num_local_experts": 4}),
    "mistral": Kind("MistralForCausalLM", {**LLAMA, "sliding_window": 64}),
    "qwen3": Kind("Qwen3ForCausalLM", {**LLAMA, "head_dim": 64}),
    "gemma2": Kind("Gemma2ForCausalLM", {**LLAMA, "head_dim": 64, "num_hidden_layers": 4}),
    "gemma3_text": Kind("Gemma3ForCausalLM", {**LLAMA, "head_dim": 64, "num_hidden_layers": 6}),
    "gpt_neox": Kind("GPTNeoXForCausalLM", {**WIDTH, "intermediate_size": 1024}, "query_key_value"),
    "bloom": Kind("BloomForCausalLM", {"hidden_size": 256, "n_head": 4, "n_layer": 3}, "query_key_value"),
    "roberta": Kind("RobertaForMaskedLM", {**BERT, "max_position_embeddings": 514}, "query,value"),
    "bart": Kind(
        "BartForConditionalGeneration",
        {"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "dropout": 0.0}
        | {"decoder_attention_heads": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024},
    ),
    "vit": Kind(
        "ViTForImageClassification", {**BERT, "image_size": 128, "patch_size": 8, "num_labels": 10}, "q_proj,v_proj"
    ),
    "electra": Kind("ElectraForMaskedLM", {**BERT, "embedding_size": 128}, "query,value"),
    "albert": Kind("AlbertForMaskedLM", {**BERT, "embedding_size": 64, "classifier_dropout_prob": 0.0}, "query,value"),
    "distilbert": Kind(
        "DistilBertForMaskedLM",
        {"dim": 256, "n_layers": 3, "n_heads": 4, "hidden_dim": 1024, "dropout": 0.0, "attention_dropout": 0.0},
        "q_lin,v_lin",
    ),
    "deberta": Kind("DebertaForMaskedLM", {**DISENTANGLED, "pos_att_type": ["c2p", "p2c"]}, "in_proj"),
    "deberta-v2": Kind(
        "DebertaV2ForMaskedLM",
        {**DISENTANGLED, "pos_att_type": ["p2c", "c2p"], "position_buckets": 64, "share_att_key": True}
        | {"norm_rel_ebd": "layer_norm"},
        "query_proj,value_proj",
    ),
    "whisper": Kind(
        "WhisperForConditionalGeneration",
        {"d_model": 256, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "dropout": 0.0}
        | {"decoder_attention_heads": 4, "encoder_ffn_dim": 1024, "decoder_ffn_dim": 1024, "num_mel_bins": 16}
        | {"max_source_positions": 128, "decoder_start_token_id": 1, "pad_token_id": 0},
    ),
    "gpt_neo": Kind(
        "GPTNeoForCausalLM",
        {"hidden_size": 256, "num_heads": 4, "num_layers": 4, "attention_types": [[["global", "local"], 2]]}
        | {"window_size": 64, "max_position_embeddings": 256, "resid_dropout": 0.0, "embed_dropout": 0.0}
        | {"attention_dropout": 0.0},
    ),
    "openai-gpt": Kind("OpenAIGPTLMHeadModel", {**SHORT, **GPT}, "c_attn"),
    "mpt": Kind("MptForCausalLM", {"d_model": 256, "n_heads": 4, "n_layers": 3, "max_seq_len": 256}, "Wqkv"),
    "olmo2": Kind("Olmo2ForCausalLM", LLAMA),
    "phi3": Kind("Phi3ForCausalLM", {**LLAMA, "pad_token_id": 0}, "qkv_proj"),
    "smollm3": Kind("SmolLM3ForCausalLM", {**LLAMA, "pad_token_id": 0}),
    "qwen2_moe": Kind(
        "Qwen2MoeForCausalLM",
        {**LLAMA, "moe_intermediate_size": 128, "shared_expert_intermediate_size": 256, "num_experts": 4}
        | {"num_experts_per_tok": 2},
    ),
    "qwen3_moe": Kind(
        "Qwen3MoeForCausalLM",
        {**LLAMA, "head_dim": 64, "moe_intermediate_size": 256, "num_experts": 8, "num_experts_per_tok": 2},
    ),
    "llama4_text": Kind(
        "Llama4ForCausalLM",
        {**LLAMA, "head_dim": 64, "num_local_experts": 4, "intermediate_size_mlp": 512, "attention_chunk_size": 8192},
    ),
    "gpt_oss": Kind(
        "GptOssForCausalLM",
        {**EXPERTS, "head_dim": 64, "num_local_experts": 4, "sliding_window": 64, "num_hidden_layers": 4},
    ),
    "deepseek_v2": Kind("DeepseekV2ForCausalLM", LATENT, "q_a_proj,kv_a_proj_with_mqa"),
    "deepseek_v3": Kind("DeepseekV3ForCausalLM", {**LATENT, "n_group": 2}, "q_a_proj,kv_a_proj_with_mqa"),
    "stablelm": Kind("StableLmForCausalLM", LLAMA),
    "olmo3": Kind("Olmo3ForCausalLM", LLAMA),
    "seed_oss": Kind(
        "SeedOssForCausalLM", {**LLAMA, "head_dim": 16, "attention_dropout": 0.0, "residual_dropout": 0.0}
    ),
    "hunyuan_v1_dense": Kind("HunYuanDenseV1ForCausalLM", {**LLAMA, "head_dim": 16}),
    "ministral3": Kind("Ministral3ForCausalLM", {**LLAMA, "head_dim": 16}),
    "arcee": Kind("ArceeForCausalLM", LLAMA),
    "lfm2": Kind("Lfm2ForCausalLM", {**LLAMA, "full_attn_idxs": [1]}),
    "jamba": Kind(
        "JambaForCausalLM",
        {**LLAMA, "num_experts": 1, "num_experts_per_tok": 1, "attn_layer_period": 2, "attn_layer_offset": 1}
        | {"mamba_dt_rank": 4},
    ),
    "mamba": Kind("MambaForCausalLM", {**STATE, "state_size": 16}, "in_proj,x_proj,out_proj"),
    "mamba2": Kind(
        "Mamba2ForCausalLM",
        {**STATE, "state_size": 16, "num_heads": 8, "head_dim": 16, "n_groups": 2, "chunk_size": 64},
        "in_proj,out_proj",
    ),
    "rwkv": Kind("RwkvForCausalLM", STATE, "key,value,receptance"),
    "qwen3_next": Kind("Qwen3NextForCausalLM", {**DELTA, "num_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_5_text": Kind("Qwen3_5ForCausalLM", DELTA),
    "gemma4_text": Kind(
        "Gemma4ForCausalLM",
        {**LLAMA, "head_dim": 64, "global_head_dim": 128, "hidden_size_per_layer_input": 32, "num_hidden_layers": 6}
        | {"num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 3, "sliding_window": 64}
        | {"vocab_size_per_layer_input": 256},
    ),
    "falcon_h1": Kind(
        "FalconH1ForCausalLM",
        {**LLAMA, "mamba_d_ssm": 256, "mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 16}
        | {"mamba_chunk_size": 64},
    ),
    "nemotron_h": Kind(
        "NemotronHForCausalLM",
        {**LLAMA, "layers_block_type": ["linear_attention", "full_attention", "mlp"], "mamba_num_heads": 8}
        | {"mamba_head_dim": 32, "n_groups": 2, "ssm_state_size": 16, "chunk_size": 64, "head_dim": 64},
    ),
}
"""By transformers' model type. The first eleven are those of the table in docs/memory-autograd.md."""

SHAPES = {"loss": (4, 64, 8000), "block": (4, 128, 256), "optimizer": (1, 16, 2000)}
"""What is the worst moment: sequences, tokens of each, tokens that there are."""
SETTINGS = {"plain": (False, False), "checkpoints": (True, False), "lora": (False, True), "both": (True, True)}
"""Whether blocks run again, and whether paths of low rank alone learn."""
DTYPES = {
    "fp32": (torch.float32, "fp32"),
    "bf16": (torch.bfloat16, "bf16-true"),
    "nf4": (torch.bfloat16, "qlora"),
    "amp": (torch.float32, "amp"),
    "nf4-amp": (torch.float32, "nf4-double-amp"),
    "nf4-norms": (torch.bfloat16, "nf4-double-fp32-norms"),
}
"""nf4 are the frozen matrices of blocks, with LoRA; amp is autocast to bf16, with all else or norms in fp32."""
MODULE = "transformers"
OPTIMIZERS = {
    "fused": {"fused": True},
    "cuda": {"fused": True},
    "foreach": {"foreach": True},
    "for-loop": {"foreach": False},
}
"""PyTorch's keywords by the implementation; cuda is fused, on a GPU."""


@dataclass(frozen=True)
class Peak:
    """A case, and its peaks in bytes; `measured` without the buffers of products' kernels, `whole` with them."""

    model: str
    dtype: str
    setting: str
    shape: str
    predicted: int
    measured: int
    whole: int

    @property
    def ratio(self) -> float:
        return self.predicted / self.measured

    @property
    def buffers(self) -> float:
        """The share of the whole peak that kernels' own buffers are."""
        return self.whole / self.measured - 1


def keys_of(name: str, shape: str) -> dict[str, Any]:
    """The configuration of a case."""
    vocabulary = {} if name == "vit" else {"vocab_size": SHAPES[shape][2]}
    return {**KINDS[name].keys, **vocabulary}


Wrap = Callable[[torch.nn.Module], torch.nn.Module]


def train(
    name: str,
    shape: str,
    dtype: str,
    setting: str,
    optimizer: str,
    wrap: Wrap = lambda module: module,
    microbatches: int = 1,
) -> None:
    """Two steps as a user of transformers writes them, of the module, or of what is called in its place."""
    checkpoints, lora = SETTINGS[setting]
    config = transformers.AutoConfig.for_model(name, **keys_of(name, shape))
    module = getattr(transformers, KINDS[name].architecture)._from_config(config, dtype=DTYPES[dtype][0])
    if dtype.startswith("nf4"):
        coded(module)
    if lora:
        adapt(module, KINDS[name].lora.split(","))
    for part, submodule in module.named_modules():
        if dtype == "nf4-norms" and "norm" in part:
            submodule.float()
    module.train()
    if checkpoints:
        checkpointed(module)
    called = wrap(module)
    learning = [parameter for parameter in module.parameters() if parameter.requires_grad]
    steps = torch.optim.AdamW(learning, **OPTIMIZERS[optimizer])
    given = batch_of(name, shape, config, DTYPES[dtype][0])
    for _ in range(2):
        steps.zero_grad(set_to_none=True)
        for _ in range(microbatches):
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype not in ("fp32", "bf16", "nf4")):
                loss = called(**given).loss
            loss.backward()
            del loss
        steps.step()


def checkpointed(module: Any) -> None:
    """Blocks run again by transformers' own checkpoints, `use_reentrant=False`, as releases of 5 call them."""
    if hasattr(module, "activation_checkpointing_enable"):
        module.activation_checkpointing_enable()
    else:
        module.gradient_checkpointing_enable({"use_reentrant": False})


def batch_of(name: str, shape: str, config: Any, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """What the module is called with."""
    batch, length, vocabulary = SHAPES[shape]
    if name == "vit":
        images = torch.randn(batch, 3, config.image_size, config.image_size, dtype=dtype)
        return {"pixel_values": images, "labels": torch.randint(0, config.num_labels, (batch,))}
    tokens = torch.randint(3, vocabulary, (batch, length))
    if name == "whisper":
        sounds = torch.randn(batch, config.num_mel_bins, 2 * config.max_source_positions, dtype=dtype)
        return {"input_features": sounds, "labels": tokens}
    return {"input_ids": tokens, "labels": torch.randint(3, vocabulary, (batch, length))}


def predicted(name: str, shape: str, dtype: str, setting: str, optimizer: str, many: int = 1, **flags: str) -> int:
    """What `learncost memory` says of the case; with flags of a mesh, so many devices have its sequences each."""
    checkpoints, lora = SETTINGS[setting]
    keys = {"model_type": name, "architectures": [KINDS[name].architecture], **keys_of(name, shape)}
    configuration = configure("-", {}, io.StringIO(json.dumps(keys)))
    batch, length, _ = SHAPES[shape]
    lengths = {} if name == "vit" else {"seq_len": length}
    if name in ("t5", "bart"):
        lengths["target_len"] = length
    if name == "whisper":
        lengths = {"target_len": length}
    stepping = {"on": "cuda"} if optimizer == "cuda" else {"optimizer_implementation": optimizer}
    return lc.memory(
        configuration, "recompute" if checkpoints else "bp", batch * many, optimizer="adamw",
        engine="eager", module=MODULE, lora=KINDS[name].lora if lora else None,
        **{**stepping, "precision": DTYPES[dtype][1], **lengths, **flags},
    ).peak  # fmt: skip


def peaks(names: list[str], dtypes: list[str], settings: list[str], optimizer: str) -> Iterator[Peak]:
    """Case by case; checkpoints and LoRA where a block is the worst moment alone."""
    for name in names:
        for dtype in dtypes:
            for setting in settings:
                for shape in SHAPES if setting == "plain" else ("block",):
                    own = name, shape, dtype, setting, optimizer
                    whole, measured = apart(partial(train, *own))
                    yield Peak(name, dtype, setting, shape, predicted(*own), measured, whole)


def worst(found: list[Peak], chosen: Callable[[Peak], bool]) -> str:
    """The ratio that is furthest from 1."""
    ratios = [one.ratio for one in found if chosen(one)]
    return f"{max(ratios, key=lambda ratio: abs(ratio - 1)):.3f}" if ratios else ""


def main() -> None:
    """Measure, and print a line for every case, then a table of the worst of each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=",".join(list(KINDS)[:11]))
    parser.add_argument("--setting", default=",".join(SETTINGS))
    parser.add_argument("--dtype", default="fp32,bf16")
    parser.add_argument("--optimizer", default="fused", choices=OPTIMIZERS)
    parser.add_argument("--format", default="table", choices=("table", "md"))
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    dtypes, settings = given.dtype.split(","), given.setting.split(",")
    found: list[Peak] = []
    for one in peaks(given.model.split(","), dtypes, settings, given.optimizer):
        found.append(one)
        print(
            f"{one.model:12} {one.dtype} {one.setting:11} {one.shape:9} {one.predicted:13,} {one.measured:13,} "
            f"{one.ratio:.3f} buffers {one.buffers:.1%}",
            file=sys.stderr,
            flush=True,
        )
    columns = [(dtype, setting) for dtype in dtypes for setting in settings]
    rows = [
        [name]
        + [
            worst(found, lambda one, own=(name, *column): (one.model, one.dtype, one.setting) == own)
            for column in columns
        ]
        for name in dict.fromkeys(one.model for one in found)
    ]
    heads = ["model", *(f"{dtype} {setting}" for dtype, setting in columns)]
    if given.format == "md":
        print("\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows)))
    else:
        show("The predicted peak over the measured one, the worst of each setting", heads, rows)


if __name__ == "__main__":
    main()

"""Trainers' files: every rule is reached, steps are those of hand-read files, files join, bad ones are one line."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

import learncost as lc
from learncost.cli.command import COMMANDS, main
from learncost.ir.errors import InputError
from learncost.ir.precision import PRECISIONS
from learncost.models.argument import preset
from learncost.procedures.optimizer import STATES
from learncost.program.autograd.losses import LOSSES
from learncost.program.autograd.module import MODULES
from learncost.reports.memory.step import OFFLOADED
from learncost.reports.question import flags_of
from learncost.reports.trainer_step import keywords_of, not_counted, read_step, trainer_step
from learncost.trainer_files.documents import Document, read_document
from learncost.trainer_files.framework import ANY, STEP, Framework, KeyRule, Step, framework_of, frameworks
from learncost.trainer_files.reading import read_documents, read_files

EXAMPLES = Path(__file__).parent.parent / "examples" / "trainer_files"

GIVING = Framework(
    "giving",
    "",
    "",
    STEP,
    (),
    (),
    (),
    (),
    {},
    tuple(KeyRule({name: (ANY,)}, {}, fields={name: f"${name}"}) for name in ("precision", "reentrant")),
    (),
)
"""A framework whose keys are fields of a step."""


def value_of(wanted: tuple[Any, ...], key: str, rules: Iterable[KeyRule]) -> Any:
    """A value at which a rule holds: one that it names, else one of the type of the field that takes it."""
    if wanted[0] != ANY:
        return [wanted[0]] if isinstance(wanted[0], list) else wanted[0]
    names = [name for rule in rules for name, value in (rule.fields or {}).items() if f"${key}" in str(value).split()]
    kind = str(Step.__dataclass_fields__[names[0].partition(".")[0]].type) if names else "str"
    value: Any = True if "bool" in kind else 7 if "int" in kind or "float" in kind else "something"
    return value


@pytest.mark.parametrize("framework", frameworks(), ids=lambda each: each.name)
def test_every_rule_holds_for_a_file_and_does_what_it_says(framework: Framework) -> None:
    for number in range(len(framework.rules)):
        check_rule(framework, number)


def check_rule(framework: Framework, number: int) -> None:
    """A file that a rule holds for, and its effect: all rules of a framework are one test, as there are a thousand."""
    rule = framework.rules[number]
    rule_text = f"rule {number}: {rule.conditions}"
    values = {key: value_of((ANY,), key, framework.rules) for key in rule.taken}
    values |= {key: value_of(wanted, key, framework.rules) for key, wanted in rule.conditions.items()}
    before = Step()
    for name, wanted in rule.where.items():
        before = before.having(name, None if wanted[0] == "none" else wanted[0])
    reading = read_documents(
        [
            (GIVING, Document("before", {key: each for key in rule.where if (each := before.get(key)) is not None})),
            (framework, Document("a file", values)),
        ]
    )
    usual = {key: value for key, (value, _) in framework.defaults.items()}
    assert rule.holds(values, usual, before), f"no file reaches {rule_text}"
    later = [
        name
        for other in framework.rules[number + 1 :]
        if other.holds(values, usual, before)
        for name in other.fields or ()
    ]
    for name, value in (rule.fields or {}).items():
        if name not in later and "$" not in str(value):
            assert reading.step.get(name) == value, rule_text
    decides = not rule.fields or not {*rule.fields} <= {*later}
    assert not rule.unsupported or (rule.unsupported in [each.effect for each in reading.unsupported]) == decides, (
        rule_text
    )
    assert not rule.refused or reading.refused, rule_text
    assert not rule.asks or rule.asks in reading.asks or (rule.asks == "vocab_size" and reading.step.sizes), rule_text
    assert rule.fields or rule.unsupported or rule.refused or rule.asks or rule.source, (
        f"nothing is said by {rule_text}"
    )


@pytest.mark.parametrize("framework", frameworks(), ids=lambda each: each.name)
def test_values_that_rules_give_are_names_of_the_package(framework: Framework) -> None:
    for rule in framework.rules:
        given = rule.fields or {}
        assert given.get("precision", "fp32") in PRECISIONS
        assert given.get("optimizer", "adamw") in STATES
        assert given.get("loss", "liger") in LOSSES
        assert given.get("offload", "paged-states") in OFFLOADED
        assert given.get("module", "litgpt") in MODULES
        assert "$" in (model := given.get("model", "gpt2")) or preset(model)
        assert given.get("checkpointing", "full") in ("full", "selective", "none")
    both = {key for key in framework.keys if framework.is_without_effect(key)}
    assert not both, "a key has an effect or none"
    assert set(framework.defaults) <= framework.keys, "a default that no rule reads"


AXOLOTL = {"base_model": "meta-llama/Llama-3.2-1B", "sequence_len": 1024, "micro_batch_size": 2}
FACTORY = {"model_name_or_path": "Qwen/Qwen3-4B", "template": "qwen3", "per_device_train_batch_size": 1, "bf16": True}
TUNE = {
    "model._component_": "torchtune.models.llama3_1.llama3_1_8b", "optimizer._component_": "torch.optim.AdamW",
    "batch_size": 2, "dtype": "bf16", "enable_activation_checkpointing": True,
}  # fmt: skip
TITAN = {"model.name": "llama3", "model.flavor": "8B", "training.local_batch_size": 1}
LITGPT = {
    "checkpoint_dir": "checkpoints/meta-llama/Meta-Llama-3-8B", "train.global_batch_size": 8,
    "train.micro_batch_size": 2, "train.max_seq_length": 512, "precision": "bf16-true",
}  # fmt: skip
NANOTRON = {
    "tokens.micro_batch_size": 32, "tokens.sequence_length": 1024, "parallelism.dp": 4, "parallelism.tp": 2,
    "parallelism.tp_mode": "REDUCE_SCATTER", "model.dtype": "bfloat16", "model.model_config.is_llama_config": True,
    "model.model_config.hidden_size": 1024, "model.model_config.vocab_size": 49152,
}  # fmt: skip
NEOX = {
    "num_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 2048, "pos_emb": "rotary",
    "no_weight_tying": True, "train_micro_batch_size_per_gpu": 4, "fp16.enabled": True, "zero_optimization.stage": 1,
}  # fmt: skip
FOUNDRY = {
    "model.name": "mpt_causal_lm", "model.d_model": 4096, "model.expansion_ratio": 4, "model.vocab_size": 50368,
    "device_train_microbatch_size": 8, "global_train_batch_size": 1024, "max_seq_len": 2048,
    "train_loader.name": "text", "precision": "amp_bf16", "fsdp_config.sharding_strategy": "FULL_SHARD",
}  # fmt: skip
OLMO = {
    "model.d_model": 4096, "model.n_heads": 32, "model.n_layers": 32, "model.mlp_hidden_size": 22016,
    "model.activation_type": "swiglu", "model.norm_after": True, "model.layer_norm_type": "rms", "model.rope": True,
    "model.attention_layer_norm": True, "model.max_sequence_length": 4096, "model.embedding_size": 100352,
    "model.weight_tying": False, "device_train_microbatch_size": 2, "precision": "amp_bf16",
}  # fmt: skip
NEMO = {
    "trainer.num_nodes": 16, "trainer.devices": 8, "trainer.precision": "bf16", "model.micro_batch_size": 1,
    "model.global_batch_size": 2048, "model.encoder_seq_length": 8192, "model.context_parallel_size": 2,
    "model.hidden_size": 4096, "model.num_attention_heads": 32, "model.activation": "fast-swiglu",
    "model.normalization": "rmsnorm", "model.position_embedding_type": "rope", "model.bias": False,
    "model.optim.name": "mcore_distributed_optim", "model.share_embeddings_and_output_weights": False,
    "model.tokenizer.type": "meta-llama/Meta-Llama-3-8B", "model.make_vocab_size_divisible_by": 128,
}  # fmt: skip
INSTRUCT = {"model_name_or_path": "meta-llama/Llama-3.1-8B", "use_slow_tokenizer": True, "max_seq_length": 4096}
TRL = {"model_name_or_path": "mistralai/Mistral-7B-v0.1", "packing": True, "per_device_train_batch_size": 4}

READ: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = [
    # axolotl 067b021c: full fine-tuning is in bf16 throughout; checkpoints are reentrant unless said otherwise.
    ("axolotl", {**AXOLOTL, "gradient_checkpointing": True}, {"precision": "bf16-true", "reentrant": True}),
    ("axolotl", {**AXOLOTL, "bf16": False}, {"precision": "fp32", "checkpointing": None}),
    ("axolotl", {**AXOLOTL, "fp16": True}, {"precision": "fp16-masters"}),
    (
        "axolotl",
        {**AXOLOTL, "gradient_checkpointing": "True", "bf16": 0},
        {"precision": "fp32", "checkpointing": "full"},
    ),
    ("axolotl", {**AXOLOTL, "sequence_len": "${LENGTH:-512}"}, {"seq_len": None, "micro_batch_size": 2}),
    ("axolotl", {k: v for k, v in AXOLOTL.items() if k != "sequence_len"}, {"seq_len": 512, "optimizer": "adamw"}),
    (
        "axolotl",
        {**AXOLOTL, "adapter": "qlora", "load_in_4bit": True, "lora_r": 8, "lora_target_modules": ["q_proj", "v_proj"]},
        {"precision": "nf4-double", "lora": "q_proj,v_proj", "lora_rank": 8},
    ),
    (
        "axolotl",
        {
            **AXOLOTL,
            "adapter": "lora",
            "load_in_8bit": True,
            "lora_target_linear": True,
            "optimizer": "paged_adamw_8bit",
        },
        {"precision": "int8-frozen", "lora": "all-linear", "optimizer": "adamw8bit"},
    ),
    (
        "axolotl",
        {**AXOLOTL, "dp_shard_size": 4, "dp_replicate_size": 2, "tensor_parallel_size": 2},
        {"zero": 3, "shard": 4, "replicate": 2, "tp": 2},
    ),
    # LLaMA-Factory ff6d4d12: LoRA of rank 8 on all modules, alpha twice that, checkpoints unless they are disabled.
    ("llamafactory", FACTORY, {"lora": "all-linear", "lora_rank": 8, "lora_alpha": 16, "checkpointing": "full"}),
    ("llamafactory", {**FACTORY, "disable_gradient_checkpointing": True}, {"checkpointing": None}),
    ("llamafactory", {**FACTORY, "quantization_bit": 4}, {"precision": "nf4-double"}),
    (
        "llamafactory",
        {**FACTORY, "gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}},
        {"checkpointing": "full", "reentrant": False},
    ),
    (
        "llamafactory",
        {**FACTORY, "finetuning_type": "full", "pure_bf16": True},
        {"precision": "bf16-true", "lora": None},
    ),
    # TRL f2cd5771: other defaults than transformers': checkpoints, bf16, a length of 1,024, LoRA's dropout.
    ("trl", TRL, {"seq_len": 1024, "checkpointing": "full", "packed": True, "precision": "amp"}),
    (
        "trl",
        {**TRL, "use_peft": True, "load_in_4bit": True, "lora_target_modules": ["q_proj"], "max_length": 2048},
        {"precision": "nf4", "lora": "q_proj", "lora_rank": 16, "lora_dropout": 0.05, "seq_len": 2048},
    ),
    (
        "transformers",
        {"model_name_or_path": "gpt2", "do_train": True, "block_size": 512, "optim": "adamw_torch"},
        {
            "seq_len": 512,
            "precision": "fp32",
            "micro_batch_size": 8,
            "optimizer_implementation": "foreach",
            "clip": 1.0,
        },
    ),
    # torchtune bd2a0fc7: all is in bf16; AdamW without fused is foreach on a GPU; null is no length.
    (
        "torchtune",
        {**TUNE, "tokenizer.max_seq_len": None},
        {"model": "llama-3.1-8b", "seq_len": None, "precision": "bf16-true", "optimizer_implementation": "foreach"},
    ),
    (
        "torchtune",
        {
            **TUNE,
            "model._component_": "torchtune.models.qwen2_5.qlora_qwen2_5_7b_instruct",
            "model.lora_attn_modules": ["q_proj", "v_proj", "output_proj"],
            "model.apply_lora_to_mlp": True,
            "optimizer.fused": True,
        },
        {
            "model": "qwen2.5-7b",
            "precision": "nf4-double-true",
            "lora": "q_proj,v_proj,o_proj,gate_proj,up_proj,down_proj",
            "optimizer_implementation": "fused",
            "loss": None,
        },
    ),
    ("torchtune", {**TUNE, "fsdp_cpu_offload": False}, {"zero": 3, "devices": None}),
    (
        "torchtune",
        {
            **TUNE,
            "loss._component_": "torchtune.dev.rl.loss.GRPOSimpleLoss",
            "tokenizer.max_seq_len": 256,
            "grpo_samples": 8,
            "max_generated_tokens": 128,
        },
        {"task": "grpo-kl", "micro_batch_size": 16, "seq_len": 384},
    ),
    # torchtitan 238fa995: FSDP of fp32 weights that are gathered in bf16, checkpoints that select, sequences over tp.
    ("torchtitan", TITAN, {"seq_len": 2048, "precision": "bf16-masters", "checkpoint_every": 2, "zero": 3}),
    ("torchtitan", {**TITAN, "activation_checkpoint.selective_ac_option": "op"}, {"checkpoint_every": "op"}),
    (
        "torchtitan",
        {**TITAN, "parallelism.tensor_parallel_degree": 8, "activation_checkpoint.mode": "full"},
        {"model": "llama-3.1-8b", "tp": 8, "sequence_parallel": True, "checkpointing": "full", "reentrant": False},
    ),
    (
        "torchtitan",
        {**TITAN, "parallelism.data_parallel_shard_degree": 1, "parallelism.data_parallel_replicate_degree": 4},
        {"zero": 0, "replicate": 4, "shard": None},
    ),
    # litgpt 26857050: LoRA on queries and values; several devices are FSDP with checkpoints.
    ("litgpt", {**LITGPT, "lora_r": 8}, {"lora": "WQ,WV", "lora_alpha": 16, "global_batch_size": 8, "zero": None}),
    ("litgpt", {**LITGPT, "devices": 4, "num_nodes": 2}, {"zero": 3, "devices": 8, "checkpointing": "full"}),
    # nanotron 2411b022: sequences are cut with tensors; the optimizer has fp32 weights if gradients are summed in fp32.
    ("nanotron", NANOTRON, {"dp": 4, "tp": 2, "sequence_parallel": True, "precision": "bf16-true", "seq_len": 1024}),
    ("nanotron", {**NANOTRON, "optimizer.accumulate_grad_in_fp32": True}, {"precision": "bf16-masters-fp32-gradients"}),
    (
        "nanotron",
        NANOTRON,
        {"sizes.model_type": "llama", "sizes.hidden_size": 1024, "sizes.tie_word_embeddings": False},
    ),
    (
        "nanotron",
        {**NANOTRON, "model.model_config.is_llama_config": None, "model.model_config.is_starcoder2_config": True},
        {"sizes.model_type": "starcoder2", "sizes.intermediate_size": 4096, "sizes.num_key_value_heads": 1},
    ),
    # open-instruct e6c3044a: LoRA is on all linear modules, and 4-bit weights have paged states.
    ("open_instruct", INSTRUCT, {"precision": "bf16-true", "lora": None, "optimizer_implementation": "fused"}),
    (
        "open_instruct",
        {**INSTRUCT, "use_lora": True, "use_qlora": True, "lora_rank": 32},
        {"precision": "nf4-double", "lora": "all-linear", "lora_rank": 32, "lora_alpha": 16, "offload": "paged-states"},
    ),
    ("open_instruct", {**INSTRUCT, "loss_type": "dpo_norm", "beta": 5}, {"task": "dpo", "seq_len": 4096}),
    # MaxText e591f30c: without a model's name, base.yml's sizes; with one, other numbers of layers replace its own.
    (
        "maxtext",
        {"per_device_batch_size": 2, "base_emb_dim": 1024},
        {"sizes.hidden_size": 1024, "sizes.vocab_size": 32000},
    ),
    (
        "maxtext",
        {"per_device_batch_size": 2, "model_name": "gemma3-4b", "base_num_decoder_layers": 2},
        {"model": "gemma-3-4b", "sizes.num_hidden_layers": 2, "sizes.hidden_size": None},
    ),
    # gpt-neox ea7aefd8: four times as wide; 50,257 tokens are filled up to a multiple of 128 times tp.
    ("gpt_neox", NEOX, {"sizes.intermediate_size": 16384, "sizes.vocab_size": 50304, "precision": "fp16-masters"}),
    ("gpt_neox", {**NEOX, "attention_config": [[["flash"], 80]]}, {"sizes.model_type": "gpt_neox", "plan": None}),
    ("gpt_neox", {**NEOX, "attention_config": [[["global"], 7]]}, {"sizes.model_type": "gpt_neox", "plan": "none"}),
    ("gpt_neox", {**NEOX, "attention_config": [[["flash"], 2], [["rwkv"], 2]]}, {"sizes.model_type": None}),
    ("gpt_neox", {**NEOX, "model_parallel_size": 2}, {"sizes.vocab_size": 50432, "tp": 2, "zero": 1, "accumulate": 1}),
    # DeepSpeed edaa7221: a buffer of 5e8 gradients, and another one where they are sent meanwhile, in no pipeline.
    ("gpt_neox", NEOX, {"communication_buffers": 10**9, "plan": "none"}),
    ("gpt_neox", {**NEOX, "zero_optimization.overlap_comm": True}, {"communication_buffers": 2 * 10**9}),
    (
        "gpt_neox",
        {**NEOX, "zero_optimization.overlap_comm": True, "pipe_parallel_size": 1},
        {"communication_buffers": 10**9},
    ),
    ("gpt_neox", {**NEOX, "attention_config": [[["flash"], 32]]}, {"plan": None, "sizes.model_type": "gpt_neox"}),
    ("gpt_neox", {**NEOX, "norm": "rmsnorm"}, {"sizes.model_type": None, "sizes.use_parallel_residual": False}),
    # llm-foundry 8c8dd48f: FSDP of fp32 weights that are gathered in bf16.
    (
        "llm_foundry",
        FOUNDRY,
        {"zero": 3, "precision": "bf16-masters", "sizes.model_type": "mpt", "micro_batch_size": 8},
    ),
    ("llm_foundry", {**FOUNDRY, "device_train_microbatch_size": "auto"}, {"micro_batch_size": 1}),
    # OLMo 59a53e3f: SwiGLU halves the width of its product.
    ("olmo", OLMO, {"sizes.model_type": "olmo2", "sizes.intermediate_size": 11008, "sizes.vocab_size": 100352}),
    ("olmo", {**OLMO, "activation_checkpointing": "whole_layer"}, {"checkpointing": "full", "zero": 3}),
    # NeMo: 16 x 8 devices; the tokenizer of Llama 3 has 128,256 tokens, a multiple of 128, which tp 4 fills up.
    ("nemo", NEMO, {"devices": 128, "cp": 2, "zero": 1, "precision": "bf16-masters", "sizes.model_type": "llama"}),
    ("nemo", {**NEMO, "model.tensor_model_parallel_size": 1}, {"sizes.vocab_size": 128256}),
    ("nemo", {**NEMO, "model.tensor_model_parallel_size": 4}, {"sizes.vocab_size": 128512}),
]


@pytest.mark.parametrize(("name", "values", "expected"), READ)
def test_the_step_of_a_file(tmp_path: Path, name: str, values: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(yaml.safe_dump(dict(values)))
    reading = read_files([str(path)])
    assert reading.frameworks[0].name == name
    assert {key: reading.step.get(key) for key in expected} == expected
    assert not [each for each in reading.unknown if not each.effect]  # values may be unknown, no keys


def test_sizes_of_a_file_are_its_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "neox.yaml"
    path.write_text(yaml.safe_dump({**NEOX, "num_layers": 2, "gradient_clipping": 0}))
    config = {
        "model_type": "gpt_neox", "num_hidden_layers": 2, "hidden_size": 4096, "num_attention_heads": 32,
        "intermediate_size": 16384, "vocab_size": 50304, "rotary_pct": 1.0, "use_parallel_residual": False,
        "tie_word_embeddings": False,
    }  # fmt: skip
    flags = {
        "mesh": "dp=4", "placement": "zero-1", "batch_size": 16, "seq_len": 2048, "precision": "fp16-masters",
        "plan": "none", "communication_buffers": 10**9,
    }  # fmt: skip
    assert lc.memory(str(path), mesh="dp=4").peak == lc.memory(config, **flags).peak
    assert main(["explain", str(path)]) == 0
    assert "devices" in capsys.readouterr().out
    path.write_text(yaml.safe_dump({**NEOX, "tokenizer_type": "HFTokenizer"}))
    with pytest.raises(lc.InputError, match="does not say the size of the vocabulary"):
        lc.request_of(str(path), mesh="dp=4")
    assert main(["memory", str(path), "--mesh", "dp=4", "--vocab-size", "512", "--num-layers", "2"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--vocab-size 512" in printed
    assert "No flags of this command" not in printed
    path.write_text(yaml.safe_dump({**NEOX, "activation": "swiglu"}))
    with pytest.raises(lc.InputError, match="describes a kind of model that is not known here"):
        lc.request_of(str(path), mesh="dp=4")


def test_references_of_omegaconf_are_read_to_keys_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("a: {b: 3, c: '${.b}', d: 'x${a.b}y', e: '${oc.env:HOME}', f: '${.f}'}\nz: '${a.c}'\n")
    values = read_document(str(path)).values
    assert (values["a.c"], values["a.d"], values["z"]) == (3, "x3y", 3)
    assert (values["a.e"], values["a.f"]) == ("${oc.env:HOME}", "${.f}")
    path.write_text("a: {b: 3}\nc: '${group.a.b}'\nd: '${a.z}'\n")  # Hydra's name of the file's group
    assert read_document(str(path)).values == {"a.b": 3, "c": 3, "d": "${a.z}"}
    path.write_text("a: 6\nb: '${multiply:4, ${a}}'\nc: '${divide_ceil:${b}, 7}'\nd: '${divide_floor:1, 0}'\n")
    assert read_document(str(path)).values == {"a": 6, "b": 24, "c": 4, "d": "${divide_floor:1, 0}"}
    path.write_text(yaml.safe_dump({**TUNE, "batch_size": "${oc.env:BATCH}"}))
    assert "batch_size" in read_files([str(path)]).asks
    path.write_text(yaml.safe_dump({**TUNE, "dtype": "${oc.env:TYPE}"}))
    with pytest.raises(lc.InputError, match=r"line 2: dtype is '\$\{oc.env:TYPE\}': only references to what"):
        read_files([str(path)])


def test_every_key_is_in_one_class() -> None:
    found = lc.explain(str(EXAMPLES / "qlora.yaml"))
    keys = [each.key for _, every in found.classes() for each in every]
    document = read_document(str(EXAMPLES / "qlora.yaml"))
    assert {*document.values} <= {*keys}
    assert [each.key for each in found.unsupported] == ["liger_rms_norm"]
    assert not found.unknown
    assert next(each.line for each in found.read if each.key == "lora_r") == 5


def test_a_file_is_the_model_of_a_question_and_flags_replace_it(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(EXAMPLES / "qlora.yaml")
    flags = {
        "procedure": "recompute", "module": "transformers-reentrant", "precision": "nf4-double", "lora": "all-linear",
        "lora_rank": 16, "lora_alpha": 32, "optimizer": "adamw8bit", "batch_size": 8, "accumulate": 4, "seq_len": 2048,
        "loss": "liger",
    }  # fmt: skip
    few = {"num_hidden_layers": 2}
    assert lc.memory(path, **few).peak == lc.memory("llama-3-8b", **few, **flags).peak
    assert lc.memory(path, seq_len=1024, **few).peak == lc.memory("llama-3-8b", **few, **flags | {"seq_len": 1024}).peak
    request = lc.request_of(path, **few)
    assert {name: request.given[name] for name in flags} == flags
    assert main(["memory", path, "--num-hidden-layers", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert lc.memory(request).peak == answer["peak"]
    assert answer["trainer_files"]["command"].split()[:3] == ["learncost", "memory", "llama-3-8b"]
    words = answer["trainer_files"]["command"].split()[1:]
    assert main([*words, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert {key: value for key, value in answer.items() if key != "trainer_files"} == alone


@pytest.mark.parametrize(("names", "given"), [(["qlora.yaml"], {}), (["sft.yaml", "zero3.json"], {"mesh": "dp=8"})])
def test_every_field_of_files_is_a_flag_of_a_command_or_said_to_be_none(names: list[str], given: dict) -> None:
    paths = [str(EXAMPLES / name) for name in names]
    settings = keywords_of(*read_step(paths), **given)
    for name, command in COMMANDS.items():
        flags = {flag.name for flag in flags_of(command.question)}
        if "model" in flags:
            step = trainer_step(paths, name, flags, **given)
            step_text = " ".join((step.command, *step.left_out, *(each.effect for each in step.unsupported)))
            assert all(field.replace("_", "-") in step_text for field in settings if field != "model"), (
                name,
                step_text,
            )


@pytest.mark.parametrize("given", [{"on": "RTX-4090"}, {"on": "DGX-H100", "mesh": "dp=8"}])
def test_the_memory_of_a_device_is_one_in_every_answer_about_files(given: dict, tmp_path: Path) -> None:
    """Also of fields that the command has no flags for: loss, buffers, module; over a mesh, without checkpoints."""
    paths, given = [str(EXAMPLES / "qlora.yaml")], {**given, "num_hidden_layers": 2}
    if "mesh" in given:
        step = yaml.safe_load((EXAMPLES / "sft.yaml").read_text()) | {"disable_gradient_checkpointing": True}
        (tmp_path / "sft.yaml").write_text(yaml.safe_dump(step))
        paths = [str(tmp_path / "sft.yaml"), str(EXAMPLES / "zero3.json")]
    found = lc.cost(paths, **given)
    assert found.memory.peak == lc.memory(paths, **given).peak == lc.run_cost(paths, tokens=1e9, **given).memory.peak
    if "mesh" not in given:
        compared = lc.compare(paths, "recompute", **given).costs["run"]["recompute"]
        assert compared.memory.peak == found.memory.peak
        assert found.counted.endswith("counts and time are of the undivided batch, memory of 4 microbatches")


def test_a_value_that_no_rule_names_is_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({**FACTORY, "finetuning_type": "lorra", "lora_target": "q_proj"}))
    assert [(each.key, each.value) for each in read_files([str(path)]).unknown] == [("finetuning_type", "lorra")]
    path.write_text(yaml.safe_dump({**AXOLOTL, "adapter": "lora"}))
    reading = read_files([str(path)])
    assert (reading.step.lora, reading.unknown) == ("q_proj,v_proj", ())
    path.write_text(yaml.safe_dump({**AXOLOTL, "adapter": "qlra"}))
    assert [(each.key, each.value) for each in read_files([str(path)]).unknown] == [("adapter", "qlra")]
    for wrong in (0, 1.5):
        path.write_text(yaml.safe_dump({**AXOLOTL, "micro_batch_size": wrong}))
        with pytest.raises(lc.InputError, match=rf"micro_batch_size is {wrong}, not a whole number above 0"):
            lc.cost(str(path))


def test_a_file_over_a_mesh_is_answered_with_its_clip(capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(EXAMPLES / name) for name in ("sft.yaml", "zero3.json")]
    assert main(["memory", *files, "--mesh", "dp=8", "--num-hidden-layers", "2"]) == 0
    assert "Gradients are clipped by clip_grad_norm_" in " ".join(capsys.readouterr().out.split())
    assert main(["search", *files, "--on", "DGX-H100", "--devices", "8", "--num-hidden-layers", "2"]) == 0


PAGED = {
    "optimizer._component_": "bitsandbytes.optim.PagedAdamW", "optimizer_in_bwd": True, "tokenizer.max_seq_len": 512,
    "loss._component_": "torchtune.modules.loss.LinearCrossEntropyLoss",
}  # fmt: skip


PAIRED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({**AXOLOTL, "rl": "dpo", "adapter": "lora"}, {}, "--task dpo --lora q_proj,v_proj"),
    ({**AXOLOTL, "rl": "orpo"}, {}, "--task orpo"),
    ({**FACTORY, "stage": "dpo", "finetuning_type": "lora", "cutoff_len": 512}, {}, "--task dpo"),
    ({**FACTORY, "stage": "dpo", "pref_loss": "orpo", "finetuning_type": "full"}, {}, "--task orpo"),
    ({**TRL, "beta": 0.1, "loss_type": "sigmoid"}, {}, "--task dpo"),
    ({**TRL, "beta": 0.1}, {"task": "orpo"}, "--task orpo"),
    ({**TRL, "center_rewards_coefficient": 0.01}, {}, "--task reward"),
    ({**AXOLOTL, "reward_model": True, "num_labels": 1}, {}, "--task reward"),
    ({**FACTORY, "stage": "rm", "finetuning_type": "lora", "cutoff_len": 512}, {}, "--task reward"),
    ({**TUNE, "loss._component_": "torchtune.rlhf.loss.DPOLoss", "tokenizer.max_seq_len": 512}, {}, "--task dpo"),
]


@pytest.mark.parametrize(("keys", "given", "flags"), PAIRED)
def test_a_training_on_pairs_has_two_sequences_for_each(tmp_path: Path, keys, given, flags) -> None:
    path = tmp_path / "pairs.yaml"
    path.write_text(yaml.safe_dump(keys))
    found = trainer_step((str(path),), **given)
    assert flags in found.command, found.command
    assert "--loss" not in found.command
    sequences = int(found.command.split("--batch-size ")[1].split()[0])
    assert sequences == 2 * (found.step.get("micro_batch_size") or 1) * (found.step.get("accumulate") or 1)


KD = {"teacher_model._component_": "torchtune.models.qwen2.qwen2_1_5b", "tokenizer.max_seq_len": 512}
UNPAIRED: list[tuple[dict[str, Any], str]] = [
    ({**AXOLOTL, "rl": "kto"}, "--task kto"),
    ({**AXOLOTL, "rl": "grpo", "trl.beta": 0.01}, "--task grpo-kl"),
    ({**FACTORY, "stage": "kto", "finetuning_type": "lora", "cutoff_len": 512}, "--task kto"),
    ({**TRL, "desirable_weight": 1.0, "beta": 0.1}, "--task kto"),
    ({**TRL, "num_generations": 8, "beta": 0.0, "max_prompt_length": 64}, "--task grpo"),
    ({**TRL, "num_generations": 8, "beta": 0.04, "max_prompt_length": 64}, "--task grpo-kl"),
    ({**TRL, "teacher_model_name_or_path": "Qwen/Qwen2.5-7B"}, "--task distillation --teacher qwen2.5-7b"),
    ({**TUNE, **KD}, "--task distillation --teacher qwen2.5-1.5b"),
]


@pytest.mark.parametrize(("keys", "flags"), UNPAIRED)
def test_a_training_on_single_sequences_has_one_for_each(tmp_path: Path, keys, flags) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump(keys))
    found = trainer_step((str(path),))
    assert f"{flags} " in f"{found.command} ", found.command
    words = found.command.split()
    sequences = int(words[words.index("--batch-size") + 1]) if "--batch-size" in words else 1
    assert sequences == (found.step.get("micro_batch_size") or 1) * (found.step.get("accumulate") or 1)


def test_a_teacher_that_is_not_known_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "task.yaml"
    path.write_text(yaml.safe_dump({**TRL, "teacher_model_name_or_path": "me/mine"}))
    with pytest.raises(InputError, match="the teacher 'me/mine' is no known preset: add --teacher MODEL"):
        lc.request_of(str(path))
    assert lc.request_of(str(path), teacher="qwen2.5-7b").teacher == "qwen2.5-7b"


def test_a_step_on_pairs_that_a_file_does_not_name_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "pairs.yaml"
    path.write_text(yaml.safe_dump({**TRL, "beta": 0.1}))
    with pytest.raises(InputError, match="add --task dpo, orpo, kto or grpo-kl"):
        lc.request_of(str(path))
    path.write_text(yaml.safe_dump({**AXOLOTL, "rl": "dpo"}))
    for asked in (str(path), lc.request_of(str(path))):
        with pytest.raises(InputError, match="of task dpo, which only learncost memory, cost and run-cost support"):
            lc.fit(asked, budget="24GB")


OFFLOADED_FILES = [
    ({"fsdp_cpu_offload": True, "enable_activation_offloading": True}, {"devices": 8}, "weights,activations", []),
    ({"fsdp_cpu_offload": True}, {"devices": 1}, "optimizer", ["fsdp_cpu_offload"]),
    ({**PAGED, "optimizer_in_bwd": False, "enable_activation_offloading": True}, {}, "paged-states,activations", []),
]


@pytest.mark.parametrize(("keys", "given", "offload", "lost"), OFFLOADED_FILES)
def test_what_a_file_offloads_is_a_flag(tmp_path: Path, keys, given, offload, lost) -> None:
    path = tmp_path / "tune.yaml"
    path.write_text(yaml.safe_dump({**TUNE, "tokenizer.max_seq_len": 512, **keys}))
    found = trainer_step((str(path),), **given)
    assert f"--offload {offload}" in found.command
    assert [each.key for each in found.unsupported] == lost


def test_what_engine_eager_alone_counts_is_named_where_another_one_answers(tmp_path: Path) -> None:
    path = tmp_path / "tune.yaml"
    path.write_text(yaml.safe_dump({**TUNE, **PAGED}))
    request = lc.request_of(str(path))
    assert (request.plan, request.loss, request.offload) == ("fused-update", "torchtune", "paged-states")
    found = trainer_step((str(path),))
    assert not found.unsupported
    assert found.command.endswith("--loss torchtune --offload paged-states --plan fused-update")
    over = trainer_step((str(path),), mesh="dp=2,tp=2", placement="fsdp,megatron")
    assert [each.key for each in over.unsupported] == ["loss._component_", "optimizer._component_"]
    assert not {"--loss", "--offload"} & {*over.command.split()}


BF16 = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 2}}
JOINED: list[tuple[Mapping[str, Any], Mapping[str, Any], str]] = [
    # DeepSpeed edaa7221: bf16 weights with fp32 masters (stage_1_and_2.py:489), in place of autocast over fp32 weights.
    ({**FACTORY, "finetuning_type": "full"}, BF16, "bf16-masters"),
    ({**FACTORY, "finetuning_type": "full"}, {**BF16, "bf16": {"enabled": "auto"}}, "bf16-masters"),
    (AXOLOTL, {**BF16, "bf16": {"enabled": "auto"}}, "bf16-masters"),
    (AXOLOTL, {"zero_optimization": {"stage": 2}}, "bf16-true"),
    ({**AXOLOTL, "fp16": True}, {**BF16, "bf16": {"enabled": False}, "fp16": {"enabled": "auto"}}, "fp16-masters"),
    # weights that bitsandbytes quantizes stay quantized
    ({**FACTORY, "quantization_bit": 4}, BF16, "nf4-double"),
]


@pytest.mark.parametrize(("step", "engine", "precision"), JOINED)
def test_the_precision_of_a_file_with_deepspeed(
    tmp_path: Path, step: Mapping[str, Any], engine: Mapping[str, Any], precision: str
) -> None:
    path, other = tmp_path / "step.yaml", tmp_path / "engine.json"
    path.write_text(yaml.safe_dump(dict(step)))
    other.write_text(json.dumps(engine))
    reading = read_files([str(path), str(other)])
    assert reading.step.precision == precision
    assert not [each for each in reading.unsupported if "autocast" in each.effect]


def test_files_join_by_their_roles(tmp_path: Path) -> None:
    sft, zero3 = str(EXAMPLES / "sft.yaml"), str(EXAMPLES / "zero3.json")
    with pytest.raises(lc.InputError, match=r"does not say over how many devices: add mesh=.dp=N"):
        lc.memory(sft)  # the DeepSpeed file beside it is followed
    for question, path, why in ((lc.compare, sft, "mesh dp=N"), (lc.sweep, EXAMPLES / "qlora.yaml", "lora all-linear")):
        with pytest.raises(lc.InputError, match=rf"\({why}\), which only learncost memory, cost and run-cost support"):
            question(str(path), on="RTX-4090")
    launch = tmp_path / "accelerate.yaml"
    launch.write_text("compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nnum_processes: 4\n")
    request = lc.request_of(sft, zero3, str(launch))
    assert (request.mesh, request.placement, request.batch_size) == ("dp=4", "zero-3", 8)
    assert request.precision == "bf16-masters"
    assert lc.request_of(sft, zero3, mesh="dp=2 tp=4").batch_size == 4  # as commas, spaces separate axes
    other = tmp_path / "micro.json"
    other.write_text('{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 3}')
    with pytest.raises(lc.InputError, match=r"micro batch size is 1 in .*sft.yaml and 3 in .*micro.json"):
        lc.request_of(sft, str(other), mesh="dp=2")
    with pytest.raises(lc.InputError, match="are both files of the engine: give one"):
        lc.request_of(sft, zero3, str(other))
    with pytest.raises(lc.InputError, match="give it after the file of the training"):
        lc.request_of(zero3)


def test_an_adapter_joins_the_file_of_a_training(tmp_path: Path) -> None:
    path, adapter = tmp_path / "full.yaml", tmp_path / "adapter_config.json"
    path.write_text(yaml.safe_dump({**AXOLOTL, "an_unknown_key": 1}))
    adapter.write_text('{"peft_type": "LORA", "r": 4, "lora_alpha": 32, "target_modules": ["q_proj", "v_proj"]}')
    request = lc.request_of(str(adapter), str(path))
    assert (request.lora, request.lora_rank, request.lora_alpha) == ("q_proj,v_proj", 4, 32)
    with pytest.raises(lc.InputError, match="has keys that are not known: an_unknown_key"):
        lc.request_of(str(path), strict=True)
    assert lc.request_of(str(path), str(adapter), format_of="axolotl").lora_rank == 4
    with pytest.raises(lc.InputError, match=r"the trainer is accelerate or axolotl or .*, not 'axolot'"):
        lc.request_of(str(path), format_of="axolot")


def test_a_path_outside_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    (folder / "sft.yaml").write_text(yaml.safe_dump({**FACTORY, "deepspeed": "../zero.json"}))
    with pytest.raises(lc.InputError, match="names a DeepSpeed file that is not in its folder"):
        lc.request_of(str(folder / "sft.yaml"))


def test_a_model_behind_the_file_replaces_its_own(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({**AXOLOTL, "base_model": "somebody/unknown"}))
    with pytest.raises(lc.InputError, match=r"line 1: base_model 'somebody/unknown' is no known preset"):
        lc.request_of(str(path))
    assert lc.request_of(str(path), "gpt2").model == "gpt2"
    beside = tmp_path / "somebody" / "unknown"
    beside.mkdir(parents=True)
    (beside / "config.json").write_text('{"model_type": "gpt2"}')
    assert lc.request_of(str(path)).model == str(beside / "config.json")


SHELL = """#!/bin/bash
GPUS=8; NODES=$((2 * 2))
ARGS=(--num-layers 2 --hidden-size 1024 --num-attention-heads 16  # sizes
  --max-position-embeddings 1024)
MORE="
  --micro-batch-size ${MICRO:-2} --global-batch-size=256 --seq-length $((4 + 2041 / 2))
  --tensor-model-parallel-size 2 --bf16 --attention-dropout 0 --hidden-dropout 0
"
if [ "$FLASH" = "true" ]; then MORE="$MORE --use-distributed-optimizer"; fi
torchrun --nproc_per_node $GPUS --nnodes $NODES pretrain_gpt.py ${ARGS[@]} \\
    $MORE --vocab-file $1 --merge-file $2 &> run.log
"""


def test_arguments_of_a_shell_script_are_read_and_branches_are_named(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(SHELL)
    reading = read_files([str(path)])
    step = reading.step
    assert reading.frameworks[0].name == "megatron"
    # Megatron-LM d98e8a64: arguments.py:1215 sums gradients in fp32, :1329 has four times the width; 50,257 tokens are
    # filled up to a multiple of 128 x 2.
    assert (step.devices, step.tp, step.micro_batch_size, step.global_batch_size, step.zero) == (32, 2, 2, 256, None)
    assert (step.precision, step.dropout, step.clip) == ("bf16-masters-fp32-gradients", None, 1.0)
    assert (step.get("sizes.n_inner"), step.get("sizes.vocab_size")) == (4096, 50432)
    assert [each.key for each in reading.unknown] == ["use-distributed-optimizer"]
    request = lc.request_of(str(path))
    assert (request.mesh, request.placement, request.batch_size, request.accumulate) == (
        "dp=16,tp=2",
        "ddp,megatron",
        256,
        8,
    )
    path.write_text(
        SHELL.replace("GPUS=8;", ': "${GPUS:=8}" "${MICRO:=4}"\n').replace("ARGS=(", "declare -a ARGS=(", 1)
    )
    assert (again := read_files([str(path)]).step) == step.having("micro_batch_size", 4)
    path.write_text(
        path.read_text() + "python submit.py --priority 1 -- torchrun pretrain_gpt.py --clip-grad 2 --swiglu\n"
    )
    other = read_files([str(path)])
    assert other.step == again
    assert [each.key for each in other.unknown] == ["use-distributed-optimizer", "priority", "clip-grad", "swiglu"]
    path.write_text(SHELL.replace("pretrain_gpt", "pretrain_llama"))  # a fork's script, of a model without flags
    with pytest.raises(InputError, match="describes a kind of model that is not known here"):
        lc.request_of(str(path))
    path.write_text(SHELL.replace("${MICRO:-2}", "$MICRO"))
    assert "batch_size" in read_files([str(path)]).asks
    path.write_text(SHELL.replace("--hidden-size 1024", "--hidden-size $WIDTH"))
    assert read_files([str(path)]).step.sizes is None  # of a model that is given
    path.write_text(SHELL.replace("model-parallel-size 2", "model-parallel-size ${WIDTH:+$WIDTH}$5"))
    assert read_files([str(path)]).asks == ("tp", "vocab_size")
    with pytest.raises(lc.InputError, match="does not say over how many devices: add --mesh dp=N,tp=N"):
        lc.request_of(str(path), devices=32)
    asked = lc.request_of(str(path), mesh="dp=16,tp=2", vocab_size=50432)
    assert (asked.batch_size, asked.accumulate, asked.placement) == (256, 8, "ddp,megatron")
    path.write_text(SHELL.replace("GPUS=8;", "GPUS=8; MICRO=${11};"))  # an argument that has a usual value
    assert read_files([str(path)]).step == step
    path.write_text(SHELL.replace("--hidden-dropout 0", "--hidden-dropout $1"))
    with pytest.raises(lc.InputError, match=r"hidden-dropout is '\$1': only references to what"):
        read_files([str(path)])
    path.write_text(SHELL.replace("* 2))", "* 1))").replace("GPUS=8", "GPUS=1").replace("size 2", "size 4"))
    assert "devices" in read_files([str(path)]).asks  # two devices are no mesh with tp 4


BRANCHES = """#!/bin/bash
checkpoint="true"
zero={zero}
number=$(($(ls --query-gpu=name --format=csv | wc -l)-2))
options="--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --micro-batch-size 4 --global-batch-size 32 \\
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 50257 --fp16 --save out_g${{number}}"
if [ "${{checkpoint}}" = "true" ]; then
    options="${{options}} --checkpoint-activations"
fi
if [[ $zero -gt 1 ]]; then
    options="$options --zero-stage $zero"
elif [ "$zero" = 1 ]; then
    options="$options --clip-grad 2.0"
else
    options="$options --clip-grad 3.0"
fi
if [ "$zero" = 1 ] && [ -f config ]; then
    options="$options --swiglu"
fi
while [[ $# -gt 0 ]]; do
    case $1 in
    -z) zero=$2; shift;;
    esac
done
if [ "$1" = "profile" ]; then
    options="$options --use-distributed-optimizer"
fi
torchrun pretrain_gpt.py $options
"""
"""Conditions of known variables are decided, and the others are named; what commands print is not known. The script has
no arguments of its own, so that a loop over them does not run."""


@pytest.mark.parametrize(
    ("zero", "stage", "clip", "unknown"),
    [
        (2, 2, 1.0, ["swiglu", "use-distributed-optimizer"]),
        (1, None, 2.0, ["swiglu", "use-distributed-optimizer"]),
        (0, None, 3.0, ["swiglu", "use-distributed-optimizer"]),
    ],
)
def test_branches_whose_variables_are_known_are_decided(
    tmp_path: Path, zero: int, stage: int | None, clip: float, unknown: list[str]
) -> None:
    path = tmp_path / "train.sh"
    path.write_text(BRANCHES.format(zero=zero))
    reading = read_files([str(path)])
    assert (reading.step.checkpointing, reading.step.zero, reading.step.clip) == ("full", stage, clip)
    assert [each.key for each in reading.unknown] == unknown


def test_what_fsdp_keeps_whole_between_microbatches_is_counted_or_named(tmp_path: Path) -> None:
    path = tmp_path / "fsdp.yaml"
    path.write_text(yaml.safe_dump({**AXOLOTL, "fsdp_version": 2, "fsdp_config": {"reshard_after_forward": True}}))
    for accumulate, mesh, counted, named in (
        (2, "dp=2", True, []),
        (1, "dp=2", None, []),
        (2, "dp=2,tp=2", True, []),
        (2, "dp=2,cp=2", None, ["fsdp_version"]),
    ):
        given = {"accumulate": accumulate, "mesh": mesh}
        keywords = keywords_of(read_files([str(path)]), **given)
        assert (keywords.get("no_sync"), keywords.get("engine")) == (counted, "eager" if counted else None)
        found = [each.key for each in not_counted(read_files([str(path)]), {**keywords, **given})]
        assert [key for key in found if key == "fsdp_version"] == named
        assert ("--no-sync" in trainer_step((str(path),), **given).command.split()) == bool(counted)


def test_modules_with_lora_are_names_or_a_pattern_of_whole_names(tmp_path: Path) -> None:
    path = tmp_path / "lora.yaml"
    given = {**AXOLOTL, "adapter": "lora", "lora_r": 4}
    for modules, expected in (
        (r"model.layers.[\d]+.(mlp|self_attn).(up|q)_proj", "q_proj,up_proj"),
        (["self_attn.q_proj", "mlp.up_proj"], "q_proj,up_proj"),
        ("(a*)*b", "(a*)*b"),  # repetitions that nest are not tried
    ):
        path.write_text(yaml.safe_dump({**given, "lora_target_modules": modules}))
        assert keywords_of(read_files([str(path)]))["lora"] == expected


def test_files_are_strict_and_of_a_named_format_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "full.yaml"
    path.write_text(yaml.safe_dump({**AXOLOTL, "an_unknown_key": 1, "micro_batch_sise": 2}))
    for flags, message in (
        (
            ["--strict"],
            "has keys that are not known: an_unknown_key, micro_batch_sise; did you mean 'micro_batch_size'",
        ),
        (["--format-of", "axolot"], "the trainer is accelerate or axolotl"),
    ):
        assert main(["explain", str(path), *flags]) == 2
        assert message in capsys.readouterr().err
    assert main(["explain", str(path), "--format-of", "axolotl"]) == 0
    for wrong in (-2, 0):
        path.write_text(yaml.safe_dump({**AXOLOTL, "micro_batch_size": wrong}))
        assert main(["memory", str(path)]) == 2
        error = capsys.readouterr().err
        assert "micro_batch_size" in error
        assert f"is {wrong}, not a whole number above 0" in error
        assert "--batch-size" not in error
    assert main(["memory", "gpt2", "--strict"]) == 2
    assert "--strict is of trainers' files" in capsys.readouterr().err


def test_autocast_of_a_file_is_that_of_eager_and_named_where_it_is_not_counted(tmp_path: Path) -> None:
    """Over a mesh eager has it under DDP; sharded weights are gathered in 16 bits; run-cost has no eager there."""
    path = tmp_path / "sft.yaml"
    path.write_text(yaml.safe_dump(TRL))
    asked = {"seq_len": 64, "num_hidden_layers": 1}
    for mesh, precision, engine in (("", "amp", None), ("dp=2", "amp", "eager"), ("dp=2,tp=2", "bf16-masters", None)):
        given = {"mesh": mesh} if mesh else {}
        keywords = keywords_of(read_files([str(path)]), **given)
        assert (keywords["precision"], keywords.get("engine")) == (precision, engine)
    assert lc.memory(str(path), mesh="dp=2", **asked).dtype == "amp"
    assert "placement" not in keywords_of(read_files([str(path)]), mesh="dp=1")
    command = trainer_step((str(path),), "run-cost", ("mesh", "precision"), mesh="dp=2")
    assert "--precision bf16-masters" in command.command
    assert any("precision = amp" in each.effect for each in command.unsupported)
    sharded = keywords_of(read_files([str(path)]), mesh="dp=2", placement="fsdp")
    assert sharded["precision"] in ("amp", "bf16-masters")


def test_settings_of_nanogpt_are_literal_assignments(tmp_path: Path) -> None:
    path = tmp_path / "config.py"
    path.write_text(
        "import time\nbatch_size = 12\nblock_size = 256\nn_layer = 2\ngradient_accumulation_steps = 5 * 8\n"
    )
    request = lc.request_of(str(path), sizes={"num_hidden_layers": 2})
    assert (request.batch_size, request.accumulate, request.seq_len, request.precision) == (
        480,
        40,
        256,
        "amp",
    )
    assert request.model == {
        "model_type": "gpt2", "n_layer": 2, "n_head": 12, "n_embd": 768, "n_positions": 256, "vocab_size": 50304,
    }  # fmt: skip
    earlier = "gradient_accumulation_steps = 5\nmax_iters = 600 * gradient_accumulation_steps\nmin_lr = 6e-4 / 10\n"
    path.write_text(f"{earlier}lr_decay_iters = max_iters\nseed = None\nwandb_run_name = f'gpt-{{max_iters}}'\n")
    assert read_document(str(path)).values == {
        "gradient_accumulation_steps": 5, "max_iters": 3000, "min_lr": 6e-4 / 10, "lr_decay_iters": 3000,
    }  # fmt: skip
    path.write_text("batch_size = 12\nblock_size = open('x').read()\n")
    with pytest.raises(lc.InputError, match="is no file of settings: it has more than names and plain values"):
        read_document(str(path))


def test_arguments_in_yaml_are_those_of_megatron_and_the_last_of_two_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "model_config.yaml"
    arguments = "--num-layers: 2\n  --hidden-size: 64\n  --num-attention-heads: 2\n  --max-position-embeddings: 8\n"
    path.write_text(f"MODEL_ARGS:\n  {arguments}  --micro-batch-size: 4\n  --bf16: true\n  --micro-batch-size: 2\n")
    reading = read_files([str(path)])
    assert reading.frameworks[0].name == "megatron"
    assert (reading.step.micro_batch_size, reading.step.precision) == (2, "bf16-masters-fp32-gradients")
    assert [(each.key, each.value) for each in reading.unknown] == [("micro-batch-size", "4")]


def test_a_copy_of_a_model_is_known_by_its_name_and_named(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(yaml.safe_dump({**AXOLOTL, "base_model": "/data/somebody/gemma-7b-GPTQ/"}))
    found = lc.explain(str(path))
    assert found.command.split()[2] == "gemma-7b"
    assert "a copy of gemma-7b by its name, whose weights are quantized" in [
        each.effect.split(":")[0] for each in found.assumed
    ]
    path.write_text(yaml.safe_dump({**AXOLOTL, "base_model": "LiquidAI/LFM2-8B-A1B"}))
    with pytest.raises(lc.InputError, match="its family, lfm2_moe, is not known here: add a preset of similar sizes"):
        lc.request_of(str(path))
    path.write_text(yaml.safe_dump({**AXOLOTL, "base_model": "01-ai/Yi-200B"}))
    with pytest.raises(lc.InputError, match=r"its family, llama, is known: add the path of its config.json"):
        lc.request_of(str(path))
    path.write_text(yaml.safe_dump({key: value for key, value in AXOLOTL.items() if key != "base_model"}))
    with pytest.raises(lc.InputError, match="does not name its model: add a preset"):
        lc.request_of(str(path))
    assert lc.request_of(str(path), "gpt2").model == "gpt2"


EXPANDING = "b0: &b0 [x, x]\n" + "".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 10)}]\n" for n in range(1, 6))

BAD = [
    ("a.yaml", "base_model: [", r"a.yaml is not YAML: line 1, column 14"),
    ("a.yaml", "- 1\n- 2\n", "is no mapping of keys to values"),
    ("a.yaml", "a: 1\n", "has the keys of no known trainer"),
    ("a.yaml", "a: !!python/object/apply:os.system ['true']\n", "is not YAML: line 1"),
    ("a.yaml", "a: &a [b, *a]\n", "nested more than 40 levels deep, or contains itself"),
    ("a.yaml", EXPANDING, "more than 10,000 values"),
    ("a.yaml", "base_model: gpt2\nsequence_len: long\n", "line 2: sequence_len is 'long', not a whole number"),
    ("a.yaml", "base_model: gpt2\nsequence_len: 8\nrl: ebft\n", "rl is another step than fine-tuning"),
    ("a.yaml", "model_name_or_path: gpt2\ntemplate: llama3\n", "chat and api, which are no training"),
    ("a.yaml", "model_name_or_path: gpt2\nstage: sft\ndo_predict: true\n", "is an evaluation, which is no training"),
    ("a.yaml", "a: !!bool x\n", "holds a value that YAML cannot read"),
    ("a.yaml", "!!set {a}\n", "is no mapping of keys to values"),
    ("a.yaml", f"base_model: gpt2\nsequence_len: 0x{'F' * 5000}\n", "sequence_len is 'a number of more than"),
    ("a.yaml", "base_model: gpt2\nsequence_len: 2024-01-01\n", "sequence_len is '2024-01-01', not a whole number"),
    ("a.yaml", "a: 1\n" * 2**17 + "b: 1\n", "is larger than 512 KiB"),
    ("a.sh", "a\n" * 2**16 + "b", "is larger than 128 KiB"),
    ("a.json", '{"zero_optimization": 1', "is not JSON"),
    ("a.sh", f"A=$(({'9' * 5000} * 2))\n", "has the keys of no known trainer"),
    ("a.sh", "<<A\n" * 20_000, "has the keys of no known trainer"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "message"), BAD)
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, message: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert main(["memory", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert message in error


def test_a_document_that_is_ambiguous_is_refused() -> None:
    both = Document("x.yaml", {"base_model": "gpt2", "micro_batch_size": 1, "model": "gpt2", "train_dataset": "x"})
    with pytest.raises(lc.InputError, match="may be a file of axolotl or llamafactory_v1"):
        framework_of(both)
    assert framework_of(both, "axolotl").name == "axolotl"


def test_frameworks_cite_a_version() -> None:
    assert all(each.source and each.title for each in frameworks())
    assert {each.role for each in frameworks()} == {STEP, "launch", "engine", "adapter"}


SUBMITTED = """#!/bin/bash
#SBATCH -N3
#SBATCH --job-name=a_test    # of eight
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:8
MASTER=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
GPT_ARGS=" --num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 128 --max-position-embeddings 128 \\
    --micro-batch-size 2 --global-batch-size 48 --position-embedding-type alibi --embed-layernorm --bf16 \\
    --pad-vocab-size-to 512 --tokenizer-type PretrainedFromHF "
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $SLURM_GPUS_ON_NODE --nnodes $SLURM_NNODES \\
    --rdzv_endpoint $MASTER:6000 --max_restarts 0"
export CMD=" `pwd`/pretrain_gpt.py --tensor-model-parallel-size 4 $GPT_ARGS --save $OUT "
echo $CMD
srun --wait=60 --jobid $SLURM_JOBID bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a log.txt
"""


@pytest.mark.parametrize("name", ["train.slurm", "train.sbatch", "train.sh"])
def test_a_script_for_slurm_says_its_devices(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(SUBMITTED)
    request = lc.request_of(str(path))
    assert (request.mesh, request.batch_size, request.seq_len) == ("dp=6,tp=4", 48, 128)
    assert (request.model["model_type"], request.model["vocab_size"]) == ("bloom", 512)
    assert (*request.unknown, *request.unsupported) == (), "what the script says is known"
    assert any(each.key == "micro-batch-size" for each in request.read)


def test_a_sharding_without_devices_for_it_is_no_placement(tmp_path: Path) -> None:
    path = tmp_path / "two.sh"
    path.write_text(
        "torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 64 --num-attention-heads 4 "
        "--seq-length 32 --max-position-embeddings 32 --micro-batch-size 2 --vocab-size 512 --bf16 "
        "--use-distributed-optimizer --tensor-model-parallel-size 2\n"
    )
    request = lc.request_of(str(path))
    assert (request.mesh, request.placement) == ("tp=2", "megatron")
    assert lc.memory(request).peak


@pytest.mark.parametrize(
    ("launcher", "script", "expected"),
    [
        ("torchrun --nproc_per_node=4 --nnodes 2", "train_lora.py", (8, "sft")),
        ("mpirun -np 8 -x NCCL_DEBUG=INFO --bind-to none python", "train_lora.py", (8, "sft")),
        ("accelerate launch --num_processes 8 --use_deepspeed --zero_stage 2", "run_clm.py", (8, "sft")),
        ("deepspeed --num_gpus 2 --num_nodes 2", "finetune.py", (4, "sft")),
        ("torchrun --nproc_per_node 2", "reward_modeling.py", (2, "reward")),
        ("torchrun --nproc_per_node 2", "run_dpo.py", (2, "dpo")),
        ("torchrun --nproc_per_node 2", "train_endpoint_support_of_general_corpora.py", (2, "sft")),
        ("torchrun --nproc_per_node 2", "run_glue.py", "another task"),
        ("torchrun --nproc_per_node gpu", "train.py", "does not say over how many devices"),
        ("deepspeed --include localhost:0,1", "train.py", "does not say over how many devices"),
        ("python -u -m torch.distributed.run --nproc_per_node 2 -m", "train.py", (2, "sft")),
        ("torchrun --nproc_per_node=$(nvidia-smi -L | wc -l)", "train.py", (None, "sft")),
    ],
)
def test_launchers_and_scripts_say_devices_and_task(launcher: str, script: str, expected: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(
        f"{launcher} {script} --model_name_or_path gpt2 --per_device_train_batch_size 2 --model_max_length 64"
    )
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            lc.request_of(str(path))
    else:
        step = read_files([str(path)]).step
        assert (step.devices, step.task, step.seq_len) == (*expected, 64)


def test_the_file_of_accelerate_is_followed_from_the_folder_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripts = tmp_path / "scripts"
    scripts.mkdir()
    path = scripts / "sft.sh"
    path.write_text(
        "accelerate launch --config_file configs/fsdp.yaml train.py --model_name_or_path gpt2 --packing --max_length 64"
        " --per_device_train_batch_size 1 --use_peft_lora True --lora_r 8 --use_4bit_quantization True"
    )
    with pytest.raises(InputError, match="names an accelerate file that is not in its folder"):
        lc.request_of(str(path))
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "fsdp.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nnum_processes: 4\nmixed_precision: bf16\n"
    )
    monkeypatch.chdir(tmp_path)
    request = lc.request_of(str(path))
    assert (request.mesh, request.precision, request.lora_rank) == ("dp=4", "nf4", 8)
    path.write_text(path.read_text().partition(" --packing")[0] + " --block_size 64")
    assert read_files([str(path)]).step.precision == "amp", "transformers reads ACCELERATE_MIXED_PRECISION"


def test_a_file_of_no_trainer_is_no_request(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no keys")
    with pytest.raises(InputError, match="No such file"):
        lc.request_of(str(tmp_path / "absent.yaml"))
    with pytest.raises(InputError, match=r"notes\.txt is not JSON"):
        lc.request_of(str(tmp_path / "notes.txt"))


def test_flags_that_override_a_file_are_named_with_what_it_says(capsys):
    flags = ["--batch-size", "4", "--lora-rank", "16", "--num-hidden-layers", "2"]  # the rank is the file's
    assert main(["memory", str(EXAMPLES / "qlora.yaml"), *flags]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "Flags override the files: --batch-size 4 (the files: --batch-size 8). " in printed

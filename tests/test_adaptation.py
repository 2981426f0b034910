"""Frozen weights and LoRA against transformers' modules with the same requires_grad: parameters, what learns, FLOPs.

FLOPs are those of torch's FlopCounterMode on the meta device, forward and both passes; the backward pass of torch stops
where nothing below learns, block by block, and so must ours.
"""

import json
import random
from dataclasses import replace
from itertools import product

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.layers.layer import layer
from learncost.models.adaptation import adaptation, adapted
from learncost.models.configuration import configure
from learncost.models.model import build, from_layer
from learncost.models.parts import spans
from learncost.procedures.step import step
from learncost.reports.run import rows_of
from sampling import sampled

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from low_rank import adapt, blocks_of, learn_only, parameters_of  # noqa: E402

BATCH, LENGTH = 2, 5
ARCHITECTURES = {
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
    "llama": "LlamaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
}


def flops_of(module):
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        loss = module(input_ids=tokens, labels=tokens).loss
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return forward, forward + counter.get_total_flops()


def ours(model, **how):
    ledger = lc.cost(model, price_book="matmul", batch_size=BATCH, seq_len=LENGTH, **how)
    return (ledger.macro_operations["forward"][1].flops, ledger.total.flops), (
        ledger.parameters,
        ledger.trained_parameters,
    )


def theirs(module):
    return flops_of(module), parameters_of(module)


def tiny(model_type, tied, chance):
    """A random small configuration of a family."""
    h, layers = chance.choice((1, 2, 3)), chance.randint(3, 5)
    d, f, v = h * chance.randint(2, 5), chance.randint(5, 12), chance.randint(6, 12)
    if model_type == "gpt2":
        keys = {"n_embd": d, "n_head": h, "n_layer": layers, "n_inner": f, "n_positions": 7}
    else:
        keys = {"hidden_size": d, "num_attention_heads": h, "num_hidden_layers": layers, "intermediate_size": f}
        keys |= {"max_position_embeddings": 7}
    if model_type in ("llama", "gemma2"):
        groups = chance.choice([n for n in (1, 2, 3) if h % n == 0])
        keys |= {"num_key_value_heads": groups, "head_dim": 2 * chance.randint(1, 3)}
        keys["num_hidden_layers"] += keys["num_hidden_layers"] % 2  # gemma2 has windows in every other layer
    keys |= {"vocab_size": v, "tie_word_embeddings": tied, "pad_token_id": None, "bos_token_id": None}
    config = transformers.AutoConfig.for_model(model_type, eos_token_id=None, **keys)
    config._attn_implementation = "eager"
    config.architectures = [ARCHITECTURES[model_type]]
    return config


def module_of(config):
    return getattr(transformers, config.architectures[0])(config)


def embedding_names(module):
    names = [name for name, submodule in module.named_modules() if isinstance(submodule, torch.nn.Embedding)]
    return {f"{name}.weight" for name in names}


def head_names(module):
    """The parameters of the head; where it is tied, its matrix has the name of the embedding's."""
    head_ids = {
        id(p) for name, p in module.named_parameters(remove_duplicate=False) if name.startswith(("lm_head", "cls."))
    }
    return {name for name, parameter in module.named_parameters() if id(parameter) in head_ids}


def last_two(module):
    last_ids = {id(parameter) for block in blocks_of(module)[-2:] for parameter in block.parameters()}
    return {name for name, parameter in module.named_parameters() if id(parameter) in last_ids}


def second(module):
    second_ids = {id(parameter) for parameter in blocks_of(module)[1].parameters()}
    return {name for name, parameter in module.named_parameters() if id(parameter) in second_ids}


def bias_names(module):
    return {name for name, _ in module.named_parameters() if name.endswith("bias")}


FROZEN = {
    "all": ({}, lambda module: {name for name, _ in module.named_parameters()}),
    "head": ({"train": "head"}, head_names),
    "embeddings": ({"train": "embeddings"}, embedding_names),
    "last 2": ({"train_layers": "last 2"}, last_two),
    "second": ({"train_layers": 1}, second),
    "last 2 and head": ({"train": "head", "train_layers": "last 2"}, lambda m: last_two(m) | head_names(m)),
    "biases": ({"train": "biases"}, bias_names),
    "biases of the last 2": ({"train": "*.b*", "train_layers": "last 2"}, lambda m: last_two(m) & bias_names(m)),
}


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    ("case", "model_type", "tied"),
    sampled(product(FROZEN, ARCHITECTURES, (True, False)), 4),
)
def test_frozen(case, model_type, tied, tmp_path):
    how, chosen = FROZEN[case]
    config = tiny(model_type, tied, random.Random(f"{case} {model_type} {tied}"))
    config.save_pretrained(tmp_path)
    module = module_of(config)
    if case == "biases of the last 2":  # the pattern also means the biases that stand outside of the blocks
        how = {**how, "train": "attn.b*,mlp.b*,ln_1.b,ln_2.b"}
    if not chosen(module):  # Llama and Gemma 2 have no biases
        with pytest.raises(lc.InputError, match=r"has no (biases|weights called 'attn.b)"):
            ours(str(tmp_path), **how)
        return
    if model_type == "gemma2" and "train_layers" in how:
        with pytest.raises(lc.InputError, match="no single stack of layers"):  # two kinds of layers by turns
            ours(str(tmp_path), **how)
        return
    learn_only(module, chosen(module).__contains__)
    assert ours(str(tmp_path), **how) == theirs(module)


LORA = {
    "gpt2": {"c_attn": ["c_attn"], "c_proj": ["c_proj"], "c_fc,mlp.c_proj": ["c_fc", "mlp.c_proj"]},
    "bert": {"query,value": ["query", "value"], "dense": ["dense"], "lm_head": ["decoder"]},
}
LORA["llama"] = LORA["gemma2"] = {"q_proj,v_proj": ["q_proj", "v_proj"], "lm_head": ["lm_head"]}
LINEAR = {"gpt2": ["c_attn", "c_proj", "c_fc"], "bert": ["query", "key", "value", "dense"]}
LINEAR["llama"] = LINEAR["gemma2"] = [*(f"{n}_proj" for n in "qkvo"), "gate_proj", "up_proj", "down_proj"]
CASES = [(kind, names, ends) for kind, ends_of in LORA.items() for names, ends in ends_of.items()]
CASES += [(kind, "all-linear", ends) for kind, ends in LINEAR.items()]
# The layers of Gemma 2, of two kinds by turns, cannot be named one by one.
CASES = [(*case, layers) for case in CASES for layers in (None, "0,2", "last 1") if case[0] != "gemma2" or not layers]


@pytest.mark.one_in(every=26)
@pytest.mark.parametrize(("model_type", "names", "ends", "layers"), CASES)
def test_lora(model_type, names, ends, layers, tmp_path):
    chance = random.Random(f"{model_type} {names} {layers}")
    config, rank = tiny(model_type, False, chance), chance.randint(1, 4)
    config.save_pretrained(tmp_path)
    module = module_of(config)
    total = config.num_hidden_layers
    chosen = {None: None, "0,2": {0, 2}, "last 1": {total - 1}}[layers]
    if chosen is not None and names in ("dense", "lm_head", "all-linear"):
        chosen |= {None}  # the part outside of the blocks has its path in any case
    adapt(module, ends, rank, 5, chosen)
    assert ours(str(tmp_path), lora=names, lora_rank=rank, lora_alpha=5, train_layers=layers) == theirs(module)


TINY = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
OTHERS = {  # receptance is no router, patches are a convolution
    "RwkvForCausalLM": ("RwkvConfig", {"attention_hidden_size": 32, "vocab_size": 50, "context_length": 16}),
    "ViTForImageClassification": ("ViTConfig", {"num_attention_heads": 2, "image_size": 16, "patch_size": 4}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_linear_layers(name, tmp_path):
    kind, sizes = OTHERS[name]
    config = getattr(transformers, kind)(**TINY, **sizes, architectures=[name])
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        modules = getattr(transformers, name)(config).named_modules()
    linear = [m for path, m in modules if isinstance(m, torch.nn.Linear) and path not in ("head", "classifier")]
    rank_one = sum(m.in_features + m.out_features for m in linear)
    length = {} if "image_size" in sizes else {"seq_len": 8}
    assert lc.cost(str(tmp_path), lora="all-linear", lora_rank=1, batch_size=1, **length).trained_parameters == rank_one


def test_lora_with_a_trained_head(tmp_path):
    config = tiny("gpt2", False, random.Random(3))
    config.save_pretrained(tmp_path)
    module = adapt(module_of(config), ["c_attn"])
    module.lm_head.requires_grad_(True)
    assert ours(str(tmp_path), lora="c_attn", train="head") == theirs(module)


# peft 0.21.2, LoraConfig(r=8, lora_alpha=16), on transformers' modules of the published sizes, on meta, 2 sequences of
# 50 tokens: FLOPs of the forward pass and of both by FlopCounterMode, trained and all parameters. peft's own messages
# for gpt2 and c_attn: "trainable params: 294,912 || all params: 124,734,720 || trainable%: 0.2364".
PEFT = [
    ("gpt2", "GPT2LMHeadModel", "c_attn", None, 24949708800, 49787596800, 294912, 124734720),
    ("gpt2", "GPT2LMHeadModel", "all-linear", None, 25126656000, 50318438400, 1179648, 125619456),
    ("gpt2", "GPT2LMHeadModel", "c_proj", None, 24993945600, 49771622400, 516096, 124955904),
    ("gpt2", "GPT2LMHeadModel", "c_attn", "3-4", 24900556800, 45301248000, 49152, 124488960),
    ("gpt2", "GPT2LMHeadModel", "lm_head", None, 24972366400, 25134417600, 408200, 124848008),
    ("gpt2", "GPT2LMHeadModel", "wte", None, 24891955200, 49969459200, 408200, 124848008),
    ("bert-base", "BertForMaskedLM", "query,value", None, 22036377600, 43952025600, 294912, 109809210),
    ("bert-base", "BertForMaskedLM", "all-linear", None, 22245273600, 44585164800, 1339392, 110853690),
    ("bert-base", "BertForMaskedLM", "dense", None, 22156800000, 44173516800, 897024, 110411322),
    ("bert-base", "BertModel", "all-linear", None, 17439080448, 34970370048, 1339392, 110821632),
    ("distilbert-base", "DistilBertForMaskedLM", "all-linear", None, 13526937600, 26923622400, 675840, 67661370),
]


@pytest.mark.parametrize(("model", "architecture", "names", "layers", "forward", "both", "trained", "whole"), PEFT)
def test_numbers_of_peft(model, architecture, names, layers, forward, both, trained, whole):
    how = {"lora": names, "train_layers": layers, "architecture": architecture}
    ledger = lc.cost(model, price_book="matmul", batch_size=2, seq_len=50, **how)
    assert (ledger.macro_operations["forward"][1].flops, ledger.total.flops) == (forward, both)
    assert (ledger.trained_parameters, ledger.parameters) == (trained, whole)


def test_two_linear_layers():
    """Two products of 16 x 32 by 32 x 32, 32,768 FLOPs each: forward 2, gradients of both weights 2, one of the middle.

    torch's FlopCounterMode on two torch.nn.Linear(32, 32) says 163,840; with the first one frozen 98,304.
    """
    text = """two(X; W U) -> Y
  H[B d] = X[B c] W[c d]
  Y[B e] = H[B d] U[d e]"""
    two, sizes = from_layer(layer(text)), {"B": 16, "c": 32, "d": 32, "e": 32}
    products = [lc.price(step(two, "bp"), sizes, "matmul").flops]
    products.append(lc.price(step(adapted(two, adaptation("U")), "bp"), sizes, "matmul").flops)
    assert products == [163_840, 98_304]


def test_what_is_frozen_has_no_update_and_nothing_backward_below():
    ledger = lc.cost("gpt2", train_layers="10-11", optimizer="adamw", by="layer")
    rows = {(row.macro_operation, row.layer): row for row in ledger.rows}
    assert {row.layer for row in ledger.rows if row.macro_operation == "weight_update"} == {
        "attention",
        "feed_forward",
        "norm",
    }
    assert rows["weight_update", "attention"].repeat == rows["backward", "attention"].repeat == 2
    assert rows["forward", "attention"].repeat == 12
    full_cost = lc.cost("gpt2", optimizer="adamw", by="layer")
    full = {(row.macro_operation, row.layer): row for row in full_cost.rows}
    assert 6 * rows["weight_update", "attention"].flops == full["weight_update", "attention"].flops
    # The price of an optimizer's step is one for each element that it changes.
    per_element = full["optimizer_step", "optimizer"].flops // full_cost.parameters
    assert rows["optimizer_step", "optimizer"].flops == per_element * ledger.trained_parameters


def test_recomputation_leaves_frozen_blocks_alone():
    """A block below the lowest trained one is not run again: nothing of it is needed."""
    two, twelve = (lc.cost("gpt2", "recompute", train_layers=layers) for layers in ("last 2", None))
    assert 6 * two.macro_operations["recomputation"][1].flops == twelve.macro_operations["recomputation"][1].flops


def test_equal_tables_with_other_trained_weights_are_not_mixed_up():
    plain = build(configure("gpt2", {}))
    frozen = replace(plain, trained=())
    assert len(rows_of(plain, "bp", "run")) > len(rows_of(frozen, "bp", "run")) == len(rows_of(frozen, "bp", "run"))
    assert lc.cost("gpt2", train="none").total.flops == lc.cost("gpt2").macro_operations["forward"][1].flops


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", ((0, 0),)),
        ("10-11", ((10, 11),)),
        ("7,0,2-3,4,6-7", ((0, 0), (2, 4), (6, 7))),
        ("first 3", ((0, 2),)),
        ("last 12", ((0, 11),)),
    ],
)
def test_layers(text, found):
    assert spans(text, 12) == found


REFUSED = [
    ({"lora": "q_prj"}, "gpt2 has no weights called 'q_prj'; did you mean 'q_proj'"),
    ({"lora": "gate_proj"}, "gpt2 has no weights called 'gate_proj'"),
    ({"lora": "ln_1.g"}, "'ln_1.g' means ln_1.g, which is not a matrix of a product"),
    ({"lora": "c_attn", "lora_rank": 0}, "lora_rank must be a whole number from 1"),
    ({"lora": "c_attn", "lora_alpha": "nan"}, "lora_alpha must be a number above 0, not 'nan'"),
    ({"lora": "c_attn", "procedure": "pepita"}, "pepita updates every weight"),
    ({"train": "head", "procedure": "mempepita"}, "mempepita updates every weight"),
    ({"lora": ""}, "lora must be a comma-separated list of names, not ''"),
    ({"lora_rank": 8}, "lora_rank requires lora"),
    ({"train": "haed"}, "gpt2 has no weights called 'haed'; did you mean 'head'"),
    ({"train": "all,head"}, "train must be all, none or names"),
    ({"train_layers": "10-12"}, "of the layers 0 to 11, such as 10-11, 0,2,5-7 or last 2, not '10-12'"),
    ({"train_layers": "3-1"}, "train_layers must be a range"),
    ({"train_layers": "last 13"}, "train_layers must be a range"),
    ({"train_layers": -1}, "train_layers must be a range"),
    ({"train_layers": 1.5}, "train_layers must be a range"),
]


@pytest.mark.parametrize(("how", "message"), REFUSED)
def test_refusals(how, message):
    with pytest.raises(lc.InputError) as error:
        lc.cost("gpt2", **how)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_layers_of_two_stacks_are_refused():
    sizes = {"n_enc": 2, "n_dec": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16}
    with pytest.raises(lc.InputError, match="no single stack of layers"):
        lc.cost("encoder-decoder", vocab_size=10, seq_len=4, train_layers=1, **sizes)
    only = lc.cost("encoder-decoder", vocab_size=10, seq_len=4, train="decoder.cross.*", **sizes)
    # Four matrices of 8 x 8 in each of two blocks.
    assert only.trained_parameters == 2 * 4 * 8 * 8


def test_flags_and_output(capsys):
    assert main(["cost", "gpt2", "--lora", "c_attn", "--train-layers", "last 2"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "124,488,960 parameters, 49,152 trainable (0.0395 %)" in text
    assert "LoRA of rank 8 and alpha 16 on c_attn of layers last 2" in text
    assert main(["cost", "gpt2", "--train", "head", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["parameters"], answer["trained_parameters"]) == (124_439_808, 50257 * 768)
    assert answer["trained"] == "head; head and embedding are tied, so both learn"
    assert main(["cost", "gpt2", "--lora-rank", "8"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_compare(capsys):
    assert main(["compare", "gpt2", "--lora", "all-linear", "--lora-rank", "4", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert list(answer["price_books"]["run"]) == ["bp", "recompute"]
    assert "pepita and mempepita update every weight" in answer["left_out"]
    assert answer["trained_parameters"] == lc.cost("gpt2", lora="all-linear", lora_rank=4).trained_parameters
    assert main(["compare", "gpt2", "--lora", "all-linear", "--procedures", "pepita,mempepita"]) == 2


def test_the_step_of_a_model_without_anything_trained_is_its_forward_pass():
    frozen = adapted(build(configure("gpt2", {})), adaptation("none"))
    assert step(frozen, "bp").lines == frozen.table.lines


# Encoder-decoders, whose modules' names stand for several, and ALBERT, whose turns share their weights.

TWO_SIDED = {"vocab_size": 31, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
ENDS = {
    "bart": {
        "q_proj,v_proj": ("q_proj", "v_proj"),
        "encoder_attn.k_proj": ("encoder_attn.k_proj",),
        "attention": ("q_proj", "k_proj", "v_proj", "out_proj"),
        "all-linear": ("q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"),
    },
    "t5": {
        "q,v": ("q", "v"),
        "SelfAttention.o": ("SelfAttention.o",),
        "all-linear": ("q", "k", "v", "o", "wi_0", "wi_1", "wo"),
    },
    "albert": {
        "query,value": ("query", "value"),
        "ffn,ffn_output": ("ffn", "ffn_output"),
        "attention": ("query", "key", "value", "attention.dense"),
    },
}
SHAPES = {
    "bart": {"d_model": 12, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 3,
             "decoder_attention_heads": 2, "encoder_ffn_dim": 20, "decoder_ffn_dim": 14},
    "t5": {"d_model": 12, "d_kv": 5, "num_layers": 2, "num_heads": 3, "d_ff": 20, "feed_forward_proj": "gated-gelu"},
    "albert": {"hidden_size": 12, "embedding_size": 6, "num_hidden_layers": 6, "num_attention_heads": 3,
               "intermediate_size": 20, "num_hidden_groups": 2, "inner_group_num": 2},
}  # fmt: skip
CLASSES = {"bart": "BartForConditionalGeneration", "t5": "T5ForConditionalGeneration", "albert": "AlbertForMaskedLM"}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("family", "named"), sampled(((family, module_names) for family, end in ENDS.items() for module_names in end), 3)
)
def test_lora_by_the_names_of_modules(family, named):
    config = transformers.AutoConfig.for_model(family, **TWO_SIDED, **SHAPES[family])
    config._attn_implementation, config.architectures = "eager", [CLASSES[family]]
    module = adapt(module_of(config), ENDS[family][named], rank=3, alpha=6)
    target = {"target_len": LENGTH} if family != "albert" else {}
    count, parameters = ours(config.to_dict(), lora=named, lora_rank=3, lora_alpha=6, **target)
    assert count == flops_of(module)
    assert parameters == parameters_of(module)


@pytest.mark.parametrize(
    ("named", "within"),
    [("encoder_attn.v_proj", "encoder_attn.v_proj"), ("encoder", "model.encoder."), ("decoder", "model.decoder.")],
)
def test_a_module_of_an_encoder_decoder_that_learns_alone(named, within):
    config = transformers.AutoConfig.for_model("bart", **TWO_SIDED, **SHAPES["bart"])
    config._attn_implementation, config.architectures = "eager", [CLASSES["bart"]]
    module = learn_only(module_of(config), lambda name: within in name and "embed_tokens" not in name)
    assert ours(config.to_dict(), train=named) == theirs(module)

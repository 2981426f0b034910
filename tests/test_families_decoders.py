"""Dense decoders read from config.json against transformers' own modules: parameters, matrix products, defaults."""

import io
import json
import random

import pytest

from hugging_face import check_flops, check_parameters, read
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.models.model import build
from sampling import sampled

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

BATCH, LENGTH = 2, 7


def blocks(draw):
    """What every type has, under the names that most files use; the width of a head is even, as rotary halves want."""
    heads = draw.choice((1, 2, 3, 4))
    return {
        "vocab_size": draw.randrange(11, 60),
        "hidden_size": heads * 2 * draw.randrange(1, 7),
        "num_hidden_layers": draw.randrange(1, 6),
        "num_attention_heads": heads,
        "max_position_embeddings": draw.randrange(LENGTH, 40),
        "tie_word_embeddings": draw.random() < 0.5,
        "num_labels": draw.randrange(2, 5),
    }


def grouped(draw):
    """Blocks whose heads of queries share those of keys and values."""
    groups, heads = draw.choice((1, 2, 3)), draw.choice((1, 2))
    keys = blocks(draw) | {"num_attention_heads": groups * heads, "intermediate_size": draw.randrange(5, 30)}
    keys["hidden_size"] = groups * heads * 2 * draw.randrange(1, 6)
    return keys | {"num_key_value_heads": draw.choice((heads, groups * heads, None))}


def head_dim(draw):
    return {"head_dim": draw.choice((2, 4, 10))}


def flag(draw):
    return draw.random() < 0.5


def window(draw):
    """Narrower than the sequence, as long, wider."""
    return draw.choice((1, 2, 3, LENGTH, 40))


def kinds(draw, keys, names=("full_attention", "sliding_attention")):
    """Which attention each block has, in any order, or nothing of it."""
    chosen = [draw.choice(names) for _ in range(keys["num_hidden_layers"])]
    return draw.choice(({}, {"layer_types": chosen}))


def llama(draw):
    keys = grouped(draw) | {"attention_bias": flag(draw), "mlp_bias": flag(draw)}
    return keys | draw.choice(({}, {"head_dim": None}, head_dim(draw)))


def mistral(draw):
    keys = grouped(draw) | {"sliding_window": draw.choice((None, window(draw)))} | draw.choice(({}, head_dim(draw)))
    return keys | {"num_key_value_heads": keys["num_key_value_heads"] or keys["num_attention_heads"]}


def qwen2(draw):
    keys = grouped(draw) | {"sliding_window": window(draw), "max_window_layers": draw.randrange(5)}
    return keys | ({"use_sliding_window": True} | kinds(draw, keys) if flag(draw) else {})


def qwen3(draw):
    return qwen2(draw) | head_dim(draw) | {"attention_bias": flag(draw)}


def gemma(draw):
    keys = grouped(draw) | head_dim(draw) | {"attention_bias": flag(draw)}
    return keys | {"num_key_value_heads": keys["num_key_value_heads"] or keys["num_attention_heads"]}


def gemma2(draw):
    keys = gemma(draw) | {"query_pre_attn_scalar": draw.randrange(1, 9), "sliding_window": window(draw)}
    keys |= {"attn_logit_softcapping": draw.choice((None, 2.0)), "final_logit_softcapping": draw.choice((None, 3.0))}
    return keys | kinds(draw, keys)


def gemma3_text(draw):
    keys = gemma2(draw) | {"attn_logit_softcapping": None}
    return keys | draw.choice(({}, {"sliding_window_pattern": draw.randrange(1, 4)}))


def gpt_neox(draw):
    keys = blocks(draw) | {"intermediate_size": draw.randrange(5, 30), "hidden_act": draw.choice(("gelu", "gelu_fast"))}
    keys["hidden_size"] *= 4  # a quarter of each head turns, in pairs
    return keys | {"use_parallel_residual": flag(draw), "attention_bias": flag(draw)}


def gptj(draw):
    keys = blocks(draw)
    names = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    names |= {"max_position_embeddings": "n_positions"}
    return {names.get(key, key): value for key, value in keys.items()} | {
        "num_labels": 2,  # GPTJForQuestionAnswering runs with two alone
        "rotary_dim": draw.choice(range(2, keys["hidden_size"] // keys["num_attention_heads"] + 1, 2)),
        "n_inner": draw.choice((None, 13)),
    }


def phi(draw):
    keys = grouped(draw)
    keys["hidden_size"] *= 2
    return keys | {"qk_layernorm": flag(draw), "hidden_act": draw.choice(("gelu_new", "relu"))}


def phi3(draw):
    return grouped(draw) | {"sliding_window": draw.choice((None, window(draw))), "pad_token_id": 3}


def opt(draw):
    keys = blocks(draw) | {"ffn_dim": draw.randrange(5, 30), "do_layer_norm_before": flag(draw)}
    keys |= {"word_embed_proj_dim": draw.choice((None, keys["hidden_size"], 5)), "enable_bias": flag(draw)}
    keys |= {"layer_norm_elementwise_affine": flag(draw), "_remove_final_layer_norm": flag(draw)}
    return keys | {"activation_function": draw.choice(("relu", "gelu"))}


def bloom(draw):
    keys = blocks(draw)
    del keys["max_position_embeddings"]
    names = {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}
    width = draw.choice(("hidden_size", "n_embed"))
    keys = {names.get(key, width if key == "hidden_size" else key): value for key, value in keys.items()}
    return keys | {"apply_residual_connection_post_layernorm": flag(draw)}


def falcon(draw):
    """The three architectures: 7B's, 40B's and that of the first RefinedWeb models."""
    keys = blocks(draw) | {"alibi": flag(draw), "bias": flag(draw)}
    keys |= draw.choice(({}, {"ffn_hidden_size": draw.randrange(5, 30)}))
    heads = keys["num_attention_heads"]
    few = draw.choice([divisor for divisor in (1, 2, 3, heads) if heads % divisor == 0])
    newer = {
        "new_decoder_architecture": True,
        "num_ln_in_parallel_attn": draw.choice((None, 1, 2)),
        "num_kv_heads": few,
    }
    return keys | draw.choice(({"multi_query": flag(draw), "parallel_attn": flag(draw)}, newer))


def mpt(draw):
    keys = blocks(draw)
    names = {"hidden_size": "d_model", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads"}
    names |= {"max_position_embeddings": "max_seq_len"}
    keys = {names.get(key, key): value for key, value in keys.items()}
    keys |= {"no_bias": flag(draw), "expansion_ratio": draw.choice((3, 4))}
    return keys | draw.choice(({}, {"attn_config": {"softmax_scale": 0.3}}))


def gpt_neo(draw):
    pattern, times = [draw.choice(("global", "local")) for _ in range(draw.randrange(1, 4))], draw.randrange(1, 3)
    keys = blocks(draw) | {"attention_types": [[pattern, times], [["global"], 1]], "window_size": window(draw)}
    return keys | {"num_hidden_layers": len(pattern) * times + 1, "intermediate_size": draw.choice((None, 13))}


def olmo2(draw):
    return grouped(draw) | {"attention_bias": flag(draw), "pad_token_id": 1}


def smollm3(draw):
    keys = grouped(draw) | {"attention_bias": flag(draw), "mlp_bias": flag(draw), "pad_token_id": 3}
    keys |= draw.choice(({}, {"use_sliding_window": True, "sliding_window": window(draw)}))
    layers = keys["num_hidden_layers"]
    turning = [{"no_rope_layers": [draw.randrange(2) for _ in range(layers)]}, {"no_rope_layer_interval": 2}, {}]
    return keys | draw.choice(turning)


def glm(draw):
    """Half of each head turns, in pairs."""
    keys = grouped(draw) | {"attention_bias": flag(draw), "pad_token_id": 3, "head_dim": draw.choice((4, 8))}
    return keys | {"num_key_value_heads": keys["num_key_value_heads"] or keys["num_attention_heads"]}


def glm4(draw):
    return glm(draw)


def seed_oss(draw):
    keys = grouped(draw) | head_dim(draw) | {"attention_bias": flag(draw), "attention_out_bias": flag(draw)}
    return keys | {"mlp_bias": flag(draw), "pad_token_id": 3}


def arcee(draw):
    return llama(draw)


def stablelm(draw):
    """A quarter of each head turns, in pairs."""
    keys = grouped(draw) | {"use_qkv_bias": flag(draw), "use_parallel_residual": flag(draw)}
    keys["hidden_size"] *= 4
    return keys | {"num_key_value_heads": keys["num_key_value_heads"] or keys["num_attention_heads"]}


def hunyuan_v1_dense(draw):
    return grouped(draw) | {"attention_bias": flag(draw)} | head_dim(draw)


def olmo3(draw):
    keys = olmo2(draw) | {"sliding_window": window(draw)}
    return keys | kinds(draw, keys)


def ministral3(draw):
    return mistral(draw) | head_dim(draw) | {"pad_token_id": 3}


def cohere2(draw):
    keys = grouped(draw) | {"attention_bias": flag(draw), "sliding_window": window(draw), "logit_scale": 0.5}
    return keys | kinds(draw, keys)


TYPES = (llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, gpt_neox, gptj, phi, phi3, opt, bloom, falcon, mpt)
DRAWN = {function.__name__: function for function in (*TYPES, gpt_neo, olmo2, smollm3, glm, glm4)}
DRAWN |= {function.__name__: function for function in (seed_oss, arcee, stablelm, hunyuan_v1_dense, olmo3, ministral3)}
DRAWN["cohere2"] = cohere2
CASES = [(family, seed) for family in DRAWN for seed in range(5)]


def draw_configuration(family, seed):
    """A random valid configuration of a type, as a config.json has it."""
    return {"model_type": family, **DRAWN[family](random.Random(f"{family} {seed}"))}


def classes(family):
    return {architecture.name: architecture.head for architecture in FAMILIES[family].architectures}


@pytest.mark.parametrize("family", DRAWN)
def test_every_class_of_transformers_is_there(family):
    modeling = getattr(transformers.models, family.removesuffix("_text"))
    endings = ["ForCausalLM", "Model", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"]
    names = {FAMILIES[family].architectures[0].name.replace("ForCausalLM", ending) for ending in endings}
    if family == "gemma3_text":  # Gemma3Model reads images too
        names = {"Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3TextForSequenceClassification"}
    assert set(classes(family)) == {name for name in names if hasattr(modeling, name)}


@pytest.mark.one_in(every=34)
@pytest.mark.parametrize(("family", "seed"), CASES)
def test_parameters(family, seed):
    values = draw_configuration(family, seed)
    for name in classes(family):
        check_parameters(values, name)


def given(head, batch):
    """transformers' inputs for a head, and what its backward begins with."""

    def numbers(*shape):
        return torch.zeros(shape, dtype=torch.long)

    targets = {
        "language-model": {"labels": numbers(batch, LENGTH)},
        "token-classifier": {"labels": numbers(batch, LENGTH)},
        "score": {"labels": numbers(batch)},
        "spans": {"start_positions": numbers(batch), "end_positions": numbers(batch)},
        "none": {},
    }[head]
    loss = (lambda result: result.last_hidden_state.sum()) if head == "none" else (lambda result: result.loss)
    return {"input_ids": numbers(batch, LENGTH), **targets}, loss


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(("family", "seed"), sampled(CASES, 5, lambda case: case[0]))
def test_matrix_products(family, seed):
    """Forward, and forward and backward. No rotary angle is made by a matrix product in any of them.

    The language model every time and one other class in turn. transformers classifies several sequences at once only
    where it knows the padding token: here it is one.
    """
    values = draw_configuration(family, seed)
    (first, *others) = classes(family).items()
    for name, head in (first, others[seed % len(others)]):
        batch = 1 if head == "score" else BATCH
        assert check_flops(values, name, *given(head, batch), batch, LENGTH, device="cpu") == 0


# Defaults and spellings.


def same(one, other):
    """Two configurations that make one model: files that are longer say with more settings what follows from few."""
    first, second = build(one), build(other)
    assert (first.table, first.sizes, first.rules) == (second.table, second.sizes, second.rules)
    assert (one.sizes, one.dropout, one.architecture, one.counted) == (
        other.sizes, other.dropout, other.architecture, other.counted,
    )  # fmt: skip


@pytest.mark.parametrize("family", DRAWN)
def test_a_file_with_its_type_alone_reads_as_the_defaults_of_transformers(family):
    config = transformers.AutoConfig.for_model(family)
    ours = read({"model_type": family})
    same(ours, read(json.loads(config.to_json_string(use_diff=False))))
    names = {size: size for size in ours.sizes} | (
        {"num_key_value_heads": "num_kv_heads"} if family == "falcon" else {}
    )
    assert ours.architecture.endswith("ForCausalLM")
    assert ours.tied == config.tie_word_embeddings
    names |= {"intermediate_size": {"opt": "ffn_dim", "falcon": "ffn_hidden_size"}.get(family, "intermediate_size")}
    names |= {"max_position_embeddings": "max_seq_len"} if family == "mpt" else {}
    four_times = family in ("bloom", "gptj", "gpt_neo", "mpt")
    for size, name in names.items():
        if size == "intermediate_size" and four_times:
            assert ours.sizes[size] == 4 * config.hidden_size
        elif size == "head_dim":
            assert ours.sizes[size] == (getattr(config, size, None) or config.hidden_size // config.num_attention_heads)
        else:
            assert ours.sizes[size] == getattr(config, name), size
    for name, probability in ours.dropout.items():
        theirs = config.attn_config if family == "mpt" else config
        assert probability == getattr(theirs, name)


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(("family", "seed"), CASES)
def test_what_transformers_writes_reads_as_the_short_file(family, seed):
    values = draw_configuration(family, seed)
    keys = {key: value for key, value in values.items() if key != "model_type"}
    answer = transformers.AutoConfig.for_model(family, **keys).to_dict()
    same(read(values), read(json.loads(json.dumps(answer))))


def test_old_spellings_of_published_files():
    falcon = {"model_type": "falcon", "n_embed": 64, "n_head": 4, "n_layer": 2, "n_head_kv": 2}
    newer = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "num_kv_heads": 2}
    both = {"model_type": "falcon", "new_decoder_architecture": True}
    same(read({**both, **falcon}), read({**both, **newer}))
    # gemma-7b's first file: by gelu its approximation was meant, and the second key was not read.
    gemma = read({"model_type": "gemma", "hidden_act": "gelu", "hidden_activation": None})
    assert gemma.activation == "gelu_tanh"
    # A file of Mistral says with null that there is no window.
    assert "M' + w" not in str(build(read({"model_type": "mistral", "sliding_window": None})).table)
    assert "M' + w" in str(build(read({"model_type": "mistral"})).table)


REFUSED = [
    ({"model_type": "gemma", "use_bidirectional_attention": True}, "use_bidirectional_attention = True"),
    ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
    ({"model_type": "mpt", "attn_config": {"clip_qkv": 6}}, "attn_config.clip_qkv = 6"),
    ({"model_type": "mpt", "attn_config": {"alibi": False}}, "attn_config.alibi = False"),
    ({"model_type": "mpt", "logit_scale": 0.5}, "logit_scale = 0.5"),
    ({"model_type": "gpt_neo", "attention_types": [[["global", "far"], 12]]}, "'far'"),
    ({"model_type": "gpt_neo", "attention_types": [[["global"], 2]]}, "attention_types"),
    ({"model_type": "qwen2", "layer_types": ["full_attention"]}, "layer_types"),
    ({"model_type": "mistral", "sliding_window": -2}, "sliding_window must be a whole number"),
    ({"model_type": "llama", "num_key_value_heads": 5}, "num_attention_heads 32 is not a multiple of"),
]


@pytest.mark.parametrize(("values", "message"), REFUSED, ids=lambda one: str(one)[:40])
def test_what_is_not_supported_is_refused_in_one_line(values, message):
    with pytest.raises(InputError) as problem:
        build(configure("-", {}, io.StringIO(json.dumps(values))))
    assert message in str(problem.value)
    assert "\n" not in str(problem.value)

"""Where transformers keeps the weights of its dense decoders, and how each looks from here."""

import numpy as np

from foreign_models import by, into, out_of, plain, transposed

# Norms of a block, in the order of ours.
NORMS = {
    "gemma2": ["input", "post_attention", "pre_feedforward", "post_feedforward"],
    "olmo2": ["post_attention", "post_feedforward"],
}
NORMS |= {"gemma3_text": NORMS["gemma2"], "olmo3": NORMS["olmo2"], "cohere2": ["input"]}
LLAMA_NORMS = ["input", "post_attention"]


def heads_of(values):
    """Heads of keys, heads of queries for each of them, and their width."""
    names = ("num_attention_heads", "n_head", "n_heads", "num_heads")
    heads = next(values[name] for name in names if name in values)
    width = next(values[name] for name in ("hidden_size", "n_embd", "d_model") if name in values)
    keys = values.get("num_key_value_heads") or heads
    if values["model_type"] == "falcon":
        keys = values["num_kv_heads"] if values.get("new_decoder_architecture") else 1
        keys = keys if values.get("new_decoder_architecture") or values.get("multi_query", True) else heads
    return keys, heads // keys, values.get("head_dim") or width // heads


def linear(ours, bias, theirs, weight_view, bias_view):
    """A weight and the bias that it may have."""
    return {ours: (f"{theirs}.weight", weight_view), bias: (f"{theirs}.bias", bias_view)}


def both(made):
    """One view for a weight, output by input, and for its bias: `made` looks at the output's axis alone."""
    return lambda array: np.moveaxis(made(array), -1, 0) if array.ndim == 2 else made(array)


def apart(values, at):
    """Queries, keys and values in matrices of their own."""
    h, g, k = heads_of(values)
    return {
        **linear("attn.WQ", "attn.bQ", f"{at}q_proj", into(h, g, k), by(h, g, k)),
        **linear("attn.WK", "attn.bK", f"{at}k_proj", into(h, k), by(h, k)),
        **linear("attn.WV", "attn.bV", f"{at}v_proj", into(h, k), by(h, k)),
    }


def by_heads(values, name):
    """One matrix: for each head of keys its queries, then the key, then the value (GPT-NeoX, BLOOM, Falcon)."""
    h, g, k = heads_of(values)

    def part(chosen):
        return both(lambda array: array.reshape(h, g + 2, k, *array.shape[1:])[:, chosen])

    places = {}
    for letter, chosen in {"Q": slice(None, g), "K": g, "V": g + 1}.items():
        places |= linear(f"attn.W{letter}", f"attn.b{letter}", name, part(chosen), part(chosen))
    return places


def in_a_row(values, name):
    """One matrix: all queries, then all keys, then all values (Phi-3, MPT)."""
    h, g, k = heads_of(values)

    def part(start, *shape):
        stop = start + int(np.prod(shape))
        return both(lambda array: array[start:stop].reshape(*shape, *array.shape[1:]))

    starts = {"Q": (0, h, g, k), "K": (h * g * k, h, k), "V": (h * g * k + h * k, h, k)}
    return {f"attn.W{letter}": (f"{name}.weight", part(*shape)) for letter, shape in starts.items()}


def output(values, name):
    return linear("attn.WO", "attn.bO", name, out_of(*heads_of(values)), plain)


def norm(ours, theirs, gain="g", shift="b"):
    return {f"{ours}.{gain}": (f"{theirs}.weight", plain), f"{ours}.{shift}": (f"{theirs}.bias", plain)}


def network(first, second):
    return linear("mlp.W1", "mlp.b1", first, transposed, plain) | linear("mlp.W2", "mlp.b2", second, transposed, plain)


def llama_like(values):
    family = values["model_type"]
    places = {}
    for i, name in enumerate(NORMS.get(family, LLAMA_NORMS), 1):
        places |= {f"ln_{i}": (f"{name}_layernorm.weight", plain)} | norm(f"ln_{i}", f"{name}_layernorm")
    places |= in_a_row(values, "self_attn.qkv_proj") if family == "phi3" else apart(values, "self_attn.")
    places |= output(values, "self_attn.o_proj")
    h, g, k = heads_of(values)
    wide = family in ("olmo2", "olmo3")
    queries, keys = ("query_layernorm", "key_layernorm") if family == "hunyuan_v1_dense" else ("q_norm", "k_norm")
    places["attn.gQ"] = (f"self_attn.{queries}.weight", by(h, g, k) if wide else plain)
    places["attn.gK"] = (f"self_attn.{keys}.weight", by(h, k) if wide else plain)
    for letter, name in {"G": "gate", "U": "up", "D": "down"}.items():
        places |= linear(f"mlp.W{letter}", f"mlp.b{letter}", f"mlp.{name}_proj", transposed, plain)
    if family == "arcee":
        places |= network("mlp.up_proj", "mlp.down_proj")
    if family == "phi3":
        places["mlp.WG"] = ("mlp.gate_up_proj.weight", lambda w: np.split(w, 2)[0].T)
        places["mlp.WU"] = ("mlp.gate_up_proj.weight", lambda w: np.split(w, 2)[1].T)
    return places


def block_places(values):
    """The weights of one block: ours, their name inside of the block, and the view."""
    family = values["model_type"]
    if family == "gpt_neox":
        places = norm("ln_1", "input_layernorm") | norm("ln_2", "post_attention_layernorm")
        places |= by_heads(values, "attention.query_key_value") | output(values, "attention.dense")
        return places | network("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    if family in ("bloom", "falcon"):
        two = values.get("new_decoder_architecture") and values.get("num_ln_in_parallel_attn") != 1
        first, second = ("ln_attn", "ln_mlp") if two else ("input_layernorm", "post_attention_layernorm")
        places = norm("ln_1", first) | norm("ln_2", second)
        places |= by_heads(values, "self_attention.query_key_value") | output(values, "self_attention.dense")
        return places | network("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")
    if family == "gptj":
        places = norm("ln_1", "ln_1") | apart(values, "attn.") | output(values, "attn.out_proj")
        return places | network("mlp.fc_in", "mlp.fc_out")
    if family == "phi":
        places = norm("ln_1", "input_layernorm") | apart(values, "self_attn.") | output(values, "self_attn.dense")
        places |= norm("attn", "self_attn.q_layernorm", "gQ", "sQ") | norm("attn", "self_attn.k_layernorm", "gK", "sK")
        return places | network("mlp.fc1", "mlp.fc2")
    if family == "opt":
        places = norm("ln_1", "self_attn_layer_norm") | norm("ln_2", "final_layer_norm")
        return places | apart(values, "self_attn.") | output(values, "self_attn.out_proj") | network("fc1", "fc2")
    if family == "mpt":
        places = {"ln_1": ("norm_1.weight", plain), "ln_2": ("norm_2.weight", plain)}
        places |= in_a_row(values, "attn.Wqkv") | output(values, "attn.out_proj")
        return places | network("ffn.up_proj", "ffn.down_proj")
    if family == "gpt_neo":
        places = norm("ln_1", "ln_1") | norm("ln_2", "ln_2") | apart(values, "attn.attention.")
        return places | output(values, "attn.attention.out_proj") | network("mlp.c_fc", "mlp.c_proj")
    return llama_like(values)


# Where the blocks stand, the embedding and the last norm.
LLAMA_ENDS = ("model.layers.{}.", "model.embed_tokens", "model.norm")
ENDS = {
    "gpt_neox": ("gpt_neox.layers.{}.", "gpt_neox.embed_in", "gpt_neox.final_layer_norm"),
    "gptj": ("transformer.h.{}.", "transformer.wte", "transformer.ln_f"),
    "gpt_neo": ("transformer.h.{}.", "transformer.wte", "transformer.ln_f"),
    "phi": ("model.layers.{}.", "model.embed_tokens", "model.final_layernorm"),
    "opt": ("model.decoder.layers.{}.", "model.decoder.embed_tokens", "model.decoder.final_layer_norm"),
    "bloom": ("transformer.h.{}.", "transformer.word_embeddings", "transformer.ln_f"),
    "falcon": ("transformer.h.{}.", "transformer.word_embeddings", "transformer.ln_f"),
    "mpt": ("transformer.blocks.{}.", "transformer.wte", "transformer.norm_f"),
}


def places_of(values, weights, theirs, stacks, block=None):
    """For every weight of ours: the names of their parameters in the order of our turns (or the one), and the view.

    theirs  the names of their parameters
    stacks  the prefixes of our weights in blocks, with the blocks that stand in each
    block   what block_places would say of a family that it does not know
    """
    at, embedding, last = ENDS.get(values["model_type"], LLAMA_ENDS)
    ends = {"wte": (f"{embedding}.weight", plain), "ln_f": (f"{last}.weight", plain)} | norm("ln_f", last)
    ends |= linear("head.W", "head.b", "embed_out" if "embed_out.weight" in theirs else "lm_head", transposed, plain)
    ends |= norm("ln_embedding", "transformer.word_embeddings_layernorm")
    ends |= {f"project_{side}": (f"model.decoder.project_{side}.weight", transposed) for side in ("in", "out")}
    ends["wpe"] = (
        "model.decoder.embed_positions.weight" if values["model_type"] == "opt" else "transformer.wpe.weight",
        plain,
    )
    block = block or block_places(values)
    places = {}
    for name in weights:
        if name in ends:
            places[name] = [ends[name][0]], ends[name][1], False
            continue
        kind = next(kind for kind in stacks if name.startswith(kind))
        place, view = block[name.removeprefix(kind)]
        places[name] = [at.format(i) + place for i in stacks[kind]], view, True
    return places

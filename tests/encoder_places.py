"""Where transformers keeps the weights of encoders and encoder-decoders, and how they look from here."""

from foreign_models import by, into, out_of, plain, transposed

H = 3  # heads of the tiny models

# For each of our weights a place, with {} for the number of a block, and a view.


def linear(weight, bias, place):
    return {weight: (f"{place}.weight", transposed), bias: (f"{place}.bias", plain)}


def two_matrices(head):
    """The head of a class whose module for it holds two linear layers."""
    names = f"{head}.dense", f"{head}.out_proj"
    return linear(f"{names[0]}.W", f"{names[0]}.b", names[0]) | linear(f"{names[1]}.W", f"{names[1]}.b", names[1])


def norm(ours, place, shift="b"):
    return {f"{ours}.g": (f"{place}.weight", plain), f"{ours}.{shift}": (f"{place}.bias", plain)}


def attention(ours, query, key, value, output, h=H):
    places = linear(f"{ours}.WO", f"{ours}.bO", output) | {f"{ours}.WO": (f"{output}.weight", out_of(h, -1))}
    for letter, place in zip("QKV", (query, key, value), strict=True):
        places[f"{ours}.W{letter}"] = (f"{place}.weight", into(h, -1))
        places[f"{ours}.b{letter}"] = (f"{place}.bias", by(h, -1))
    return places


def bert(prefix, transform, transform_norm, bias, pooler, classifier, at="encoder.layer.{}."):
    """BERT and those that keep its names; the head's are their own."""
    block = f"{prefix}.{at}"
    prefix_self = f"{block}attention.self."
    embeddings = f"{prefix}.embeddings."
    tables = {"wte": "word", "wpe": "position", "wtt": "token_type"}
    return (
        {ours: (f"{embeddings}{name}_embeddings.weight", plain) for ours, name in tables.items()}
        | norm("ln_e", embeddings + "LayerNorm")
        | attention(
            "attn", prefix_self + "query", prefix_self + "key", prefix_self + "value", block + "attention.output.dense"
        )
        | norm("ln_1", block + "attention.output.LayerNorm")
        | linear("mlp.W1", "mlp.b1", block + "intermediate.dense")
        | linear("mlp.W2", "mlp.b2", block + "output.dense")
        | norm("ln_2", block + "output.LayerNorm")
        | linear("transform.W", "transform.b", transform)
        | norm("transform", transform_norm, "beta")
        | {"head.b": (bias, plain)}
        | linear("pooler.W", "pooler.b", pooler)
        | linear("classifier.W", "classifier.b", classifier)
        | linear("spans.W", "spans.b", "qa_outputs")
    )


def bert_places(architecture):
    head = "cls.predictions"
    transform = f"{head}.transform.dense", f"{head}.transform.LayerNorm"
    configuration = bert("bert", *transform, f"{head}.bias", "bert.pooler.dense", "classifier")
    return configuration | linear("sentence.W", "sentence.b", "cls.seq_relationship")


def roberta_places(architecture):
    last = "roberta.pooler.dense", "classifier"
    configuration = bert("roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias", *last)
    return configuration | two_matrices("classifier")


def electra_places(architecture):
    head = "generator_predictions"
    configuration = bert(
        "electra", f"{head}.dense", f"{head}.LayerNorm", "generator_lm_head.bias", "no pooler", "classifier"
    )
    configuration |= two_matrices("classifier")
    configuration |= linear("projection.W", "projection.b", "electra.embeddings_project")
    configuration |= linear("discriminator.W", "discriminator.b", "discriminator_predictions.dense")
    return configuration | linear("discriminator.V", "discriminator.c", "discriminator_predictions.dense_prediction")


def albert_places(architecture):
    """Groups of layers: two numbers."""
    configuration = bert(
        *("albert", "predictions.dense", "predictions.LayerNorm", "predictions.bias", "albert.pooler", "classifier"),
        at="encoder.albert_layer_groups.{}.albert_layers.{}.",
    )
    block = "albert.encoder.albert_layer_groups.{}.albert_layers.{}."
    attention_prefix = block + "attention."
    configuration |= attention(
        "attn",
        attention_prefix + "query",
        attention_prefix + "key",
        attention_prefix + "value",
        attention_prefix + "dense",
    )
    configuration |= norm("ln_1", attention_prefix + "LayerNorm") | norm("ln_2", block + "full_layer_layer_norm")
    configuration |= linear("mlp.W1", "mlp.b1", block + "ffn") | linear("mlp.W2", "mlp.b2", block + "ffn_output")
    configuration |= linear("sentence.W", "sentence.b", "sop_classifier.classifier")
    return configuration | linear("projection.W", "projection.b", "albert.encoder.embedding_hidden_mapping_in")


def distilbert_places(architecture):
    configuration = bert(
        *("distilbert", "vocab_transform", "vocab_layer_norm", "vocab_projector.bias", "pre_classifier", "classifier")
    )
    block = "distilbert.transformer.layer.{}."
    attention_prefix = block + "attention."
    configuration |= attention(
        "attn",
        attention_prefix + "q_lin",
        attention_prefix + "k_lin",
        attention_prefix + "v_lin",
        attention_prefix + "out_lin",
    )
    configuration |= norm("ln_1", block + "sa_layer_norm") | norm("ln_2", block + "output_layer_norm")
    return (
        configuration | linear("mlp.W1", "mlp.b1", block + "ffn.lin1") | linear("mlp.W2", "mlp.b2", block + "ffn.lin2")
    )


def part(number):
    """One of queries, keys, values, which stand side by side in every head."""

    def view(weight):
        split = weight.T.reshape(weight.shape[1], H, 3, -1)
        return split[:, :, number]

    return view


def one(weight):
    """The stack of the only turn."""
    return weight[None]


def deberta_places(architecture):
    head = "cls.predictions"
    transform = f"{head}.transform.dense", f"{head}.transform.LayerNorm"
    configuration = bert("deberta", *transform, f"{head}.bias", "pooler.dense", "classifier")
    attention_prefix = "deberta.encoder.layer.{}.attention.self."
    configuration |= {
        f"attn.W{letter}": (attention_prefix + "in_proj.weight", part(i)) for i, letter in enumerate("QKV")
    }
    configuration |= {f"attn.b{letter}": (f"{attention_prefix}{letter.lower()}_bias", by(H, -1)) for letter in "QV"}
    configuration |= {
        "attn.WKP": (attention_prefix + "pos_proj.weight", into(H, -1)),
        "attn.WQP": (attention_prefix + "pos_q_proj.weight", into(H, -1)),
        "attn.bQP": (attention_prefix + "pos_q_proj.bias", by(H, -1)),
        "relative": ("deberta.encoder.rel_embeddings.weight", plain),
        "projection": ("deberta.embeddings.embed_proj.weight", transposed),
    }
    return configuration


def deberta_v2_places(architecture):
    """With the convolution the first block has names of its own."""
    places = deberta_places(architecture)
    attention_prefix = "deberta.encoder.layer.{}.attention.self."
    for letter, name in zip("QKV", ("query", "key", "value"), strict=True):
        places[f"attn.W{letter}"] = (f"{attention_prefix}{name}_proj.weight", into(H, -1))
        places[f"attn.b{letter}"] = (f"{attention_prefix}{name}_proj.bias", by(H, -1))
    for letter, name in (("KP", "pos_key"), ("QP", "pos_query")):
        places[f"attn.W{letter}"] = (f"{attention_prefix}{name}_proj.weight", into(H, -1))
        places[f"attn.b{letter}"] = (f"{attention_prefix}{name}_proj.bias", by(H, -1))
    places |= norm("ln_r", "deberta.encoder.LayerNorm")
    kinds = {}
    for kind in ("first", "rest"):
        kinds |= {f"{kind}.{name}": place for name, place in places.items() if "{}" in place[0]}
    kinds |= {
        "first.conv.W": ("deberta.encoder.conv.conv.weight", lambda weight: weight.transpose(2, 1, 0)[None]),
        "first.conv.b": ("deberta.encoder.conv.conv.bias", one),
        "first.ln_c.g": ("deberta.encoder.conv.LayerNorm.weight", one),
        "first.ln_c.b": ("deberta.encoder.conv.LayerNorm.bias", one),
    }
    return places | kinds


def t5_places(architecture):
    found = {"wte": ("shared.weight", plain), "head.W": ("lm_head.weight", transposed)}
    for side in ("encoder", "decoder"):
        block = side + ".block.{}.layer."
        calls = [("attn", "0.SelfAttention"), *([("cross", "1.EncDecAttention")] if side == "decoder" else [])]
        for ours, name in calls:
            places = (f"{block}{name}.{letter}" for letter in "qkvo")
            found |= {f"{side}.{key}": place for key, place in attention(ours, *places).items()}
        last = len(calls)
        found |= {f"{side}.ln_{i + 1}": (f"{block}{i}.layer_norm.weight", plain) for i in range(last + 1)}
        names = {"W1": "wi", "W2": "wo", "WG": "wi_0", "WU": "wi_1", "WD": "wo"}
        dense = f"{block}{last}.DenseReluDense."
        found |= {f"{side}.mlp.{ours}": (f"{dense}{name}.weight", transposed) for ours, name in names.items()}
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        found |= {f"{side}.relative": (bias, plain), f"{side}.ln_f": (f"{side}.final_layer_norm.weight", plain)}
    return found


def bart_places(architecture, heads=(3, 2)):
    places = {"wte": ("model.shared.weight", plain)}
    places |= two_matrices("classification_head")
    for side, h in zip(("encoder", "decoder"), heads, strict=True):
        side_prefix = f"model.{side}."
        block = side_prefix + "layers.{}."
        calls = [("attn", "self_attn"), *([("cross", "encoder_attn")] if side == "decoder" else [])]
        parts = norm("ln_e", side_prefix + "layernorm_embedding") | norm("ln_f", side_prefix + "layer_norm")
        for i, (ours, name) in enumerate(calls, 1):
            parts |= attention(ours, *(f"{block}{name}.{letter}_proj" for letter in ("q", "k", "v", "out")), h=h)
            parts |= norm(f"ln_{i}", f"{block}{name}_layer_norm")
        parts |= norm(f"ln_{len(calls) + 1}", block + "final_layer_norm")
        parts |= linear("mlp.W1", "mlp.b1", block + "fc1") | linear("mlp.W2", "mlp.b2", block + "fc2")
        parts["wpe"] = (side_prefix + "embed_positions.weight", plain)
        places |= {f"{side}.{name}": place for name, place in parts.items()}
    return places


def whisper_places(architecture):
    places = bart_places(architecture)
    for i in (1, 2):
        place = f"model.encoder.conv{i}"
        places[f"conv_{i}.W"] = (f"{place}.weight", lambda weight: weight.transpose(2, 1, 0))
        places[f"conv_{i}.b"] = (f"{place}.bias", plain)
    return places | {"wte": ("model.decoder.embed_tokens.weight", plain), "head.W": ("proj_out.weight", transposed)}


def vit_places(architecture):
    embeddings_prefix, block = "vit.embeddings.", "vit.layers.{}."
    return (
        {
            "embeddings.W": (embeddings_prefix + "patch_embeddings.projection.weight", plain),
            "embeddings.b": (embeddings_prefix + "patch_embeddings.projection.bias", plain),
            "embeddings.T": (embeddings_prefix + "cls_token", lambda weight: weight[0, 0]),
            "embeddings.P": (embeddings_prefix + "position_embeddings", lambda weight: weight[0]),
        }
        | attention("attn", *(f"{block}attention.{letter}_proj" for letter in "qkvo"))
        | norm("ln_1", block + "layernorm_before")
        | norm("ln_2", block + "layernorm_after")
        | norm("ln_f", "vit.layernorm")
        | linear("mlp.W1", "mlp.b1", block + "mlp.fc1")
        | linear("mlp.W2", "mlp.b2", block + "mlp.fc2")
        | linear("pooler.W", "pooler.b", "vit.pooler.dense")
        | linear("classifier.W", "classifier.b", "classifier")
    )


PLACES = {
    "bert": bert_places,
    "roberta": roberta_places,
    "xlm-roberta": roberta_places,
    "distilbert": distilbert_places,
    "electra": electra_places,
    "albert": albert_places,
    "deberta": deberta_places,
    "deberta-v2": deberta_v2_places,
    "t5": t5_places,
    "bart": bart_places,
    "whisper": whisper_places,
    "vit": vit_places,
}

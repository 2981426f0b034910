"""Whole models of the years after 2019, written in the notation: loss and every gradient against transformers' own."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from foreign_models import angles, by, in_float64, into, numpy_of, out_of, plain, shaken, transposed
from learncost.layers.active import parameters
from learncost.layers.layer import shipped_layer
from learncost.layers.refinement import with_norms, with_rotary, with_scale
from learncost.layers.rewrite import with_biases, with_epsilon, with_op, with_transposed
from refinements import with_softcap

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

SIZES = {"B": 2, "M": 5, "d": 24, "h": 2, "g": 3, "k": 4, "f": 7, "v": 11, "n_layer": 2}
WINDOW = 2

ROTARY = "cosine, sine, cosine, sine, flip"
BLOCK = f"""
    H[B M d] = rms_norm(X; ln_1)
    A[B M d] = grouped_attention(H, H, H, {ROTARY}; attn, N = M') where M' <= M
    X[B M d] = residual(X, A)
    G[B M d] = rms_norm(X; ln_2)
    F[B M d] = gated_feed_forward(G; mlp)
    X[B M d] = residual(X, F)"""
END = """
  Y[B M d] = rms_norm(X; ln_f)
  P[B M v] = head(Y; {head})
  loss[] = loss(P, targets, share)"""
LLAMA = f"""llama(tokens targets share cosine sine flip; wte) -> loss
  X[B M d] = embedding(tokens; wte)
  repeat n_layer carry X:{BLOCK}{END}"""

# Post-norms of both sublayers; every other layer sees a window only.
GEMMA_LAYER = """
    H[B M d] = gemma_rms_norm(X; {own}.ln_1)
    A[B M d] = grouped_attention(H, H, H, {rotary}; {own}.attn, N = M') where {where}
    A[B M d] = gemma_rms_norm(A; {own}.ln_2)
    X[B M d] = residual(X, A)
    G[B M d] = gemma_rms_norm(X; {own}.ln_3)
    F[B M d] = gated_feed_forward(G; {own}.mlp)
    F[B M d] = gemma_rms_norm(F; {own}.ln_4)
    X[B M d] = residual(X, F)"""
GEMMA = f"""gemma(tokens targets share cosine sine flip; wte) -> loss
  E[B M d] = embedding(tokens; wte)
  X[B M d] = E[B M d] #d^0.5[]
  repeat n_pair carry X:{GEMMA_LAYER.format(own="local", rotary=ROTARY, where="M' <= M < M' + w")}{
    GEMMA_LAYER.format(own="global", rotary=ROTARY, where="M' <= M")
}{END.format(head="wte").replace("rms_norm", "gemma_rms_norm")}"""

# Every layer sees a window.
MISTRAL = LLAMA.replace("llama(", "mistral(").replace("where M' <= M", "where M' <= M < M' + w")

MIXTRAL = LLAMA.replace("llama(", "mixtral(").replace("gated_feed_forward(G; mlp)", "mixture_of_experts(G; moe)")


def attention(biases=(), norms=False, epsilon=1e-6):
    layer = with_biases(shipped_layer("grouped_attention"), {f"W{letter}": f"b{letter}" for letter in biases})
    layer = with_norms(layer, {"Q": "gQ", "K": "gK"}, ("k",), epsilon) if norms else layer
    return with_rotary(layer)


def model(text, attention, **more):
    layers = {"rms_norm": with_epsilon(shipped_layer("rms_norm"), 1e-5), "grouped_attention": attention, **more}
    return lc.layer(text, layers=layers)


def block_places(h, g, k, prefix="", at="model.layers.{}."):
    """Where transformers keeps a layer's weights, and how they look from here."""
    attention_prefix = at + "self_attn."
    places = {
        "ln_1": (at + "input_layernorm.weight", plain),
        "ln_2": (at + "post_attention_layernorm.weight", plain),
        "attn.WQ": (attention_prefix + "q_proj.weight", into(h, g, k)),
        "attn.WK": (attention_prefix + "k_proj.weight", into(h, k)),
        "attn.WV": (attention_prefix + "v_proj.weight", into(h, k)),
        "attn.WO": (attention_prefix + "o_proj.weight", out_of(h, g, k)),
        "attn.bQ": (attention_prefix + "q_proj.bias", by(h, g, k)),
        "attn.bK": (attention_prefix + "k_proj.bias", by(h, k)),
        "attn.bV": (attention_prefix + "v_proj.bias", by(h, k)),
        "attn.gQ": (attention_prefix + "q_norm.weight", plain),
        "attn.gK": (attention_prefix + "k_norm.weight", plain),
        "mlp.WG": (at + "mlp.gate_proj.weight", transposed),
        "mlp.WU": (at + "mlp.up_proj.weight", transposed),
        "mlp.WD": (at + "mlp.down_proj.weight", transposed),
        "moe.WR": (at + "mlp.gate.weight", transposed),
        "moe.WG": (at + "mlp.experts.gate_up_proj", lambda w: np.split(w, 2, 1)[0].transpose(0, 2, 1)),
        "moe.WU": (at + "mlp.experts.gate_up_proj", lambda w: np.split(w, 2, 1)[1].transpose(0, 2, 1)),
        "moe.WD": (at + "mlp.experts.down_proj", lambda w: w.transpose(0, 2, 1)),
    }
    if prefix:
        names = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        places |= {f"ln_{i}": (f"{at}{name}_layernorm.weight", plain) for i, name in enumerate(names, 1)}
    return {prefix + name: place for name, place in places.items()}


def places(layer, module):
    """For every weight of ours: their parameters in the order of our turns, or the one, and the view."""
    h, g, k = SIZES["h"], SIZES["g"], SIZES["k"]
    named_places = {"wte": ("model.embed_tokens.weight", plain), "ln_f": ("model.norm.weight", plain)}
    named_places["head.W"] = ("lm_head.weight", transposed)
    number = module.config.num_hidden_layers
    if "local.ln_1" in layer.table.weights:
        iterations = [
            (block_places(h, g, k, block_names), range(i, number, 2))
            for i, block_names in enumerate(("local.", "global."))
        ]
    else:
        iterations = [(block_places(h, g, k), range(number))]
    theirs = dict(module.named_parameters())
    places_found = {
        name: ([theirs[place]], view, False) for name, (place, view) in named_places.items() if place in theirs
    }
    for blocks, numbers in iterations:
        for name, (place, view) in blocks.items():
            if place.format(0) in theirs and name in layer.table.weights:
                places_found[name] = [theirs[place.format(i)] for i in numbers], view, True
    return {name: places_found[name] for name in layer.table.weights}


def ours(values, view, stacked):
    arrays = [view(numpy_of(value)) for value in values]
    return np.stack(arrays) if stacked else arrays[0]


def module_of(family, **keys):
    kind = family.capitalize()
    config = getattr(transformers, f"{kind}Config")(
        hidden_size=SIZES["d"], num_attention_heads=SIZES["h"] * SIZES["g"], num_key_value_heads=SIZES["h"],
        head_dim=SIZES["k"], intermediate_size=SIZES["f"], vocab_size=SIZES["v"], rms_norm_eps=1e-5,
        pad_token_id=0, rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        num_hidden_layers=SIZES["n_layer"], **keys,
    )  # fmt: skip
    config._attn_implementation = config._experts_implementation = "eager"
    return getattr(transformers, f"{kind}ForCausalLM")(config)


def compare(layer, module, more=None, tolerance=1e-9):
    """Loss and all gradients; nothing of theirs without a counterpart of ours."""
    shaken(module)
    # Token 0 pads: transformers gives its row of the embedding no gradient.
    tokens = np.random.default_rng(3).integers(1, SIZES["v"], (SIZES["B"], SIZES["M"]))
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
    places_found = places(layer, module)
    used = {id(p) for parameters, _, _ in places_found.values() for p in parameters}
    assert used == {id(p) for p in module.parameters()}
    share = np.full(tokens.shape, -1.0 / (SIZES["B"] * (SIZES["M"] - 1)))
    share[:, -1] = 0
    arrays = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share, **angles(SIZES["M"], SIZES["k"])}
    arrays |= {name: ours(*place) for name, place in places_found.items()} | (more or {})
    result = lc.run(layer, {**arrays, "dloss": np.array(1.0)})
    np.testing.assert_allclose(result["loss"], loss.item(), rtol=tolerance)
    loss.backward()
    for name, (theirs, view, stacked) in places_found.items():
        gradient = ours([parameter.grad for parameter in theirs], view, stacked)
        np.testing.assert_allclose(result[f"d{name}"], gradient, rtol=tolerance, atol=tolerance, err_msg=name)


def flops_of(module):
    """Forward, and forward and backward, where the module is."""
    tokens = torch.ones(SIZES["B"], SIZES["M"], dtype=torch.long, device=module.device)
    with FlopCounterMode(display=False) as counter:
        loss = module(input_ids=tokens, labels=tokens).loss
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        loss.backward()
    return forward, forward + counter.get_total_flops()


GEMMA_LAYERS = {
    "gemma_rms_norm": with_epsilon(shipped_layer("gemma_rms_norm"), 1e-5),
    "gated_feed_forward": with_op(shipped_layer("gated_feed_forward"), "silu", "gelu_tanh"),
    "head": with_softcap(with_transposed(shipped_layer("head"), "W"), 3.0, "L"),
}


def gemma():
    capped_attention = with_softcap(with_scale(attention(), 7**-0.5), 0.8)
    return model(GEMMA, capped_attention, **GEMMA_LAYERS)


MODELS = {
    "llama": (lambda: model(LLAMA.format(head="head.W"), attention()), {}),
    "qwen2": (
        lambda: model(LLAMA.format(head="wte"), attention("QKV"), head=with_transposed(shipped_layer("head"), "W")),
        {"tie_word_embeddings": True},
    ),
    "qwen3": (lambda: model(LLAMA.format(head="head.W"), attention(norms=True, epsilon=1e-5)), {}),
    "mistral": (lambda: model(MISTRAL.format(head="head.W"), attention()), {"sliding_window": WINDOW}),
    "gemma2": (
        gemma,
        {
            "query_pre_attn_scalar": 7,
            "attn_logit_softcapping": 0.8,
            "final_logit_softcapping": 3.0,
            "sliding_window": WINDOW,
            "tie_word_embeddings": True,
        },
    ),
    "mixtral": (
        lambda: model(MIXTRAL.format(head="head.W"), attention()),
        {"num_local_experts": 4, "num_experts_per_tok": 2},
    ),
}


@pytest.mark.parametrize("family", MODELS)
def test_loss_and_gradients(family):
    make, keys = MODELS[family]
    named_sizes = {"sliding_window": {"w": WINDOW}, "num_experts_per_tok": {"t": 2}}
    compare(make(), module_of(family, **keys), next((named_sizes[key] for key in keys if key in named_sizes), None))


def sizes_of(family, n=None):
    n = n or SIZES["n_layer"]
    return {**SIZES, "n_layer": n, "n_pair": n // 2, "e": 4, "t": 2}


@pytest.mark.parametrize("family", MODELS)
def test_parameters(family):
    make, keys = MODELS[family]
    assert parameters(make().table).at(sizes_of(family)) == sum(
        p.numel() for p in module_of(family, **keys).parameters()
    )


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("family", MODELS)
def test_products_of_matrices_are_those_that_torch_counts(family):
    """On meta; the experts' tokens are chosen by values, so that a mixture runs on the CPU."""
    make, keys = MODELS[family]
    layer, sizes = make(), sizes_of(family)
    with torch.device("cpu" if family == "mixtral" else "meta"):
        module = module_of(family, **keys)
    step = lc.derive(layer, given=["loss"]).step
    assert flops_of(module) == (lc.price(layer, sizes, "matmul").flops, lc.price(step, sizes, "matmul").flops)

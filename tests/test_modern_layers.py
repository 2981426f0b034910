"""Layers after 2019 against transformers' own modules: values and gradients in float64."""

import pytest
import torch

import learncost as lc
from foreign_models import by, compare, in_float64, plain, shaken, transposed
from learncost.layers.layer import shipped_layer
from learncost.layers.refinement import refined, with_scale
from learncost.layers.rewrite import with_epsilon, with_op

transformers = pytest.importorskip("transformers")
__all__ = ["in_float64"]

B, M, D, FF = 2, 5, 12, 7
MODELS = transformers.models


def draw(*shape):
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


# Norms and feed-forward networks.


@pytest.mark.parametrize("epsilon", [1e-6, 1e-2])
@pytest.mark.parametrize("name", ["rms_norm", "gemma_rms_norm"])
def test_root_mean_square_norms(name, epsilon):
    kind = MODELS.llama.modeling_llama.LlamaRMSNorm if name == "rms_norm" else MODELS.gemma.modeling_gemma.GemmaRMSNorm
    module = shaken(kind(D, eps=epsilon))
    X = draw(B, M, D)
    compare(with_epsilon(shipped_layer(name), epsilon), {}, {"g": (module.weight, plain)}, module(X), {"X": X})


@pytest.mark.parametrize(("act", "op"), [("silu", "silu"), ("gelu", "gelu"), ("gelu_pytorch_tanh", "gelu_tanh")])
def test_gated_feed_forward(act, op):
    config = transformers.LlamaConfig(hidden_size=D, num_attention_heads=3, intermediate_size=FF, hidden_act=act)
    module = shaken(MODELS.llama.modeling_llama.LlamaMLP(config))
    X = draw(B, M, D)
    parts = {"WG": module.gate_proj, "WU": module.up_proj, "WD": module.down_proj}
    layer = with_op(shipped_layer("gated_feed_forward"), "silu", op)
    compare(layer, {}, {n: (part.weight, transposed) for n, part in parts.items()}, module(X), {"X": X})


# Mixtures of experts.


def expert_weights(experts, f):
    return {
        "WG": (experts.gate_up_proj, lambda weight: weight[:, :f].transpose(0, 2, 1)),
        "WU": (experts.gate_up_proj, lambda weight: weight[:, f:].transpose(0, 2, 1)),
        "WD": (experts.down_proj, lambda weight: weight.transpose(0, 2, 1)),
    }


@pytest.mark.parametrize(("e", "t"), [(4, 2), (3, 1), (5, 5)])
@pytest.mark.parametrize("renormalised", [True, False])
def test_mixture_of_experts(e, t, renormalised):
    if renormalised:
        config = transformers.MixtralConfig(
            hidden_size=D, intermediate_size=FF, num_local_experts=e, num_experts_per_tok=t
        )
        module = MODELS.mixtral.modeling_mixtral.MixtralSparseMoeBlock(config)
    else:
        config = transformers.OlmoeConfig(
            hidden_size=D, intermediate_size=FF, num_experts=e, num_experts_per_tok=t, norm_topk_prob=False
        )
        module = MODELS.olmoe.modeling_olmoe.OlmoeSparseMoeBlock(config)
    shaken(module)
    X = draw(B, M, D)
    result = module(X)
    result = result[0] if isinstance(result, tuple) else result
    weights = {"WR": (module.gate.weight, transposed), **expert_weights(module.experts, FF)}
    layer = shipped_layer("mixture_of_experts" if renormalised else "softmax_mixture_of_experts")
    compare(layer, {"t": t}, weights, result, {"X": X})


def test_refinements_stand_in_the_place_of_a_line_under_its_where():
    """The value is made anew under its name, whatever its axes; inputs and weights come in behind those there are."""
    text = """mine(Q K; W) -> S
  R[B M M'] = Q[B M k] K[B M' k] where M' <= M
  S[B M M'] = R[B M M'] W[] where M' <= M"""
    bent = refined(lc.layer(text), "softcap", "R", {"cap": 2.0, "inverse": 0.5})
    assert [str(line) for line in bent.table.lines[:3]] == [
        "R.uncapped[B M M'] = Q[B M k] K[B M' k] where M' <= M",
        "R.small[B M M'] = R.uncapped[B M M'] 0.5[] where M' <= M",
        "R.bent[B M M'] = tanh(R.small[B M M']) where M' <= M",
    ]
    normed = refined(bent, "norm", "S", {"epsilon": 1e-5}, {"g": "gain", "s": "shift"}, ("M", "M'"))
    assert normed.table.weights == ("W", "gain", "shift")
    assert normed.table.axes["shift"] == ("M", "M'")
    assert refined(bent, "visible", "S").table.inputs == ("Q", "K", "visible")
    with pytest.raises(lc.InputError, match="mine has no line that defines Z"):
        refined(bent, "softcap", "Z")


@pytest.mark.parametrize("factor", [2.5, 1.0])
def test_sigmoid_mixture_of_experts_with_a_shared_one(factor):
    e, t = 8, 3
    config = transformers.DeepseekV3Config(
        hidden_size=D, moe_intermediate_size=FF, n_routed_experts=e, num_experts_per_tok=t, n_group=4, topk_group=2,
        n_shared_experts=2, routed_scaling_factor=factor,
    )  # fmt: skip
    module = shaken(MODELS.deepseek_v3.modeling_deepseek_v3.DeepseekV3MoE(config))
    X = draw(B, M, D)
    text = """both(X correction) -> Y
      H[B M d] = 1[] X[B M d]
      R[B M d] = sigmoid_mixture_of_experts(H, correction; moe)
      F[B M d] = gated_feed_forward(H; shared, f = s)
      Y[B M d] = residual(R, F)"""
    scaled = with_scale(shipped_layer("sigmoid_mixture_of_experts"), factor, "T")
    routed = refined(scaled, "groups_of_best_two", "C")
    layer = lc.layer(text, layers={routed.name: routed})
    router_weights = {"WR": (module.gate.weight, transposed), **expert_weights(module.experts, FF)}
    shared = {"WG": "gate_proj", "WU": "up_proj", "WD": "down_proj"}
    weights = {f"moe.{name}": pair for name, pair in router_weights.items()}
    weights |= {f"shared.{n}": (getattr(module.shared_experts, part).weight, transposed) for n, part in shared.items()}
    inputs = {"correction": draw(e).detach().numpy(), "t": t, "i": 4, "j": 2, "q": 2, "b": 2}
    module.gate.e_score_correction_bias.copy_(torch.tensor(inputs["correction"]))
    compare(layer, inputs, weights, module(X), {"X": X})


def test_only_the_chosen_experts_are_priced():
    layer = shipped_layer("mixture_of_experts")
    assert str(lc.price(layer, {"B": 1}).maccs) == "3 M d f t + M d e + M d t"


# Images and sounds.


@pytest.mark.parametrize(("rows", "columns"), [(2, 3), (1, 1)])
def test_patch_embedding_with_its_class_token(rows, columns):
    c, y, x = 3, 4, 5
    config = transformers.ViTConfig(
        hidden_size=D, image_size=(rows * y, columns * x), patch_size=(y, x), num_channels=c, hidden_dropout_prob=0.0
    )
    module = shaken(MODELS.vit.modeling_vit.ViTEmbeddings(config))
    pixels = draw(B, c, rows, y, columns, x)
    result = module(pixels.reshape(B, c, rows * y, columns * x))
    projection = module.patch_embeddings.projection
    weights = {
        "W": (projection.weight, plain),
        "b": (projection.bias, plain),
        "T": (module.cls_token, by(D)),
        "P": (module.position_embeddings, by(-1, D)),
    }
    compare(shipped_layer("patch_embedding"), {}, weights, result, {"X": pixels})


@pytest.mark.parametrize("length", [7, 8])
def test_the_stem_of_whisper(length):
    """Two convolutions, the second with a stride of two, each with a gelu."""
    bins, gelu = 4, torch.nn.functional.gelu
    first = shaken(torch.nn.Conv1d(bins, D, 3, padding=1))
    second = shaken(torch.nn.Conv1d(D, D, 3, stride=2, padding=1))
    X = draw(B, length, bins)
    layer = lc.layer(
        """stem(X; W1 b1 W2 b2) -> Y
      L[B N e] = convolution(X; W1 b1, M = N)
      G[B N e] = gelu(L[B N e])
      H[B M e] = strided_convolution(G; W2 b2, d = e', e = e)
      Y[B M e] = gelu(H[B M e])"""
    )
    weights = {f"b{i}": (module.bias, plain) for i, module in enumerate((first, second), 1)}
    weights |= {f"W{i}": (m.weight, lambda weight: weight.transpose(2, 1, 0)) for i, m in enumerate((first, second), 1)}
    compare(layer, {}, weights, gelu(second(gelu(first(X.mT)))).mT, {"X": X})

"""The generic models against torch's own transformer layers: values and gradients in float64."""

from functools import partial

import numpy as np
import pytest

import learncost as lc
from learncost.models.configuration import configure
from learncost.models.model import Model, build

torch = pytest.importorskip("torch")

Array = np.ndarray

TOLERANCE = 1e-10
B, M, N = 3, 5, 4  # batch, the only or the decoder's length, the encoder's length
D, H, F, V = 6, 2, 7, 11


class Reference(torch.nn.Module):
    """Embedding, given positions, torch's layers with the norm after the sum, an untied head without bias."""

    def __init__(self, n_enc: int, n_dec: int, learned: int = 0) -> None:
        super().__init__()
        keys = {"activation": "gelu", "dropout": 0, "batch_first": True}
        self.embeddings = torch.nn.ModuleList(torch.nn.Embedding(V, D) for _ in range(1 + (n_dec > 0)))
        self.positions = torch.nn.ModuleList(torch.nn.Embedding(learned, D) for _ in self.embeddings if learned)
        layers = [torch.nn.TransformerEncoderLayer(D, H, F, **keys) for _ in range(n_enc)]
        layers += [torch.nn.TransformerDecoderLayer(D, H, F, **keys) for _ in range(n_dec)]
        self.layers = torch.nn.ModuleList(layers)
        self.head = torch.nn.Linear(D, V, bias=False)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.normal_(std=0.6)
                if "attn" in name and "bias" in name:
                    parameter.zero_()  # the paper's attention has no biases

    def forward(self, tokens: list, sines: list, padded: list, causal: bool) -> object:
        values = [table(token) for table, token in zip(self.embeddings, tokens, strict=True)]
        if self.positions:
            values = [v + table.weight[: v.shape[1]] for v, table in zip(values, self.positions, strict=True)]
        else:
            values = [value + sine for value, sine in zip(values, sines, strict=True)]
        x, memory = values[0], None
        mask = partial(torch.triu, diagonal=1)
        for layer in self.layers:
            if isinstance(layer, torch.nn.TransformerEncoderLayer):
                hidden = mask(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)) if causal else None
                x = layer(x, src_mask=hidden, src_key_padding_mask=padded[0])
                continue
            if memory is None:
                memory, x = x, values[1]
            hidden = mask(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool))
            masks = {"tgt_key_padding_mask": padded[1], "memory_key_padding_mask": padded[0]}
            x = layer(x, memory, tgt_mask=hidden, **masks)
        return self.head(x)


def attention(prefix: str, part: object, grad: bool) -> dict[str, Array]:
    def array(parameter: object) -> Array:
        return (parameter.grad if grad else parameter.detach()).numpy()

    q, k, v = (matrix.T.reshape(D, H, -1) for matrix in np.split(array(part.in_proj_weight), 3))
    output = array(part.out_proj.weight).T.reshape(H, -1, D)
    return {f"{prefix}.WQ": q, f"{prefix}.WK": k, f"{prefix}.WV": v, f"{prefix}.WO": output}


def block(prefix: str, layer: object, grad: bool) -> dict[str, Array]:
    def array(parameter: object) -> Array:
        return (parameter.grad if grad else parameter.detach()).numpy()

    arrays = attention(f"{prefix}attn", layer.self_attn, grad)
    if hasattr(layer, "multihead_attn"):
        arrays |= attention(f"{prefix}cross", layer.multihead_attn, grad)
    for number, linear in enumerate((layer.linear1, layer.linear2), 1):
        arrays |= {f"{prefix}mlp.W{number}": array(linear.weight).T, f"{prefix}mlp.b{number}": array(linear.bias)}
    for number in (1, 2, 3):
        if norm := getattr(layer, f"norm{number}", None):
            arrays |= {f"{prefix}ln_{number}.g": array(norm.weight), f"{prefix}ln_{number}.b": array(norm.bias)}
    return arrays


def arrays_of(module: Reference, two_sided: bool, grad: bool = False) -> dict[str, Array]:
    """Weights (or their gradients) by our names; the blocks of one side are stacked."""
    sides = ("encoder.", "decoder.") if two_sided else ("",)
    tables = {"wte": module.embeddings, "wpe": module.positions}
    places = {f"{s}{name}": t.weight for name, table in tables.items() for s, t in zip(sides, table, strict=False)}
    places["head.W"] = module.head.weight.T if not grad else module.head.weight
    result = {name: (p.grad if grad else p.detach()).numpy() for name, p in places.items()}
    if grad:
        result["head.W"] = result["head.W"].T
    for side in sides:
        kind = torch.nn.TransformerDecoderLayer if side == "decoder." else torch.nn.TransformerEncoderLayer
        blocks = [block(side, layer, grad) for layer in module.layers if isinstance(layer, kind)]
        result |= {name: np.stack([arrays[name] for arrays in blocks]) for name in blocks[0]}
    return result


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize("learned", [0, 9])
@pytest.mark.parametrize("family", ["encoder", "decoder", "encoder-decoder"])
def test_generic_models(family: str, learned: int, padding: bool) -> None:
    two_sided = family == "encoder-decoder"
    depth = {"n_enc": 2, "n_dec": 3} if two_sided else {"num_hidden_layers": 2}
    sizes = {"hidden_size": D, "num_attention_heads": H, "intermediate_size": F, "vocab_size": V} | depth
    positions = {"max_position_embeddings": learned} if learned else {}
    model = build(
        configure(family, sizes | positions | {"activation": "gelu"}), padding=padding
    )  # torch's gelu is erf's
    torch.manual_seed(7)
    module = Reference(2, 3 if two_sided else 0, learned).double()
    draw = np.random.default_rng(7)
    lengths = (N, M) if two_sided else (M,)
    tokens = [draw.integers(0, V, (B, length)) for length in lengths]
    sines = [draw.normal(size=(length, D)) for length in lengths]
    real = [np.arange(length) < np.array([[length], [2], [1]]) for length in lengths]
    if not padding:
        real = [np.ones_like(mask) for mask in real]
    targets = np.where(real[-1], draw.integers(0, V, (B, M)), -100)
    targets[0, 2] = -100  # without a target

    padded = [torch.tensor(~mask) if padding else None for mask in real]
    causal = family == "decoder"
    scores = module([torch.tensor(token) for token in tokens], [torch.tensor(sine) for sine in sines], padded, causal)
    loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), torch.tensor(targets).flatten())
    loss.backward()

    values = lc.run(model.table, given(model, module, tokens, sines, real, targets), model.sizes)
    assert abs(values["loss"] - loss.item()) < TOLERANCE
    logarithms = torch.log_softmax(scores, -1).detach().numpy()
    assert np.abs((values["P"] - logarithms)[real[-1]]).max() < TOLERANCE
    gradients = arrays_of(module, two_sided, grad=True)
    assert gradients.keys() == set(model.table.weights)
    for name, gradient in gradients.items():
        assert np.abs(values[f"d{name}"] - gradient).max() < TOLERANCE, name


def given(
    model: Model, module: Reference, tokens: list[Array], sines: list[Array], real: list[Array], targets: Array
) -> dict[str, Array]:
    """What our table takes in."""
    two_sided = len(tokens) == 2
    arrays = arrays_of(module, two_sided)
    for side, token, sine in zip(("encoder.", "decoder.") if two_sided else ("",), tokens, sines, strict=True):
        arrays |= {f"{side}tokens": token, f"{side}S": sine, f"{side}index": np.arange(token.shape[1])}
    share = np.where(targets >= 0, -1 / (targets >= 0).sum(), 0.0)
    arrays |= {"targets": np.maximum(targets, 0), "share": share, "dloss": np.ones(())}
    for name in model.masks:  # every block's attention is given the mask of its keys, the cross-attention the encoder's
        keys = real[-1] if name.startswith(("decoder.attn", "attn")) else real[0]
        arrays[name] = np.broadcast_to(keys, (model.sizes[model.table.axes[name][0]], *keys.shape))
    return {
        name: array for name, array in arrays.items() if name in (*model.table.inputs, *model.table.weights, "dloss")
    }

"""The `matmul` book against torch's FlopCounterMode on the meta device: transformers' own modules with eager attention.

There is no difference to take into account: torch counts addmm as mm and leaves the bias out, as the book does; every
product's two gradients are needed, because the first layer is a trained embedding; the pooler's product has one row
for each sequence in both; the one-hot product of the embedding is a gather in both.
"""

import random
from collections.abc import Callable

import pytest

import learncost as lc
from learncost.layers.layer import shipped_layer
from learncost.models.argument import presets
from sampling import sampled
from test_printed import FORMULAS, evaluate

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

# The families of the seeds at full size; test_families_*.py hold all others at sizes drawn at random.
SEEDS = {"gpt2", "openai-gpt", "bert", "distilbert", "gpt3-jiang", "encoder-decoder"}
PRESETS = {preset.name: {"config": dict(preset.values)} for preset in presets() if preset.family in SEEDS}
CLASSES = {"gpt2": "GPT2LMHeadModel", "openai-gpt": "OpenAIGPTLMHeadModel"}

WITHOUT_MODULE = {"gpt3-jiang", "transformer-base", "transformer-big"}
BATCH, LENGTH = 2, 50


def flops_of(work: Callable[[], object]) -> tuple[int, object]:
    with FlopCounterMode(display=False) as counter:
        result = work()
    return counter.get_total_flops(), result


def module_of(model_type: str, architecture: str, **keys: object) -> object:
    config = transformers.AutoConfig.for_model(model_type, **keys)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        return getattr(transformers, architecture)(config)


def loss_of(module: object, architecture: str) -> object:
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long, device="meta")
    if "LM" in architecture:
        return module(input_ids=tokens, labels=tokens).loss
    outputs = module(input_ids=tokens)
    pooled = outputs.get("pooler_output")
    return outputs.last_hidden_state.sum() + (0 if pooled is None else pooled.sum())


def counted(module: object, architecture: str) -> tuple[int, int]:
    """FLOPs of the forward pass, and of both passes."""
    forward, loss = flops_of(lambda: loss_of(module, architecture))
    backward, _ = flops_of(loss.backward)
    return forward, forward + backward


def ours(model: object, procedure: str = "bp", **keywords: object) -> tuple[int, int]:
    length = {"batch_size": BATCH, "seq_len": LENGTH} | keywords
    ledger = lc.cost(model, procedure=procedure, price_book="matmul", **length)
    assert ledger.total.flops == 2 * ledger.total.maccs
    return ledger.macro_operations["forward"][1].flops, ledger.total.flops


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    "name", sampled(sorted(PRESETS.keys() - WITHOUT_MODULE), 40, lambda name: PRESETS[name]["config"]["model_type"])
)
def test_presets(name: str) -> None:
    keys = dict(PRESETS[name]["config"])
    model_type, architecture = keys.pop("model_type"), keys.pop("architecture", None)
    architecture = architecture or CLASSES[model_type]
    module = module_of(model_type, architecture, **keys)
    assert counted(module, architecture) == ours(name)
    assert sum(parameter.numel() for parameter in module.parameters()) == lc.cost(name, seq_len=LENGTH).parameters


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("gpt2", "GPT2Model"),
        ("openai-gpt", "OpenAIGPTModel"),
        ("bert-base", "BertForMaskedLM"),
        ("distilbert-base", "DistilBertForMaskedLM"),
    ],
)
@pytest.mark.parametrize("tied", sampled([True, False], 2))
def test_other_heads(name: str, architecture: str, tied: bool, tmp_path: object) -> None:
    module = module_of(PRESETS[name]["config"]["model_type"], architecture, tie_word_embeddings=tied)
    module.config.architectures = [architecture]
    module.config.save_pretrained(tmp_path)
    assert counted(module, architecture) == ours(str(tmp_path))


def test_layers_of_gpt2() -> None:
    """Module by module: what torch attributes to attention, feed-forward network and head is in our rows of them."""
    module = module_of("gpt2", "GPT2LMHeadModel")
    with FlopCounterMode(display=False, depth=5) as counter:
        loss_of(module, "GPT2LMHeadModel")
    by_module = {name: sum(counts.values()) for name, counts in counter.get_flop_counts().items()}
    theirs = {
        "attention": sum(flops for name, flops in by_module.items() if name.endswith(".attn")),
        "feed_forward": sum(flops for name, flops in by_module.items() if name.endswith(".mlp")),
        "head": by_module["GPT2LMHeadModel.lm_head"],
    }
    ledger = lc.cost("gpt2", price_book="matmul", batch_size=BATCH, seq_len=LENGTH)
    rows = {row.layer: row.flops for row in ledger.rows if row.macro_operation == "forward" and row.flops}
    assert rows == theirs


# The generic models have no module elsewhere: the paper's architecture in plain torch


class Attention(torch.nn.Module):
    def __init__(self, d: int, h: int, k: int) -> None:
        super().__init__()
        self.h = h
        self.q, self.k, self.v = (torch.nn.Linear(d, h * k, bias=False) for _ in range(3))
        self.o = torch.nn.Linear(h * k, d, bias=False)

    def forward(self, x: object, y: object) -> object:
        q, k, v = (f(z).unflatten(-1, (self.h, -1)).transpose(1, 2) for f, z in ((self.q, x), (self.k, y), (self.v, y)))
        scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
        return self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class Block(torch.nn.Module):
    def __init__(self, d: int, h: int, k: int, f: int, cross: bool) -> None:
        super().__init__()
        self.attention = torch.nn.ModuleList(Attention(d, h, k) for _ in range(1 + cross))
        self.feed_forward = torch.nn.Sequential(
            torch.nn.Linear(d, f), torch.nn.GELU(approximate="tanh"), torch.nn.Linear(f, d)
        )
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(d) for _ in range(2 + cross))

    def forward(self, x: object, y: object = None) -> object:
        x = self.norms[0](x + self.attention[0](x, x))
        if y is not None:
            x = self.norms[1](x + self.attention[1](x, y))
        return self.norms[-1](x + self.feed_forward(x))


class Reference(torch.nn.Module):
    def __init__(self, d: int, h: int, k: int, f: int, v: int, n: int, n_dec: int = 0) -> None:
        super().__init__()
        self.embeddings = torch.nn.ModuleList(torch.nn.Embedding(v, d) for _ in range(2 if n_dec else 1))
        self.encoder = torch.nn.ModuleList(Block(d, h, k, f, False) for _ in range(n))
        self.decoder = torch.nn.ModuleList(Block(d, h, k, f, True) for _ in range(n_dec))
        self.head = torch.nn.Linear(d, v, bias=False)
        self.recompute = False

    def forward(self, source: object, target: object = None) -> object:
        x = self.embeddings[0](source)
        for block in self.encoder:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        if target is not None:
            memory, x = x, self.embeddings[1](target)
            for block in self.decoder:
                x = block(x, memory)
        labels = source if target is None else target
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())


def reference(
    *sizes: int, source: int, target: int = 0, n_dec: int = 0, recompute: bool = False
) -> tuple[tuple[int, int], int]:
    with torch.device("meta"):
        module = Reference(*sizes, n_dec=n_dec)
        module.recompute = recompute
        tokens = [torch.zeros(BATCH, length, dtype=torch.long) for length in (source, target) if length]
    forward, loss = flops_of(lambda: module(*tokens))
    backward, _ = flops_of(loss.backward)
    return (forward, forward + backward), sum(parameter.numel() for parameter in module.parameters())


def generic(h: int, k: int, f: int, v: int, d: int) -> dict[str, int]:
    names = {"hidden_size": d, "num_attention_heads": h, "head_dim": k}
    return names | {"intermediate_size": f, "vocab_size": v}


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("k", [5, 7])  # 3 heads of 5 make up the width, 3 heads of 7 do not
@pytest.mark.parametrize("family", ["encoder", "decoder"])
def test_one_sided_models(family: str, k: int) -> None:
    counted, parameters = reference(15, 3, k, 22, 31, 4, source=13)
    sizes = generic(h=3, k=k, f=22, v=31, d=15) | {"num_hidden_layers": 4}
    assert ours(family, seq_len=13, **sizes) == counted  # the causal mask saves nothing: dense attention runs in full
    assert lc.cost(family, seq_len=13, **sizes).parameters == parameters


def test_recomputed_blocks() -> None:
    """Without the early stop, by which torch leaves out of a block's second pass what nothing needs any more."""
    with set_checkpoint_early_stop(False):
        counted, _ = reference(15, 3, 5, 22, 31, 4, source=13, recompute=True)
    sizes = generic(h=3, k=5, f=22, v=31, d=15) | {"num_hidden_layers": 4}
    assert ours("encoder", "recompute", seq_len=13, **sizes) == counted


@pytest.mark.parametrize("k", [5, 7])
def test_two_sided_models(k: int) -> None:
    counted, parameters = reference(15, 3, k, 22, 31, 2, source=13, target=9, n_dec=3)
    sizes = generic(h=3, k=k, f=22, v=31, d=15) | {"n_enc": 2, "n_dec": 3}
    assert ours("encoder-decoder", seq_len=13, target_len=9, **sizes) == counted
    assert lc.cost("encoder-decoder", seq_len=13, target_len=9, **sizes).parameters == parameters


def test_heads_that_do_not_make_up_the_width() -> None:
    """24 heads of 128 beside a width of 2048, as table 2.1 of GPT-3 prints them; transformers' GPT-2 refuses them."""
    keys = PRESETS["gpt3-xl"]["config"]
    d, v, n = (keys[key] for key in ("n_embd", "vocab_size", "n_layer"))
    counted, _ = reference(d, 24, 128, 4 * d, v, n, source=LENGTH)
    assert ours("gpt3-xl", n_head=24) == counted  # norms before or after and biases change no product


def test_pepita_runs_dense_products_for_its_modulated_input() -> None:
    """By hand for gpt2: two forward passes, the update, and two products with the error, which is dense."""
    forward, both = ours("gpt2")
    dense = 2 * BATCH * LENGTH * 50257 * 768
    update = (both - forward) // 2  # each factor of each product has a gradient of the product's own size
    scores = 12 * 2 * 2 * BATCH * LENGTH * LENGTH * 768  # of the two products of attention, which have no weights
    assert ours("gpt2", "pepita") == (2 * forward + dense, 2 * forward + dense + update - scores + dense)


# What two of the publications count in the same way: products alone


def published(number: int, sizes: dict[str, int]) -> int:
    (row,) = [row for row in FORMULAS if row["id"] == number]
    value = evaluate(row["expression"], sizes)
    assert value.denominator == 1
    return int(value)


@pytest.mark.parametrize("seed", range(5))
def test_published_counts_of_a_block(seed: int) -> None:
    """The FLOPs blog's 24bsh^2 + 4bs^2h and the slides' 4nd^2 + 2n^2d, a feed-forward network four times as wide."""
    chance = random.Random(seed)
    h, k, b, M = (chance.randint(2, 30) for _ in range(4))
    sizes = {"M": M, "b": b, "h": h, "d_model": h * k, "d_ff": 4 * h * k, "tokens": b * M}
    axes = {"M": M, "N": M, "B": b, "h": h, "k": k, "d": h * k, "f": 4 * h * k}
    tables = [lc.derive(shipped_layer(layer)) for layer in ("attention", "feed_forward")]

    def price(part: str, only: slice = slice(None)) -> tuple[int, int]:
        prices = [lc.price(getattr(table, part), axes, "matmul") for table in tables[only]]
        return sum(p.maccs for p in prices), sum(p.flops for p in prices)

    forward, backward, update = price("forward")[1], price("backward")[1], price("update")[1]
    assert forward == published(236, sizes)
    assert backward + update == published(237, sizes)  # the blog's backward pass has the weights' gradients in it
    assert forward + backward + update == published(239, sizes)
    assert 2 * forward + backward + update == published(238, sizes)  # with recomputation
    single = sizes | {"b": 1}
    assert price("forward", slice(1))[0] == b * published(272, single)
    assert price("forward", slice(1, 2))[0] == b * published(276, single)


def test_published_counts_of_disentangled_attention() -> None:
    """By the slides' algorithm, one head; the sums, the scaling and the softmax come to 8 FLOPs a score."""
    M, d, k_rel = 13, 10, 4
    axes = {"B": 1, "M": M, "d": d, "h": 1, "k": d, "p": 2 * k_rel}
    sizes = {"M": M, "d_model": d, "k_rel": k_rel, "h": 1}
    layer = shipped_layer("disentangled_attention")
    assert lc.price(layer, axes, "matmul").maccs == lc.price(layer, axes, "paper").maccs == published(296, sizes)
    assert lc.price(layer, axes, "paper").flops == published(297, sizes)

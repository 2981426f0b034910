"""Formula books: every row against the publication's own expression, written out here, and its published figures."""

import io
import random
import re
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import nn

import learncost as lc
import test_modern_models
from learncost.cli.command import main
from learncost.cost_models.formula import formulas, priced, value
from learncost.ir.polynomial import Polynomial
from learncost.layers.active import parameters
from learncost.layers.layer import shipped_layer
from learncost.models.configuration import configure
from learncost.models.model import build

PETAFLOP_DAY = 10**15 * 86_400


def drawn(seed, multiple=None):
    """A random decoder; with `multiple`, heads as wide as the model and a network four times as wide."""
    chance = random.Random(seed)
    h, k, n, v, s, b = (chance.randint(2, 20) for _ in range(6))
    d = h * k if multiple else chance.randint(5, 60)
    f = 4 * d if multiple else chance.randint(5, 60)
    sizes = {"hidden_size": d, "num_attention_heads": h, "head_dim": k, "intermediate_size": f}
    return {"d": d, "h": h, "k": k, "f": f, "n": n, "v": v, "s": s, "b": b}, {
        **sizes, "num_hidden_layers": n, "vocab_size": v, "seq_len": s, "batch_size": b
    }  # fmt: skip


def forward(book, sizes, procedure="bp"):
    """FLOPs of the operations of the forward pass by name, and of the whole step."""
    ledger = lc.cost("decoder", procedure, book, by="equation", **sizes)
    return {r.line: r.flops for r in ledger.rows if r.macro_operation == "forward"}, ledger.total.flops


@pytest.mark.parametrize("seed", range(4))
def test_kaplan(seed):
    """Table 1, 'FLOPs per token', its rows in its order; and C = 6 N with N = 2 d_model n_layer (2 d_attn + d_ff)."""
    x, sizes = drawn(seed)
    tokens, attn = x["b"] * x["s"], x["h"] * x["k"]
    d_model, d_ff, n_layer, n_ctx, n_vocab = x["d"], x["f"], x["n"], x["s"], x["v"]
    table = {
        "Embed": 4 * d_model,
        "QKV": 2 * n_layer * d_model * 3 * attn,
        "Mask": 2 * n_layer * n_ctx * attn,
        "Project": 2 * n_layer * attn * d_model,
        "Feedforward": 2 * n_layer * 2 * d_model * d_ff,
        "De-embed": 2 * d_model * n_vocab,
    }
    rows, step_flops = forward("kaplan-table-1", sizes)
    assert rows == {name: flops * tokens for name, flops in table.items()}
    assert step_flops == 3 * sum(table.values()) * tokens
    N = 2 * d_model * n_layer * (2 * attn + d_ff)
    rows, step_flops = forward("kaplan", sizes)
    assert sum(rows.values()) == 2 * N * tokens
    assert step_flops == 6 * N * tokens


def test_kaplan_says_that_gpt2_xl_has_one_and_a_half_billion_parameters():
    """Section 3: 'N = 1.5B' for 48 layers of width 1600; in the standard shape N = 12 n_layer d_model^2, (2.1)."""
    per_token = Fraction(lc.cost("gpt2-xl", price_book="kaplan", seq_len=1024).total.flops, 1024)
    assert per_token == 6 * 12 * 48 * 1600**2
    assert round(per_token / 6, -8) == 15 * 10**8


@pytest.mark.parametrize("seed", range(4))
def test_chinchilla(seed):
    """Appendix F, line by line; the total is embeddings + layers * (attention + dense block) + logits, three times."""
    x, sizes = drawn(seed)
    seq_len, d_model, key_size, num_heads, ffw, vocab, layers = (x[name] for name in "sdkhfvn")
    attention = {
        "Key, query and value projections": 2 * 3 * seq_len * d_model * (key_size * num_heads),
        "Key @ query logits": 2 * seq_len * seq_len * (key_size * num_heads),
        "Softmax": 3 * num_heads * seq_len * seq_len,
        "Softmax @ query reductions": 2 * seq_len * seq_len * (key_size * num_heads),
        "Final linear": 2 * seq_len * (key_size * num_heads) * d_model,
        "Dense block": 2 * seq_len * (d_model * ffw + d_model * ffw),
    }
    ends = {"Embeddings": 2 * seq_len * vocab * d_model, "Final logits": 2 * seq_len * d_model * vocab}
    rows, step_flops = forward("chinchilla", sizes)
    expected = {name: layers * flops for name, flops in attention.items()} | ends
    assert rows == {name: x["b"] * flops for name, flops in expected.items()}
    assert step_flops == 3 * sum(rows.values())
    softmax = [
        r for r in lc.cost("decoder", price_book="chinchilla", by="equation", **sizes).rows if r.line == "Softmax"
    ]
    assert all(row.maccs == 0 for row in softmax)


# Hoffmann et al. 2022, table A4: parameters, layers, d_model, ffw_size, heads, k/q size, FLOPs over 6 N D.
A4 = [
    ("73M", 10, 640, 2560, 10, 64, 1.03),
    ("305M", 20, 1024, 4096, 16, 64, 1.10),
    ("552M", 24, 1280, 5120, 10, 128, 1.08),
    ("1.1B", 26, 1792, 7168, 14, 128, 1.04),
    ("1.6B", 28, 2048, 8192, 16, 128, 1.03),
    ("6.8B", 40, 3584, 14336, 28, 128, 0.99),
]


@pytest.mark.parametrize(("named", "layers", "d", "ffw", "heads", "k", "ratio"), A4)
def test_chinchilla_table_a4(named, layers, d, ffw, heads, k, ratio):
    """The ratios to 6 N D at 2048 tokens, without embeddings and logits; N with the rows and relative positions."""
    vocab, tokens = 32_000, 2048
    parameters = 13 * layers * d * d + vocab * d
    assert float(named[:-1]) == pytest.approx(parameters / {"M": 1e6, "B": 1e9}[named[-1]], rel=0.04)
    sizes = {"hidden_size": d, "num_hidden_layers": layers, "intermediate_size": ffw, "vocab_size": vocab}
    sizes |= {"num_attention_heads": heads, "head_dim": k, "seq_len": tokens}
    flops_by_book = {
        book: lc.cost("decoder", price_book=book, **sizes).total.flops for book in formulas() if book[0] == "c"
    }
    assert round(flops_by_book["chinchilla-table-a4"] / (6 * parameters * tokens), 2) == ratio
    ends = 3 * 2 * 2 * tokens * vocab * d
    assert flops_by_book["chinchilla"] - flops_by_book["chinchilla-table-a4"] == ends


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("model", ["decoder", "encoder"])
def test_megatron(seed, model):
    """Equation (3): F = 96 B s l h^2 (1 + s/6h + V/16lh) with every layer's forward pass run again."""
    x, sizes = drawn(seed, multiple=4)
    B, s, l, h, V = (x[name] for name in "bsndv")  # noqa: E741
    recomputed = 96 * B * s * l * h**2 * (1 + Fraction(s, 6 * h) + Fraction(V, 16 * l * h))
    assert lc.cost(model, "recompute", "megatron", **sizes).total.flops == recomputed
    plain = recomputed - (24 * B * s * h**2 + 4 * B * s**2 * h) * l  # a layer's forward pass, the appendix
    assert lc.cost(model, "bp", "megatron", **sizes).total.flops == plain
    assert plain == 72 * B * s * l * h**2 * (1 + Fraction(s, 6 * h) + Fraction(V, 12 * l * h))
    assert plain == lc.cost(model, "bp", "matmul", **sizes).total.flops


def test_megatron_trains_gpt3_in_the_days_that_it_says():
    """Section 5.1: 300 billion tokens, 1024 A100s at 140 teraFLOP/s: 34 days by 8 T P / n X, as which (3) is taken."""
    flops = lc.cost("gpt3-175b", "recompute", "megatron", seq_len=2048, vocab_size=51200).total.flops
    assert flops == pytest.approx(8 * 175e9 * 2048, rel=0.03)
    seconds = 300e9 / (1024 * 140e12)
    assert round(8 * 175e9 * seconds / 86_400) == 34
    assert flops / 2048 * seconds / 86_400 == pytest.approx(34, rel=0.03)


def test_nanogpt():
    """transformer_sizing.ipynb, GPT-2 of 124 million at 1024 tokens: the printed column of FLOPs."""
    ledger = lc.cost("gpt2", price_book="nanogpt", by="equation")
    rows = {row.line: Fraction(row.flops, row.repeat) for row in ledger.rows if row.macro_operation == "forward"}
    assert rows == {
        "attention/kqv": 3_623_878_656,
        "attention/scores": 1_610_612_736,
        "attention/reduce": 1_610_612_736,
        "attention/proj": 1_207_959_552,
        "mlp/ffw1": 4_831_838_208,
        "mlp/ffw2": 4_831_838_208,
        "dense": 79_047_426_048,
    }
    assert ledger.macro_operations["forward"][1].flops == 291_648_307_200
    assert ledger.macro_operations["backward"][1].flops == 583_296_614_400
    assert ledger.total.flops == 874_944_921_600
    matmul = lc.cost("gpt2", price_book="matmul")
    assert (matmul.macro_operations["forward"][1].flops, matmul.total.flops) == (291_648_307_200, 874_944_921_600)


def test_nanogpt_counts_parameters_without_biases():
    """Neither its layers nor its norms have any: 124,337,664."""
    biases = 12 * (4 * 768 + 3072 + 768 + 2 * 768) + 768
    assert lc.cost("gpt2", seq_len=8).parameters - biases == 124_337_664


def test_palm_as_nanogpt_prints_it():
    """The notebook's 875,062,886,400: 6 N + 12 L H Q T at 1024 tokens, its N without biases and without positions."""
    biases_and_positions = 12 * (4 * 768 + 3072 + 768 + 2 * 768) + 768 + 1024 * 768
    flops = lc.cost("gpt2", price_book="palm").total.flops
    assert flops - 6 * biases_and_positions * 1024 == 875_062_886_400


def test_palm_utilization():
    """Appendix B: PaLM 540B, 238.3 thousand tokens a second on 6144 chips of 275 teraFLOP/s is 46.2 percent."""
    letters = {"N": 540_350_000_000, "A": 118 * 48 * 256, "T": 2048, "D": 1}
    counts = {letter: Polynomial.of((), number) for letter, number in letters.items()}
    per_token = 3 * sum(value(row.flops, counts).at({}) for row in formulas()["palm"].rows)
    assert per_token == 6 * letters["N"] + 12 * 118 * 48 * 256 * 2048
    assert round(100 * per_token * 238.3e3 / (6144 * 275e12), 1) == 46.2


# Brown et al. 2020, table D.1: parameters in millions, FLOPs of 300 billion tokens, petaflop/s-days.
D1 = [
    ("gpt3-small", {}, 125, 2.25e20, 2.60),
    ("gpt3-medium", {}, 356, 6.41e20, 7.42),
    ("gpt3-large", {}, 760, 1.37e21, 15.8),
    ("gpt3-xl", {}, 1_320, 2.38e21, 27.5),
    ("gpt3-2.7b", {}, 2_650, 4.77e21, 55.2),
    ("gpt3-6.7b", {}, 6_660, 1.20e22, 139),
    ("gpt3-13b", {}, 12_850, 2.31e22, 268),
    ("gpt3-175b", {}, 174_600, 3.14e23, 3640),
]


@pytest.mark.parametrize(("model", "sizes", "millions", "flops", "days"), D1)
def test_training_of_gpt3(model, sizes, millions, flops, days):
    """6 N D within the table's own rounding: parameters to three or four digits, and from these the rest to three."""
    ledger = lc.cost(model, price_book="gpt3", seq_len=2048, **sizes)
    assert ledger.total.flops == 6 * ledger.parameters * 2048
    digits = 4 if millions > 10**4 else 3
    assert float(f"{ledger.parameters / 10**6:.{digits}g}") == millions
    training_flops = 6 * millions * 10**6 * 300 * 10**9
    assert float(f"{training_flops:.3g}") == flops
    assert training_flops / PETAFLOP_DAY == pytest.approx(days, rel=3e-3)
    assert ledger.total.flops * 300 * 10**9 / 2048 == pytest.approx(flops, rel=6e-3)


# What a formula is not about.


@pytest.mark.parametrize(
    ("book", "model", "more", "message"),
    [
        ("megatron", "transformer-base", (), "one stack of blocks.*has an encoder and a decoder"),
        ("palm", "transformer-base", (), "one stack"),
        ("megatron", "bert-base", (), "with their head: bert-base has none"),
        ("megatron", "bert-base", (), "; --architecture BertForMaskedLM has one"),
        ("megatron", "gpt3-xl", ("--n-head", "24"), "as wide as the model.*gpt3-xl has a width of 2048, heads of 3072"),
        ("kaplan", "gpt2", ("--procedure", "pepita"), "does not apply to pepita"),
        ("gpt3", "gpt2", ("--train", "head"), "gpt3 applies only to models whose weights are all trained"),
        ("palm", "gpt2", ("--lora", "attention"), "palm applies only to models whose weights are all trained"),
        ("palm", "gpt2", ("--procedure", "recompute"), "palm is a formula of bp and does not apply to recompute"),
    ],
)
def test_refusals(book, model, more, message, capsys):
    assert main(["cost", model, "--price-book", book, "--seq-len", "8", *more]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert len(err.splitlines()) == 1
    assert re.search(message, err), err


def test_images_have_no_head_over_words():
    with pytest.raises(lc.InputError, match=r"language models with their head: vit-b-16 has none$"):
        lc.cost("vit-b-16", price_book="megatron")


def test_lines_have_no_price_in_a_formula():
    with pytest.raises(lc.InputError, match="price book palm prices complete models"):
        lc.price(lc.layer("a(X) -> Y\n  Y[B] = X[B] X[B]"), {"B": 2}, "palm")


def mixture():
    """Mixtral in small: 4 experts of which a token meets 2."""
    keys = test_modern_models.MIXTRAL.format(head="head.W"), test_modern_models.attention()
    table = test_modern_models.model(*keys).table
    return replace(build(configure("gpt2")), table=table, sizes=test_modern_models.sizes_of("mixtral"))


def test_a_mixture_of_experts_has_the_parameters_that_a_token_meets():
    """Table D.1 speaks of active parameters: two of four experts of three matrices in two blocks are left aside."""
    model = mixture()
    axes = {**model.sizes, "B": 1, "M": 1}
    d, f = axes["d"], axes["f"]
    rows = priced(model, formulas()["gpt3"].book, "bp")
    met = parameters(model.table).at(axes) - 2 * 2 * 3 * d * f
    assert sum(row.flops.at(axes) for row in rows) == 6 * met
    for book in set(formulas()) - {"gpt3"}:
        with pytest.raises(lc.InputError, match="a formula of dense models: gpt2 has experts"):
            priced(model, formulas()[book].book, "bp")


@pytest.mark.parametrize("book", ["kaplan", "gpt3", "palm"])
def test_parameters_that_blocks_share_are_no_measure_of_their_work(book):
    """ALBERT's twelve layers run one block's weights twelve times."""
    model = configure("-", stdin=io.StringIO('{"model_type": "albert"}'))
    with pytest.raises(lc.InputError, match="has blocks that share their weights"):
        lc.cost(model, price_book=book, seq_len=8)


@pytest.mark.parametrize("family", ["bloom", "gpt_neox", "gptj", "opt"])
def test_standard_blocks_of_other_families(family):
    """Two norms or one, in parallel or not, rotary or ALiBi: the matrices are Megatron's, and so is the count."""
    model = configure("-", stdin=io.StringIO(f'{{"model_type": "{family}"}}'))
    flops_by_book = {
        book: lc.cost(model, price_book=book, seq_len=64).total.flops for book in ("megatron", "matmul", "nanogpt")
    }
    assert flops_by_book["megatron"] == flops_by_book["matmul"] == flops_by_book["nanogpt"]


def test_palm_wants_heads_of_one_width():
    """Latent attention has keys wider than its values, and L H Q no meaning; the parameters have one."""
    text = "one(X) -> Y\n  Y[B M d] = latent_attention(X, X; attn, N = M')\n"
    table = lc.layer(text, {"latent_attention": shipped_layer("latent_attention")}).table
    model = replace(build(configure("gpt2")), table=table)
    assert priced(model, formulas()["gpt3"].book, "bp")
    with pytest.raises(lc.InputError, match="gpt2 has keys and values of different widths"):
        priced(model, formulas()["palm"].book, "bp")


@pytest.mark.parametrize("book", sorted(formulas()))
@pytest.mark.parametrize("by", ["layer", "macro-operation", "equation", "kind"])
def test_every_way_to_cut_a_formula_sums_to_its_total(book, by):
    ledger = lc.cost("gpt2", price_book=book, by=by, seq_len=64)
    assert sum(row.flops for row in ledger.rows) == ledger.total.flops
    assert sum(row.maccs for row in ledger.rows) == ledger.total.maccs
    assert all(amount.flops % 3 == 0 for amount in (ledger.total,))
    assert "0 B" not in str(ledger)
    assert book in str(ledger)


class Grouped(nn.Module):
    """Two blocks of grouped keys and values, of `groups` heads; positions are a parameter, or rows of a table."""

    def __init__(self, groups, positions, fused=False):
        super().__init__()
        self.groups, self.positions, self.fused = groups, positions, fused
        self.wte, self.head = nn.Embedding(50, 32), nn.Linear(32, 50, bias=False)
        if positions == "table":
            self.wpe = nn.Embedding(16, 32)
        elif positions == "parameter":
            self.wpe = nn.Parameter(torch.zeros(1, 16, 32))
        self.parts = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(32),
                    "q": nn.Linear(32, 32),
                    "k": nn.Linear(32, 8 * groups),
                    "v": nn.Linear(32, 8 * groups),
                    "o": nn.Linear(32, 32),
                    "up": nn.Linear(32, 96),
                    "down": nn.Linear(96, 32),
                }
            )
            for _ in range(2)
        )

    def attend(self, q, k, v):
        if self.fused:
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        k, v = (each.repeat_interleave(4 // self.groups, 1) for each in (k, v))
        return (q @ k.transpose(-2, -1) * 8**-0.5).softmax(-1) @ v

    def forward(self, tokens):
        b, m = tokens.shape
        x = self.wte(tokens)
        if self.positions == "table":
            x = x + self.wpe(torch.arange(m))
        elif self.positions == "parameter":
            x = x + self.wpe[:, :m]
        for part in self.parts:
            y = part["norm"](x)
            q, k, v = (part[name](y).view(b, m, -1, 8).transpose(1, 2) for name in "qkv")
            x = x + part["o"](self.attend(q, k, v).transpose(1, 2).reshape(b, m, 32))
            x = x + part["down"](torch.relu(part["up"](x)))
        return self.head(x)


@pytest.mark.slow  # by formulas of a module with names, the next test
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("positions", ["none", "table", "parameter"])
def test_utilization_of_a_module_with_grouped_queries(groups, positions, fused):
    """palm is 6 N + 12 L H Q T a token, whatever keys and values there are; nanoGPT's N is without positions."""
    module = Grouped(groups, positions, fused)
    layer = lc.from_module(module, {"tokens": "int B M=16"})
    per_token = 6 * sum(each.numel() for each in module.parameters()) + 12 * 2 * 4 * 8 * 16
    assert lc.cost(layer, price_book="palm", B=3, M=16).total.flops == per_token * 3 * 16
    places = 0 if positions == "none" else 16 * 32
    assert lc.cost(layer, price_book="nanogpt-mfu", B=3, M=16).total.flops == (per_token - 6 * places) * 3 * 16


def test_utilization_as_nanogpt_prints_it():
    """estimate_mfu() of GPT-2 without biases at 1,024 tokens: 6 N + 12 L H Q T is the notebook's 875,062,886,400."""
    biases = 12 * (4 * 768 + 3072 + 768 + 2 * 768) + 768
    assert lc.cost("gpt2", price_book="nanogpt-mfu").total.flops - 6 * biases * 1024 == 875_062_886_400
    (case,) = next(rule for rule in lc.rules("gpt2").rules if rule.thumb.key == "nanogpt_mfu").cases
    assert case.rule - 6 * biases * 1024 == 875_062_886_400
    assert sum(part.amount for part in case.parts) == case.rule - case.exact
    assert lc.conventions("gpt2")["nanogpt-mfu"].counts.whole.flops == case.rule


@pytest.mark.parametrize("model", ["llama-3-8b", "bloom-560m", "qwen2.5-7b"])
def test_without_learned_positions_it_is_palm(model):
    books = [lc.cost(model, price_book=book, seq_len=128).total.flops for book in ("palm", "nanogpt-mfu")]
    assert books[0] == books[1]


class Attends(nn.Module):
    """Attention with fewer heads of keys and values than of queries, and a network."""

    def __init__(self):
        super().__init__()
        self.projected, self.out = nn.Linear(24, 24 + 2 * 8, bias=False), nn.Linear(24, 24, bias=False)

    def forward(self, x):
        split = self.projected(x).split([24, 8, 8], -1)
        query, key, value = (part.unflatten(-1, (-1, 4)).transpose(1, 2) for part in split)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


def test_formulas_price_a_module_whose_axes_have_their_names():
    """6 N + 12 L H Q T a token: 24 x 40 + 24 x 24 parameters, heads of 24 together, 9 tokens in each of 5 sequences."""
    named = lc.from_module(Attends(), {"x": "float B M 24"})
    assert lc.cost(named, price_book="palm", B=5, M=9).total.flops == (6 * 1536 + 12 * 24 * 9) * 5 * 9
    for given, sizes in (({"x": "float B T 24"}, {"T": 9}), ((torch.zeros(5, 9, 24),), {})):
        other = lc.from_module(Attends(), given)
        for book in formulas():
            with pytest.raises(lc.InputError, match=r"has no axes named B and M: name its sequences and tokens so"):
                lc.cost(other, price_book=book, **sizes)
        assert "has no axes named B and M" in lc.conventions(other, **sizes)["palm"].refused
    with pytest.raises(lc.InputError, match="Linear has no attention"):
        lc.cost(lc.from_module(nn.Linear(3, 4), {"input": "float B M 3"}), price_book="palm", M=9)

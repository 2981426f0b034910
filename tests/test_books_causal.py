"""Books of causal attention: against masks that are counted, torch's count of fused kernels, printed formulas."""

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.ir.polynomial import Polynomial
from learncost.layers.layer import shipped_layer

SIZES = {"B": 2, "M": 7, "d": 24, "h": 3, "g": 2, "k": 4, "w": 5}
HEADS = {"attention": 3, "grouped_attention": 6}  # those of the queries; grouped ones share 3 of the keys
CAUSAL, STRICT = " where M' <= M", " where M' < M"
WINDOW, STRICT_WINDOW = " where M' <= M < M' + 3", " where M' < M < M' + w"


def products(book, name="attention", where=CAUSAL):
    """FLOPs of the products of scores and values: forward and backward."""
    layer = lc.layer(f"one(X) -> Y\n  Y[B M d] = {name}(X, X, X; attn, N = M'){where}\n", {name: shipped_layer(name)})
    price = lc.price(lc.derive(layer).step, SIZES, book)
    parts = {phase: part for (kind, phase), part in price.by("kind", "macro_operation").items() if kind == "attention"}
    return parts["forward"].flops, parts["backward"].flops


def volume(pairs, name):
    """Two FLOPs for every pair of positions, entry of a head, head and sequence."""
    return 2 * pairs * SIZES["k"] * HEADS[name] * SIZES["B"]


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize(
    ("book", "where", "mask"),
    [
        ("matmul", CAUSAL, np.ones((7, 7))),
        ("causal-half", CAUSAL, np.ones((7, 7)) / 2),
        ("causal-exact", CAUSAL, np.tril(np.ones((7, 7)))),
        ("causal-exact", STRICT, np.tril(np.ones((7, 7)), -1)),
        ("causal-exact", WINDOW, np.tril(np.ones((7, 7))) - np.tril(np.ones((7, 7)), -3)),
        ("causal-exact", STRICT_WINDOW, np.tril(np.ones((7, 7)), -1) - np.tril(np.ones((7, 7)), -5)),
        ("causal-exact", STRICT_WINDOW.replace("+ w", "+ 9"), np.tril(np.ones((7, 7)), -1)),
        ("causal-exact", "", np.ones((7, 7))),
        ("causal-half", "", np.ones((7, 7))),
    ],
)
def test_pairs_of_a_mask(name, book, where, mask):
    """Two products forward, four backward, each over the pairs that the mask holds."""
    product = volume(mask.sum(), name)
    assert products(book, name, where) == (2 * product, 4 * product)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("where", [CAUSAL, ""])
def test_fused_kernels_as_torch_counts_them(name, where):
    """The operators that attention runs as on CUDA, on meta: FlopCounterMode counts the same formulas there."""
    aten = torch.ops.aten
    q, k, v = (torch.empty(SIZES["B"], heads, 7, 4, device="meta") for heads in (HEADS[name], 3, 3))
    if name == "grouped_attention":  # repeated before the kernel, as transformers does
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    with FlopCounterMode(display=False) as forward:
        out, logsumexp, *rest = aten._scaled_dot_product_flash_attention(q, k, v, 0.0, bool(where))
    with FlopCounterMode(display=False) as backward:
        aten._scaled_dot_product_flash_attention_backward(
            out, q, k, v, out, logsumexp, None, None, 7, 7, 0.0, bool(where), rest[-3], rest[-2]
        )
    counted = forward.get_total_flops(), backward.get_total_flops()
    assert products("torch-flop-counter", name, where) == counted


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("where", [CAUSAL, ""])
def test_flash_attention_as_its_benchmark_counts(name, where):
    """benchmark_flash_attention.py: 4 b s^2 h d, halved where causal; backward 2.5 times forward (issue 1525)."""
    forward = 4 * SIZES["B"] * 7**2 * HEADS[name] * SIZES["k"] // (2 if where else 1)
    assert products("flash", name, where) == (forward, forward * 5 // 2)


def test_a_recomputed_forward_pass_has_no_sixth_product():
    """Scores again belong to the backward pass: forward 2, forward again 2, backward 5 products, each in half."""
    ledger = lc.cost("gpt2", "recompute", "flash", seq_len=64, by="kind")
    product = 12 * 64 * 64 * 768
    rows = {row.macro_operation: row.flops for row in ledger.rows if row.kind == "attention"}
    assert rows == {"forward": 2 * product, "recomputation": 2 * product, "backward": 5 * product}


@pytest.mark.parametrize("book", ["causal-half", "causal-exact", "flash", "torch-flop-counter"])
def test_what_a_mask_does_not_hide_is_charged_in_full(book):
    """Cross-attention, encoders, latent attention's two parts; PEPITA, which has no backward pass."""
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "vocab_size": 10, "seq_len": 6}
    two_sided = {**sizes, "target_len": 4, "n_enc": 1, "n_dec": 1}
    pairs = {"causal-half": 8, "causal-exact": 10, "flash": 8, "torch-flop-counter": 16}[book]
    ledger = lc.cost("encoder-decoder", price_book=book, by="kind", **two_sided)
    (maccs,) = [r.maccs for r in ledger.rows if (r.kind, r.macro_operation) == ("attention", "forward")]
    assert maccs == 2 * 8 * (6 * 6 + pairs + 4 * 6)
    encoder = {"num_hidden_layers": 2, **sizes}
    plain, masked = (lc.cost("encoder", "pepita", name, **encoder).total for name in ("matmul", book))
    assert plain == masked


def test_latent_attention_has_two_products_of_scores_again():
    text = "one(X) -> Y\n  Y[B M d] = latent_attention(X, X; attn, N = M')\n"
    step = lc.derive(lc.layer(text, {"latent_attention": shipped_layer("latent_attention")})).step
    sizes = {**SIZES, "a": 5, "c": 6, "r": 2, "w": 9}
    full, again = (lc.price(step, sizes, book).maccs for book in ("matmul", "torch-flop-counter"))
    assert again - full == SIZES["B"] * SIZES["h"] * 7 * 7 * (4 + 2)


def test_halves_are_whole_numbers_or_refused():
    """At 7 positions half of one product of one head is 49/2 MACCs a column; two columns, and the FLOPs, are whole."""
    layer = lc.layer("one(Q K) -> R\n  R[M M'] = Q[M k] K[M' k] where M' <= M\n")
    assert lc.price(layer, {"M": 7, "k": 1}, "causal-half").flops == 49
    assert lc.price(layer, {"M": 7, "k": 2}, "causal-half").maccs == 49
    with pytest.raises(lc.InputError, match="not a whole number"):
        _ = lc.price(layer, {"M": 7, "k": 1}, "causal-half").maccs
    exact = lc.price(layer, {"k": 1}, "causal-exact").maccs
    assert str(exact) == "1/2 M^2 + 1/2 M"
    assert [exact.at({"M": M}) for M in (1, 2, 7)] == [1, 3, 28]
    np.testing.assert_array_equal(exact.at({"M": np.array([1.0, 2.0, 7.0])}), [1, 3, 28])
    assert isinstance(exact, Polynomial)

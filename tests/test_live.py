import numpy as np
import pytest

import learncost as lc
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.program import lifetimes
from learncost.program.calls import AS_WRITTEN, IN_KERNELS
from unrolled import unrolled

GPT2 = """gpt2(tokens positions targets share; wte wpe) -> loss
  E[B M d] = wte[v=tokens[B M] d]
  X[B M d] = E[B M d] + wpe[p=positions[M] d]
  repeat n_layer carry X:
    H[B M d] = norm(X; ln_1)
    A[B M d] = attention(H, H, H; attn, N = M') where M' <= M
    X[B M d] = X[B M d] + A[B M d]
    G[B M d] = norm(X; ln_2)
    F[B M d] = feed_forward(G; mlp)
    X[B M d] = X[B M d] + F[B M d]
  Y[B M d] = norm(X; ln_f)
  L[B M v] = Y[B M d] wte[v d]
  P[B M v] = log_softmax[v](L[B M v])
  T[B M] = P[B M v=targets[B M]]
  loss[] = T[B M] share[B M]"""


def test_a_block_of_gpt2_keeps_what_korthikanti_counts_without_the_dropout_masks():
    # Korthikanti et al. 2022, section 4: 34sbh + 5as^2b bytes in 16 bits, of which 2sbh + 3as^2b are dropout's (two
    # masks of a byte on the branches; a mask of a byte and the dropped scores on the attention). What remains is
    # kept here too: the inputs of both norms (here: their normalised values, 2 x 2sbh), the input of Q, K and V (2sbh),
    # Q, K, V (6sbh), the softmax (2as^2b), the input of W_O (2sbh), the input of W_1 (2sbh), of GELU and of W_2
    # (8sbh each). Besides, one standard deviation a token and norm, which that paper leaves out as small.
    b, s, a, k = 2, 5, 3, 4
    h = a * k
    sizes = {"B": b, "M": s, "d": h, "h": a, "k": k, "f": 4 * h, "v": 11, "p": 8, "n_layer": 7}
    live = lc.live(lc.derive(lc.layer(GPT2)), sizes, "fp16")
    block = [array for array in live.saved if array.axes[0] == "n_layer"]
    deviations = [array for array in block if array.axes == ("n_layer", "B", "M")]
    assert sum(deviation.bytes for deviation in deviations) == 7 * 2 * 2 * s * b
    rest = sum(array.bytes for array in block) - sum(deviation.bytes for deviation in deviations)
    assert rest == 7 * (32 * s * b * h + 2 * a * s * s * b)
    # Outside the blocks: the last norm (its value and deviation), the head's input, the logarithms of probabilities
    # and the target's, and the inputs that the scatters and the loss read again.
    outside = {array.name: array.shape for array in live.saved if array not in block}
    assert outside == {
        "tokens": (b, s), "positions": (s,), "targets": (b, s), "share": (b, s),
        "ln_f.Z": (b, s, h), "ln_f.Z:g": (b, s), "Y": (b, s, h), "P": (b, s, 11), "T": (b, s),
    }  # fmt: skip
    assert live.saved_bytes == sum(array.bytes for array in live.saved)
    assert all(isinstance(array.bytes, int) for array in live.saved)


def test_an_array_lives_from_its_line_to_its_last_reader():
    chain = lc.layer("chain(X; W) -> Y\n A[b c] = X[b d] W[d c]\n D[b c] = exp(A[b c])\n Y[b c] = tanh(D[b c])")
    sizes = {"b": 2, "c": 3, "d": 5}
    inputs_elements, value = 2 * 5 + 5 * 3, 2 * 3
    forward = lc.live(chain.table, sizes, "fp32")
    assert [m.bytes for m in forward.curve] == [4 * (inputs_elements + n * value) for n in (1, 2, 2)]
    assert forward.saved == ()
    # With the backward pass D and Y are kept (exp and tanh are derived from their results), X for the weight; dY is
    # there from the start, as an input.
    step = lc.live(lc.derive(chain), sizes, "fp32")
    assert {array.name for array in step.saved} == {"X", "D", "Y"}
    names = [m.line for m in step.curve]
    alive = dict(zip(names, (m.bytes for m in step.curve), strict=True))
    assert names == ["A", "D", "Y", "dD", "dA", "dX", "dW"]
    assert alive["A"] == 4 * (inputs_elements + 2 * value)  # dY, A
    assert alive["Y"] == 4 * (inputs_elements + 3 * value)  # dY, D, Y; A is gone
    assert alive["dX"] == 4 * (inputs_elements + 3 * value + 10)  # dY, Y (an output), dA, dX
    assert step.peak == max(alive.values())
    assert alive[step.peak_line] == step.peak
    assert sum(live_array.bytes for live_array in step.live_at_peak) == step.peak


def test_a_sum_of_one_term_is_the_same_array():
    step = lc.live(lc.derive(lc.layer("add(X Z) -> Y\n Y[b] = X[b] + Z[b]")), {"b": 10}, "fp64")
    assert [m.line for m in step.curve] == ["Y", "dX", "dZ"]
    assert [m.bytes for m in step.curve] == [80 * 4] * 3  # X, Z, dY, Y; both gradients are dY
    minus = lc.live(lc.derive(lc.layer("add(X Z) -> Y\n Y[b] = X[b] - Z[b]")), {"b": 10}, "fp64")
    assert [m.bytes for m in minus.curve] == [80 * 4, 80 * 4, 80 * 5]


def test_stacks_count_every_turn_and_a_body_once():
    text = "deep(X; ) -> X\n repeat n carry X:\n  S[b] = sigmoid(X[b])\n  X[b] = X[b] + S[b]"
    layer = lc.layer(text)
    single, many = (lc.live(lc.derive(layer), {"b": 10, "n": n}, "fp64") for n in (1, 5))
    assert {array.name for array in many.saved} == {"S*"}
    assert many.saved[0].shape == (5, 10)
    assert many.peak - single.peak == 4 * 80


def test_sizes_may_be_arrays_and_must_be_complete():
    layer = lc.layer("mlp(X; W) -> Y\n H[b f] = X[b d] W[d f]\n Y[b f] = gelu(H[b f])")
    lengths = np.arange(1, 6)
    many = lc.live(layer, {"b": lengths, "d": 3, "f": 4}, "bf16")
    each = [lc.live(layer, {"b": int(b), "d": 3, "f": 4}, "bf16") for b in lengths]
    np.testing.assert_array_equal(many.peak, [live.peak for live in each])
    np.testing.assert_array_equal(many.saved_bytes, [live.saved_bytes for live in each])
    with pytest.raises(lc.InputError, match="give d, f"):
        lc.live(layer, {"b": 1})
    with pytest.raises(lc.InputError, match="no data type is called 'fp12'"):
        lc.live(layer, {"b": 1, "d": 3, "f": 4}, "fp12")


UNROLLED = ("gpt2", "tinyllama-1.1b", "t5-small", "mixtral-8x7b", "vit-b-16")


def of_step(model, procedure="bp"):
    return without_gradients(step(model, procedure, "adamw", mode="paper"))


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("name", UNROLLED)
@pytest.mark.parametrize("layers", [1, 2, 9])
def test_blocks_in_a_repeat_take_what_they_take_one_by_one(name, layers):
    model = build(configure(name, {"num_hidden_layers": layers}))
    sizes = run_sizes(model, 2, None if name.startswith("vit") else 40, None)
    for rules, table_of in ((AS_WRITTEN, lambda model: lc.derive(model.table).step), (IN_KERNELS, of_step)):
        needs, oracle = (
            lc.live(table_of(model_built), sizes, "fp32", rules=rules) for model_built in (model, unrolled(model))
        )
        assert needs.peak == oracle.peak
        assert needs.saved_bytes == oracle.saved_bytes


@pytest.mark.parametrize(
    "plan", ["", "flash,fused,fused-update,chunked-loss", "recompute=block/3+all", "recompute=all"]
)
@pytest.mark.parametrize("procedure", ["bp", "pepita"])
def test_the_turns_that_are_walked_stand_for_all(plan, procedure, monkeypatch):
    model = build(configure("gpt2", {"num_hidden_layers": 15}))
    table = planned(of_step(model, procedure), plan)
    sizes = run_sizes(model, 7, 40, None)
    few = lc.live(table, sizes, "fp32", rules=IN_KERNELS)
    monkeypatch.setattr(lifetimes, "FEW", 10**6)
    every = lc.live(table, sizes, "fp32", rules=IN_KERNELS)
    assert (few.peak, few.peak_line, few.saved_bytes) == (every.peak, every.peak_line, every.saved_bytes)
    assert [moment.bytes for moment in few.curve] == [moment.bytes for moment in every.curve]

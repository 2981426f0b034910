"""A procedure of one's own: a file with a schedule, taken wherever a procedure is named."""

import numpy as np
import pytest

import learncost as lc
from learncost.models.model import build
from learncost.models.small import small
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import step
from learncost.verification.check import count_operations, finite_arrays, values_of
from learncost.verification.known import known
from learncost.verification.sample import small_sizes

FILE = "examples/procedures/skip-and-align.toml"
READS = "schedule = ['forward', 'backward reading F for weights, update"


def test_a_file_is_a_procedure():
    table = step(build(small("gpt2")), FILE, "adamw")
    sizes = small_sizes(table)
    assert count_operations("own", table, finite_arrays(table, sizes), sizes).passed
    assert lc.cost("gpt2", FILE, seq_len=8).total.flops == lc.cost("gpt2", "skip", seq_len=8).total.flops
    assert lc.compare("gpt2", procedures=f"bp,{FILE}", seq_len=8).procedures == ("bp", FILE)
    training = lc.Training("gpt2", FILE, n_layer=2, n_embd=8, n_head=2, vocab_size=10, learning_rate=0.01)
    tokens = np.arange(24).reshape(4, 6) % 10
    losses = [training.step(tokens) for _ in range(30)]
    assert losses[-1] < losses[0]


def test_with_the_weights_for_matrices_and_one_block_it_is_bp():
    model = build(small("gpt2"))
    own, bp = step(model, FILE), step(model, "bp")
    sizes = small_sizes(bp) | {"n_layer": 1}
    arrays = finite_arrays(bp, sizes)
    fixed = {name: arrays[own.values[name].of] for name in own.inputs if own.values[name].role == "projection"}
    found, expected = values_of(own, arrays | fixed, sizes), values_of(bp, arrays, sizes)
    assert fixed
    assert all(np.array_equal(found[f"d{name}"], expected[f"d{name}"]) for name in model.table.weights)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('schedule = ["backwards"]', "no move is called 'backwards'"),
        ('schedule = ["forward"]', "must end in update"),
        ('title = "nothing"', "needs a schedule"),
        ('passes = 3\nschedule = ["forward", "backward, update"]', "has the unknown key passes"),
        ("schedule = 3", "schedule must be a list of texts"),
        ("schedule", "is not a procedure file"),
        ('schedule = ["forward", "backward, stopped at home, update"]', "home"),
        ('schedule = ["forward", "backward, update by tangents"]', "cannot have backward and update by tangents"),
        ('schedule = ["forward", "backward, groups of 2, update"]', "has groups of NUMBER, which needs loss at blocks"),
        (
            'schedule = ["forward, tangents along linears", "backward, update"]',
            "needs update by tangents or given SIGNAL",
        ),
        (f"{READS}, G follows weights'] ", "it is F that follows weights, not G"),
        (f"{READS}, F follows weights']\nlines = ['F[_] = sign(W[_])']", "so that no line makes it"),
        (f"{READS}']\nlines = ['G[_] = sign(W[_])']", "for weights, F: they make G"),
        (
            f"{READS}']\nlines = ['F[_] = softmax[n](W[_])']",
            r"F\[_\] = softmax.*: a matrix must be computed entry by entry",
        ),
        (f"{READS}']\nlines = ['F[_] = W[_] D[d]']", "a matrix must be computed entry by entry"),
        ("schedule = ['forward', 'backward, update']\nlines = ['F[_] = sign(W[_])']", "does not read their results"),
        (
            "schedule = ['forward', 'backward, given error at blocks, given gradient at blocks, update']",
            "gives blocks two signals",
        ),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(tmp_path, text, message):
    path = tmp_path / "own.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(lc.InputError, match=message) as refusal:
        lc.cost("gpt2", str(path), seq_len=8)
    assert "\n" not in str(refusal.value)


def test_lines_may_have_numbers_and_are_no_fault_of_the_proof(tmp_path):
    """Signs of one size: what is read is never the weight, and what is given and stopped is proved nevertheless."""
    path, model = tmp_path / "own.toml", build(small("gpt2"))
    given = "schedule = ['forward', 'backward reading F for weights, given gradient at blocks, update']"
    path.write_text(f"{given}\nlines = ['S[_] = sign(W[_])', 'F[_] = S[_] 0.5[]']", encoding="utf-8")
    table = step(model, str(path))
    sizes = small_sizes(table)
    arrays = finite_arrays(table, sizes)
    values = values_of(table, arrays, sizes)
    assert np.array_equal(values["wte.F"], 0.5 * np.sign(arrays["wte"]))
    assert [check.passed for check in known(model, find_procedure(str(path)), "")] == [True]


@pytest.mark.parametrize("name", ["sign-concordant", "local-feedback"])
def test_a_way_of_a_paper_is_one_file(name):
    """Liao et al. 2016, uSF, and local losses with feedback alignment inside of a block: no code, and bp's cost."""
    file = f"examples/procedures/{name}.toml"
    model = build(small("gpt2"))
    table = step(model, file, "adamw")
    sizes = small_sizes(table)
    arrays = finite_arrays(table, sizes)
    assert count_operations(name, table, arrays, sizes).passed
    # Where the weights are their signs, or what is read is the weights, it is the procedure that it changes.
    plain = step(model, "bp" if name == "sign-concordant" else "local")
    given = {key: arrays[key] for key in arrays if key in (*plain.inputs, *plain.weights)}
    given |= {key: np.sign(given[key]) for key in model.table.weights if name == "sign-concordant"}
    own = step(model, file)
    read = {key: given[own.values[key].of] for key in own.inputs if key.endswith(".F")}
    expected = values_of(plain, given, sizes)
    found = values_of(own, {**given, **read}, sizes)
    assert bool(read) == (name == "local-feedback")
    assert all(np.array_equal(found[f"d{key}"], expected[f"d{key}"]) for key in model.table.weights)


def test_a_file_that_is_not_there_is_refused():
    with pytest.raises(lc.InputError, match="is not a procedure file"):
        lc.cost("gpt2", "nowhere.toml", seq_len=8)


def test_targets_are_looked_up_where_errors_are_multiplied():
    """Frenkel et al. 2021: bp's gradients where the rows are exact, and no product over the classes."""
    file = "examples/procedures/target-projection.toml"
    model = build(small("gpt2"))
    table = step(model, file, "adamw")
    sizes = small_sizes(table)
    assert count_operations("targets", table, finite_arrays(table, sizes), sizes).passed
    checks = list(known(model, find_procedure(file), file))
    compared = [f"gradients with bp's where {what} exact" for what in ("what is given is", "the matrices are")]
    assert [check.compared for check in checks] == compared
    assert all(check.passed for check in checks)
    projected, looked_up = (lc.price(step(model, name), sizes, lc.book("matmul")) for name in ("dfa-linear", file))
    heads, wide, inner = sizes["h"] * sizes["k"], sizes["d"], sizes["f"]
    of_blocks = sizes["n_layer"] * (3 * heads + 2 * wide + inner)
    classes = sizes["B"] * sizes["M"] * sizes["v"]
    assert projected.maccs - looked_up.maccs == classes * (of_blocks + wide)  # the embedding is given it, too


def test_of_several_losses_none_has_the_scores():
    layer, sizes = "examples/layers/forward_forward.table", {"B": 2, "d": 3, "f": 4, "e": 5}
    with pytest.raises(lc.InputError, match=r"H2 of .* is not among them"):
        lc.memory(layer, procedure="dfa-linear", engine="graph", **sizes)
    assert lc.cost(layer, "forward-gradient-activities", **sizes).total.flops


def test_a_loss_that_looks_nothing_up_has_no_targets():
    with pytest.raises(lc.InputError, match=r"needs class targets that the loss looks up, which .* does not have"):
        lc.cost("benchmarks/autoencoder.table", "examples/procedures/target-projection.toml", B=8)

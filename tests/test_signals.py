"""Procedures that stop gradients, or are given something else in their place: each held to what it is to equal."""

from dataclasses import replace

import numpy as np
import pytest

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.ir.loop import Loop
from learncost.ir.polynomial import shape_of
from learncost.models.adaptation import adaptation, adapted
from learncost.models.model import build, from_layer
from learncost.models.small import small
from learncost.procedures.places import blocks
from learncost.procedures.procedure import LEARNING
from learncost.procedures.step import step
from learncost.verification.check import count_operations, finite_arrays, values_of
from learncost.verification.known import known
from learncost.verification.sample import small_sizes

FAMILIES = ["gpt2", "llama", "bert", "vit", "mixtral", "albert", "gemma2", "bart"]
CUTTING = ["skip", "skip-blocks", "skip-branches", "skip-out", "dfa", "dfa-linear"]


def arrays_of(table, sizes, arrays):
    """These arrays, and random ones for what else the table reads."""
    draw = np.random.default_rng(7)
    more = [name for name in table.inputs if name not in arrays]
    return arrays | {name: draw.standard_normal(shape_of(table.axes[name], sizes)) for name in more}


def gradients(model, procedure, sizes, arrays):
    table = step(model, procedure)
    values = values_of(table, arrays_of(table, sizes, arrays), sizes)
    return {name: values[f"d{name}"] for name in model.table.weights if f"d{name}" in values}


def setting(model, **more):
    sizes = small_sizes(model.table) | more
    return sizes, finite_arrays(model.table, sizes) | {"dloss": np.asarray(1.0)}


@pytest.mark.one_in(every=17)
@pytest.mark.parametrize("procedure", CUTTING)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_count_is_that_of_counting_arrays(family, procedure):
    table = step(build(small(family)), procedure, "sgd")
    sizes = small_sizes(table)
    assert count_operations(family, table, finite_arrays(table, sizes), sizes).passed


@pytest.mark.parametrize("procedure", ["skip", "dfa"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "vit", "mixtral"])
def test_one_block_learns_what_bp_makes_it_learn_bit_for_bit(family, procedure):
    model = build(small(family))
    sizes, arrays = setting(model, n_layer=1)
    expected, found = (gradients(model, name, sizes, arrays) for name in ("bp", procedure))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_positions_share_a_random_matrix_where_their_embeddings_are_learned():
    table = step(build(small("vit")), "dfa")
    fixed = [name for name in table.inputs if table.values[name].role == "feedback"]
    assert fixed
    assert all("M" not in table.axes[name] for name in fixed)


def test_two_blocks_do_not():
    model = build(small("gpt2"))
    sizes, arrays = setting(model, n_layer=2)
    expected, found = (gradients(model, name, sizes, arrays) for name in ("bp", "skip"))
    same = {name for name in expected if np.array_equal(found[name], expected[name])}
    assert {"ln_f.g", "ln_f.b"} <= same
    assert all(np.array_equal(found[name][1], expected[name][1]) for name in expected if name.startswith("attn."))
    assert not np.allclose(found["attn.WQ"][0], expected["attn.WQ"][0])


def test_skip_gives_every_block_the_last_gradient():
    """A block's own table, given the last stream's gradient, has the gradients that skip has."""
    model = build(small("gpt2"))
    sizes, arrays = setting(model, n_layer=3)
    found = gradients(model, "skip", sizes, arrays)
    kept = derive(model.table).step
    repeat = next(line for line in kept.lines if isinstance(line, Loop))
    given = values_of(replace(kept, outputs=(*kept.outputs, "X*", "dX.4")), arrays, sizes)
    inputs = values_of(_keeping(kept, "X"), arrays, sizes)["X.kept"]
    body = next(line for line in model.table.lines if isinstance(line, Loop))
    names = tuple(inner for inner, _ in body.each)
    own = replace(model.table, lines=body.lines, values=body.values, inputs=("X",), weights=names, outputs=("X.3",))
    assert repeat.count == "n_layer"
    for iteration in range(3):
        slices = {name: arrays[outer][iteration] for name, outer in body.each}
        block = derive(own).step
        values = values_of(block, {**slices, "X": inputs[iteration], "dX.3": given["dX.4"]}, sizes)
        for name, outer in body.each:
            np.testing.assert_allclose(found[outer][iteration], values[f"d{name}"], 1e-12, 1e-14)


def _keeping(table, name):
    """The table in which the first repeat keeps a value of every turn in a stack of its own."""
    at = next(place for place, line in enumerate(table.lines) if isinstance(line, Loop))
    repeat = table.lines[at]
    stack = replace(repeat.values[name], axes=(repeat.count, *repeat.values[name].axes))
    lines = list(table.lines)
    lines[at] = replace(repeat, keep=(*repeat.keep, (name, f"{name}.kept")))
    values = {**table.values, f"{name}.kept": stack}
    return replace(table, lines=tuple(lines), values=values, outputs=(*table.outputs, f"{name}.kept"))


def test_dfa_with_exact_matrices_is_bp():
    """Of one token of one sequence a matrix brings the error to any gradient: e F = g with F = e^T g / |e|^2."""
    model = build(small("gpt2"))
    sizes, arrays = setting(model, n_layer=2, B=1, M=1)
    plain = step(model, "bp")
    at = max(place for place, line in enumerate(plain.lines) if isinstance(line, Loop))
    back = plain.lines[at]
    lines = list(plain.lines)
    lines[at] = replace(back, keep=(*back.keep, ("dX", "dX.kept")))
    values = {**plain.values, "dX.kept": replace(plain.values["dX.4"], axes=(back.count, *plain.axes["dX.4"]))}
    kept = replace(plain, lines=tuple(lines), values=values, outputs=(*plain.outputs, "dX.kept", "dP.L"))
    expected = values_of(kept, arrays, sizes)
    e = expected["dP.L"][0, 0]
    matrices = np.stack([np.outer(e, g[0, 0]) / (e @ e) for g in expected["dX.kept"]])
    found = gradients(model, "dfa", sizes, arrays | {"X.F": matrices})
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[f"d{name}"], 1e-11, 1e-13, err_msg=name)


BLOCKS = """
blocks(X targets share; WA WB g WV WH) -> loss
  repeat n carry X:
    H[B d] = {branch}
    N[B d] = H[B d] g[d]
    U[B f] = {linear} WA[d f]
    G[B f] = tanh(U[B f])
    O[B d] = {last} WB[f d]
    X[B d] = X[B d] + O[B d]
    K[B d] = {second}
    V[B d'] = {second_linear} WV[d d']
    X[B d] = X[B d] + V[B d]
  L[B v] = X[B d] WH[d v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
targets: index of v
share: share of targets
"""
PLAIN = {
    "branch": "normalize[d](X[B d])",
    "linear": "N[B d]",
    "last": "G[B f]",
    "second": "silu(X[B d])",
    "second_linear": "K[B d]",
}


def stopping(*names):
    """The block in which some reads are of a stopped copy, written out by hand."""
    text, copies = BLOCKS.format(**PLAIN), []
    for hole in names:
        op, _, rest = PLAIN[hole].partition("(")
        name, axes = (rest or op).rstrip(")").split("[", 1)
        copy = f"    {name}{hole}[{axes} = stop_gradient({name}[{axes})\n"
        copies.append((PLAIN[hole], PLAIN[hole].replace(f"{name}[{axes}", f"{name}{hole}[{axes}"), copy))
    for old, new, copy in copies:
        lines = text.splitlines(keepends=True)
        at = next(i for i, line in enumerate(lines) if line.startswith("    ") and f"= {old}" in line)
        lines[at] = copy + lines[at].replace(f"= {old}", f"= {new}")
        text = "".join(lines)
    return text


@pytest.mark.parametrize(
    ("procedure", "holes"),
    [
        ("skip-blocks", ["branch"]),
        ("skip-branches", ["branch", "second"]),
        ("skip-out", ["linear", "last", "second_linear"]),
    ],
)
def test_a_stopped_place_is_bp_of_the_table_with_stop_gradient_there(procedure, holes):
    sizes = {"n": 3, "B": 5, "d": 4, "d'": 4, "f": 7, "v": 6}
    model, stopped = (from_layer(lc.layer(text), ()) for text in (BLOCKS.format(**PLAIN), stopping(*holes)))
    arrays = finite_arrays(model.table, sizes) | {"dloss": np.asarray(1.0)}
    found, expected = gradients(model, procedure, sizes, arrays), gradients(stopped, "bp", sizes, arrays)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, 1e-12, 1e-14, err_msg=name)


def test_one_weight_learns_what_it_learns_among_all_others():
    """Also where nothing between it and the scores has a gradient, whose error the random matrices read."""
    model = build(small("llama"))
    sizes, arrays = setting(model)
    alone = adapted(model, adaptation(train="embeddings"))
    found, expected = (gradients(each, "dfa-linear", sizes, arrays) for each in (alone, model))
    assert found.keys() == {"wte"}
    np.testing.assert_array_equal(found["wte"], expected["wte"])


def test_what_gets_no_gradient_does_not_learn_and_has_no_state():
    kept = lc.memory("gpt2", procedure="skip-out", seq_len=8, engine="graph").split["optimizer state"]
    learned = lc.cost("gpt2", "skip-out", seq_len=8).trained_parameters
    assert kept == 8 * learned < 8 * lc.cost("gpt2", seq_len=8).trained_parameters


def test_a_model_without_such_a_place_is_refused_in_one_line():
    with pytest.raises(lc.InputError, match="dfa needs a loss: gpt2 has no output to learn from"):
        lc.cost("gpt2", "dfa", architecture="GPT2Model")
    mlp = from_layer(lc.layer("mlp(X; W) -> loss\n  Y[B f] = X[B d] W[d f]\n  loss[] = Y[B f] Y[B f]\n"), ())
    with pytest.raises(lc.InputError, match="skip needs blocks that pass a value"):
        step(mlp, "skip")


@pytest.mark.parametrize("family", ["rwkv", "mamba"])
def test_the_positions_of_a_scan_are_no_blocks(family):
    """They hand a state on, too; but they have slices of values alone, and blocks have weights of their own."""
    model = build(small(family))
    assert [[repeat.count for repeat in place.repeats] for place in blocks(model, "it")] == [["n_layer"]]
    table = step(model, "dfa")
    matrices = [table.axes[name] for name in table.inputs if table.values[name].role == "feedback"]
    assert matrices == [("n_layer", "v", "d")]
    of_bp, of_skip = (lc.price(step(model, name), small_sizes(table), lc.book("matmul")) for name in ("bp", "skip-out"))
    assert of_skip.maccs < 0.7 * of_bp.maccs
    checks = list(known(model, LEARNING["skip-out"], family))
    assert checks
    assert all(check.passed for check in checks)

"""Tangents, and the procedures that learn by forward passes: each held to the gradients of backpropagation."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy.linalg import hadamard

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.autodiff.tangent import tangent
from learncost.interpreter import operation
from learncost.layers.gradient_plan import GradientSource
from learncost.layers.layer import shipped, shipped_layer
from learncost.models.model import build
from learncost.models.small import small
from learncost.ops import entries
from learncost.procedures.procedure import LEARNING
from learncost.procedures.step import step
from learncost.verification.check import count_operations, finite_arrays, values_of
from learncost.verification.sample import small_sizes
from learncost.verification.verify import along, op_layer, with_tangent

FORWARD = ["forward-gradient", "mezo", "evolution"]
WORDS = [entry.name for entry in entries() if entry.gradient and not entry.inline]


@pytest.mark.parametrize("op", WORDS)
def test_the_tangent_of_a_word_is_its_gradient_times_the_direction(op):
    entry = next(entry for entry in entries() if entry.name == op)
    found = list(along(op_layer(entry).table, op, 5))
    assert found
    assert all(check.passed for check in found), "\n".join(map(str, found))


@pytest.mark.parametrize("name", [name for name in shipped() if derive(shipped_layer(name).table).gradients])
def test_of_a_layer(name):
    found = list(along(shipped_layer(name).table, name))
    assert found
    assert all(check.passed for check in found), "\n".join(map(str, found))


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("family", ["gpt2", "llama", "vit", "albert", "t5", "gpt_oss", "deberta"])
def test_of_a_family(family):
    found = list(along(build(small(family)).table, family))
    assert all(check.passed for check in found), "\n".join(map(str, found))


def test_it_is_linear_in_the_direction():
    table = with_tangent(shipped_layer("feed_forward").table)
    sizes = small_sizes(table)
    arrays = finite_arrays(table, sizes)
    twice = {name: 2 * array if name.endswith(">") else array for name, array in arrays.items()}
    np.testing.assert_allclose(values_of(table, twice, sizes)["Y>"], 2 * values_of(table, arrays, sizes)["Y>"], 1e-12)


def setting(family):
    model = build(small(family))
    sizes = small_sizes(step(model, "bp"))
    arrays = finite_arrays(model.table, sizes) | {"dloss": np.asarray(1.0)}
    return model, sizes, arrays


def gradients(model, procedure, sizes, arrays, draw=4711.0):
    table = step(model, procedure)
    given = {name: arrays[name] for name in (*table.inputs, *table.weights) if name in arrays}
    values = values_of(table, given | ({"draw": np.asarray(draw)} if "draw" in table.inputs else {}), sizes)
    return {name: values[f"d{name}"] for name in model.table.weights}


@pytest.mark.one_in(every=16)
@pytest.mark.parametrize("procedure", FORWARD)
@pytest.mark.parametrize("family", ["gpt2", "vit", "albert", "bart"])
def test_every_count_is_that_of_counting_arrays(family, procedure):
    table = step(build(small(family)), procedure, "sgd")
    sizes = small_sizes(table)
    assert count_operations(family, table, finite_arrays(table, sizes), sizes).passed


@pytest.mark.parametrize("family", ["gpt2", "llama", "vit", "albert", "bart"])
def test_a_forward_gradient_is_the_slope_along_a_direction_of_signs_times_it(family):
    """dW = s V with s = <gradient, V> and signs V: so <gradient, dW> = s^2, and every entry of dW is s or -s."""
    model, sizes, arrays = setting(family)
    expected, found = (gradients(model, name, sizes, arrays) for name in ("bp", "forward-gradient"))
    slope = abs(next(iter(found.values())).flat[0])
    for array in found.values():
        np.testing.assert_allclose(abs(array), slope, 1e-12)
    assert sum(np.sum(expected[name] * found[name]) for name in found) == pytest.approx(slope**2, rel=1e-12)
    assert found["wte" if "wte" in found else next(iter(found))].mean() != slope


def test_the_mean_over_all_directions_of_a_few_entries_is_the_gradient():
    model, sizes, arrays = setting("gpt2")
    expected = gradients(model, "bp", sizes, arrays)["ln_f.g"].ravel()
    entries_moved = expected[: min(5, expected.size)].size
    moved = tangent(model.table, {(): {"ln_f.g": GradientSource("ln_f.g>")}})[0]
    values = {**moved.values, "ln_f.g>": moved.values["ln_f.g"]}
    table = replace(moved, values=values, inputs=(*moved.inputs, "ln_f.g>"))
    mean = np.zeros_like(expected)
    signs = list(itertools.product((-1.0, 1.0), repeat=entries_moved))
    for sign in signs:
        direction = np.zeros_like(expected)
        direction[:entries_moved] = sign
        mean += values_of(table, arrays | {"ln_f.g>": direction}, sizes)["loss>"] * direction / len(signs)
    np.testing.assert_allclose(mean[:entries_moved], expected[:entries_moved], 1e-12, 1e-15)


def test_the_mean_over_signs_without_correlation_of_what_linears_make_is_the_gradient(monkeypatch):
    """Columns of a Hadamard matrix stand for the drawn signs: the mean of what is of second order in them is exact."""
    model = build(small("gpt2"))
    sizes = {"n_layer": 2, "B": 1, "M": 2, "v": 4, "d": 3, "p": 2, "h": 2, "k": 2, "f": 3}
    arrays = finite_arrays(model.table, sizes) | {"dloss": np.asarray(1.0)}
    entries_drawn, signs = {}, []  # the last of `signs` stands

    def coin(x, z):
        keys = operation._OWN["hashed"](x, z)
        places = np.vectorize(lambda key: entries_drawn.setdefault(float(key), len(entries_drawn)))(keys)
        return signs[-1][places].astype(float) if signs else np.ones(keys.shape)

    table = step(model, "forward-gradient-activities")
    given = {name: arrays[name] for name in (*table.inputs, *table.weights) if name in arrays}

    def moved():
        values = values_of(table, given | {"draw": np.asarray(1.0)}, sizes)
        return {name: np.array(values[f"d{name}"]) for name in model.table.weights if f"d{name}" in values}

    expected = gradients(model, "bp", sizes, arrays)
    monkeypatch.setattr(operation, "_OWN", {**operation._OWN, "coin": coin})
    moved()
    rows = hadamard(1 << len(entries_drawn).bit_length())
    mean = {}
    for row in rows:
        signs.append(row)
        for name, array in moved().items():
            mean[name] = mean.get(name, 0) + array / len(rows)
    assert expected.keys() - mean.keys() == {"ln_1.g", "ln_1.b", "ln_2.g", "ln_2.b"}
    for name in mean:
        np.testing.assert_allclose(mean[name], expected[name], 1e-11, 1e-13, err_msg=name)


@pytest.mark.parametrize("family", ["gpt2", "albert", "bert"])
def test_both_sides_tend_to_the_forward_gradient_with_the_square_of_the_distance(family, monkeypatch):
    model, sizes, arrays = setting(family)
    expected = gradients(model, "forward-gradient", sizes, arrays)
    errors = []
    for distance in (2e-3, 1e-3):
        moved = replace(LEARNING["mezo"], distance=distance)
        monkeypatch.setitem(LEARNING, "mezo", moved)
        found = gradients(model, "mezo", sizes, arrays)
        errors.append(max(np.abs(found[name] - expected[name]).max() for name in found))
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.02)


def test_another_number_draws_other_directions_and_the_same_one_the_same():
    model, sizes, arrays = setting("gpt2")
    first, again, other = (gradients(model, "forward-gradient", sizes, arrays, draw) for draw in (1.0, 1.0, 2.0))
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert not np.array_equal(np.sign(first["attn.WQ"]), np.sign(other["attn.WQ"]))
    signs = np.sign(first["mlp.W1"])
    assert not np.array_equal(signs[0], signs[1])


@pytest.mark.parametrize(("procedure", "pairs"), [("forward-gradient", 1), ("mezo", 1), ("evolution", 4)])
def test_every_entry_of_every_direction_is_drawn_by_a_number_of_its_own(procedure, pairs, monkeypatch):
    model, sizes, arrays = setting("gpt2")
    keys, own = set(), operation._OWN

    def coin(x, z):
        keys.update(np.ravel(own["hashed"](x, z)).tolist())
        return own["coin"](x, z)

    monkeypatch.setattr(operation, "_OWN", {**own, "coin": coin})
    gradients(model, procedure, sizes, arrays, 1.0)
    entries_of_all = sum(arrays[weight].size for weight in model.learning)
    # Of numbers of 24 bits some fall together by chance: n^2 / 2^25 of n.
    assert pairs * entries_of_all * (1 - pairs * entries_of_all / 2**24) <= len(keys) <= pairs * entries_of_all


def test_nothing_is_kept_between_blocks():
    def beside(procedure, blocks):
        answer = lc.memory("gpt2", procedure=procedure, seq_len=1024, engine="graph", n_layer=blocks)
        return answer.peak - sum(answer.split[part] for part in ("weights", "gradients", "optimizer state"))

    assert beside("mezo", 12) <= 1.01 * beside("mezo", 2)
    assert beside("bp", 12) > 1.5 * beside("bp", 2)


def test_a_layers_lines_are_explained():
    found = lc.explain("feed_forward", procedure="forward-gradient")
    (part,) = found.parts
    lines = [step.text for step in part.steps]
    assert "O>[B M d] = O>+1[B M d] + O>+2[B M d]" in lines
    assert "H>[B M f] = X[B M d] W1>[d f]" in lines
    read = lc.explain("feed_forward", procedure="fa").parts[1].steps
    assert "dG[B M f] = dO[B M d] W2.F[f d]" in [step.text for step in read]
    for name, layer, message in (
        (
            "skip",
            "attention",
            "skip does not change the lines of a layer: use `learncost explain MODEL attention --procedure skip`",
        ),
        ("forward-gradient", "residual", "forward-gradient changes weights, and residual has none"),
    ):
        with pytest.raises(lc.InputError, match=message):
            lc.explain(layer, procedure=name)


def test_what_a_turn_reads_types_of_is_there_to_its_end():
    """A backward turn that is handed kept values alone, of which one goes before another is scattered."""
    answer = lc.memory(small("deepseek_v2"), procedure="forward-gradient-activities", seq_len=6, engine="numpy")
    assert answer.peak > 0


def test_what_frozen_weights_alone_would_have_needed_is_not_asked_for():
    """The last layer alone learns: no direction is drawn; the step takes what others take."""
    training = lc.Training(small("gpt2", tie_word_embeddings=False), "forward-gradient-activities", "sgd", train="head")
    assert training.step(tokens=np.arange(6).reshape(1, 6)) > 0

"""Local losses, held to backpropagation of the table cut behind each block; feedback that follows the weights."""

import itertools

import numpy as np
import pytest

import learncost as lc
from learncost.ir.loop import walk
from learncost.ir.polynomial import shape_of
from learncost.models.model import build
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.verification.check import count_operations, finite_arrays, values_of
from learncost.verification.sample import small_sizes
from planned import given, results, sizes_of, table_of

FAMILIES = ["gpt2", "llama", "bert", "vit", "gemma2", "bart", "albert"]


def setting(family, **more):
    model = build(small(family))
    sizes = small_sizes(model.table) | more
    return model, sizes, finite_arrays(model.table, sizes) | {"dloss": np.asarray(1.0)}


def gradients(model, procedure, sizes, arrays):
    table = step(model, procedure)
    draw = np.random.default_rng(3)
    more = {n: draw.standard_normal(shape_of(table.axes[n], sizes)) for n in table.inputs if n not in arrays}
    values = values_of(table, arrays | more, sizes)
    return {name: values[f"d{name}"] for name in (*model.table.weights, *more) if f"d{name}" in values}, values


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("procedure", ["local", "local-shared", "kolen-pollack"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_count_is_that_of_counting_arrays(family, procedure):
    table = step(build(small(family)), procedure, "adamw")
    sizes = small_sizes(table)
    assert count_operations(family, table, finite_arrays(table, sizes), sizes).passed


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert", "vit"])
def test_one_block_with_the_models_head_is_bp(family):
    model, sizes, arrays = setting(family, n_layer=1)
    (expected, of_bp), (found, values) = (gradients(model, name, sizes, arrays) for name in ("bp", "local-shared"))
    assert found.keys() == expected.keys()
    assert values["loss"] == of_bp["loss"]
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, 1e-12, 1e-14, err_msg=name)


@pytest.mark.parametrize("family", ["gpt2", "bert", "vit"])
def test_a_block_learns_what_bp_of_the_table_cut_behind_it_makes_it_learn(family):
    model, sizes, arrays = setting(family, n_layer=3)
    shared, values = gradients(model, "local-shared", sizes, arrays)
    blocks = [name for name, axes in model.table.axes.items() if axes[:1] == ("n_layer",) and name in shared]
    outside = [name for name in shared if name not in blocks]
    totals = dict.fromkeys(outside, 0.0)
    for iteration in range(3):
        cut = arrays | {name: arrays[name][: iteration + 1] for name in blocks}
        expected, of_bp = gradients(model, "bp", sizes | {"n_layer": iteration + 1}, cut)
        for name in blocks:
            np.testing.assert_allclose(shared[name][iteration], expected[name][iteration], 1e-12, 1e-14, err_msg=name)
        head = gradients_of_head(model, sizes | {"n_layer": iteration + 1}, cut)
        totals = {name: totals[name] + (expected if iteration == 0 else head).get(name, 0.0) for name in outside}
    assert values["loss"] == pytest.approx(of_bp["loss"], rel=1e-12)
    for name in outside:
        np.testing.assert_allclose(shared[name], totals[name], 1e-12, 1e-14, err_msg=name)


def test_a_group_learns_what_bp_of_the_table_cut_behind_it_makes_it_learn():
    model, sizes, arrays = setting("gpt2", n_layer=4)
    table = step(model, "local-groups")
    own = {name: table.values[name].of for name in table.inputs if table.values[name].role == "projection"}
    assert {table.axes[name][0] for name in own} == {"n_layer/2"}
    found, _ = gradients(model, "local-groups", sizes, arrays | {n: np.stack([arrays[w]] * 2) for n, w in own.items()})
    stacks = [name for name in model.table.weights if "n_layer" in model.table.axes[name]]
    expected, _ = gradients(model, "bp", sizes | {"n_layer": 2}, arrays | {name: arrays[name][:2] for name in stacks})
    for name in stacks:
        np.testing.assert_allclose(found[name][:2], expected[name], 1e-12, 1e-14, err_msg=name)
    whole, _ = gradients(model, "bp", sizes, arrays)
    for name in stacks:
        np.testing.assert_allclose(found[name][2:], whole[name][2:], 1e-12, 1e-14, err_msg=name)


@pytest.mark.parametrize("family", ["gpt2", "albert"])
def test_every_count_of_groups_is_that_of_counting_arrays(family):
    table = step(build(small(family)), "local-groups", "momentum")
    sizes = small_sizes(table)
    assert count_operations(family, table, finite_arrays(table, sizes), sizes).passed


def gradients_of_head(model, sizes, arrays):
    """What the lines behind the blocks make of the weights that they read, the blocks' output being given."""
    from dataclasses import replace

    from learncost.autodiff.derive import derive
    from learncost.ir.loop import Loop

    table = model.table
    at = max(place for place, line in enumerate(table.lines) if isinstance(line, Loop))
    final = table.lines[at].carry[0].final
    values = values_of(replace(table, outputs=(*table.outputs, final)), arrays, sizes)
    head = replace(table, lines=table.lines[at + 1 :], inputs=(*table.inputs, final))
    read = [name for name in table.weights if any(name in line.reads for line in head.lines)]
    derived = derive(head, wanted=read)
    found = values_of(derived.step, arrays | {final: values[final]}, sizes)
    return {name: found[gradient] for name, gradient in derived.gradients.items()}


def test_heads_of_their_own_that_are_the_models_give_blocks_the_same():
    model, sizes, arrays = setting("gpt2", n_layer=3)
    shared, _ = gradients(model, "local-shared", sizes, arrays)
    table = step(model, "local")
    own = {name: table.values[name].of for name in table.inputs if table.values[name].role == "projection"}
    assert set(own.values()) == {"wte", "ln_f.g", "ln_f.b"}
    found, _ = gradients(model, "local", sizes, arrays | {n: np.stack([arrays[w]] * 3) for n, w in own.items()})
    for name in ("attn.WQ", "mlp.W2", "ln_1.g", "wpe"):
        np.testing.assert_allclose(found[name], shared[name], 1e-12, 1e-14)


def test_own_heads_learn_and_start_as_heads_do():
    sizes = {"n_layer": 3, "n_embd": 8, "n_head": 2, "vocab_size": 10}
    training = lc.Training("gpt2", "local", **sizes, learning_rate=0.01)
    tokens = np.arange(48).reshape(8, 6) % 10
    assert np.array_equal(training.state["own.ln_f.g"], np.ones((3, 8)))
    before = training.state["own.wte"].copy()
    assert before.shape == (3, 10, 8)
    assert before.std() == pytest.approx(0.02, rel=0.3)
    losses = [training.step(tokens) for _ in range(40)]
    assert losses[-1] < 0.5 * losses[0]
    assert not np.allclose(training.state["own.wte"], before, atol=1e-3)
    assert training.state["own.wte.M"].any()
    assert training.weights.keys() == lc.Training("gpt2", **sizes).weights.keys()


def test_nothing_of_a_block_is_kept_for_later():
    def beside(procedure, blocks):
        answer = lc.memory("gpt2", procedure=procedure, seq_len=1024, engine="graph", n_layer=blocks)
        return answer.peak - sum(answer.split[part] for part in ("weights", "gradients", "optimizer state"))

    assert beside("local-shared", 12) <= 1.01 * beside("local-shared", 2)
    assert beside("bp", 12) > 1.5 * beside("bp", 2)


def test_feedback_that_follows_comes_nearer_by_the_same_share_at_every_step():
    sizes = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 10}
    for optimizer in ("sgd", "momentum", "adamw"):
        training = lc.Training("gpt2", "kolen-pollack", optimizer, **sizes, learning_rate=0.01)
        tokens = np.arange(24).reshape(4, 6) % 10
        apart = [training.state["attn.WQ.F"] - training.weights["attn.WQ"]]
        for _ in range(5):
            training.step(tokens)
            apart.append(training.state["attn.WQ.F"] - training.weights["attn.WQ"])
        for first, second in itertools.pairwise(apart):
            np.testing.assert_allclose(second, 0.99 * first, 1e-9, 1e-15)


def test_it_goes_at_once():
    model, sizes, arrays = setting("gpt2")
    table = without_gradients(step(model, "kolen-pollack", "momentum"))
    arrays = finite_arrays(table, sizes)
    expected, found = (values_of(each, arrays, sizes) for each in (table, planned(table, "fused-update")))
    assert all(np.array_equal(found[name], expected[name]) for name in table.outputs)
    assert {"attn.WQ.new", "attn.WQ.F.new", "attn.WQ.V.new"} <= set(table.outputs)


def test_its_gradients_are_those_of_feedback_alignment():
    model, sizes, arrays = setting("gpt2")
    table = step(model, "fa")
    draw = np.random.default_rng(3)
    arrays |= {n: draw.standard_normal(shape_of(table.axes[n], sizes)) for n in table.inputs if n not in arrays}
    (first, _), (second, _) = (gradients(model, name, sizes, arrays) for name in ("fa", "kolen-pollack"))
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("procedure", ["local", "local-groups", "local-shared"])
@pytest.mark.parametrize("model", ["gpt2", "llama-2-7b", "albert-base-v2"])
def test_heads_of_blocks_take_turns_over_sequences_too(model, procedure):
    sizes = sizes_of(model, num_hidden_layers=4)
    table = table_of(model, procedure, num_hidden_layers=4)
    values = given(table, sizes)
    plain = results(table, values, sizes)

    def wide(table):
        terms = [term for line, _ in walk(table.lines) for term in line.left]
        return [term for term in terms if {"B", "v"} <= {*term.declared}]

    assert wide(table)
    for text in ("chunked-loss,fused-update", "flash,fused,chunked-loss,epilogue-update,recompute=gelu+silu+norm"):
        chunked = planned(table, text)
        assert not wide(chunked), text
        computed = results(chunked, values, sizes)
        assert computed.keys() == plain.keys()
        for name, array in plain.items():
            np.testing.assert_allclose(computed[name], array, 1e-12, 1e-12, err_msg=f"{name} under {text}")
        assert count_operations(model, chunked, finite_arrays(chunked, sizes), sizes).passed, text


def test_the_gradient_that_blocks_add_up_is_nothing_that_they_hand_on():
    """The decoder's turns add up what the encoder's turns go backwards with: `flash` takes it for no block's input."""
    table = step(build(small("bart")), "local-shared", "sgd")
    sizes = small_sizes(table)
    arrays = finite_arrays(table, sizes)
    plain, fast = (values_of(each, arrays, sizes) for each in (table, planned(table, "flash")))
    for name in table.renewed.values():
        np.testing.assert_allclose(fast[name], plain[name], 1e-12, 1e-14, err_msg=name)

"""Projected gradients: what the optimizer sees, keeps and makes of it, and for how long its directions last."""

import numpy as np
import pytest

import learncost as lc
from learncost.engines.emitted import Programs
from learncost.models.model import build
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.verification.check import count_operations, finite_arrays, values_of
from learncost.verification.sample import small_sizes

SIZES = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 10}
TOKENS = np.arange(24).reshape(4, 6) % 10


@pytest.fixture
def own(tmp_path):
    def file(schedule, **more):
        path = tmp_path / f"own{len(list(tmp_path.iterdir()))}.toml"
        path.write_text(f"schedule = {schedule}\n" + "".join(f"{key} = {value}\n" for key, value in more.items()))
        return str(path)

    return file


def test_a_step_by_hand(own):
    """W - rate P P^T G, P of signs over the root of the rank."""
    name = own('["forward", "backward, update, projected to 3"]')
    first, second = (lc.Training("gpt2", each, "sgd", **SIZES, learning_rate=0.1) for each in (name, "bp"))
    before = {key: array.copy() for key, array in first.weights.items()}
    for training in (first, second):
        training.step(TOKENS)
    moved, plain = ({key: each.weights[key] - before[key] for key in before} for each in (first, second))
    for key in ("wte", "ln_f.g", "attn.bQ", "ln_1.g"):
        np.testing.assert_allclose(moved[key], plain[key], 1e-12, 1e-15)
    prepared = lc.Training("gpt2", name, "sgd", **SIZES, learning_rate=0.1).prepare(TOKENS)
    drawn = values_of(prepared.table, prepared.values, prepared.sizes)
    sums = {"mlp.W1": "nar,nbr,nbf->naf", "attn.WQ": "nar,nbr,nbhk->nahk", "attn.WO": "nar,nbr,nhkb->nhka"}
    for key, spelled in sums.items():
        signs = drawn[f"{key}.P"]
        assert set(np.unique(signs)) == {-1.0, 1.0}
        assert not np.array_equal(signs[0], signs[1])
        np.testing.assert_allclose(moved[key], np.einsum(spelled, signs, signs, plain[key]) / 3, 1e-9, 1e-15)


def test_its_state_has_the_rank_in_the_place_of_an_axis(own):
    name = own('["forward", "backward, update, projected to 3"]')
    training = lc.Training("gpt2", name, "adamw", **SIZES)
    assert training.state["attn.WQ.M"].shape == (2, 3, 2, 4)
    assert training.state["attn.WO.V"].shape == (2, 2, 4, 3)
    assert training.state["mlp.W2.V"].shape == (2, 3, 8)
    assert training.state["wte.M"].shape == (10, 8)
    training.step(TOKENS)
    whole = lc.memory("gpt2", seq_len=6, engine="graph", **SIZES)
    held = lc.memory("gpt2", procedure=name, seq_len=6, engine="graph", **SIZES)
    assert held.split["optimizer state"] == 4 * sum(array.size for array in training.state.values())
    assert held.split["optimizer state"] < whole.split["optimizer state"]


def test_directions_last_as_many_steps_as_are_said(own):
    def drawn(held):
        name = own('["forward", "backward, update, projected to 2"]', held=held)
        training = lc.Training("gpt2", name, "sgd", **SIZES)
        numbers = []
        for _ in range(6):
            numbers.append(float(training.prepare(TOKENS).values["held.draw"]))
            training.step(TOKENS)
        return numbers

    one, two, many = drawn(1), drawn(2), drawn(200)
    assert len(set(one)) == 6
    assert two == [one[0], one[0], one[2], one[2], one[4], one[4]]
    assert many == [one[0]] * 6


def test_it_learns_as_a_program_too(own):
    name = own('["forward", "backward, update, projected to 4"]', held=5)
    first, second = (lc.Training("gpt2", name, "adamw", **SIZES, learning_rate=0.01) for _ in range(2))
    second.runner = Programs(second)
    losses = [(first.step(TOKENS), second.step(TOKENS)) for _ in range(20)]
    np.testing.assert_allclose(*zip(*losses, strict=True), 1e-9)
    assert losses[-1][0] < 0.8 * losses[0][0]


@pytest.mark.parametrize(("family", "drawn"), [("gpt2", True), ("bart", False)])
def test_every_count_and_every_plan(own, family, drawn):
    name = own('["forward", "backward, update, projected to 3"]', held=200) if drawn else "galore"
    table = without_gradients(step(build(small(family)), name, "adamw"))
    sizes = small_sizes(table)
    arrays = finite_arrays(table, sizes)
    assert count_operations(family, table, arrays, sizes).passed
    expected = values_of(table, arrays, sizes)
    for plan in ("fused-update", "epilogue-update"):
        found = values_of(planned(table, plan), arrays, sizes)
        assert all(np.array_equal(found[name], expected[name]) for name in table.outputs)


def test_a_program_draws_directions_before_the_turns_that_read_them(own):
    name = own('["forward", "backward, update, projected to 3"]')
    text = lc.emit("gpt2", "numpy", procedure=name, plan="fused-update", **SIZES)
    assert text.index("places_n_layer = ") < text.index("in reversed(range(n_layer))")


@pytest.mark.parametrize(
    ("schedule", "more", "message"),
    [
        (
            '["forward at plus", "forward at minus", "update by both sides, projected to 4"]',
            {},
            "cannot have forward at plus and projected to NUMBER",
        ),
        ('["forward", "backward, update, projected to some"]', {}, "no move is called 'projected to some'"),
        ('["forward", "backward, update, projected to 4"]', {"held": 0}, "held must be a whole number of steps from 1"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(own, schedule, more, message):
    with pytest.raises(lc.InputError, match=message):
        lc.cost("gpt2", own(schedule, **more), **SIZES)


def test_more_directions_than_entries_are_refused(own):
    name = own('["forward", "backward, update, projected to 128"]')
    with pytest.raises(lc.InputError, match=r"draws 128 directions, and attn\.WQ has 8 entries along"):
        lc.cost("gpt2", name, **SIZES)


def test_blocks_without_matrices_of_their_own_and_decay_in_gradients_are_refused():
    with pytest.raises(lc.InputError, match="galore needs trainable matrices in blocks"):
        step(build(small("albert")), "galore", "sgd")
    with pytest.raises(lc.InputError, match="weight decay is added to gradients, which are projected here"):
        lc.Training("gpt2", "galore", "sgd", **SIZES, weight_decay=0.1)

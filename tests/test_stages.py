"""A table cut into stages: run one after the other, their gradients are those of the whole."""

import numpy as np
import pytest

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.interpreter import execute
from learncost.ir.errors import InputError
from learncost.models.adaptation import Adaptation, adapted
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.passes.lower import lower
from learncost.passes.stages import cut, even, iterations_of
from learncost.verification.placements import small_model
from learncost.verification.sample import random_arrays
from planned import OWN, sizes_of

MODELS = ("gpt2", "llama-2-7b", "mixtral-8x7b", "bart-base", "gemma-2-2b")


def ran(table, arrays, sizes):
    values = {name: arrays[name] for name in (*table.inputs, *table.weights)}
    execute(lower(table), values, sizes)
    return values


def own_of(stage, table, arrays):
    """What of the whole's arrays a stage has: of stacks the slices of its turns."""
    result = {}
    for name in (*stage.table.inputs, *stage.table.weights):
        if name in arrays:
            axes = table.axes[name]
            first, iterations = (stage.first.get(axes[0]), stage.iterations.get(axes[0])) if axes else (None, None)
            result[name] = arrays[name] if first is None else arrays[name][first : first + iterations]
    return result


@pytest.mark.one_in(every=11)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("parts", [2, 3])
def test_stages_are_the_whole(name, parts):
    more = {} if name == "bart-base" else {"num_hidden_layers": 6}
    model = build(configure(name, {**OWN[name], **more}))
    sizes = sizes_of(name, **more)
    table, iterations = model.table, iterations_of(model.table, model.sizes)
    layers = [iterations // parts] * parts
    layers[0] += iterations - sum(layers)
    arrays = random_arrays(table, sizes, 7)
    arrays |= {"dloss": np.asarray(1.0)}
    whole = derive(table, wanted=table.weights)
    expected = ran(whole.step, arrays, sizes)
    cut_table = cut(table, model.sizes, layers)
    stages = cut_table.stages
    own = [own_of(stage, table, arrays) for stage in stages]
    for stage in stages:  # forward: what is made goes where it is read
        found = ran(stage.table, own[stage.number], {**sizes, **stage.iterations})
        for sent in cut_table.sent:
            if sent.source == stage.number:
                own[sent.target][sent.read] = found[sent.made]
        if "loss" in stage.table.outputs:
            np.testing.assert_allclose(found["loss"], expected["loss"], rtol=1e-12)
    gradients = {}
    for stage in reversed(stages):  # backward: gradients come the way back, summed over their readers
        received = [sent for sent in cut_table.sent if sent.target == stage.number]
        derived = derive(stage.table, wanted=(*(sent.read for sent in received), *stage.table.weights))
        given = dict(own[stage.number])
        for output in stage.table.outputs:
            if output == "loss":
                given["dloss"] = arrays["dloss"]
        for sent in cut_table.sent:
            if sent.source == stage.number:
                back = gradients.pop((sent.target, sent.read))
                given[f"d{sent.made}"] = given.get(f"d{sent.made}", 0.0) + back
        found = ran(derived.step, given, {**sizes, **stage.iterations})
        for sent in received:
            gradients[stage.number, sent.read] = found[derived.gradients[sent.read]]
        for weight in stage.table.weights:
            gradient = found[derived.gradients[weight]]
            axes = table.axes[weight]
            if axes[0] in stage.iterations:
                part = expected[whole.gradients[weight]][stage.first[axes[0]] :][: stage.iterations[axes[0]]]
                np.testing.assert_allclose(gradient, part, rtol=1e-9, atol=1e-11)
            else:  # of tied weights the stages' gradients are summed
                gradients[weight] = gradients.get(weight, 0.0) + gradient
    for weight in table.weights:
        if weight in gradients:
            np.testing.assert_allclose(gradients[weight], expected[whole.gradients[weight]], rtol=1e-9, atol=1e-11)
    having = {weight: [weight in stage.table.weights for stage in stages] for weight in table.weights}
    tied = {weight for weight, stages_with in having.items() if sum(stages_with) > 1}
    tied = {weight for weight in tied if table.axes[weight][0] not in stages[0].first | stages[-1].first}
    assert set(cut_table.tied) == tied


def test_embedding_and_head_are_of_the_ends():
    model = build(configure("llama-3-8b"))
    stages = cut(model.table, model.sizes, even(32, 4)).stages
    assert ["wte" in stage.table.weights for stage in stages] == [True, False, False, False]
    assert ["head.W" in stage.table.weights for stage in stages] == [False, False, False, True]
    assert [stage.iterations["n_layer"] for stage in stages] == [8] * 4
    gpt2 = build(configure("gpt2"))
    assert cut(gpt2.table, gpt2.sizes, even(12, 3)).tied == {"wte": (0, 2)}


def test_a_last_stage_without_blocks_has_the_head():
    model = build(configure("gpt2", {"n_layer": 2}))
    first, last = cut(model.table, model.sizes, (2, 0)).stages
    assert not last.iterations
    assert {"ln_f.g", "wte"} <= {*last.table.weights}
    assert "loss" in last.table.outputs
    assert "ln_f.g" not in first.table.weights


def test_repeats_of_as_many_turns_are_told_apart():
    model = adapted(build(configure("gpt2", {"n_layer": 4})), Adaptation(layers="2"))
    stages = cut(model.table, model.sizes, (1, 3)).stages
    assert [list(stage.iterations.values()) for stage in stages] == [[1], [1, 1, 1]]
    assert [list(stage.first.values()) for stage in stages] == [[0], [1, 0, 0]]
    assert len({count for stage in stages for count in stage.iterations}) == 3


def test_what_cannot_be_cut_is_said():
    model = build(configure("gpt2"))
    with pytest.raises(lc.InputError, match=r"12 blocks are not divisible into 5 equal stages: use 6 stages"):
        even(12, 5)
    with pytest.raises(lc.InputError, match="stages of 4, 4 blocks must sum to the model's 12"):
        cut(model.table, model.sizes, (4, 4))


def test_blocks_that_keep_something_for_later_ones_are_not_cut():
    """Gemma 3n's last layers read keys of one before them: of several turns, each stage would have its own."""
    model = small_model("gemma3n_text")
    sizes = {**model.sizes, "n_layer_2": 2}
    with pytest.raises(InputError, match=r"the stack KL\.2, VL\.2 of n_layer_2 blocks is read by later lines"):
        cut(model.table, sizes, (2, 2))
    assert [stage.iterations for stage in cut(model.table, sizes, (1, 3)).stages][1]["n_layer_2"] == 2

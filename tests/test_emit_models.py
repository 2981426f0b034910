from dataclasses import replace

import numpy as np
import pytest

import learncost as lc
from learncost.backends import fill, program, unfold
from learncost.interpreter import execute as definition
from learncost.ir.loop import Loop
from learncost.models.adaptation import adaptation, adapted
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.models.small import small
from learncost.passes.lower import lower
from learncost.procedures.procedure import PROCEDURES
from learncost.procedures.step import step
from learncost.verification.sample import random_arrays, small_sizes
from programs import execute, namespace, to_backend, worst

NEAR = 1e-12
TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 11}
ALBERT = {"model_type": "albert", **TINY, "embedding_size": 6, "num_hidden_layers": 4, "num_hidden_groups": 2}
LLAMA = {"model_type": "llama", **TINY, "num_hidden_layers": 2, "num_key_value_heads": 1}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 3}
MODELS = {
    "gpt2": configure("gpt2", {**TINY, "num_hidden_layers": 2}),
    "gpt2-long": configure("gpt2", {**TINY, "num_hidden_layers": 3}),
    "bert": configure("bert-base", {**TINY, "num_hidden_layers": 2, "architecture": "BertForMaskedLM"}),
    "encoder-decoder": configure("encoder-decoder", {**TINY, "n_enc": 2, "n_dec": 3}),
    "llama": configure(LLAMA),
}
# A compiler takes every block by itself, so that they are few.
SHORT = {
    "gpt2": configure("gpt2", {**TINY, "num_hidden_layers": 1}),
    "encoder-decoder": configure("encoder-decoder", {**TINY, "n_enc": 1, "n_dec": 1}),
    "llama": configure({**LLAMA, "num_hidden_layers": 1}),
}


def prepared(model, procedure, optimizer="sgd"):
    """The step's table, random arrays for it at sizes that all differ, and every value as the table defines it."""
    table = step(model, procedure, optimizer)
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    for name in arrays:
        if name.endswith(".V") or name in ("b2", "c2", "k1", "k2", "eps"):  # under a root, or what is divided by
            arrays[name] = np.abs(arrays[name]) + 0.1
    values = dict(arrays)
    definition(lower(table), values, sizes)
    return table, sizes, arrays, values


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("name", ["gpt2", "bert", "encoder-decoder", "llama"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_step_is_the_one_that_is_defined(name, procedure, backend):
    table, sizes, arrays, values = prepared(build(MODELS[name]), procedure)
    executed = execute(table, backend, arrays, sizes)
    assert executed.keys() >= set(table.outputs)  # gradients and new weights; frozen ones come back as they were
    assert worst(executed, values)[1] < NEAR


@pytest.mark.parametrize(
    ("name", "procedure"),
    [
        ("gpt2", "pepita"),
        ("llama", "recompute"),
        pytest.param("gpt2", "bp", marks=pytest.mark.slow),
        pytest.param("encoder-decoder", "pepita", marks=pytest.mark.slow),
    ],
)
def test_a_step_on_jax(name, procedure):
    table, sizes, arrays, values = prepared(build(SHORT[name]), procedure)
    assert worst(execute(table, "jax", arrays, sizes), values)[1] < NEAR  # compiled whole


@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("name", ["gpt2", "encoder-decoder"])
def test_optimizers_with_their_state(name, optimizer):
    table, sizes, arrays, values = prepared(build(MODELS[name]), "bp", optimizer)
    executed = execute(table, "numpy", arrays, sizes)
    state = {"momentum": ("V",), "adamw": ("M", "V")}[optimizer]
    assert {f"{w}.{part}.new" for w in table.weights for part in state} <= executed.keys()
    assert worst(executed, values)[1] < NEAR


@pytest.mark.slow  # tests/test_torch_module.py has a smaller one
def test_torch_compile_takes_a_model_whole():
    import torch

    def compiled(function, sizes):
        assert not sizes
        return torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=False)

    table, sizes, arrays, values = prepared(build(SHORT["gpt2"]), "bp")
    assert worst(execute(table, "torch", arrays, sizes, compiled), values)[1] < NEAR


@pytest.mark.parametrize(
    ("model", "flags"),
    [
        ("gpt2", {}),
        ("encoder-decoder", {"n_enc": 1, "n_dec": 2}),
    ],
)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_the_text_trains_as_the_training_does(model, flags, optimizer):
    # lc.emit's text, told nothing but its arguments, takes the step that lc.Training takes.
    sizes = {**TINY, **(flags or {"num_hidden_layers": 2})}
    training = lc.Training(model, optimizer=optimizer, **sizes)
    generator = np.random.default_rng(0)
    batch = {"encoder_tokens": generator.integers(0, 11, (2, 7))} if training.model.two_sided else {}
    tokens = generator.integers(0, 11, (2, 5))
    arrays = training.prepare(tokens, **batch).values
    table = replace(
        step(training.model, "bp", optimizer),
        outputs=("loss", *(f"{w}.new" for w in training.model.table.weights)),
    )
    written = program(table)
    names = namespace(lc.emit(model, optimizer=optimizer, **sizes))
    result = names["step"](*(fill(tree, arrays, names) for tree in written.parameters))
    loss = training.step(tokens, **batch)
    assert abs(float(result[0]) - loss) < NEAR
    weights = dict(unfold(written.results[1], result[1]))
    after = {f"{name}.new": array for name, array in training.weights.items()}
    assert worst(weights, after)[1] < NEAR


def test_without_an_optimizer_it_gives_the_gradients():
    model = build(MODELS["llama"])
    table, _, arrays, values = prepared(model, "bp")
    text = lc.emit(model, optimizer="none")
    names = namespace(text)
    assert "sgd" not in text
    written = program(table)
    del arrays["lr"]
    trees = [tree for tree in written.parameters if tree != "lr"]
    loss, gradients = names["step"](*(fill(tree, arrays, names) for tree in trees))
    assert abs(float(loss) - values["loss"]) < NEAR
    (tree,) = (tree for tree in written.results if not isinstance(tree, str) and "dwte" in str(tree))
    assert worst(dict(unfold(tree, gradients)), values)[1] < NEAR


def test_the_size_of_a_window_is_a_parameter():
    # No array has it, and how much of it is used depends on the length.
    model = build(configure(MISTRAL))
    table, sizes, arrays, values = prepared(model, "bp")
    assert program(table).sizes == {"w": "w"}
    assert worst(execute(table, "numpy", arrays, sizes), values)[1] < NEAR
    assert "\n    w = 3\n" in program(table, sizes={"w": 3}).text
    assert not program(table, sizes={"w": 3}).sizes


@pytest.mark.parametrize("asked", [{"layers": "last 1"}, {"lora": "c_attn"}, {"train": "head"}])
def test_frozen_weights_come_back_as_they_were(asked):
    # A repeat whose turns differ is split, and names are marked with the turns.
    model = adapted(build(MODELS["gpt2-long"]), adaptation(**asked))
    table, sizes, arrays, values = prepared(model, "bp")
    executed = execute(table, "numpy", arrays, sizes)
    learned = {name for name in model.table.weights if f"{name}.new" in table.outputs}
    assert 0 < len(learned) < len(model.table.weights)
    assert worst(executed, values)[1] < NEAR
    names = program(table).names
    assert len(set(names.values())) == len(names)


def test_a_repeat_in_a_repeat():
    # ALBERT's groups of layers that share their weights.
    table, sizes, arrays, values = prepared(build(configure(ALBERT)), "bp")
    assert any(isinstance(line, Loop) for repeat in table.lines if isinstance(repeat, Loop) for line in repeat.lines)
    for backend in ("numpy", "torch"):
        assert worst(execute(table, backend, arrays, sizes), values)[1] < NEAR


def test_a_block_is_one_function_called_in_a_loop():
    model = build(MODELS["gpt2"])
    table = step(model, "bp")
    text = program(table).text
    repeats = [line for line in table.lines if isinstance(line, Loop)]
    assert text.count("\n    for iteration in") == len(repeats) == 2
    assert text.count("\ndef block(") == text.count("\ndef block_backward(") == 1
    assert "saved.pop()" in text
    assert '["' not in text.partition("def step(")[2]  # no look-up by name


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("procedure", PROCEDURES)
@pytest.mark.parametrize("name", ["gpt2", "bert", "encoder-decoder", "llama"])
def test_identifiers_are_one_to_one(name, procedure):
    names = program(step(build(MODELS[name]), procedure, "adamw")).names
    assert len(set(names.values())) == len(names)


def test_the_same_on_a_tensor_of_another_type():
    table, sizes, arrays, _ = prepared(build(MODELS["gpt2"]), "bp")
    single = {n: a.astype(np.float32) if a.dtype == np.float64 else a for n, a in arrays.items()}
    for backend in ("numpy", "torch"):
        executed = execute(table, backend, single, sizes)
        assert {array.dtype for array in executed.values()} == {np.dtype("float32")}
    assert to_backend("torch", single["wte"]).dtype.is_floating_point


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_no_helper_has_the_name_of_a_function_that_another_one_calls(backend):
    """Experts in groups had a helper `sum` with an axis, which `taken` called as Python's."""
    text = lc.emit(small("deepseek_v3", n_routed_experts=8, n_group=4, topk_group=2, first_k_dense_replace=1), backend)
    assert "def taken(" in text
    assert not {*namespace(text)} & {"sum", "min", "max"}

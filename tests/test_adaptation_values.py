"""Values: losses and gradients of frozen and adapted models against autograd, and their counts against what runs.

A split model is the same function, so its loss and its gradients must be those of transformers' module with the same
weights learning and the same paths of low rank; what it executes, counted by arrays, must be the price of the book run.
"""

import random
from dataclasses import replace

import numpy as np
import pytest

import learncost as lc
from counting import counting, tally_of
from learncost.engines.adapted import constants, dequantized, quantize
from learncost.interpreter import execute, infer_sizes
from learncost.ir.precision import PRECISIONS
from learncost.models.adaptation import adaptation, adapted
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.models.quantization import quantized
from learncost.passes.lower import lower
from learncost.procedures.step import step
from learncost.verification.check import finite_arrays

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

import test_modern_models as llama  # noqa: E402
from foreign_models import angles, in_float64  # noqa: E402
from low_rank import Decomposed, adapt, blocks_of, learn_only  # noqa: E402
from programs import execute as emitted  # noqa: E402
from test_transformers import ARCHITECTURES, UNTIED_BIAS, batch_of, ours, pair, places  # noqa: E402

__all__ = ["in_float64"]
TOLERANCE = 1e-9
RANK, ALPHA = 2, 3.0


def lengthened(family, seed):
    """A random pair of models with at least three blocks, so that segments have several turns."""
    chance = random.Random(seed)
    while True:
        model, module = pair(family, ARCHITECTURES[family][0], chance)
        if model.sizes["n_layer"] >= 3:
            return model, module


def whole_of(table, name):
    """The value of all turns that a value of some of them is a part of."""
    return table.values[name].group or name


def iterations_of(name, count):
    """The turns that a name speaks of, such as W@1-2: all where it is not marked."""
    first, _, last = name.partition("@")[2].partition("-")
    return range(int(first), int(last or first) + 1) if first else range(count)


def shape_of(model, name):
    return [int(axis) if axis.isdigit() else model.sizes[axis.rstrip("'")] for axis in model.table.axes[name]]


def taken(plain, model, theirs):
    """Values or gradients of the adapted model's weights, from transformers' by their names; None has no place here."""
    plain_arrays = {name.replace(".base.", "."): array for name, array in theirs.items()}
    where = places(plain.configuration.family, plain.sizes["h"])
    if UNTIED_BIAS in plain_arrays:
        where["head.b"] = UNTIED_BIAS, where["head.b"][1]
    count = plain.sizes["n_layer"]
    result = {}
    for name in model.table.weights:
        base = whole_of(model.table, name)
        stacked = base != name or model.table.axes[name][:1] == ("n_layer",)
        if base in plain.table.weights:
            place, view = where[base]
            arrays = (
                [plain_arrays[place.format(iteration)] for iteration in iterations_of(name, count)]
                if stacked
                else [plain_arrays[place]]
            )
            arrays_found = [None if array is None else view(array) for array in arrays]
        else:
            stem, _, letter = base.rpartition(".")
            weight = {"attn.c_attn": "attn.WQ"}.get(stem, stem)
            path = where[weight][0].removesuffix(".weight") + (".M" if letter == "M" else f".{letter}.weight")
            arrays_found = [
                plain_arrays[path.format(iteration)] for iteration in (iterations_of(name, count) if stacked else [0])
            ]
            if "c_attn" in path and letter in ("B", "M"):
                arrays_found = [np.split(array, 3)["QKV".index(stem[-1])] for array in arrays_found]
            shape = shape_of(model, name)
            arrays_found = [array.T.reshape(shape[1:] if stacked else shape) for array in arrays_found]
        if all(array is not None for array in arrays_found):
            result[name] = np.stack(arrays_found) if stacked else arrays_found[0]
    return result


def in_blocks(module, numbers):
    block_ids = {id(parameter) for number in numbers for parameter in blocks_of(module)[number].parameters()}
    return {name for name, parameter in module.named_parameters() if id(parameter) in block_ids}


def attention(kind):
    return {"gpt2": "c_attn", "bert": "query,value", "distilbert": "q_lin,v_lin", "openai-gpt": "attn.c_attn"}[kind]


LINEAR = {
    "gpt2": ["c_attn", "c_proj", "c_fc"],
    "openai-gpt": ["c_attn", "c_proj", "c_fc"],
    "bert": ["query", "key", "value", "dense"],
    "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2", "vocab_transform"],
}
CASES = [
    "second layer",
    "last 2",
    "first and last",
    "biases",
    "head",
    "lora",
    "lora of the last",
    "all-linear",
    "wte",
    "dora",
]


def prepared(case, family, module, count):
    """What is asked of us; the module is changed to the same."""
    if case == "lora":
        adapt(module, attention(family).split(","), RANK, ALPHA)
        return {"lora": attention(family)}
    if case == "lora of the last":
        adapt(module, attention(family).split(","), RANK, ALPHA, {count - 1})
        return {"lora": attention(family), "layers": count - 1}
    if case == "all-linear":
        adapt(module, LINEAR[family], RANK, ALPHA)
        return {"lora": "all-linear"}
    if case == "dora":
        adapt(module, LINEAR[family], RANK, ALPHA, path=Decomposed)
        return {"lora": "all-linear", "dora": True}
    numbers = {"second layer": [1], "last 2": [count - 2, count - 1], "first and last": [0, count - 1]}.get(case)
    if numbers:
        learn_only(module, in_blocks(module, numbers).__contains__)
        return {"layers": numbers}
    if case == "biases":
        learn_only(module, lambda name: name.endswith("bias"))
        return {"train": "biases"}
    frozen_ids = {id(parameter) for parameter in module.get_input_embeddings().parameters()}
    if case == "head":
        frozen_ids = {id(parameter) for parameter in module.get_output_embeddings().parameters()}
        if family in ("bert", "distilbert"):
            parts = {"bert": ("cls",), "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector")}[family]
            frozen_ids |= {id(p) for n, p in module.named_parameters(remove_duplicate=False) if n.startswith(parts)}
    learn_only(module, {n for n, p in module.named_parameters() if id(p) in frozen_ids}.__contains__)
    return {"train": case}


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("family", ARCHITECTURES)
@pytest.mark.parametrize("case", CASES)
def test_gradients_and_what_runs(case, family):
    plain, module = lengthened(family, f"{case} {family}")
    how = prepared(case, family, module, plain.sizes["n_layer"])
    if "lora" in how:
        how |= {"rank": RANK, "alpha": ALPHA}
    model = adapted(plain, adaptation(**how))
    inputs, batch, _ = batch_of(plain, np.random.default_rng(5), False)
    loss = module(**batch).loss
    loss.backward()
    parameters = dict(module.named_parameters())
    arrays = inputs | taken(plain, model, {name: p.detach().numpy() for name, p in parameters.items()})
    assert not {*model.table.inputs, *model.table.weights} - arrays.keys()
    gradients = taken(plain, model, {n: None if p.grad is None else p.grad.numpy() for n, p in parameters.items()})
    assert set(gradients) == set(model.trained)
    derived = lc.derive(model.table, wanted=model.learning)
    assert set(derived.gradients) == set(model.trained)
    for table in (step(model, "bp"), step(model, "recompute")):
        results = lc.run(table, {**arrays, "dloss": np.array(1.0)})
        np.testing.assert_allclose(results["loss"], loss.item(), rtol=TOLERANCE)
        for name, gradient in gradients.items():
            np.testing.assert_allclose(results[f"d{name}"], gradient, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
        sizes = infer_sizes(model.table, arrays, {"n_layer": plain.sizes["n_layer"]})
        values = {name: counting(array) for name, array in {**arrays, "dloss": np.array(1.0)}.items()}
        _, units = tally_of(execute, lc.lower(table), values, sizes)
        assert units == lc.price(table, sizes, "run").flops


def test_a_model_split_everywhere_is_the_same_function():
    """Every block by itself: the loss, the gradients and the price of the whole model as it was."""
    plain, module = lengthened("gpt2", 11)
    inputs, _, _ = batch_of(plain, np.random.default_rng(6), False)
    arrays = inputs | ours(plain, {name: p.detach().numpy() for name, p in module.named_parameters()})
    count = plain.sizes["n_layer"]
    alone = adapted(plain, adaptation("all", list(range(0, count, 2))))
    split_arrays = {
        name: arrays[whole_of(alone.table, name)][list(iterations_of(name, count))] if "@" in name else arrays[name]
        for name in (*alone.table.inputs, *alone.table.weights)
    }
    seed = {"dloss": np.array(1.0)}
    unsplit, split = (lc.run(step(m, "bp"), {**a, **seed}) for m, a in ((plain, arrays), (alone, split_arrays)))
    assert split["loss"] == unsplit["loss"]
    for name in alone.trained:
        expected = unsplit[f"d{whole_of(alone.table, name)}"]
        expected = expected[list(iterations_of(name, count))] if "@" in name else expected
        np.testing.assert_array_equal(split[f"d{name}"], expected)


def test_low_rank_paths_of_grouped_queries(tmp_path):
    """Llama: each projection's path by heads and groups, in the second block alone, and its norms learning."""
    config = llama.module_of("llama").config
    config.num_hidden_layers, config.architectures = 3, ["LlamaForCausalLM"]
    config.save_pretrained(tmp_path)
    module = llama.shaken(transformers.LlamaForCausalLM(config))
    h, g, k = (llama.SIZES[axis] for axis in "hgk")
    where = llama.block_places(h, g, k)
    arrays = {"wte": module.model.embed_tokens.weight, "ln_f": module.model.norm.weight}
    arrays = {name: parameter.detach().numpy() for name, parameter in arrays.items()}
    arrays["head.W"] = module.lm_head.weight.detach().numpy().T
    plain = build(configure(str(tmp_path)))
    ends = {"WQ": "q_proj", "WK": "k_proj", "WV": "v_proj", "WO": "o_proj"}
    model = adapted(plain, adaptation("ln_1", [1], ",".join(ends.values()), RANK, ALPHA))
    theirs = dict(module.named_parameters())
    for name in model.table.weights:
        if (base := whole_of(model.table, name)) in where and base in plain.table.weights:
            place, view = where[base]
            arrays[name] = np.stack(
                [view(theirs[place.format(iteration)].detach().numpy()) for iteration in iterations_of(name, 3)]
            )
    adapt(module, ends.values(), RANK, ALPHA, {1})
    module.model.layers[1].input_layernorm.requires_grad_(True)
    learning = {"ln_1@1": module.model.layers[1].input_layernorm.weight}
    for weight, end in ends.items():
        path = getattr(module.model.layers[1].self_attn, end)
        learning |= {f"attn.{weight}.A@1": path.A.weight, f"attn.{weight}.B@1": path.B.weight}
    assert set(learning) == set(model.trained)

    def seen(name, array):
        return array.T.reshape(shape_of(model, name)) if array.ndim > 1 else array[None]

    arrays |= {name: seen(name, parameter.detach().numpy()) for name, parameter in learning.items()}
    tokens = np.random.default_rng(3).integers(1, llama.SIZES["v"], (2, 5))
    share = np.full(tokens.shape, -1.0 / (2 * 4))
    share[:, -1] = 0
    inputs = {"tokens": tokens, "targets": np.roll(tokens, -1, 1), "share": share, **angles(5, k)}
    values = lc.run(step(model, "bp"), {**arrays, **inputs, "dloss": np.array(1.0)})
    loss = module(input_ids=torch.tensor(tokens), labels=torch.tensor(tokens)).loss
    np.testing.assert_allclose(values["loss"], loss.item(), rtol=TOLERANCE)
    loss.backward()
    for name, parameter in learning.items():
        np.testing.assert_allclose(
            values[f"d{name}"], seen(name, parameter.grad.numpy()), TOLERANCE, TOLERANCE, err_msg=name
        )


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("kind", ["nf4-64-double", "nf4-64", "int8-rows"])
@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_gradients_are_those_of_autograd_on_dequantized_weights(kind, family):
    """transformers' own module, LoRA in plain torch: its frozen matrices become what our codes stand for, and its loss
    and gradients are those of our step on the codes, run by NumPy and by PyTorch."""
    plain, module = lengthened(family, f"quantized {family}")
    adapt(module, LINEAR[family], RANK, ALPHA)
    before = adapted(plain, adaptation(lora="all-linear", rank=RANK, alpha=ALPHA))
    model = quantized(before, replace(PRECISIONS["fp32"], frozen=kind))
    named = {name.replace(".base.", "."): parameter for name, parameter in module.named_parameters()}
    where, count = places(family, plain.sizes["h"]), plain.sizes["n_layer"]
    weights = taken(plain, before, {name: p.detach().numpy() for name, p in module.named_parameters()})
    codes = {}
    for weight in model.quantized:
        codes |= quantize(weight, weights[weight.weight], model.sizes)
        decoded = dequantized(weight, codes, model.sizes)
        place, view = where[weight.group or weight.weight]
        for iteration, array in zip(iterations_of(weight.weight, count), decoded, strict=True):
            theirs = view(named[place.format(iteration)].detach().numpy())
            theirs[...] = array
            assert np.array_equal(view(named[place.format(iteration)].detach().numpy()), array)  # a view, no copy
    inputs, batch, _ = batch_of(plain, np.random.default_rng(7), False)
    loss = module(**batch).loss
    loss.backward()
    parameters = dict(module.named_parameters())
    arrays = inputs | taken(plain, before, {name: p.detach().numpy() for name, p in parameters.items()})
    arrays |= codes | constants(model.quantized, model.sizes, float) | {"dloss": np.array(1.0)}
    gradients = taken(plain, before, {n: None if p.grad is None else p.grad.numpy() for n, p in parameters.items()})
    table = step(model, "bp")
    assert set(gradients) == set(model.learning)
    by_numpy = lc.run(table, {name: arrays[name] for name in (*table.inputs, *table.weights)}, model.sizes)
    by_torch = emitted(table, "torch", arrays, model.sizes)
    np.testing.assert_allclose(by_numpy["loss"], loss.item(), rtol=1e-9)
    np.testing.assert_allclose(by_torch["loss"], loss.item(), rtol=1e-9)
    for name, gradient in gradients.items():
        for values in (by_numpy, by_torch):
            np.testing.assert_allclose(values[f"d{name}"], gradient, rtol=1e-7, atol=1e-10, err_msg=name)


def test_paths_of_experts_are_those_of_merged_matrices():
    """The loss is that of the plain model with W + scale A B, and gradients of A and B are those of W through it."""
    sizes = {
        "num_hidden_layers": 2,
        "hidden_size": 6,
        "intermediate_size": 5,
        "num_attention_heads": 2,
        "vocab_size": 9,
    }
    plain = build(configure("mixtral-8x7b", {**sizes, "num_key_value_heads": 1, "num_local_experts": 4}))
    names = ("moe.WG", "moe.WD")
    model = adapted(plain, adaptation(lora=",".join(names), rank=RANK, alpha=ALPHA))
    lengths = {"B": 2, "M": 3}
    own, whole = step(model, "bp"), step(plain, "bp")
    known = finite_arrays(own, {**model.sizes, **lengths})

    def stacked(name, of=lambda weight: weight):
        """The arrays of all blocks."""
        return np.concatenate([known[of(weight)] for weight in own.weights if whole_of(own, weight) == name])

    groups = {whole_of(own, name) for name in own.weights}
    merged = {name: stacked(name) if name in groups - {*own.weights} else known[name] for name in whole.weights}
    merged |= {name: known[name] for name in whole.inputs if name in known}
    paths = {name: (stacked(f"{name}.A"), stacked(f"{name}.B")) for name in names}
    for name, path in paths.items():
        merged[name] = stacked(name) + ALPHA / RANK * np.matmul(*path)
    execute(lower(own), known, {**model.sizes, **lengths})
    execute(lower(whole), merged, {**plain.sizes, **lengths})
    np.testing.assert_allclose(known["loss"], merged["loss"], rtol=TOLERANCE)
    gradients = {value.of: name for name, value in own.values.items() if value.role == "gradient"}
    of_whole = {value.of: name for name, value in whole.values.items() if value.role == "gradient"}
    for name, (a, b) in paths.items():
        through = ALPHA / RANK * merged[of_whole[name]]
        for part, wanted in (("A", through @ b.swapaxes(-1, -2)), ("B", a.swapaxes(-1, -2) @ through)):
            found = stacked(f"{name}.{part}", gradients.__getitem__)
            np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-12)


def test_paths_of_experts_that_peft_does_not_have_are_refused():
    asked = {"model": "mixtral-8x7b", "seq_len": 16, "lora": "experts.down_proj", "engine": "eager"}
    for more in ({"lora_dropout": 0.1}, {"module": "transformers-4"}, {"mesh": "tp=2"}):
        with pytest.raises(lc.InputError, match="low-rank paths of experts, as peft, with module='transformers'"):
            lc.memory(**asked, **more)
    with pytest.raises(lc.InputError, match="cannot have DoRA"):
        lc.memory(**asked, dora=True)


def test_the_first_line_says_what_experts_are_stored_in():
    """bitsandbytes quantizes linear modules, as which transformers has experts before version 5."""
    asked = {"precision": "qlora", "lora": "attention", "seq_len": 16}
    for module, experts in (("transformers", "bf16"), ("transformers-4", "4 bits")):
        found = lc.memory("mixtral-8x7b", module=module, **asked)
        assert found.experts == experts
        assert f"in nf4-double (experts in {experts}) by eager" in str(found).replace("\n", " ")
    assert lc.memory("llama-3.2-1b", **asked).experts == ""

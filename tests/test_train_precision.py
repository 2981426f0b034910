"""`learncost train --precision` and `--lora`: quantized frozen weights and bf16, kept, merged, resumed."""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from safetensors.numpy import load_file

from learncost.backends.precision import check_runs
from learncost.cli.command import main
from learncost.engines import rounding
from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.ir.precision import BLOCKS, PRECISIONS
from learncost.models.configuration import configure
from learncost.training.engine import engine
from learncost.training.folder import Folder
from learncost.training.loop import go_on, start
from sampling import sampled
from trainings_on_disk import SIZES, Silent, same

NARROW = {**SIZES, "hidden_size": 32, "num_attention_heads": 2}
WAYS = [
    {"dtype": "fp32", "lora": "all-linear", "lora_rank": "2"},
    {"dtype": "nf4-double", "lora": "q_proj,v_proj", "model": "llama"},
    {"dtype": "int8-frozen", "train": "biases"},
    {"dtype": "nf4", "lora": "all-linear", "train_layers": "last 1", "accumulate": 2, "clip": 1.0},
    {"dtype": "bf16-masters"},
    {"dtype": "bf16-true"},
    {"dtype": "bf16-true", "optimizer": "adamw8bit"},
]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "text").mkdir()
    for document in range(6):
        lines = "".join(f"line {line} of document {document * 7919 % 100}\n" for line in range(20))
        (tmp_path / "text" / f"{document}.txt").write_text(lines)
    return tmp_path / "text"


def asked(text, setting, **more):
    own = {"model": "gpt2", "engine": "numpy", "steps": 4, "batch_size": 2, "seq_len": 12, "sizes": NARROW, **setting}
    if own["model"] == "llama":
        own |= {"model": "tinyllama-1.1b", "sizes": {**NARROW, "num_key_value_heads": 1, "intermediate_size": 48}}
    return Options(paths=(str(text),), **{"validate_every": 2, "sample_every": 4, "save_every": 2, **own, **more})


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("setting", sampled(WAYS, 3))
def test_it_learns_and_goes_on_bit_for_bit(setting, text, tmp_path):
    start(asked(text, setting), tmp_path / "whole", Silent())
    stops = iter([False, True])
    start(asked(text, setting), tmp_path / "run", Silent(), lambda: next(stops))
    go_on(tmp_path / "run", Silent())
    assert same(tmp_path / "whole", tmp_path / "run")


TRAINED = [
    *(
        "fp32",
        "fp64",
        "bf16-masters",
        "bf16-true",
        "int8-frozen",
        "int8-frozen-fp32",
    ),
    *("int8-saved", "int8-products", "int8-frozen-products", "nf4", "nf4-double", "int4-frozen"),
    *("nf4-true", "nf4-double-true", "int8-learned", "int8-learned-products"),
]
"""Precisions in which a model with blocks is trained; of the others each test below says why not."""

ELSEWHERE = {"integer-only"}
"""These train networks without repeated blocks, by lc.Training, which saves nothing."""

RESUMED = [(name, "adamw") for name in TRAINED] + [("bf16-true", "adamw8bit"), ("fp32", "adamw8bit")]
REFUSED = {
    **dict.fromkeys(
        product(
            ("jax",),
            ("bf16-true", "int8-frozen", "nf4", "nf4-double", "nf4-true", "nf4-double-true", "int4-frozen"),
            ("adamw",),
        ),
        "--engine jax keeps weights in fp32, and .* has them in bf16: choose torch or numpy",
    ),
    ("jax", "bf16-true", "adamw8bit"): "choose torch or numpy",
    ("jax", "fp32", "adamw8bit"): "choose torch or numpy",
    ("torch", "int8-learned", "adamw"): "does not support trainable quantized weights",
    ("torch", "int8-learned-products", "adamw"): "use --engine numpy",
}


def test_every_precision_that_programs_compute_in_is_resumed_below():
    runs = set()
    for name, precision in PRECISIONS.items():
        with suppress(InputError):
            check_runs(precision)
            runs.add(name)
    assert runs == {*TRAINED} | ELSEWHERE


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(
    ("kind", "case"), sampled(product(("numpy", "torch", "jax"), RESUMED), 14, kind=lambda case: case[0])
)
def test_every_engine_resumes_every_precision_bit_for_bit(kind, case, text, tmp_path):
    """Llama's checkpoint has its matrices the other way round; twenty kills: `benchmarks/kills.py --engine`."""
    if kind != "numpy":
        pytest.importorskip(kind)
    name, optimizer = case
    quantized = PRECISIONS[name].quantized
    frozen = quantized is not None and not quantized.learns
    paths = {"lora": "all-linear", "lora_rank": "2"} if frozen else {}
    setting = {"model": "llama", "dtype": name, "optimizer": optimizer, "engine": kind, **paths}
    how = asked(text, setting, seq_len=24, batch_size=4)
    if (kind, *case) in REFUSED:
        with pytest.raises(InputError, match=REFUSED[kind, *case]):
            start(how, tmp_path / "whole", Silent())
        return
    start(how, tmp_path / "whole", Silent())
    stops = iter([False, True])
    start(how, tmp_path / "run", Silent(), lambda: next(stops))
    go_on(tmp_path / "run", Silent())
    assert same(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("setting", sampled(WAYS, 3, start=1))
def test_what_is_frozen_stays_and_what_is_saved_computes_the_same(setting, text, tmp_path):
    how = asked(text, setting, learning_rate=0.05)
    configuration = configure("gpt2", {**NARROW, "vocab_size": 20})
    if setting.get("model") == "llama":
        configuration = configure("tinyllama-1.1b", {**how.sizes, "vocab_size": 20})
    own = engine(configuration, how)
    rng = np.random.default_rng(0)
    tokens, targets = rng.integers(0, 20, (2, 12)), rng.integers(0, 20, (2, 12))
    began = {name: np.array(array) for name, array in own.weights.items()}
    batch = {"tokens": tokens, "targets": targets}
    losses = [own.step(batch, 0.05) for _ in range(6)]
    assert losses[-1] < losses[0]
    changed = {name for name, array in own.weights.items() if not np.array_equal(array, began[name])}
    if own.is_plain:
        assert changed
        return
    learning = set(own._training.model.learning)
    assert changed == learning
    assert set(own.state) == {f"{name}.{part}" for name in learning for part in "MV"}
    plain = engine(configuration, replace(how, dtype="fp32", lora=None, lora_rank=None, train=None, train_layers=None))
    plain.load(own.plain_weights, plain.state, 0)
    apart = 1e-5 if setting["dtype"] == "fp32" else 0.02  # values are rounded to bf16 where weights are in codes
    assert plain.loss(batch) == pytest.approx(own.loss(batch), rel=apart)


def test_an_adapted_run_begins_as_the_model_that_it_adapts(text):
    configuration = configure("gpt2", {**NARROW, "vocab_size": 20})
    plain, adapted = (engine(configuration, asked(text, setting)) for setting in ({}, WAYS[0]))
    for name, array in adapted.plain_weights.items():
        np.testing.assert_array_equal(array, plain.weights[name])  # B of every path is 0


def test_a_merged_checkpoint_is_one_of_the_plain_model(text, tmp_path, capsys):
    start(asked(text, WAYS[0]), tmp_path / "run", Silent())
    start(asked(text, {}), tmp_path / "plain", Silent())
    mine, theirs = (load_file(tmp_path / run / "model.safetensors") for run in ("run", "plain"))
    assert {name: array.shape for name, array in mine.items()} == {name: array.shape for name, array in theirs.items()}
    assert main(["sample", str(tmp_path / "run"), "--tokens", "5"]) == 0
    capsys.readouterr()
    assert Folder(tmp_path / "run").options().lora == "all-linear"


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("name", "accumulate", "optimizer"),
    [
        ("nf4", 1, "adamw"),
        ("bf16-true", 1, "adamw"),
        ("bf16-true", 1, "adamw8bit"),
        ("fp32", 1, "adamw8bit"),
        ("bf16-true", 2, "adamw"),
        ("bf16-true", 2, "adamw8bit"),
        ("nf4", 2, "adamw"),
    ],
)
def test_torch_takes_the_steps_of_numpy(name, accumulate, optimizer, text):
    pytest.importorskip("torch")
    setting = {"dtype": name, "lora": "all-linear" if name == "nf4" else None, "plan": None, "accumulate": accumulate}
    setting["optimizer"] = optimizer
    configuration = configure("gpt2", {**NARROW, "vocab_size": 20, "num_hidden_layers": 1})
    rng = np.random.default_rng(0)
    batch = {name: rng.integers(0, 20, (2, 8)) for name in ("tokens", "targets")}
    one, two = (engine(configuration, asked(text, setting, engine=kind)) for kind in ("numpy", "torch"))
    for _ in range(3):
        assert two.step(batch, 0.01) == pytest.approx(one.step(batch, 0.01), rel=5e-3)
    for part, array in one.state.items():  # a kernel rounds what it hands on, the interpreter each value
        if part.endswith(".M") and "bK" not in part:  # which changes nothing: its gradient is 0 but for rounding
            assert np.abs(two.state[part] - array).max() <= (0.25, 0.4)[accumulate > 1] * np.abs(array).max(), part
    assert "kernels compiled" in two.says or "operators" in two.says


def test_bf16_on_numpy_is_the_same_with_and_without_ml_dtypes(text, monkeypatch):
    pytest.importorskip("ml_dtypes")
    configuration = configure("gpt2", {**NARROW, "vocab_size": 20})
    tokens = np.random.default_rng(0).integers(0, 20, (2, 8))
    found = []
    for without in (False, True):
        if without:
            monkeypatch.setattr(rounding, "two_bytes", lambda: None)
        own = engine(configuration, asked(text, {"dtype": "bf16-true"}))
        found.append([own.step({"tokens": tokens, "targets": tokens}, 0.01) for _ in range(3)])
        width = own._training.weights["wte"].dtype.itemsize
        assert width == (4 if without else 2)
    assert found[0] == found[1]


def test_states_in_eight_bits_are_those_of_dynamic_tree_quantization():
    """Dettmers et al. 2022, section 2.2 and figure 2: 256 levels over seven decades; a scale for each block of 256."""
    for signed in (True, False):
        levels = rounding.levels(signed)
        assert len(levels) == len(np.unique(levels)) == 256
        assert {0, 1} <= {*levels}
        assert (levels.min() < 0) == signed
        assert 0.1e-6 < np.abs(levels[levels != 0]).min() < 1e-6
    kind = BLOCKS["int8-256"]
    state = np.random.default_rng(2).normal(size=(2, 4, 1100)).astype(np.float32) ** 3
    found = rounding.eight_bits(state, kind, iterations=2)
    for iteration in range(2):  # each turn's weight has blocks of its own
        row, made = state[iteration].ravel(), found[iteration].ravel()
        for begin in range(0, row.size, 256):
            block, own = row[begin : begin + 256], made[begin : begin + 256]
            levels = rounding.levels(True) * np.abs(block).max()
            near = [min(levels, key=lambda level, number=number: abs(level - number)) for number in block[::50]]
            np.testing.assert_allclose(own[::50], near, rtol=1e-5, atol=1e-12)
    few = state[0, :1, :100]
    assert rounding.eight_bits(few, kind) is few


def test_rounding_is_to_the_nearest_and_ties_go_to_even():
    types = pytest.importorskip("ml_dtypes")
    numbers = np.random.default_rng(1).normal(size=3584) * 10.0 ** np.arange(-20, 36, 1 / 64)
    more = np.array([0, -0.0, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38], np.float32)
    numbers = np.append(numbers.astype(np.float32), more)
    expected = numbers.astype(types.bfloat16).astype(np.float32)
    np.testing.assert_array_equal(rounding.rounded(numbers), expected)
    assert np.isnan(rounding.rounded(np.float32("nan")))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dtype": "nf4"}, "gpt2 has none: freeze some"),
        ({"dtype": "fp16-masters"}, "programs have fp32, fp64, bf16, and no fp16"),
        ({"lora_rank": "4"}, "--lora-rank requires --lora"),
        (
            {"dtype": "int8-learned", "lora": "all-linear"},
            "a low-rank path cannot be merged into a trainable quantized matrix",
        ),
        ({"lora": "nothing"}, "has no weights called 'nothing'"),
        ({"lora": "embeddings"}, "it cannot be merged"),
        ({"lora": "all-linear", "procedure": "pepita"}, "frozen weights and LoRA are for bp and recompute"),
    ],
)
def test_what_cannot_be_trained_is_said_before_anything_is_written(setting, message, text, tmp_path):
    with pytest.raises(InputError, match=message):
        start(asked(text, setting), tmp_path / "run", Silent())
    assert not (tmp_path / "run").exists()


def test_the_command_takes_either_name(text, tmp_path, capsys):
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in NARROW.items()]
    flags = ["--steps", "1", "--batch-size", "2", "--seq-len", "8", "--engine", "numpy", "--model", "gpt2", *sizes]
    lora = ["--precision", "qlora", "--lora-rank", "2"]
    assert main(["train", str(text), "--out", str(tmp_path / "run"), *flags, *lora]) == 0
    assert "learns LoRA of rank 2 and alpha 16 on all-linear" in capsys.readouterr().err
    assert Folder(tmp_path / "run").options().dtype == "nf4-double"
    assert (
        main(["train", str(text), "--out", str(tmp_path / "no"), *flags, "--dtype=fp32", "--precision=bf16-masters"])
        == 2
    )
    assert "are the same setting" in capsys.readouterr().err

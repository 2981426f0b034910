"""What is published of a step's memory, found again in the tables."""

import re
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.liveness import live
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.reports.memory.published import measured

LAYERS, BATCH, LENGTH, HEADS, WIDTH = 7, 2, 5, 3, 12
SBH = LENGTH * BATCH * WIDTH
AS2B = HEADS * LENGTH**2 * BATCH


def kept_in_blocks(procedure, plan=""):
    """Bytes that a block with dropout keeps in 16 bits, as Korthikanti et al. 2022 count them: masks of a byte, the
    scores' mask drawn again where the scores are made again, and no standard deviations, which are small."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": 11}
    model = build(configure("gpt2", {**sizes, "max_position_embeddings": 8}), dropout=True)
    table = planned(step(model, procedure, "sgd"), plan)
    kept_arrays = live(table, run_sizes(model, BATCH, LENGTH, None), "fp16").saved
    block = [array for array in kept_arrays if array.axes[0] == "n_layer" and array.axes != ("n_layer", "B", "M")]
    values = sum(array.bytes for array in block if not array.name.endswith(".mask"))
    masks = {array.name: array.bytes // 2 for array in block if array.name.endswith(".mask")}
    return values // LAYERS, {name: size // LAYERS for name, size in masks.items()}


def test_activations_without_recomputation():
    # Korthikanti et al. 2022, Reducing activation recomputation in large transformer models, equation (1).
    values, masks = kept_in_blocks("bp")
    assert masks == {"attn.P.mask": AS2B, "attn.Y.mask": SBH, "mlp.Y.mask": SBH}
    assert values + sum(masks.values()) == 34 * SBH + 5 * AS2B


def test_activations_with_selective_recomputation():
    # Section 5: without the product of queries and keys, softmax, its dropout and its mask, 34sbh.
    values, masks = kept_in_blocks("bp", "recompute=softmax+attn.R+attn.S")
    assert values + masks["attn.Y.mask"] + masks["mlp.Y.mask"] == 34 * SBH


@pytest.mark.parametrize(("procedure", "plan"), [("recompute", ""), ("bp", "recompute=block")])
def test_activations_with_full_recomputation(procedure, plan):
    # Section 5: the input of every block, 2sbh.
    assert kept_in_blocks(procedure, plan)[0] == 2 * SBH


DEEP = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 40, "vocab_size": 50}


@pytest.mark.parametrize("dtype", ["bf16-masters", "fp16-masters"])
def test_mixed_precision_with_adam_takes_16_bytes_a_parameter(dtype):
    # Rajbhandari et al. 2020, ZeRO, section 3.1: 2 + 2 + K with K = 12 (fp32 weights, momentum and variance).
    needs = lc.memory("gpt2", seq_len=1, optimizer="adamw", dtype=dtype, engine="graph", **DEEP)
    parameters = lc.cost("gpt2", seq_len=1, **DEEP).parameters
    parts = needs.split
    assert parts["weights"] == 2 * parameters
    assert parts["master weights"] == 4 * parameters
    assert parts["optimizer state"] == 8 * parameters
    # Where the optimizer begins all gradients are there: then 16 bytes, and of activations next to nothing.
    first = next(moment for moment in needs.curve if moment.macro_operation == "optimizer_step")
    assert 16 * parameters <= first.bytes < 16.02 * parameters


@pytest.mark.parametrize(
    ("optimizer", "least", "most"),
    [
        ("sgd", 0, 0),
        ("momentum", 4, 4),
        ("lion", 4, 4),
        ("adamw", 8, 8),
        # Dettmers et al. 2022: two bytes, and two factors of four bytes for 2,048 elements; small tensors stay fp32.
        ("adam8bit", 2 + 8 / 2048, 2.1),
        # Li et al. 2023: half a byte, and a factor of four bytes for 128 elements, of each of two states.
        ("adamw4bit", 1 + 8 / 128, 1.07),
        # Shazeer & Stern 2018: a sum a row and a column, so next to nothing of matrices this wide.
        ("adafactor", 0, 0.03),
        # Jordan et al. 2024: momentum of the 85 of 124 million in matrices of blocks, and two states of all else.
        ("muon", 5.26, 5.27),
        # Vyas et al. 2024: two states, and two matrices as large as each side but that of the vocabulary.
        ("soap", 27, 28),
    ],
)
def test_what_optimizers_remember_of_a_parameter(optimizer, least, most):
    needs = lc.memory("gpt2", seq_len=8, optimizer=optimizer)
    parameters = lc.cost("gpt2", seq_len=8).parameters
    assert least * parameters <= needs.split["optimizer state"] <= most * parameters


def saved(layers):
    """The share of PEPITA's RAM that MEMPEPITA saves, exactly: weights and all."""
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100, "seq_len": 64, "num_hidden_layers": layers}
    pepita, mempepita = (
        lc.memory("gpt2", name, 8, plan="fused-update", **sizes).peak for name in ("pepita", "mempepita")
    )
    return 1 - mempepita / pepita


def test_what_mempepita_saves_is_a_matter_of_depth():
    # Pau & Aymone 2024, section 3.3: "saving on average a third of RAM", an average over convolutional networks of
    # MLPerf Tiny. On transformers the share grows with the number of blocks, and passes a third.
    shares = [saved(layers) for layers in (1, 2, 4, 8, 16)]
    assert shares == sorted(shares)
    assert shares[0] < 0.15
    assert shares[-1] > 1 / 3


def test_a_budget_is_met_by_what_fits_and_by_no_more():
    sizes = {"seq_len": 64, "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3, "vocab_size": 500}
    sizes["engine"] = "graph"
    needs = lc.memory("gpt2", batch_size=2, budget="40MB", **sizes)
    assert needs.fits is not None
    batch, length = needs.fits["batch_size"], needs.fits["seq_len"]
    for batch_tried, fits in ((batch, True), (batch + 1, False)):
        assert (lc.memory("gpt2", batch_size=batch_tried, **sizes).peak <= 40 * 10**6) is fits
    for batch_tried, fits in ((length, True), (length + 1, False)):
        assert (lc.memory("gpt2", batch_size=2, **{**sizes, "seq_len": batch_tried}).peak <= 40 * 10**6) is fits


def test_the_split_and_the_curve_belong_to_the_peak():
    settings = {"optimizer": "adamw", "dtype": "bf16-masters", "accumulate": 2, "engine": "graph"}
    needs = lc.memory("gpt2", "recompute", 4, 64, **settings)
    assert sum(needs.split.values()) == needs.peak == max(moment.bytes for moment in needs.curve)
    assert needs.peak_at.bytes == needs.peak
    assert sum(live_array.bytes for live_array in needs.live_at_peak) == needs.peak


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"budget": "0"}, "budget must be bytes such as 8GB"),
        ({"dtype": "fp12"}, "no precision is called 'fp12'"),
        ({"optimizer": "adamm"}, "no optimizer is called 'adamm'"),
        ({"batch_size": 4, "accumulate": 3}, "accumulate must be a divisor of the batch size 4"),
        ({"batch_size": 4, "accumulate": 2, "plan": "fused-update", "engine": "graph"}, "remove the plan fused-update"),
        ({"batch_size": 4, "accumulate": 2, "plan": "fused-update"}, "eager does not support accumulate with"),
        ({"plan": "recompute=gelu"}, "engine eager does not support plan='recompute=gelu': give engine='graph'"),
        ({"engine": "numpy", "clip": 1.0}, "engine='numpy' does not support clip: give engine='graph'"),
    ],
)
def test_refusals(given, line):
    with pytest.raises(lc.InputError, match=line):
        lc.memory("gpt2", seq_len=8, **given)


PAGE = (Path(__file__).parent.parent / "docs" / "memory-engines.md").read_text(encoding="utf-8")


def test_the_python_of_the_page():
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.M | re.S)
    exec(program, {})  # the page's own text


def test_peaks_that_were_measured_on_one_gpu():
    """torchtune's README, LitGPT's resource tables and DLPerf's report: predicted beside published."""
    runs = {run.name: run for run in measured()}
    assert len(runs) == 12
    for run in runs.values():
        assert run.assumed  # none of the sources says everything
        assert run.ratio_text != "fits"  # what had too little memory is predicted to have
        assert run.ratio is None or 0.65 < run.ratio < 1.25, run.name
    close = [name for name, run in runs.items() if run.ratio and abs(run.ratio - 1) < 0.1]
    assert {"torchtune, QLoRA, RTX 4090", "torchtune, LoRA, RTX 4090", "torchtune, full, RTX 4090"} <= {*close}
    printed = {"LitGPT, LoRA, 13 B": 6_553_600}  # trainable parameters, as its table has them
    for name, count in printed.items():
        step = runs[name].step
        ledger = lc.cost(step["model"], lora=step["lora"], lora_rank=step["lora_rank"], seq_len=8)
        assert ledger.trained_parameters == count


def test_measured_peaks_are_shown(capsys):
    assert main(["conventions", "llama-3.1-8b", "--memory"]) == 0
    assert "torchtune, QLoRA, RTX 4090    7.4 GiB" in capsys.readouterr().out


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(
    ("model", "given", "bytes_published", "within"),
    [
        ("mixtral-8x7b", {"precision": "nf4-double", "batch_size": 8}, 48_770_183_680, 0.005),
        ("mistral-7b-v0.1", {"precision": "bf16-masters", "batch_size": 4}, 26_704_571_904, 0.005),
        ("mistral-7b-v0.1", {"precision": "bf16-true", "batch_size": 4, "mesh": "dp=2"}, 36_225_939_968, 0.005),
        ("mixtral-8x7b", {"precision": "nf4-double", "batch_size": 4, "mesh": "dp=2"}, 21_126_185_472, 0.03),
        ("mixtral-8x7b", {"precision": "nf4-double", "batch_size": 8, "mesh": "dp=2"}, 28_154_534_912, 0.02),
    ],
)
def test_allocated_peaks_of_transformers_4(model, given, bytes_published, within):
    """fms-acceleration 24bdadb2, scripts/benchmarks/refs/a100_80gb.csv: LoRA on one A100 or two, and all weights."""
    given = {**given, "placement": "fsdp", "engine": "eager"} if "mesh" in given else given
    if given["precision"] != "bf16-true":
        given = {**given, "lora": "q_proj,k_proj,v_proj,o_proj,c_attn", "lora_rank": 16, "lora_dropout": 0.1}
    own = {"module": "transformers-4", "optimizer_implementation": "foreach", "clip": 1.0, "on": "cuda"}
    found = lc.memory(model, "recompute", seq_len=4096, **own, **given)
    assert found.peak == pytest.approx(bytes_published, rel=within)

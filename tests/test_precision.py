"""Precisions: one row says which type each role has, and every command knows it by its name."""

import json
import re
from dataclasses import replace
from functools import partial

import pytest

import learncost as lc
from learncost.cli.command import main
from learncost.ir.errors import InputError
from learncost.ir.precision import BLOCKS, PRECISIONS, PRODUCTS_ALONE, ROLES, bytes_of_type
from learncost.reports.question import FLAGS

SMALL = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 96, "n_positions": 32}


def printed(capsys, *ops):
    assert main([*ops]) == 0
    return capsys.readouterr().out


def test_a_row_is_all_that_a_precision_needs(capsys, monkeypatch):
    row = replace(PRECISIONS["bf16-masters"], name="bf16-my-own", states="bf16", also=("mine",))
    monkeypatch.setitem(PRECISIONS, row.name, row)
    assert row.name in FLAGS["precision"].choices  # which help names
    assert row.name in printed(capsys, "list", "precisions")
    needs = lc.memory("gpt2", precision="mine", engine="graph", **SMALL)
    assert needs.dtype == row.name
    usual = lc.memory("gpt2", precision="bf16-masters", engine="graph", **SMALL)
    assert 2 * needs.split["optimizer state"] == usual.split["optimizer state"]
    assert {key: needs.split[key] for key in ("weights", "master weights")} == {
        key: usual.split[key] for key in ("weights", "master weights")
    }
    assert lc.fit("gpt2", "64MB", "64MB", procedures="bp", precision=row.name, **SMALL).dtype == row.name
    assert lc.cost("gpt2", precision=row.name, **SMALL).dtype == row.name


@pytest.mark.parametrize(
    ("name", "bytes_of_a_parameter"),
    [
        ("fp32", 16),
        ("bf16-masters", 16),
        ("bf16-masters-fp32-gradients", 18),
        ("fp16-masters", 16),
        ("bf16-true", 8),
        ("fp16-true", 8),
        ("fp64", 32),
        ("int8", 4),
    ],
)
def test_bytes_of_a_parameter_with_adamw(name, bytes_of_a_parameter):
    """Rajbhandari et al. 2020, section 3.1: 2 + 2 + 12 in mixed precision; else four times the type's."""
    needs = lc.memory("gpt2", precision=name, engine="graph", seq_len=4, **SMALL)
    parts = ("weights", "gradients", "master weights", "optimizer state")
    assert sum(needs.split[part] for part in parts) == bytes_of_a_parameter * lc.cost("gpt2", **SMALL).parameters


def test_every_role_names_a_type_that_exists():
    for row in PRECISIONS.values():
        for role in ROLES:
            name = getattr(row, role)
            assert name == "" or name in PRODUCTS_ALONE or bytes_of_type(name, 64) > 0


def test_dtype_is_the_short_form_of_precision():
    short, long = (lc.memory("gpt2", **{name: "bf16-masters"}, **SMALL) for name in ("dtype", "precision"))
    assert short == long == lc.memory("gpt2", dtype="bf16-masters", precision="bf16-masters", **SMALL)
    for ask in (lc.memory, lc.cost, lc.compare):
        with pytest.raises(InputError, match="dtype fp32 and precision bf16-masters are the same setting"):
            ask("gpt2", dtype="fp32", precision="bf16-masters", **SMALL)


@pytest.mark.parametrize(
    ("name", "count", "size"),
    [
        ("int8-256", 4096, 4096 + 16 * 4),  # bitsandbytes: a byte a number, a float for 256
        ("int8-256", 4095, 4 * 4095),  # and fp32 below 4,096 numbers
        ("nf4-64", 4096, 2048 + 64 * 4),  # QLoRA, section 3: 0.5 bits a number for the scales
        ("nf4-64-double", 64 * 256, 32 * 256 + 256 + 4),  # and 8/64 + 32/(64 x 256) bits with double quantization
        ("int4-128", 256, 128 + 2 * 2),
        ("int8-256", 5000, 5000 + 20 * 4),  # the last block has 136 numbers, and a float too
        ("nf4-64", 100, 50 + 2 * 4),
    ],
)
def test_bytes_of_blocks_are_those_of_the_sources(name, count, size):
    assert bytes_of_type(name, count) == size


def test_states_in_eight_bits_take_a_quarter_and_their_scales():
    narrow = lc.memory("gpt2", precision="bf16-true", optimizer="adamw8bit", engine="graph", **SMALL)
    wide = lc.memory("gpt2", precision="fp32", engine="graph", **SMALL)
    assert "master weights" not in {name for name, size in narrow.split.items() if size}
    assert narrow.split["optimizer state"] < wide.split["optimizer state"] / 2
    assert 2 * narrow.split["weights"] == wide.split["weights"]


def test_levels_are_in_order_and_reach_one():
    for kind in BLOCKS.values():
        if kind.levels:
            assert list(kind.levels) == sorted(kind.levels)
            assert kind.levels[-1] == 1 or kind.learns, "what learns has room to grow"
            assert len(kind.levels) <= 2**kind.bits


LORA = {"lora": "all-linear", "lora_rank": 4}


def test_frozen_weights_in_four_bits_are_counted_as_they_are_packed():
    plain, small, double = (
        lc.memory("gpt2", precision=name, seq_len=16, **LORA, **SMALL) for name in ("bf16-true", "nf4", "nf4-double")
    )
    blocks = SMALL["n_layer"] * 12 * SMALL["n_embd"] ** 2
    # QLoRA, section 3: 32/64 bits a number for the scales, with double quantization 8/64 + 32/(64 x 256); here the
    # scales of a result's blocks are cut in groups of 256, of which a part counts as a whole one: 4, 4, 4, 4, 4 and 16
    # rows of 64 numbers in q, k, v, o and both halves of the network.
    assert plain.split["weights"] - small.split["weights"] == 2 * blocks - blocks // 2 - 4 * blocks // 64
    seconds = SMALL["n_layer"] * (4 * 1 + 1 + 4)
    assert small.split["weights"] - double.split["weights"] == (4 - 1) * blocks // 64 - 4 * seconds
    assert plain.peak > small.peak > double.peak


def test_four_bits_beside_fp16_have_masters_of_what_learns_alone():
    narrow, usual = (lc.memory("gpt2", precision=name, seq_len=16, **LORA, **SMALL) for name in ("nf4-fp16", "nf4"))
    assert narrow.split["weights"] == usual.split["weights"]
    assert narrow.split["master weights"] == 4 * lc.cost("gpt2", seq_len=16, **LORA, **SMALL).trained_parameters


def test_a_dequantized_weight_is_not_kept_for_the_backward_pass():
    needs = lc.memory("gpt2", precision="nf4", seq_len=16, engine="graph", plan="none", **LORA, **SMALL)
    quantized = {
        name.removesuffix(".codes")
        for name in (live_array.name for live_array in needs.live_at_peak)
        if "codes" in name
    }
    assert quantized
    alive = [array.name for array in needs.live_at_peak]
    assert not {name for name in alive if name.rstrip("*") in quantized and name.endswith("*")}
    lines = [moment.line for moment in needs.curve if moment.macro_operation == "recomputation"]
    assert len(lines) == len(quantized) - 3  # the lowest block needs no gradient below its first product: q, k and v


def test_what_no_precision_can_store_is_said():
    with pytest.raises(InputError, match="but gpt2 has none: freeze some"):
        lc.memory("gpt2", precision="nf4", **SMALL)


def test_bytes_that_a_quantized_product_moves_are_those_of_its_types():
    ledger = lc.cost("gpt2", precision="nf4", seq_len=16, **LORA, **SMALL)
    row = next(row for row in ledger.rows if row.layer == "dequantization" and row.macro_operation == "forward")
    weights = SMALL["n_layer"] * 12 * SMALL["n_embd"] ** 2
    assert row.flops == weights  # one product a number: its level by its scale
    assert row.bytes == weights // 2 + 4 * weights // 64 + 2 * weights  # codes and scales read, bf16 written
    kinds = {name: lc.cost("gpt2", precision=name, by="kind", seq_len=16, **LORA, **SMALL) for name in ("nf4", "bf16")}
    matrix = {
        name: {(row.macro_operation, row.kind): row.maccs for row in cost.rows if row.kind != "elementwise"}
        for name, cost in kinds.items()
    }
    again = ("recomputation", "linear")
    assert matrix["nf4"].pop(again) == 0
    assert matrix["nf4"] == matrix["bf16"]


AMBIGUOUS = "is ambiguous in training: give {0}-masters .*, {0}-true .* or amp"
SPELLINGS = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16"}


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (partial(lc.memory, "gpt2", engine="graph"), "does not support precision='?amp"),
        (partial(lc.memory, "gpt2", mesh="dp=2", placement="zero-1"), "over a mesh requires engine"),
        (partial(lc.memory, "gpt2", mesh="dp=2", placement="fsdp", engine="eager"), "bf16-masters"),
        (partial(lc.memory, "gpt2", procedure="decode"), "is that of training steps"),
        (partial(lc.run_cost, "gpt2", 1e9, "DGX H100", devices=8, mesh="dp=8"), "over a mesh requires engine"),
        (partial(lc.search, "gpt2", "DGX H100", 8), "search does not support autocast"),
    ],
)
def test_autocast_is_that_of_eager_training_steps(ask, message):
    with pytest.raises(InputError, match=message):
        ask(precision="amp")


@pytest.mark.parametrize(("name", "kind"), SPELLINGS.items())
def test_a_narrow_type_alone_is_refused_where_the_choices_differ(name, kind, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("abc" * 100)
    for ask in (
        lambda: lc.memory("gpt2", precision=name, **SMALL),
        lambda: lc.fit("gpt2", budget="1GB", dtype=name, **SMALL),
        lambda: lc.fit("gpt2", budget="1GB", procedures="bp,inference", dtype=name, **SMALL),
        lambda: lc.cost("gpt2", precision=name, mesh="dp=2", placement="zero-1", **SMALL),
        lambda: lc.place("gpt2", "dp=2", placement="zero-1", precision=name, **SMALL),
        lambda: lc.search("llama-2-7b", "DGX-H100", 8, precision=name),
        lambda: lc.run_cost("gpt2", "1e9", "DGX-H100", 8, mesh="dp=8", precision=name),
        lambda: lc.cost("gpt2", precision=name, on="A100-SXM-80GB", **SMALL),
        lambda: lc.run_cost("gpt2", "1e9", "A100-SXM-80GB", mfu=0.4, precision=name, **SMALL),
        lambda: lc.trace("gpt2", precision=name, **SMALL),
        lambda: lc.report("gpt2", str(tmp_path / "report.html"), precision=name, **SMALL),
        lambda: lc.emit("gpt2", "torch", precision=name, **SMALL),
        lambda: lc.Training("gpt2", precision=name, **SMALL),
        lambda: lc.train(str(text), out=str(tmp_path / "run"), precision=name),
        lambda: lc.train(str(text), out=str(tmp_path / "run"), dtype=name),
    ):
        with pytest.raises(InputError, match=AMBIGUOUS.format(kind)):
            ask()


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(("name", "kind"), SPELLINGS.items())
def test_a_narrow_type_alone_is_taken_where_the_choices_agree(name, kind):
    def asked(precision):
        given = {"precision": precision, **SMALL}
        return (
            lc.cost("gpt2", seq_len=16, **given),
            lc.cost("gpt2", "decode", context=16, on="A100-SXM-80GB", **given),
            lc.fit("gpt2", budget="1GB", procedures="inference", seq_len=16, **given),
            lc.compare("gpt2", seq_len=16, **given),
        )

    def numbers(answer):
        return re.sub(rf"{kind}(-masters|-true)?", "", json.dumps(answer.to_dict()))

    assert {
        tuple(map(numbers, asked(name))),
        tuple(map(numbers, asked(f"{kind}-masters"))),
        tuple(map(numbers, asked(f"{kind}-true"))),
    } == {tuple(map(numbers, asked(kind)))}


@pytest.mark.parametrize(("old", "new"), [("bf16-8bit-states", "bf16-true"), ("fp32-8bit-states", "fp32")])
def test_a_precision_of_states_is_refused_with_the_precision_and_the_optimizer(old, new):
    with pytest.raises(InputError, match=f"{old} is now precision={new!r} optimizer='adamw8bit'"):
        lc.memory("gpt2", precision=old, **SMALL)
    assert lc.memory("gpt2", precision=new, optimizer="adamw8bit", **SMALL).peak


def test_states_of_eight_bits_are_read_and_written_in_a_byte():
    """Over a mesh, what the optimizer moves has its own types; in differences the time of launches cancels."""
    sizes = {"mesh": "dp=2", "placement": "ddp", "seq_len": 16, "batch_size": 2, "on": "DGX H100"}

    def seconds(precision, optimizer):
        rows = lc.cost("gpt2", precision=precision, optimizer=optimizer, by="macro-operation", **sizes).rows
        return next(row.time for row in rows if row.macro_operation == "optimizer_step")

    masters, narrow, eight = (
        seconds("bf16-masters", "adamw"),
        seconds("bf16-true", "adamw"),
        seconds("bf16-true", "adamw8bit"),
    )
    # Bytes a weight: gradient 2; masters in 4, out 4, weight out 2, two moments in and out 4 x 4; or weights in and out
    # 2 + 2, moments 4 x 2; or moments 4 x 1.
    assert (masters - narrow) / (narrow - eight) == pytest.approx((28 - 14) / (14 - 10), rel=0.02)


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        (lambda: lc.emit("gpt2", "torch", optimizer="adamw8bit", **SMALL), "emit does not support adamw8bit"),
        (lambda: lc.emit("gpt2", "c99", optimizer="adamw8bit", **SMALL), "emit does not support adamw8bit"),
        (lambda: lc.memory("gpt2", engine="torch", optimizer="adamw8bit", **SMALL), "supports only the optimizers sgd"),
        (lambda: lc.memory("gpt2", engine="c99", optimizer="adamw8bit", **SMALL), "supports only the optimizers sgd"),
        (
            lambda: lc.memory(
                "gpt2", engine="eager", optimizer_implementation="foreach", optimizer="adamw8bit", **SMALL
            ),
            "has no foreach adamw8bit: there is fused",
        ),
    ],
)
def test_states_of_eight_bits_are_refused_where_nothing_rounds_them(ask, why):
    with pytest.raises(InputError, match=why):
        ask()


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize(
    ("on", "name"),
    [
        (None, "fp32"),
        ("H100-SXM", "bf16-masters"),
        ("V100", "fp16-masters"),
        ("Apple M1 Max", "fp32"),
        ("cuda", "fp32"),
    ],
)
def test_every_command_has_the_usual_precision_of_the_device(on, name):
    small = {"seq_len": 8, "n_layer": 1, "optimizer": "adamw"}
    plain, stated = lc.memory("gpt2", on=on, **small), lc.memory("gpt2", on=on, precision=name, **small)
    assert (plain.dtype, plain.peak) == (name, stated.peak)
    assert f" in {name} by eager" in str(plain).partition(":")[0]
    if on == "cuda":
        return
    if on is None:
        assert lc.cost("gpt2", **small).dtype == name
        return
    fits = lc.fit("gpt2", procedures="bp", on=on, **small)
    assert (fits.dtype, fits.rows[0].ram) == (name, plain.peak)
    timed = lc.cost("gpt2", on=on, **small)
    assert timed.dtype == name
    assert f"one step of bp in {name}, timed under flash:" in str(timed).partition("\n")[0]
    assert lc.run_cost("gpt2", "1e9", on, seq_len=8, n_layer=1).precision == name

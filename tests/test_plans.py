"""Plans change when lines run and what lies in memory, never what comes out."""

import json
from dataclasses import replace

import jax
import numpy as np
import pytest

import learncost as lc
from counting import counting, tally_of
from learncost.cli.command import main
from learncost.ir.errors import InputError
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import Polynomial, total
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.plan import PLANS, plan_of, planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.sharding.mesh import mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from planned import MODELS, given, results, sizes_of, table_of
from programs import execute, worst

PARTS = ["gelu+norm", "silu+norm", "attention", "feed_forward", "softmax+add_norm", "all", "block"]


def repeats(table):
    return [line for line in table.lines if isinstance(line, Loop)]


def test_a_row_that_is_read_from_another_turn_is_made_by_another_kernel():
    text = "t(X; g) -> Z\nU[B M d] = X[B M d] g[d]\nY[B M d] = exp(U[B M d])\nS[B M d] = Y[B M=(M - 1) d]"
    table = planned(lc.layer(f"{text}\nZ[B M d] = Y[B M d] - S[B M d]").table, "fused")
    first, second, shifted, last = (line.meta.kernel for line in table.lines)
    assert first == second
    assert shifted == last
    assert first != last


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("model", MODELS)
def test_what_runs_again_changes_nothing_bit_for_bit(model):
    table, sizes = table_of(model), sizes_of(model)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    assert np.isfinite(plain["loss"])
    assert len(plain) == 1 + 3 * len(table.weights)
    for part in PARTS:
        again = results(planned(table, f"recompute={part}"), values, sizes)
        assert again.keys() == plain.keys()
        assert all(again[name].tobytes() == array.tobytes() for name, array in plain.items()), part


TOGETHER = [
    "chunked-loss",
    "fused-update",
    "flash,fused",
    "chunked-loss,fused-update,recompute=gelu+silu+norm",
    "fused-update,recompute=block",
    "epilogue-update",
    "flash,fused,chunked-loss,epilogue-update,recompute=gelu+silu+norm",
    "flash,fused,chunked-loss,fused-update,recompute=gelu+silu+norm",
    "flash,fused,chunked-loss,fused-update,recompute=all",
    "flash,fused,recompute=attention",
]


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_every_plan_gives_the_same_loss_and_weights(model, optimizer):
    table, sizes = table_of(model, optimizer=optimizer), sizes_of(model)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    for text in TOGETHER:
        computed = results(planned(table, text), values, sizes)
        assert computed.keys() == plain.keys()
        for name, array in plain.items():
            np.testing.assert_allclose(computed[name], array, 1e-12, 1e-12, err_msg=f"{name} under {text}")


def kept(table):
    """What the blocks keep for their backward turns."""
    forward, *_ = repeats(table)
    return {inside for inside, _ in forward.keep}


def test_flash_takes_a_softmax_of_any_kind():
    """That of gpt-oss has a sink: its scores are in kernels too, and no block keeps them."""
    table, sizes = table_of("gpt-oss-20b"), sizes_of("gpt-oss-20b")
    values = given(table, sizes)
    plain, fast = results(table, values, sizes), results(planned(table, "flash"), values, sizes)
    assert any(name.endswith(".attn.P") for name in kept(table))
    assert not any(".attn.P" in name or ".attn.S" in name for name in kept(planned(table, "flash")))
    for name, array in plain.items():
        np.testing.assert_allclose(fast[name], array, 1e-12, 1e-12, err_msg=name)


def test_a_block_of_gpt2_keeps_the_inputs_of_its_norms_and_of_gelu():
    # Of the norms and GELU only what they are computed from: X and X.2, and U, which GELU's gradient reads anyway.
    table = planned(table_of("gpt2"), "recompute=gelu+norm")
    attention = {f"attn.{name}" for name in "QKVPA"}
    assert kept(table) == {"X", "X.2", "mlp.U"} | attention
    # A gated feed-forward keeps both halves and nothing that it makes of them.
    table = planned(table_of("llama-2-7b"), "recompute=silu+norm")
    assert kept(table) == {"X", "X.2", "mlp.U", "mlp.V"} | attention
    # What a norm makes by its gain is made again of the normalized value, which takes half of X in bf16.
    table = table_of("llama-2-7b")
    assert kept(table) - kept(planned(table, "recompute=affine")) == {"H", "G"}


def test_a_block_keeps_its_input_alone_when_all_of_it_runs_again():
    for model in MODELS:
        table = planned(table_of(model), "recompute=all")
        for line in repeats(table):
            if not line.reverse:
                starts = {carry.start.rstrip("*") for carry in line.carry}
                assert {name.rstrip("*") for name, stack in line.keep if stack.endswith("*")} <= starts, model


def test_a_line_runs_again_just_before_its_first_reader():
    _, backward = repeats(planned(table_of("gpt2"), "recompute=gelu"))
    names = [line.name for line in backward.lines]
    assert names[names.index("mlp.G") + 1] == "dmlp.W2"
    assert [line.name for line in backward.lines if line.meta.phase == "recomputation"] == ["mlp.G"]


@pytest.mark.parametrize("model", ["gpt2", "llama-2-7b"])
def test_what_runs_again_costs_what_it_cost_and_nothing_else(model):
    table = table_of(model)
    plain = lc.price(table, {}, lc.book("run"))
    activation = {"gpt2": "gelu", "llama-2-7b": "silu"}[model]
    again = lc.price(planned(table, f"recompute={activation}+norm"), {}, lc.book("run"))
    plain_parts, two = plain.by("macro_operation"), again.by("macro_operation")
    more = two.pop(("recomputation",))
    assert {key: part.flops for key, part in plain_parts.items()} == {key: part.flops for key, part in two.items()}
    counted = [
        row
        for row in plain.rows
        if row.macro_operation == "forward"
        and row.block
        and ("norm" in row.layer or (row.source.name in ("mlp.G", "mlp.H") and not row.maccs))
    ]
    names = {"gpt2": 7, "llama-2-7b": 6}[model]  # Z, U and H of both norms, G; Z and H of both norms, G and G V
    assert len({row.source.name for row in counted}) == names
    assert more.flops == total(row.flops for row in counted)
    assert more.maccs == total(row.maccs for row in counted)  # of the sums of squares


def test_all_costs_a_block_without_what_its_backward_pass_does_not_read():
    # Chen et al.: the whole block; its last product, W2's, its bias and the sum after it are read by nothing backward.
    table = table_of("gpt2")
    price = [lc.price(planned(table, f"recompute={part}"), {}, lc.book("run")) for part in ("block", "all")]
    block, lean = (price_of.by("macro_operation")[("recomputation",)] for price_of in price)
    unread = [row for row in block.rows if row.source.name in ("mlp.O", "F", "X.3")]
    assert len(unread) == 3
    assert block.flops == lean.flops + total(row.flops for row in unread)
    forward = [row for row in price[0].rows if row.macro_operation == "forward" and row.block]
    assert block.flops == total(row.flops for row in forward)


def test_the_procedure_recompute_is_the_plan():
    for model in MODELS:
        assert planned(table_of(model), "recompute=block").lines == table_of(model, "recompute").lines


def test_flash_under_the_procedure_recompute_stores_no_scores():
    for model in ("gpt2", "gemma-2-2b", "bart-base"):
        flash_table = planned(table_of(model, "recompute"), "flash")
        assert flash_table.lines == planned(table_of(model), "flash,recompute=block").lines
        inside = {name for line in repeats(flash_table) for name in line.axes if name.endswith("attn.P")}
        outside = {name for line, _ in walk(flash_table.lines) if not line.meta.kernel for name in line.reads}
        assert inside
        assert inside.isdisjoint(outside)


def test_blocks_that_keep_their_stacks_within_a_stack():
    # ALBERT's groups hold repeats: the input of each block is kept in a stack of stacks.
    table = planned(table_of("albert-base-v2"), "recompute=block")
    again = [line for line, nest in walk(table.lines) if line.meta.phase == "recomputation"]
    plain = [line for line, nest in walk(table.lines) if line.meta.phase == "forward" and nest.loops]
    assert len(again) == len(plain) > 20
    assert kept(table) == {"X**"}


def made(table):
    """The axes of every array that a step makes, the stacks of its repeats included."""
    for line, _ in walk(table.lines):
        yield from ((term.name, term.declared) for term in line.left)
    for line in repeats(table):
        yield from ((outer, (line.count, *line.axes[inside])) for inside, outer in line.keep)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", MODELS)
def test_the_head_takes_turns_over_sequences(model):
    table = table_of(model)
    wide = {name for name, axes in made(table) if {"B", "v"} <= set(axes)}
    assert len(wide) >= 4
    chunked = planned(table, "chunked-loss")
    assert not any({"B", "v"} <= set(axes) for _, axes in made(chunked))
    (iterations,) = [line for line in repeats(chunked) if line.count == "B"]
    assert wide <= set(iterations.axes)
    # Every sequence adds its share to the loss and to the gradients of the head's weights, and nothing else is new;
    # the first is added to nothing.
    plain, chunked_price = (lc.price(table_priced, {}, lc.book("run")) for table_priced in (table, chunked))
    assert chunked_price.maccs == plain.maccs
    weights = {carry.final.removesuffix("+1")[1:] for carry in iterations.carry if carry.final != "loss"}
    assert weights == {
        "gpt2": {"wte"}, "llama-2-7b": {"head.W"}, "gemma-2-2b": {"wte"}, "mixtral-8x7b": {"head.W"},
        "bert-base": {"wte", "head.b"}, "bart-base": {"wte"}, "albert-base-v2": {"wte", "head.b"},
    }[model]  # fmt: skip
    additions = Polynomial.of(("B",)) - Polynomial.of(())
    sums = total(Polynomial.of(table.axes[name]) * additions for name in weights)
    assert chunked_price.flops == plain.flops + sums + additions


def test_the_head_is_left_as_it_is_where_its_scores_are_wanted_or_its_loss_is_another():
    table = table_of("gpt2")
    assert planned(replace(table, outputs=(*table.outputs, "P.L")), "chunked-loss").lines == table.lines
    others = [
        ("bert-base", {"architecture": "BertModel"}),
        ("bert-base", {"architecture": "BertForSequenceClassification", "num_labels": 4}),
        ("bert-base", {"architecture": "BertForQuestionAnswering"}),
    ]
    for model, sizes in others:
        table = table_of(model, **sizes)
        assert planned(table, "chunked-loss") is table
    table = table_of("gpt2", "pepita", "sgd")
    assert planned(table, "chunked-loss,recompute=all").lines == table.lines


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("model", MODELS)
def test_weights_are_updated_at_once(model):
    table = table_of(model)
    moved = planned(table, "fused-update")
    gradients = {f"d{weight}" for weight in table.weights}
    blocks = {outer for line in repeats(table) for _, outer in line.each if outer in table.weights}
    assert {name for name, axes in made(table)} >= gradients
    others = {f"d{weight}" for weight in table.weights if weight not in blocks}
    assert {name for name, axes in made(moved) if name in gradients and axes == table.axes[name]} == others
    assert not gradients & set(moved.outputs)
    assert lc.price(moved, {}, lc.book("run")).flops == lc.price(table, {}, lc.book("run")).flops
    # A weight is read no more once it is updated: what runs may write the new one in its place.
    for lines in (moved.lines, *(line.lines for line in repeats(moved))):
        updated = set()
        for line in lines:
            assert updated.isdisjoint(line.reads)
            if not isinstance(line, Loop) and line.meta.phase == "optimizer_step":
                updated.add(line.right[0].name)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("model", ["gpt2", "llama-2-7b", "bert-base", "bart-base"])
def test_the_price_under_a_plan_is_what_numpy_executes(model):
    table, sizes = table_of(model), sizes_of(model)
    values = given(table, sizes)
    for text in (
        "chunked-loss",
        "fused-update",
        "recompute=gelu+silu+norm",
        "flash,fused,chunked-loss,fused-update,recompute=all",
    ):
        rewritten = planned(table, text)
        _, units = tally_of(results, rewritten, {name: counting(array) for name, array in values.items()}, sizes)
        assert units == lc.price(rewritten, sizes, lc.book("run")).flops, text


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize(
    ("model", "backend", "optimizer"),
    [
        ("gpt2", "numpy", "adamw"),
        ("gpt2", "torch", "adamw"),
        ("gpt2", "jax", "sgd"),
        ("llama-2-7b", "torch", "adamw"),
        ("bart-base", "torch", "sgd"),
    ],
)
def test_a_planned_step_is_emitted_as_it_is_defined(model, backend, optimizer):
    few = {"num_hidden_layers": 1} if backend == "jax" else {}  # jax.jit compiles every turn by itself
    table, sizes = table_of(model, optimizer=optimizer, **few), sizes_of(model, **few)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    jit = (lambda function, _: jax.jit(function)) if backend == "jax" else None
    executed = execute(
        planned(table, "chunked-loss,fused-update,recompute=gelu+silu+norm"), backend, values, sizes, jit
    )
    assert executed.keys() >= plain.keys()
    assert worst({name: executed[name] for name in plain}, plain)[1] < 1e-12


@pytest.mark.parametrize("model", ["gpt2", "llama-2-7b"])
def test_every_plan_finds_something_to_do(model):
    table = without_gradients(table_of(model))

    def over_devices(text):
        return place(table, mesh("cp=2"), chosen(None, "cp"), sizes_of(model) | {"M": 8}, plan=text).table

    for plan in PLANS.values():
        text = f"{plan.name}={plan.example}" if plan.argument else plan.name
        if plan.name in ("keep", "zigzag"):
            assert planned(table, text) == table
            assert over_devices(text) != over_devices(""), text
        else:
            assert planned(table, text) != table, text


@pytest.mark.parametrize("model", ["gpt2", "deberta-v3-xsmall"])
def test_flash_runs_the_scores_once_more_under_explicit_jacobians_too(model):
    plain, flash = (
        lc.cost(model, price_book="paper", seq_len=64, plan=plan, train_layers="0", dropout=0.1)
        for plan in (None, "flash")
    )
    again = flash.macro_operations["recomputation"][1].maccs
    assert again > 0
    assert flash.total.maccs == plain.total.maccs + again


def test_plans_are_applied_in_the_order_of_the_registry():
    names = [plan.name for plan, _ in plan_of(",".join(reversed([plan.spelling for plan in PLANS.values()])))]
    assert names == list(PLANS)


def test_a_plan_leaves_what_it_does_not_find():
    table = table_of("llama-2-7b")
    assert planned(table, "recompute=gelu").lines == table.lines
    assert planned(table, "") is table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("recompte=norm", "no plan is called 'recompte'; the nearest is 'recompute'"),
        ("recompute=gelo", "no part of a block is called 'gelo'"),
        ("recompute=nrm", "the nearest is 'norm'"),
        ("recompute", "needs an argument: write recompute=WHAT, as in recompute=gelu+norm"),
        ("recompute=gelu+", "needs an argument"),
        ("recompute=gelu,recompute=norm", "occurs twice"),
        ("keep=softmax", "keep takes collectives, such as all_gather or dispatch: softmax is not one"),
        ("keep=all_gathr", "no operator"),
        ("recompute=block/two", "recompute=block/K needs a whole number K from 1, not block/two"),
        ("recompute=block/2+block/3", "K from 1, not block/2 and block/3"),
    ],
)
def test_what_is_not_a_plan_is_refused_in_one_line(text, message):
    with pytest.raises(InputError) as error:
        planned(table_of("gpt2"), text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_commands_take_a_plan(capsys):
    text = "chunked-loss,fused-update,recompute=gelu+norm"
    table = planned(step(build(configure("gpt2")), "bp", "adamw"), text)
    ledger = lc.cost("gpt2", batch_size=2, plan=text)
    sizes = run_sizes(build(configure("gpt2")), 2, None, None)
    assert ledger.total.flops == lc.price(table, sizes, lc.book("run")).flops
    assert ledger.to_dict()["plan"] == text
    assert ledger.macro_operations["recomputation"][0] == 1
    assert "plan" not in lc.cost("gpt2").to_dict()
    beside = lc.compare("gpt2", "bp,pepita", plan="recompute=norm").costs["run"]
    assert [cost.macro_operations["recomputation"][1].flops > 0 for cost in beside.values()] == [True, False]
    assert main(["list", "plans", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in listed] == [plan.spelling for plan in PLANS.values()]
    assert main(["emit", "gpt2", "--plan", "recompute=gelu"]) == 0
    assert "under recompute=gelu" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("cost gpt2 --plan auto", "learncost memory MODEL --plan auto prints the chosen plan"),
        ("cost gpt2 --plan recompte=norm", "no plan is called"),
        (
            "cost gpt2 --procedure decode --plan chunked-loss",
            "the plan chunked-loss does not apply to decode of gpt2: it changes nothing",
        ),
        ("cost mamba-130m --plan flash", "the plan flash does not apply to mamba-130m: it changes nothing"),
        ("memory mamba-130m --plan flash", "the plan flash does not apply to mamba-130m: it changes nothing"),
        ("run-cost mamba-130m --tokens 1e9 --on H100-SXM --plan flash", "does not apply to mamba-130m"),
        ("cost gpt2 --plan ring", "the plan ring requires --mesh: it changes nothing on one device"),
        ("memory gpt2 --plan zigzag", "the plan zigzag requires --mesh"),
        ("trace gpt2 --plan flash,keep=all_gather", "the plan keep requires --mesh"),
        ("cost gpt2 --plan fused --on H100-SXM", "engine eager does not support --plan fused: give --engine graph"),
        ("cost gpt2 --engine numpy --on H100-SXM", "--engine numpy has no model of time: give --engine eager or graph"),
        ("cost gpt2 --price-book megatron --plan chunked-loss", "is a formula for whole models"),
        ("emit attention --plan chunked-loss", "--plan applies to models"),
        ("compare gpt2 --plan chunked-loss=3", "takes no argument"),
    ],
)
def test_a_plan_that_does_not_apply_is_refused_in_one_line(line, message, capsys):
    assert main(line.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_weights_of_chosen_experts_are_no_scores():
    """Their softmax goes over what was chosen, not over positions: kernels of attention leave them out."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    table = step(build(configure({"model_type": "mixtral", **sizes})), "bp", "sgd")
    inside = [line.name for line, _ in walk(planned(table, "flash").lines) if line.meta.kernel]
    assert inside
    assert not [name for name in inside if "moe" in name]

"""Rings: what a placement would gather goes round the devices, a part in every turn."""

from dataclasses import replace

import pytest

import learncost as lc
from learncost.ir.errors import InputError
from learncost.ir.line import Op, Sum
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import came_from, first_of, size_of
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.reports.mesh_cost import in_a_ring
from learncost.sharding.check import check_placed
from learncost.sharding.collective import collectives
from learncost.sharding.mesh import mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from learncost.verification.placements import verify_placements
from sampling import sampled


def placed_of(family, grid="cp=4", plan="flash,ring", names="cp", procedure="bp", **settings):
    model = build(small(family, num_hidden_layers=2, num_key_value_heads=2, **settings))
    sizes = run_sizes(model, 2, 16, None)
    table = planned(without_gradients(step(model, procedure, "sgd")), plan)
    return place(table, mesh(grid), chosen(None, names), sizes, plan=plan), sizes


def test_keys_values_and_their_gradients_go_round_once():
    """(p - 1)/p of keys and values forward, of these again backward, and of their gradients."""
    placed, sizes = placed_of("llama")
    moved = [one for one in collectives(placed, sizes) if one.role == "values" and one.op == "pass_on"]
    whole = 4 * sizes["B"] * sizes["M"] * sizes["g"] * sizes["k"]
    assert sum(one.payload_bytes * one.times for one in moved) * 4 == 6 * 3 * whole * sizes["n_layer"]
    assert {one.phase for one in moved} == {"forward", "recomputation", "backward"}
    assert sum(one.times for one in moved) == 6 * 3 * sizes["n_layer"]
    ops = {line.op for line, nest in walk(placed.table.lines) if nest.loops and isinstance(line, Op)}
    assert not ops & {"all_gather", "reduce_scatter"}


@pytest.mark.parametrize(
    ("procedure", "plan"),
    [("bp", "ring,recompute=block"), ("bp", "flash,ring,recompute=block"), ("recompute", "ring")],
)
def test_keys_of_a_block_that_runs_again_go_round_once_more(procedure, plan):
    """Attention runs again in a ring of its own, before the one of its gradients; only the block's input is kept."""
    placed, sizes = placed_of("llama", plan=plan, procedure=procedure)
    moved = [one for one in collectives(placed, sizes) if one.role == "values" and one.op == "pass_on"]
    whole = 4 * sizes["B"] * sizes["M"] * sizes["g"] * sizes["k"]
    assert sum(one.payload_bytes * one.times for one in moved) * 4 == 8 * 3 * whole * sizes["n_layer"]
    forward = next(line for line in placed.table.lines if isinstance(line, Loop))
    assert [name for name, _ in forward.keep] == ["X"]


def test_no_array_has_the_whole_sequence():
    placed, _ = placed_of("gpt2")
    assert not [name for name, value in placed.table.known.items() if {"M", "M'"} & {*value.axes}]
    gathered, _ = placed_of("gpt2", plan="flash")
    assert [name for name, value in gathered.table.known.items() if {"M", "M'"} & {*value.axes}]


def test_a_part_that_came_round_begins_where_its_device_does():
    sizes = {"M": 12, "cp": 4, "cp:here": 1}
    starts = [first_of("M/cp~'", sizes | came_from("cp", iteration, sizes)) for iteration in range(3)]
    assert starts == [0, 9, 6]
    assert size_of("M/cp~'", sizes) == 3
    assert in_a_ring("pass_on", 100, 4) == 100


RINGS = [
    ("gpt2", "cp=8", "cp", "ring"),
    ("falcon", "cp=2,tp=2", "cp,megatron", "flash,chunked-loss,ring"),
    ("bart", "cp=2", "cp", "flash,ring"),
    ("albert", "cp=2", "cp", "ring"),
    ("llama", "cp=2,tp=2", "megatron-sp,cp", "flash,ring"),  # parts of parts
    ("bloom", "cp=2", "cp", "flash,ring,zigzag"),
    ("gemma3n_text", "cp=2", "cp", "flash,ring"),  # keys of an earlier layer go round
    ("gpt2", "cp=4", "cp", "recompute=block,ring"),
    ("llama", "cp=2", "cp", "flash,zigzag,recompute=block,ring"),
    ("mistral", "cp=2", "cp", "recompute=attention,ring"),
    ("mixtral", "cp=2,tp=2", "megatron-sp,cp", "flash,ring"),  # what is saved is gathered first
    ("gpt_oss", "cp=2", "cp", "flash,ring"),  # a sink takes a share of every row
    ("gpt_oss", "cp=4", "cp", "zigzag,recompute=block,ring"),
]


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize(("family", "grid", "names", "plan"), sampled(RINGS, 4))
def test_rings_are_proved_by_running(family, grid, names, plan):
    found = list(verify_placements(build(small(family)), grid, None, names, plan, optimizer="sgd"))
    assert {check.passed for check in found} == {True}, [str(check) for check in found]


def changed(lines, change):
    """Lines with every repeat round a mesh as `change` has it."""
    result = []
    for line in lines:
        if isinstance(line, Loop):
            line = replace(line, lines=tuple(changed(line.lines, change)))
            line = change(line) if line.around else line
        result.append(line)
    return result


def without_a_step(repeat):
    moved = next(line for line in repeat.lines if isinstance(line, Op) and line.op == "pass_on")
    lines = tuple(line.renamed({moved.name: moved.right[0].name}) for line in repeat.lines if line is not moved)
    ends = {moved.name: moved.right[0].name}
    return replace(
        repeat, lines=lines, carry=tuple(replace(carry, end=ends.get(carry.end, carry.end)) for carry in repeat.carry)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_a_step, "of the previous iteration"),
        (lambda repeat: replace(repeat, count="2"), "2 ring iterations do not match 4 devices"),
        (lambda repeat: replace(repeat, around=""), "cannot be proved correct"),
    ],
)
def test_a_ring_that_leaves_a_part_out_is_refused(change, message):
    placed, _ = placed_of("gpt2")
    table = placed.table
    check_placed(table, [("cp", 4)])
    with pytest.raises(InputError, match=message):
        check_placed(replace(table, lines=tuple(changed(table.lines, change))), [("cp", 4)])


def test_a_sum_without_the_own_part_is_refused():
    placed, _ = placed_of("gpt2")

    def own_left_out(lines):
        for line in lines:
            if isinstance(line, Loop) and not line.around:
                yield replace(line, lines=tuple(own_left_out(line.lines)))
            elif isinstance(line, Sum) and line.name == "dattn.Q":
                yield replace(line, right=line.right[:1], signs=(1,))
            else:
                yield line

    with pytest.raises(InputError, match="the sum over the parts of the others"):
        check_placed(replace(placed.table, lines=tuple(own_left_out(placed.table.lines))), [("cp", 4)])


def test_what_cannot_go_round_backwards_stays_gathered():
    """T5 adds up the gradients of a bias of pairs over all layers; the keys of its encoder go round in the decoder."""
    placed, sizes = placed_of("t5", "cp=2")
    gathered, moved = (
        {placed.holds[one.line] for one in collectives(placed, sizes) if one.op == op}
        for op in ("all_gather", "pass_on")
    )
    assert {"decoder.cross.K", "ddecoder.cross.K"} <= moved
    assert "encoder.attn.K" in gathered - moved


@pytest.mark.parametrize(
    ("family", "grid", "names", "plan", "message"),
    [
        ("gpt2", "dp=2", "ddp", "ring", "no line sums over gathered keys"),
    ],
)
def test_what_cannot_go_round_is_refused(family, grid, names, plan, message):
    with pytest.raises(InputError, match=message) as refusal:
        placed_of(family, grid, plan, names)
    assert "\n" not in str(refusal.value)


def test_over_one_device_scores_are_made_again():
    table = lc.place("gpt2", "cp=1,dp=1", placement="cp", plan="ring", n_layer=2).over.placed.table
    assert not [line for line, _ in walk(table.lines) if isinstance(line, Op) and line.op == "pass_on"]


def test_parts_go_round_beside_the_lines_of_their_turns():
    settings = {"mesh": "cp=4", "placement": "cp", "on": "DGX-H100", "seq_len": 8192, "num_hidden_layers": 1}
    costs = [lc.cost("llama-3-8b", plan=plan, **settings) for plan in ("flash,ring", "flash")]
    ring, gathered = (cost.over_time for cost in costs)
    (row,) = (row for row in ring.moved if row.op == "pass_on")
    assert ring.waits < 0.1 * row.seconds < gathered.waits
    assert ring.overlapping >= row.seconds
    assert "ring steps overlap with the compute of their iteration" in costs[0].to_dict()["step"]["assumed"]
    assert "ring steps" not in costs[1].to_dict()["step"]["assumed"]


def test_a_layer_of_a_ring_is_counted_once():
    """Whatever its turns: they are in its counts."""
    rows = lc.cost("gpt2", mesh="cp=4", placement="cp", plan="ring").rows
    assert {row.repeat for row in rows if row.layer == "attention"} == {12}

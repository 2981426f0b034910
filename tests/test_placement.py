"""Placement: the table that every device runs gives what the whole table gives."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

import learncost as lc
from learncost.interpreter import moves as run_collected
from learncost.interpreter.operation import position
from learncost.ir.errors import InputError
from learncost.ir.line import Op
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import first_of, size_of
from learncost.ir.term import Term
from learncost.models.adaptation import Adaptation, adapted
from learncost.models.model import build, run_sizes
from learncost.models.small import small
from learncost.ops import entry
from learncost.passes.plan import planned
from learncost.procedures.optimizer import with_clipping, without_gradients
from learncost.procedures.step import step
from learncost.sharding.check import check_placed
from learncost.sharding.clauses import clauses
from learncost.sharding.collective import collectives
from learncost.sharding.devices import run_placed, together
from learncost.sharding.mesh import mesh
from learncost.sharding.padding import check_filled, paddable
from learncost.sharding.place import place
from learncost.sharding.presets import PLACEMENTS, chosen
from learncost.sharding.zigzag import ordered
from learncost.verification.check import finite_arrays, values_of
from learncost.verification.placements import small_model, verify_placements

SIZES = {"num_hidden_layers": 2, "vocab_size": 32, "num_key_value_heads": 4}


@cache
def whole(family, optimizer="sgd"):
    """A small step of a family, its sizes, arrays and values."""
    model = build(small(family, **SIZES))
    sizes = run_sizes(model, 8, 8, None)
    table = without_gradients(step(model, "bp", optimizer))
    arrays = finite_arrays(table, sizes)
    return table, sizes, arrays, values_of(table, arrays, sizes)


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(
    ("family", "mesh_text", "names"),
    [
        ("gpt2", "dp=2", "ddp"),
        ("gpt2", "tp=4", "megatron"),
        ("llama", "tp=2", "megatron-sp"),
        ("gpt2", "cp=4", "ulysses"),
        ("mixtral", "cp=2,tp=2", "cp,megatron"),
        ("gpt2", "dp=2,cp=2,tp=2", "megatron-sp,cp,fsdp"),
    ],
)
def test_a_placed_step_gives_what_the_whole_gives(family, mesh_text, names):
    table, sizes, arrays, values = whole(family)
    grid = mesh(mesh_text)
    placed = place(table, grid, chosen(None, names), sizes)
    devices = run_placed(placed, arrays, sizes)
    gradients = [name for name, value in table.values.items() if value.role == "gradient" and name in values]
    largest = max(np.abs(values[name]).max() for name in gradients if not isinstance(values[name], list))
    compared = [name for name in (*gradients, *table.outputs) if not isinstance(values[name], list)]
    assert len(compared) > 20
    for name in compared:
        found = together([device[name] for device in devices], placed.layouts[name], grid)
        assert np.abs(found - values[name]).max() <= 1e-12 * largest, name


def test_in_zigzag_a_device_has_a_stretch_early_and_one_late():
    assert [*position(np.arange(16), 16, 4)] == [0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9]
    given, how = np.arange(24).reshape(2, 12), (("B", "M"), {"M": ("cp",)}, {"M": 12, "cp": 3})
    rows = ordered(ordered(given, *how), *how, back=True)
    assert np.array_equal(rows, np.arange(24).reshape(2, 12))


def test_zigzag_needs_two_stretches_for_each_device():
    table, sizes, _, _ = whole("llama")
    with pytest.raises(InputError, match="two ranges for each of 8 devices: the next possible size is 16"):
        place(planned(table, "zigzag"), mesh("cp=8"), chosen(None, "cp"), sizes, plan="zigzag")


def test_parts_of_axes_have_sizes_and_first_positions():
    sizes = {"f": 24, "tp": 2, "dp": 3, "tp:here": 1, "dp:here": 2}
    assert size_of("f/tp/dp", sizes) == 4
    assert first_of("f/tp/dp'", sizes) == 12 + 8


@pytest.mark.parametrize(
    ("mesh_text", "place_text", "message"),
    [
        ("tp=3", "h over tp", r"h \(heads\) is 4, .* by the 3 devices of tp: the next divisible size is 6"),
        ("tp=2", "h over dp", "names the axis dp, which is not in the mesh"),
        ("tp=2,dp=2", "h over tp", "nothing is sharded over dp"),
        ("tp=2", "y over tp", "shards y, which the model has not: give --placement or --place for tp without it"),
        ("tp=2", "h over tp of nowhere", "names nowhere, which is not in the table"),
        ("tp=2", "h f", "is not a sharding clause: write"),
        ("h=2", "f over h", "h is a size of the model"),
    ],
)
def test_what_cannot_be_placed_is_refused_in_one_line(mesh_text, place_text, message):
    table, sizes, _, _ = whole("gpt2")
    with pytest.raises(InputError, match=message):
        place(table, mesh(mesh_text), clauses(place_text), sizes)


def test_a_recurrence_is_not_cut_along_its_turns():
    """A state that begins with zeros is no total: every turn reads what the one before it made."""
    table, sizes, _, _ = whole("mamba")
    with pytest.raises(InputError, match=r"carry .*, so they cannot run in parallel on the devices"):
        place(table, mesh("cp=2"), chosen(None, "cp"), sizes)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("family", ["mamba", "mamba2", "rwkv"])
def test_a_recurrence_is_cut_along_its_channels(family):
    """Each has a state of its own, so that all its turns run on one device, and nothing is sent within a turn."""
    found = list(verify_placements(small_model(family), "tp=2", None, "megatron-sp", optimizer="sgd"))
    assert len(found) >= 4
    assert all(check.passed for check in found)


def test_what_turns_over_positions_read_is_gathered_before_them():
    """And what they sum is scattered after the last: nothing is sent within a turn."""
    placed = lc.place("mamba-130m", "tp=2", placement="megatron-sp")
    assert {each.times for each in placed.collectives} == {1, 24}  # it has 24 blocks


def test_a_mesh_is_written_with_sizes():
    with pytest.raises(InputError, match="write dp=2,tp=4"):
        mesh("dp")
    assert str(mesh("dp=2 tp=4")) == "dp=2,tp=4"
    assert [place["tp"] for place in mesh("dp=2,tp=2").places()] == [0, 1, 0, 1]


def test_megatron_sends_four_all_reduces_a_block():
    table, sizes, _, _ = whole("gpt2")
    placed = place(table, mesh("tp=2"), chosen(None, "megatron"), sizes)
    block = [one for one in collectives(placed, sizes) if one.times == sizes["n_layer"]]
    assert [(one.op, one.phase) for one in block] == [("all_reduce", "forward")] * 2 + [("all_reduce", "backward")] * 2
    assert {one.payload_bytes for one in block} == {4 * sizes["B"] * sizes["M"] * sizes["d"]}


def test_every_preset_is_clauses():
    for row in PLACEMENTS.values():
        assert row.mesh_axes
        assert row.title
        assert row.source


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize(
    ("name", "mesh_text", "placement", "plan"),
    [
        ("gpt2", "dp=2,tp=2", "fsdp,megatron-sp", ""),
        ("t5", "cp=2", "ulysses", "recompute=block"),
        ("falcon", "tp=2", "megatron", "flash"),
        ("llama", "cp=4", "cp", "flash,zigzag"),
        ("mistral", "cp=4", "cp", "flash,ring,zigzag"),
        ("qwen3_moe", "ep=2,tp=2", "ep,megatron-sp", "fused-update"),
        ("llama", "dp=2", "zero-2", "chunked-loss"),
        ("bart", "pp=2", "pp", "flash,fused-update"),
        ("mixtral", "ep=2,dp=2", "ep,fsdp", "recompute=norm,keep=all_gather+dispatch"),
        ("gpt2", "pp=2,dp=2,tp=2", "pp,zero-1,megatron-sp", ""),
        ("llama", "dp=3,tp=2", "fsdp,megatron-sp", "flash"),
        ("rwkv", "dp=3", "fsdp", ""),
    ],
)
def test_placements_are_proved_by_a_command(name, mesh_text, placement, plan):
    model = build(small(name, **SIZES))
    found = list(verify_placements(model, mesh_text, None, placement, plan, optimizer="sgd"))
    filled = 4 if "tp" in mesh_text or {*placement.split(",")} & {"fsdp", "zero-2"} else 0  # is tried as well
    assert [check.passed for check in found] == [True] * (4 + filled), [str(check) for check in found]
    assert any("padded" in check.subject for check in found) == bool(filled)


@pytest.mark.parametrize(
    ("family", "axes"),
    [("gpt2", {"v", "p"}), ("mixtral", {"v"}), ("bert", {"v", "p", "s"}), ("t5", {"v"}), ("vit", {"l"})],
)
def test_what_may_be_filled_up_is_no_choice_and_no_width(family, axes):
    """Experts, which a choice picks among, and widths, which a norm divides by, have to divide."""
    assert paddable(build(small(family)).table) >= axes
    assert not paddable(build(small(family)).table) & {"e", "d", "h", "f", "M"}


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("procedure", ["local", "local-shared", "evolution", "kolen-pollack", "dfa-linear"])
def test_learning_procedures_are_placed(procedure):
    model = build(small("gpt2", **SIZES))
    for mesh_text, placement in (("dp=2", "fsdp"), ("tp=2", "megatron")):
        found = list(verify_placements(model, mesh_text, None, placement, procedure=procedure, optimizer="adamw"))
        assert [check.passed for check in found] == [True] * len(found), [str(check) for check in found]
        assert len(found) > 2


def test_stages_of_a_pipeline_send_what_turns_carry():
    """B M d forward and back between neighbours, in the part that each device has of it; tied gradients are summed."""
    found = lc.place("gpt2", "pp=3,tp=2", placement="pp,megatron-sp", vocab_size=50304, seq_len=64)
    carried = 64 * 768 * 4 // 2
    over_pp = [[one for one in over.collectives if one.mesh_axis == "pp"] for over in found.stages]
    sends = [[one.payload_bytes for one in stage if one.op == "send"] for stage in over_pp]
    assert sends == [[carried], [carried, carried], [carried]]
    assert [[one.devices for one in stage if one.op != "send"] for stage in over_pp] == [[2], [], [2]]
    assert [dict(over.placed.iterations) for over in found.stages] == [{"n_layer": 4}] * 3
    assert len(found.sheets()) == 4
    uneven = lc.place("gpt2", "pp=3", place="blocks over pp of 3 5 4", seq_len=64)
    assert [dict(over.placed.iterations) for over in uneven.stages] == [{"n_layer": 3}, {"n_layer": 5}, {"n_layer": 4}]
    with pytest.raises(InputError, match="stages of 3, 5, 5 blocks must sum to the model's 12"):
        lc.place("gpt2", "pp=3", place="blocks over pp of 3 5 5")
    with pytest.raises(InputError, match="gives the blocks of 2 stages, but pp=3 has 3"):
        lc.place("gpt2", "pp=3", place="blocks over pp of 3 5")
    with pytest.raises(InputError, match="12 blocks are not divisible into 5 equal stages"):
        lc.place("gpt2", "pp=5", placement="pp")
    with pytest.raises(InputError, match="blocks need a single clause"):
        lc.place("gpt2", "pp=2", place="n_layer over pp, B over pp")


def test_a_proof_sees_a_collective_that_is_not_there(monkeypatch):
    model = build(small("gpt2", **SIZES))
    monkeypatch.setattr(run_collected, "_JOINS", {**run_collected._JOINS, "all_reduce": np.maximum})
    found = list(verify_placements(model, "tp=2", None, "megatron", optimizer="sgd"))
    assert [check.passed for check in found][:3] == [False] * 3


def test_rows_that_are_as_many_as_are_priced_are_still_rows():
    """Where every token chooses every expert, a device gets as many rows as a balanced choice would send."""
    model = build(small("mixtral", **SIZES))
    table = without_gradients(step(model, "bp", "sgd"))
    sizes = run_sizes(model, 4, 6, None) | {"e": 2, "t": 2}
    arrays = finite_arrays(table, sizes)
    values = values_of(table, arrays, sizes)
    placed = place(table, mesh("ep=2"), chosen(None, "ep"), sizes)
    devices = run_placed(placed, arrays, sizes)
    name = next(name for name, value in table.values.items() if value.of == "moe.WG" and value.role == "gradient")
    found = together([device[name] for device in devices], placed.layouts[name], placed.mesh)
    assert np.abs(found - values[name]).max() <= 1e-12 * np.abs(values[name]).max()


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize(
    ("name", "mesh_text", "text", "plan"),
    [
        # Several axes of the mesh would cut one axis in parts that are not whole.
        ("bert", "pp=2,qq=2", "h g over pp of scores, v over pp, * over qq, f over pp", ""),
        ("phi", "pp=2,qq=2", "f over pp, d over pp of weights, * over qq of gradients states, h g f v over pp", ""),
        # Targets are places of what is cut, and no rows of it.
        ("gpt2", "pp=2", "v over pp, B over pp", "flash"),
        # Turns on several devices read their own slices, also of what all devices have.
        ("llama", "pp=3", "d over pp of weights, B over pp of values", "chunked-loss"),
        # Of totals that turns carry some are partial, and some are not.
        ("glm4", "pp=2", "h g f v over pp", "chunked-loss"),
        # Rows go to the owner of a part of a part, and nothing else sends them elsewhere.
        ("mixtral", "ep=2,tp=2", "e over tp of experts, e over ep of experts, B over ep, B over tp", ""),
        # What turns kept is a list of slices, and is sent all the same.
        ("mamba", "dp=2", "v M B over dp", ""),
    ],
)
def test_placements_that_fuzzing_found(name, mesh_text, text, plan):
    model = build(small(name, num_key_value_heads=4))
    found = list(verify_placements(model, mesh_text, text, None, plan, optimizer="sgd"))
    assert [check.passed for check in found] in ([True] * 4, [True] * 8), [str(check) for check in found]


def test_rows_that_are_sent_to_the_owner_of_another_part_are_refused():
    table, sizes, _, _ = whole("mixtral")
    grid = mesh("ep=2,tp=2")
    placed = place(table, grid, clauses("e over tp of experts, e over ep of experts, B over ep"), sizes).table
    assert any("dispatch[ep e/tp/ep]" in str(line) for line, _ in walk(placed.lines))

    def by(part, ops, lines):
        return tuple(
            replace(line, lines=by(part, ops, line.lines))
            if isinstance(line, Loop)
            else replace(line, axes=("ep", part))
            if isinstance(line, Op) and line.op in ops
            else line
            for line in lines
        )

    check_placed(placed, grid.axes)
    for ops in (("dispatch",), ("combine",), ("dispatch", "combine")):
        with pytest.raises(InputError, match="dispatched to the owners of"):
            check_placed(replace(placed, lines=by("e/ep", ops, placed.lines)), grid.axes)


def test_what_segments_of_blocks_gather_is_kept_by_each():
    """Blocks of one kind in two segments, as a part of them is trained: stacks that were made are read like others."""
    model = adapted(build(small("deberta", **SIZES)), Adaptation(lora=("all-linear",), rank=2))
    found = list(verify_placements(model, "cp=2,tp=2", None, "megatron,cp", "keep=all_gather", optimizer="sgd"))
    assert [check.passed for check in found] in ([True] * 4, [True] * 8), [str(check) for check in found]


def test_low_rank_paths_of_weights_that_all_blocks_share_are_placed():
    found = lc.place("albert-base-v2", "tp=2", placement="megatron", lora="attention", seq_len=8)
    assert {row.op for row in found.over.sent} >= {"all_reduce"}


def without(table, gone):
    """A table without one of its collectives, which others read in its place."""

    def lines(several):
        result = []
        for line in several:
            if isinstance(line, Loop):
                inner = replace(line, lines=tuple(lines(line.lines)))
                result.append(inner.renamed({gone.name: gone.right[0].name}))
            elif line is not gone:
                names = {gone.name: gone.right[0].name}
                result.append(line.renamed(names) if gone.name in line.reads else line)
        return result

    return replace(table, lines=tuple(lines(table.lines)))


@pytest.mark.parametrize(
    ("family", "mesh_text", "names"),
    [
        ("gpt2", "dp=2,tp=2", "zero-2,megatron"),
        ("llama", "tp=2", "megatron-sp"),
        ("mixtral", "ep=2,cp=2", "ep,ulysses"),
    ],
)
def test_a_placed_table_without_one_of_its_collectives_is_refused(family, mesh_text, names):
    table, sizes, _, _ = whole(family)
    grid = mesh(mesh_text)
    placed = place(table, grid, chosen(None, names), sizes).table
    every = [line for line, _ in walk(placed.lines) if isinstance(line, Op) and entry(line.op).kind == "collective"]
    handed = {name for line in placed.lines if isinstance(line, Loop) for c in line.carry for name in (c.end,)}
    handed |= {name for line in placed.lines if isinstance(line, Loop) for name, _ in line.keep}
    tried = [line for line in every if line.name not in handed and line.name not in placed.outputs]
    assert len(tried) > 5
    for line in tried:
        with pytest.raises(InputError):
            check_placed(without(placed, line), grid.axes)


def test_turns_on_several_devices_that_read_slices_of_a_whole_are_refused():
    """The targets of a batch of which every device has all are cut before the head takes turns over its sequences."""
    table, sizes, _, _ = whole("llama")
    table = planned(table, "chunked-loss", sizes)
    placed = place(table, mesh("dp=2"), clauses("B over dp of values"), sizes).table
    (cut,) = (line for line in placed.lines if isinstance(line, Op) and line.name == "targets.shard")
    with pytest.raises(InputError, match="read slices of targets, which is replicated"):
        check_placed(without(placed, cut), [("dp", 2)])


@cache
def clipped():
    """A step with clipping over three devices, which divide no width: the whole, the placed one, its sizes."""
    model = build(small("gpt2", **SIZES))
    table = without_gradients(with_clipping(step(model, "bp", "adamw")))
    sizes = run_sizes(model, 3, 4, None)
    return table, place(table, mesh("dp=3"), chosen(None, "fsdp"), sizes), sizes


def test_clipping_takes_the_norm_of_parts_that_are_filled_up():
    table, placed, sizes = clipped()
    arrays = {name: abs(array) + 0.1 if table.values[name].role == "number" else array
              for name, array in finite_arrays(table, sizes).items()}  # fmt: skip
    expected, devices = values_of(table, arrays, sizes), run_placed(placed, arrays, sizes)
    assert placed.filled["d/dp"] == -(-sizes["d"] // 3)
    for name in table.outputs:
        shape, parts = expected[name].shape, [device[name] for device in devices]
        found = together(parts, placed.layouts[name], placed.mesh, shape)
        assert np.abs(found - expected[name]).max() <= 1e-12 * max(1, np.abs(expected[name]).max()), name


def test_what_is_not_0_where_parts_are_filled_up_is_not_summed_and_not_kept():
    _, placed, _ = clipped()
    lines = [line for line in placed.table.lines if not isinstance(line, Loop)]
    squares = next(line for line in lines if line.name.endswith(".square"))  # of clipping's norm
    assert "v/dp" in squares.right[0].axes
    first = squares.right[0]
    shifted = Op((Term("shifted", first.axes),), (first,), (), squares.meta, "exp", (), "body", ("X",), ("Y",))
    read = replace(squares, right=(Term("shifted", first.axes),) * 2)
    for text, change in (("may be non-zero:", squares), ("may be non-zero in", None)):
        lines = []
        for line in placed.table.lines:
            if change is not None and line is squares:
                lines += [shifted, read]
            elif change is None and isinstance(line, Op) and entry(line.op).name == "adamw":
                lines += [replace(line, right=(line.right[-2], *line.right[1:]))]
            else:
                lines.append(line)
        with pytest.raises(InputError, match=text):
            check_filled(replace(placed.table, lines=tuple(lines)), placed.filled)


def test_a_quotient_of_what_is_filled_up_has_all_of_it():
    """Weight normalization divides by the lengths of rows, which are 0 where rows are filled up."""
    placed = lc.cost("wav2vec2-base", mesh="dp=3", placement="fsdp", batch_size=3).over.placed
    lengths = "wav2vec2.encoder.pos_conv_embed.conv.parametrizations.weight.original0"
    assert (placed.table.axes[lengths], placed.table.axes[f"d{lengths}"]) == (("u8/dp",), ("u8",))

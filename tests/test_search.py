"""The search for a mesh: what it shows fits, is right where it was read exactly, and says why the next is worse."""

import json
import os
import random
import shlex
from dataclasses import replace
from math import ceil

import pytest

import learncost as lc
from learncost.autoshard.account import MeshAccount
from learncost.autoshard.candidates import MICROBATCHES, StructureCost, configs, meshes, structures
from learncost.autoshard.placed_step import StepConfig, parts_of
from learncost.autoshard.step import ParallelConfig, memory_of, step_of
from learncost.cli.command import main
from learncost.devices.sustained import sustained
from learncost.ir.precision import PRECISIONS
from learncost.liveness import live
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.stages import cut
from learncost.reports.request import Request
from learncost.reports.search.spread import spread
from learncost.sharding.clauses import clauses
from learncost.sharding.mesh import mesh

SMALL = {
    "num_hidden_layers": 8, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 512, "vocab_size": 1024, "max_position_embeddings": 64,
}  # fmt: skip
BF16 = PRECISIONS["bf16-masters"]


@pytest.fixture(scope="module")
def found():
    return lc.search("llama-2-7b", "DGX H100", 16, tokens=1e9, batch_size=64, seq_len=64, top=4, **SMALL)


def test_what_is_found_fits_and_the_fastest_stands_first(found):
    assert len(found.found) == 4
    times = [each.step.seconds for each in found.found]
    assert times == sorted(times)
    assert all(each.step.peak <= found.memory for each in found.found)
    assert all(each.step.parallel.devices == 16 for each in found.found)
    best, second = found.found[:2]
    assert not best.worse
    assert (
        f"{100 * (second.step.seconds / best.step.seconds - 1):.1f} % slower" in second.worse
        or "as fast" in second.worse
    )


def test_the_fastest_has_the_cost_of_its_run(found):
    """Tokens per second by hand, 64 x 64 tokens over the seconds of a step; the days of 1e9 tokens, their price."""
    best = found.best.step
    assert found.run.figures["tokens_per_second"].value == pytest.approx(64 * 64 / best.seconds, rel=1e-5)
    steps = -(-(10**9) // 4096)  # the last one is partly filled
    assert found.run.days == pytest.approx(steps * best.seconds / 86_400)
    assert f"It reaches {64 * 64 / best.seconds:,.0f}"[:16] in found.text(10_000)
    priced = replace(found, price_per_hour=2)
    assert priced.run.price_usd == pytest.approx(found.run.days * 24 * 16 * 2)
    assert priced.to_dict()["run_cost"]["price"]["value"] == pytest.approx(priced.run.price_usd)


def test_what_needs_no_product_is_made_again_before_whole_blocks(found):
    """Of ways that do not fit, those are tried that keep less, and the screen says what they make again."""
    room = min(each.step.peak for each in found.found)
    asked = {"batch_size": 64, "seq_len": 64, "top": 20, **SMALL}
    less = lc.search("llama-2-7b", "DGX H100", 16, budget=room - 1, **asked)
    plans = {each.plan for each in less.found}
    assert any("norm" in plan for plan in plans)
    assert all(each.step.peak < room for each in less.found)
    assert "recomputes activations, norms" in " ".join(str(less).split())


def test_what_is_shown_of_a_mesh_is_what_is_said_where_it_is_asked_for(found):
    for each in found.found[:2]:
        parallel, step = each.step.parallel, each.step
        if each.zero == "zero-1":
            how = {
                "schedule": parallel.schedule,
                "microbatch": parallel.microbatch,
                "plan": each.plan,
                "mesh": str(parallel),
            }
            how |= {"chunks": parallel.chunks} if parallel.chunks > 1 else {}
            request = Request(
                "llama-2-7b", batch_size=64, seq_len=64, precision="bf16-masters", devices=16, sizes=SMALL
            )
            same = spread(replace(request, **how), found.cluster).step
            assert (same.seconds, same.peak) == (step.seconds, step.peak)


def test_the_days_are_the_steps(found):
    best = found.best
    steps = ceil(1e9 / (64 * 64))  # whole ones, as run-cost counts them
    assert best.days == pytest.approx(steps * best.step.seconds / 86400)


def test_the_screen_says_why_and_what_is_assumed(found):
    text = " ".join(str(found).split())
    assert "is the fastest of" in text
    assert "Assumed: TP/CP/EP collectives" in text
    assert max(map(len, str(found).splitlines())) <= 80
    assert json.loads(found.show("json"))["found"][0]["seconds"] == found.best.step.seconds


def test_where_nothing_fits_the_least_is_told():
    found = lc.search("llama-2-7b", "DGX H100", 2, batch_size=2, seq_len=64, budget="1MB", **SMALL)
    assert not found.found
    assert "does not fit on 2 devices of 1.00 MB" in str(found)
    with pytest.raises(lc.InputError, match="use more devices"):
        _ = found.best


def test_an_axis_that_cannot_be_cut_is_left_out_and_told():
    """197 positions of a vision transformer, a class beside 14 x 14 patches, are no even number."""
    found = lc.search("vit-base-patch16-224", "DGX H100", 4, batch_size=16, top=2, num_hidden_layers=2)
    assert all("tp" not in each.step.parallel.mesh for each in found.found)
    assert "Not sharded over tp: M (positions) is 197, which is not divisible by the" in " ".join(str(found).split())


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("search gpt2", "search requires a cluster"),
        ("search gpt2 --on DGX-H100", "search requires the number of devices"),
        ("search gpt2 --on DGX-H10 --devices 8", "no device or cluster is called"),
        ("search gpt2 --on DGX-H100 --devices none", "devices must be a whole number"),
        ("search gpt2 --on DGX-H100 --devices 64 --batch-size 3 --seq-len 8", "cannot be split over 64 devices"),
        ("search t5-small --on DGX-H100 --devices 8", "one stack of blocks, not the encoder and decoder of t5-small"),
        (
            "search distilbert-base --on DGX-H100 --devices 8",
            "requires a model with a loss, and distilbert-base has none",
        ),
        ("search gpt2 --on DGX-H100 --devices 8 --precision fp7", "no precision is called"),
    ],
)
def test_bad_input_is_one_line(command, message, capsys):
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def account(text, shape, stages=1, batch=None, **more):
    model = build(configure("llama-2-7b", {**SMALL, **more}))
    grid = mesh(shape)
    number = grid.sizes.get("dp", 1) * (batch or 1)
    sizes = {**model.sizes, **run_sizes(model, number, 64, None)}
    return MeshAccount(model, sizes, grid, StepConfig(clauses(text), BF16, "flash")), {
        **model.sizes,
        **run_sizes(model, 1, 64, None),
    }


TOGETHER = {
    "dense": ("llama-2-7b", {}, 64, ("dp", "tp"), "gathered", ""),
    "experts": ("mixtral-8x7b", {"num_local_experts": 4}, 64, ("dp", "ep"), "gathered", ""),
    "ring": ("llama-2-7b", {}, 16384, ("dp", "cp", "tp"), "ring", "recompute=block"),
}


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("case", TOGETHER)
def test_configurations_evaluated_together_have_the_bytes_and_time_of_each_alone(case):
    """Arrays of sizes have the numbers of each configuration as run-cost evaluates it, in plain numbers."""
    name, more, length, axes, context, again = TOGETHER[case]
    model = build(configure(name, {**SMALL, **more}), "bf16")
    sizes = {**model.sizes, **run_sizes(model, 1, length, None)}
    cluster = lc.cluster("DGX H100")
    rates = sustained(cluster.device, "bf16")
    plan = ",".join(filter(None, ("flash,fused", again)))
    for structure in structures(model, [BF16], [plan], axes, [context]):
        reading = StructureCost(model, sizes, structure, cluster)
        several = [parallel for shape in meshes(16, axes, sizes, 8, 8, 64, ()) for parallel in configs(shape, 64, 8)]
        several = [parallel for parallel in several if reading.allows(parallel)]
        assert {parallel.microbatch for parallel in several} == set(MICROBATCHES)
        assert {parallel.schedule for parallel in several} == {"1f1b", "interleaved", "zb-h1"}
        bytes_of, times = reading.memory(several), reading.times(several, rates)
        for parallel, size, time in list(zip(several, bytes_of, times, strict=True))[::5]:
            step = step_of(reading.account, parallel, sizes, cluster, rates, length)
            assert size == step.peak, parallel
            assert time.seconds == pytest.approx(step.seconds, 1e-9), parallel
            assert time.least <= step.seconds * (1 + 1e-9), parallel


def test_what_a_device_spends_on_each_step_is_spent_over_a_mesh_too():
    """As `learncost cost --on` adds it to the kernels of a step, once, whatever the microbatches."""
    found, sizes = account("B over dp", "dp=2")
    cluster = lc.cluster("DGX H100")
    rates = sustained(cluster.device, "bf16")
    parallel = ParallelConfig({"dp": 2}, 1, 4)
    none, more = (
        step_of(found, parallel, sizes, cluster, replace(rates, step=step), 64).seconds for step in (0.0, 0.25)
    )
    assert more - none == pytest.approx(0.25)


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_a_ring_sends_what_the_placed_table_of_so_many_devices_does(devices):
    """One structure over two devices has the turns of every ring: one fewer than the devices."""
    parallel = {"placement": "cp", "plan": "ring", "batch_size": 1, "seq_len": 64, **SMALL}
    placed = lc.place("llama-2-7b", f"cp={devices}", **parallel)
    ops = [row for row in placed.collectives if row.op == "pass_on"]
    model = build(configure("llama-2-7b", SMALL), "fp32")
    lengths = run_sizes(model, 1, 64, None)
    config = StepConfig(clauses("M over cp"), PRECISIONS["fp32"], "ring")
    account = MeshAccount(model, lengths, mesh(f"cp={devices}"), config)
    sizes = account.sizes.filled({**lengths, "B": 1, "cp": devices})
    sent = [each for each in account.sendings if each.rounds]
    assert sum(int(each.iterations.at(sizes)) for each in sent) == sum(row.times for row in ops)
    payload = sum(int(each.iterations.at(sizes)) * int(each.payload.at(sizes)) for each in sent)
    assert payload == sum(row.times * row.payload_bytes for row in ops)


def test_gathers_between_the_lines_of_a_kernel_do_not_part_it():
    """Keys gathered or in a ring: attention computes as much, and no scores go through memory."""
    model = build(configure("llama-2-7b", SMALL), "bf16")
    lengths = run_sizes(model, 1, 65536, None)
    cluster = lc.cluster("DGX H100")
    rates = sustained(cluster.device, "bf16")
    seconds = []
    for plan in ("flash,fused,zigzag", "flash,fused,zigzag,ring"):
        account = MeshAccount(model, lengths, mesh("cp=2"), StepConfig(clauses("M over cp"), BF16, plan))
        step = step_of(account, ParallelConfig({"cp": 2}), lengths, cluster, rates, 65536)
        seconds.append(step.computing)
    assert seconds[0] == pytest.approx(seconds[1], 0.02)


def test_a_sequence_in_zigzag_order_is_divisible_by_twice_the_devices():
    """The search refuses what placing the step refuses."""
    model = build(configure("llama-2-7b", SMALL), "bf16")
    lengths = run_sizes(model, 1, 16, None)
    for plan, why in (("flash", ""), ("flash,zigzag", "the 8 ranges in zigzag over cp: the next divisible size is 16")):
        account = MeshAccount(model, lengths, mesh("cp=4"), StepConfig(clauses("M over cp"), BF16, plan))
        found = account.sizes.divides({**lengths, "M": 12, "cp": 4})
        assert found.endswith(why)
        assert bool(found) == bool(why)
    with pytest.raises(lc.InputError, match="two ranges for each of 4 devices: the next possible size is 16"):
        lc.place("llama-2-7b", "cp=4", placement="cp", plan="flash,zigzag", seq_len=12, **SMALL)


@pytest.mark.slow
def test_long_sequences_are_tried_with_rings():
    found = lc.search("llama-2-7b", "DGX H100", 8, batch_size=1, seq_len=32768, top=100, **SMALL)
    assert {each.context for each in found.found} == {"gathered", "ring", "ulysses"}
    ring = next(each for each in found.found if each.context == "ring")
    assert ring.plan.endswith("zigzag,ring")
    assert "ring attention" in str(found)


def test_one_structure_is_every_mesh():
    """The polynomials of a structure at a mesh are those of the same placed over that mesh."""
    text = "h f v over tp, M over tp of values, B over dp, * over dp of states"
    small, sizes = account(text, "dp=2,tp=2")
    large, _ = account(text, "dp=4,tp=4")
    parallel = ParallelConfig({"dp": 4, "tp": 4}, 1, 2)
    assert memory_of(small, parallel, sizes) == memory_of(large, parallel, sizes)


def test_weights_and_activations_are_those_of_one_device():
    """Without a mesh: what the whole table keeps, and Adam's bytes of every parameter.

    Sums of gradients are stored for several microbatches alone.
    """
    found, sizes = account("B over dp", "dp=1")
    several, one = (memory_of(found, ParallelConfig({"dp": 1}, 1, number), sizes)[0] for number in (2, 1))
    parameters = int(found.step.model.parameters.at(found.step.model.sizes))
    assert several.static.total == parameters * (2 + 2 + 8 + 4)
    assert one.static.total == parameters * (2 + 8 + 4)
    widths = {"weight": 0, "gradient": 0, "index": 4} | dict.fromkeys(found.step.placed.scores, 4)
    whole = live(found.step.placed.whole, {**sizes, "dp": 1}, "bf16", widths)
    part = parts_of(found.step.model.table, sizes, [8])[0]
    saved = sum(held.bytes for held in whole.saved if held.role == "saved")
    assert found.passes.activations(sizes, part).saved == pytest.approx(saved, rel=0.01)


def test_segments_are_the_stages_that_tables_are_cut_into():
    """What a stage holds of weights, by segments, is what its own table has (passes/stages.py)."""
    found, sizes = account("B over dp", "dp=1")
    layers = (3, 3, 2)
    stages = cut(found.step.model.table, found.step.model.sizes, layers).stages
    for part, stage in zip(parts_of(found.step.model.table, sizes, layers), stages, strict=True):
        own = {**found.step.model.sizes, **stage.iterations}
        elements = 0
        for name in stage.table.weights:
            size = 1
            for axis in found.step.model.table.axes[name]:
                size *= own[axis]
            elements += size
        assert found.weights.static(sizes, part).weights == 2 * elements


def test_uneven_stages_are_said_by_their_blocks():
    """Llama 3 405B takes a block off the first and the last stage (Dubey et al. 2024, section 3.3.2)."""
    found, sizes = account("B over dp", "dp=1")
    parallel = ParallelConfig({"pp": 4}, 1, 8, layers=(1, 3, 3, 1))
    stages = memory_of(found, parallel, sizes)
    assert [stage.layers for stage in stages] == [1, 3, 3, 1]
    even = memory_of(found, ParallelConfig({"pp": 4}, 1, 8), sizes)
    assert max(stage.peak for stage in stages) != max(stage.peak for stage in even)
    with pytest.raises(lc.InputError, match="give one number of blocks for each of the 4 stages, not 3"):
        memory_of(found, ParallelConfig({"pp": 4}, 1, 8, layers=(2, 3, 3)), sizes)


def test_flat_parts_need_not_divide():
    """ZeRO's states over six devices: no axis of 256, 512 or 1,024 is a multiple of three."""
    found = lc.search("llama-2-7b", "DGX H100", 6, batch_size=12, seq_len=64, top=3, **SMALL)
    assert any(each.step.parallel.mesh.get("dp", 1) % 3 == 0 for each in found.found)


def test_one_sequence_goes_over_meshes_without_dp():
    found = lc.search("llama-2-7b", "DGX H100", 8, batch_size=1, seq_len=2048, top=100, **SMALL)
    assert {"tp": 4, "pp": 2} in [dict(each.step.parallel.mesh) for each in found.found]
    assert len(found.found) == found.fit


@pytest.mark.slow  # every drawn row has it, too
def test_zero_3_is_a_way_of_its_own_where_devices_share_weights():
    """Where none do, on one device or on tensor-parallel ones alone, it is zero-1, and stands once."""
    for devices in (1, 2):
        found = lc.search("gpt2", "DGX H100", devices, batch_size=8, top=100).found
        configs = [(str(each.step.parallel), each.step.parallel.microbatch, each.zero) for each in found]
        apart = {zero for parallel, _, zero in configs if parallel.startswith("dp=") and "dp=1" not in parallel}
        assert {zero for parallel, _, zero in configs if "dp=" not in parallel or "dp=1" in parallel} == {"zero-1"}
        assert apart == ({"zero-1", "zero-3"} if devices == 2 else set())


@pytest.mark.parametrize(
    "model",
    ["mixtral-8x7b", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3-30b-a3b", "gpt-oss-20b"))],
)
def test_it_recommends_nothing_that_run_cost_refuses(model):
    """No mesh that is found has both ep and tp, and `run_cost` has a time for the best."""
    sizes = {"seq_len": 512, "batch_size": 16, "num_hidden_layers": 8}
    found = lc.search(model, "DGX H100", 8, top=10, **sizes)
    assert any("Meshes with both ep and tp are not modelled" in text for text in found.refused)
    axes = [{axis for axis, size in each.step.parallel.mesh.items() if size > 1} for each in found.found]
    assert any("ep" in several for several in axes) or any("tp" in several for several in axes)
    assert not any({"ep", "tp"} <= several for several in axes)
    best = found.best.step.parallel
    mesh = ",".join(f"{axis}={size}" for axis, size in best.mesh.items())
    assert lc.run_cost(model, "1e9", "DGX H100", mesh=mesh, **sizes, microbatch=best.microbatch).days > 0


CASES = {
    "small": ("llama-2-7b", "DGX H100", 8, {"batch_size": 32, "seq_len": 64, **SMALL}),
    "qwen": ("qwen2.5-32b", "DGX H100", 32, {"batch_size": 256, "seq_len": 4096}),
    "experts": ("mixtral-8x7b", "DGX H100", 16, {"batch_size": 64, "seq_len": 4096}),
    "long": ("llama-3-8b", "DGX H100", 16, {"batch_size": 16, "seq_len": 32768, "budget": "60GB"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_fewer_rows_are_the_first_of_an_exhaustive_exact_evaluation(case):
    model, cluster, devices, asked = CASES[case]

    def rows(top):
        answer = lc.search(model, cluster, devices, top=top, **asked)
        return [(each.step.seconds, each.step.peak, each.command) for each in answer.found]

    every = rows(10**6)
    assert len(every) > 20
    for top in (1, 8):
        assert rows(top) == every[:top]


def test_each_row_has_the_command_that_gives_its_bytes_and_time(found, capsys):
    for each in found.found:
        assert main([*shlex.split(each.command)[1:], "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)["figures"]
        assert figures["step"]["value"] == each.step.seconds
        assert figures["memory"]["value"] == each.step.peak / 1e9
        if each is found.found[0]:  # the answer has the figures of its first row
            values = {name: figure.value for name, figure in found.figures.items()}
            assert values == {name: figure["value"] for name, figure in figures.items() if name in values}
            assert values["step_mfu"]


ROWS = {
    "experts": ("mixtral-8x7b", 16, {"batch_size": 16, "seq_len": 64, "num_local_experts": 4}),
    "long": ("llama-2-7b", 4, {"batch_size": 4, "seq_len": 16384, "max_position_embeddings": 16384}),
    "uneven": ("llama-2-7b", 6, {"batch_size": 12, "seq_len": 64, "vocab_size": 509}),
    "odd": ("gpt2", 8, {"batch_size": 8, "seq_len": 64, "vocab_size": 509}),
}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("case", ROWS)
def test_each_row_of_a_drawn_sample_has_the_command_that_gives_it_to_the_byte_and_the_second(case, capsys):
    """ZeRO-1 and 3, experts, long sequences, schedules with several chunks, and sizes that no mesh divides."""
    model, devices, more = ROWS[case]
    sizes = {**(SMALL if model != "gpt2" else {"n_layer": 4, "n_embd": 64, "n_head": 4}), **more}
    found = lc.search(model, "DGX H100", devices, top=10**6, **sizes).found
    seed = int(os.environ.get("LEARNCOST_TEST_SEED") or random.randrange(2**32))
    drawn = random.Random(seed).sample(found, min(4, len(found)))
    axes = {axis for each in found for axis in each.step.parallel.mesh}
    assert {"experts": "ep", "long": "cp"}.get(case, "dp") in axes
    assert {each.zero for each in found} == {"zero-1", "zero-3"}
    for each in drawn:
        shown = f"LEARNCOST_TEST_SEED={seed} {each.command}"
        assert main([*shlex.split(each.command)[1:], "--json"]) == 0
        run = json.loads(capsys.readouterr().out)
        assert run["figures"]["step"]["value"] == each.step.seconds, shown
        assert run["mesh"]["memory"] == each.step.peak, shown
        assert run["mesh"]["split"] == dict(each.split), shown
        assert sorted(row["sent"] for row in run["mesh"]["sent"]) == sorted(row.sent for row in each.step.sent), shown
        parallel = each.step.parallel
        if not {*parallel.mesh} <= {"dp", "cp"}:  # by hand: Adam's two numbers of fp32 over every device
            continue
        parameters = lc.cost(model, **{**sizes, "batch_size": 1}).parameters
        assert each.split["optimizer state"] == pytest.approx(8 * parameters / devices, rel=0.1), shown


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw8bit"])
def test_run_cost_over_a_mesh_has_the_bytes_and_time_of_its_optimizer(optimizer):
    asked = {"seq_len": 1024, "batch_size": 8, "mesh": "dp=8", "place": "B over dp", "plan": "flash,fused"}
    asked |= {"num_hidden_layers": 4, "precision": "bf16-masters", "optimizer": optimizer}
    step = lc.cost("llama-3-8b", on="DGX H100", **asked).over_time
    run, usual = (
        lc.run_cost("llama-3-8b", "1e9", "DGX H100", **settings).to_dict()["figures"]
        for settings in (asked, {**asked, "optimizer": "adamw"})
    )
    assert step.seconds == run["step"]["value"]
    points = 2 * 128256 * 4096 + 4096 + 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096)
    fewer = {"sgd": 8, "momentum": 4, "adamw8bit": 6}[optimizer]  # bytes of state, of adamw's two in fp32
    assert (usual["memory"]["value"] - run["memory"]["value"]) * 1e9 == pytest.approx(fewer * points, rel=1e-2)

"""A device of a mesh has one account: memory, run-cost, search and cost give the same bytes and time."""

import json
import os
import random
from dataclasses import dataclass

import pytest

import learncost as lc
from learncost.autoshard.account import MeshAccount
from learncost.autoshard.passes import updated_in_place
from learncost.autoshard.placed_step import StepConfig
from learncost.autoshard.step import DeviceTimes, ParallelConfig, sizes_of, stage_seconds, stages_of
from learncost.cli.command import main
from learncost.devices.collective import MeshGroup, Transfer
from learncost.devices.sustained import sustained
from learncost.ir.precision import PRECISIONS
from learncost.liveness import live
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.program.calls import IN_KERNELS
from learncost.sharding.clauses import clauses
from learncost.sharding.mesh import mesh

SEED = int(os.environ.get("LEARNCOST_TEST_SEED") or random.randrange(2**32))
print(f"LEARNCOST_TEST_SEED={SEED}")

DENSE = {
    "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 96, "vocab_size": 509,
}  # fmt: skip
MODELS = {
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 509},
    "llama-3-8b": DENSE,
    "mixtral-8x7b": {**DENSE, "num_local_experts": 4},
}
ZERO = {"": "", "zero-1": "states", "zero-2": "gradients states", "zero-3": "weights gradients states"}


@dataclass(frozen=True)
class MeshCase:
    """A step over a mesh that memory and run-cost are asked about."""

    model: str
    mesh: str
    place: str
    shares: int
    microbatch: int
    microbatches: int
    flags: dict

    @property
    def asked(self):
        batch = self.shares * self.microbatch * self.microbatches
        return {"mesh": self.mesh, "place": self.place, "batch_size": batch, **self.flags, **MODELS[self.model]}

    @property
    def memory(self):
        return lc.memory(self.model, engine="graph", accumulate=self.microbatches, **self.asked)

    @property
    def run(self):
        return lc.run_cost(self.model, "1e9", "DGX H100", microbatch=self.microbatch, **self.asked).to_dict()


def drawn(number):
    """A mesh, its clauses and a step, from the seed."""
    chance = random.Random(f"{SEED} {number}")
    model = chance.choice([*MODELS])
    axes = [axis for axis in ("cp", "ep", "tp", "dp") if chance.random() < 0.6]
    if model != "mixtral-8x7b" or "tp" in axes:
        axes = [axis for axis in axes if axis != "ep"]
    axes = axes or ["dp"]
    zero = ZERO[chance.choice([*ZERO])]
    sizes = {axis: chance.choice((2, 4)) for axis in axes}
    texts = {
        "cp": "M over cp",
        "ep": "e over ep of experts, B over ep",
        "tp": "h g f v over tp, M over tp of values",
        "dp": "B over dp",
    }
    shards = ("dp", "cp", "ep")
    text = [texts[axis] + (f", * over {axis} of {zero}" if zero and axis in shards else "") for axis in axes]
    stages = chance.choice((1, 1, 2))
    schedule = chance.choice(("1f1b", "gpipe", "zb-h1", "interleaved")) if stages > 1 else "1f1b"
    mesh = ([f"pp={stages}"] if stages > 1 else []) + [f"{axis}={size}" for axis, size in sizes.items()]
    flags = {
        "seq_len": 64,
        "precision": chance.choice(("bf16-masters", "bf16-true", "fp32")),
        "plan": chance.choice(
            ("flash,fused", "flash,fused,recompute=block", "flash,fused,recompute=gelu+norm+relu+silu")
        ),
        "schedule": schedule,
        "optimizer": chance.choice(("adamw", "sgd", "momentum")),
    }
    shares = sizes.get("dp", 1) * sizes.get("ep", 1)
    microbatches = chance.choice((2, 4)) if stages > 1 else chance.choice((1, 1, 3))
    return MeshCase(model, ",".join(mesh), ", ".join(text), shares, chance.choice((1, 2)), microbatches, flags)


@pytest.mark.one_in(every=10)
@pytest.mark.parametrize("number", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 80))])
def test_memory_run_cost_and_cost_have_the_same_bytes_and_seconds(number):
    case = drawn(number)
    shown = f"LEARNCOST_TEST_SEED={SEED} {case}"
    found, run_cost = case.memory, case.run
    run = run_cost["mesh"]
    assert found.peak == run["memory"], shown
    assert found.split == run["split"], shown
    cost = lc.cost(case.model, on="DGX H100", microbatch=case.microbatch, **case.asked)
    assert cost.over_time.seconds == run_cost["figures"]["step"]["value"], shown
    joules = cost.timing.joules[1] * cost.over_time.parallel.devices  # of each device, which waits with power
    assert joules == pytest.approx(run_cost["figures"]["step_energy"]["value"]), shown
    assert cost.memory.peak == found.peak, shown
    assert sum(row.time or 0 for row in cost.rows) == pytest.approx(cost.timing.seconds), shown
    assert cost.over_time.parallel.stages == 1 or cost.timing.seconds == pytest.approx(
        cost.over_time.lines, rel=1e-9
    ), shown
    assert sum(found.split.values()) == found.peak, shown
    levels = [0] * len(found.curve)
    for array in found.arrays:
        for place in range(array.first, array.last + 1):
            levels[place] += array.bytes
    assert levels == [moment.bytes for moment in found.curve], shown
    assert max(levels) == found.peak, shown


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("number", [*range(6), *(pytest.param(n, marks=pytest.mark.slow) for n in range(6, 40))])
def test_a_single_microbatch_takes_what_the_step_placed_over_the_mesh_itself_keeps_alive(number):
    """The oracle: liveness in plain numbers of the step placed over the whole mesh, not over two devices per axis."""
    numbers = (n for n in range(10_000) if (case := drawn(1000 * (number + 1) + n)).microbatches == 1)
    case = drawn(1000 * (number + 1) + next(numbers))
    found, kind = case.memory, PRECISIONS[case.flags["precision"]]
    placed = found.over.placed
    widths = {"weight": kind.weight, "gradient": kind.gradient, "saved": kind.value, "": kind.value, "index": 4}
    widths |= dict.fromkeys(placed.scores, kind.scores)
    dtype = {4: "fp32", 2: "bf16"}[kind.value]
    alive = live(updated_in_place(placed), {**found.over.sizes, **placed.sizes}, dtype, widths, IN_KERNELS)
    beside = found.split["optimizer state"] + found.split["master weights"]
    assert found.peak == alive.peak + beside, f"LEARNCOST_TEST_SEED={SEED} {case}"
    # Adam's states are two numbers of fp32 for each of the master weights, which are shards of the same axes.
    numbers = {"adamw": 2, "momentum": 1, "sgd": 0}[case.flags["optimizer"]]
    if kind.master:
        assert found.split["optimizer state"] * kind.master == found.split["master weights"] * 4 * numbers


@pytest.mark.parametrize("command", ["memory", "cost", "place"])
def test_one_sequence_has_no_part_on_each_of_several_devices(command, capsys):
    sizes = [f"--{name.replace('_', '-')}={value}" for name, value in {**MODELS["gpt2"], "seq_len": 16}.items()]
    words = [command, "gpt2", *sizes, "--mesh", "dp=2", "--placement", "zero-1"]
    assert main([*words, "--batch-size", "1"]) == 2
    assert "1 sequence is not divisible by the 2 shards of dp" in capsys.readouterr().err
    if command == "memory":
        assert main([*words, "--batch-size", "2", "--accumulate", "2"]) == 2
        assert "a batch shard of 1 is not accumulate = 2 microbatches of 1" in capsys.readouterr().err


def test_sums_of_gradients_are_stored_for_several_microbatches_alone():
    """By hand, ZeRO-2 over 8 devices: 2 P of weights, 2 P / 8 of gradients, (4 + 8) P / 8 of masters and states."""
    asked = {"mesh": "dp=8", "placement": "zero-2", "precision": "bf16-masters", "engine": "graph", **DENSE}
    asked |= {"seq_len": 1024, "plan": "flash,fused", "vocab_size": 512}
    one, several = (lc.memory("llama-3-8b", batch_size=8 * n, accumulate=n, **asked) for n in (1, 4))
    parameters = 2 * 512 * 64 + 64 + 4 * (4 * 64 * 64 + 3 * 64 * 96 + 2 * 64)
    for found in (one, several):
        assert found.split["weights"] == 2 * parameters
        assert found.split["optimizer state"] == 8 * parameters // 8
        assert found.split["master weights"] == 4 * parameters // 8
    # Both peak in the backward pass of the head: of a single microbatch only the gradient of the last norm exists then.
    assert several.peak - one.peak == pytest.approx(2 * parameters / 8, abs=2 * 64 + 8)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", MODELS)
def test_the_account_of_a_step_computes_and_sends_what_its_placed_table_does(model):
    """Also with experts, and where `*` has to take another axis than the largest: 509 is a prime."""
    mesh, place = "dp=4", "B over dp, * over dp of states"
    if model == "mixtral-8x7b":
        mesh, place = (
            "dp=2,ep=2",
            "e over ep of experts, B over ep, * over ep of states, B over dp, * over dp of states",
        )
    asked = {"seq_len": 64, "batch_size": 4, "mesh": mesh, "place": place, "plan": "flash,fused", **MODELS[model]}
    asked |= {"precision": "bf16-masters"}
    cost = lc.cost(model, on="DGX H100", optimizer="adamw", **asked)
    placed = lc.place(model, on="DGX H100", optimizer="adamw", **asked).times()
    assert cost.over_time.lines == pytest.approx(cost.timing.seconds, rel=1e-6)
    sent, expected = (
        {(row.op, row.mesh_axis, row.role): row.seconds for row in rows} for rows in (cost.over_time.moved, placed)
    )
    assert sent == pytest.approx(expected)


PIPELINES = {"mesh": "pp=2,dp=2", "seq_len": 64, "precision": "bf16-masters", "plan": "flash,fused", **DENSE}


def test_every_answer_has_microbatches_of_one_sequence_over_stages_and_recomputes_as_often():
    """By default; an undivided batch is asked for by --microbatch or --accumulate 1."""
    undivided = {"batch_size": 16, "microbatch": 8}, {"batch_size": 16, "accumulate": 1}
    for given, number in (({}, 2), ({"batch_size": 16}, 8), *((each, 1) for each in undivided)):
        asked = {**PIPELINES, "on": "DGX H100", **given}
        cost, memory, place = (ask("llama-3-8b", **asked) for ask in (lc.cost, lc.memory, lc.place))
        run = lc.run_cost("llama-3-8b", "1e9", **{**asked, "batch_size": cost.batch_size})
        configs = cost.over_time.parallel, run.spread.step.parallel, place.over.parallel
        assert {(parallel.microbatches, parallel.microbatch) for parallel in configs} == {
            (number, 8 if given in undivided else 1)
        }
        assert memory.accumulate == number
        assert memory.peak == run.spread.peak == cost.memory.peak == place.memory.peak
        assert cost.over_time.seconds == run.spread.step.seconds
        microbatches = f"{number} microbatches" if number > 1 else ""
        assert all(microbatches in " ".join(str(each).split("\n\n")[0].split()) for each in (cost, memory, place, run))


@pytest.mark.parametrize("mesh", ["pp=2", "tp=2"])
def test_checkpoints_of_fewer_blocks_take_as_much_less_time_over_a_mesh(mesh):
    """Of 8 blocks every second one; each stage counts its own. The FLOPs are those of one device, in parts."""
    asked = {**DENSE, "num_hidden_layers": 8, "seq_len": 64, "batch_size": 2, "procedure": "recompute"}
    rates, again = {"precision": "bf16-masters", "engine": "graph"}, {}
    for every in (1, 2):
        cost = lc.cost("llama-3-8b", mesh=mesh, on="DGX H100", checkpoint_every=every, **asked)
        run = lc.run_cost("llama-3-8b", "1e9", "DGX H100", mesh=mesh, checkpoint_every=every, **asked)
        assert cost.over_time.seconds == run.spread.step.seconds
        assert cost.over_time.lines == pytest.approx(cost.timing.seconds, rel=1e-9)
        one = lc.cost("llama-3-8b", on="H100-SXM", checkpoint_every=every, **asked, **rates)
        again[every] = cost.over_time.seconds
        parts = [sum(row.flops for row in each.rows if row.macro_operation == "recomputation") for each in (cost, one)]
        assert parts[0] == pytest.approx(parts[1] / 2, rel=0.02)
    assert again[2] < again[1]


@pytest.mark.parametrize(("mesh", "masks"), [("tp=2", 2 * 2 + 1), ("pp=2", 2)])
def test_dropout_masks_are_called_so_and_not_other_microbatches(mesh, masks):
    """A byte of an element of both residual sums of a block and of the embedding; the last stage has one block."""
    asked = {"mesh": mesh, "batch_size": 2, "seq_len": 16, "n_layer": 2, "n_embd": 64, "n_head": 2, "dropout": 0.1}
    found = {array.name: array.bytes for array in lc.memory("gpt2", **asked).live_at_peak}
    assert found["dropout masks"] == 64 * 16 * masks
    assert "microbatches in flight" not in found


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved"])
def test_memory_of_a_pipeline_is_that_of_its_fullest_stage(schedule, capsys):
    asked = {**PIPELINES, "placement": "pp,zero-1", "schedule": schedule, "batch_size": 16}
    found = lc.memory("llama-3-8b", accumulate=8, **asked)
    by_run = {**asked, "placement": "zero-1", "microbatch": 1}
    stages = lc.run_cost("llama-3-8b", "1e9", "DGX H100", **by_run).spread.step.stages
    peaks = [stage.peak for stage in stages]
    assert found.peak == max(peaks)
    number = peaks.index(max(peaks)) + 1
    text = " ".join(str(found).split())
    assert f"Stage {number} of 2 has the highest peak" in text
    assert "blocks over pp" in text
    assert found.to_dict()["over"]["mesh"] == {"pp": 2, "dp": 2}
    cost = lc.cost("llama-3-8b", on="DGX H100", accumulate=8, **asked)  # a device updates all of its chunks at once
    assert sum(row.time or 0 for row in cost.rows) == pytest.approx(cost.over_time.lines, rel=1e-9)


def test_fit_finds_the_batch_the_length_and_what_does_not_fit_of_a_pipeline(capsys):
    asked = {**PIPELINES, "placement": "pp,zero-1"}
    (row,) = lc.fit("llama-3-8b", "4MB", procedures="bp", **asked).rows
    assert row.largest > 2
    of_stages = {**asked, "accumulate": 2}  # of fit, by default
    peaks = [lc.memory("llama-3-8b", batch_size=batch, **of_stages).peak for batch in (row.largest, row.largest + 4)]
    assert peaks[0] <= 4e6 < peaks[1]
    lengths = lc.fit("llama-3-8b", "4MB", procedures="bp", **{**asked, "seq_len": "64,128"}).rows[0]
    assert lengths.batches[0] == row.largest
    longest = [lc.memory("llama-3-8b", **{**asked, "seq_len": n}).peak for n in (lengths.longest, lengths.longest + 1)]
    assert longest[0] <= 4e6 < longest[1]
    assert (
        main(
            ["fit", "llama-3-8b", "--budget", "4MB", "--mesh", "pp=2", "--placement", "pp", "--seq-len", "64", "--json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["over"]["mesh"] == {"pp": 2, "dp": 1}


@pytest.mark.parametrize(
    ("mesh", "unit"), [({}, 4), ({"mesh": "pp=2,dp=2", "placement": "pp,zero-1", "schedule": "zb-h1"}, 8)]
)
def test_fit_finds_the_batch_of_several_microbatches(mesh, unit):
    asked = {"seq_len": 64, "precision": "bf16-masters", "plan": "flash,fused", "engine": "graph", **DENSE, **mesh}
    (row,) = lc.fit("llama-3-8b", "8MB", procedures="bp", accumulate=4, **asked).rows
    assert row.largest > 0
    assert row.largest % unit == 0
    peaks = [
        lc.memory("llama-3-8b", batch_size=batch, accumulate=4, **asked).peak
        for batch in (unit, row.largest, row.largest + unit)
    ]
    assert row.ram == peaks[0]
    assert peaks[1] <= 8e6 < peaks[2]
    with pytest.raises(lc.InputError, match="accumulate must be a whole number from 1"):
        lc.fit("llama-3-8b", "8MB", accumulate="x", **asked)
    with pytest.raises(lc.InputError, match="accumulate applies to training: remove inference from procedures"):
        lc.fit("llama-3-8b", "8MB", procedures="inference,bp", accumulate=4, **asked)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"engine": "numpy"}, "engine='numpy' does not support"),
        ({"plan": "fused-update"}, "sum gradients up to the last microbatch: remove the plan fused-update"),
        ({"mesh": "pp=8,dp=2"}, "4 blocks are too few for mesh='pp=8': at most 4 stages"),
        ({"schedule": "dualpipe"}, "schedule must be one of"),
        ({"place": "n_layer over pp of 3 1", "schedule": "interleaved", "placement": "zero-1"}, "one stage per device"),
    ],
)
def test_what_a_pipeline_has_no_answer_for_is_one_line(more, message):
    with pytest.raises(lc.InputError, match=message):
        lc.memory("llama-3-8b", batch_size=4, **{**PIPELINES, "placement": "pp,zero-1", **more})


def test_the_longest_sequence_under_tensor_parallelism_fits_and_one_unit_more_does_not():
    """The sizes of another length had no sizes of the mesh, of which embeddings that are looked up row by row have."""
    asked = {"num_hidden_layers": 2, "engine": "eager", "mesh": "tp=2", "placement": "megatron-sp"}
    found = lc.memory("llama-3.2-1b", budget="6GB", **asked)
    longest = found.fits["seq_len"]
    peaks = [lc.memory("llama-3.2-1b", seq_len=length, **asked).peak for length in (longest, longest + 2)]
    assert peaks[0] <= 6e9 < peaks[1]


def test_the_weights_of_a_block_are_gathered_in_one_call():
    """As FSDP gathers the flat parameter of a block: four blocks, and the embedding and the last norm outside."""
    model = build(configure("gpt2", MODELS["gpt2"]), "bf16")
    lengths = run_sizes(model, 8, 32, None)
    fully = clauses("B over dp, * over dp of weights gradients states")
    account = MeshAccount(model, lengths, mesh("dp=8"), StepConfig(fully, PRECISIONS["bf16-masters"], ""))
    parallel = ParallelConfig({"dp": 8})
    sizes = account.sizes.filled(sizes_of(account, parallel, lengths))

    def moved(sending, _):
        return Transfer(sending.op, MeshGroup(8, 8), 1.0, 1.0, "", "", latency=1.0, moving=0.0)

    times = DeviceTimes({}, moved, 0.0, sustained(lc.device("H100-SXM"), "bf16"))
    (stage,) = stages_of(account, parallel, lengths)
    exposed = {name: each[2] for name, each in stage_seconds(account, stage, sizes, parallel, times).items()}
    assert (exposed["F"], exposed["B"], exposed["W"]) == (4 + 2, 4, 4)

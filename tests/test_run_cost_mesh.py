"""The cost of a run over a mesh: whether it fits, what its steps take, and what is refused."""

import json
import re
import shlex
from pathlib import Path

import pytest
import torch

import learncost as lc
from learncost.cli.command import main

SMALL = {
    "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 4,
    "intermediate_size": 512, "vocab_size": 1024,
}  # fmt: skip
SIZES = {**SMALL, "seq_len": 64, "batch_size": 16}


def test_the_time_is_that_of_the_mesh():
    run = lc.run_cost("llama-2-7b", 10**9, "DGX H100", mesh="pp=2,dp=2,tp=2", microbatch=1, price_per_hour=2, **SIZES)
    step = run.spread.step
    assert run.figures["devices"].value == 8
    assert run.figures["steps"].value == -(-(10**9) // (16 * 64))
    assert run.days == pytest.approx(run.figures["steps"].value * step.seconds / 86400)
    assert run.price_usd == pytest.approx(run.days * 24 * 8 * 2)
    assert run.total_by == "mesh"
    text = " ".join(str(run).split())
    assert "It fits in the 69.0 GB of a device without a reserve: pp=2,dp=2,tp=2, 1f1b, 8 microbatches of 1" in text
    assert "all_gather over tp of values" in text
    of_mesh = json.loads(run.show("json"))["mesh"]
    assert of_mesh["fits"] is True
    assert of_mesh["mesh"] == {"pp": 2, "dp": 2, "tp": 2}
    sent = {(row["op"], row["mesh_axis"], row["role"]) for row in of_mesh["sent"]}
    assert {("reduce_scatter", "dp", "gradients"), ("all_gather", "dp", "weights"), ("send", "pp", "values")} <= sent


def test_microbatches_chunks_and_plans_are_those_that_are_asked_for():
    sizes = {**SIZES, "batch_size": 32}
    several = {"schedule": "interleaved", "microbatch": 4, "chunks": "2", "plan": "flash,fused,recompute=block"}
    run = lc.run_cost("llama-2-7b", 10**9, "DGX H100", mesh="pp=2,dp=2,tp=2", **several, **sizes)
    ones = lc.run_cost("llama-2-7b", 10**9, "DGX H100", mesh="pp=2,dp=2,tp=2", **sizes)
    parallel = run.spread.step.parallel
    assert (parallel.microbatch, parallel.microbatches, parallel.chunks) == (4, 4, 2)
    assert (ones.spread.step.parallel.microbatch, ones.spread.step.parallel.microbatches) == (1, 16)
    asked = {"on": "DGX H100", "mesh": "dp=4,tp=2", **sizes}
    usual, cost = lc.run_cost("llama-2-7b", 10**9, **asked).spread.step, lc.cost("llama-2-7b", **asked).over_time
    assert (usual.parallel.microbatch, usual.seconds) == (8, cost.seconds)
    assert run.spread.step.stages[1].activations < 4 * ones.spread.step.stages[1].activations
    for wrong, why in (
        ({"microbatch": 5}, "a batch shard of 4 is not microbatches of 5"),
        ({"chunks": 2}, "1f1b has one stage per device: use schedule interleaved"),
        ({"microbatch": "x"}, "microbatch must be a whole number"),
        ({"mesh": None, "plan": "flash"}, "requires mesh; without mesh the fastest"),
    ):
        with pytest.raises(lc.InputError, match=why):
            lc.run_cost("llama-2-7b", 10**9, "DGX H100", 8, **{"mesh": "dp=8", **sizes, **wrong})
    with pytest.raises(lc.InputError, match="microbatch=2 requires mesh"):
        lc.run_cost("gpt2", 10**9, "A100-SXM-80GB", microbatch=2)


def test_a_vocabulary_that_does_not_divide_is_said_to_be_filled_up():
    run = lc.run_cost("llama-2-7b", 10**9, "DGX H100", mesh="tp=4", **{**SIZES, "vocab_size": 1021})
    assert [(each.size, each.filled) for each in run.spread.step.padded] == [(1021, 1024)]
    assert "v is 1,021 and padded to 1,024" in " ".join(str(run).split())


@pytest.mark.parametrize(
    ("mesh", "placement", "heads", "keys"), [("tp=8", "megatron", 8, 8), ("tp=4", None, 8, 1), ("tp=3", None, 9, 3)]
)
def test_what_is_cut_has_to_divide_and_nothing_else(mesh, placement, heads, keys):
    """Of groups of heads that share keys the first with several places is cut: 8 heads of one key by their 8 groups."""
    over = {"mesh": mesh, "placement": placement, "num_attention_heads": heads, "num_key_value_heads": keys}
    sizes = SIZES | {"hidden_size": 288, "intermediate_size": 576, "seq_len": 72} | over
    step = lc.run_cost("llama-3-8b", 10**9, "DGX H100", **sizes).spread.step
    assert step.parallel.mesh == {"tp": int(mesh[3:])}


def test_a_clause_cuts_the_blocks_into_stages():
    clauses = "n_layer over pp, h f v over tp, M over tp of values, B over dp, * over dp of states"
    chosen, usual = (
        lc.run_cost("llama-2-7b", 10**9, "DGX H100", mesh="pp=2,dp=2,tp=2", place=place, **SIZES)
        for place in (clauses, None)
    )
    assert chosen.spread.step.seconds == usual.spread.step.seconds
    text = str(usual)
    assert "The stages of the pipeline" in text
    assert len([line for line in text.splitlines() if line.split()[:2] in (["0", "2"], ["1", "2"])]) == 2


def test_without_a_mesh_the_fastest_that_fits_is_taken():
    run = lc.run_cost("llama-2-7b", 10**9, "DGX H100", 8, **SIZES)
    best = lc.search("llama-2-7b", "DGX H100", 8, top=1, **SIZES).best
    assert run.spread.step.seconds == best.step.seconds
    assert "the fastest mesh that learncost search finds" in " ".join(str(run).split())


def test_a_mesh_that_does_not_fit_is_said():
    run = lc.run_cost("llama-3-70b", 10**9, "DGX H100", mesh="dp=8", seq_len=2048, batch_size=8, num_hidden_layers=40)
    assert not run.spread.fits
    assert f"It does not fit: {run.spread.step.peak / 1e9:.3g} GB of 69.0 GB" in " ".join(str(run).split())


def test_a_device_is_no_cluster():
    assert lc.run_cost("gpt2", 10**9, "MI300X").spread is None
    assert lc.run_cost("gpt2", 10**9, "B200").spread is None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "--mesh dp=3 --batch-size 16",
            "16 sequences are not divisible by the 3 shards of dp: the next divisible --batch-size is 18",
        ),
        ("--mesh tp=3 --batch-size 6", "not divisible by the 3 devices of tp: the next divisible size is"),
        ("--mesh dp=2 --devices 4 --batch-size 4", "the mesh dp=2 has 2 devices, not 4"),
        ("--mesh dp=x", "write dp=2,tp=4"),
        ("--mesh xp=2 --batch-size 2", "mesh axis xp needs sharding rules"),
        ("--mesh pp=2 --schedule interleaved --chunks 1e9", "4 blocks are too few for --mesh pp=2 x 1000000000"),
        ("--mesh dp=2 --mfu 0.4 --batch-size 2", "mfu and the mesh both set the speed"),
        ("--mesh pp=2 --procedure pepita --batch-size 2", "pipeline stages require --procedure bp or recompute, not"),
        ("--devices 8 --optimizer sgd", "--optimizer sgd requires --mesh"),
        ("--mesh dp=4 --batch-size 4 --accumulate 2", "a batch shard of 1 is not accumulate = 2 microbatches of 1"),
        ("--mesh dp=4 --batch-size 16 --accumulate 2 --microbatch 1", "the next divisible --batch-size is 8"),
        ("--devices 8 --procedure recompute", "--procedure recompute requires --mesh; without --mesh the fastest mesh"),
        ("--mesh pp=2 --schedule 2f2b --batch-size 2", "schedule must be one of"),
        ("--placement fsdp", "--placement fsdp requires --mesh, for example"),
        ("--mesh pp=2 --place 'd over pp' --batch-size 2", "pp shards the stack of blocks: write n_layer over pp, not"),
        (
            "--mesh pp=2 --place 'blocks over pp of 1 2' --batch-size 2",
            "stages of 1, 2 blocks must sum to the model's 4",
        ),
    ],
)
def test_bad_meshes_are_one_line(more, message, capsys):
    sizes = [op for name, size in SMALL.items() for op in (f"--{name.replace('_', '-')}", str(size))]
    command = ["run-cost", "llama-2-7b", "--tokens", "1e9", "--on", "DGX-H100", "--seq-len", "64", *sizes]
    assert main([*command, *shlex.split(more)]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error


def test_stages_are_said_by_name_as_learncost_place_takes_them():
    usual, named = (
        lc.run_cost("llama-2-7b", 1e9, "DGX-H100", mesh="pp=2,dp=2", batch_size=4, seq_len=64, **SMALL, **asked)
        for asked in ({}, {"placement": "pp,zero-1"})
    )
    assert named.spread.step.seconds == usual.spread.step.seconds


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", ["qwen3-235b-a22b", "mixtral-8x7b", "deepseek-v2-lite"])
@pytest.mark.parametrize("mesh", ["pp=2,ep=8,tp=4", "ep=2,tp=2", "dp=2,ep=2,tp=2", "tp=2,ep=4"])
def test_experts_beside_heads_and_widths_have_no_time(model, mesh):
    """Megatron-MoE-ModelZoo, best_practice/qwen3: 29.0 s over pp=8,ep=8,tp=4; 97.9 s would be said of it."""
    sizes = {"seq_len": 512, "batch_size": 128}
    with pytest.raises(lc.InputError, match="the time of experts over ep with heads and widths over tp is not mod"):
        lc.run_cost(model, "1e9", "DGX H100", mesh=mesh, **sizes)


def test_a_mesh_of_other_names_is_refused_alike():
    place = "e over x of experts, B over x, h g f over y"
    with pytest.raises(lc.InputError, match="experts over x with heads and widths over y"):
        lc.run_cost("mixtral-8x7b", "1e9", "DGX H100", mesh="x=2,y=4", place=place, seq_len=512, batch_size=64)
    sizes = {"n_layer": 2, "seq_len": 64, "batch_size": 2}
    placed = {"mesh": "ep=2,tp=2", "placement": "ep,megatron-sp"}
    with pytest.raises(lc.InputError, match="experts over ep with heads and widths over tp"):
        lc.cost("mixtral-8x7b", **placed, **sizes, on="DGX H100")
    assert lc.cost("mixtral-8x7b", **placed, **sizes).total.flops  # counts are told


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(
    ("mesh", "place", "message"),
    [
        ("dp=2,ep=4", "B over dp, e over ep of experts", "if all devices of ep have the same tokens"),
        ("dp=2,a=4", "B over dp, e over a of experts, h f v over a", "if all devices of a have the same tokens"),
        ("ep=2,tp=2", "e over ep of experts, B over ep, v over tp", "experts over ep with v over tp"),
        ("ep=2,tp=2", "e over ep of experts, B over ep, * over tp of experts", "experts over ep with [*] over tp"),
        ("ep=2,cp=2", "e over ep of experts, B over ep, h g over cp of scores", "experts over ep with h g over cp"),
    ],
)
def test_experts_whose_tokens_several_devices_have_are_refused_alike(mesh, place, message):
    """Every device but one would multiply, or send, the rows of another: a framework lets each take its part."""
    with pytest.raises(lc.InputError, match=message):
        lc.cost("mixtral-8x7b", mesh=mesh, place=place, n_layer=2, seq_len=64, batch_size=8, on="DGX H100")


def test_experts_beside_parts_of_sequences_have_a_time():
    """Ulysses cuts heads in scores alone, and tokens everywhere else."""
    sizes = {"n_layer": 2, "seq_len": 64, "batch_size": 8}
    step = lc.cost("mixtral-8x7b", mesh="ep=2,cp=2", placement="ep,ulysses", on="DGX H100", **sizes)
    assert step.over_time.seconds > 0


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("mesh", ["pp=2,ep=8", "ep=8,tp=1", "ep=1,tp=8", "dp=2,tp=4", "pp=2,dp=2,ep=4"])
def test_experts_or_heads_alone_have_one(mesh):
    assert lc.run_cost("mixtral-8x7b", "1e9", "DGX H100", mesh=mesh, seq_len=512, batch_size=64).days > 0


def test_a_trainers_file_with_gradient_checkpoints_is_answered_over_its_devices(capsys):
    """The most common training: FSDP of every block with `torch.utils.checkpoint`, whose files say no mesh."""
    files = [
        str(Path(__file__).parent.parent / "examples" / "trainer_files" / name) for name in ("sft.yaml", "zero3.json")
    ]
    assert main(["run-cost", *files, *["--tokens", "1e9", "--on", "DGX-H100", "--devices", "8", "--json"]]) == 0
    found = json.loads(capsys.readouterr().out)
    asked = {"batch_size": 16, "seq_len": 4096, "precision": "bf16-masters", "mesh": "dp=8", "placement": "zero-3"}
    on = {"on": "DGX-H100", "engine": "eager", "microbatch": 1, "module": "transformers-reentrant"}
    plain, again = (lc.run_cost("qwen3-4b", "1e9", **on, **asked, procedure=name) for name in ("bp", "recompute"))
    assert found["figures"]["step"]["value"] == again.figures["step"].value > 1.2 * plain.figures["step"].value
    assert again.figures["flops"].value == plain.figures["flops"].value < again.figures["hardware_flops"].value


def test_a_run_over_a_mesh_has_the_decoders_length():
    """It took the encoder's length for both."""
    sizes = {"seq_len": 64, "batch_size": 16, "num_layers": 2, "num_decoder_layers": 2}
    run = lc.run_cost("t5-small", 10**6, "DGX-A100", mesh="dp=2", target_len=8, **sizes)
    assert run.spread.step.tokens == 16 * 8
    assert run.figures["steps"].value == -(-(10**6) // (16 * 8))
    assert "16 sequences of 64 and 8 tokens a step" in " ".join(str(run).split())


class _Reader(torch.nn.Module):
    """Tokens of two lengths, which are no sizes of the notation's own names."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = torch.nn.Embedding(16, 8), torch.nn.Linear(8, 16)

    def forward(self, tokens, targets):
        x = self.embed(tokens)
        return torch.nn.functional.cross_entropy(self.out(x).flatten(0, 1), targets.flatten())


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize(("axis", "size"), [("T", 32), ("M", 32), (32, None)])
@pytest.mark.parametrize("mesh", [None, "dp=2"])
def test_tokens_of_a_module_are_those_it_looks_up_whatever_its_axis_is_called(axis, size, mesh):
    inputs = dict.fromkeys(("tokens", "targets"), f"int B {axis}")
    sizes = {axis: size} if size else {}
    module = lc.from_module(_Reader(), inputs=inputs)
    run = lc.run_cost(module, 10**6, "DGX-A100" if mesh else "A100-SXM-80GB", mesh=mesh, batch_size=4, **sizes)
    assert run.figures["steps"].value == -(-(10**6) // (4 * 32))
    assert run.figures["flops"].value == 10**6 * 3 * 2 * 8 * 16
    if mesh is None:
        rule = next(iter(lc.rules(module, tokens=10**6, **sizes).rules)).cases[0]
        assert rule.exact == run.figures["flops"].value


def test_stages_of_adapters_have_the_weights_and_passes_of_their_blocks():
    """Adapters cut the loop over blocks at the first one: each of two stages has half of the paths, and no tied sum."""
    asked = {"n_layer": 4, "vocab_size": 513, "seq_len": 64, "batch_size": 4, "mesh": "pp=2"}
    plain, adapted = (lc.memory("gpt2", **asked, **more) for more in ({}, {"lora": "all-linear"}))
    learned = lc.cost("gpt2", n_layer=4, seq_len=64, lora="all-linear").trained_parameters
    assert adapted.split["weights"] - plain.split["weights"] == 4 * learned // 2
    on = {**asked, "on": "DGX-H100", "precision": "fp32"}
    plain, adapted = (lc.cost("gpt2", **on, **more) for more in ({}, {"lora": "all-linear"}))
    assert adapted.macro_operations["forward"][1].maccs > plain.macro_operations["forward"][1].maccs
    assert min(*adapted.over_time.passes["F"], *adapted.over_time.passes["B"]) > 0
    sums = [[row.payload for row in each.over.sent if row.op == "all_reduce"] for each in (plain, adapted)]
    assert sums == [[513 * 768 * 4], []]  # of the tied embedding, in fp32
    assert [(row.mesh_axis, row.payload) for row in plain.over_time.sent if row.op == "all_reduce"] == [
        ("pp", 513 * 768 * 4)
    ]


@pytest.mark.parametrize("mesh", ["dp=2,tp=2", "pp=2,tp=2"])
def test_rows_over_a_mesh_sum_to_its_compute(mesh):
    """Also where a vocabulary is padded, whose mask is not timed."""
    asked = {"n_layer": 4, "vocab_size": 513, "seq_len": 64, "batch_size": 4, "mesh": mesh, "plan": "flash,fused"}
    found = lc.cost("gpt2", on="DGX-H100", precision="bf16-masters", **asked)
    assert sum(row.time or 0 for row in found.rows) == pytest.approx(found.over_time.lines, rel=1e-9)


def test_a_measured_rate_sets_the_time_of_a_mesh_and_stands_beside_the_modelled_step() -> None:
    asked = {"on": "DGX-H100", "devices": 8, "mesh": "dp=8", "batch_size": 16, "seq_len": 1024}
    modelled = lc.run_cost("gpt2", 1e9, **asked)
    run = lc.run_cost("gpt2", 1e9, tokens_per_second=1e6, **asked)
    assert run.figures["time"].value * 86_400 == pytest.approx(1e9 / 1e6)
    assert run.figures["step"].value == pytest.approx(16 * 1024 / 1e6, rel=1e-3), "a step of all devices together"
    assert run.figures["modelled_step"].value == modelled.figures["step"].value
    assert {each.convention for each in run.utilizations} >= {"palm", "matmul"}

"""Cost and memory of a step over many devices: what each computes, sends and holds, as formulas from the tables."""

import pytest

import learncost as lc
from learncost.backends.placed import placed
from learncost.cli.command import main
from learncost.devices.collective import CALL
from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial
from learncost.liveness import live
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.reports.memory.planner import smallest
from learncost.sharding.collective import bucketed
from learncost.sharding.mesh import mesh
from learncost.sharding.place import place
from learncost.sharding.presets import chosen
from on_operators import on_operators

SIZES = {"vocab_size": 50304, "seq_len": 256, "n_layer": 3}


def elements(found, where=lambda one: True):
    """Elements of payload in fp32, all runs together."""
    return sum(one.payload_bytes * one.times for one in found.collectives if where(one)) // 4


def test_ddp_reduces_every_gradient_once():
    found = lc.place("gpt2", "dp=8", placement="ddp", **SIZES)
    P = lc.cost("gpt2", **SIZES).parameters
    assert elements(found) == P + 1  # and the loss
    assert sum(row.ring for row in found.over.sent) * 8 == (4 * P + 4) * 2 * 7


def test_zero_1_and_2_scatter_gradients_and_gather_new_weights():
    P = lc.cost("gpt2", **SIZES).parameters
    for name in ("zero-1", "zero-2"):
        found = lc.place("gpt2", "dp=8", placement=name, **SIZES)
        ops = {row.op: row.payload // 4 for row in found.over.sent}
        assert ops == {"reduce_scatter": P, "all_gather": P, "all_reduce": 1}, name


def test_zero_3_gathers_weights_forward_and_again_what_the_backward_pass_reads():
    found = lc.place("gpt2", "dp=8", placement="zero-3", **SIZES)
    sizes = {"d": 768, "f": 3072, "v": 50304, "p": 1024, "n": 3}
    d, f, v, p, n = sizes.values()
    block = 4 * d * d + 2 * d * f + 4 * d + f + d + 4 * d
    P = v * d + p * d + n * block + 2 * d
    assert elements(found, lambda one: one.op == "reduce_scatter") == P
    gathered = {
        phase: elements(found, lambda one, phase=phase: (one.op, one.phase) == ("all_gather", phase))
        for phase in ("forward", "backward")
    }
    assert gathered["forward"] == P
    # Biases and shifts of norms are not read backwards, and the part outside of the blocks is gathered once.
    assert gathered["backward"] == n * (4 * d * d + 2 * d * f + 2 * d)


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_parallel_reduces_four_times_a_block(t):
    found = lc.place("gpt2", f"tp={t}", placement="megatron", batch_size=2, **SIZES)
    B, M, d, n = 2, 256, 768, 3
    assert elements(found, lambda one: one.times == n) == 4 * B * M * d * n
    outside = elements(found, lambda one: one.times == 1)
    assert outside == 2 * B * M * d + 3 * B * M + 1  # embedding and dY; max, sum and backward's sum; the loss


@pytest.mark.parametrize("t", [2, 4])
def test_sequence_parallel_gathers_and_scatters_and_reduces_what_is_small(t):
    found = lc.place("gpt2", f"tp={t}", placement="megatron-sp", batch_size=2, **SIZES)
    B, M, d, n, p = 2, 256, 768, 3, 1024
    block = {
        op: elements(found, lambda one, op=op: one.op == op and one.times == n)
        for op in ("all_gather", "reduce_scatter", "all_reduce")
    }
    assert block["reduce_scatter"] == 4 * B * M * d * n
    assert block["all_gather"] == (4 + 2) * B * M * d * n  # two more for the gradients of weights
    small = elements(found, lambda one: one.op == "all_reduce" and one.role == "gradients")
    assert small == d * p + 6 * d * n + 2 * d  # positions; norms and biases behind what is summed; the last norm


def test_experts_get_their_rows_and_send_them_back():
    found = lc.place("mixtral-8x7b", "ep=4", placement="ep", seq_len=64, n_layer=2)
    rows, d, n = found.batch_size * 64 * 2 // 4, 4096, 2
    sent = {(one.op, one.phase): 0 for one in found.collectives if one.op in ("dispatch", "combine")}
    for one in found.collectives:
        if one.op in ("dispatch", "combine"):
            sent[one.op, one.phase] += one.payload_bytes * one.times
    index = 8 * rows * n  # of which expert each row is
    assert sent["dispatch", "forward"] == 4 * rows * d * n + index
    assert sent["combine", "forward"] == 4 * rows * d * n
    # Backward the gradients of what experts give, and what they were given, again; and back what each of two matrices
    # leaves for their input.
    backward = sum(sent.get(("dispatch", phase), 0) for phase in ("backward", "weight_update"))
    assert backward == 2 * 4 * rows * d * n + index
    assert sent["combine", "backward"] == 2 * 4 * rows * d * n
    reduced = {one.line for one in found.collectives if one.op == "all_reduce"}
    assert not any(line.startswith(("dmoe.WG", "dmoe.WU", "dmoe.WD")) for line in reduced)


def test_products_of_experts_are_shared_out():
    sizes = {"seq_len": 64, "n_layer": 2, "batch_size": 4, "price_book": "matmul"}
    alone = lc.cost("mixtral-8x7b", **sizes)
    several = lc.cost("mixtral-8x7b", mesh="ep=4", placement="ep", **sizes)
    assert several.total.maccs * 4 == alone.total.maccs


@pytest.mark.parametrize("placement", ["ddp", "zero-3", "cp", "ulysses"])
def test_matrix_products_of_all_devices_are_those_of_one(placement):
    axis = "cp" if placement in ("cp", "ulysses") else "dp"
    more = {"batch_size": 4, "price_book": "matmul", **SIZES}
    alone = lc.cost("gpt2", **more)
    several = lc.cost("gpt2", mesh=f"{axis}=4", placement=placement, **more)
    assert several.total.maccs * 4 == alone.total.maccs
    assert several.to_dict()["total_of_all_devices"]["maccs"] == alone.total.maccs
    assert sum(row.payload_bytes for row in several.rows) == sum(row.payload for row in several.over.sent)


LAYERS, BATCH, LENGTH, HEADS, WIDTH = 7, 2, 8, 4, 24
SBH, AS2B = LENGTH * BATCH * WIDTH, HEADS * LENGTH**2 * BATCH
SELECTIVE = "recompute=softmax+attn.R+attn.S"


def kept_in_blocks(t, placement, plan):
    """Bytes that a block with dropout keeps on one of t devices in 16 bits, as Korthikanti et al. 2022 count them.

    Masks are of a byte, those of what is made again are drawn again; standard deviations, small as they are, left out.
    """
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "num_hidden_layers": LAYERS, "vocab_size": 12}
    model = build(configure("gpt2", {**sizes, "max_position_embeddings": 8}), dropout=True)
    table = planned(without_gradients(step(model, "bp", "sgd")), plan)
    whole = run_sizes(model, BATCH, LENGTH, None)
    placed = place(table, mesh(f"tp={t}"), chosen(None, placement), whole)
    arrays = live(placed.table, {**whole, "tp": t}, "fp16").saved
    block = [a for a in arrays if a.axes[0] == "n_layer" and len(a.axes) > 3]
    again = {SELECTIVE: ("attn.P.mask",), "": ()}.get(plan, ("attn.P.mask", "attn.Y.mask", "mlp.Y.mask"))
    total = sum(a.bytes // 2 if a.name.endswith(".mask") else a.bytes for a in block if a.name not in again)
    return total / LAYERS


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("t", [1, 2, 4])
@pytest.mark.parametrize(
    ("placement", "plan", "bytes_kept"),
    [
        ("megatron", "", lambda t: SBH * (10 + 24 / t) + 5 * AS2B / t),
        ("megatron-sp", "", lambda t: SBH * 34 / t + 5 * AS2B / t),
        ("megatron", SELECTIVE, lambda t: SBH * (10 + 24 / t)),
        ("megatron-sp", SELECTIVE, lambda t: SBH * 34 / t),
        ("megatron", "recompute=block", lambda t: 2 * SBH),
        ("megatron-sp", "recompute=block", lambda t: 2 * SBH / t),
    ],
)
def test_activations_of_a_block_are_those_of_table_2(t, placement, plan, bytes_kept):
    # Korthikanti et al. 2022, Reducing activation recomputation in large transformer models, table 2.
    assert kept_in_blocks(t, placement, plan) == bytes_kept(t)


@pytest.mark.parametrize("procedure", ["local", "kolen-pollack"])
def test_what_a_procedure_has_beside_the_weights_has_its_state_on_every_device(procedure):
    one = lc.memory("gpt2", procedure=procedure, engine="graph", **SIZES)
    several = lc.memory("gpt2", procedure=procedure, mesh="dp=4", placement="ddp", batch_size=4, **SIZES)
    for part in ("weights", "optimizer state", "fixed matrices"):
        assert several.split[part] == one.split[part]


def test_memory_of_one_device_is_of_its_part():
    one = lc.memory("gpt2", engine="graph", **SIZES)
    several = lc.memory("gpt2", mesh="dp=4", placement="zero-3", batch_size=4, **SIZES)
    for part in ("weights", "optimizer state"):
        assert several.split[part] * 4 == one.split[part]
    assert several.to_dict()["over"]["devices"] == 4
    assert several.peak == sum(several.split.values())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"placement": "fsdp"}, "requires mesh, for example"),
        ({"mesh": "shard=2"}, "mesh axis shard needs sharding rules"),
        (
            {"mesh": "dp=2", "placement": "ddp", "engine": "eager", "plan": "fused-update"},
            "does not support plan='fused-update' over a mesh, since DDP",
        ),
        ({"mesh": "tp=5", "placement": "megatron"}, r"h \(heads\) is 12, .* the next divisible size is 15"),
        (
            {"mesh": "dp=3", "placement": "ddp", "batch_size": 4},
            "4 sequences are not divisible by the 3 shards of dp: the next divisible batch_size is 6",
        ),
        ({"mesh": "cp=3", "placement": "cp"}, r"M \(positions\) is 1,024, .* the next divisible size is 1,026"),
    ],
)
def test_what_is_of_one_device_is_refused_over_a_mesh(flags, message):
    with pytest.raises(lc.InputError, match=message):
        lc.memory("gpt2", **flags)


def test_what_is_kept_is_not_moved_again():
    """ZeRO-3 that keeps what it gathered sends 2 P, as DDP does; sequence parallelism 2 gathers a block fewer."""
    P = lc.cost("gpt2", **SIZES).parameters
    again, once = (lc.place("gpt2", "dp=8", placement="fsdp", plan=plan, **SIZES) for plan in ("", "keep=all_gather"))
    gathered = [elements(found, lambda one: one.op == "all_gather") for found in (again, once)]
    assert gathered[0] > 1.2 * P
    assert gathered[1] == P
    block = [
        [one.phase for one in lc.place("gpt2", "tp=4", placement="megatron-sp", plan=plan, **SIZES).collectives
         if one.op == "all_gather" and one.times == 3]
        for plan in ("", "keep=all_gather")
    ]  # fmt: skip
    assert len(block[0]) - len(block[1]) == 2
    more, less = (
        lc.memory("gpt2", mesh="dp=8", placement="fsdp", plan=plan, batch_size=8, vocab_size=50304, n_layer=3).peak
        for plan in ("keep=all_gather", "")
    )
    assert more - less == pytest.approx(4 * 3 * 12 * 768**2, rel=0.01)  # matrices of three blocks, whole
    with pytest.raises(InputError, match="keep takes collectives"):
        lc.place("gpt2", "dp=8", placement="fsdp", plan="keep=softmax", **SIZES)


def test_time_over_links_comes_with_a_cluster():
    """Ring on NVLink 4 (learncost list clusters): 2(p-1)/p of the gradients, in bf16, at what the link attains."""
    found = lc.cost("gpt2", mesh="dp=4", placement="ddp", on="DGX-H100", seq_len=256, batch_size=4)
    takes = found.over_time
    assert takes.seconds == pytest.approx(found.timing.seconds + takes.waits + takes.exposed)
    assert sum(row.seconds for row in takes.moved) == pytest.approx(takes.waits + takes.overlapping)
    (gradients,) = [row for row in takes.moved if row.role == "gradients"]
    link = lc.cluster("DGX-H100").inside
    sent = 2 * 3 / 4 * 2 * found.parameters
    steps = gradients.calls * (CALL + 2 * 3 * link.latency_us * 1e-6)
    assert gradients.seconds == pytest.approx(sent / link.speed(4) + steps, rel=1e-9)
    assert found.to_dict()["step"]["waiting"] == takes.waits
    with pytest.raises(InputError, match=r"links of .* are not known"):
        lc.cost("gpt2", mesh="dp=2", placement="ddp", on="T4")


def test_a_vocabulary_that_does_not_divide_is_filled_up():
    """It costs what the next one costs, to the unit but for what is left out of the softmax; parameters are its own."""
    odd, even = (lc.cost("gpt2", mesh="tp=4", placement="megatron", vocab_size=size) for size in (50257, 50260))
    assert odd.total.maccs == even.total.maccs
    assert odd.parameters == even.parameters - 3 * 768
    assert odd.over.sent == even.over.sent
    assert [(each.axis, each.size, each.filled) for each in odd.over.padded] == [("v", 50257, 50260)]
    assert "v is 50,257 and padded to 50,260" in " ".join(str(odd).split())
    assert odd.total.flops - even.total.flops < 1e-3 * even.total.flops


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize(("mesh", "placement", "step"), [("dp=2,tp=4", "fsdp,megatron-sp", 2), ("cp=2", "cp", 1)])
def test_what_fits_each_of_many_devices_is_the_largest(mesh, placement, step):
    """A batch that every device has an equal part of: it fits, the next one does not."""
    here = {
        "seq_len": 64,
        "n_layer": 2,
        "vocab_size": 257,
        "plan": "fused-update",
        "mesh": mesh,
        "placement": placement,
    }
    (row,) = lc.fit("gpt2", "1GB", procedures="bp", **here).rows
    assert row.largest > step
    assert lc.memory("gpt2", batch_size=row.largest, **here).peak <= 1e9
    assert lc.memory("gpt2", batch_size=row.largest + step, **here).peak > 1e9


def test_a_budget_over_a_mesh_is_that_of_each_device():
    one, two = (
        lc.memory("gpt2", n_layer=2, budget="4GB", engine="graph", **over).fits["batch_size"] for over in MESHES
    )
    assert two % 2 == 0
    assert two >= 2 * one


MESHES = ({}, {"mesh": "dp=2", "placement": "fsdp"})


@pytest.mark.parametrize(
    ("model", "weights"),
    [
        ("bart-base", {"decoder.mlp.W1": 1, "decoder.attn.WQ": 1, "decoder.cross.WO": 0}),
        ("qwen3-30b-a3b", {"moe.WG": 2, "moe.WD": 1}),
        ("deepseek-v2-lite", {"sparse.moe.WU": 2, "sparse.shared.WG": 1, "dense.mlp.WD": 0}),
    ],
)
def test_tensor_parallel_cuts_widths_and_heads_whatever_a_family_calls_them(model, weights):
    """The width of experts, and heads and width of a decoder beside an encoder, have letters of their own."""
    table = lc.place(model, "tp=2", placement="megatron", seq_len=64, num_hidden_layers=2).table
    for name, at in weights.items():
        axes = [axis for axis in table.axes[name] if not axis.startswith("n_")]
        assert axes[at].endswith("/tp"), axes


def test_what_holds_or_not_is_sent_in_a_byte():
    """Which keys a query sees, that Llama 4's layers are given, is gathered for heads that are cut in its place."""
    step = lc.place("llama-4-scout", "cp=2", placement="ulysses", seq_len=64, num_hidden_layers=4)
    gathered = [one.payload_bytes for one in step.collectives if one.line.startswith("visible.all_gather")]
    assert gathered
    assert {*gathered} == {64 * 64}


def test_codes_of_quantized_weights_are_cut_with_them():
    """Half of them lie on each of two devices; scales of blocks of 64 that do not divide stay whole."""
    what = {"precision": "qlora", "lora": "all-linear", "seq_len": 64, "n_layer": 2, "vocab_size": 256}
    one = lc.memory("gpt2", engine="graph", **what).split["weights"]
    cut = lc.memory("gpt2", mesh="dp=2", placement="fsdp", **what)
    assert one / 2 <= cut.split["weights"] < 0.52 * one
    assert cut.peak == sum(cut.split.values())


def test_a_plan_is_chosen_for_batches_that_all_devices_share():
    what = {"n_layer": 1, "n_embd": 48, "vocab_size": 256, "seq_len": 64, "mesh": "dp=2", "placement": "ddp"}
    fits = lc.memory("gpt2", budget="20MB", plan="auto", **what).fits
    assert fits["batch_size"] % 2 == 0
    assert fits["batch_size"] > 2


def test_a_length_that_devices_do_not_divide_says_so():
    here = {"n_layer": 1, "n_embd": 48, "vocab_size": 256, "procedures": "bp", "plan": "", "seq_len": "64,65"}
    found = lc.fit("gpt2", "1GB", mesh="cp=4", placement="cp", **here)
    assert [row.batches[1] for row in found.rows] == [None]
    assert (
        "65 tokens: M (positions) is 65, which is not divisible by the 4 devices of cp: the next divisible size is 68"
        in found.refused[0]
    )


def test_a_refusal_has_the_clause_as_it_was_written():
    with pytest.raises(InputError, match=r"\(sharding rule 'h g f v over tp'; "):
        lc.place("bart-base", "tp=5", placement="megatron")


def test_a_process_of_several_takes_what_its_program_lays_out():
    shape = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 8}
    found = lc.memory("gpt2", engine="torch", mesh="dp=2", placement="fsdp", batch_size=4, seq_len=8, **shape)
    model, grid = build(configure("gpt2", shape)), mesh("dp=2")
    sizes = run_sizes(model, 4, 8, None)
    whole = without_gradients(step(model, "bp", "adamw"))
    table = bucketed(place(planned(whole, found.plan), grid, chosen(None, "fsdp"), sizes, plan=found.plan).table)
    assert found.split["arena"] == placed(table, sizes | grid.sizes, "fp32").bytes
    assert found.split["messages"] > 4 * 12 * 16**2  # a block's matrices at least, which are gathered together
    assert found.plan == smallest(whole, {**sizes, "B": 2}, "fp32")
    one = lc.memory("gpt2", engine="torch", batch_size=2, seq_len=8, **shape)
    assert found.split["weights"] == one.split["weights"] / 2
    with pytest.raises(InputError, match="engine='c99' does not support mesh, since its program is for one board"):
        lc.memory("gpt2", engine="torch,c99", mesh="dp=2", placement="fsdp")


def test_a_step_that_no_kernel_computes_takes_what_operators_take():
    shape = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "seq_len": 16, "mesh": "cp=2"}
    found = lc.memory("gpt2", engine="torch", placement="cp", plan="flash,fused", **shape)
    with on_operators():
        operators = lc.memory("gpt2", engine="torch", placement="cp", plan="flash,fused", **shape)
    assert found.peak == operators.peak
    assert found.rules == operators.rules
    assert "The step cannot run in place:" in found.convention


def test_a_vocabulary_that_does_not_divide_is_whole_where_it_is_in_training():
    what = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 65, "seq_len": 16}
    trained, predicted = (
        lc.memory("gpt2", engine=engine, mesh="tp=2", placement="megatron", **what) for engine in ("torch", "graph")
    )
    assert trained.over.placed.table.axes["wte"] == ("v", "d")
    assert predicted.over.placed.table.axes["wte"] == ("v/tp", "d")


def test_scores_over_a_vocabulary_that_is_cut_are_as_wide_as_over_one_that_is_not():
    what = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 4096, "seq_len": 64, "precision": "bf16-masters"}
    one, two = (lc.memory("gpt2", mesh=f"tp={p}", placement="megatron-sp", **what) for p in (1, 2))
    assert one.peak <= 2 * two.peak < 1.1 * one.peak


def test_what_fits_a_process_is_the_largest_as_its_runner_tells():
    shape = {"n_layer": 1, "n_embd": 16, "n_head": 2, "vocab_size": 64, "seq_len": 16, "engine": "torch"}
    here = {**shape, "mesh": "dp=2", "placement": "fsdp", "plan": ""}
    with on_operators():
        (row,) = lc.fit("gpt2", "2MB", procedures="bp", **here).rows
        assert row.largest > 2
        assert lc.memory("gpt2", batch_size=row.largest, **here).peak <= 2e6
        assert lc.memory("gpt2", batch_size=row.largest + 2, **here).peak > 2e6


def test_weights_that_nothing_divides_lie_in_parts_that_are_filled_up():
    over = lc.cost("gpt2", mesh="dp=7", placement="fsdp", seq_len=16).over
    weights = {name: over.placed.whole.axes[name] for name in over.placed.whole.weights}
    assert over.placed.filled == {
        axis: -(-over.sizes[axis[0]] // 7) for axis in ("v/dp", "p/dp", "d/dp", "f/dp", "k/dp")
    }
    assert over.placed.undivided == {}
    assert all("/dp" in " ".join(over.placed.table.axes[name]) for name in weights)
    assert over.filled["d"] == 770
    assert "d 768 to 770" in over.sharding
    gathered = next(each for each in over.collectives if each.line == "ln_1.g.all_gather")
    assert (gathered.payload_bytes, gathered.filled_bytes) == (4 * 770, 4 * 2)
    assert gathered.why.endswith("; d is 768, padded to 770")
    assert not lc.cost("gpt2", mesh="dp=3", placement="fsdp", seq_len=16).over.filled


def test_what_is_sent_is_a_formula():
    """Shoeybi et al. 2019: four all-reduces of B M d a block; data parallelism reduces every weight, and the loss."""
    of_tensors = lc.place("gpt2", "tp=2", placement="megatron", **SIZES).formulas
    assert [row["numbers"] for row in of_tensors] == ["4 B M d n_layer + 2 B M d + 2 B M + 1", "B M"]
    found = lc.place("gpt2", "dp=2", placement="ddp", batch_size=2, **SIZES)
    (of_data,) = found.formulas
    sizes = {**found.over.sizes, **found.over.placed.sizes}
    assert Polynomial.parse(of_data["numbers"]).at(sizes) == lc.cost("gpt2", **SIZES).parameters + 1


def test_an_axis_of_the_mesh_over_which_nothing_is_sharded_is_said(capsys):
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 512}
    alone = lc.cost("gpt2", "decode", context=15, **sizes)
    found = lc.cost("gpt2", "decode", context=15, mesh="cp=2", placement="ulysses", batch_size=1, **sizes)
    assert found.over.repeated == ("cp",)
    assert found.total == alone.total
    assert "Repeated on 2 devices, cp=2" in " ".join(str(found).split())


def test_a_size_is_named_as_it_was_typed(tmp_path, capsys):
    layer = "m(X; W) -> Y\n  Y[B f] = X[B d] W[d f]\n"
    for name in ("B", "batch_size"):
        with pytest.raises(lc.InputError, match=f"^{name} must be a whole number"):
            lc.cost(lc.layer(layer), d=4, f=4, **{name: 0})
    (tmp_path / "m.table").write_text(layer)
    assert main(["cost", str(tmp_path / "m.table"), "--d", "4", "--f", "4", "--B", "0"]) == 2
    assert "learncost: --B must be" in capsys.readouterr().err

"""A file in the notation, and a layer, are a model to every command, which costs what the same preset costs."""

import json
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import allocator
import learncost as lc
from learncost.ir.stated import size_names
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.program.fake_arrays.numpy import FakeArray
from learncost.program.program import ProgramBuilder
from learncost.verification.sample import small_sizes
from learncost.viz.document import document
from learncost.viz.serve.answers import answer
from on_operators import on_operators
from tables import text_of

SIZES = {"n_layer": 3, "n_embd": 24, "n_head": 3, "vocab_size": 50}
RUN = {"batch_size": 2, "seq_len": 16}

MLP = """% Two linear layers.
mlp(X; fc1.weight fc1.bias fc2.weight) -> Y
  sizes: d=8 f=16
  H[B M f] = X[B M d] fc1.weight[f d] @ fc1 linear
  U[B M f] = H[B M f] + fc1.bias[f] @ fc1 linear
  G[B M f] = gelu(U[B M f]) @ act gelu
  Y[B M d] = G[B M f] fc2.weight[d f] @ fc2 linear"""


@pytest.fixture(scope="module")
def gpt2():
    return lc.layer(text_of(build(configure("gpt2", SIZES))))


@pytest.fixture
def mlp(tmp_path):
    path = tmp_path / "mlp.table"
    path.write_text(MLP)
    return path


BOOKS = ("run", "matmul", "causal-half", "causal-exact", "flash", "torch-flop-counter")


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
def test_a_preset_as_a_table_costs_what_the_preset_costs(gpt2, procedure):
    for book in BOOKS:
        preset = lc.cost("gpt2", procedure, book, **RUN, **SIZES)
        table = lc.cost(gpt2, procedure, book, B=2, M=16)
        assert table.total == preset.total
        assert (table.parameters, table.trained_parameters) == (preset.parameters, preset.trained_parameters)
        assert sum(row.bytes for row in table.rows) == sum(row.bytes for row in preset.rows)


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("engine", ["graph", "eager", "torch", "numpy"])
def test_a_preset_as_a_table_takes_the_same_memory(gpt2, engine):
    plain = {"module": "plain"} if engine == "eager" else {}  # the code of a table is that of its own lines
    preset = lc.memory("gpt2", **RUN, **SIZES, engine=engine, **plain)
    assert lc.memory(gpt2, B=2, M=16, engine=engine).peak == preset.peak
    if engine == "eager":
        written = {"engine": engine, "optimizer_implementation": "foreach"}
        assert lc.memory(gpt2, B=2, M=16, **written).peak == lc.memory("gpt2", **RUN, **SIZES, **written, **plain).peak


def test_a_table_is_a_model_by_its_path_its_text_and_its_letters(mlp):
    by_hand = 3 * 2 * (2 * 3 * 8 * 16)  # forward, for the weights, for X and G: three of each of two products
    for model in (str(mlp), mlp, lc.layer(MLP)):
        for sizes in ({"B": 2, "M": 3}, {"batch_size": 2, "seq_len": 3}, {"B": "2", "M": "3", "d": 8}):
            assert lc.cost(model, price_book="matmul", **sizes).total.maccs == by_hand
    assert lc.cost(mlp, price_book="matmul", B=2, M=3, d=4).total.maccs == by_hand // 2  # what it fixes is overridden
    assert lc.cost(mlp, B=2, M=3).parameters == 2 * 8 * 16 + 16


def test_a_batch_by_its_letter_is_that_of_all_devices_under_every_placement(gpt2):
    for mesh, placement in (("tp=3", "megatron"), ("dp=2", "ddp")):
        by_letters = lc.cost(gpt2, mesh=mesh, placement=placement, B=6, M=16)
        by_names = lc.cost("gpt2", mesh=mesh, placement=placement, **SIZES, batch_size=6, seq_len=16)
        assert by_letters.total == by_names.total
    with pytest.raises(lc.InputError, match="B = 3 contradicts batch_size = 2"):
        lc.cost(gpt2, B=3, batch_size=2, M=16)


def test_a_table_over_devices_is_proved_as_a_model_is(mlp, capsys):
    from learncost.cli.command import main

    assert main(["verify", str(mlp), "--mesh", "dp=2", "--placement", "ddp"]) == 0
    assert "new weights and states against those of one device" in " ".join(capsys.readouterr().out.split())
    assert main(["verify", str(mlp), "--engine", "torch", "--B", "2", "--M", "8"]) == 2
    assert "tables are run at fixed small sizes" in capsys.readouterr().err


def test_a_table_is_written_as_what_devices_run(mlp):
    for table in (str(mlp), lc.layer(MLP)):
        program = lc.emit(table, "torch", mesh="dp=2", placement="ddp", B=4, M=8)
        assert "The program of each device of dp=2, for a global batch of 4 by 8." in program
    with pytest.raises(lc.InputError, match="other programs take shapes"):
        lc.emit(str(mlp), "torch", B=4, M=8)


def test_places_that_numpy_moves_onto_an_axis_are_an_array_more():
    builder = ProgramBuilder()
    places = FakeArray.new(builder, (3, 4), np.int64)
    before = builder.in_use
    moved = places.clip(0, 2)
    assert builder.in_use - before >= np.arange(12).reshape(3, 4).clip(0, 2).nbytes == moved.nbytes


def test_search_says_of_a_table_without_blocks_that_it_has_none():
    text = """net(x y; w) -> loss
      constants: x y
      sizes: d=5
      H[B] = x[B d] w[d]
      D[B] = H[B] - y[B]
      Q[B] = D[B] D[B]
      loss[] = #B^-1[] Q[B]"""
    with pytest.raises(lc.InputError, match="search requires a model with a stack of blocks"):
        lc.search(lc.layer(text), B=16, on="DGX H100", devices=8, tokens=1e9)


def test_two_joins_along_one_axis_are_tried_at_sizes_that_agree():
    text = """net(X P Q; W) -> Y
  J[B j] = X[B x=(j)] + P[B p=(j - #x)]
  K[B j] = Q[B q=(j)] + P[B p=(j - #q)]
  Z[B j] = J[B j] K[B j]
  Y[B d] = Z[B j] W[d j]"""
    sizes = small_sizes(lc.layer(text).table)
    assert sizes["x"] + sizes["p"] == sizes["q"] + sizes["p"] == sizes["j"]


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "leaves B, M open: give B=N M=N"),
        ({"M": 3}, "leaves B open: give B=N"),
        ({"batch_size": 3}, "leaves M open: give M=N"),
        ({"B": 1, "M": 3, "q": 4}, "mlp has no size 'q'; its sizes are B, M, d, f"),
        ({"B": 1, "M": 3, "seq_len": 4}, "has one length: give seq_len or target_len, not 4 and 3"),
        ({"B": 0, "M": 3}, "must be a whole number from 1"),
        ({"B": 1, "M": 3, "d": "x"}, "d must be a whole number from 1"),
        ({"B": 1, "M": 3, "dropout": 0.1}, "the table defines its own dropout"),
    ],
)
def test_a_size_that_a_table_leaves_open_is_asked_for(mlp, sizes, message):
    with pytest.raises(lc.InputError) as caught:
        lc.cost(mlp, **sizes)
    assert message in str(caught.value)


def test_what_a_table_freezes_and_never_reads_is_counted_and_not_trained(mlp):
    frozen = lc.layer(MLP.replace("  sizes: d=8 f=16", "  sizes: d=8 f=16\n  frozen: fc1.weight\n  unread: 7"))
    cost = lc.cost(frozen, price_book="matmul", B=2, M=3)
    assert (cost.parameters, cost.trained_parameters) == (2 * 8 * 16 + 16 + 7, 8 * 16 + 16)
    product = 2 * 3 * 8 * 16
    assert cost.macro_operations["weight_update"][1].maccs == product
    assert cost.macro_operations["backward"][1].maccs == 2 * product  # of G, and of X, which learns
    constant = lc.layer(MLP.replace("  sizes:", "  constants: X\n  sizes:"))
    assert lc.cost(constant, price_book="matmul", B=2, M=3).macro_operations["backward"][1].maccs == product


CONVOLUTION = """net(X; conv.weight up.weight fc.weight a) -> Y
  sizes: g=2 c=3 o=4 y=9 x=7 u=3 v=3 i=5 j=4 k=2 m=10 n=8 z=5 w=6
  constants: X
  C[B g o i j] = X[B g c y=2 i + u - 1 x=2 j + v - 1] conv.weight[g o c u v] @ conv aten.convolution.default
  T[B g k m=2 i + s n=2 j + t] = C[B g o i j] up.weight[g o k s t] @ up conv_transpose2d
  D[B g k m n] = T[B g k m n] a[g k m n] @ . mul
  S[B g k] = sum[m n](D[B g k m n]) @ . sum
  Y[B z] = S[B g k] fc.weight[z g k] @ fc linear"""


def test_the_book_of_the_flop_counter_goes_by_the_operators_of_lines():
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        first, up = torch.nn.Conv2d(6, 8, 3, 2, 1, groups=2), torch.nn.ConvTranspose2d(8, 4, 2, 2, groups=2)
        last, gain = torch.nn.Linear(4, 5), torch.nn.Parameter(torch.empty(4, 10, 8))
        image = torch.empty(3, 6, 9, 7)
    with FlopCounterMode(display=False) as forward:
        out = last((up(first(image)) * gain).sum((2, 3)))
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    net = lc.layer(CONVOLUTION.replace("z=5 w=6", "z=5 s=2 t=2"))
    cost = lc.cost(net, price_book="torch-flop-counter", B=3)
    phases = {name: part.flops for name, (_, part) in cost.macro_operations.items()}
    assert phases["forward"] == forward.get_total_flops()
    assert phases["backward"] + phases["weight_update"] == backward.get_total_flops()  # its groups forgotten, too
    true = lc.cost(net, price_book="matmul", B=3)
    assert true.macro_operations["weight_update"][1].flops < phases["weight_update"]


@pytest.mark.parametrize(("operator", "products"), [(" mv", 0), (" linear", 3), ("", 3)])
def test_another_operator_is_nothing_to_the_flop_counter_and_none_is_what_the_line_is(operator, products):
    text = MLP.replace("@ fc1 linear", "@ fc1 mv").replace("@ fc2 linear", f"@ fc2{operator}")
    assert lc.cost(lc.layer(text), price_book="torch-flop-counter", B=1, M=3).total.maccs == products * 3 * 8 * 16


def test_rows_by_module_are_so_many_parts_deep_and_come_to_the_same_total(mlp):
    deep = lc.layer(
        MLP.replace("@ fc1 ", "@ net.h.*.fc1 ").replace("@ fc2 ", "@ net.h.*.fc2 ").replace("@ act gelu", "@ .")
    )
    whole = lc.cost(deep, B=2, M=3)
    for depth, modules in ((1, {"net", "."}), (2, {"net.h", "."}), (None, {"net.h.*.fc1", "net.h.*.fc2", "."})):
        cost = lc.cost(deep, B=2, M=3, by="module", depth=depth)
        assert {row.module for row in cost.rows} == modules
        assert sum(row.flops for row in cost.rows) == whole.total.flops == cost.total.flops
        assert sum(row.bytes for row in cost.rows) == sum(row.bytes for row in whole.rows)
        assert {row["module"] for row in cost.to_dict()["rows"]} == modules
    forward = {row.module: row.maccs for row in cost.rows if row.macro_operation == "forward"}
    assert forward == {"net.h.*.fc1": 2 * 3 * 8 * 16, "net.h.*.fc2": 2 * 3 * 8 * 16, ".": 0}
    with pytest.raises(lc.InputError, match="by='module' requires an imported module; gpt2 has"):
        lc.cost("gpt2", by="module")
    with pytest.raises(lc.InputError, match="depth requires by='module'"):
        lc.cost(mlp, B=2, M=3, depth=2)


WEIGHTS = (
    "embed.weight h.each.attn.q_proj.weight h.each.attn.q_proj.bias h.each.attn.v_proj.weight h.each.mlp.fc.weight "
    "head.weight head.bias"
)
PATHS = f"""net(tokens targets share; {WEIGHTS}) -> loss
  sizes: d=8 v=11 n=4
  share: share of targets
  E[B M d] = embed.weight[v=tokens[B M] d] @ embed embedding
  repeat n carry E:
    Q[B M d'] = E[B M d] h.each.attn.q_proj.weight[d' d] @ h.*.attn.q_proj linear
    Q[B M d] = Q[B M d] + h.each.attn.q_proj.bias[d] @ h.*.attn.q_proj linear
    V[B M d'] = Q[B M d] h.each.attn.v_proj.weight[d' d] @ h.*.attn.v_proj linear
    F[B M d'] = V[B M d] h.each.mlp.fc.weight[d' d] @ h.*.mlp.fc linear
    E[B M d] = E[B M d] + F[B M d] @ h.*
  Z[B M v] = E[B M d] head.weight[v d] @ head linear
  U[B M v] = Z[B M v] + head.bias[v] @ head linear
  P[B M v] = log_softmax[v](U[B M v])
  T[B M] = P[B M v=targets[B M]]
  loss[] = T[B M] share[B M]"""


@pytest.mark.parametrize(
    ("adapted", "learning"),
    [
        ({"train": "head"}, 8 * 11 + 11),
        ({"train": "q_proj"}, 4 * (8 * 8 + 8)),
        ({"train": "attn.q_proj.weight"}, 4 * 8 * 8),
        ({"train": "attn"}, 4 * (2 * 8 * 8 + 8)),  # a module with what it holds
        ({"train": "mlp,head"}, 4 * 8 * 8 + 8 * 11 + 11),
        ({"train": "q_proj", "train_layers": "2-3"}, 2 * (8 * 8 + 8)),
        ({"lora": "q_proj", "lora_rank": 2}, 4 * 2 * (8 + 8)),
        ({"lora": "attn", "lora_rank": 2}, 2 * 4 * 2 * (8 + 8)),
        ({"lora": "head", "lora_rank": 2}, 2 * (8 + 11)),
        ({"lora": "all-linear", "lora_rank": 2}, 3 * 4 * 2 * (8 + 8)),  # but the output layer, as peft has it
        ({"procedure": "head-only"}, 8 * 11 + 11),
    ],
)
def test_what_learns_is_meant_by_the_ends_of_module_paths(adapted, learning):
    assert lc.cost(lc.layer(PATHS), B=2, M=3, **adapted).trained_parameters == learning


EXAMPLES = Path(__file__).parents[1] / "examples" / "layers"


@pytest.mark.one_in(every=22)
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.table")), ids=lambda path: path.stem)
def test_every_example_of_the_notation_is_a_model_of_every_question(path):
    """Nothing but an answer, or a refusal in one line: recurrences with stacks, choices, losses without weights."""
    layer = lc.layer(path.read_text())
    sizes = {name: 3 + place % 3 for place, name in enumerate(size_names(layer.table))}
    cost = lc.cost(path, **sizes)
    assert cost.total.flops == sum(row.flops for row in lc.cost(path, by="equation", **sizes).rows) > 0
    assert lc.memory(path, **sizes).peak > 0
    for engine in ("graph", "torch", "numpy"):
        assert lc.memory(path, engine=engine, **sizes).peak > 0
    with on_operators():
        assert lc.memory(path, engine="torch", plan="", **sizes).peak > 0
    assert "bp" in lc.compare(path, **sizes).procedures
    assert lc.conventions(path, **sizes)["run"].counts is not None
    assert lc.cost(path, on="A100-SXM-40GB", **sizes).timing.time.total > 0
    for procedure in ("prefill", "pepita"):
        with suppress(lc.InputError):
            lc.cost(path, procedure, **sizes)


IMAGES = """images(x; 0.weight 0.bias 1.weight 1.bias 3.weight 5.weight) -> out
  constants: x
  sizes: c=3 g=4 k=2 o=2 y=16 x2=16 u=3 w=3 i=8 j=8 s=2 t=2 f=10
  C[B g k y x2] = x[B c y=(y + u - 1) x2=(x2 + w - 1)] 0.weight[g k c u w] @ 0 conv2d
  D[B g k y x2] = C[B g k y x2] + 0.bias[g k] @ 0 conv2d
  N[B g k y x2] = normalize[B y x2](D[B g k y x2], 1e-05[]) @ 1 batch_norm
  G[B g k y x2] = N[B g k y x2] 1.weight[g k] @ 1 batch_norm
  H[B g k y x2] = G[B g k y x2] + 1.bias[g k] @ 1 batch_norm
  R[B g k y x2] = relu(H[B g k y x2]) @ 2 relu
  E[B g o y x2] = R[B g k y=(y + u - 1) x2=(x2 + w - 1)] 3.weight[g o k u w] @ 3 conv2d
  P[B g o i j] = max[s t](E[B g o y=(2 i + s) x2=(2 j + t)]) @ 4 max_pool2d
  out[B f] = P[B g o i j] 5.weight[f g o i j] @ 5 linear"""

HEADS = """heads(x; c_attn.weight c_attn.bias c_proj.weight) -> out
  constants: x
  sizes: d=32 n=3 h=4 k=8
  L[B M n h k] = x[B M d] c_attn.weight[n h k d] @ c_attn linear
  Q[B M n h k] = L[B M n h k] + c_attn.bias[n h k] @ c_attn linear
  R[B h M M'] = Q[B M n=0[] h k] Q[B M' n=1[] h k] where M' <= M @ . scaled_dot_product_attention
  S[B h M M'] = R[B h M M'] #k^-0.5[] where M' <= M @ . scaled_dot_product_attention
  P[B h M M'] = softmax[M'](S[B h M M']) where M' <= M @ . scaled_dot_product_attention
  A[B h M k] = P[B h M M'] Q[B M' n=2[] h k] where M' <= M @ . scaled_dot_product_attention
  out[B M d] = A[B h M k] c_proj.weight[d h k] @ c_proj linear"""


class Heads(torch.nn.Module):
    """One product for queries, keys and values, which are views of it."""

    def __init__(self):
        super().__init__()
        self.c_attn, self.c_proj = torch.nn.Linear(32, 96), torch.nn.Linear(32, 32, bias=False)

    def forward(self, x):
        parts = [part.view(*x.shape[:2], 4, 8).transpose(1, 2) for part in self.c_attn(x).split(32, 2)]
        mixed = torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
        return self.c_proj(mixed.transpose(1, 2).reshape(x.shape))


LATENTS = """latents(x; start norm.weight norm.bias read.weight) -> out
  constants: x
  sizes: n=40 d=64 f=32
  N[n d] = normalize[d](start[n d], 1e-05[]) @ norm layer_norm
  G[n d] = N[n d] norm.weight[d] @ norm layer_norm
  H[n d] = G[n d] + norm.bias[d] @ norm layer_norm
  L[n f] = H[n d] read.weight[f d] @ read linear
  out[n B] = L[n f] x[f B] @ . matmul"""


class Latents(torch.nn.Module):
    """Rows of its own are normalized, as those of a Perceiver."""

    def __init__(self):
        super().__init__()
        self.start = torch.nn.Parameter(torch.randn(40, 64))
        self.norm, self.read = torch.nn.LayerNorm(64), torch.nn.Linear(64, 32, bias=False)

    def forward(self, x):
        return self.read(self.norm(self.start)) @ x


def images():
    """Convolutions, one of them in groups, a norm of the batch, a pool."""
    nn = torch.nn
    first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
    last = nn.Sequential(nn.Flatten(), nn.Linear(512, 10, bias=False))
    return nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), second, nn.MaxPool2d(2), last)


@pytest.mark.parametrize(
    ("text", "made", "shape", "apart"),
    [
        (IMAGES, images, (8, 3, 16, 16), 0.005),
        (HEADS, Heads, (4, 64, 32), 0.005),
        (LATENTS, Latents, (32, 20), 0.03),  # what the product with the input copies is not in the table
    ],
    ids=["images", "heads", "latents"],
)
def test_autograd_of_a_table_takes_what_the_allocator_says_of_its_module(text, made, shape, apart):
    module, x = made(), torch.randn(*shape)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        out = module(x)  # what a table gives is there to the end
        out.sum().backward()
        optimizer.step()

    step()
    optimizer.zero_grad(set_to_none=True)
    there = 4 * (3 * sum(parameter.numel() for parameter in module.parameters()) + x.numel())
    sizes = dict(zip("BM", {4: shape[:1], 3: shape, 2: shape[1:]}[len(shape)], strict=False))
    measured = allocator.apart(step)[1] + there
    assert abs(lc.memory(lc.layer(text), **sizes).peak - measured) < apart * measured


def test_the_explorer_takes_a_table_that_comes_along():
    """Its letters are those of the address; the run's lengths begin somewhere, what else is open is asked for."""
    asked = partial(answer, "document", config=PATHS)
    for pairs, batch in (
        ([], 1),
        ([("B", "4"), ("M", "8")], 4),
        ([("batch_size", "4"), ("seq_len", "8"), ("n", "2")], 4),
    ):
        reply = asked(pairs)
        assert reply.status == 200
        document = json.loads(reply.content)
        cost = lc.cost(lc.layer(PATHS), B=batch, M=8 if pairs else 128, **({"n": 2} if len(pairs) > 2 else {}))
        assert document["totals"]["flops"] == cost.total.flops
        assert document["asked"]["model"] == "net.table"
    refused = answer("document", [], (EXAMPLES / "mixer.table").read_text())
    assert refused.status == 400
    assert "leaves s, c, f open" in json.loads(refused.content)["error"]
    assert answer("document", [("on", "/etc/hostname")], PATHS).status == 400  # never a path


@pytest.mark.parametrize(
    ("sizes", "given", "letters"),
    [
        ("d=4", {"B": 2, "E": 3}, "B = 2, E = 3"),
        ("d=4 E=3", {"B": 2}, "B = 2"),
        ("B=2 d=4 E=3", {}, "B = 2"),
    ],
)
def test_a_heading_has_the_sizes_that_a_run_says(sizes, given, letters):
    layer = lc.layer(f"edges(X; W) -> Y\nsizes: {sizes}\nY[B E d] = X[B E d'] W[d d']")
    assert lc.cost(layer, **given).letters == letters


def test_a_heading_of_a_table_that_leaves_nothing_open_speaks_of_no_sequences():
    cost = lc.cost(lc.layer("alone(X; W) -> Y\nsizes: d=4 e=3\nY[e] = X[d] W[d e]"))
    assert "one step of bp in fp32: at the sizes of its table" in str(cost)


def test_a_page_of_a_table_has_its_one_length_as_it_was_given(mlp):
    """By whatever name, and whether it was typed or follows from nothing."""
    for given in ({"M": 5}, {"seq_len": 5}, {"target_len": 5}):
        page = document(str(mlp), B=2, **given)
        (length,) = (size for size in page["sizes"] if size["name"] == "seq_len")
        assert (length["value"], length["rule"]) == (5, None)
        assert "--seq-len 5" in page["command"]


def test_a_table_without_a_loss_is_told_what_gives_one():
    layer = lc.layer("one(X; W) -> Y\nsizes: d=4\nY[B d] = X[B d'] W[d' d]")
    for asked in (partial(lc.cost, procedure="pepita"), partial(lc.emit, backend="c99")):
        with pytest.raises(lc.InputError, match=r"forward,? take the targets and return the loss"):
            asked(layer, B=2)

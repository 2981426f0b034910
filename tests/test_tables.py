"""A file in the notation, and a layer, are a model to every command, which costs what the same preset costs."""

import pytest

import learncost as lc
from learncost.models.configuration import configure
from learncost.models.model import build
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


@pytest.mark.parametrize("procedure", ["bp", "recompute", "pepita", "mempepita"])
def test_a_preset_as_a_table_costs_what_the_preset_costs(gpt2, procedure):
    for book in BOOKS:
        preset = lc.cost("gpt2", procedure, book, **RUN, **SIZES)
        table = lc.cost(gpt2, procedure, book, B=2, M=16)
        assert table.total == preset.total
        assert (table.parameters, table.trained_parameters) == (preset.parameters, preset.trained_parameters)
        assert sum(row.bytes for row in table.rows) == sum(row.bytes for row in preset.rows)


@pytest.mark.parametrize("engine", ["table", "autograd", "torch", "numpy", "autograd-foreach"])
def test_a_preset_as_a_table_takes_the_same_memory(gpt2, engine):
    plain = {"module": "plain"} if "autograd" in engine else {}  # the code of a table is that of its own lines
    preset = lc.memory("gpt2", **RUN, **SIZES, engine=engine, **plain)
    assert lc.memory(gpt2, B=2, M=16, engine=engine).peak == preset.peak


def test_a_table_is_a_model_by_its_path_its_text_and_its_letters(mlp):
    by_hand = 3 * 2 * (2 * 3 * 8 * 16)  # forward, for the weights, for X and G: three of each of two products
    for model in (str(mlp), mlp, lc.layer(MLP)):
        for sizes in ({"B": 2, "M": 3}, {"batch_size": 2, "seq_len": 3}, {"B": "2", "M": "3", "d": 8}):
            assert lc.cost(model, price_book="matmul", **sizes).total.maccs == by_hand
    assert lc.cost(mlp, price_book="matmul", B=2, M=3, d=4).total.maccs == by_hand // 2  # what it fixes is overridden
    assert lc.cost(mlp, B=2, M=3).parameters == 2 * 8 * 16 + 16


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({}, "leaves B, M open: give --B N --M N"),
        ({"M": 3}, "leaves B open: give --B N"),
        ({"batch_size": 3}, "leaves M open: give --M N"),
        ({"B": 1, "M": 3, "q": 4}, "mlp has no size 'q'; its sizes are B, M, d, f"),
        ({"B": 1, "M": 3, "seq_len": 4}, "has one length, not 4 and 3"),
        ({"B": 0, "M": 3}, "must be a whole number from 1"),
        ({"B": 1, "M": 3, "d": "x"}, "d must be a whole number from 1"),
        ({"B": 1, "M": 3, "dropout": 0.1}, "dropout does not apply to a table"),
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

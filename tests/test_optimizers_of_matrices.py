"""Optimizers that multiply whole matrices: SOAP's values, and FLOPs of products beside those of the published code."""

import io
import json

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from learncost.interpreter.interpreter import execute
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.models.configuration import configure
from learncost.passes.lower import lower
from learncost.procedures.matrix_steps import matrix_step
from learncost.procedures.optimizer import Matrix
from soap import SOAP

KEYS = {"model_type": "llama", "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "vocab_size": 50}
KEYS |= {"num_attention_heads": 4, "num_key_value_heads": 2, "architectures": ["LlamaForCausalLM"]}


@pytest.mark.parametrize(
    ("shape", "axes"), [((6, 4), ("o", "i")), ((4, 6), ("o", "i")), ((5, 5), ("o", "i")), ((5, 5), ("d'", "d"))]
)
@pytest.mark.parametrize("largest", [10, 5])
def test_a_step_of_soap_is_that_of_its_authors(shape, axes, largest, monkeypatch):
    """In bases of one side or of both, and in none AdamW."""
    monkeypatch.setattr("soap.LARGEST", largest)
    monkeypatch.setattr("learncost.procedures.matrix_steps.LARGEST_SIDE", largest)
    draw = np.random.default_rng(3)
    weight = torch.tensor(draw.normal(size=shape), requires_grad=True)
    grams = [side if side <= largest else 0 for side in shape]
    bases = [np.linalg.qr(draw.normal(size=(n, n)))[0] if n else [] for n in grams]
    squares = [np.cov(draw.normal(size=(n, 20))) if n else [] for n in grams]
    average, square, gradient = draw.normal(size=shape), draw.uniform(0.1, 1, shape), draw.normal(size=shape)
    optimizer = SOAP([weight])
    optimizer.state[weight] |= {
        "step": 4,
        **{name: torch.tensor(array) for name, array in (("average", average), ("square", square))},
        **{n: [torch.tensor(a) if len(a) else [] for a in of] for n, of in (("grams", squares), ("bases", bases))},
    }
    before = weight.detach().numpy().copy()
    weight.grad = torch.tensor(gradient)
    optimizer.step()

    outs, ins = shape  # as PyTorch has a matrix; the shorter side, that of P, is what is read where it is no longer
    names = [("P", "L"), ("Q", "R")] if outs <= ins else [("Q", "R"), ("P", "L")]
    sizes = {"o": outs, "i": ins, "d": ins}
    matrix = Matrix(axes, (), axes[1:], True)
    scalars = {"lr": 3e-3, "b1": 0.95, "c1": 0.05, "b2": 0.95, "c2": 0.05, "eps": 1e-8, "decay": 1 - 3e-5}
    scalars |= {"k1": 1 / (1 - 0.95**5), "k2": 1 / (1 - 0.95**5)}
    lines, values = matrix_step("soap", Term("W", axes), Term("G", axes), matrix, {n: n for n in scalars}, sizes)
    known = {"W": before, "G": gradient, "W.M": average, "W.V": square} | {
        name: np.asarray(number) for name, number in scalars.items()
    }
    for (basis, gram), held, averaged in zip(names, bases, squares, strict=True):
        if len(held):
            known |= {f"W.{basis}": held, f"W.{gram}": averaged}
    values |= {"W": Value(axes), "G": Value(axes)} | {name: Value(()) for name in scalars}
    results = [name for name, value in values.items() if value.role == "new"]
    execute(lower(Table(tuple(lines), values, tuple(known), (), tuple(results))), known, sizes)
    state = optimizer.state[weight]
    for name, wanted in (("W.new", weight.detach()), ("W.M.new", state["average"]), ("W.V.new", state["square"])):
        np.testing.assert_allclose(known[name], wanted.numpy(), rtol=1e-12)
    for (_, gram), wanted in zip(names, state["grams"], strict=True):
        if len(wanted):
            np.testing.assert_allclose(known[f"W.{gram}.new"], wanted.numpy(), rtol=1e-12)


def _counted(optimizer):
    configuration = configure("-", {}, io.StringIO(json.dumps(KEYS)))
    found = lc.cost(configuration, seq_len=8, optimizer=optimizer, price_book="matmul")
    return found.macro_operations["optimizer_step"][1].flops


def _matrices():
    wide, keys = KEYS["hidden_size"], KEYS["hidden_size"] // 2
    of_block = [(wide, wide), (keys, wide), (keys, wide), (wide, wide)]
    of_block += [(KEYS["intermediate_size"], wide)] * 2 + [(wide, KEYS["intermediate_size"])]
    return of_block * KEYS["num_hidden_layers"]


@pytest.mark.parametrize(
    ("optimizer", "make", "shapes"),
    [
        ("muon", torch.optim.Muon, _matrices()),  # of blocks alone
        ("soap", SOAP, [*_matrices(), *[(KEYS["vocab_size"], KEYS["hidden_size"])] * 2]),
    ],
)
def test_products_of_a_step_are_counted_as_pytorch_counts_the_published_code(optimizer, make, shapes):
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    steps = make(weights)
    for _ in range(2):  # SOAP's first step makes its bases
        for weight in weights:
            weight.grad = torch.randn(weight.shape)
        with FlopCounterMode(display=False) as counter:
            steps.step()
    assert _counted(optimizer) == counter.get_total_flops()


def test_a_step_over_a_mesh_and_in_directions_is_refused_in_one_line():
    for flags, message in (
        ({"mesh": "dp=2", "batch_size": 2}, "the step of muon over a mesh is not counted"),
        ({"procedure": "galore"}, "galore projects to directions that muon has no step of"),
    ):
        with pytest.raises(lc.InputError, match=message):
            lc.cost("gpt2", seq_len=8, optimizer="muon", **flags)
    with pytest.raises(lc.InputError, match="galore projects to directions that adafactor has no step of"):
        lc.memory("gpt2", seq_len=8, optimizer="adafactor", procedure="galore")


@pytest.mark.parametrize("procedure", ["local", "local-groups"])
def test_heads_of_blocks_have_the_states_that_their_step_reads(procedure):
    training = lc.Training("gpt2", procedure, "adafactor", n_layer=2, n_embd=16, n_head=2, vocab_size=50, seed=1)
    tokens = np.random.default_rng(1).integers(0, 50, size=(4, 12))
    first, second, third = (training.step(tokens) for _ in range(3))
    assert first > second > third

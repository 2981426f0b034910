"""Feedback: gradients are those of a PyTorch module whose linear layers send the error back through other matrices."""

import random

import numpy as np
import pytest

import learncost as lc
from learncost.procedures.step import step

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from contests import problem, rows, setting  # noqa: E402
from foreign_models import in_float64  # noqa: E402
from learncost.training.contest.entrant import Entrant, EntrantTraining  # noqa: E402
from test_transformers import ARCHITECTURES, batch_of, ours, pair  # noqa: E402

__all__ = ["in_float64"]

FEEDBACK = {
    "fa": lambda weight, fixed: fixed,
    "sign-symmetric": lambda weight, fixed: weight.sign() * fixed.abs(),
}
"""What the error is sent back through, by the procedure's source."""


class Linear(torch.autograd.Function):
    """y = x W, whose x has the gradient dy B^T."""

    @staticmethod
    def forward(ctx, x, weight, feedback):
        ctx.save_for_backward(x, feedback)
        return x @ weight

    @staticmethod
    def backward(ctx, dy):
        x, feedback = ctx.saved_tensors
        return dy @ feedback.T, x.flatten(0, -2).T @ dy.flatten(0, -2), None


def with_feedback(module, fixed, feedback):
    """Every linear layer of the module with a matrix of its own for the way back."""

    def linear(own):
        transposed = isinstance(own, torch.nn.Linear)

        def forward(x):
            back = feedback(own.weight.detach(), fixed[id(own.weight)])
            y = Linear.apply(x, own.weight.T if transposed else own.weight, back.T if transposed else back)
            return y if own.bias is None else y + own.bias

        return forward

    for submodule in module.modules():
        if isinstance(submodule, torch.nn.Linear | transformers.pytorch_utils.Conv1D):
            submodule.forward = linear(submodule)


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("family", ["gpt2", "bert", "distilbert"])
@pytest.mark.parametrize("procedure", FEEDBACK)
def test_gradients_are_those_of_an_autograd_function(procedure, family, in_float64):
    model, module = pair(family, ARCHITECTURES[family][0], random.Random(4))
    parameters, draw = dict(module.named_parameters()), np.random.default_rng(4)
    fixed = {name: torch.tensor(draw.standard_normal(tuple(p.shape))) for name, p in parameters.items()}
    with_feedback(module, {id(p): fixed[name] for name, p in parameters.items()}, FEEDBACK[procedure])
    inputs, batch, _ = batch_of(model, draw, False)
    module(**batch).loss.backward()

    def arrays(tensors):
        return ours(model, {name: tensor.detach().numpy() for name, tensor in tensors.items()})

    table = step(model, procedure)
    drawn = {name: table.values[name].of for name in table.inputs if table.values[name].role == "projection"}
    matrices = {name: arrays(fixed)[weight] for name, weight in drawn.items()}
    values = lc.run(table, inputs | arrays(parameters) | matrices | {"dloss": 1.0})
    for name, gradient in arrays({name: p.grad for name, p in parameters.items() if p.grad is not None}).items():
        np.testing.assert_allclose(values[f"d{name}"], gradient, 1e-10, 1e-12, err_msg=name)


@pytest.mark.parametrize("procedure", FEEDBACK)
def test_fixed_matrices_come_from_the_seed_and_are_said(procedure):
    first_training, two, other = (EntrantTraining(setting("mlp"), Entrant(procedure), 0.1, seed) for seed in (1, 1, 2))
    for training in (first_training, two, other):
        training.learn(problem("mlp").training, rows(8))
    assert {name.partition(".")[0] for name in first_training.fixed} == {"W2", "W3"}
    for name, matrix in first_training.fixed.items():
        assert matrix.std() == pytest.approx(0.02, rel=0.2)
        assert np.array_equal(matrix, two.fixed[name])
        assert not np.array_equal(matrix, other.fixed[name])
    memory = lc.memory("gpt2", procedure=procedure, seq_len=8, engine="graph")
    matrices = 4 * (12 * 12 * 768 * 768 + 50257 * 768)
    assert memory.split["fixed matrices"] == matrices
    assert lc.cost("gpt2", procedure, seq_len=8).parameters == lc.cost("gpt2", seq_len=8).parameters

"""Gradients in singular vectors: the algorithm of the paper, step by step, beside a few lines of PyTorch."""

import numpy as np
import pytest
import torch

import learncost as lc
from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.engines.emitted import Programs
from learncost.interpreter.interpreter import execute
from learncost.ir.line import Meta
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.models.model import build
from learncost.models.small import small
from learncost.passes.lower import lower
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.projection import singular_vectors
from learncost.procedures.step import step
from learncost.training.contest.entrant import Entrant, EntrantTraining, Setting, costs
from learncost.training.contest.problem import vit
from learncost.verification.check import count_operations, finite_arrays

RANK, HELD, RATE, SCALE = 3, 4, 0.05, 0.25
SIZES = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 10}
MATRICES = dict.fromkeys(("attn.WQ", "attn.WK", "attn.WV", "attn.WO"), (8, 8))
MATRICES |= {"mlp.W1": (8, 32), "mlp.W2": (32, 8)}


@pytest.fixture
def file(tmp_path):
    def written(rank=RANK, held=HELD, scale=SCALE):
        path = tmp_path / f"{rank}-{held}-{scale}.toml"
        schedule = f'["forward", "backward, update, projected to {rank} singular vectors"]'
        path.write_text(f"schedule = {schedule}\nheld = {held}\nscale = {scale}\n")
        return str(path)

    return written


def paper(weights, batches, vectors):
    """Zhao et al. 2024, algorithm 2, with PyTorch's decomposition; signs of vectors are those of `vectors`."""
    plain = lc.Training("gpt2", "bp", "sgd", **SIZES)
    plain.weights = {name: np.array(array) for name, array in weights.items()}
    P, M, V = {}, {}, {}
    for t, batch in enumerate(batches):
        for name, array in plain.updates(batch).items():
            G = torch.tensor(array)
            rows, columns = MATRICES.get(name, (0, 0))
            if rows:
                G = G.reshape(2, rows, columns)
                G = G.mT if rows > columns else G
                if t % HELD == 0:
                    U = torch.linalg.svd(G)[0][:, :, :RANK]
                    P[name] = U * torch.sign((U * torch.tensor(vectors[t][name]).reshape(U.shape)).sum(1, keepdim=True))
                G = P[name].mT @ G
            M[name] = 0.9 * M.get(name, 0 * G) + 0.1 * G
            V[name] = 0.999 * V.get(name, 0 * G) + 0.001 * G**2
            N = M[name] / (1 - 0.9 ** (t + 1)) / ((V[name] / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8)
            if rows:
                N = SCALE * (P[name] @ N)
                N = N.mT if rows > columns else N
            plain.weights[name] = plain.weights[name] - RATE * N.reshape(array.shape).numpy()
    return plain.weights


@pytest.mark.parametrize("runner", ["table", "program"])
def test_its_weights_are_those_of_the_papers_algorithm(file, runner):
    training = lc.Training("gpt2", file(), "adamw", **SIZES, learning_rate=RATE)
    if runner == "program":
        training.runner = Programs(training)
    weights = {name: np.array(array) for name, array in training.weights.items()}
    batches = [np.random.default_rng(seed).integers(0, 10, (4, 6)) for seed in range(6)]
    vectors = []
    for batch in batches:
        training.step(batch)
        vectors.append({name: training.state[f"{name}.P"] for name in MATRICES})
    assert all(np.array_equal(vectors[0][name], vectors[3][name]) for name in MATRICES)
    expected = paper(weights, batches, vectors)
    for name, array in training.weights.items():
        np.testing.assert_allclose(array, expected[name], 1e-9, 1e-11)
        assert name == "attn.bK" or np.abs(array - weights[name]).max() > 0.01


def _found(X, side, rank):
    axes = ("a", "f")[: X.ndim]
    made = Term("P", (*side, str(rank)))
    lines, values = singular_vectors(Term("X", axes), (), "a", side, made, Meta())
    known = {"X": X}
    execute(
        lower(Table(tuple(lines), {**values, "X": Value(axes)}, ("X",), (), ("P",))),
        known,
        dict(zip(axes, X.shape, strict=True)),
    )
    return known["P"]


@pytest.mark.parametrize(("rows", "columns"), [(1, 5), (2, 2), (5, 9), (6, 6), (9, 4), (24, 40)])
def test_both_sides_vectors_are_those_of_the_decomposition(rows, columns):
    X = np.random.default_rng(rows).standard_normal((rows, columns))
    U, _, V = np.linalg.svd(X, full_matrices=False)
    rank = min(3, rows, columns)
    for side, expected in ((("a",), U), (("f",), V.T)):
        made, expected = _found(X, side, rank), expected[:, :rank]
        np.testing.assert_allclose(np.abs(made.T @ expected), np.eye(rank), 0, 1e-12)


@pytest.mark.parametrize(
    "X",
    [
        np.zeros((4, 6)),
        np.outer([1.0, 2, 0, -1], np.arange(6.0)),
        np.eye(4, 6),
        np.diag([1.0, 1e-6, 1e-12, 0]) @ np.ones((4, 6)),
        np.ones((5, 5)),
    ],
)
def test_matrices_of_less_rank_and_values_alike(X):
    """A P of right angles that loses nothing of X, where it has as many columns as X has rows."""
    P = _found(X, ("a",), len(X))
    np.testing.assert_allclose(P.T @ P, np.eye(len(X)), 0, 1e-12)
    seen = P.T @ X
    values = np.linalg.svd(X, compute_uv=False)
    np.testing.assert_allclose(np.sqrt((seen**2).sum(1)), values[: len(X)], 1e-9, 1e-12)


def test_every_count_of_the_step_that_finds_them():
    model = build(small("llama", num_hidden_layers=1))
    table = without_gradients(step(model, "galore", "adamw", iteration=1))
    sizes = {**dict.fromkeys(("B", "M"), 2), **model.sizes}
    arrays = finite_arrays(table, sizes)
    assert count_operations("llama", table, arrays, sizes).passed


def test_where_a_matrix_has_fewer_columns_than_rows_they_lie_along_its_columns():
    """Those of Llama's keys along two axes, heads and their width; a gradient of less rank has fewer than all."""
    training = lc.Training(small("llama", num_hidden_layers=1), "galore", "sgd")
    tokens = np.arange(12).reshape(2, 6)
    gradient = training.updates(tokens)["attn.WK"]
    training.step(tokens)
    found = training.state["attn.WK.P"]
    assert found.shape[:-1] == (1, *gradient.shape[2:])
    vectors, matrix = found.reshape(-1, found.shape[-1]), gradient.reshape(gradient.shape[1], -1)
    assert len(vectors) < len(matrix)
    right = vectors.T @ vectors
    np.testing.assert_allclose(right, np.diag(np.round(np.diag(right))), 0, 1e-8)
    assert round(np.trace(right)) == np.linalg.matrix_rank(matrix, rtol=1e-6)
    np.testing.assert_allclose(matrix @ vectors @ vectors.T, matrix, 0, 1e-6 * np.abs(matrix).max())


def test_no_more_vectors_than_the_smaller_side_has_entries():
    training = lc.Training("gpt2", "galore", "adamw", **SIZES)
    assert training.state["mlp.W1.P"].shape == (2, 8, 8)
    assert training.state["mlp.W2.M"].shape == (2, 32, 8)
    whole, projected = (lc.cost("gpt2", procedure, seq_len=6, **SIZES).total.flops for procedure in ("bp", "galore"))
    assert projected < 1.3 * whole


def test_where_they_are_found_in_every_step_nothing_is_kept_and_c99_has_no_other(file):
    training = lc.Training("gpt2", file(held=1), "sgd", **SIZES)
    assert not training.state
    assert "attn.WQ.P" not in training.table().inputs
    with pytest.raises(lc.InputError, match="computes directions in one of 4 steps"):
        lc.emit("gpt2", "c99", procedure=file(), seq_len=6, **SIZES)


def test_a_contest_counts_the_mean_of_a_round(file):
    sizes = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 4}
    setting, entrant = Setting(vit(sizes), "adamw"), Entrant(file(held=3))
    tables, at = EntrantTraining(setting, entrant).tables(), setting.problem.sizes(8)
    first, between = (price(table, at, book("run")).flops for table, _ in tables)
    assert [steps for _, steps in tables] == [1, 2]
    assert first > between
    assert costs(setting, entrant)(8).flops == -(-(first + 2 * between) // 3)

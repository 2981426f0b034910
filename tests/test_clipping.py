"""Clipping against torch.nn.utils.clip_grad_norm_, which the step's lines repeat."""

import numpy as np
import pytest
import torch

import learncost as lc
from learncost.interpreter import execute
from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial
from learncost.layers.active import parameters
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.procedures.optimizer import with_clipping, with_weight_decay
from planned import given, results, sizes_of, table_of
from trainings import batch, training


@pytest.mark.parametrize("share", [0.5, 2.0], ids=["above the bound", "below it"])
@pytest.mark.parametrize("model", ["gpt2", "bart-base"])
def test_gradients_are_scaled_as_torch_scales_them(model, share):
    plain, sizes = table_of(model, optimizer="sgd"), sizes_of(model)
    table = with_clipping(plain)
    values = given(table, sizes)
    results_by_name = dict(values)
    execute(lower(plain), results_by_name, sizes)
    tensors = {name: torch.tensor(values[name], requires_grad=True) for name in table.weights}
    for name, tensor in tensors.items():
        tensor.grad = torch.tensor(results_by_name[f"d{name}"])
    norm = float(torch.linalg.vector_norm(torch.cat([tensor.grad.ravel() for tensor in tensors.values()])))
    values["clip"] = np.array(share * norm)
    torch.nn.utils.clip_grad_norm_(tensors.values(), share * norm)
    torch.optim.SGD(tensors.values(), float(values["lr"])).step()
    clipped = results(table, values, sizes)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(clipped[f"{name}.new"], tensor.detach().numpy(), 1e-12, 1e-12, err_msg=name)


def test_clipping_comes_before_weight_decay_whichever_is_added_first():
    # torch clips what backward left; its optimizers add their decay after that.
    table, sizes = table_of("gpt2", optimizer="sgd"), sizes_of("gpt2")
    decayed_first, two = with_clipping(with_weight_decay(table)), with_weight_decay(with_clipping(table))
    values = given(decayed_first, sizes)
    first, second = results(decayed_first, values, sizes), results(two, values, sizes)
    assert all(np.array_equal(first[name], second[name]) for name in first)
    assert not np.array_equal(first["wte.new"], results(with_weight_decay(table), values, sizes)["wte.new"])


def test_clipping_costs_a_macc_and_a_flop_a_parameter_and_a_few_numbers():
    table = table_of("gpt2")
    prices = [lc.price(table_of_step, {}, lc.book("run")) for table_of_step in (table, with_clipping(table))]
    weights = parameters(table)
    maccs, flops = (getattr(prices[1], name) + getattr(prices[0], name) * -1 for name in ("maccs", "flops"))
    assert maccs == weights
    # Besides: the sum of the squares of 16 stacks and 4 other weights, a root, two quotients, the largest and 1e-6.
    assert flops == weights * 3 + Polynomial.of((), 19 + 5)


def test_clipping_and_updates_at_once_exclude_each_other():
    with pytest.raises(InputError, match="leave out fused-update"):
        planned(with_clipping(table_of("gpt2")), "fused-update")


def test_without_an_optimizer_nothing_is_clipped():
    table = lc.derive(lc.layer("f(X; W) -> Y\n Y[b c] = X[b d] W[d c]")).step
    assert with_clipping(table) is table


def test_a_training_takes_no_step_longer_than_the_bound():
    trained = training("gpt2", learning_rate=0.5, clip=1e-3)
    tokens, more = batch("gpt2")
    before = dict(trained.weights)
    trained.step(tokens, **more)
    length = np.sqrt(sum(((trained.weights[name] - array) ** 2).sum() for name, array in before.items()))
    # The factor has 1e-6 beside the norm, which is far above 1e-3 here.
    np.testing.assert_allclose(length, 0.5 * 1e-3, 1e-5)

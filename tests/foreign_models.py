"""What parity with transformers' modules needs: float64 throughout, views of their weights, comparison of gradients."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import learncost as lc


@contextmanager
def float64():
    """transformers computes norms, angles, softmax and losses in float32; here that means float64."""
    before = torch.get_default_dtype()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        torch.manual_seed(0)
        yield
        torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def in_float64():
    """`float64` for every test of a file."""
    with float64():
        yield


def shaken(module):
    """The module with random numbers in every parameter: gains of one and biases of zero would hide faults."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module.double().eval()


def transposed(weight):
    """torch.nn.Linear's weight, output by input, the other way round."""
    return weight.T


def into(*shape):
    """A linear weight by heads: input, then the axes of the output."""
    return lambda weight: weight.T.reshape(weight.shape[1], *shape)


def out_of(*shape):
    """The output's weight: the axes of the input, then the output."""
    return lambda weight: weight.T.reshape(*shape, weight.shape[0])


def by(*shape):
    return lambda weight: weight.reshape(*shape)


def plain(weight):
    return weight


def causal_mask(length, visible=None):
    """As transformers' eager attention adds it to the scores."""
    inside = torch.ones(length, length, dtype=torch.bool).tril()
    if visible is not None:
        inside = inside & torch.tensor(visible)
    return torch.zeros(length, length).masked_fill(~inside, -torch.inf)[None, None]


def angles(length, width, rotated_part=None, interleaved=False, base=10000.0):
    """Cosines, sines with their sign, and the index of each element's partner; beyond `rotated_part` nothing turns."""
    part = rotated_part or width
    at = np.arange(width)
    pair = at // 2 if interleaved else at % (part // 2)
    angle = np.arange(length)[:, None] * base ** (-2.0 * pair / part)
    flip = at ^ 1 if interleaved else (at + part // 2) % part
    sign = np.where(flip > at, -1.0, 1.0)
    beyond = at >= part
    return {
        "cosine": np.where(beyond, 1.0, np.cos(angle)),
        "sine": np.where(beyond, 0.0, sign * np.sin(angle)),
        "flip": np.where(beyond, at, flip),
    }


def numpy_of(tensor):
    return tensor.detach().numpy()


def self_attention(layer, causal=True, window=None):
    """The attention of X to itself; tables for the positions of keys are those of queries."""
    where = " where M' <= M" if causal else ""
    where += f" < M' + {window}" if window else ""
    names = layer.table.inputs[layer.table.inputs.index("XK") + 1 :]
    names = [name for name in names if name != "XV"]
    outer = [name.removeprefix("key_") for name in names]
    three = "H, H, H" if "XV" in layer.table.inputs else "H, H"
    text = f"""alone(X {" ".join(dict.fromkeys(outer))}) -> Y
      H[B M d] = 1[] X[B M d]
      Y[B M d] = {layer.name}({", ".join([three, *outer])}; w, N = M'){where}"""
    return lc.layer(text, layers={layer.name: layer})


def compare(layer, arrays, weights, result, inputs, tolerance=1e-9):
    """Values and gradients of one output.

    arrays   our inputs that are not theirs, and sizes that no array shows
    weights  by our name, their parameter (or its gradient, with `grad`) and the view that makes ours of it
    inputs   by our name, their tensor
    """
    (output,) = layer.table.outputs
    seed = np.random.default_rng(7).standard_normal(tuple(result.shape))
    values = {**arrays, **{name: numpy_of(tensor) for name, tensor in inputs.items()}}
    values |= {name: view(numpy_of(parameter)) for name, (parameter, view) in weights.items()}
    assert {name for name in values if not isinstance(values[name], int)} == {*layer.table.inputs, *layer.table.weights}
    ours = lc.run(layer, {**values, f"d{output}": seed})
    np.testing.assert_allclose(ours[output], numpy_of(result), rtol=tolerance, atol=tolerance)
    parameters = list({id(p): p for p, _ in weights.values()}.values())
    chosen = [*inputs.values(), *parameters]
    gradients = torch.autograd.grad((result * torch.tensor(seed)).sum(), chosen)
    for name, gradient in zip(inputs, gradients, strict=False):
        np.testing.assert_allclose(ours[f"d{name}"], gradient.numpy(), rtol=tolerance, atol=tolerance, err_msg=name)
    of = {id(p): g for p, g in zip(parameters, gradients[len(inputs) :], strict=True)}
    for name, (parameter, view) in weights.items():
        gradient = view(of[id(parameter)].numpy())
        np.testing.assert_allclose(ours[f"d{name}"], gradient, rtol=tolerance, atol=tolerance, err_msg=name)
    return ours

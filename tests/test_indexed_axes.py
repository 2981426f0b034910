"""Reads and writes at affine indices: windows, slices, shifts, padding, concatenation, flipped axes."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import learncost as lc
from kernels_in_c import Case, check, needs_compiler
from learncost.backends.executed import executed
from learncost.interpreter import execute as definition
from learncost.ir.line import FusedKernel
from learncost.passes.lower import lower
from learncost.verification.sample import random_arrays, small_sizes
from learncost.verification.verify import with_jax, with_torch
from programs import execute, worst
from test_memory_executed import seen

LAYERS = {
    "convolution": "L[B e i j] = X[B c y=2 i + u - 1 x=2 j + v - 1] W[e c u v]",
    "depthwise": "L[B c i] = X[B c y=i + u - 2] W[c u]",
    "transposed": "L[B e y=2 i + u - 1] = X[B c i] W[c e u]",
    "same": "L[B e i] = X[B c i=i + u - #u/2] W[e c u]",
    "dilated": "L[B e i] = X[B c y=i + 3 u - 3] W[e c u]",
    "largest": "L[B c i j] = max[u v](X[B c y=2 i + u - 1 x=2 j + v - 1])",
    "mean": "L[B c i] = #u^-1[] X[B c y=2 i + u]",
    "slice": "L[B m] = X[B n=m + 2]",
    "shift": "L[B n d] = X[B (n=n - 1) d]".replace("(n=n - 1)", "n=(n - 1)"),
    "join": "L[B n] = X[B m=n] + Z[B k=n - #m]",
    "reversed": "L[B n] = X[B n=#n - 1 - n]",
    "regrouped": "L[B d=#k h + k] = X[B h k]",
    "diagonal": "L[B m] = X[B m m'=m + 1]",
    "part": "L[B m] = X[B p=1[] m]",
    "embedded": "L[B p=1[] m=i + 1] = X[B i]",
}


def layer(name):
    line = LAYERS[name]
    inputs, weights = (" ".join(n for n in names if f"{n}[" in line) for names in ("XZ", "W"))
    return lc.layer(f"{name}({inputs}; {weights}) -> L\n  {line}" if weights else f"{name}({inputs}) -> L\n  {line}")


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("name", LAYERS)
def test_it_is_proved(name):
    report = lc.check_layer(layer(name))
    assert report.passed, str(report)
    for side in (with_torch, with_jax):
        check = next(side(layer(name).table, name))
        assert check.passed, str(check)


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("name", LAYERS)
def test_an_emitted_step_means_it(name, backend):
    table = lc.derive(layer(name)).step
    sizes = small_sizes(table)
    arrays = random_arrays(table, sizes)
    expected = dict(arrays)
    definition(lower(table), expected, sizes)
    assert worst(execute(table, backend, arrays, sizes), expected)[1] < 1e-12


@needs_compiler
def test_kernels_in_c_mean_it():
    """Every layer as one kernel, every line of every step by itself, with turns over the batch and without."""
    for dtype in ("fp64", "fp32"):
        cases = []
        for name in LAYERS:
            forward, step = layer(name).table, lower(lc.derive(layer(name)).step, joins=False)
            sizes = small_sizes(layer(name).table)
            groups = [((line,), {line.name}) for line in step.lines if name != "largest"]  # C has no infinity
            if not forward.lines[0].left[0].indexed:
                groups.append((lower(forward, joins=False).lines, forward.outputs))
            for number, (lines, outputs) in enumerate(groups):
                for iterations in {("B",) if "B" in lines[0].left[0].axes else (), ("B",) if len(lines) > 1 else ()}:
                    meta = FusedKernel(f"{name}_{number}_{len(iterations)}", iterations)
                    cases.append(
                        Case(lines, {**step.axes, **lower(forward, joins=False).axes}, outputs, sizes, meta, dtype)
                    )
        check(cases)


def as_torch(name, given):
    """The same by PyTorch's own functions."""
    x, w, z = (given.get(letter) for letter in "XWZ")
    return {
        "convolution": lambda: functional.conv2d(x, w, stride=2, padding=1),
        "depthwise": lambda: functional.conv1d(x, w[:, None], padding=2, groups=w.shape[0]),
        "transposed": lambda: functional.conv_transpose1d(x, w.transpose(0, 1).transpose(0, 1), stride=2, padding=1),
        "same": lambda: functional.conv1d(x, w, padding="same"),
        "dilated": lambda: functional.conv1d(x, w, padding=3, dilation=3),
        "largest": lambda: functional.max_pool2d(x, (3, 3), 2, 1),
        "mean": lambda: functional.avg_pool1d(x, 3, 2),
        "slice": lambda: x[:, 2:],
        "shift": lambda: functional.pad(x, (0, 0, 1, 0))[:, :-1],
        "join": lambda: torch.cat((x, z), 1),
        "reversed": lambda: x.flip(1),
        "regrouped": lambda: x.flatten(1),
        "diagonal": lambda: torch.stack([functional.pad(row, (0, 1)).diagonal(1) for row in x]),
        "part": lambda: x[:, 1],
        "embedded": lambda: functional.pad(x, (1, 0))[:, None] * torch.tensor([[0.0], [1.0], [0.0]]),
    }[name]()


FORMS = {  # of X, of W or Z, and what else has a size
    "convolution": ({"B": 2, "c": 3, "y": 7, "x": 6, "e": 4, "u": 3, "v": 3, "i": 4, "j": 3}),
    "depthwise": ({"B": 2, "c": 3, "y": 7, "u": 3, "i": 9}),
    "transposed": ({"B": 2, "c": 3, "i": 5, "e": 4, "u": 3, "y": 9}),
    "same": ({"B": 2, "c": 3, "i": 7, "u": 3, "e": 4}),
    "dilated": ({"B": 2, "c": 3, "y": 9, "u": 3, "e": 4, "i": 9}),
    "largest": ({"B": 2, "c": 3, "y": 7, "x": 6, "u": 3, "v": 3, "i": 4, "j": 3}),
    "mean": ({"B": 2, "c": 3, "y": 7, "u": 3, "i": 3}),
    "slice": ({"B": 2, "n": 7, "m": 5}),
    "shift": ({"B": 2, "n": 7, "d": 3}),
    "join": ({"B": 2, "m": 4, "k": 3, "n": 7}),
    "reversed": ({"B": 2, "n": 5}),
    "regrouped": ({"B": 2, "h": 3, "k": 4, "d": 12}),
    "diagonal": ({"B": 2, "m": 4}),
    "part": ({"B": 2, "p": 3, "m": 4}),
    "embedded": ({"B": 2, "p": 3, "m": 5, "i": 4}),
}


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients_are_those_of_pytorchs_functions(name):
    sizes, table = FORMS[name], lc.derive(layer(name)).step
    arrays = random_arrays(table, sizes)
    definition(lower(table), values := dict(arrays), sizes)
    tensors = {n: torch.tensor(arrays[n], requires_grad=True) for n in "XWZ" if n in arrays}
    result = as_torch(name, tensors)
    gradients = torch.autograd.grad(result, [*tensors.values()], torch.tensor(arrays["dL"]))
    expected = {"L": result} | {f"d{n}": gradient for n, gradient in zip(tensors, gradients, strict=True)}
    assert worst({n: values[n] for n in expected}, {n: v.detach() for n, v in expected.items()})[1] < 1e-12


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("convolution", {"B": 16, "c": 16, "e": 16, "y": 66, "x": 64, "u": 3, "v": 3, "i": 32, "j": 32}),
        ("join", {"B": 999, "m": 300, "k": 100, "n": 400}),
    ],
)
def test_what_numpy_takes_is_what_tracemalloc_sees(name, sizes):
    table = lc.derive(layer(name)).step
    assert abs(seen(table, sizes, "fp32") - executed(table, sizes, "fp32").peak) < 2**16


def test_a_convolutional_network_learns_as_pytorchs():
    text = """net(X labels; W1 a1 W2 W3) -> loss
  A[B e i j] = X[B c y=i + u - #u/2 x=j + v - #v/2] W1[e c u v]
  C[B e i j] = A[B e i j] + a1[e]
  P[B e p q] = max[s t](C[B e i=2 p + s j=2 q + t])
  R[B e p q] = relu(P[B e p q])
  D[B f p q] = R[B e p=(p + u - 1) q=(q + v - 1)] W2[f e u v]
  M[B f] = mean[p q](D[B f p q])
  L[B w] = M[B f] W3[f w]
  Q[B w] = log_softmax[w](L[B w])
  T[B] = Q[B w=labels[B]]
  loss[] = #B^-1[] T[B]
"""
    generator = np.random.default_rng(0)
    shapes = {"W1": (4, 3, 3, 3), "a1": (4,), "W2": (5, 4, 3, 3), "W3": (5, 6)}
    weights = {name: 0.5 * generator.standard_normal(shape) for name, shape in shapes.items()}
    images, labels = generator.standard_normal((7, 3, 8, 6)), generator.integers(0, 6, 7)
    training = lc.LayerTraining(lc.layer(text), weights, dtype=np.float64, learning_rate=0.1)
    theirs = {name: torch.tensor(array, requires_grad=True) for name, array in weights.items()}
    for _ in range(3):
        table = training.step(X=images, labels=labels, i=8, j=6, p=4, q=3, s=2, t=2)
        x = functional.conv2d(torch.tensor(images), theirs["W1"], theirs["a1"], padding=1)
        x = functional.conv2d(functional.max_pool2d(x, 2).relu(), theirs["W2"], padding=1).mean((2, 3))
        loss = functional.nll_loss((x @ theirs["W3"]).log_softmax(1), torch.tensor(labels))
        assert table == pytest.approx(-float(loss.detach()), rel=1e-12)
        gradients = torch.autograd.grad(-loss, [*theirs.values()])
        with torch.no_grad():
            for weight, gradient in zip(theirs.values(), gradients, strict=True):
                weight -= 0.1 * gradient
    assert worst(training.weights, {n: w.detach() for n, w in theirs.items()})[1] < 1e-12


def test_arrays_that_join_are_not_added():
    join = layer("join")
    x, z = np.ones((2, 3)), np.zeros((2, 4))
    assert lc.price(join, {"B": 2, "m": 3, "k": 4, "n": 7}).flops == 0
    assert lc.run(join, {"X": x, "Z": z})["L"].shape == (2, 7)
    with pytest.raises(lc.InputError, match="axis n is 8, but the joined arrays have 3 \\+ 4"):
        lc.run(join, {"X": x, "Z": z, "n": 8})
    with pytest.raises(lc.InputError, match="the size of m is unknown: give m among the arrays or sizes"):
        lc.run(layer("slice"), {"X": x})


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_index_is_read_at_an_index(backend):
    chosen = lc.layer("chosen(kinds tokens; W) -> Y\n  Y[B M d] = W[v=tokens[k=kinds[B M]] d]")
    assert lc.check_layer(chosen).passed
    step = lc.derive(chosen).step
    sizes = small_sizes(step)
    arrays = random_arrays(step, sizes)
    rows = arrays["tokens"][arrays["kinds"]]
    expected = {"Y": arrays["W"][rows], "dW": 0 * arrays["W"]}
    np.add.at(expected["dW"], rows, arrays["dY"])
    assert worst(execute(step, backend, arrays, sizes), expected)[1] < 1e-12

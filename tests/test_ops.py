"""Operators as users write them in a layer, against PyTorch's functions: values and gradients on every backend."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn import functional

import learncost as lc
from learncost.autodiff.derive import derive
from learncost.engines.compiler import compiler
from learncost.engines.in_place import InPlace
from learncost.interpreter import execute as execute_table
from learncost.passes.fused import fused
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.verification.sample import random_arrays
from programs import execute

SIZES = {"B": 3, "M": 5, "d": 4}
BACKENDS = ["run", "numpy", "torch", "jax", "c", "fused"]


def on(backend, table, arrays, sizes):
    """The outputs of a table, by name, on a backend: the interpreter, a library, or kernels in C, apart or fused."""
    if backend == "run":
        forward = lc.run(table, arrays, sizes)
        return {name: forward[name] for name in table.outputs}
    if backend not in ("c", "fused"):
        return execute(table, backend, arrays, sizes)
    if compiler() is None:
        pytest.skip("no C compiler")
    results_here = InPlace(fused(table) if backend == "fused" else table, sizes, "fp64", {})(arrays)
    return {name: array.numpy().reshape(np.shape(array)).copy() for name, array in results_here.items()}


def held(backend, text, wanted, given, sizes=SIZES, near=1e-9):
    """A layer's outputs and the gradients of its inputs, held to those of a function of PyTorch's tensors."""
    layer = lc.layer(text)
    tensors = {n: torch.tensor(a, requires_grad=a.dtype.kind == "f") for n, a in given.items()}
    results = wanted(**tensors)
    results = results if isinstance(results, tuple) else (results,)
    derived = derive(layer)
    generator = np.random.default_rng(5)
    seeds = {
        f"d{n}": generator.standard_normal(tuple(r.shape)) for n, r in zip(layer.table.outputs, results, strict=True)
    }
    computed = on(backend, derived.step, {**given, **seeds}, sizes)
    for name, result in zip(layer.table.outputs, results, strict=True):
        right = result.detach().numpy()
        np.testing.assert_allclose(np.reshape(computed[name], right.shape), right, rtol=near, atol=near, err_msg=name)
    learned = [n for n in given if n in derived.gradients]
    loss = sum((r * torch.tensor(s)).sum() for r, s in zip(results, seeds.values(), strict=True))
    for name, right in zip(learned, torch.autograd.grad(loss, [tensors[n] for n in learned]), strict=True):
        gradient = np.reshape(computed[derived.gradients[name]], right.shape)
        np.testing.assert_allclose(gradient, right.numpy(), rtol=near, atol=near, err_msg=f"d{name}")


def drawn(seed=0, **shapes):
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal([SIZES[axis] for axis in shape]) for name, shape in shapes.items()}


# By output: a line with a word, in PyTorch's spelling for some, and what PyTorch has for it.
WORDS = {
    "sin(A[B d])": torch.sin,
    "torch.cos(A[B d])": torch.cos,
    "abs(A[B d])": torch.abs,
    "sign(A[B d])": torch.sign,
    "floor(A[B d])": torch.floor,
    "atan(A[B d])": torch.atan,
    "torch.atan2(A[B d], P[B d])": torch.atan2,
    "arctan2(P[B d], A[B d])": torch.arctan2,
    "log1p(P[B d])": torch.log1p,
    "expm1(A[B d])": torch.expm1,
    "F.softplus(A[B d])": functional.softplus,
    "elu(A[B d])": functional.elu,
    "nn.ELU(A[B d], 0.7[])": lambda a: functional.elu(a, 0.7),
    "power(A[B d], 2[])": torch.square,
    "power(P[B d], -1.5[])": lambda p: p**-1.5,
    "power(P[B d], A[B d])": torch.pow,
    "pow(2[], A[B d])": torch.exp2,
    "minimum(A[B d], P[B d])": torch.minimum,
    "minimum(A[B d], 0.3[])": lambda a: a.clamp(max=0.3),
    "maximum(A[B d], 0.3[])": lambda a: a.clamp(min=0.3),
    "detach(A[B d])": torch.detach,
    "sum[d](A[B d])": lambda a: a.sum(1),
    "mean[B d](A[B d])": torch.mean,
    "max[d](A[B d])": lambda a: a.amax(1),
    "amin[d](A[B d])": lambda a: a.amin(1),
    "vector_norm[d](A[B d])": lambda a: torch.linalg.vector_norm(a, dim=1),
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_words_and_their_gradients_are_those_of_pytorch(backend):
    """All in one layer, every one with inputs of its own."""
    lines, inputs, functions_given = [], [], []
    for at, (right, function) in enumerate(WORDS.items()):
        ordered = sorted((name for name in "AP" if f"{name}[" in right), key=right.index)
        axes = "[B d]" if "[d](" not in right and "[B d](" not in right else "[]" if "[B d](" in right else "[B]"
        for name in ordered:
            right = right.replace(f"{name}[", f"{name}{at}[")
        inputs += [f"{name}{at}" for name in ordered]
        lines.append(f"Y{at}{axes} = {right}")
        functions_given.append((function, [f"{name}{at}" for name in ordered]))
    text = f"words({' '.join(inputs)}) -> {' '.join(f'Y{at}' for at in range(len(lines)))}\n" + "\n".join(lines)
    inputs_drawn = drawn(**dict.fromkeys(inputs, "Bd"))
    inputs_drawn = {name: abs(array) + 0.1 if name[0] == "P" else array for name, array in inputs_drawn.items()}
    for name, array in inputs_drawn.items():
        if name[0] == "A" and any(word in lines[int(name[1:])].lower() for word in ("abs", "elu", "power")):
            array[0, :2] = 0.0, 2.0
        elif "vector_norm" in lines[int(name[1:])]:
            array[1] = 0.0
        elif "power(P" in lines[int(name[1:])] and "A" in lines[int(name[1:])]:
            array[0, 1] = 0.0  # 0 to the power 2, and something to the power 0
    held(
        backend,
        text,
        lambda **t: tuple(f(*(t[n] for n in names_of)) + 0 * sum(t.values()).sum() for f, names_of in functions_given),
        inputs_drawn,
    )


USED = """used(X; W g) -> Y
  O[d d'] = ones()
  I[d d'] = eye()
  U[d d'] = O[d d'] - I[d d']
  repeat 3 carry X:
    S[B M d] = stop_gradient(X[B M d])
    V[B M d] = X[B M d'] W[d' d]
    m[B M] = mean[d](V[B M d])
    C[B M d] = V[B M d] - m[B M]
    Q[B M] = C[B M d] C[B M d]
    A[B M d] = softplus(C[B M d])
    T[B M d] = A[B M d'] U[d' d]
    a[B] = min[M d](T[B M d])
    H[B M d] = T[B M d] S[B M d] g[d]
    X[B M d] = H[B M d] + a[B] + Q[B M]
  Y[B M d] = elu(X[B M d])"""


def used(X, W, g):
    for weight, scale in zip(W, g, strict=True):
        v = X @ weight
        c = v - v.mean(-1, keepdim=True)
        t = functional.softplus(c) @ (1 - torch.eye(4, dtype=torch.float64))
        h = t * X.detach() * scale
        X = h + t.amin((1, 2), keepdim=True) + (c * c).sum(-1, keepdim=True)
    return functional.elu(X)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shift_is_the_nearest_whole_number_with_halves_up(backend):
    """Quarters and halves of both signs and numbers out of range, held to fractions, which are exact."""
    table = lc.layer("shifted(X Z) -> Y\n  Y[M] = shift(X[M], Z[M])").table
    shifts = [(x, z) for z in (-3, 0, 1, 2, 5) for x in (*range(-9, 10), 37, -41)] + [(3, -30), (-3, -30), (2**29, 31)]
    x, z = (np.array(numbers, float) for numbers in zip(*shifts, strict=True))
    exact = [math.floor(Fraction(number) / Fraction(2) ** places + Fraction(1, 2)) for number, places in shifts]
    within = [max(-(2**30), min(2**30, number)) for number in exact]
    assert list(on(backend, table, {"X": x, "Z": z}, {"M": len(shifts)})["Y"]) == within


@pytest.mark.parametrize("backend", BACKENDS)
def test_words_inside_a_repeat(backend):
    inputs_drawn = drawn(X="BMd") | {
        "W": drawn(1, W="dd")["W"] * np.ones((3, 1, 1)) / 4,
        "g": drawn(2, g="Bd")["g"] / 4,
    }
    held(backend, USED, used, inputs_drawn)
    if backend == "run":
        assert lc.check_layer(lc.layer(USED)).passed


CONDITIONS = """conditions(X Q K; W) -> Y Z S D P V
  Y[B M d] = X[B M d] where M != 0
  Z[B M] = X[B M d] W[d] where d <= 2
  S[B] = sum[M d](X[B M d]) where M > 1 where d = 0
  R[B M M'] = Q[B M d] K[B M' d] where M' != M where M' < 4
  A[B M M'] = softmax[M'](R[B M M']) where M' != M where M' < 4
  P[B M d] = A[B M M'] X[B M' d] where M' != M where M' < 4
  D[B M] = sum[M'](T[B M M']) where M = M'
  E[B M d] = X[B M d] - W[d] where 2 >= M
  V[B M] = max[d](E[B M d]) where d != 1"""
CONDITIONS = CONDITIONS.replace("  D[", "  T[B M M'] = Q[B M d] K[B M' d]\n  D[")


def conditions(X, Q, K, W):
    places, features = torch.arange(5), torch.arange(4)
    visible = (places[None, :] != places[:, None]) & (places < 4)[None, :]
    A = torch.softmax((Q @ K.mT).masked_fill(~visible, -torch.inf), -1)
    V = ((X - W) * (places <= 2)[:, None]).masked_fill(features == 1, -torch.inf).amax(-1)
    return (
        X * (places != 0)[:, None],
        (X * W * (features <= 2)).sum(-1),
        X[:, 2:, 0].sum(1),
        (Q * K).sum(-1),
        A @ X,
        V,
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_conditions_with_numbers_and_between_equals(backend):
    held(backend, CONDITIONS, conditions, drawn(X="BMd", Q="BMd", K="BMd", W="d"))
    if backend == "run":
        assert lc.check_layer(lc.layer(CONDITIONS)).passed
        assert r"\ne 0" in lc.explain(lc.layer(CONDITIONS)).show("latex")


EMPTY = """empty(Q K V) -> A L
  R[B M M'] = Q[B M d] K[B M' d] where M' <= M where M' != M
  P[B M M'] = softmax[M'](R[B M M']) where M' <= M where M' != M
  A[B M d] = P[B M M'] V[B M' d] where M' <= M where M' != M
  L[B M M'] = log_softmax[M'](R[B M M']) where M' <= M where M' != M"""


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_softmax_of_nothing_is_nothing_and_so_is_its_gradient(backend):
    """The first query sees no key: neither NaN nor a warning."""
    visible = torch.ones(5, 5).tril(-1) > 0

    def wanted(Q, K, V):
        R = (Q @ K.mT).masked_fill(~visible, -1e30)
        return torch.softmax(R, -1) * visible @ V, torch.log_softmax(R, -1).where(visible, 0.0)

    held(backend, EMPTY, wanted, drawn(Q="BMd", K="BMd", V="BMd"))
    if backend == "run":
        assert lc.verify(lc.layer(EMPTY)).passed


@pytest.mark.parametrize("plan", ["flash", "flash,fused", "recompute=softmax,fused"])
@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_plans_keep_an_empty_softmax(plan, dtype):
    """Attention that leaves out the token itself, in kernels in C."""
    if compiler() is None:
        pytest.skip("no C compiler")
    table = derive(lc.layer("own(X) -> Y\n Y[B M d] = attention(X, X, X; w, N = M') where M' < M")).step
    arrays = random_arrays(table, {**SIZES, "h": 2, "k": 3})
    expected = dict(arrays)
    execute_table(lower(table), expected, {**SIZES, "h": 2, "k": 3})
    computed = InPlace(planned(table, plan), {**SIZES, "h": 2, "k": 3}, dtype, {})(arrays)
    assert computed.keys() == {*table.outputs}
    assert not expected["Y"][:, 0].any()
    for name, array in computed.items():
        np.testing.assert_allclose(
            array.numpy().reshape(expected[name].shape), expected[name], atol=1e-9 if dtype == "fp64" else 1e-4
        )


CHOSEN = """chosen(X G; W) -> Y Z S C m A
  C[B M d] = cumsum[M](X[B M d])
  P[B d M] = cumsum[M](G[B M d]) where M <= 3
  L[B M e] = X[B M d] W[d e]
  T[B M k] = topk[e](L[B M e])
  V[B M k] = L[B M e=T[B M k]]
  Q[B M k] = softmax[k](V[B M k])
  Y[B M d] = Q[B M k] W[d e=T[B M k]]
  O[B M d] = sort[M](G[B M d])
  Z[B M d] = G[B M=O[B M d] d]
  a[B M] = torch.argmax[d](G[B M d]) where d <= 2
  S[B M] = X[B M d=a[B M]]
  i[B d] = argmin[M](G[B M d])
  m[B d] = G[B M=i[B d] d]
  A[B d] = sum[M](P[B d M])"""


def chosen(X, G, W):
    L = X @ W
    values, places = L.topk(2)
    return (
        torch.einsum("bmk,dbmk->bmd", torch.softmax(values, -1), W[:, places]),
        G.sort(1).values,
        X.gather(-1, G[..., :3].argmax(-1)[..., None])[..., 0],
        X.cumsum(1),
        G.amin(1),
        G[:, :4].cumsum(1).sum(1),
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_along_an_axis_and_places_that_are_chosen(backend):
    inputs_drawn = drawn(X="BMd", G="BMd") | {"W": np.random.default_rng(3).standard_normal((4, 6))}
    held(backend, CHOSEN, chosen, inputs_drawn, {**SIZES, "e": 6, "k": 2})
    if backend == "run":
        assert lc.check_layer(lc.layer(CHOSEN)).passed
        assert lc.verify(lc.layer(CHOSEN)).passed


@pytest.mark.parametrize("backend", BACKENDS)
def test_of_equal_values_the_first_is_chosen_and_the_answers_are_places(backend):
    table = lc.layer(
        "t(X) -> T O a\nT[B k] = topk[d](X[B d])\nO[B d] = argsort[d](X[B d])\na[B] = argmax[d](X[B d])"
    ).table
    places = on(backend, table, {"X": np.array([[1.0, 2.0, 2.0, 1.0, 2.0]])}, {"B": 1, "d": 5, "k": 4})
    assert {name: np.asarray(places).tolist() for name, places in places.items()} == {
        "T": [[1, 2, 4, 0]],
        "O": [[0, 3, 1, 2, 4]],
        "a": [1],
    }
    assert all(np.asarray(places).dtype.kind == "i" for places in places.values())


ROUTED = """routed(X; WG W) -> X
  repeat 2 carry X:
    L[B M e] = X[B M d] WG[d e]
    t[B M k] = topk[e](L[B M e])
    V[B M k] = L[B M e=t[B M k]]
    g[B M k] = softmax[k](V[B M k])
    O[B M d'] = g[B M k] X[B M d] W[e=t[B M k] d d']
    X[B M d] = cumsum[M](O[B M d])"""


@pytest.mark.parametrize("plan", ["", "fused", "recompute=softmax,fused"])
def test_experts_are_chosen_inside_a_repeat(plan):
    """In PyTorch's program, in kernels in C, and as a module."""
    from learncost.torch import layer as module

    sizes = {**SIZES, "e": 5, "k": 2}
    table = planned(derive(lc.layer(ROUTED)).step, plan)
    arrays = random_arrays(table, sizes)
    expected = dict(arrays)
    execute_table(lower(table), expected, sizes)
    for backend in ("torch", "c"):
        for name, array in on(backend, table, arrays, sizes).items():
            np.testing.assert_allclose(array.reshape(expected[name].shape), expected[name], rtol=1e-9, atol=1e-9)
    array = module(ROUTED, d=4, e=5, k=2, dtype=torch.float64)
    with torch.no_grad():
        array.WG.copy_(torch.tensor(arrays["WG"])), array.W.copy_(torch.tensor(arrays["W"]))
    np.testing.assert_allclose(array(torch.tensor(arrays["X"])).detach(), expected[table.outputs[0]], atol=1e-9)


SUMS = """sums(X Z) -> V U
  m[d] = mean[B](X[B d])
  C[B d] = X[B d] - m[d]
  V[d] = C[B d] C[B d] #(B-1)^-1[]
  s[d] = sum[B](X[B d])
  t[d] = sum[M](Z[M d])
  u[d] = s[d] + t[d]
  U[d] = u[d] #(B+M)^-1[] #(d + 2 - 1)^0.5[]"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_number_over_a_sum_of_sizes(backend):
    """The variance of a sample over the batch, the mean of two arrays together."""
    held(backend, SUMS, lambda X, Z: (X.var(0), torch.cat([X, Z]).mean(0) * 5**0.5), drawn(X="Bd", Z="Md"))
    if backend == "run":
        assert lc.verify(lc.layer(SUMS)).passed
        assert "(B - 1)" in lc.explain(lc.layer(SUMS)).show("latex")
        with pytest.raises(lc.InputError, match=r"#\(B-1\)\^-1\[\] divides by 0"):
            lc.run(lc.layer(SUMS), {"X": np.ones((1, 4)), "Z": np.ones((5, 4))})

"""Repeats in repeats: equal to the same lines written out, whatever runs them."""

import numpy as np
import pytest

import learncost as lc
from learncost.engines.compiler import compiler
from learncost.interpreter import execute as run
from learncost.ir.loop import Loop, walk
from learncost.models.model import from_layer
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.passes.split import LoopPart, split
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from planned import given, results, sizes_of, table_of
from programs import execute, worst

HEAD = """
  L[B M v] = X[B M d] V[d v]
  P[B M v] = log_softmax[v](L[B M v])
  T[B M] = P[B M v=targets[B M]]
  loss[] = T[B M] share[B M]
constants: share"""
NESTED = f"""network(X h targets share; W U V) -> loss
  repeat n carry X:
    J[M B d'] = X[B M d] W[d d']
    repeat M backwards carry h each x=J keep H=h:
      R[B d'] = h[B d] U[d d']
      S[B d] = R[B d] + x[B d]
      h[B d] = tanh(S[B d])
    X[B M d] = X[B M d] + H[M B d]{HEAD}"""
LAYER = """
  J{0}[M B d'] = X[B M d] W{0}[d d']
  h{0}[B d] = h[B d]
  repeat M backwards carry h{0} each x{0}=J{0} keep H{0}=h{0}:
    R{0}[B d'] = h{0}[B d] U{0}[d d']
    S{0}[B d] = R{0}[B d] + x{0}[B d]
    h{0}[B d] = tanh(S{0}[B d])
  X[B M d] = X[B M d] + H{0}[M B d]"""
UNROLLED = f"network(X h targets share; W0 U0 W1 U1 V) -> loss{LAYER.format(0)}{LAYER.format(1)}{HEAD}"
SIZES = {"B": 2, "M": 4, "d": 3, "v": 5, "n": 2}


def arrays(table):
    return given(table, SIZES) | {"targets": np.random.default_rng(0).integers(0, 5, (2, 4))}


def test_equal_to_what_is_written_out():
    nested, unrolled = lc.layer(NESTED), lc.layer(UNROLLED)
    values = {**arrays(nested.table), "dloss": np.array(1.0)}
    other = {name: array for name, array in values.items() if name not in "WU"}
    other |= {f"{name}{iteration}": values[name][iteration] for name in "WU" for iteration in range(2)}
    first, second = lc.run(nested, values, SIZES), lc.run(unrolled, other)
    for name in ("loss", "dV", "dX", "dh"):
        np.testing.assert_allclose(first[name], second[name], 1e-12, err_msg=name)
    for name in "WU":
        np.testing.assert_allclose(
            first[f"d{name}"], np.stack([second[f"d{name}{iteration}"] for iteration in range(2)]), 1e-12
        )
    # Without the gradient of h, which turns add up one by one and lines that are written out all at once.
    derived_nested, derived_unrolled = (lc.derive(layer, ["X", *layer.table.weights]) for layer in (nested, unrolled))
    for book in ("run", "paper", "matmul"):
        first, second = (lc.price(derived.step, SIZES, book) for derived in (derived_nested, derived_unrolled))
        assert (first.maccs, first.flops) == (second.maccs, second.flops)
    copies = 2 * 4 * SIZES["B"] * SIZES["d"]  # of h, under the names that each layer has for it
    assert lc.live(derived_nested, SIZES).peak == lc.live(derived_unrolled, SIZES).peak - copies


@pytest.mark.parametrize("procedure", ["bp", "recompute"])
@pytest.mark.parametrize("plan", ["", "fused,recompute=tanh", "chunked-loss,fused-update,recompute=norm"])
def test_every_plan_and_backend(procedure, plan):
    if (procedure, plan) == ("recompute", "chunked-loss,fused-update,recompute=norm"):
        pytest.skip("the same lines as those of bp")
    table = step(from_layer(lc.layer(NESTED)), procedure, "momentum")
    values = arrays(table)
    expected = results(table, values, SIZES)
    table = planned(without_gradients(table) if "fused-update" in plan else table, plan)
    assert worst(results(table, values, SIZES), expected)[1] < 1e-12
    for backend in ("numpy", "torch"):
        computed = {name: array for name, array in execute(table, backend, values, SIZES).items() if name in expected}
        assert worst(computed, expected)[1] < 1e-12


TURN = """
  x{0}{1}[B d] = J{0}[M={1}[] B d]
  R{0}{1}[B d'] = h{0}[B d] U{0}[d d']
  S{0}{1}[B d] = R{0}{1}[B d] + x{0}{1}[B d]
  h{0}[B d] = tanh(S{0}{1}[B d])
  H{0}{1}[B M={1}[] d] = h{0}[B d]"""


@pytest.mark.parametrize("mode", ["paper", "stable"])
@pytest.mark.parametrize("procedure", ["pepita", "mempepita"])
def test_forward_learning_of_weights_that_turns_share(procedure, mode):
    """Every turn adds its update, as every line does where the turns are written out."""
    unrolled = "network(X h targets share; W0 U0 W1 U1 V) -> loss"
    for layer in range(2):
        unrolled += f"\n  J{layer}[M B d'] = X[B M d] W{layer}[d d']\n  h{layer}[B d] = h[B d]"
        unrolled += "".join(TURN.format(layer, iteration) for iteration in (3, 2, 1, 0))
        unrolled += f"\n  Z{layer}[B M d] = {' + '.join(f'H{layer}{iteration}[B M d]' for iteration in range(4))}"
        unrolled += f"\n  X[B M d] = X[B M d] + Z{layer}[B M d]"
    texts = NESTED.replace("keep H=h:", "keep H=h shared U:"), unrolled + HEAD
    values, updates = {}, []
    for text in texts:
        table = step(from_layer(lc.layer(text), ("X",)), procedure, mode=mode)
        values = values or arrays(table)
        own = {name: values[name] for name in (*table.inputs, *table.weights) if name in values}
        own |= {name: values[name[0]][int(name[1])] for name in table.weights if name not in values}
        run(lower(table), own, SIZES)
        updates.append(own)
    for name in "WU":
        written_out = np.stack([updates[1][f"d{name}{iteration}"] for iteration in range(2)])
        np.testing.assert_allclose(updates[0][f"d{name}"], written_out, 1e-12, 1e-15, err_msg=name)
    np.testing.assert_allclose(updates[0]["dV"], updates[1]["dV"], 1e-12)


@pytest.mark.skipif(compiler() is None, reason="no C compiler found")
@pytest.mark.parametrize(("dtype", "near"), [("fp64", 1e-12), ("bf16-masters", 4e-3)])
def test_in_place(dtype, near):
    """In bf16, too, a product that a turn hands on has the type of what the next one is handed."""
    torch = pytest.importorskip("torch")
    from learncost.engines.in_place import InPlace

    table = step(from_layer(lc.layer(NESTED)), "bp", "sgd")
    values = arrays(table)
    expected = results(table, values, SIZES)
    kind = np.float64 if dtype == "fp64" else np.float32
    values = {name: array.astype(kind) if array.dtype.kind == "f" else array for name, array in values.items()}
    weights = {name: torch.from_numpy(values[name].copy()) for name in table.weights}
    InPlace(planned(without_gradients(table), "fused"), SIZES, dtype, weights)(values)
    assert worst({f"{name}.new": array.double().numpy() for name, array in weights.items()}, expected)[1] < near


def test_turns_are_split_with_the_repeats_in_them():
    table = lc.layer(NESTED).table
    (repeat,) = (line for line in table.lines if isinstance(line, Loop))
    apart = split(table, repeat, [LoopPart(0, 0, repeat), LoopPart(1, 1, repeat)])
    values = {**arrays(table), "dloss": np.array(1.0)}
    other = {
        **values,
        **{f"{name}@{iteration}": values[name][iteration : iteration + 1] for name in "WU" for iteration in range(2)},
    }
    first, second = lc.run(table, values, SIZES), lc.run(apart, other, SIZES)
    for name in "WU":
        np.testing.assert_allclose(
            first[f"d{name}"], np.concatenate([second[f"d{name}@{iteration}"] for iteration in range(2)]), 1e-12
        )


def test_flash_reaches_attention_in_a_repeat_in_a_repeat():
    table = table_of("albert-base-v2")
    flash = planned(table, "flash")
    assert any(line.meta.kernel for line, nest in walk(flash.lines) if len(nest.counts) == 3)
    sizes = sizes_of("albert-base-v2")
    values = given(table, sizes)
    assert worst(results(flash, values, sizes), results(table, values, sizes))[1] < 1e-12

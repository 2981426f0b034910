"""The optimizer step in the epilogue of a gradient's product: eligible weights, reasons, and what is never stored."""

import numpy as np
import pytest

import learncost as lc
from learncost.backends.placed import placed
from learncost.engines.compiler import compiler
from learncost.ir.errors import InputError
from learncost.ir.table import Table
from learncost.models.model import from_layer
from learncost.passes.fused_update import updates
from learncost.passes.plan import planned
from learncost.procedures.optimizer import with_clipping, with_weight_decay, without_gradients
from learncost.procedures.step import step
from planned import given, sizes_of, table_of

MLP = """mlp(X targets share; W1 b1 W2 b2 W3 b3) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=64 e=64 f=32 v=10
  H1[B e] = X[B d] W1[d e]
  U1[B e] = H1[B e] + b1[e]
  A1[B e] = relu(U1[B e])
  H2[B f] = A1[B e] W2[e f]
  U2[B f] = H2[B f] + b2[f]
  A2[B f] = relu(U2[B f])
  H3[B v] = A2[B f] W3[f v]
  L[B v] = H3[B v] + b3[v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
SIZES = {"d": 64, "e": 64, "f": 32, "v": 10}


def _mlp(optimizer: str = "sgd", procedure: str = "bp") -> Table:
    return without_gradients(step(from_layer(lc.layer(MLP)), procedure, optimizer))


def test_the_arena_of_a_network_of_three_layers_has_no_gradient_of_a_matrix() -> None:
    """By hand: without gradients of weights, one sample is a few vectors of 64; with them 64 x 64 floats more."""
    sizes = {**SIZES, "B": 1}
    stored, never = (placed(planned(_mlp(), plan), sizes).bytes for plan in ("fused-update", "epilogue-update"))
    assert 64 * 64 * 4 <= stored < 64 * 64 * 4 + 2048
    assert never < 6 * 64 * 4


def test_what_is_stored_is_named_with_the_reason() -> None:
    found = updates(planned(without_gradients(table_of("gpt2")), "epilogue-update"))
    assert {*found.inside} == {"mlp.W1", "mlp.W2", "attn.WQ", "attn.WK", "attn.WV", "attn.WO"}
    assert found.outside["wte"] == "a sum of 2"
    assert found.outside["wpe"] == "rows added up at an index"
    assert found.outside["mlp.b1"].startswith("a sum over rows")
    table = table_of("gpt2")
    assert {*found.inside, *found.outside} == {*table.weights}
    memory = lc.memory("gpt2", seq_len=16, plan="epilogue-update", engine="graph")
    assert memory.updates == found
    assert "wte (a sum of 2)" in str(memory.sheets()[0].notes)
    assert memory.to_dict()["updates"]["outside"]["wte"] == "a sum of 2"


def test_no_plan_without_its_reason() -> None:
    with pytest.raises(InputError, match="leave out epilogue-update"):
        planned(with_clipping(table_of("gpt2")), "epilogue-update")
    with pytest.raises(InputError, match="remove the plan epilogue-update"):
        lc.memory("gpt2", batch_size=2, seq_len=16, accumulate=2, plan="epilogue-update", engine="graph")
    for ask in (lc.memory, lc.cost, lc.compare):
        with pytest.raises(InputError, match="requires an elementwise optimizer"):
            ask("gpt2", seq_len=16, optimizer="muon", plan="epilogue-update")


def test_weight_decay_stands_in_the_product_too() -> None:
    table = planned(
        without_gradients(with_weight_decay(table_of("llama-2-7b", optimizer="momentum"))), "epilogue-update"
    )
    assert "mlp.WU" in updates(table).inside


def test_a_weight_read_later_is_read_as_it_was() -> None:
    """Every line that reads an old weight stands before its update."""
    for model in ("gpt2", "bart-base", "albert-base-v2"):
        table = planned(without_gradients(table_of(model)), "epilogue-update,fused")
        for scope in [table.lines, *(line.lines for line in table.lines if hasattr(line, "lines"))]:
            changed: set[str] = set()
            for line in scope:
                assert changed.isdisjoint(line.reads), line
                changed |= {table.known[name].of for name in line.makes if table.known[name].role == "new"}


@pytest.mark.one_in(every=3)
@pytest.mark.skipif(compiler() is None, reason="no C compiler found")
@pytest.mark.parametrize(
    "line",
    [
        "Y[B M f] = X[B M d] W[d f]",
        "Y[M f B] = X[B M d] W[f d]",  # two summed axes that are not side by side
        "Y[B M h k] = X[B M d] W[d h k]",
        "Y[B h k M] = X[B M d] W[k d h]",
        "Y[B e f M] = X[B M d] W[e d f] G[M e]",
        "Y[B M f] = X[B e M k d] W[f e k d]",  # rows of several axes, of which one is a tile's
        "Y[M f e B] = X[B d k M] W[d f k e]",
    ],
)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_tiles_of_every_order_of_axes(line: str, dtype: str) -> None:
    """Products whose axes lie in any order, with tiles that are cut off at the end, against the interpreter."""
    torch = pytest.importorskip("torch")
    from learncost.engines.in_place import InPlace

    gates = " G" if "G[" in line else ""
    constants = f"  constants: X{gates}\n"
    left = line.partition("=")[0].strip()
    layer = lc.layer(
        f"product(X{gates}; W) -> loss\n{constants}  {line}\n  Z{left[1:]} = tanh({left})\n"
        f"  loss[] = Z{left[1:]} Z{left[1:]}\n"
    )
    sizes = {"B": 3, "M": 5, "d": 19, "f": 131, "h": 3, "k": 7, "e": 2}
    table = without_gradients(step(from_layer(layer), "bp", "momentum"))
    sizes = {axis: sizes[axis] for axis in sizes if axis in line}
    values = given(table, sizes)
    plain = lc.run(table, values, sizes)
    rewritten = planned(table, "epilogue-update")
    assert bool(updates(rewritten).inside) == ("G[" not in line)
    kind = {"fp32": np.float32, "fp64": np.float64}[dtype]
    tensors = {name: torch.from_numpy(np.array(values[name], kind)) for name in ("W", "W.V")}
    InPlace(rewritten, sizes, dtype, tensors)({name: np.asarray(array) for name, array in values.items()})
    tolerance = 1e-4 if dtype == "fp32" else 1e-12
    np.testing.assert_allclose(tensors["W"].numpy(), plain["W.new"], tolerance, tolerance)


def test_sizes_of_the_planner_take_it_only_where_it_is_needed() -> None:
    """Under a budget that the plan fused-update misses by less than a gradient, nothing runs again."""
    from learncost.reports.memory.planner import chosen, memory

    table, sizes = _mlp("adamw"), {**SIZES, "B": 64, "M": 1}
    assert "epilogue-update" not in chosen(table, sizes)
    least = memory(planned(table, "fused,fused-update"), sizes).peak
    assert memory(planned(table, "fused,epilogue-update"), sizes).peak <= least
    assert sizes_of("gpt2")["B"]

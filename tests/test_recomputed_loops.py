"""Recomputation of loops inside a block, such as the scan of Mamba: their stacks are not saved, the results remain."""

from __future__ import annotations

import numpy as np
import pytest

import learncost as lc
from counting import counting, tally_of
from learncost.backends.executed import executed
from learncost.engines.compiler import compiler
from learncost.ir.loop import Loop, repeats, walk
from learncost.ir.polynomial import total
from learncost.models.configuration import configure
from learncost.models.model import build, from_layer, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from planned import given, results
from programs import execute, worst
from test_memory_executed import KIB, MIB, seen

SMALL = {"vocab_size": 17, "hidden_size": 8, "num_hidden_layers": 4}
OWN = {
    "mamba-130m": {**SMALL, "intermediate_size": 10, "state_size": 3, "time_step_rank": 2},
    "mamba2-130m": {**SMALL, "num_heads": 4, "head_dim": 4, "state_size": 3},
    "rwkv-4-169m": {**SMALL, "attention_hidden_size": 8, "intermediate_size": 10},
}
LAYER = {
    "mamba-130m": "selective_state_space",
    "mamba2-130m": "state_space_duality",
    "rwkv-4-169m": "time_mixing",
}
PLANS = ("block", "block/2", "all", "block/2+all", "norm")
LENGTH = 5
# A block with attention and a recurrence, whose scan slices what the block computes.
HYBRID = """network(X h targets share; WQ WK WV WJ U V) -> loss
  repeat n carry X:
    Q[B M k] = X[B M d] WQ[d k]
    K[B M' k] = X[B M' d] WK[d k]
    W[B M' d] = X[B M' d'] WV[d' d]
    S[B M M'] = Q[B M k] K[B M' k] where M' <= M
    A[B M M'] = softmax[M'](S[B M M'])
    F[B M d] = A[B M M'] W[B M' d]
    X[B M d] = X[B M d] + F[B M d]
    J[M B d'] = X[B M d] WJ[d d']
    repeat M carry h each x=J keep H=h shared U:
      R[B d'] = h[B d] U[d d']
      S1[B d] = R[B d] + x[B d]
      h[B d] = tanh(S1[B d])
    X[B M d] = X[B M d] + H[M B d]
  L[B M v] = X[B M d] V[d v]
  P[B M v] = log_softmax[v](L[B M v])
  T[B M] = P[B M v=targets[B M]]
  loss[] = T[B M] share[B M]
constants: share"""


def table_of(model, procedure="bp", optimizer="sgd", batch=2, length=LENGTH, **sizes):
    built = build(configure(model, {**OWN[model], **sizes}))
    return step(built, procedure, optimizer), run_sizes(built, batch, length, None)


def bytes_of(arrays):
    return {name: array.tobytes() for name, array in arrays.items()}


@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", OWN)
def test_results_are_equal_bit_for_bit_and_executed_as_priced(model):
    table, sizes = table_of(model)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    assert np.isfinite(plain["loss"])
    for part in (*PLANS, LAYER[model]):
        again = planned(table, f"recompute={part}")
        counted = {name: counting(array) for name, array in values.items()}
        computed, units = tally_of(results, again, counted, sizes)
        assert bytes_of(computed) == bytes_of(plain), part
        if model != "rwkv-4-169m":  # its first maximum is a product of ones and a number, which counting arrays miss
            assert units == lc.price(again, sizes, lc.book("run")).flops, part


@pytest.mark.parametrize("model", OWN)
@pytest.mark.parametrize("part", ["block", "block/2"])
def test_a_block_saves_its_input_alone_and_runs_twice(model, part):
    table, sizes = table_of(model)
    again = planned(table, f"recompute={part}")
    forward = next(line for line in again.lines if isinstance(line, Loop))
    carried = {carry.start for carry in forward.carry}
    assert {inside for inside, _ in forward.keep} == carried
    assert sum(1 for loop in repeats(again.lines) if loop.count == "M" and not loop.reverse) == 2
    price = lc.price(again, sizes, lc.book("run"))
    rows = [row for row in price.rows if row.macro_operation == "forward" and row.block]
    more = price.by("macro_operation")[("recomputation",)]
    assert more.flops == total(row.flops for row in rows).at(sizes)
    assert planned(table, "recompute=block").lines == table_of(model, "recompute")[0].lines


def test_a_part_of_a_scan_is_recomputed_inside_of_its_backward_loop():
    table, _ = table_of("mamba-130m")
    again = planned(table, "recompute=mixer.h.2")
    (scan,) = (loop for loop in repeats(again.lines) if loop.count == "M" and not loop.reverse)
    assert "mixer.h.2" not in {inside for inside, _ in scan.keep}


@pytest.mark.one_in(every=8)
@pytest.mark.parametrize("backend", ["numpy", "torch", "jax"])
@pytest.mark.parametrize("model", OWN)
def test_emitted_programs_compute_the_same(model, backend):
    if backend == "jax" and model != "mamba-130m":
        pytest.skip("XLA compiles one of the three")
    table, sizes = table_of(model)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    for part in PLANS[:2] if backend == "jax" else PLANS:
        computed = execute(planned(table, f"recompute={part}"), backend, values, sizes)
        assert worst({name: computed[name] for name in plain}, plain)[1] < 1e-12, part


@pytest.mark.skipif(compiler() is None, reason="no C compiler found")
@pytest.mark.one_in(every=4)
@pytest.mark.parametrize("model", OWN)
def test_the_engine_in_place_computes_the_same(model):
    torch = pytest.importorskip("torch")
    from learncost.engines.in_place import InPlace

    table, sizes = table_of(model)
    values = given(table, sizes)
    plain = results(table, values, sizes)
    for text in ("fused,recompute=block", "fused,recompute=block/2", "fused-update,recompute=all"):
        weights = {name: torch.from_numpy(values[name].copy()) for name in table.weights}
        InPlace(planned(without_gradients(table), text), sizes, "fp64", weights)(values)
        computed = {f"{name}.new": array.numpy() for name, array in weights.items()}
        assert worst(computed, plain)[1] < 1e-12, text


def test_fused_attention_is_recomputed_with_the_scan_of_its_block():
    sizes = {"B": 2, "M": 4, "d": 3, "k": 2, "v": 5, "n": 2}
    plain_table = step(from_layer(lc.layer(HYBRID)), "bp", "sgd")
    values = given(plain_table, sizes) | {"targets": np.random.default_rng(0).integers(0, 5, (2, 4))}
    plain = results(plain_table, values, sizes)
    together = planned(plain_table, "flash,recompute=block")
    assert planned(step(from_layer(lc.layer(HYBRID)), "recompute", "sgd"), "flash").lines == together.lines
    assert any(line.meta.kernel for line, _ in walk(together.lines))
    for table in (planned(plain_table, "recompute=block"), together):
        forward = next(line for line in table.lines if isinstance(line, Loop))
        assert {inside for inside, _ in forward.keep} == {"X"}
        assert worst(results(table, values, sizes), plain)[1] < 1e-12


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("model", OWN)
def test_the_program_takes_less_memory_as_predicted(model):
    own = {"head_dim": 16} if model == "mamba2-130m" else {"intermediate_size": 64}
    wide = {"hidden_size": 32, "num_hidden_layers": 6, **own}
    wide |= {"attention_hidden_size": 32} if model == "rwkv-4-169m" else {}
    table, sizes = table_of(model, batch=4, length=96, **wide)
    peaks = {}
    for text in ("", "recompute=block"):
        rewritten = without_gradients(planned(table, text))
        peaks[text] = executed(rewritten, sizes, "fp32").peak
        assert peaks[text] > MIB
        assert abs(seen(rewritten, sizes, "fp32") - peaks[text]) < 192 * KIB, text
    # What five blocks no longer save, of which one at a time is recomputed.
    assert peaks["recompute=block"] < peaks[""] / 2

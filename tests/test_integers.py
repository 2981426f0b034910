"""A step in whole numbers alone: what its lines are held to, and the same bits in NumPy and in C99."""

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from learncost.backends.c99.functions import without_comments
from learncost.cli.emit_c99 import FirmwareOptions, program_of
from learncost.cli.verified_c99 import StepParity, parity
from learncost.engines.boards import BOARDS
from learncost.interpreter.operation import prepared
from learncost.ir.line import Meta, Product
from learncost.ir.polynomial import shape_of
from learncost.ir.term import Literal
from learncost.ir.value import Value
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.passes.integers import HALF, WORD, Power, ScaledInteger, Shifts, exponential, logarithm

NET = (Path(__file__).parent.parent / "examples" / "microcontroller" / "net.table").read_text(encoding="utf-8")
SMALL = """small(X targets share; W1 b1 W2) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=16 e=12 v=4
  H[B e] = X[B d] W1[d e]
  U[B e] = H[B e] + b1[e]
  A[B e] = relu(U[B e])
  L[B v] = A[B e] W2[e v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
SHAPES = {"W1": (64, 64), "b1": (64,), "W2": (64, 32), "b2": (32,), "W3": (32, 10), "b3": (10,)}
INTEGERS = {"procedure": "bp", "optimizer": "sgd", "precision": "integer-only"}
IN_PRODUCT = FirmwareOptions(plan="epilogue-update", batch_size=4, dtype="int32")


def network(text=NET, **sizes):
    return configure(lc.layer(text), sizes)


def ran(scope, **arrays):
    """What lines make of whole numbers."""
    values = {name: np.asarray(array, float) for name, array in arrays.items()}
    for line in scope.out:
        values[line.name] = prepared(line, scope.values)(values, {"n": len(arrays["X"])}, None)
    assert all(np.array_equal(array, np.rint(array)) and np.max(np.abs(array)) < 2**31 for array in values.values())
    return values


@pytest.mark.parametrize("power", [-12, -20, -28])
def test_an_exponential_is_near(power):
    numbers = -np.linspace(0, min(12, 2**30 * 2.0**power), 200)
    scope = Shifts({"X": Value(("n",))})
    made = exponential(scope, ScaledInteger("X", Power(power), WORD), ("n",), "Y", Meta())
    values = ran(scope, X=np.rint(numbers * 2.0**-power))
    assert np.max(np.abs(values["Y"] * 2.0**made.power.number - np.exp(numbers))) < 8e-4
    assert np.max(values["Y"]) < 2**HALF


@pytest.mark.parametrize("power", [0, -14])
def test_a_logarithm_is_near(power):
    numbers = np.geomspace(1, 2**29, 200).round() * 2.0**power
    scope = Shifts({"X": Value(("n",))})
    made = logarithm(scope, ScaledInteger("X", Power(power), WORD), ("n",), "Y", Meta())
    values = ran(scope, X=numbers * 2.0**-power)
    assert np.max(np.abs(values["Y"] * 2.0**made.power.number - np.log(numbers))) < 2e-3


def test_codes_have_the_highest_bits():
    """127 is the largest code, also of what would be rounded up to 128; the value is there to half of a code."""
    for largest in (1, 127, 128, 254, 255, 256, 1016, 1019, 1020, 1023, 2**29 - 1):
        numbers = np.array([largest, -largest, largest // 2, 0.0])
        scope = Shifts({"X": Value(("n",))})
        codes = scope.narrow(ScaledInteger("X", Power(), WORD), ("n",), 7, "forward")
        values = ran(scope, X=numbers)
        ((over, count),) = codes.power.scalars
        assert count == 1
        assert np.max(np.abs(values[codes.name])) in range(min(largest, 63), 128)
        assert np.max(np.abs(values[codes.name] * 2.0 ** values[over] - numbers)) <= 2.0 ** values[over] / 2


def test_powers_are_added():
    power = Power.of("a") + Power.of("b").times(2) - Power(3)
    assert power - Power.of("a") == Power(-3, (("b", 2),))
    assert power - power == Power()
    scope = Shifts({name: Value(()) for name in "abX"})
    amount = scope.scalar(Power(5) - power, Meta())
    assert ran(scope, a=7.0, b=-4.0, X=[0])[amount.names[0]] == 5 - (7 - 8 - 3)
    assert scope.scalar(Power(4), Meta()) == Literal(4.0)


def test_a_step_is_one_of_whole_numbers():
    """Every array of a step is whole and below 2^31, products are of codes, and it is near a step of numbers."""
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=shape) / 6 for name, shape in SHAPES.items()}
    training = lc.Training(network(), **INTEGERS, weights=weights, seed=3, learning_rate=0.25)
    batch = {"X": rng.uniform(-1, 1, (4, 64)), "targets": rng.integers(0, 10, 4)}
    plain = lc.Training(network(), "bp", "sgd", weights=training.plain_weights, learning_rate=0.25)
    expected = plain.step(**batch)
    values = training.runner(training.prepare(**batch))
    for name, array in values.items():
        if name not in ("targets", *training.constants):
            assert np.array_equal(array, np.clip(np.rint(np.asarray(array, float)), -(2**31), 2**31 - 1)), name
    for line in training.table().lines:
        if isinstance(line, Product) and len(line.right) == 2 and line.sides.are_of_matrices:
            assert all(training.table().values[name].dtype == "int8" for name in line.reads), line
    before = training.plain_weights
    assert abs(training.step(**batch) - expected) < 0.02
    for name in before:
        step, wanted = training.plain_weights[name] - before[name], plain.weights[name] - before[name]
        off = step - wanted
        if name.startswith("b"):
            assert np.sum(off**2) < 0.01 * np.sum(wanted**2), name
        else:  # rounded at random, by less than a code
            assert np.max(np.abs(off)) < 1.5 * 2.0 ** training.weights[f"{name}.power"], name
            assert abs(np.sum(step * wanted) / np.sum(wanted**2) - 1) < 0.1, name


@pytest.fixture(scope="module")
def program():
    return program_of(network(SMALL), IN_PRODUCT, {**INTEGERS, "learning_rate": 4.0})


def test_it_learns_the_same_in_c99(program):
    before = {name: np.array(array) for name, array in program.training.weights.items()}
    errors = parity(program, 3)
    assert (errors.losses, errors.weights, errors.scores) == (0, 0, 0)
    weights = program.training.weights
    changed = [np.mean(weights[f"{name}.codes"] != before[f"{name}.codes"]) for name in ("W1", "W2")]
    assert min(changed) > 0.05, changed
    text = without_comments(program.firmware.source + program.firmware.header)
    assert not re.search(r"\b(float|double)\b|[0-9]\.[0-9]*[1-9]", text)


@pytest.mark.skipif(bool(BOARDS["cortex-m3"].missing), reason="there is no compiler for ARM")
def test_no_helper_for_floating_point_is_called(program, tmp_path):
    program = program.firmware
    for name, text in ((f"{program.prefix}.c", program.source), (f"{program.prefix}.h", program.header)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    flags = ("-mcpu=cortex-m0", "-mthumb", "-std=c99", "-O2", "-c", f"{program.prefix}.c", "-o", "program.o")
    subprocess.run(("arm-none-eabi-gcc", *flags), cwd=tmp_path, check=True)
    symbols = subprocess.run(("arm-none-eabi-nm", "-u", "program.o"), cwd=tmp_path, check=True, capture_output=True)
    needs = symbols.stdout.decode().replace("U", "").split()
    assert set(needs) <= {"__aeabi_idiv", "__aeabi_uidiv", "__aeabi_idivmod", "__aeabi_uidivmod", "memset", "memcpy"}


@pytest.mark.parametrize(
    ("text", "learning", "message"),
    [
        (NET.replace("relu", "tanh"), {}, "integer-only does not support tanh, in line: .*tanh"),
        (NET, {"optimizer": "adamw"}, "adamw has no integer form"),
        (NET, {"clip": 1.0}, "no integer form for clip: "),
        (NET, {"procedure": "fa"}, "replaces weights in the backward pass"),
    ],
)
def test_what_has_no_form_is_refused(text, learning, message):
    with pytest.raises(lc.InputError, match=message):
        lc.Training(network(text), **{**INTEGERS, **learning})


def test_what_has_no_room_is_refused():
    training = lc.Training(network(SMALL), **INTEGERS)
    with pytest.raises(lc.InputError, match="X has numbers up to 16, but integer-only steps support -1 to 1: scale it"):
        training.step(X=np.full((2, 16), 16.0), targets=np.zeros(2, int))
    training.step(X=np.ones((2, 16)), targets=np.zeros(2, int))
    with pytest.raises(lc.InputError, match="sum of 600 numbers may exceed 32 bits: reduce it to 512, in line: dW"):
        program_of(
            network(SMALL), FirmwareOptions("step", plan="epilogue-update", batch_size=600, dtype="int32"), INTEGERS
        )


OTHERS = {
    "regression": """regression(X T; W1 b1 W2 b2) -> loss
      sizes: d=12 e=10 o=3
      constants: X T
      H[B e] = X[B d] W1[d e]
      U[B e] = H[B e] + b1[e]
      A[B e] = relu(U[B e])
      Y[B o] = A[B e] W2[e o]
      P[B o] = Y[B o] + b2[o]
      E[B o] = P[B o] - T[B o]
      S[B o] = E[B o] E[B o]
      loss[] = 0.01[] S[B o]
    """,
    "two paths": """paths(X targets share; W1 b1 W2 W3) -> loss
      targets: index of v
      share: share of targets
      sizes: d=12 e=12 v=5
      constants: X
      H[B e] = X[B d] W1[d e]
      U[B e] = H[B e] + b1[e]
      A[B e] = relu(U[B e])
      Q[B e] = 0.3[] A[B e]
      G[B e'] = Q[B e] W2[e e']
      M[B e] = maximum(A[B e], G[B e])
      R[B e] = M[B e] - U[B e]
      L[B v] = R[B e] W3[e v]
      P[B v] = log_softmax[v](L[B v])
      T[B] = P[B v=targets[B]]
      loss[] = T[B] share[B]
    """,
    "sums of squares": """squares(X T; W) -> loss
      sizes: d=12 o=3
      constants: X T
      P[B o] = X[B d] W[d o]
      E[B o] = P[B o] - T[B o]
      S[B o] = E[B o] E[B o]
      R[B o] = S[B o] + S[B o] + S[B o] + S[B o]
      loss[] = 0.01[] R[B o]
    """,
    "rows of a table": """rows(tokens targets share; E W) -> loss
      tokens: index of t
      targets: index of v
      share: share of targets
      sizes: t=9 d=7 v=5
      X[B M d] = E[t=tokens[B M] d]
      L[B M v] = X[B M d] W[d v]
      P[B M v] = log_softmax[v](L[B M v])
      T[B M] = P[B M v=targets[B M]]
      loss[] = T[B M] share[B M]
    """,
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_tables_step_as_numbers_do(name):
    configuration, rng = network(OTHERS[name]), np.random.default_rng(1)
    model = build(configuration)
    table = model.table
    shapes = {weight: shape_of(table.axes[weight], model.sizes) for weight in table.weights}
    weights = {weight: rng.normal(size=shape) / 3 for weight, shape in shapes.items()}
    batch = {
        "X": rng.uniform(-1, 1, (6, 12)),
        "T": rng.uniform(-1, 1, (6, 3)),
        "tokens": rng.integers(0, 9, (3, 4)),
        "targets": rng.integers(0, 5, (3, 4) if "tokens" in table.inputs else 6),
    }
    batch = {key: array for key, array in batch.items() if key in table.inputs}
    whole = lc.Training(configuration, **INTEGERS, weights=weights, learning_rate=1.0)
    before = whole.plain_weights
    values = whole.runner(whole.prepare(**batch)).values()
    assert all(np.max(np.abs(np.asarray(array, float))) < 2**31 for array in values)
    plain = lc.Training(configuration, "bp", "sgd", weights=before, learning_rate=1.0)
    assert whole.step(**batch) == pytest.approx(plain.step(**batch), rel=0.02, abs=0.02)
    for weight, array in whole.plain_weights.items():
        step, wanted = array - before[weight], plain.weights[weight] - before[weight]
        scale = 2.0 ** whole.weights[f"{weight}.power"] if f"{weight}.power" in whole.weights else 0.0
        near = 0.05 * np.max(np.abs(wanted)) + 1.01 * scale
        assert np.max(np.abs(step - wanted)) < near, weight


@pytest.mark.parametrize("plan", ["", "fused-update", "epilogue-update"])
def test_a_weight_that_multiplies_numbers_one_by_one_learns(plan):
    """It is read in 16 bits, and updated in 32, under every plan."""
    text = SMALL.replace("U[B e] = H[B e] +", "G[B e] = H[B e] g[e]\n  U[B e] = G[B e] +").replace("W1 b1", "W1 g b1")
    program = program_of(network(text), FirmwareOptions("step", plan=plan, batch_size=4, dtype="int32"), INTEGERS)
    found = parity(program, 3, ("-O0",))
    assert (found.losses, found.weights) == (0, 0), found
    made = [name for line in program.tables["step"].lines for name in line.makes]
    assert len(made) == len(set(made))


def test_frozen_matrices_are_codes_in_flash():
    program = program_of(network(SMALL), IN_PRODUCT, {**INTEGERS, "train": "W2"})
    assert program.firmware.program_memory.constants == 16 * 12 + 4 * 12 + 4 * 4 + 2 * 4  # W1, b1, shares, powers
    assert program.firmware.program_memory.weights == 12 * 4
    assert parity(program, 2, ("-O1",)) == StepParity(0.0, 0.0, "W2.codes", ())

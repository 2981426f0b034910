"""Freestanding programs in C99: what a strict compiler says, NumPy's numbers, the price to the unit, every byte."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import learncost as lc
from kernels_in_c import needs_compiler
from learncost.backends.c.numbers import primitive
from learncost.backends.c.printer import number
from learncost.backends.c.tree import NameExpression
from learncost.backends.c99 import program_memory
from learncost.backends.c99.functions import functions, initializer
from learncost.backends.c99.layout import write_c99
from learncost.backends.placed.kernels import KernelTable
from learncost.cli import boards
from learncost.cli.command import main
from learncost.cli.emit_c99 import FirmwareOptions, FirmwareProgram, program_of
from learncost.cli.verified_c99 import ALLOWED, NEAR, checks, mask, parity
from learncost.engines import freestanding as alone
from learncost.engines.boards import BOARDS
from learncost.engines.compiler import compiler
from learncost.ir.errors import InputError
from learncost.ir.parse import parse_line
from learncost.ir.polynomial import shape_of
from learncost.models.configuration import configure
from learncost.ops import entry

pytestmark = needs_compiler

MLP = """\
mlp(X targets share; W1 b1 W2 b2) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=12 f=9 v=5
  H[B f] = X[B d] W1[d f]
  U[B f] = H[B f] + b1[f]
  G[B f] = relu(U[B f])
  O[B v] = G[B f] W2[f v]
  Y[B v] = O[B v] + b2[v]
  P[B v] = log_softmax[v](Y[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""

CONVOLUTION = """\
conv(X targets share; W1 b1 W2) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: c=1 y=6 x=6 e=3 u=3 w=3 p=3 q=3 s=2 t=2 v=4
  H[B e y x] = X[B c y=(y + u - 1) x=x + w - 1] W1[e c u w]
  U[B e y x] = H[B e y x] + b1[e]
  G[B e y x] = tanh(U[B e y x])
  P[B e p q] = max[s t](G[B e y=2 p + s x=2 q + t])
  O[B v] = P[B e p q] W2[e p q v]
  L[B v] = log_softmax[v](O[B v])
  T[B] = L[B v=targets[B]]
  loss[] = T[B] share[B]
"""

RECURRENCE = """\
rnn(X targets share; W R b O) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: n_turn=4 d=3 h=6 v=4
  A[n_turn B h] = X[B n_turn d] W[d h]
  Z[B h] = zeros()
  repeat n_turn carry Z each a=A shared R b:
    H[B h] = Z[B h'] R[h' h]
    S[B h] = H[B h] + a[B h]
    U[B h] = S[B h] + b[h]
    Z[B h] = tanh(U[B h])
  L[B v] = Z[B h] O[h v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""

TINY = {"num_hidden_layers": 2, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}
LLAMA = {**TINY, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2, "vocab_size": 12}
VIT = {**TINY, "image_size": 8, "patch_size": 4, "num_channels": 1, "num_labels": 5}
GPT2 = {"n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 12, "n_positions": 8}

CONFIGURATIONS = {
    "mlp": lambda: configure(lc.layer(MLP), {}),
    "convolution": lambda: configure(lc.layer(CONVOLUTION), {}),
    "recurrence": lambda: configure(lc.layer(RECURRENCE), {}),
    "gpt2": lambda: configure("gpt2", GPT2),
    "llama": lambda: configure("llama-3-8b", LLAMA),
    "vit": lambda: configure("vit-base-patch16-224", VIT),
}
LENGTHS = {"gpt2": 6, "llama": 6}

PLANS = {"sgd": "fused-update,fused", "momentum": "", "adamw": "flash,fused-update,fused"}


def made(name: str, dtype: str = "fp64", plan: str | None = "fused-update,fused", **learning: Any) -> FirmwareProgram:
    settings = FirmwareOptions(plan=plan, batch_size=4, seq_len=LENGTHS.get(name), dtype=dtype)
    return program_of(CONFIGURATIONS[name](), settings, {"learning_rate": 0.01, **learning})


MORE = ("kolen-pollack", "dfa", "local", "forward-gradient", "mezo", "evolution")
"""What else is tried, of the smallest decoder."""

CASES = [
    (name, procedure, optimizer)
    for name in CONFIGURATIONS
    for procedure in ("bp", "recompute", *(("pepita", "mempepita") if name in LENGTHS else ("fa",)))
    for optimizer in PLANS
]
CASES += [("gpt2", procedure, "momentum") for procedure in MORE]


@pytest.mark.one_in(every=7)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_losses_and_weights_are_numpys_where_no_gradient_is_stored(name: str) -> None:
    projected = {"vit": ("image",), "mlp": ("X",)}.get(name, ())
    for procedure in ("bp", *(("pepita",) if projected or name in LENGTHS else ())):
        program = made(name, plan="epilogue-update", procedure=procedure, optimizer="momentum", projected=projected)
        found = parity(program, 2, ("-O0",))
        assert found.losses <= NEAR, found
        assert found.weights <= NEAR, found


@pytest.mark.one_in(every=46)
@pytest.mark.parametrize(("name", "procedure", "optimizer"), CASES)
def test_losses_and_weights_are_numpys(name: str, procedure: str, optimizer: str) -> None:
    program = made(name, plan=PLANS[optimizer], procedure=procedure, optimizer=optimizer)
    found = parity(program, 3, ("-O0",))
    assert found.losses <= NEAR, found
    assert found.weights <= NEAR, found
    assert found.scores <= NEAR, found
    assert set(found.nothing) <= {"attn.bK"}, "no other gradient is zero in mathematics"


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize(
    "learning",
    [
        {"accumulate": 2, "optimizer": "momentum"},
        {"clip": 0.5, "optimizer": "adamw"},
        {"weight_decay": 0.1, "optimizer": "adamw"},
        {"dropout": 0.2, "accumulate": 2, "optimizer": "sgd"},
        {"procedure": "evolution", "accumulate": 2, "optimizer": "sgd"},
        {"procedure": "badam", "optimizer": "momentum"},
        {"lora": "q_proj,v_proj", "optimizer": "adamw"},
        {"train": "head", "optimizer": "sgd"},
    ],
    ids=str,
)
def test_microbatches_clipping_decay_and_frozen_weights(learning: dict[str, Any]) -> None:
    program = made("llama", plan="fused", **learning)
    found = parity(program, 3, ("-O0",))
    assert max(found.losses, found.weights, found.scores) <= NEAR, found
    assert "_seed + 1u" in program.firmware.source, "what learns is drawn on the device"
    assert ("Only block 0, the first of the cycle" in program.firmware.source) == (learning.get("procedure") == "badam")
    assert set(found.nothing) <= {"attn.bK", "attn.WQ.A@0", "attn.WQ.A@1", "attn.WV.A@0", "attn.WV.A@1"}, found.nothing
    frozen = [name for name, (kind, _, _) in program.firmware.given.items() if kind == "constants"]
    assert any(name in learning.values() or name in learning for name in ("lora", "train", "badam")) == any(
        name in program.training.weights_read for name in frozen
    )


@pytest.mark.parametrize("learning", [{}, {"train_layers": "1"}], ids=str)
def test_what_turns_make_anew_elsewhere_than_where_it_lies_is_moved_there(learning: dict[str, Any]) -> None:
    program = made("llama", plan="fused-update", procedure="kolen-pollack", optimizer="sgd", **learning)
    found = parity(program, 3, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found


@pytest.mark.parametrize(
    ("name", "learns"), [("mlp", {"train": "W2,b2"}), ("gpt2", {"lora": "all-linear", "lora_rank": 2})]
)
def test_frozen_codes_are_read_by_products(name: str, learns: dict[str, str]) -> None:
    learning = {"precision": "int8-frozen-fp32", "optimizer": "sgd", **learns}
    program, plain = (made(name, **of) for of in (learning, {**learning, "precision": "fp32"}))
    found = parity(program, 3, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found
    codes = {given: axes for given, (_, axes, dtype) in program.firmware.given.items() if dtype == "int8"}
    sizes = program.sizes
    numbers = sum(prod(shape_of(axes, sizes)) for axes in codes.values())
    scales = sum(
        prod(shape_of(axes, sizes)) for given, (_, axes, _) in program.firmware.given.items() if "scales" in given
    )
    assert numbers, "a matrix is frozen"
    assert (
        plain.firmware.program_memory.constants - program.firmware.program_memory.constants
        == 8 * numbers - numbers - 8 * scales
    )


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("name", ["mlp", "convolution", "gpt2", "vit"])
def test_activations_wait_for_the_backward_pass_as_codes(name: str) -> None:
    learning = {"precision": "int8-saved", "optimizer": "sgd"}
    program, plain = (made(name, plan="fused,epilogue-update", **of) for of in (learning, {"optimizer": "sgd"}))
    found = parity(program, 2, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found
    (layout,) = (layout for entry, layout in program.firmware.layouts.items() if entry == "step")
    assert "int8" in layout.dtypes.values()
    if name == "vit":  # where what is kept makes the peak
        assert program.firmware.program_memory.arena <= 0.85 * plain.firmware.program_memory.arena


@pytest.mark.one_in(every=5)
@pytest.mark.parametrize("name", ["mlp", "recurrence", "vit"])
def test_products_are_of_whole_numbers(name: str) -> None:
    program = made(name, precision="int8-products", optimizer="sgd")
    found = parity(program, 2, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found
    types = program.firmware.layouts["step"].dtypes
    calls = [call for number, call in program.firmware.calls.items() if program.firmware.entries[number] == "step"]
    products = [call.product for call in calls if call.product]
    assert products
    assert {types[name] for product in products for name in product.reads} == {"int8"}


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt2", marks=pytest.mark.slow), "convolution"])
def test_every_comparison_of_verify_passes(name: str) -> None:
    settings = FirmwareOptions(batch_size=3, seq_len=LENGTHS.get(name), plan="fused-update,fused")
    report = [*checks(CONFIGURATIONS[name](), settings, {"procedure": "bp", "optimizer": "sgd"}, 2)]
    on_boards = [check for check in report if "on an emulated" in check.compared]
    assert len(on_boards) == len(BOARDS)
    assert all(check.passed is not False for check in on_boards), [str(check) for check in on_boards]
    here = [check for check in report if check not in on_boards]
    assert [check.passed for check in here] == [True] * 9, [str(check) for check in here]


def test_what_boards_have_no_memory_for_is_said() -> None:
    program = made("mlp", "fp32")
    program_memory = replace(program.firmware.program_memory, inputs=2**22)
    found = boards.checks("mlp", replace(program, firmware=replace(program.firmware, program_memory=program_memory)))
    assert all(check.passed is None for check in found)


MIXED = """\
mixed(X targets share; G W g E V) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=6 f=5 v=3 k=2 p=2
  A[B M d] = X[B M d] G[d]
  H[B M f] = A[B M d] W[d f]
  R[B M f] = softplus(H[B M f])
  C[B M k] = topk[f](R[B M f])
  Q[B M k] = R[B M f=C[B M k]]
  S[B M k] = Q[B M k] g[k]
  D[B M k p] = S[B M k] E[p]
  m[B k p] = mean[M](D[B M k p])
  L[B v] = m[B k p] V[k p v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""


def test_means_over_turns_and_sums_at_indices_take_what_they_are_priced() -> None:
    settings = FirmwareOptions(batch_size=3, seq_len=4, plan="fused", dtype="fp64")
    program = program_of(configure(lc.layer(MIXED), {}), settings, {"optimizer": "sgd"})
    maccs, _ = _of(program, "_prices")
    assert maccs.passed, maccs


def test_a_kernel_is_of_the_sizes_that_are_constants_in_it() -> None:
    """Also where a later entry of the same file has other sizes than were known when it was written."""
    kernels = KernelTable({"a": 3, "b": 5}, write_c99)
    names = []
    for axis in ("a", "b"):
        line = parse_line(f"Z[{axis}] = X[{axis}] + Y[{axis}]")
        lines = ([line], dict.fromkeys("XYZ", (axis,)), frozenset("Z"))
        dtypes = dict.fromkeys("XYZ", "fp32")
        kernels.note(*lines, dtypes)
        names.append(kernels.written(*lines, "added", dtypes).name)
    assert len({*names}) == 2


def test_truths_in_the_arena_fill_whole_words() -> None:
    table = MLP.replace("relu(U[B f])", "tanh(C[B f])").replace(
        "  G[B f] =", "  S[B f] = less(U[B f], 0.3[])\n  C[B f] = select(S[B f], U[B f], H[B f])\n  G[B f] ="
    )
    settings = FirmwareOptions(batch_size=3, plan="", dtype="fp32")
    program = program_of(configure(lc.layer(table), {}), settings, {"optimizer": "sgd"})
    assert program.firmware.layouts["step"].arenas["flags"] == 27
    assert [check.passed for check in _of(program, "_memory")] == [True, True, True]


def test_numbers_stand_in_lines_and_zeros_of_states_nowhere() -> None:
    assert ", 0.0" not in made("mlp", optimizer="momentum").firmware.source
    lines = initializer(np.arange(1000) / 7, "fp64").splitlines()
    assert max(map(len, lines)) <= 116
    assert [float(text) for line in lines[1:-1] for text in line.rstrip(",").split(",")] == [*np.arange(1000) / 7]


def test_a_weight_without_axes_is_an_array_of_one() -> None:
    table = """net(x y; w g) -> loss
      constants: x y
      sizes: d=5
      H[B] = x[B d] w[d]
      S[B] = H[B] g[]
      D[B] = S[B] - y[B]
      Q[B] = D[B] D[B]
      loss[] = #B^-1[] Q[B]"""
    program = program_of(configure(lc.layer(table), {}), FirmwareOptions(batch_size=3, plan="", dtype="fp32"), {})
    assert "model_g[1]" in program.firmware.source
    assert [check.passed for check in _of(program, "_memory")] == [True, True, True]


def test_what_moves_numbers_needs_no_memmove() -> None:
    program = made("gpt2", "fp32", None, procedure="kolen-pollack", optimizer="sgd")
    assert {*alone.compiled(program.firmware).undefined} <= {*ALLOWED}


def test_what_moves_numbers_under_a_condition_on_places_goes_by_twos() -> None:
    """A compiler sees that all patches are there, and that nothing is left but a move."""
    source = made("vit", "fp32", "", optimizer="sgd").firmware.source
    _, kernel = source.split("dembeddings.H[B i j d] = dembeddings.S[B M=(#j i + j + 1) d]\n*/", 1)
    assert "by twos" in kernel.split("\n}\n", 1)[0]


def test_signs_are_numbers_in_c() -> None:
    """Of what is equal, a whole number would be converted, of which strict compilers warn."""
    text = number(primitive(entry("sign"), [NameExpression("x")], "real"))
    assert text == "x > 0 ? 1 : (x < 0 ? -1 : 0)"


def test_a_wrong_byte_or_operation_is_found() -> None:
    """The comparisons can fail: of a program with one operation more, and of a prediction that is off by a byte."""
    program = made("mlp")
    firmware = program.firmware
    more = replace(program, firmware=replace(firmware, source=firmware.source.replace("s += ", "s += s * 0 + ", 1)))
    report = [*_of(more, "_prices")]
    assert report[0].passed is False, report[0]
    wrong = replace(
        firmware, program_memory=replace(firmware.program_memory, inputs=firmware.program_memory.inputs + 1)
    )
    assert [check.passed for check in _of(replace(program, firmware=wrong), "_memory")] == [True, False, True]
    scaled = replace(
        firmware, source=firmware.source.replace("mlp_relu(", "mlp_relu(", 1).replace("> (real)0.0 ?", "> (real)0.1 ?")
    )
    assert parity(replace(program, firmware=scaled), 2, ("-O0",)).losses > NEAR


def _of(program: FirmwareProgram, name: str) -> Any:
    from learncost.cli import verified_c99

    return getattr(verified_c99, name)(program, "mlp")


def test_rooms_are_those_of_the_program() -> None:
    program = made("gpt2", "fp32", optimizer="adamw")
    from learncost.engines.computed_inputs import names_computed

    fixed = names_computed(program.training.model)
    assert program_memory(program.tables.values(), program.sizes, "fp32", fixed) == program.firmware.program_memory
    weights = sum(array.size for array in program.training.weights.values())
    found = program.firmware.program_memory
    assert (found.weights, found.states) == (4 * weights, 8 * weights)
    assert found.ram == found.arena + found.weights + found.states + found.inputs + found.variables


def test_masks_are_drawn_anew_and_counted() -> None:
    shape = (40, 50)
    first, again, later, other = (mask(0.3, *at, shape) for at in ((1, 1, 0), (1, 1, 0), (1, 2, 0), (1, 1, 1)))
    assert np.array_equal(first, again)
    for drawn in (first, later, other):
        assert set(np.unique(drawn)) == {0.0, 1 / 0.7}
        assert np.mean(drawn == 0) == pytest.approx(0.3, abs=0.04)
    assert 0.5 < np.mean(first == later) < 0.66
    assert 0.5 < np.mean(first == other) < 0.66
    size = {**GPT2, "seq_len": 6, "dropout": 0.1, "plan": "fused", "optimizer": "sgd"}
    found = lc.memory("gpt2", engine="c99", **size)
    emitted = lc.emit("gpt2", "c99", entry="step", **size).program.firmware.program_memory
    assert (found.peak, found.split["masks"]) == (emitted.ram, emitted.masks)
    assert emitted.masks == 4 * (6 * 8 + 2 * (2 * 6 * 6 + 2 * 6 * 8))


def test_two_programs_link_into_one(tmp_path: Any) -> None:
    for prefix, dtype in (("one", "fp32"), ("two", "fp64")):
        settings = FirmwareOptions(plan="fused-update,fused", batch_size=2, prefix=prefix, dtype=dtype)
        firmware = program_of(CONFIGURATIONS["mlp"](), settings, {"optimizer": "adamw"}).firmware
        (tmp_path / f"{prefix}.c").write_text(firmware.source)
        (tmp_path / f"{prefix}.h").write_text(firmware.header)
    main_text = """
        #include <stdio.h>
        #include "one.h"
        #include "two.h"
        int main(void) {
            one_begin(); two_begin();
            for (int i = 0; i < 24; i++) { one_X[i] = (float)i / 24; two_X[i] = (double)i / 24; }
            for (int i = 0; i < 60; i++) { one_step(); two_step(); }
            printf("%d %d %.6f %.6f\\n", ONE_RAM_BYTES, TWO_RAM_BYTES, (double)one_loss(), two_loss());
            return (int)(one_steps - 60);
        }"""
    (tmp_path / "main.c").write_text(main_text)
    command = [*(compiler() or ()), *alone.STRICT, "-O1", "main.c", "one.c", "two.c", "-o", "both"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run(["./both"], cwd=tmp_path, check=True, capture_output=True, text=True)
    first, second, loss, other = done.stdout.split()
    assert int(second) > int(first)
    assert float(loss) == pytest.approx(float(other), abs=1e-3), "drawn alike, learned alike"
    assert float(loss) < 1.0 < np.log(5)


def test_the_command_writes_a_file_and_its_header(tmp_path: Any, capsys: Any) -> None:
    table = tmp_path / "net.table"
    table.write_text(MLP)
    ops = ["emit", str(table), "--backend", "c99", "--batch-size", "2", "--optimizer", "sgd"]
    assert main([*ops, "-o", str(tmp_path / "tiny.c")]) == 0
    source, header = ((tmp_path / f"tiny.{ending}").read_text() for ending in "ch")
    assert '#include "tiny.h"' in source
    assert re.search(r"#define TINY_RAM_BYTES (\d+) ", header)
    assert "void tiny_step(void);" in header
    assert "-ffp-contract=off" in source
    assert main([*ops, "--prefix", "net", "--entry", "predict", "-o", str(tmp_path / "other.c")]) == 0
    header = (tmp_path / "other.h").read_text()
    assert "net_predict" in header
    assert "net_step" not in header
    assert "net_learning_rate" not in header
    assert main([*ops, "--prefix", "1"]) == 2
    assert main([*ops, "--entry", "all"]) == 2
    assert main([*ops, "--dtype", "bf16-masters"]) == 2
    assert main([*ops[:2], "--entry", "step"]) == 2
    assert main(["emit", "bert-base", "--backend", "c99", "--hidden-size", "24", "--num-hidden-layers", "1"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "no output to learn from" in errors.pop()
    assert len(errors) == 4
    assert "--entry requires --backend c99" in errors[-1]


NAMES = """\
net(seed real share; step begin while) -> loss
  real: index of v
  share: share of real
  constants: seed
  sizes: d=4 f=5 v=3
  steps[B f] = seed[B d] step[d f]
  update[B f] = steps[B f] + begin[f]
  for[B f] = relu(update[B f])
  predict[B v] = for[B f] while[f v]
  P[B v] = log_softmax[v](predict[B v])
  T[B] = P[B v=real[B]]
  loss[] = T[B] share[B]
"""


def test_names_of_c_and_of_the_program_go() -> None:
    settings = FirmwareOptions(plan="epilogue-update", batch_size=4, prefix="net", dtype="fp64")
    program = program_of(configure(lc.layer(NAMES), {}), settings, {"optimizer": "sgd", "accumulate": 2})
    found = parity(program, 2, ("-O0",))
    assert max(found.losses, found.weights) <= NEAR, found
    assert program.firmware.names["lr"] == "net_learning_rate"
    assert program.firmware.names["step"] != "net_step"


def test_weights_go_in_as_initial_values_and_frozen_ones_as_constants(tmp_path: Any) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    training = lc.Training("gpt2", seed=3, dtype=np.float32, **GPT2)
    safetensors.save_file(training.weights, tmp_path / "w.safetensors")
    source = lc.emit(
        "gpt2", "c99", batch_size=2, seq_len=4, weights=str(tmp_path / "w.safetensors"), train="head", **GPT2
    )
    firmware = source.program.firmware
    assert firmware.given["attn.WQ"][0] == "constants"
    data = {"tokens": np.arange(8).reshape(2, 4) % 12, "targets": np.ones((2, 4), int)}
    inputs = {name: data[name] for name in alone.fed(firmware)}
    begin = {name: training.weights.get(name, 0.0 * inputs["tokens"].sum()) for name in alone.changed(firmware)}
    begin |= {name: np.zeros(alone.shape(firmware, name)) for name in begin if name not in training.weights}
    ran = alone.run(firmware, {**begin, "lr": 0.0}, [inputs])
    loss, scores = training.look(**data)
    assert ran.losses[0] == pytest.approx(loss, rel=1e-5)
    assert np.abs(ran.scores - scores).max() < 1e-5
    assert f"{training.weights['attn.WQ'].reshape(-1)[0]!s}f" in firmware.source


def test_without_a_compiler_verify_says_so(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("learncost.cli.verified_c99.compiler", lambda: None)
    assert main(["verify", "gpt2", "--engine", "c99", "--n-layer", "1", "--n-embd", "8", "--n-head", "2"]) == 0
    assert "no C compiler found" in capsys.readouterr().out.replace("\n        ", " ")
    monkeypatch.setattr("learncost.engines.freestanding.compiler", lambda: None)
    with pytest.raises(InputError, match="no C compiler found"):
        alone.c_compiler()


# How far the functions are off, in units of the last place, of what is written in float and in double.
FUNCTIONS = {
    "exp": (-80, 80, 1.1, 1.1),
    "log": (1e-30, 1e30, 1.1, 1.1),
    "tanh": (-12, 12, 8, 2.1),
    "erf": (-5, 5, 8, 20),
    "sin": (-300, 300, 2, 1.1),
    "cos": (-300, 300, 2, 1.1),
    "atan": (-30, 30, 3, 1.1),
    "log1p": (-0.9, 5, 3, 2.1),
    "expm1": (-10, 10, 2, 2.1),
    "floor": (-1e5, 1e5, 0, 0),
    "sqrt": (0, 1e20, 0, 0),
}


@pytest.mark.parametrize(("dtype", "kind"), [("fp32", "float"), ("fp64", "double")])
def test_own_functions_are_near_to_the_libraries(dtype: str, kind: str, tmp_path: Any) -> None:
    """A correctly rounded root; all others within a few units of the last place of what a wider type has."""
    import ctypes

    torch = pytest.importorskip("torch")
    calls = "".join(
        f"void of_{name}(int n, const real *x, real *y) {{ for (int i = 0; i < n; i++) y[i] = {name}_real(x[i]); }}\n"
        for name in FUNCTIONS
    )
    text = f"#include <stdint.h>\ntypedef {kind} real;\n" + "\n".join(functions(calls, dtype)) + calls
    (tmp_path / "f.c").write_text(text)
    command = [*(compiler() or ()), *alone.STRICT, "-O1", "-fPIC", "-shared", "f.c", "-o", "f.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    random = np.random.default_rng(0)
    number = np.float32 if dtype == "fp32" else np.float64
    for name, (low, high, *limits) in FUNCTIONS.items():
        x = random.uniform(low, high, 20_000)
        x = 10 ** random.uniform(-35, 35, 20_000) if name in ("log", "sqrt") else x
        x = x.astype(number)
        y = np.empty_like(x)
        getattr(library, f"of_{name}")(len(x), *(a.ctypes.data_as(ctypes.c_void_p) for a in (x, y)))
        wide = getattr(torch, name)(torch.from_numpy(x.astype(np.float64))).numpy()
        expected = np.sqrt(x) if name == "sqrt" else wide
        units = np.abs(y - expected) / np.spacing(np.abs(expected).astype(number))
        assert units.max() <= limits[dtype == "fp64"], (name, units.max())

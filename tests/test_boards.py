"""Steps in C99 on emulated Cortex-M3, M4F, M7 and RISC-V: the same bits as here, every byte where it was predicted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import learncost as lc
from learncost.cli.boards import checks, files, inputs_of, on_board, on_host
from learncost.cli.emit_c99 import FirmwareOptions, FirmwareProgram, program_of
from learncost.engines.boards import BOARDS, build, run
from learncost.engines.boards.board import Board
from learncost.ir.errors import InputError
from learncost.models.configuration import Configuration, configure
from test_epilogue_update import MLP
from tiny_models import GPT2, LLAMA

MISSING = "; ".join(dict.fromkeys(board.missing for board in BOARDS.values() if board.missing))

VIT = (
    "vit-base-patch16-224",
    {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "image_size": 8,
        "patch_size": 4,
        "num_channels": 1,
        "num_labels": 5,
    },
)
CONVOLUTION = """net(X targets share; K W) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: y=6 x=6 e=3 u=3 w=3 v=4 i=6 j=6
  C[B e i j] = X[B y=i + u - 1 x=j + w - 1] K[e u w]
  R[B e i j] = relu(C[B e i j])
  L[B v] = R[B e i j] W[e i j v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
RECURRENCE = """net(X H targets share; W U V) -> loss
  targets: index of v
  share: share of targets
  constants: X H
  sizes: m=4 d=5 k=6 v=4
  repeat m carry H each x=X shared W U:
    A[B k] = H[B k'] W[k' k]
    C[B k] = x[B d] U[d k]
    Z[B k] = A[B k] + C[B k]
    H[B k] = tanh(Z[B k])
  L[B v] = H[B k] V[k v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
TWELVE = [
    (MLP, "bp", "adamw", "fused,epilogue-update"),
    (VIT, "bp", "momentum", "epilogue-update"),
    (GPT2, "bp", "adamw", "fused,epilogue-update"),
    (CONVOLUTION, "bp", "momentum", "epilogue-update"),
    (RECURRENCE, "bp", "sgd", "fused-update"),
    (LLAMA, "recompute", "momentum", "flash,fused,epilogue-update"),
    (MLP, "mempepita", "momentum", "epilogue-update"),
    (MLP, "pepita", "sgd", ""),
    (VIT, "recompute", "sgd", "fused,epilogue-update"),
    (LLAMA, "mempepita", "momentum", "epilogue-update"),
    (VIT, "bp", "adamw", "fused-update"),
    (GPT2, "mempepita", "sgd", ""),
    (LLAMA, "pepita", "adamw", "epilogue-update"),
    (GPT2, "recompute", "sgd", "flash,fused,chunked-loss,epilogue-update"),
]


@pytest.fixture(autouse=True)
def installed() -> None:
    if MISSING and os.environ.get("LEARNCOST_BOARD_TESTS") == "required":
        pytest.fail(f"tests of boards are required, and {MISSING} is not installed")
    if MISSING:
        pytest.skip(f"{MISSING} is not installed")


def _configured(model: Any) -> Configuration:
    return configure(lc.layer(model), {}) if isinstance(model, str) else configure(*model)


def _program(model: Any, procedure: str, optimizer: str, plan: str | None, batch: int = 2) -> FirmwareProgram:
    length = 7 if model in (GPT2, LLAMA) else None
    settings = FirmwareOptions(entry="step", prefix="net", plan=plan, batch_size=batch, seq_len=length)
    learning: dict[str, Any] = {"procedure": procedure, "optimizer": optimizer, "seed": 5}
    if model is MLP and "pepita" in procedure:
        learning["projected"] = ("X",)
    return program_of(_configured(model), settings, learning)


@pytest.mark.one_in(every=29)
@pytest.mark.parametrize(("model", "procedure", "optimizer", "plan"), TWELVE)
def test_bits_are_the_same_on_four_processors_and_bytes_as_predicted(
    model: Any, procedure: str, optimizer: str, plan: str
) -> None:
    """Losses and weights of three steps in fp32; `.data` and `.bss` of the whole program."""
    made = list(checks("step", _program(model, procedure, optimizer, plan)))
    assert len(made) == len(BOARDS)
    assert all(check.passed for check in made), "\n".join(map(str, made))


FIFTY = [
    (model, procedure, optimizer, plan, batch)
    for model in (MLP, VIT, GPT2, LLAMA, CONVOLUTION, RECURRENCE)
    for procedure in (("bp",) if isinstance(model, str) else ("bp", "recompute", "pepita", "mempepita"))
    if model is not VIT or procedure in ("bp", "recompute")
    for optimizer, plan, batch in (
        ("sgd", "", 1),
        ("momentum", "fused-update", 3),
        ("adamw", "epilogue-update", 2),
        ("sgd", "fused,epilogue-update", 4),
    )
]


@pytest.mark.one_in(every=62)
@pytest.mark.parametrize(("model", "procedure", "optimizer", "plan", "batch"), FIFTY)
def test_linked_sections_are_the_predicted_ram(
    model: Any, procedure: str, optimizer: str, plan: str, batch: int, tmp_path: Path
) -> None:
    program = _program(model, procedure, optimizer, plan, batch)
    sources = files(program.firmware, inputs_of(program), 1, tmp_path)
    built = build(BOARDS["cortex-m4f"], sources, tmp_path, 2**21, 2**21)
    assert built.ram == program.firmware.program_memory.ram


def test_codes_of_any_number_leave_nothing_between_arrays(tmp_path: Path) -> None:
    """Matrices of 35, 21 and 6 bytes among numbers of four."""
    configuration = configure(lc.layer(MLP), {"d": 5, "e": 7, "f": 3, "v": 2})
    learning = {"procedure": "bp", "optimizer": "sgd", "precision": "int8-learned"}
    program = program_of(configuration, FirmwareOptions(plan="epilogue-update", batch_size=3), learning)
    built = build(BOARDS["cortex-m4f"], files(program.firmware, inputs_of(program), 1, tmp_path), tmp_path)
    assert built.ram == program.firmware.program_memory.ram
    assert "W1_codes[36]; /* W1.codes[d e], 35 of 36 */" in program.firmware.header


def test_a_program_that_draws_nothing_takes_the_predicted_ram(tmp_path: Path) -> None:
    """All weights are given, as a module's are: a linker left its seed out, and `verify` missed four bytes."""
    configuration = configure(lc.layer(MLP), {"d": 5, "e": 7, "f": 3, "v": 2})
    table, sizes = configuration.layer.table, {"d": 5, "e": 7, "f": 3, "v": 2}
    begun = {name: np.ones([sizes[axis] for axis in table.axes[name]], np.float32) for name in table.weights}
    options = FirmwareOptions(batch_size=2, prefix="net")
    program = program_of(configuration, options, {"procedure": "bp", "optimizer": "sgd"}, begun)
    assert "draw(" not in program.firmware.source
    built = build(BOARDS["cortex-m4f"], files(program.firmware, inputs_of(program), 1, tmp_path), tmp_path)
    assert built.ram == program.firmware.program_memory.ram


def test_fifty_configurations_are_there() -> None:
    assert len(FIFTY) >= 50


def test_a_wrong_number_is_found(tmp_path: Path) -> None:
    """The same program with one weight changed says other bits."""
    program = _program(MLP, "bp", "sgd", "epilogue-update")
    sources = files(program.firmware, inputs_of(program), 2, tmp_path)
    here = on_host(sources, tmp_path)
    text = sources[1].read_text(encoding="utf-8")
    sources[1].write_text(text.replace("net_begin();", "net_begin(); net_W1[5] += 1e-3f;"), encoding="utf-8")
    board = BOARDS["cortex-m4f"]
    assert on_board(board, sources, tmp_path).numbers != here.numbers
    sources[1].write_text(text, encoding="utf-8")
    found = on_board(board, sources, tmp_path)
    assert found.numbers == here.numbers
    assert 0 < found.stack < 4096
    assert found.instructions > 3 * 10**4


LOOP = """#include "board.h"
int main(void) {
    uint32_t n = 1000000u, begun = moment();
    __asm volatile("1: subs %0, %0, #1\\n bne 1b" : "+r"(n) : : "cc");
    say_number(instructions_since(begun));
    return 0;
}
"""


def test_a_counter_counts_instructions(tmp_path: Path) -> None:
    """A loop of known length: two instructions a turn, to some ticks of 40."""
    source = tmp_path / "loop.c"
    source.write_text(LOOP, encoding="utf-8")
    counted = int(run(build(BOARDS["cortex-m4f"], [source], tmp_path)).strip())
    assert abs(counted - 2_000_000) <= 160


def test_too_little_memory_is_one_line(tmp_path: Path) -> None:
    program = _program(MLP, "bp", "sgd", "fused-update")
    sources = files(program.firmware, inputs_of(program), 1, tmp_path)
    with pytest.raises(InputError, match="RAM") as error:
        build(BOARDS["cortex-m3"], sources, tmp_path, ram=2**15)
    assert "\n" not in str(error.value)
    absent = Board("none", "no-such-", (), "no-qemu", (), (0, 0), True)
    assert absent.missing == "no-such-gcc and no-qemu"
    with pytest.raises(InputError, match="no-such-gcc is not installed"):
        build(absent, sources, tmp_path)

"""Microcontrollers as data, and what a step takes on one: held against what was published, and what is emitted."""

from pathlib import Path

import pytest

import learncost as lc
from learncost.devices.device import devices
from learncost.devices.rates import core_of, cores, rates_of
from learncost.ir.errors import InputError
from learncost.models.model import from_layer
from test_epilogue_update import MLP

SMALL = {name: device for name, device in devices().items() if device.core}


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("net") / "net.table"
    path.write_text(MLP, encoding="utf-8")
    return str(path)


def test_every_microcontroller_has_a_core_memory_and_a_source() -> None:
    assert len(SMALL) >= 15
    for device in SMALL.values():
        assert core_of(device).name == device.core
        assert device.ram % 64 == 0 or device.name == "STM32N657"
        assert device.source
        assert device.confidence
        for figure in core_of(device).published:
            assert figure.source
            assert figure.how


@pytest.mark.parametrize(
    ("name", "kib"),
    [("stm32h743", 1024), ("nRF52840", 256), ("RP2350", 520), ("rp2040", 264), ("esp32-s3", 512), ("STM32F407", 192)],
)
def test_memories_are_whole_binary_numbers(name: str, kib: int) -> None:
    assert lc.device(name).ram == kib * 1024


def test_the_interval_holds_what_is_published() -> None:
    for core in cores().values():
        if core.published:
            low, middle, high = core.cycles
            assert low <= middle <= high
            assert all(low <= figure.value <= high for figure in core.published)


AUTOENCODER = (
    "auto(X share; W1 W2 W3 W4 W5 W6 W7 W8 W9 W10) -> loss\n  constants: X share\n"
    + "".join(
        f"  H{n}[B {b}] = A{n - 1}[B {a}] W{n}[{a} {b}]\n  A{n}[B {b}] = relu(H{n}[B {b}])\n"
        for n, (a, b) in enumerate(zip("abcdefghijk", "bcdefghijkl", strict=False), 1)
        if n <= 10
    ).replace("A0[B a]", "X[B a]")
    + "  E[B k] = A10[B k] - X[B k]\n  loss[] = E[B k] E[B k] share[B]\n"
)


def test_the_published_milliseconds_of_an_autoencoder_lie_in_the_interval() -> None:
    """The dense AE of MLCommons-Tiny on an STM32H735: 711,296 MACCs of 3 cycles at 550 MHz, as its authors have it."""
    text = AUTOENCODER.replace("[B k] - X[B k]", "[B k] - X[B a=k]")
    sizes = dict(zip("abcdefghijk", (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640), strict=True))
    step = lc.cost(lc.layer(text), on="STM32H735", optimizer="sgd", plan="epilogue-update", B=1, **sizes)
    assert step.timing is not None
    low, _, high = (seconds * 1e3 for seconds in (step.timing.time.low, step.timing.time.total, step.timing.time.high))
    assert low <= 3.87979636363636 <= high


def test_time_and_energy_follow_from_the_clock_and_the_current() -> None:
    rates = rates_of(lc.device("nrf52840"))
    assert rates.inner.rate(64, 64, 64) == pytest.approx(2 * 64e6 / (4.5 * 8.3) ** 0.5)
    assert rates.watts is not None
    assert rates.watts[1] == pytest.approx(52e-6 * 64 * 3.0)
    with pytest.raises(InputError, match="floating-point"):
        rates_of(lc.device("rp2040"))
    with pytest.raises(InputError, match="only in fp32, not bf16"):
        lc.cost("gpt2", seq_len=8, on="nrf52840", dtype="bf16-masters")


@pytest.mark.one_in(every=3)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
@pytest.mark.parametrize("plan", ["", "fused-update", "epilogue-update", "fused,epilogue-update"])
def test_memory_on_c99_is_what_the_emitted_header_says(net: str, plan: str, optimizer: str) -> None:
    found = lc.memory(net, B=4, engine="c99", plan=plan, optimizer=optimizer)
    text = lc.emit(net, backend="c99", B=4, plan=plan, optimizer=optimizer, entry="step")
    program_memory = text.program.firmware.program_memory
    assert (found.peak, found.flash) == (program_memory.ram, program_memory.constants)
    assert found.peak == sum(found.split.values())


def test_fit_names_the_byte_that_is_too_much_and_what_would_help(net: str) -> None:
    found = lc.fit(net, on="nrf52840", procedures="bp", optimizer="sgd")
    assert (found.budget, found.flash_size, found.on) == (2**18, 2**20, "nRF52840")
    best = max(found.rows, key=lambda row: row.largest)
    assert best.plan == "epilogue-update"
    for batch, fits in ((best.largest, True), (best.largest + 1, False)):
        peak = lc.memory(net, B=batch, engine="c99", plan="epilogue-update", optimizer="sgd").peak
        assert (peak <= 2**18 - 4096) == fits  # without the stack, for which the linker asks
    least = min(row.ram for row in found.rows)
    advice = lc.fit(net, least - 1, procedures="bp", optimizer="sgd", engine="c99").advice
    (line,) = [line for line in advice if "closest option" in line]
    assert f"needs {least:,} bytes (" in line
    assert "1.00x the available memory" in line
    adamw = lc.fit(net, least + 4096, procedures="bp", engine="c99")
    assert "It fits with --optimizer sgd" in " ".join(adamw.advice)
    with pytest.raises(InputError, match="give budget"):
        lc.fit(net)


def test_the_plan_of_c99_is_the_one_with_the_smallest_arena(net: str) -> None:
    assert from_layer(lc.layer(Path(net).read_text(encoding="utf-8"))).learning
    chosen = lc.memory(net, B=4, engine="c99", optimizer="sgd")
    assert "epilogue-update" in chosen.plan
    assert chosen.split["arena"] == 2628  # 64 x 64 floats less than with the gradient of the largest weight
    assert lc.memory(net, B=4, engine="c99", optimizer="sgd", plan="fused-update").split["arena"] == 17412


def test_the_memory_of_a_program_that_emit_refuses_says_so():
    net = lc.layer("net(X; W) -> Y\n  constants: X\n  Y[B f] = X[B d] W[d f]")
    sizes = {"B": 2, "d": 3, "f": 4}
    with pytest.raises(lc.InputError, match="no output to learn from"):
        lc.emit(net, backend="c99", optimizer="sgd", **sizes)
    assert "emit refuses this model" in lc.memory(net, engine="c99", optimizer="sgd", **sizes).convention


def test_what_no_plan_can_make_fit_a_board_is_tried_once_with_the_bytes_of_weights_and_states():
    """AdamW has two moments beside a weight, of 4 bytes each: 12 bytes a parameter lie in RAM before any plan."""
    found = lc.fit("resnet-18", on="nrf52840", procedures="bp,recompute")
    assert [(row.procedure, row.plan, row.fits) for row in found.rows] == [("bp", "", False), ("recompute", "", False)]
    assert found.rows[0].ram == lc.memory("resnet-18", engine="c99", plan="none").peak
    alone = 12 * lc.cost("resnet-18").parameters
    assert f"Under any plan weights and optimizer states alone need {alone:,} bytes" in " ".join(
        found.sheets()[0].notes
    )

"""RAM in several regions: what fit accepts links for the device and runs as here; the rest is refused by name."""

import itertools
import json
import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import learncost as lc
from learncost.cli.boards import _read, files, inputs_of, on_host
from learncost.cli.command import main
from learncost.cli.emit_c99 import FirmwareSource
from learncost.devices.device import STACK, devices
from learncost.engines.boards import BOARDS, build, run
from learncost.ir.errors import InputError
from learncost.program.arena import Region, assigned, largest_assigned

BOARD = BOARDS["cortex-m4f"]
KIB = 1024
NET = """net(X targets share; W1 W2 W3) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d={d} e={e} f={f} v=10
  H[B e] = X[B d] W1[d e]
  A[B e] = relu(H[B e])
  G[B f] = A[B e] W2[e f]
  C[B f] = relu(G[B f])
  L[B v] = C[B f] W3[f v]
  P[B v] = log_softmax[v](L[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
BETWEEN = NET.format(d=160, e=160, f=64)
"""Its weights and arena take between 128 and 192 KiB."""

WIDE = NET.format(d=64, e=520, f=10)
"""One weight of 130 KiB."""

MPS2 = """core = "Cortex-M4F"
memory_gb = 0.000196608
flash_gb = 0.004194304
flash_begin = 0
regions = [
    { name = "SRAM", begin = 0x20000000, bytes = 131072 },
    { name = "PSRAM", begin = 0x21000000, bytes = 65536 },
]
"""
"""QEMU's mps2-an386 with as much RAM as an STM32F407 has: two memories of its board, of 4 and 16 MiB."""


def needs_board() -> None:
    """Skip, or fail, where no board is emulated."""
    if BOARD.missing and os.environ.get("LEARNCOST_BOARD_TESTS") == "required":
        pytest.fail(f"tests of boards are required, and {BOARD.missing} is not installed")
    if BOARD.missing:
        pytest.skip(f"{BOARD.missing} is not installed")


def written(tmp_path: Path, text: str) -> str:
    path = tmp_path / "net.table"
    path.write_text(text, encoding="utf-8")
    return str(path)


def emitted(net: str, on: str, **options: object) -> FirmwareSource:
    options = {"backend": "c99", "optimizer": "sgd", "prefix": "net", **options}
    text = lc.emit(net, on=on, **options)
    assert isinstance(text, FirmwareSource)
    return text


def sections(path: Path) -> dict[str, tuple[int, int]]:
    """Bytes and address of every section of a linked program."""
    printed = subprocess.run(["arm-none-eabi-size", "-A", str(path)], check=True, capture_output=True, text=True).stdout
    rows = re.findall(r"^(\.\S+)\s+(\d+)\s+(\d+)$", printed, re.MULTILINE)
    return {name: (int(size), int(address)) for name, size, address in rows}


def fits(arrays: dict[str, int], regions: list[Region], places: dict[str, str]) -> bool:
    taken = Counter[str]()
    for name, size in arrays.items():
        taken[places[name]] += size
    return all(taken[region.name] <= region.bytes for region in regions)


def test_a_layout_is_found_where_there_is_one() -> None:
    """Held to all ways to lay six arrays out over three regions."""
    draw = random.Random(5)
    found = 0
    for _ in range(300):
        arrays = {"": draw.randint(0, 4)} | {f"a{i}": draw.randint(1, 9) for i in range(6)}
        regions = [Region(name, draw.randint(4, 18)) for name in "xyz"]
        every = (("x", *places) for places in itertools.product("xyz", repeat=6))
        there_is_one = any(fits(arrays, regions, dict(zip(arrays, places, strict=True))) for places in every)
        places = assigned(arrays, regions)
        assert (places is not None) == there_is_one
        assert places is None or (fits(arrays, regions, places) and places[""] == "x")
        found += there_is_one
    assert 50 < found < 250


def test_hundreds_of_arrays_are_laid_out_at_once() -> None:
    arrays = {"": 8} | {f"a{i}": 4 * i + 4 for i in range(900)}
    total = sum(arrays.values())
    places = assigned(arrays, [Region("x", total // 2), Region("y", total // 2 + 8)])
    assert places is not None
    assert len(places) == 901


def test_the_largest_batch_is_one_that_is_laid_out() -> None:
    regions = [Region("x", 100), Region("y", 50)]
    assert largest_assigned(lambda batch: [{"": 0, "a": 7 * batch, "b": 7 * batch}], regions, 10) == 7
    assert largest_assigned(lambda batch: [{"": 0, "a": 10 * batch, "b": 5}], regions, 14) == 10
    assert largest_assigned(lambda batch: [{"": 0, "a": 200}], regions, 5) == 0


def test_regions_of_microcontrollers_are_within_what_is_sold() -> None:
    small = [device for device in devices().values() if device.core]
    for device in small:
        ends = sorted((each.begin, each.begin + each.bytes) for each in device.regions if each.begin is not None)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ends)), device.name
        assert device.data <= device.ram, device.name
        assert all(each.bytes % KIB == 0 for each in device.regions), device.name
        assert sum(each.bytes for each in device.free) == device.data - STACK, device.name
    assert {len(device.regions) for device in small} == {0, 1, 2, 4}


@pytest.mark.parametrize(
    ("name", "kib"),
    [
        ("stm32f407", [128, 64]),
        ("stm32l476", [96, 32]),
        ("stm32h747", [512, 128, 288, 64]),
        ("Arduino Portenta H7", [512, 128, 288, 64]),
        ("stm32h735", [320, 128, 32, 16]),
        ("stm32u575", [768, 16]),
        ("stm32f746", [320]),
        ("rp2040", [264]),
    ],
)
def test_the_regions_of_reference_manuals(name: str, kib: list[int]) -> None:
    assert [region.bytes for region in lc.device(name).regions] == [size * KIB for size in kib]


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("text", [BETWEEN, NET.format(d=100, e=200, f=60)])
def test_what_fits_two_regions_links_and_one_sample_more_is_refused(text: str, tmp_path: Path) -> None:
    """A program of more than the larger region alone, with the device's addresses and its own linker script."""
    net = written(tmp_path, text)
    found = lc.fit(net, on="stm32f407", procedures="bp", optimizer="sgd", plan="epilogue-update")
    (row,) = found.rows
    assert found.budget == 192 * KIB
    source = emitted(net, "stm32f407", B=row.largest, plan="epilogue-update", entry="step")
    ram = source.program.firmware.program_memory.ram
    assert 128 * KIB < ram <= 192 * KIB - STACK
    remembered = lc.memory(net, on="stm32f407", B=row.largest, optimizer="sgd", plan="epilogue-update")
    assert (remembered.peak, remembered.unfit) == (ram, "")
    assert remembered.fits
    assert remembered.fits["batch_size"] == row.largest
    with pytest.raises(InputError, match="in one region; available are 126,976 in SRAM and 65,536 in CCM"):
        emitted(net, "stm32f407", B=row.largest + 1, plan="epilogue-update", entry="step")
    assert lc.memory(net, on="stm32f407", B=row.largest + 1, optimizer="sgd", plan="epilogue-update").unfit
    needs_board()
    for path, content in source.files(tmp_path / "net.c").items():
        path.write_text(content, encoding="utf-8")
    (tmp_path / "main.c").write_text('#include "net.h"\nint main(void) { net_begin(); net_step(); return 0; }\n')
    built = build(BOARD, [tmp_path / "net.c", tmp_path / "main.c"], tmp_path, script=tmp_path / "net.ld")
    assert built.ram == ram
    lying = sections(built.path)
    assert lying[".bss_CCM"][1] == 0x10000000
    assert 0 < lying[".bss_CCM"][0] <= 64 * KIB
    assert 0x20000000 <= lying[".bss"][1] < 0x20000000 + 128 * KIB
    assert lying[".bss"][0] + lying[".data"][0] <= 128 * KIB - STACK


@pytest.mark.timeout(300)
@pytest.mark.parametrize("weights", [False, True])
def test_a_program_in_two_regions_runs_as_it_does_here(weights: bool, tmp_path: Path) -> None:
    """On an emulated board; weights that the program begins from are copied into their region too."""
    needs_board()
    net, board = written(tmp_path, BETWEEN), tmp_path / "mps2.toml"
    board.write_text(MPS2, encoding="utf-8")
    options: dict[str, object] = {"B": 4, "entry": "step"}
    if weights:
        draw = np.random.default_rng(2)
        shapes = {"W1": (160, 160), "W2": (160, 64), "W3": (64, 10)}
        arrays = {name: (draw.standard_normal(shape) / 12).astype(np.float32) for name, shape in shapes.items()}
        save_file(arrays, tmp_path / "weights.safetensors")
        options["weights"] = str(tmp_path / "weights.safetensors")
    source = emitted(net, str(board), **options)
    program = source.program
    sources = files(program.firmware, inputs_of(program), 3, tmp_path)
    if weights:  # a start must copy what the program begins from: it is not drawn anew
        text = (tmp_path / "main.c").read_text(encoding="utf-8")
        (tmp_path / "main.c").write_text(text.replace("    net_begin();\n", ""), encoding="utf-8")
    (tmp_path / "net.ld").write_text(source.script, encoding="utf-8")
    built = build(BOARD, sources, tmp_path, script=tmp_path / "net.ld")
    assert built.ram == program.firmware.program_memory.ram > 128 * KIB
    elsewhere = sections(built.path)[".data_PSRAM" if weights else ".bss_PSRAM"]
    assert elsewhere[0] >= 10 * KIB
    assert elsewhere[1] >= 0x21000000
    ran = _read(run(built), built)
    assert ran.numbers == on_host(sources, tmp_path).numbers


def test_an_array_larger_than_every_region_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """W1 takes 133,120 bytes of 192 KiB."""
    net = written(tmp_path, WIDE)
    found = lc.fit(net, on="stm32f407", procedures="bp", optimizer="sgd", plan="epilogue-update")
    assert not any(row.fits for row in found.rows)
    assert any(row.ram < 192 * KIB - STACK for row in found.rows)
    assert "do not fit in 126,976 in SRAM and 65,536 in CCM" in " ".join(found.advice)
    assert lc.fit(net, 192 * KIB, procedures="bp", optimizer="sgd", engine="c99", plan="epilogue-update").rows[0].fits
    for command in ("memory", "emit"):
        options = ["--backend", "c99"] if command == "emit" else []
        assert main([command, net, "--on", "stm32f407", "--optimizer", "sgd", "--B", "1", *options]) == 2
        printed = capsys.readouterr().err
        assert "W1 needs 133,120 in one region" in printed
        assert printed.count("\n") == 1


def test_a_command_writes_the_linker_script_beside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = written(tmp_path, BETWEEN)
    line = ["emit", net, "--backend", "c99", "--optimizer", "sgd", "--B", "4", "-o", str(tmp_path / "step.c")]
    assert main([*line, "--on", "stm32h747"]) == 0
    script = (tmp_path / "step.ld").read_text(encoding="utf-8")
    assert "AXI (rwx) : ORIGIN = 0x24000000, LENGTH = 524288" in script
    assert "PLACED_IN" not in (tmp_path / "step.c").read_text(encoding="utf-8")  # all fits the first region
    (tmp_path / "step.ld").unlink()
    assert main([*line, "--on", "rp2040"]) == 0  # its flash stands outside: the SDK has the script
    assert not (tmp_path / "step.ld").exists()
    capsys.readouterr()
    assert main([*line, "--on", "A100-SXM-80GB"]) == 2
    assert "--on requires a microcontroller" in capsys.readouterr().err
    for command in (["memory", net, "--B", "1"], ["fit", net]):  # the budget, not the device's memory
        assert main([*command, "--on", "stm32f407", "--budget", "1MB", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["budget"] == 10**6
    fit = ["fit", net, "--on", "stm32f407", "--optimizer", "sgd", "--procedures", "bp", "--plan", "epilogue-update"]
    assert main([*fit, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["regions"] == {"SRAM": 126976, "CCM": 65536}


@pytest.mark.parametrize(
    ("regions", "message"),
    [
        ("3", "regions must be a list"),
        ("[]", "regions must be a list"),
        ('[{ name = "A", bytes = 12 }]', "multiple of 8"),
        ('[{ name = "A", bytes = 8 }, { name = "A", bytes = 8 }]', "must be a unique word"),
        ('[{ name = "FLASH", bytes = 8 }]', "must be a unique word"),
        ('[{ name = "A b", bytes = 8 }]', "must be a unique word"),
        ('[{ name = "A", bytes = 8, begin = -8 }]', "an address of 32 bits"),
        ('[{ name = "A", bytes = 8, size = 8 }]', "a region has no 'size'"),
        ('[{ name = "A", bytes = 8, note = 3 }]', "one line of text"),
        ('[{ name = "A", bytes = 16, begin = 32 }, { name = "B", bytes = 8, begin = 40 }]', "A ends at 0x30, within B"),
        ('[{ name = "A", bytes = 16, begin = 0xFFFFFFF8 }]', "beyond 32 bits"),
        ('[{ name = "A", bytes = 16, begin = 8 }]\nflash_begin = 0\nflash_gb = 1e-6', "flash ends at 0x3e8, within A"),
    ],
)
def test_regions_that_are_wrong(regions: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(f'core = "Cortex-M4F"\nregions = {regions}\n', encoding="utf-8")
    with pytest.raises(InputError, match=message):
        lc.device(str(path))

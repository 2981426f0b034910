"""The example that stands on its own: its files are what is emitted, and it learns under QEMU."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import learncost as lc
from learncost.engines.boards import BOARDS
from learncost.engines.boards.board import HERE

EXAMPLE = Path(__file__).parent.parent / "examples" / "microcontroller"


def test_its_files_are_what_is_emitted() -> None:
    text = lc.emit(
        str(EXAMPLE / "net.table"), backend="c99", B=4, optimizer="momentum", plan="fused,epilogue-update", prefix="net"
    )

    def code(source: str) -> str:
        return source.partition("*/")[2]

    assert code(str(text)) == code((EXAMPLE / "net.c").read_text(encoding="utf-8"))
    assert code(text.header) == code((EXAMPLE / "net.h").read_text(encoding="utf-8"))
    for name in ("start.c", "board.h", "board.ld"):
        assert (EXAMPLE / name).read_bytes() == (HERE / name).read_bytes(), name


@pytest.mark.timeout(600)
def test_it_learns_in_256_kib(tmp_path: Path) -> None:
    """One epoch on an emulated Cortex-M4F; the weights come out, and go back into a program."""
    missing = BOARDS["cortex-m4f"].missing or ("" if shutil.which("make") else "make")
    if missing and os.environ.get("LEARNCOST_BOARD_TESTS") == "required":
        pytest.fail(f"tests of boards are required, and {missing} is not installed")
    if missing:
        pytest.skip(f"{missing} is not installed")
    pytest.importorskip("sklearn")
    for path in EXAMPLE.iterdir():
        if path.is_file():
            shutil.copy(path, tmp_path / path.name)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    subprocess.run([sys.executable, "digits.py"], cwd=tmp_path, check=True)
    for name in ("net.c", "net.h"):
        (tmp_path / name).touch()
    settings = "SETTINGS=-DEPOCHS=1 -DRATE=0.01f -DSEED=1 -DDUMP"
    ran = subprocess.run(
        ["make", "-s", settings], cwd=tmp_path, check=True, capture_output=True, text=True, env=environment
    )
    right = int(re.findall(r"right/10000 (\d+)", ran.stdout)[-1])
    assert right > 7000
    data, bss = re.findall(r"^\s*\d+\s+(\d+)\s+(\d+)\s+\d+\s+\w+\s+net.elf", ran.stdout, re.MULTILINE)[0]
    predicted = re.findall(r"NET_RAM_BYTES (\d+)", (EXAMPLE / "net.h").read_text(encoding="utf-8"))[0]
    assert int(data) + int(bss) == int(predicted)
    subprocess.run(
        [sys.executable, "weights.py", "out.safetensors"], cwd=tmp_path, check=True, input=ran.stdout, text=True
    )
    back = lc.emit(
        str(tmp_path / "net.table"),
        backend="c99",
        B=4,
        optimizer="momentum",
        prefix="net",
        weights=str(tmp_path / "out.safetensors"),
    )
    learned = back.program.training.weights["b3"]
    assert np.ptp(learned) > 0

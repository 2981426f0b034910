"""Instructions of the same products and the same step by CMSIS-DSP, AIfES, PULP-TrainLib, and by what is emitted.

    python benchmarks/beside_libraries.py --cmsis-dsp DIR --aifes DIR --trainlib DIR

Each DIR is a clone of ARM-software/CMSIS-DSP, Fraunhofer-IMS/AIfES_for_Arduino, pulp-platform/pulp-trainlib; what is
not named is left out. Everything runs on QEMU's Cortex-M4F, which counts instructions and knows no cycles.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median_low

import learncost as lc
from learncost.backends.c.c99 import REAL, product_text
from learncost.cli.boards import files, inputs_of, on_board
from learncost.cli.emit_c99 import FirmwareProgram
from learncost.engines.boards import BOARDS, LinkedProgram, run
from learncost.engines.boards.board import FLAGS, HERE

BESIDE = Path(__file__).with_name("beside")
NET = Path(__file__).parent.parent / "examples" / "microcontroller" / "net.table"
BOARD = BOARDS["cortex-m4f"]
PRODUCTS = ((4, 64, 64), (20, 32, 64), (20, 64, 32), (64, 4, 64), (32, 20, 64), (5, 8, 5))
"""Rows, summed places, columns: of the network's step and the transformer's, and one that no tile divides."""

PLACES = {"FLASH_BEGIN": 0, "RAM_BEGIN": 0x20000000, "FLASH_BYTES": 2**22, "RAM_BYTES": 2**22, "STACK_BYTES": 8192}

SECTIONS = ("-ffunction-sections", "-fdata-sections")

OURS = """\
#include <stdint.h>
#include "board.h"
typedef float real;
typedef int32_t place;
{product}
static float a[{rows} * {summed}], b[{summed} * {columns}], c[{rows} * {columns}];
int main(void) {{
    for (int i = 0; i < {rows} * {summed}; i++) a[i] = (float)(i % 7);
    for (int i = 0; i < {summed} * {columns}; i++) b[i] = (float)(i % 5);
    for (int s = 0; s < 5; s++) {{
        uint32_t begun = moment();
        for (int i = 0; i < 16; i++)
            product({rows}, {columns}, {summed}, a, {summed}, 1, b, {columns}, 1, 0, c, {columns});
        begun = instructions_since(begun);
        say("instructions ");
        say_number(begun / 16);
        say("\\n");
    }}
    return 0;
}}
"""


def executed(sources: Sequence[Path], flags: Sequence[str], folder: Path) -> str:
    """What a program says on the emulated board."""
    path, start = folder / "program.elf", folder / "start.o"
    _compiled(*FLAGS, "-ffreestanding", "-c", str(HERE / "start.c"), "-o", str(start))
    places = [f"-Wl,--defsym={name}={value:#x}" for name, value in PLACES.items()]
    linked = ("-nostartfiles", "-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments", f"-T{HERE / 'board.ld'}", *places)
    libraries = ("-lm", "-lc", "-lgcc", "-o", str(path))
    _compiled("-w", *flags, *SECTIONS, *map(str, (*sources, BESIDE / "system.c", start)), *linked, *libraries)
    return run(LinkedProgram(BOARD, path, 0, 0, 0))


def _compiled(*arguments: str) -> None:
    command = [f"{BOARD.prefix}gcc", *BOARD.flags, f"-I{HERE}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        errors = done.stderr.splitlines()
        sys.exit(next((line for line in errors if "error" in line or "undefined" in line), errors[-1]))


def instructions(printed: str) -> int:
    """The median of those that were told."""
    return int(median_low(map(int, re.findall(r"instructions (\d+)", printed))))


def product_rows(cmsis: Path, folder: Path) -> Iterator[str]:
    """Instructions a MACC of products: theirs with its usual flags, ours with -O2, ours with -O3 and contraction.

    Ours is called as in a file with many products, which the compiler writes for no single size.
    """
    theirs = [BESIDE / "cmsis_dsp.c", cmsis / "Source" / "MatrixFunctions" / "arm_mat_mult_f32.c"]
    include = [f"-I{cmsis / 'Include'}", f"-I{cmsis / 'PrivateInclude'}", "-D__GNUC_PYTHON__"]
    for rows, summed, columns in PRODUCTS:
        sizes = [f"-DROWS={rows}", f"-DSUMMED={summed}", f"-DCOLUMNS={columns}"]
        text = folder / "ours.c"
        product = product_text(REAL, REAL).replace("static void", "__attribute__((noipa)) static void", 1)
        text.write_text(OURS.format(product=product, rows=rows, summed=summed, columns=columns), encoding="utf-8")
        counts = [
            executed(theirs, [*include, *sizes, "-Ofast", "-DARM_MATH_LOOPUNROLL"], folder),
            executed([text], ["-std=c99", "-O2"], folder),
            executed([text], ["-std=c99", "-O3", "-ffp-contract=fast"], folder),
        ]
        maccs = rows * summed * columns
        each = "  ".join(f"{instructions(printed) / maccs:5.2f}" for printed in counts)
        yield f"{rows} x {summed} x {columns}: {each} a MACC by CMSIS-DSP, ours with -O2, ours with -O3 and contraction"


def our_step(
    batch: int, folder: Path, plan: str | None = None, flags: Sequence[str] = ()
) -> tuple[int, FirmwareProgram]:
    """Instructions of our step on so many samples; without a plan with that of the smallest arena."""
    more = {"B": batch, "optimizer": "sgd", "entry": "step", "plan": plan, "prefix": "net"}
    program = lc.emit(str(NET), backend="c99", **more).program
    sources = files(program.firmware, inputs_of(program), 5, folder)
    return on_board(BOARD, sources, folder, 2**22, 2**22, flags).instructions, program


def aifes_row(aifes: Path, folder: Path) -> str:
    """Its step on four samples."""
    sources = [BESIDE / "aifes.c", *sorted((aifes / "src").rglob("*.c"))]
    printed = executed(sources, [f"-I{aifes / 'src'}", "-O2"], folder)
    ours, program = our_step(4, folder)
    held = re.findall(r"bytes (\d+)", printed)[0]
    return (
        f"a step on 4 samples: AIfES {instructions(printed):,} instructions, {int(held):,} bytes of parameters and "
        f"training memory; ours {ours:,} instructions, {program.firmware.rooms.ram:,} bytes"
    )


def trainlib_rows(trainlib: Path, folder: Path) -> Iterator[str]:
    """Its step on one sample: with its plain products, and with those of its list that need the fewest instructions."""
    library = trainlib / "lib"
    include = [f"-I{BESIDE}", f"-I{library / 'include'}", "-O2"]

    def compiled(*flags: str) -> list[Path]:
        """The library, once for all choices of its products."""
        objects = []
        for name in ("linear", "matmul", "act", "losses", "optimizers", "train_utils"):
            objects.append(folder / f"{name}{len(flags)}.o")
            source = library / "sources" / f"pulp_{name}_fp32.c"
            _compiled("-w", *include, *flags, *SECTIONS, "-c", str(source), "-o", str(objects[-1]))
        return objects

    def step(objects: Sequence[Path], chosen: Sequence[int]) -> int:
        defined = [f"-D{name}={number}" for name, number in zip(("FW", "WG", "IG"), chosen, strict=True)]
        return instructions(executed([BESIDE / "trainlib.c", *objects], [*include, *defined], folder))

    plain = step(compiled(), (0, 0, 0))
    objects, best = compiled("-DOPTIMIZE"), [0, 0, 0]
    for which in range(3):
        tried = [[kind if place == which else number for place, number in enumerate(best)] for kind in range(KINDS)]
        best = min(tried, key=lambda chosen: step(objects, chosen))
    yield f"a step on 1 sample: PULP-TrainLib on one core {plain:,} instructions with its plain products"
    yield f"    {step(objects, best):,} with the products {best} of its list"
    yield f"    {8 * WEIGHTS:,} bytes of weights and gradients"
    for plan in ("fused-update", "epilogue-update"):
        ours, program = our_step(1, folder, plan)
        contracted, _ = our_step(1, folder, plan, ["-ffp-contract=fast"])
        printed = f"{contracted:,} where products and sums are contracted, as theirs are"
        yield f"    ours under {plan} {ours:,} instructions, {printed}, {program.firmware.rooms.ram:,} bytes in all"


WEIGHTS = 64 * 64 + 64 * 32 + 32 * 10 + 64 + 32 + 10

KINDS = 21
"""Products of PULP-TrainLib's list that are tried (lib/include/mm_manager_list.txt)."""


def main() -> None:
    """Print what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("cmsis-dsp", "aifes", "trainlib"):
        parser.add_argument(f"--{name}", type=Path, metavar="DIR", help="its clone")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.cmsis_dsp:
            for row in product_rows(asked.cmsis_dsp, folder):
                print(row, flush=True)
        if asked.aifes:
            print(aifes_row(asked.aifes, folder), flush=True)
        if asked.trainlib:
            for row in trainlib_rows(asked.trainlib, folder):
                print(row, flush=True)


if __name__ == "__main__":
    main()

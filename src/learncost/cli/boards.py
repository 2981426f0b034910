"""Comparison of a C99 program on emulated boards with this machine: results bit for bit, predicted bytes, stack."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median_low
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from learncost.backends.c99.layout import given
from learncost.cost_models import Book, price
from learncost.devices.device import STACK
from learncost.engines.boards import BOARDS, Board, LinkedProgram, build, run
from learncost.engines.computed_inputs import names_computed
from learncost.engines.inputs import random_batch
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.verification.report import Check

if TYPE_CHECKING:
    from learncost.backends.c99 import Firmware
    from learncost.cli.emit_c99 import FirmwareProgram

MEMORY = 2**22
"""Bytes of RAM and of flash that the emulated boards have."""

HOST = """\
#include <stdio.h>
#include "board.h"
void say(const char *text) { fputs(text, stdout); }
void say_number(uint32_t number) { printf("%u", (unsigned)number); }
void say_bits(uint32_t bits) { printf("%08x", (unsigned)bits); }
uint32_t moment(void) { return 0; }
uint32_t instructions_since(uint32_t begun) { return begun; }
uint32_t stack_used(void) { return 0; }
"""
"""The board's functions on this machine."""

MAIN = """\
#include "board.h"
#include "{prefix}.h"

{inputs}

static uint32_t bits_of({prefix}_real x) {{
    union {{ {prefix}_real value; uint32_t bits; }} u;
    u.value = x;
    return u.bits;
}}

static void say_array(const char *name, const void *array, int32_t size) {{
    const uint8_t *bytes = array;
    uint32_t hash = 2166136261u;
    for (int32_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 16777619u;
    say(name);
    say(" ");
    say_bits(hash);
    say("\\n");
}}

int main(void) {{
    {prefix}_seed = 1; /* a linker leaves out what nobody names */
    {prefix}_begin();
    for (int step = 0; step < {steps}; step++) {{
        uint32_t begun;
{copies}
        begun = moment();
        {prefix}_step();
        begun = instructions_since(begun);
        say("loss ");
        say_bits(bits_of({prefix}_loss()));
        say("\\ninstructions ");
        say_number(begun);
        say("\\n");
    }}
{arrays}
    say("stack ");
    say_number(stack_used());
    say("\\n");
    return 0;
}}
"""


_WHOLE = {"int64": "int32_t", "int32": "int32_t", "bool": "uint8_t", "uint8": "uint8_t", "int8": "int8_t"}
"""The types of integer arrays in C."""


@dataclass(frozen=True)
class BoardRun:
    """The output of a program on a board, and its linking; `board` is empty on this machine.

    numbers       the bits of every loss and weight
    instructions  the median of a step's
    """

    numbers: tuple[str, ...]
    instructions: int
    stack: int
    built: LinkedProgram | None = None


def files(firmware: Firmware, inputs: Mapping[str, Any], steps: int, folder: Path) -> list[Path]:
    """Return the program's files and a main function that runs steps on inputs, by their names in the table."""
    prefix, names = firmware.prefix, firmware.names
    every = next(iter(firmware.layouts.values()))
    dtypes = {name: every.dtypes[name] for name in inputs}
    constants, copies = [], []
    for name, values in inputs.items():
        flat = np.asarray(values).ravel()
        kind = _WHOLE.get(dtypes[name], "uint32_t")
        if kind == "uint32_t":
            flat = flat.astype(np.float32).view(np.uint32)
        numbers = ", ".join(f"{int(number)}{'u' if kind == 'uint32_t' else ''}" for number in flat)
        constants.append(f"static const {kind} given_{names[name]}[{flat.size}] = {{{numbers}}};")
        copy = f"{names[name]}[i] = given_{names[name]}[i];"
        if kind == "uint32_t":
            copy = (
                f"{{ union {{ uint32_t bits; {prefix}_real value; }} u; u.bits = given_{names[name]}[i]; "
                f"{names[name]}[i] = u.value; }}"
            )
        copies.append(f"        for (int32_t i = 0; i < {flat.size}; i++) {copy}")
    arrays = [
        f'    say_array("{name}", {names[name]}, (int32_t)sizeof {names[name]});'
        for name, (kind, _, _) in firmware.given.items()
        if kind == "weights"
    ]
    text = MAIN.format(
        prefix=prefix, inputs="\n".join(constants), steps=steps, copies="\n".join(copies), arrays="\n".join(arrays)
    )
    written = {f"{prefix}.c": firmware.source, f"{prefix}.h": firmware.header, "main.c": text}
    for name, content in written.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / f"{prefix}.c", folder / "main.c"]


def on_host(sources: Sequence[Path], folder: Path) -> BoardRun:
    """Compile the program for this machine, and run it."""
    from learncost.engines.boards.board import FLAGS, HERE

    (folder / "host.c").write_text(HOST, encoding="utf-8")
    path = folder / "host"
    command = ["cc", *FLAGS, f"-I{folder}", f"-I{HERE}", *map(str, sources), str(folder / "host.c"), "-o", str(path)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
        printed = subprocess.run([str(path)], check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise InputError(f"the program does not compile or run here: {getattr(error, 'stderr', '') or error}") from None
    return _read(printed)


def on_board(
    board: Board,
    sources: Sequence[Path],
    folder: Path,
    ram: int = 2**18,
    flash: int = 2**21,
    flags: Sequence[str] = (),
) -> BoardRun:
    """Compile the program for an emulated board with the given bytes of memory, and run it there."""
    built = build(board, sources, folder, ram, flash, flags)
    return _read(run(built, 600), built)


def _read(printed: str, built: LinkedProgram | None = None) -> BoardRun:
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    counts: dict[str, list[int]] = {}
    for line in lines:
        if line.startswith(("instructions ", "stack ")):
            counts.setdefault(line.split()[0], []).append(int(line.split()[1]))
    numbers = tuple(line for line in lines if not line.startswith(("instructions ", "stack ")))
    if "fault" in lines or "stack" not in counts:
        raise InputError(f"the program ended with a fault after {len(numbers)} numbers")
    return BoardRun(numbers, int(median_low(counts["instructions"])), counts["stack"][0], built)


def inputs_of(program: FirmwareProgram) -> dict[str, Any]:
    """Return a random batch for a program, by the names of its inputs in the table."""
    training = program.training
    batch = random_batch(training.model, program.sizes)
    values = dict(training.prepare(**batch).values) | training.inputs(**batch)
    fixed = names_computed(training.model) | training.constants.keys()
    groups = given([*program.firmware.layouts.values()], frozenset(fixed))
    return {
        name: values[name]
        for name, (kind, axes, _) in groups.items()
        if kind == "inputs" and axes and name in program.firmware.names
    }


def checks(subject: str, program: FirmwareProgram, steps: int = 3) -> Iterator[Check]:
    """Compare the results of a program on emulated boards with this machine; skipped if an emulator is missing.

    With microbatches each is a call of the program's step, and all but the last only accumulate.
    """
    firmware = program.firmware
    parts = program.training.settings.accumulate
    call = "step" if parts == 1 else "microbatch"
    maccs = price(next(iter(program.tables.values())), program.sizes, Book("run", "", "", "executed")).maccs
    inputs = inputs_of(program)
    here: BoardRun | None = None
    with TemporaryDirectory() as name:
        folder = Path(name)
        for board in BOARDS.values():
            compared = f"on an emulated {board.name}"
            if board.missing:
                yield Check(subject, compared, f"{board.missing} is not installed", None)
                continue
            program_memory = firmware.program_memory
            if max(program_memory.ram + STACK, program_memory.constants) > MEMORY:
                takes = f"{program_memory.ram:,} bytes of variables and {program_memory.constants:,} of constants"
                yield Check(subject, compared, f"{takes}: it has {MEMORY:,} for each", None)
                continue
            sources = files(firmware, inputs, steps * parts, folder)
            if here is None:
                here = on_host(sources, folder)
            ram = max(2**18, -(-(firmware.program_memory.ram + 2**14) // 1024) * 1024)
            run = on_board(board, sources, folder, min(ram, MEMORY), MEMORY)
            assert run.built is not None
            same = run.numbers == here.numbers
            text = (
                f"{len(here.numbers)} losses and weights of {steps} steps "
                f"{'are' if same else 'are not'} this machine's, bit for bit; .data and .bss take {run.built.ram:,} "
                f"bytes, {firmware.program_memory.ram:,} predicted; stack {run.stack:,}, flash "
                f"{run.built.code:,} bytes; "
                f"{run.instructions:,} instructions a {call}, {run.instructions / max(maccs, 1):.2f} a MACC"
            )
            yield Check(subject, compared, text, same and run.built.ram == firmware.program_memory.ram)

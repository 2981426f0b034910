"""Compile a freestanding C99 program with a small `main`, and run it on this machine."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from learncost.backends.c99 import Firmware
from learncost.backends.c99.functions import known
from learncost.engines.compiler import compiler
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.polynomial import shape_of

Arrays = Mapping[str, Any]

NUMBERS = ("fp32", "fp64", "int32")
"""The number types of programs."""

STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wconversion", "-Wdouble-promotion", "-Werror")
"""Flags with which a program compiles without warnings."""

SANITIZED = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

TYPES = {"fp32": "<f4", "fp64": "<f8", "int64": "<i4", "uint8": "<u1", "bool": "<u1", "int8": "<i1", "int32": "<i4"}
"""NumPy's types of a program's arrays, by their types in the table."""

_COUNTING = (
    *("exp", "log", "tanh", "erf", "sqrt", "sin", "cos", "atan", "atan2", "log1p", "expm1", "floor", "fabs", "pow"),
    *("hashed", "coin", "shift", "bits"),
)
_INNER = (
    *("scaled_real", "split_real", "expm1_near", "power_of_two", "sin_near", "cos_near", "atan_near", "quarter_turns"),
)
WHOLE = (*(f"{name}_real" for name in _COUNTING), *_INNER)
"""Functions that count as one operation each, and their helpers."""

_COUNTED = Path(__file__).with_name("counted.h")


@dataclass(frozen=True)
class FirmwareRun:
    """The results of a program: the loss of every step, changed arrays by table names, final scores."""

    losses: tuple[float, ...]
    arrays: dict[str, Any]
    scores: Any


def c_compiler() -> tuple[str, ...]:
    """Return the C compiler of this machine. Raises `InputError` without one."""
    if (command := compiler()) is None:
        raise InputError("no C compiler found: install one of cc, gcc, clang")
    return tuple(command)


def run(program: Firmware, begin: Arrays, batches: Sequence[Arrays], options: Sequence[str] = ("-O1",)) -> FirmwareRun:
    """Run a program's steps on batches, from named weights and states, then a prediction.

    options  compiler options in addition to `STRICT`
    Raises `InputError` for compiler errors and sanitizer findings.
    """
    texts = {**_texts(program), "main.c": _main(program, len(batches))}
    command = (*c_compiler(), *STRICT, *options, "main.c", f"{program.prefix}.c")
    output = _executed(texts, command, _bytes(program, begin, batches))
    at = 0

    def taken(dtype: str, form: tuple[int, ...]) -> Any:
        nonlocal at
        array = np.frombuffer(output, TYPES[dtype], int(np.prod(form)), at).reshape(form)
        at += array.nbytes
        return array

    losses = taken(program.dtype, (len(batches),)) if _has(program, "loss") else ()
    arrays = {name: taken(program.given[name][2], shape(program, name)) for name in changed(program)}
    scores = None
    if "predict" in program.layouts:
        layout = program.layouts["predict"]
        scores = taken(program.dtype, layout.shape(layout.table.axes[layout.table.outputs[0]]))
    assert at == len(output), (at, len(output))
    return FirmwareRun(tuple(map(float, losses)), arrays, scores)


def counted(program: Firmware, begin: Arrays, batches: Sequence[Arrays]) -> dict[int, tuple[int, int]]:
    """Count MACCs and FLOPs of steps by the numbers of their equations.

    The program is compiled with a counting number type. Raises `InputError` without a C++ compiler.
    """
    source = program.source
    for name, text in known(program.dtype).items():
        if name in WHOLE:
            source = source.replace(text, "")
    source = source.replace("typedef int32_t whole;", "typedef counted whole;")
    source = re.sub(r"(?m)^( *)/\* (\d+)\. ", r"\1counted_at(\2); /* \2. ", source)
    header = re.sub(r"typedef \w+ (\w+_real);", r'#include "counted.h"\ntypedef counted \1;', program.header)
    header = header.replace('extern "C" {', "").replace("#ifdef __cplusplus\n}\n#endif", "")
    texts = {f"{program.prefix}.h": header, f"{program.prefix}.c": source}
    texts |= {"counted.h": _COUNTED.read_text(encoding="utf-8"), "main.cpp": _main(program, len(batches), True)}
    compilers = "c++", "g++", "clang++"
    if (found := next(filter(shutil.which, compilers), None)) is None:
        raise InputError(f"no C++ compiler found: install one of {', '.join(compilers)}")
    command = (found, "-std=c++17", "-w", "-O1", "main.cpp")
    output = _executed(texts, command, _bytes(program, begin, batches, "<f8"))
    rows = (line.split() for line in output.decode().splitlines())
    return {int(number): (int(maccs), int(flops)) for number, maccs, flops in rows}


@dataclass(frozen=True)
class Object:
    """The undefined symbols of a compiled program, and the bytes of its variables and constants.

    between  the alignment padding in its sections of variables
    """

    undefined: tuple[str, ...]
    ram: int
    constants: int
    between: int


def compiled(program: Firmware) -> Object:
    """Compile a program to an object with -std=c99 -O2 and no other flag."""
    symbols, sections = _symbols(program)
    rows = [line.split() for line in symbols.splitlines()]
    sizes = [(row[2].lower(), int(row[1], 16)) for row in rows if len(row) == 4]
    ram, constants = (sum(size for kind, size in sizes if kind in kinds) for kinds in ("bd", "r"))
    _, data, bss, *_ = sections.splitlines()[1].split()
    return Object(tuple(row[-1] for row in rows if row[-2] == "U"), ram, constants, int(data) + int(bss) - ram)


def _symbols(program: Firmware) -> tuple[str, str]:
    """Return the symbols and sizes that `nm` and `size` report; tables of addresses count as constants, as on a
    device."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, _texts(program))
        _called(folder, (*c_compiler(), "-std=c99", "-O2", "-fno-pic", "-c", f"{program.prefix}.c", "-o", "program.o"))
        return _called(folder, ("nm", "-S", "program.o")).decode(), _called(folder, ("size", "program.o")).decode()


def changed(program: Firmware) -> tuple[str, ...]:
    """Return the arrays that a step changes, by their names in the table."""
    return tuple(name for name, (kind, _, _) in program.given.items() if kind in ("weights", "states"))


def fed(program: Firmware) -> tuple[str, ...]:
    """Return the arrays that every step receives."""
    return tuple(name for name, (kind, _, _) in program.given.items() if kind == "inputs")


def _has(program: Firmware, output: str) -> bool:
    return any(output in layout.table.outputs for entry, layout in program.layouts.items() if entry != "predict")


def shape(program: Firmware, name: str) -> tuple[int, ...]:
    """Return the shape of an input array."""
    return shape_of(program.given[name][1], next(iter(program.layouts.values())).sizes)


def _texts(program: Firmware) -> dict[str, str]:
    return {f"{program.prefix}.c": program.source, f"{program.prefix}.h": program.header}


def _main(program: Firmware, steps: int, counts: bool = False) -> str:
    """Return the C code of a `main` that reads the learning rate, weights, states and inputs of every step, and writes
    the results that `run` reads."""
    prefix, names = program.prefix, program.names
    size = {name: int(np.prod(shape(program, name))) for name in (*changed(program), *fed(program))}
    trains = any(entry != "predict" for entry in program.layouts)

    def each(verb: str, of: Sequence[str]) -> list[str]:
        return [f"    {verb}({names[name]}, {size[name]});" for name in of]

    lines = [*([f"    take(&{prefix}_learning_rate, 1);"] if trains else []), *each("take", changed(program))]
    lines.append(f"    for (int step = 0; step < {steps}; step++) {{")
    lines += [f"    {line}" for line in each("take", fed(program))]
    lines += [f"        {prefix}_step();"] if trains else []
    if _has(program, "loss") and not counts:
        lines += [f"        const {prefix}_real loss = {prefix}_loss();", "        put(&loss, 1);"]
    lines.append("    }")
    if counts:
        lines.append("    counted_report();")
        return f'#include "{prefix}.c"\n{_TAKE_COUNTED}\nint main() {{\n' + "\n".join(lines) + "\n    return 0;\n}\n"
    lines += each("put", changed(program))
    if "predict" in program.layouts:
        layout = program.layouts["predict"]
        points = int(np.prod(layout.shape(layout.table.axes[layout.table.outputs[0]])))
        lines.append(f"    put({prefix}_predict(), {points});")
    body = "\n".join(lines)
    head = f'#include <stdio.h>\n#include <stdlib.h>\n#include "{prefix}.h"\n'
    return f"{head}{_TAKE_AND_PUT}\nint main(void) {{\n{body}\n    return 0;\n}}\n"


_TAKE_AND_PUT = """\
static void got(size_t size, size_t wanted) { if (size != wanted) exit(3); }
#define take(array, count) got(fread(array, sizeof *(array), (size_t)(count), stdin), (size_t)(count))
#define put(array, count) got(fwrite(array, sizeof *(array), (size_t)(count), stdout), (size_t)(count))
"""

_TAKE_COUNTED = """\
template <class T> static T taken() {
    T x;
    if (!fread(&x, sizeof x, 1, stdin)) throw 1;
    return x;
}
static void take(counted *to, int count) { for (int i = 0; i < count; i++) to[i] = taken<double>(); }
template <class T> static void take(T *to, int count) { for (int i = 0; i < count; i++) to[i] = taken<T>(); }
"""


def _bytes(program: Firmware, begin: Arrays, batches: Sequence[Arrays], real: str = "") -> bytes:
    """Return the bytes that `main` reads, optionally with all numbers in another type."""

    def spelled(name: str, array: Any) -> bytes:
        dtype = program.given[name][2]
        return np.ascontiguousarray(array, real if real and dtype in NUMBERS else TYPES[dtype]).tobytes()

    rate = np.asarray(begin.get("lr", 0.01), real or TYPES[program.dtype]).tobytes()
    trains = any(entry != "predict" for entry in program.layouts)
    parts = [rate] if trains else []
    parts += [spelled(name, begin[name]) for name in changed(program)]
    parts += [spelled(name, batch[name]) for batch in batches for name in fed(program)]
    return b"".join(parts)


def _executed(texts: Mapping[str, str], command: Sequence[str], given: bytes) -> bytes:
    """Run a compiled program on input bytes and return its output."""
    with tempfile.TemporaryDirectory() as folder:
        _write(folder, texts)
        _called(folder, (*command, "-o", "program"))
        return _called(folder, ("./program",), given)


def _write(folder: str, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        Path(folder, name).write_text(text, encoding="utf-8")


def _called(folder: str, command: Sequence[str], given: bytes = b"") -> bytes:
    done = subprocess.run(command, cwd=folder, input=given, capture_output=True, check=False)
    if done.returncode:
        errors = done.stderr.decode(errors="replace").splitlines()
        message = next((line for line in errors if "error" in line.lower()), f"exit code {done.returncode}")
        raise InputError(f"{Path(command[0]).name}: {message.strip()[:200]}")
    return done.stdout

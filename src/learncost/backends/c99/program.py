"""Print a step, a prediction or both as one self-contained C99 file with its header; all memory is static."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from learncost.backends.c.c99 import BASIS, WHOLE_BASIS, products
from learncost.backends.c99 import masks
from learncost.backends.c99.functions import called, check_written, functions, initial, initializer, known
from learncost.backends.c99.layout import (
    ProgramMemory,
    alone,
    arrays,
    counted,
    declared,
    given,
    placed,
    together,
    write_c99,
)
from learncost.backends.c99.steps import CODES, StepsWriter
from learncost.backends.expression import Identifiers
from learncost.backends.placed.kernels import KernelTable
from learncost.backends.placed.layout import InPlaceLayout
from learncost.ir.dataclass import dataclass, field
from learncost.ir.table import Table
from learncost.program.arena import ARENA, Region, label
from learncost.program.calls import Call

REAL = {"fp32": "float", "fp64": "double", "int32": "int32_t"}

WHOLE = "int32"
"""The type of integer-only programs."""

RESERVED = (
    *("arena", "places", "flags", "drawn", "product", "product_real_codes", "product_codes_real"),
    *("product_codes_codes", "real", "whole", "place", "main", "loss", "t", "iteration", "odd", "LOWEST", "enum"),
    *("float", "int", "char", "void", "static", "const", "auto", "default", "do", "else", "extern", "for", "goto"),
    *("inline", "long", "register", "restrict", "short", "signed", "sizeof", "struct", "switch", "typedef", "union"),
    *("unsigned", "volatile", "while", "break", "case", "continue", "if", "return", "memcpy", "memset", "double"),
    *("int8_t", "int32_t", "uint32_t", "uint8_t", "int64_t", "uint64_t", "PLACED", "PLACED_IN"),
)
"""Reserved names of functions and arrays in a file."""


COMPILERS = """\
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF /* what gcc does by -std=c99 */
#endif

#ifdef __GNUC__ /* an array begins where its type may: else gcc aligns some to 8 bytes, with a gap before */
#define PLACED __attribute__((used))
#else
#define PLACED
#endif
"""
"""Options of compilers: to round every product, and to leave arrays in RAM where their types put them.

gcc aligns those that it alone knows for pairs of words (`-ftree-slp-vectorize`); others may know one that is `used`.
"""


REGIONS = """
#if defined(__GNUC__) && defined(__ELF__) /* sections that the linker script puts into other regions of RAM */
#define PLACED_IN(section_name) __attribute__((used, section(section_name)))
#else
#define PLACED_IN(section_name) PLACED
#endif
"""
"""The section attribute of arrays in regions other than the first."""


def _public(prefix: str, tables: Iterable[Table]) -> tuple[str, ...]:
    """Return the other names that the header declares, which arrays may not have."""
    names = ["real", "steps", "seed", "learning_rate", "begin", "step", "gather", "update", "loss", "predict"]
    names += [f"output_{place}" for table in tables for place in range(2, len(table.outputs) + 1)]
    upper = prefix.upper()
    return *(f"{prefix}_{name}" for name in names), f"{upper}_H", f"{upper}_RAM_BYTES", f"{upper}_FLASH_BYTES"


@dataclass(frozen=True)
class FirmwareInputs:
    """The inputs of a program from the model, in addition to its tables.

    values   arrays of what never changes, by name: frozen weights, positions, numbers; of others what they begin with
    begins   of what learns: mean and deviation of what it is drawn from
    fixed    inputs that never change though the table does not say so
    parts    microbatches of a step, where it is in two halves
    dropout  the probability that a mask has 0
    regions  of RAM over which the arrays are laid out; none where all are in one
    stays    trained values that the program holds and continues from
    """

    values: Mapping[str, Any]
    begins: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    parts: int = 1
    dropout: float = 0.0
    regions: Sequence[Region] = ()
    stays: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Firmware:
    """A program in two files, its memory and its layout.

    names  what C calls the arrays and the learning rate, by their names in the table
    given  of what these hold: its group in `ProgramMemory`, its axes, its type
    calls  by the numbers before their equations; `entries` says in which entry each is
    places  the regions of RAM with their arrays, if regions were given
    """

    source: str
    header: str
    prefix: str
    program_memory: ProgramMemory
    dtype: str
    names: Mapping[str, str]
    given: Mapping[str, tuple[str, tuple[str, ...], str]]
    layouts: Mapping[str, InPlaceLayout]
    calls: Mapping[int, Call]
    entries: Mapping[int, str]
    places: Mapping[str, str]


def firmware(
    tables: Mapping[str, Table],
    sizes: Mapping[str, int],
    dtype: str,
    prefix: str,
    content: FirmwareInputs,
    title: Sequence[str] = (),
) -> Firmware:
    """Return the program of steps by entry: step, predict, or both; gather and update for microbatches.

    title  paragraphs of what it is
    Raises `InputError` for a line that cannot be computed in place.
    """
    kernels = KernelTable(sizes, write_c99, (*RESERVED, *known(dtype), *_public(prefix, tables.values())))
    layouts = {entry: alone(table, sizes, dtype, kernels) for entry, table in tables.items()}
    return _FirmwareWriter(layouts, dtype, prefix, content, title).written()


class _FirmwareWriter:
    def __init__(
        self,
        layouts: Mapping[str, InPlaceLayout],
        dtype: str,
        prefix: str,
        content: FirmwareInputs,
        title: Sequence[str],
    ) -> None:
        self.layouts, self.dtype, self.prefix, self.content, self.title = layouts, dtype, prefix, content, title
        every = [*layouts.values()]
        self.given = given(every, content.fixed)
        self.program_memory = counted(every, content.fixed)
        self.places = placed(every, content.fixed, content.regions)
        self.sizes = every[0].sizes
        self.kernels = every[0].kernels
        taken = (*RESERVED, *known(dtype), *_public(prefix, [layout.table for layout in every]))
        self.identifiers = Identifiers((*taken, *(function.name for function in self.kernels.functions)))
        tables = [layout.table for layout in every]
        self.values = {name: value for table in reversed(tables) for name, value in table.known.items()}
        self.names = {name: self._name(name) for name in self.given}

    def _name(self, name: str) -> str:
        value = self.values[name]
        if value.role == "number":
            return f"{self.prefix}_learning_rate" if value.of == "lr" else self.identifiers.of(name)
        return self.identifiers.of(f"{self.prefix}.{name}")

    def written(self) -> Firmware:
        spell = self._spelled
        constant = {spell(name) for name, (kind, _, _) in self.given.items() if kind == "constants"}
        calls: dict[int, Call] = {}
        steps = {
            entry: StepsWriter(layout, spell, constant.__contains__, self.identifiers, calls)
            for entry, layout in self.layouts.items()
        }
        entries, entry_of = [], dict[int, str]()
        for entry, step in steps.items():
            entries.append(self._entry(entry, step))
            entry_of |= {number: entry for number in calls if number not in entry_of}
        tables = [table for step in steps.values() for table in step.tables.values()]
        iterations = [text for step in steps.values() for text in step.texts]
        kernels = [function.text for function in self.kernels.functions]
        begin = self._begin()
        body = "\n".join((*tables, *kernels, *iterations, *entries, *self._halves(), *begin))
        check_written(body, self.dtype)
        used = functions(body, self.dtype)
        arenas = [
            f"static {_ARENA_TYPES[n][0]} {n}[{declared(points, _ARENA_TYPES[n][1] or self.dtype)}]"
            f"{self._placed(f'{ARENA}{n}')};"
            for n, points in together(layout.arenas for layout in self.layouts.values()).items()
        ]
        statics = [*self._variables(), *arenas]
        basis = WHOLE_BASIS if self.dtype == WHOLE else BASIS
        parts = [
            self._head(),
            f'#include "{self.prefix}.h"\n\ntypedef {self.prefix}_real real;\n{basis}',
            COMPILERS + (REGIONS if len({*self.places.values()}) > 1 else ""),
            "\n".join(statics) + "\n" if statics else "",
            *used,
            *products(called(body)),
            body,
            "\n".join(self._definitions()),
        ]
        return Firmware(
            "\n".join(filter(None, parts)),
            self._header(),
            self.prefix,
            self.program_memory,
            self.dtype,
            self.names,
            self.given,
            self.layouts,
            calls,
            entry_of,
            self.places,
        )

    def _spelled(self, name: str) -> str:
        """Return the C name of an input array; a number is an array of one."""
        text = self.names[name]
        return f"&{text}" if self._is_number(name) else text

    def _is_number(self, name: str) -> bool:
        """Return whether it is a scalar in C: trained and externally written values are arrays, even of one element."""
        kind, axes, _ = self.given[name]
        return not axes and kind in ("variables", "constants")

    def _points(self, name: str) -> int:
        _, axes, _ = self.given[name]
        return prod(next(iter(self.layouts.values())).shape(axes))

    # Entries.

    def _entry(self, entry: str, step: StepsWriter) -> str:
        lines: list[str] = []
        prefix = self.prefix
        if entry in ("step", "update"):
            lines += [f"{prefix}_steps++;", *self._numbers()]
        if entry == "gather":
            lines += self._draws(f"({prefix}_steps + 1u)")
        if entry in ("step", "gather"):
            lines += self._masks(entry)
        lines += step.body()
        table = self.layouts[entry].table
        head = f"void {prefix}_{entry}(void)"
        if entry == "predict":
            head = f"const real *{prefix}_predict(void)"
            lines.append(f"return {step.result(table.outputs[0])};")
        elif "loss" in table.outputs:
            lines.append(f"loss {'+' * (entry == 'gather')}= *({step.result('loss')});")
        if entry == "gather":
            lines.insert(0, "if (!gathered++) loss = 0;")
        if entry == "update":
            names = [name for name in self.given if self.values[name].role == "gathered"]
            lines += [f"zero({self._points(name)}, {self.names[name]});" for name in names]
            lines.append("gathered = 0;")
        written = [(head, lines)]
        if entry == "predict":
            outputs = ((place, f"return {step.result(name)};") for place, name in enumerate(table.outputs, 1))
            written += [(f"const real *{prefix}_output_{place}(void)", [line]) for place, line in outputs if place > 1]
        bodies = ((head, "\n".join(f"    {line}".rstrip() for line in lines)) for head, lines in written)
        return "\n".join(f"{head} {{\n{body}\n}}\n" for head, body in bodies)

    def _numbers(self) -> Iterator[str]:
        """Return the numbers derived from the step count and the learning rate."""
        by_role = {self.values[name].of: name for name in self.given if self.values[name].role == "number"}

        def spelled(of: str) -> str:
            return self.names[by_role[of]]

        for number, rate in (("k1", "c1"), ("k2", "c2")):
            if number in by_role:
                yield f"{spelled(number)} = (real)1 / missing_power({spelled(rate)}, {self.prefix}_steps);"
        yield from self._draws(f"{self.prefix}_steps")
        if "decay" in by_role:
            yield f"{spelled('decay')} = (real)1 - {spelled('lr')} * weight_decay;"

    def _draws(self, steps: str) -> Iterator[str]:
        """Yield the draws of a step counted from 1, or of the first step that has the same draws."""
        for name in self.given:
            kind, _, held = self.values[name].of.partition("/")
            if kind == "draw" and self.values[name].role == "number":
                first = f"({steps} - ({steps} - 1u) % {held}u)" if held else steps
                mixed = f"mixed({self.prefix}_seed * 0x9e3779b1u + {first})"
                yield f"{self.names[name]} = (real)(({mixed} >> 8) + 1u);"

    def _masks(self, entry: str) -> Iterator[str]:
        """Return the dropout masks, drawn from the seed, the step, the microbatch and the mask's number."""
        names = [name for name, (kind, _, _) in self.given.items() if kind == "masks"]
        if not names:
            return
        gathers = entry == "gather"
        steps = f"{self.prefix}_steps{' + 1u' * gathers}"
        least, scale = masks.least(self.content.dropout), initial(masks.scale(self.content.dropout), self.dtype)
        yield f"const uint32_t drawn = mixed({self.prefix}_seed * 0x9e3779b1u + {steps});"
        for number, name in enumerate(names):
            seed = f"mixed(drawn + {number * self.content.parts}u{' + gathered - 1u' * gathers})"
            yield f"drop({self._points(name)}, {least}u, {scale}, {seed}, {self.names[name]});"

    def _halves(self) -> Iterator[str]:
        """Return the step that is called for each microbatch."""
        if "gather" in self.layouts:
            yield (
                f"void {self.prefix}_step(void) {{\n    {self.prefix}_gather();\n"
                f"    if (gathered == {self.content.parts}u) {self.prefix}_update();\n}}\n"
            )

    def _begin(self) -> list[str]:
        """Return the function that initializes weights and states."""
        if not self._steps:
            return []
        lines, number = [], 0
        for name, (kind, _, dtype) in self.given.items():
            points, array = self._points(name), self.names[name]
            if kind in ("weights", "states") and name in self.content.begins:
                mean, deviation = self.content.begins[name]
                if self.dtype == WHOLE:
                    mean, deviation = round(mean), round(deviation)
                number += 1
                numbers = f"(real){mean!r}, (real){deviation!r}, {self.prefix}_seed + {number}u"
                lines.append(f"draw{'_codes' * (dtype == CODES)}({points}, {numbers}, {array});")
            elif kind == "states" and name not in self.content.stays:
                lines.append(f"zero({points}, {array});")
        lines.append(f"{self.prefix}_steps = 0;")
        body = "\n".join(f"    {line}" for line in lines)
        return [f"void {self.prefix}_begin(void) {{\n{body}\n}}\n"]

    @property
    def _steps(self) -> bool:
        return any(entry != "predict" for entry in self.layouts)

    # Arrays.

    def _variables(self) -> Iterator[str]:
        """Return the static declarations of this file."""
        if any("loss" in layout.table.outputs for entry, layout in self.layouts.items() if entry != "predict"):
            yield "static real loss;"
        if "gather" in self.layouts:
            yield "static uint32_t gathered; /* microbatches since the last update */"
        for name, (kind, _, _) in self.given.items():
            if self._is_number(name) and self.values[name].of != "lr":
                if kind == "variables":
                    yield f"static real {self.names[name]};"
                else:
                    yield f"static const real {self.names[name]} = {initial(self.content.values[name], self.dtype)};"
        for name, (kind, axes, _) in self.given.items():
            if kind == "masks":
                array = f"static real {self.names[name]}[{self._points(name)}]{self._placed(name)}"
                yield f"{array}; /* {name}[{' '.join(axes)}] */"
        if any(self.values[name].of == "decay" for name in self.given):
            yield f"static const real weight_decay = {initial(self.content.values['weight_decay'], self.dtype)};"

    def _placed(self, name: str, section: str = "bss") -> str:
        """Return the section attribute of an array in RAM; empty in the first region."""
        region = self.places.get(name, "")
        elsewhere = region and region != self.content.regions[0].name
        return f' PLACED_IN(".{section}.{region}")' if elsewhere else " PLACED"

    def _public(self) -> Iterator[tuple[str, str, str]]:
        """Return the public arrays: name in the table, declaration, description."""
        for name, (kind, axes, dtype) in self.given.items():
            if not self._is_number(name) and kind != "masks":
                constant = "const " if kind == "constants" else ""
                points, extent = self._points(name), declared(self._points(name), dtype)
                description = f"{name}[{' '.join(axes)}]{f', {points} of {extent}' if extent > points else ''}"
                description += self._unit(self.values[name].power)
                public_type = _PUBLIC_TYPES[dtype].format(self.prefix)
                yield name, f"{constant}{public_type} {self.names[name]}[{extent}]", description

    def _unit(self, power: int | None) -> str:
        """Return the scale of an integer that represents another number."""
        return "" if power is None else f", in units of 2^{power}"

    def _definitions(self) -> Iterator[str]:
        for name, declaration, description in self._public():
            kind, _, dtype = self.given[name]
            values = self.content.values.get(name)
            empty = values is None or kind == "inputs" or (kind == "states" and not np.any(values))
            declaration += "" if kind == "constants" else self._placed(name, "bss" if empty else "data")
            yield (
                f"{declaration}; /* {description} */"
                if empty
                else f"{declaration} = {initializer(values, dtype)}; /* {description} */"
            )
        if self._has_loss:
            yield f"{self.prefix}_real {self.prefix}_loss(void) {{ return loss; }}"
        if self._steps:
            rate = initial(self.content.values.get("lr", 0.01), self.dtype)
            yield f"{self.prefix}_real {self.prefix}_learning_rate = {rate};"
            yield f"uint32_t {self.prefix}_steps = 0;\nuint32_t {self.prefix}_seed = 1;"
        yield ""

    # What is said above.

    def _head(self) -> str:
        program_memory = self.program_memory
        numbers = "whole numbers of 32 bits, or of 8" if self.dtype == WHOLE else REAL[self.dtype]
        says = [
            *self.title,
            f"Freestanding C99: no library, no allocation, one thread. All numbers are {numbers}.",
            f"RAM {program_memory.ram:,} bytes: arena {program_memory.arena:,}, "
            f"weights {program_memory.weights:,}, states {program_memory.states:,}, "
            f"inputs {program_memory.inputs:,}, variables {program_memory.variables:,}"
            f"{f', masks of dropout {program_memory.masks:,}' if program_memory.masks else ''}. "
            f"Flash {program_memory.constants:,} bytes of constants; the code, the stack and what initial values "
            "take in flash are the compiler's.",
            *self._regions(),
            *self._fullest(),
            "For the same numbers on every processor compile with -std=c99 or -ffp-contract=off, and without "
            "-ffast-math.",
        ]
        lines = [line for text in says for line in (*textwrap.wrap(text, WIDTH, break_on_hyphens=False), "")]
        return "\n".join(("/*", *(f" * {line}".rstrip() for line in lines[:-1]), " */", ""))

    def _regions(self) -> Iterator[str]:
        """Return the arrays of each RAM region, if there are several."""
        if len(self.content.regions) > 1:
            sizes = arrays([*self.layouts.values()], self.content.fixed)
            texts = []
            for region in self.content.regions:
                lying = [name for name in sizes if self.places[name] == region.name]
                names = ", ".join(self.names.get(name) or label(name) for name in lying)
                total = sum(sizes[name] for name in lying)
                texts += [f"{region.name} of {region.bytes:,} has {total:,} ({names})"] if lying else []
            yield f"Regions of RAM, without the stack: {'; '.join(texts)}. The linker script puts them there."

    def _fullest(self) -> Iterator[str]:
        """Return the live arrays at the peak of the largest entry's arena."""
        entry, layout = max(self.layouts.items(), key=lambda each: each[1].bytes)
        line, arrays = layout.fullest
        if arrays:
            largest = sorted(arrays.items(), key=lambda array: -array[1])
            there = ", ".join(f"{name} {size:,}" for name, size in largest)
            left = line.partition(" = ")[0].replace("*/", "* /")
            yield f"Of the arena {sum(arrays.values()):,} bytes are in use at {left} of {entry}: {there}."

    def _header(self) -> str:
        prefix, guard = self.prefix, f"{self.prefix.upper()}_H"
        upper = prefix.upper()
        lines = [
            self._head(),
            f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n",
            '#ifdef __cplusplus\nextern "C" {\n#endif\n',
            f"typedef {REAL[self.dtype]} {prefix}_real;\n",
            f"#define {upper}_RAM_BYTES {self.program_memory.ram} /* all variables, in .data and .bss */",
            f"#define {upper}_FLASH_BYTES {self.program_memory.constants} "
            "/* what of it is stored in .rodata, code aside */\n",
        ]
        if self._steps:
            rates = (value.power for value in self.values.values() if value.role == "number" and value.of == "lr")
            rate = self._unit(next(rates, None)).removeprefix(", ")
            lines += [
                f"extern {prefix}_real {prefix}_learning_rate;{f' /* {rate} */' if rate else ''}",
                f"extern uint32_t {prefix}_steps; /* how many were taken */",
                f"extern uint32_t {prefix}_seed; /* of what {prefix}_begin draws */\n",
            ]
        for group in _GROUPS:
            arrays = [
                f"extern {text}; /* {about} */" for name, text, about in self._public() if self._group(name) == group
            ]
            lines += [f"/* {_GROUPS[group]} */", *arrays, ""] if arrays else []
        lines += [f"{text}\n" for text in self._functions()]
        lines += ["#ifdef __cplusplus\n}\n#endif\n\n#endif\n"]
        return "\n".join(lines)

    def _group(self, name: str) -> str:
        """Return the header's group of an array."""
        value, kind = self.values[name], self.given[name][0]
        predict = self.layouts.get("predict")
        if kind == "inputs" and value.role == "constant" and predict is not None and name not in predict.table.inputs:
            return "drawn"
        return "running" if value.role == "running" else kind

    def _functions(self) -> Iterator[str]:
        prefix = self.prefix
        if self._steps:
            drawn = "Weights stay as they are" if self.content.stays else "Weights as they are drawn before a training"
            yield f"/* {drawn}, states 0. */\nvoid {prefix}_begin(void);"
        says = {
            "step": "One step of training on the inputs: it changes weights and states.",
            "gather": "The gradients of one microbatch, added to those that were gathered.",
            "update": "One step of the optimizer with the gathered gradients, which are then 0 again.",
        }
        if "gather" in self.layouts:
            says["step"] = f"Gathers a microbatch; every {self.content.parts} of them are one step, which updates."
        for entry, comment in says.items():
            if entry in self.layouts or (entry == "step" and "gather" in self.layouts):
                yield f"/* {comment} */\nvoid {prefix}_{entry}(void);"
        if self._has_loss:
            unit = self._unit(self.values["loss"].power)
            yield f"/* The loss of the last step, before it, in nats{unit}. */\n{prefix}_real {prefix}_loss(void);"
        if "predict" in self.layouts:
            table = self.layouts["predict"].table
            for place, name in enumerate(table.outputs, 1):
                text = f"{name}[{' '.join(table.axes[name])}]"
                text += " of the inputs" if place == 1 else f", output {place} of the last call of predict"
                text += f"{self._unit(table.values[name].power)}; it is overwritten by the next call."
                function = "predict" if place == 1 else f"output_{place}"
                yield f"/* {text} */\nconst {prefix}_real *{prefix}_{function}(void);"

    @property
    def _has_loss(self) -> bool:
        return any("loss" in layout.table.outputs for entry, layout in self.layouts.items() if entry != "predict")


WIDTH = 110

_GROUPS = {
    "inputs": "Inputs, which are yours to fill before a call.",
    "drawn": "Inputs of a step alone, such as masks of dropout (1 keeps, 0 drops): yours to draw before every step.",
    "weights": "Weights that learn.",
    "running": "Running statistics, which a step updates.",
    "states": "What the optimizer remembers.",
    "constants": "What never changes, in flash.",
}

_ARENA_TYPES = {"arena": ("real", ""), "places": ("place", "int64"), "flags": ("uint8_t", "bool")}
"""The element types of arenas, in C and in the table; "" is the program's real type."""

_PUBLIC_TYPES = {
    **dict.fromkeys(("fp32", "fp64", "int32"), "{}_real"),
    "int64": "int32_t",
    "uint8": "uint8_t",
    "bool": "uint8_t",
    "int8": "int8_t",
}

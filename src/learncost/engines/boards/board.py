"""Compile a program for an emulated board, measure its sections, run it, and write the linker script of a device."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from learncost.devices.device import STACK, Device
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.program.arena import Region

HERE = Path(__file__).parent
FLAGS = ("-std=c99", "-O2", "-ffunction-sections", "-fdata-sections", "-fno-tree-loop-distribute-patterns")
WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wdouble-promotion", "-Werror")


@dataclass(frozen=True)
class Board:
    """An emulated board.

    prefix    the prefix of the compiler's programs
    flags     the compiler's flags for the processor
    emulator  the QEMU program
    machine   its arguments that select the board
    begins    the first addresses of flash and RAM
    fpu       whether the processor has a floating-point unit for fp32
    """

    name: str
    prefix: str
    flags: tuple[str, ...]
    emulator: str
    arguments: tuple[str, ...]
    begins: tuple[int, int]
    fpu: bool

    @property
    def missing(self) -> str:
        """Return the names of the programs that are not installed, joined by "and"; empty if all are."""
        programs = (f"{self.prefix}gcc", self.emulator)
        return " and ".join(program for program in programs if shutil.which(program) is None)


_ARM = ("qemu-system-arm", (0x00000000, 0x20000000))
_RISC = ("qemu-system-riscv32", (0x80000000, 0x80400000))

BOARDS: Mapping[str, Board] = {
    board.name: board
    for board in (
        Board("cortex-m3", "arm-none-eabi-", ("-mcpu=cortex-m3", "-mthumb"), _ARM[0], ("mps2-an385",), _ARM[1], False),
        Board("cortex-m4f", "arm-none-eabi-", ("-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"),
              _ARM[0], ("mps2-an386",), _ARM[1], True),
        Board("cortex-m7", "arm-none-eabi-", ("-mcpu=cortex-m7", "-mthumb", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"),
              _ARM[0], ("mps2-an500",), _ARM[1], True),
        Board("riscv32", "riscv64-unknown-elf-", ("-march=rv32imafc_zicsr", "-mabi=ilp32f", "-mcmodel=medany"),
              _RISC[0], ("virt", "-bios", "none"), _RISC[1], True),
    )
}  # fmt: skip
"""The boards by name: QEMU's MPS2 boards for Arm, its machine `virt` for RISC-V."""


@dataclass(frozen=True)
class LinkedProgram:
    """A linked program.

    data, bss  bytes of RAM for initialized and zeroed variables
    code       bytes of flash for instructions, constants and the initial contents of RAM
    """

    board: Board
    path: Path
    code: int
    data: int
    bss: int

    @property
    def ram(self) -> int:
        return self.data + self.bss


def build(
    board: Board,
    sources: Sequence[Path],
    folder: Path,
    ram: int = 2**18,
    flash: int = 2**20,
    flags: Sequence[str] = (),
    script: Path | None = None,
) -> LinkedProgram:
    """Compile and link C files, with headers from the folder, for a board with these bytes of memory.

    script  the linker script with all addresses
    Raises `InputError` with the compiler's message, for example if RAM or flash is too small.
    """
    path = folder / f"{board.name}.elf"
    places = {"FLASH_BEGIN": board.begins[0], "RAM_BEGIN": board.begins[1]}
    places |= {"FLASH_BYTES": flash, "RAM_BYTES": ram, "STACK_BYTES": STACK}
    _called(
        f"{board.prefix}gcc",
        *(*board.flags, *FLAGS, "-ffreestanding", *flags, *WARNINGS),
        *("-nostartfiles", "-nostdlib", f"-I{folder}", f"-I{HERE}"),
        *(*map(str, sources), str(HERE / "start.c"), "-lgcc", "-o", str(path), f"-T{script or HERE / 'board.ld'}"),
        *(f"-Wl,--defsym={name}={value:#x}" for name, value in places.items()),
        *("-Wl,--gc-sections", "-Wl,--no-warn-rwx-segments"),
    )
    sizes: dict[str, int] = {}
    for line in _called(f"{board.prefix}size", "-A", str(path)).splitlines():
        name, *numbers = line.split() or [""]
        if name.startswith(".") and numbers:
            sizes[name] = int(numbers[0])
    data = sum(size for name, size in sizes.items() if name.startswith(".data"))
    bss = sum(size for name, size in sizes.items() if name.startswith(".bss"))
    return LinkedProgram(board, path, sizes[".text"] + sizes.get(".ARM.exidx", 0) + data, data, bss)


def run(built: LinkedProgram, seconds: float = 600) -> str:
    """Run a program and return its output. Raises `InputError` if it fails or exceeds the time limit."""
    board = built.board
    return _called(
        board.emulator,
        *("-M", *board.arguments, "-nographic", "-monitor", "none", "-serial", "none", "-icount", "shift=0"),
        *("-semihosting-config", "enable=on,target=native", "-kernel", str(built.path)),
        seconds=seconds,
        errors=True,
    )


def _called(program: str, *arguments: str, seconds: float = 600, errors: bool = False) -> str:
    """Return a program's output; with `errors`, its standard error, too."""
    try:
        ran = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise InputError(f"{program} is not installed") from None
    except subprocess.TimeoutExpired:
        raise InputError(f"{program} took longer than {seconds:g} seconds") from None
    if ran.returncode:
        lines = [line for line in (ran.stderr + ran.stdout).splitlines() if line.strip()]
        message = next(
            (line for line in lines if "error" in line or "overflow" in line), lines[-1] if lines else "no output"
        )
        raise InputError(f"{program} failed: {message}")
    return ran.stdout + (ran.stderr if errors else "")


def linker_script(device: Device, used: Sequence[str]) -> str:
    """Return the script for GNU ld with the used regions; empty if the device's addresses are unknown.

    The symbols are those of start.c, of CMSIS's tables and of ST's startup files.
    """
    regions = [region for region in device.regions if region.name in used or region == device.regions[0]]
    if device.flash is None or device.flash_begin is None or any(region.begin is None for region in regions):
        return ""
    first, *others = regions
    text = (HERE / "board.ld").read_text(encoding="utf-8").partition("*/")[2]
    memory = [f"  FLASH (rx) : ORIGIN = {device.flash_begin:#010x}, LENGTH = {device.flash}"]
    memory += [_memory(region) for region in regions]
    text = re.sub(
        r"MEMORY\n\{.*?\n\}", lambda _: "\n".join(("MEMORY", "{", *memory, "}")), text, count=1, flags=re.DOTALL
    )
    text = re.sub(r"\bRAM\b(?! for)", first.name, text).replace("STACK_BYTES", str(STACK))
    for region in others:
        name = region.name
        copied = f"    LONG(LOADADDR(.data_{name})) LONG(ADDR(.data_{name})) LONG(SIZEOF(.data_{name}) / 4)\n"
        zeroed = f"    LONG(ADDR(.bss_{name})) LONG(SIZEOF(.bss_{name}) / 4)\n"
        text = text.replace("    __copy_table_end__", f"{copied}    __copy_table_end__")
        text = text.replace("    __zero_table_end__", f"{zeroed}    __zero_table_end__")
        sections = f"  .data_{name} : {{ *(.data.{name}) . = ALIGN(4); }} > {name} AT > FLASH\n"
        sections += f"  .bss_{name} (NOLOAD) : {{ *(.bss.{name}) . = ALIGN(4); }} > {name}\n"
        text = text.replace("  .data : {", f"{sections}  .data : {{", 1)
    vendor = "  _sidata = data_in_flash; _sdata = data_begin; _edata = data_end; _sbss = bss_begin; _ebss = bss_end;\n"
    vendor += "  _estack = stack_end; __StackTop = stack_end;\n"
    text = text.replace("  ASSERT(", f"{vendor}  ASSERT(")
    return f"/* {device.name}: its flash and the regions of its RAM that the program uses. */\n{text.lstrip()}"


def _memory(region: Region) -> str:
    note = f" /* {region.note} */" if region.note else ""
    return f"  {region.name} (rwx) : ORIGIN = {region.begin:#010x}, LENGTH = {region.bytes}{note}"

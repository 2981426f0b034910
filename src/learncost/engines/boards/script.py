"""Write the linker script of a device: board.ld with its addresses and a section for each RAM region."""

from __future__ import annotations

import re
from collections.abc import Sequence

from learncost.devices.device import STACK, Device
from learncost.engines.boards.board import HERE
from learncost.program.regions import Region


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

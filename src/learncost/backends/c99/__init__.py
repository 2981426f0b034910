"""Steps as freestanding C99 for processors without an operating system, with memory known before compiling."""

from learncost.backends.c99.layout import ProgramMemory, alone, program_memory
from learncost.backends.c99.program import Firmware, FirmwareInputs, firmware

__all__ = ["Firmware", "FirmwareInputs", "ProgramMemory", "alone", "firmware", "program_memory"]

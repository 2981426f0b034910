"""Emulated boards: a program in C99 compiled for a processor without an operating system, and run by QEMU.

QEMU counts instructions; it models no cycles and no energy.
"""

from learncost.engines.boards.board import BOARDS, Board, LinkedProgram, build, run

__all__ = ["BOARDS", "Board", "LinkedProgram", "build", "run"]

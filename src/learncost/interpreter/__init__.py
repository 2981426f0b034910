"""The NumPy interpreter; it defines the meaning of every table."""

from learncost.interpreter.interpreter import Values, execute, infer_sizes, program, run, run_with

__all__ = ["Values", "execute", "infer_sizes", "program", "run", "run_with"]

"""Rooms: what a program takes in memory, found by running it on arrays that have no values.

The program that is looked at is the program that runs, to the last temporary: an array here has a shape, a type and a
layout, and holds a *room* of so many bytes, which is given back when nothing refers to it any more, as CPython does it.
What is assumed, beside that every function takes what its result takes:

- A temporary of at least 256 KiB that an operator would only read becomes the operator's result (NumPy's temporary
  elision, numpy/_core/src/multiarray/temp_elide.c: the other operand has the same shape or none, and casts safely).
- Where the operands of an elementwise operation do not lie alike, NumPy moves 8,192 elements at a time by a buffer.
- `reshape` and `ascontiguousarray` copy where NumPy copies; products of matrices take no copies of their own.

Of Python's own objects those of arrays are counted and nothing else; nor is what the BLAS library allocates for itself,
once, outside of Python.

A program for PyTorch runs on tensors of the same kind, whose bytes are those of the allocator, without objects. A
processor's operators give no operand's place to a result, and take copies where `reshape`, `contiguous` and a product
by `einsum` need them; what kernels have for themselves is not counted. Where it is the program of one of several
devices, it runs on a mesh without values.
"""

from learncost.program.account import AllocationLog
from learncost.program.fake_arrays.array import FakeArray
from learncost.program.fake_arrays.between import DeviceMesh, FakeDevice
from learncost.program.fake_arrays.program import loaded, loaded_on_torch
from learncost.program.fake_arrays.tensor import ShapeTensor

__all__ = ["AllocationLog", "DeviceMesh", "FakeArray", "FakeDevice", "ShapeTensor", "loaded", "loaded_on_torch"]

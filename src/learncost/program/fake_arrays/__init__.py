"""The memory of an emitted program, by a run on arrays without values.

The simulated program is the program that runs, to the last temporary: an array here has a shape, a type and a layout,
and owns an *allocation*, which is freed when nothing refers to it any more, as in CPython. The assumptions, in addition
to the allocation of every function's result, are:
- An operator writes its result into a temporary operand of at least 256 KiB (NumPy's temporary elision,
  numpy/_core/src/multiarray/temp_elide.c: the other operand has the same shape or none, and casts safely).
- Where the operands of an elementwise operation have different layouts, NumPy buffers 8,192 elements at a time.
- `reshape` and `ascontiguousarray` copy where NumPy copies; matrix products make no copies of their own.
Of Python's own objects only those of arrays are counted; the allocations of the BLAS library itself, once, outside of
Python, are not.

A program for PyTorch runs on PyTorch's own tensors without values, those of its device "meta"; workspace of kernels is
not counted. A program of one of several devices runs on a mesh without processes.
"""

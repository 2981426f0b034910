"""The memory of an emitted program, by a run on arrays without values.

The simulated program is the program that runs, to the last temporary: an array is a subclass of NumPy's whose elements
are never read, its operators and functions are those that NumPy's protocols for such classes lead to, and its memory is
freed when neither it nor a view refers to it any more, as in CPython. The assumptions, in addition to the allocation of
every function's result, are:
- An operator writes its result into a temporary operand of at least 256 KiB (NumPy's temporary elision,
  numpy/_core/src/multiarray/temp_elide.c: the other operand has the same shape or none, and casts safely).
- Where the operands of an elementwise operation have different layouts, NumPy buffers 8,192 elements at a time.
- `reshape` and `ascontiguousarray` copy where NumPy copies; matrix products make no copies of their own.
Of Python's own objects only those of arrays are counted; the allocations of the BLAS library itself, once, outside of
Python, are not.

A program for PyTorch runs on PyTorch's own tensors without values, those of its device "meta"; workspace of kernels is
not counted. A program of one of several devices runs on a mesh without processes.
"""

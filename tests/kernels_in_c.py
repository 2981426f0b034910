"""Helper: lines as a kernel in C against the interpreter that defines them, in any type, with shared memory."""

from dataclasses import replace

import numpy as np
import pytest

from learncost.backends.c import KernelLines, kernel
from learncost.backends.c.gnu import GNU
from learncost.engines import compiler
from learncost.interpreter import execute
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.value import Value
from learncost.passes.lower import lower

NEAR = {
    "fp64": 1e-12,
    "fp32": 1e-5,
    "bf16": 2**-7,
}  # bf16 keeps 8 bits: half of the last one, of sums of rounded numbers
NUMPY = {"fp64": np.float64, "fp32": np.float32, "bf16": np.uint16, "int64": np.int64, "bool": np.uint8}

needs_compiler = pytest.mark.skipif(compiler.compiler() is None, reason="no C compiler")


def as_bf16(array):
    """To the nearest bf16, ties to even: add half of the last kept bit, and cut."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def from_bf16(array):
    return (array.astype(np.uint32) << 16).view(np.float32)


class Case:
    """Lines, what of them others read, and random arrays for them."""

    def __init__(
        self,
        lines,
        axes,
        outputs,
        sizes,
        meta,
        dtype="fp64",
        integers=None,
        masks=(),
        constants=(),
        dtypes=None,
        printer=GNU,
    ):
        self.lines = tuple(replace(line, meta=replace(line.meta, kernel=meta)) for line in lines)
        self.axes = dict(axes)
        for line in self.lines:
            for term in line.left:
                self.axes.setdefault(term.name, term.declared)
        self.outputs, self.sizes, self.dtype = frozenset(outputs), sizes, dtype
        integers = integers or {}
        self.numpy = NUMPY | ({"int64": np.int32} if printer.alone else {})  # small devices have places of 32 bits
        names = {term.name for line in self.lines for term in line.left}
        self.given = [n for n in dict.fromkeys(n for line in self.lines for n in line.reads) if n not in names]
        self.dtypes = dict.fromkeys((*self.given, *names), dtype)
        self.dtypes |= dict.fromkeys(integers, "int64") | dict.fromkeys(masks, "bool") | (dtypes or {})
        fixed = {name: sizes[name] for name in constants}
        given = KernelLines(self.lines, self.axes, self.outputs, self.dtypes, fixed, meta.name)
        self.function = kernel(given, printer)
        generator = np.random.default_rng(0)
        self.arrays = {name: self._random(generator, name, integers) for name in self.given}

    def _shape(self, name):
        return tuple(int(axis) if axis.isdigit() else self.sizes[base(axis)] for axis in self.axes[name])

    def _random(self, generator, name, integers):
        shape, dtype = self._shape(name), self.dtypes[name]
        if name in integers:
            return generator.integers(0, integers[name], shape)
        if dtype == "bool":
            return generator.random(shape) < 0.7
        numbers = generator.standard_normal(shape)
        if name.endswith((":g", ".V", "eps", "V")) or not shape:  # a root of a mean square, or what is under a root
            numbers = np.abs(numbers) + 0.5
        return self.exact(numbers, dtype)

    def exact(self, numbers, dtype=None):
        """The numbers as the type holds them, so that nothing is rounded on the way into a kernel."""
        dtype = dtype or self.dtype
        return (
            from_bf16(as_bf16(numbers)).reshape(np.shape(numbers)) if dtype == "bf16" else numbers.astype(NUMPY[dtype])
        )

    def defined(self):
        """What the interpreter makes of the lines, in double precision."""
        values = {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in self.arrays.items()}
        declared = {name: Value(axes) for name, axes in self.axes.items()}
        execute(lower(Table(self.lines, declared, outputs=tuple(self.outputs))), values, self.sizes)
        return {name: values[name] for name in self.outputs}

    def run(self, kernels, shared=()):
        """What the kernel makes; of `shared` pairs the written array is the very memory of the read one."""
        stored = {}
        for name, array in self.arrays.items():
            stored[name] = (
                as_bf16(array) if self.dtypes[name] == "bf16" else array.astype(self.numpy[self.dtypes[name]])
            )
            stored[name] = np.ascontiguousarray(stored[name]).reshape(self._shape(name))
        memory = {written: stored[read] for read, written in shared}
        for name in self.function.writes:
            memory.setdefault(name, np.full(self._shape(name), 77, self.numpy[self.dtypes[name]]))
        arrays = [stored[name] for name in self.function.reads] + [memory[name] for name in self.function.writes]
        arrays += [np.full(scratch.points, 77, self.numpy[scratch.dtype]) for scratch in self.function.scratch]
        kernels[self.function.name](*(a.ctypes.data for a in arrays), *(self.sizes[s] for s in self.function.sizes))
        return {n: from_bf16(a) if self.dtypes[n] == "bf16" else a for n, a in memory.items()}

    def compare(self, kernels, shared=()):
        """The largest difference, against the largest number of each array (at least one)."""
        want, values = self.defined(), self.run(kernels, shared)
        assert set(values) >= self.outputs, (set(values), self.outputs)
        for name in self.outputs:
            scale = max(1.0, np.max(np.abs(want[name]), initial=0.0))
            error = np.max(np.abs(values[name] - want[name]), initial=0.0) / scale
            assert error <= NEAR[self.dtype], f"{self.function.name}: {name} is off by {error:.1e} in {self.dtype}"


def matched(shares):
    """Pairs that can hold at once: every array read and every array written at most once."""
    pairs, used = [], set()
    for read, written in shares:
        if not {read, written} & used:
            pairs.append((read, written))
            used |= {read, written}
    return pairs


def check(cases):
    """Compile the cases together; each against the interpreter, apart and in every shared memory.

    Those in fp32 as they are compiled for use, the others with what conftest says, which takes a third of the time.
    """
    with pytest.MonkeyPatch.context() as patch:
        if cases[0].dtype == "fp32":
            patch.delenv("CFLAGS")
        kernels = compiler.CompiledKernels([case.function for case in cases])
    for case in cases:
        case.compare(kernels)
        for pair in case.function.shares:
            case.compare(kernels, [pair])
        case.compare(kernels, matched(case.function.shares))

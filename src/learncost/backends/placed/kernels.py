"""The kernels of a step: lines that differ only in names and sizes share one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeAlias

from learncost.backends.c import KernelFunction, SizeNeededError, kernel
from learncost.backends.expression import Identifiers
from learncost.backends.placed.patterns import NamedPattern, Pattern, flat, identical, named_by_op
from learncost.ir.line import Line
from learncost.ir.polynomial import size_of
from learncost.program.calls import Axes

KernelWriter: TypeAlias = Callable[
    [Sequence[Line], Axes, frozenset[str], Mapping[str, str], Mapping[str, int], str], KernelFunction
]
"""The printer of kernels in a language, with the first six arguments of `backends.c.kernel`."""


@dataclass(frozen=True)
class _WrittenKernel:
    """A kernel, the lines for which it was printed, and the sizes that are constants in it."""

    like: NamedPattern
    constants: tuple[int | None, ...]
    function: KernelFunction

    def fits(self, numbers: Sequence[int]) -> bool:
        """Return whether the kernel computes identical lines at these sizes."""
        return all(constant in (None, number) for constant, number in zip(self.constants, numbers, strict=True))


class KernelTable:
    """Functions in a language, which `write` prints at their first call; several steps can share them.

    Before any is written, the calls of a step are noted: sizes in which calls of a kernel differ are its parameters.
    In a dialect that allocates no memory, calls that need some, or constants of their sizes, have separate kernels.
    """

    def __init__(self, sizes: Mapping[str, int], write: KernelWriter = kernel, reserved: Iterable[str] = ()) -> None:
        self.write = write
        self.functions: list[KernelFunction] = []
        self._sizes = sizes
        self._named, self._wishes = Identifiers(reserved), set[str]()
        self._sizes_of: dict[Pattern, set[tuple[int, ...]]] = {}
        self._written: dict[Pattern, list[_WrittenKernel]] = {}

    def note(self, lines: Sequence[Line], axes: Axes, others: frozenset[str], dtypes: Mapping[str, str]) -> None:
        """Record the sizes of a computation."""
        like = identical(*flat(lines, axes), others, dtypes)
        self._sizes_of.setdefault(like.pattern, set()).add(self._numbers(like.sizes))

    def written(
        self, lines: Sequence[Line], axes: Axes, others: frozenset[str], wish: str, dtypes: Mapping[str, str]
    ) -> KernelFunction:
        """Return the kernel of lines, with the lines' names for its arrays and sizes."""
        lines, axes = flat(lines, axes)
        like = identical(lines, axes, others, dtypes)
        numbers = self._numbers(like.sizes)
        several = self._written.setdefault(like.pattern, [])
        fitting = next((kernel for kernel in several if kernel.fits(numbers)), None)
        if fitting is None:
            name = self._named.of(f"{wish}.{len(self.functions) + 1}" if wish in self._wishes else wish)
            ops_names = named_by_op(lines)
            renamed = {ops_names.get(array, array): array for array in like.arrays}

            def function_with(fixed: Mapping[str, int]) -> KernelFunction:
                return self.write(
                    [line.renamed(ops_names) for line in lines],
                    {array: axes[name] for array, name in renamed.items() if name in axes},
                    frozenset(ops_names.get(array, array) for array in others & {*like.arrays}),
                    {array: dtypes[name] for array, name in renamed.items() if name in dtypes},
                    fixed,
                    name,
                )

            fixed = self._fixed(like)
            try:
                function = function_with(fixed)
            except SizeNeededError:
                fixed = dict(zip(like.sizes, numbers, strict=True))
                function = function_with(fixed)
            self._wishes.add(wish)
            self.functions.append(function)
            constants = tuple(fixed.get(size) for size in like.sizes)
            fitting = _WrittenKernel(replace(like, arrays=tuple(renamed)), constants, function)
            several.append(fitting)
        first, function = fitting.like, fitting.function
        arrays = dict(zip(first.arrays, like.arrays, strict=True))
        sizes = dict(zip(first.sizes, like.sizes, strict=True))
        return replace(
            function,
            reads=tuple(arrays[name] for name in function.reads),
            writes=tuple(arrays[name] for name in function.writes),
            sizes=tuple(sizes[size] for size in function.sizes),
            shares=tuple((arrays[read], arrays[written]) for read, written in function.shares),
        )

    def number(self, size: str) -> int:
        """Return the value of a size; of one that `flat` made, the product of its axes."""
        return prod(int(size_of(axis, self._sizes)) for axis in size.split())

    def _numbers(self, sizes: Sequence[str]) -> tuple[int, ...]:
        return tuple(map(self.number, sizes))

    def _fixed(self, like: NamedPattern) -> dict[str, int]:
        """Return the sizes that are equal in all calls."""
        several = zip(*self._sizes_of[like.pattern], strict=True)
        return {size: numbers[0] for size, numbers in zip(like.sizes, several, strict=True) if len({*numbers}) == 1}

"""A table as an autograd function: its forward pass, and the derived backward pass for trainable inputs.

A pass by the kernels of `learncost emit --backend triton` is a custom operator, which torch.compile does not open, with
a fake kernel: its results by the shapes of what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.util import find_spec
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from learncost.autodiff.derive import Derived, derive
from learncost.backends import RecordNode, Tree, leaves, program
from learncost.backends.placed.layout import IN_PLACE
from learncost.backends.placed.program import TYPES
from learncost.backends.precision import typed
from learncost.engines.in_triton import ProgramInTriton, is_interpreted
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.loop import walk, windows
from learncost.ir.polynomial import shape_of
from learncost.ir.table import Table
from learncost.passes.plan import planned

Pass = Callable[[Mapping[str, torch.Tensor], Mapping[str, int]], dict[str, torch.Tensor]]
PRECISIONS = {torch.float32: "fp32", torch.float64: "fp64"}


DEVICE = "cpu" if is_interpreted() else "cuda"
"""The type of device on which kernels run: a GPU, or a CPU in Triton's interpreter."""
HAS_TRITON = find_spec("triton") is not None


def precision_of_kernels(like: torch.Tensor) -> str:
    """Return the precision in which kernels compute with a weight; empty where PyTorch's operators run.

    Autocast to bf16 is bf16-masters: products and what they read in bf16, sums and weights in fp32.
    """
    device = like.device.type
    precision = PRECISIONS.get(like.dtype, "") if HAS_TRITON and device == DEVICE else ""
    if precision and torch.is_autocast_enabled(device):
        low = torch.get_autocast_dtype(device) == torch.bfloat16
        return "bf16-masters" if low and precision == "fp32" else ""
    return precision


def split(step: Table) -> tuple[Table, Table]:
    """Return the forward pass of a step, and the rest, each with what the other one reads, under the plan flash."""
    step = planned(step, "flash")
    phases = [{each.meta.phase for each, _ in walk((line,))} for line in step.lines]
    cut = next(place for place, several in enumerate(phases) if several != {"forward"})
    before, after = step.lines[:cut], step.lines[cut:]
    first, last = ({name for line in lines for name in line.reads} for lines in (before, after))
    made = [name for line in before for name in line.makes]
    saved = tuple(name for name in made if name in last and name not in step.outputs)
    outputs = tuple(name for name in step.outputs if name in made)

    def given(read: set[str], made: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        inputs = tuple(name for name in (*made, *step.inputs) if name in read)
        return inputs, tuple(name for name in step.weights if name in read)

    inputs, weights = given(first, ())
    forward = replace(step, lines=before, outputs=(*outputs, *saved), inputs=inputs, weights=weights)
    inputs, weights = given(last, made)
    ends = tuple(name for name in step.outputs if name not in outputs)
    return forward, replace(step, lines=after, outputs=ends, inputs=inputs, weights=weights)


REGISTERED: dict[str, Any] = {}
"""The operators by name: equal passes of several modules are one."""


def opaque(table: Table, sizes: Mapping[str, int], precision: str, otherwise: Pass) -> Pass:
    """Return a table as a function of tensors and sizes by name, which is one operator for torch.compile.

    otherwise  what runs where a step in place has no place for a line, and on a GPU that is too old
    """
    table = planned(table, "fused")
    given, outputs = (*table.inputs, *table.weights), table.outputs
    lengths = sorted({*sizes, *(axis.rstrip("'") for name in given for axis in table.axes[name] if not axis.isdigit())})
    _, types = typed(table, precision, IN_PLACE)
    kinds = {name: getattr(torch, TYPES[types[name]]) for name in outputs}
    programs: dict[tuple[int, ...], Any] = {}

    def run(tensors: list[torch.Tensor], numbers: list[int]) -> list[torch.Tensor]:
        key = tuple(numbers)
        if key not in programs:
            device = tensors[0].device
            programs[key] = ProgramInTriton.of(table, dict(zip(lengths, numbers, strict=True)), precision, device)
        values, program = dict(zip(given, tensors, strict=True)), programs[key]
        if program is not None:
            made = program(values)
            return [made[name] for name in outputs]
        made = otherwise(values, dict(zip(lengths, numbers, strict=True)))
        return [made[name].to(kinds[name], copy=True) for name in outputs]

    def shapes(tensors: list[torch.Tensor], numbers: list[int]) -> list[torch.Tensor]:
        known = dict(zip(lengths, numbers, strict=True))
        return [tensors[0].new_empty(shape_of(table.axes[name], known), dtype=kinds[name]) for name in outputs]

    name = f"pass_{sha256(f'{table} {sizes} {precision}'.encode()).hexdigest()[:16]}"
    if name not in REGISTERED:
        schema = "(Tensor[] given, SymInt[] lengths) -> Tensor[]"
        tags = (torch.Tag.cudagraph_unsafe,)  # all passes of a stream share one arena, which is in no graph's pool
        REGISTERED[name] = torch.library.custom_op(f"learncost::{name}", run, mutates_args=(), schema=schema, tags=tags)
        REGISTERED[name].register_fake(shapes)
    operator = getattr(torch.ops.learncost, name).default

    def by_name(values: Mapping[str, torch.Tensor], known: Mapping[str, int]) -> dict[str, torch.Tensor]:
        found = operator([values[each] for each in given], [known[each] for each in lengths])
        return dict(zip(outputs, found, strict=True))

    return by_name


Tensors = Mapping[str, torch.Tensor]


class DifferentiablePasses:
    """A table as a differentiable function of tensors by name, whose backward pass is derived from it.

    sizes   of axes that are in no input, and of windows; all others are read from the inputs

    Every pass is emitted source, made when it is needed first. Which backward pass is emitted depends on what requires
    a gradient: nothing is derived for anything else. Copies and pickles hold the table, and emit again.
    """

    def __init__(self, table: Table, sizes: Mapping[str, int]) -> None:
        self.table, self.sizes = table, dict(sizes)
        self._begin()

    def _begin(self) -> None:
        table = self.table
        self.inputs, self.outputs = table.inputs, table.outputs
        self._given = (*table.inputs, *table.weights)
        self._axes = {name: table.axes[name] for name in table.inputs}
        self._windows = windows(table.lines)
        self._forward: dict[str, Pass] = {}
        self._derived: dict[tuple[tuple[str, ...], str], Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table, "sizes": self.sizes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def __call__(self, values: Tensors) -> tuple[torch.Tensor, ...]:
        """Return the table's outputs. Raises InputError for inputs whose shapes do not match the table."""
        lengths = self.lengths(values)
        differentiated = (
            tuple(name for name in self._given if values[name].requires_grad) if torch.is_grad_enabled() else ()
        )
        floats = (values[name] for name in (*self.table.weights, *self.inputs) if values[name].is_floating_point())
        like = next(floats, None)
        precision = "" if like is None else precision_of_kernels(like)
        self._derive(differentiated, precision)
        if not differentiated:
            results_by_name = self._forward[precision](values, lengths)
            return tuple(results_by_name[name] for name in self.outputs)
        results: Sequence[torch.Tensor] = self._derived[differentiated, precision].apply(
            tuple(lengths.items()), *_different([values[name] for name in self._given])
        )
        return tuple(results[: len(self.outputs)])

    def lengths(self, values: Tensors) -> dict[str, int]:
        """Return the sizes of all axes of the given inputs. Raises InputError."""
        lengths = dict(self.sizes)
        for name in [name for name in self.inputs if name in values]:
            axes, shape = self._axes[name], values[name].shape
            if len(axes) != len(shape):
                raise InputError(f"{name} must have the axes [{' '.join(axes)}], not the shape {tuple(shape)}")
            for axis, size in zip(axes, shape, strict=True):
                expected = int(axis) if axis.isdigit() else lengths.setdefault(axis.rstrip("'"), size)
                if expected != size:
                    raise InputError(
                        f"the axis {axis} of {name}[{' '.join(axes)}] is {size}, but {expected} elsewhere: "
                        f"the shape is {tuple(shape)}"
                    )
        if missing := [window for window in self._windows if window not in lengths]:
            raise InputError(f"the size of the window {missing[0]} is not known: give {missing[0]} with the sizes")
        return lengths

    def shape(self, name: str, lengths: Mapping[str, int]) -> tuple[int, ...]:
        """Return the shape of an input."""
        return tuple([int(axis) if axis.isdigit() else lengths[axis.rstrip("'")] for axis in self._axes[name]])

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]
    def _derive(self, differentiated: tuple[str, ...], precision: str) -> None:
        """Build the passes for the required gradients; torch.compile does not trace it.

        precision  of kernels; empty for PyTorch's operators
        """
        if not differentiated:
            if precision not in self._forward:
                self._forward[precision] = _emitted(self.table, self.sizes, precision)[0]
        elif (differentiated, precision) not in self._derived:
            if fixed := [name for name in differentiated if name in self.table.constants]:
                raise InputError(f"{fixed[0]} is a constant of the table and has no gradient: give {fixed[0]}.detach()")
            self._derived[differentiated, precision] = _function(self.table, differentiated, self.sizes, precision)


def _different(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return distinct tensors: torch.compile accepts each of them once."""
    again = [any(tensor is other for other in tensors[:at]) for at, tensor in enumerate(tensors)]
    return [tensor.view_as(tensor) if twice else tensor for tensor, twice in zip(tensors, again, strict=True)]


def _emitted(table: Table, sizes: Mapping[str, int], precision: str = "") -> tuple[Pass, tuple[str, ...]]:
    """Return the program of a table as a function of tensors and sizes by name, and the names that it reads.

    precision  of kernels; empty for PyTorch's operators
    What opens the records of the program is source as well: torch.compile follows source, not trees of names.
    """
    written = program(table, "torch", "apply", sizes=sizes)
    arguments = [_argument(tree) for tree in written.parameters]
    arguments += [f"{size_name}=lengths[{name!r}]" for name, size_name in written.sizes.items()]
    several = len(written.results) > 1
    results = [_taken(tree, f"found[{i}]" if several else "found") for i, tree in enumerate(written.results)]
    entries = [f"{name!r}: {text}" for result in results for name, text in result]
    text = (
        f"def by_name(values, lengths):\n    found = apply({', '.join(arguments)})\n    return {{{', '.join(entries)}}}"
    )
    namespace: dict[str, Any] = {}  # no __name__: torch.compile would look for a module that is called so
    exec(compile(f"{written.text}\n\n{text}\n", "<emitted by learncost>", "exec"), namespace)
    reads = tuple(dict.fromkeys(name for tree in written.parameters for name in leaves(tree)))
    by_name = namespace["by_name"]
    return opaque(table, sizes, precision, by_name) if precision else by_name, reads


def _argument(tree: Tree) -> str:
    if isinstance(tree, RecordNode):
        return f"{tree.record}({', '.join(map(_argument, tree.fields))})"
    return "None" if tree is None else f"values[{tree!r}]"


def _taken(tree: Tree, text: str) -> Iterator[tuple[str, str]]:
    if isinstance(tree, RecordNode):
        for place, part in enumerate(tree.fields):
            yield from _taken(part, f"{text}[{place}]")
    elif tree is not None:
        yield tree, text


def _reverse(derived: Derived, table: Table) -> Table:
    """Return the backward pass and the weight update as a table, which reads the saved tensors."""
    reverse = derived.reverse
    reads = {name for line in reverse.lines for name in line.reads}
    weights = tuple(name for name in table.weights if name in reads)
    return replace(reverse, weights=weights, values=derived.step.values)


def _function(
    table: Table, differentiated: tuple[str, ...], sizes: Mapping[str, int], precision: str
) -> type[torch.autograd.Function]:
    """Return the function of the given tensors that returns the table's outputs, then the saved tensors.

    precision  of kernels, which compute attention again; empty for PyTorch's operators
    """
    derived = derive(table, differentiated)
    outputs, arguments = table.outputs, (*table.inputs, *table.weights)
    seeds = tuple(f"d{name}" for name in outputs)
    forward, reverse = split(derived.step) if precision else (derived.forward, _reverse(derived, table))
    full_pass, read = _emitted(reverse, sizes, precision)
    saved = tuple(name for name in read if name not in seeds)
    results = tuple(dict.fromkeys((*outputs, *(name for name in saved if name not in arguments))))
    forward_pass, _ = _emitted(replace(forward, outputs=results), sizes, precision)
    fixed = tuple(place for place, name in enumerate(results) if f"d{name}" not in derived.reverse.inputs)
    gradients = tuple(derived.gradients.get(name, "") for name in arguments)
    parts: dict[tuple[str, ...], Pass] = {}

    def backward_from(outputs_with_gradient: tuple[str, ...]) -> Pass:
        """Return the backward pass from the outputs that have a gradient."""
        if outputs_with_gradient not in parts:
            some = derive(table, differentiated, given=outputs_with_gradient)
            rest = split(some.step)[1] if precision else _reverse(some, table)
            parts[outputs_with_gradient], _ = _emitted(rest, sizes, precision)
        return parts[outputs_with_gradient]

    class Learncost(torch.autograd.Function):
        @staticmethod
        def forward(lengths: tuple[tuple[str, int], ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            results_by_name = forward_pass(dict(zip(arguments, tensors, strict=True)), dict(lengths))
            return tuple([results_by_name[name] for name in results])

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
            values = dict(zip(arguments, inputs[1:], strict=True)) | dict(zip(results, output, strict=True))
            ctx.mark_non_differentiable(*[output[place] for place in fixed])
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*[values[name] for name in saved])
            ctx.lengths = inputs[0]
            device = output[0].device.type  # the backward pass has the autocast of the forward pass
            ctx.autocast = device, torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)

        @staticmethod
        @once_differentiable
        def backward(ctx: Any, *gradients_given: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
            gradients_there = {
                name: gradient for name, gradient in zip(outputs, gradients_given, strict=False) if gradient is not None
            }
            if not gradients_there:
                return (None, *[None for _ in arguments])
            values = dict(zip(saved, ctx.saved_tensors, strict=True))
            values |= {f"d{name}": gradient for name, gradient in gradients_there.items()}
            backward_pass = full_pass if len(gradients_there) == len(outputs) else backward_from(tuple(gradients_there))
            with torch.autocast(*ctx.autocast):
                made_gradients = backward_pass(values, dict(ctx.lengths))
            return (None, *[made_gradients.get(name) for name in gradients])

    return Learncost

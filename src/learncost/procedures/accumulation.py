"""Split a step for gradient accumulation: one table adds a microbatch's gradients to their sums, another updates the
weights.

Memory holds one gradient of every trainable weight and the activations of one microbatch. Each loss is divided by the
number of targets in the whole batch, so that the sums are the batch's gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Sum
from learncost.ir.loop import Statement, walk
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Value
from learncost.passes.fused_update import KERNELS
from learncost.procedures.needed import needed


@dataclass(frozen=True)
class Accumulated:
    """The two halves of a step.

    gather    forward, backward and weight update of a microbatch; `W.gradient.new` is `W.gradient` plus its gradient
    update    the optimizer step, which reads `W.gradient` as the gradient
    """

    gather: Table
    update: Table

    @property
    def sums(self) -> tuple[str, ...]:
        """Return the names of the accumulated gradients, whose initial values are zeros."""
        return tuple(name for name in self.gather.renewed if self.gather.values[name].role == "gathered")

    @property
    def kept(self) -> Mapping[str, str]:
        """Map the running statistics, which every microbatch updates, to the names of their new values."""
        return {name: new for name, new in self.gather.renewed.items() if name not in self.sums}


def check_accumulates(step: Table) -> None:
    """Raise `InputError` if the plan of a step updates weights in the backward pass."""
    lines = [*walk(step.lines)]
    inside = any(line.meta.kernel and line.meta.kernel.name.startswith(KERNELS) for line, _ in lines)
    if inside or any(nest.loops and line.meta.phase == "optimizer_step" for line, nest in lines):
        raise InputError(
            "--accumulate, microbatches and pipeline stages sum gradients up to the last microbatch: remove the plan "
            f"{'epilogue-update' if inside else 'fused-update'}"
        )


def accumulated(step: Table) -> Accumulated:
    """Split a step into gradient accumulation and update; accumulation costs one FLOP per gradient element and
    microbatch."""
    last = tuple(line for line in step.lines if isinstance(line, Line) and line.meta.phase == "optimizer_step")
    first: list[Statement] = [line for line in step.lines if line not in last]
    read = {name for line in last for name in line.reads}
    gradients = {
        f"d{weight}": f"{weight}.gradient" for weight in (*step.weights, *step.projections) if f"d{weight}" in read
    }
    values = dict(step.values)
    for gradient, name in gradients.items():
        shape = values[gradient].axes
        values |= {name: Value(shape, "gathered", values[gradient].of), f"{name}.new": Value(shape, "new", name)}
        meta = Meta("accumulation", phase="weight_update", local="merge")
        right = (Term(name, shape), Term(gradient, shape))
        first.append(Sum((Term(f"{name}.new", shape),), right, (), meta, (1, 1)))
    sums = tuple(gradients.values())
    with_sums = replace(step, values=values, inputs=(*step.inputs, *sums))
    results = {term.name for line in last for term in line.left}
    results_kept = [name for name in step.outputs if name not in results and name not in gradients]
    update = tuple(line.renamed(gradients) for line in last)
    return Accumulated(
        needed(replace(with_sums, lines=tuple(first)), (*results_kept, *(f"{name}.new" for name in sums))),
        needed(replace(with_sums, lines=update), [name for name in step.outputs if name in results]),
    )

"""The names of a scope of a step: values, weights of an iteration, or dropout noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from learncost.ir.term import Operand, Read, Term
from learncost.program.autograd.module import Module
from learncost.program.autograd.operators import TapeTensor
from learncost.program.autograd.state import StepState
from learncost.program.autograd.tape import Tape

Values = dict[str, TapeTensor]


@dataclass
class ScopeNames:
    """The names of one scope: their axes, the weights with their iterations, the noise, and the outer values."""

    state: StepState
    axes: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, tuple[str, ...]]
    drawn: frozenset[str]
    around: Values

    @property
    def tape(self) -> Tape:
        return self.state.tape

    @property
    def module(self) -> Module:
        return self.state.asked.module

    def count(self, axes: Sequence[str]) -> int:
        return self.state.count(axes)

    def is_value(self, name: str) -> bool:
        return name not in self.weights and name not in self.drawn

    def found(self, name: str, values: Values) -> TapeTensor:
        """Return a value by its name, or a weight."""
        if name in values or name in self.around:
            return values[name] if name in values else self.around[name]
        return self.leaf(name).decoded()

    def leaf(self, *names: str) -> TapeTensor:
        elements = sum(self.count(self.axes[name]) for name in names)
        return self.state.leaf([self.weights[name] for name in names], elements)

    def operand(self, term: Operand, values: Values) -> TapeTensor:
        """Return an operand: a value, a weight, noise, or a gather of one."""
        assert isinstance(term, Term)
        elements = self.count(term.loops)
        if term.name in self.drawn:
            return self.fresh(elements)
        tensor = self.found(term.name, values)
        reads = [axis for axis in term.axes if isinstance(axis, Read)]
        if not reads:
            return tensor
        index = next((read.at.name for read in reads if read.at.name), "")
        keeps = term.name not in self.weights  # torch.gather saves its operand, an embedding does not
        if not index:  # as many elements: the same ones in another shape
            return tensor if elements == tensor.elements else tensor.slice(elements)
        places = self.found(index, values)
        if keeps and self.module.attention == "disentangled":
            places = places.copied()  # clamped in every layer
        return tensor.gather(places, elements, keeps)

    def fresh(self, elements: int) -> TapeTensor:
        return TapeTensor(self.tape, self.tape.new(elements))

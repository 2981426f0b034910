"""The tape of PyTorch's autograd, on tensors without values: what is kept for the backward pass, and when it goes.

As `torch/csrc/autograd/engine.cpp` has it: the node that was made last runs first; gradients that meet are added, in
place where the first of them is nobody else's (`input_buffer.cpp`); what a node kept goes when it has run. A frame is
a part of the forward pass under `torch.utils.checkpoint`: it keeps what it was given, and runs again when the first of
its nodes is needed: up to the last tensor that is kept, or as a whole with `use_reentrant=True`.

Memory comes back as Python gives it: a tensor's room is taken as long as anything refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from sys import getrefcount

from learncost.program.account import Allocation, AllocationLog


@dataclass(eq=False, slots=True)
class TapeValue:
    """A tensor without values.

    elements  how many there are
    width     bytes of one
    room      that holds them, of another one's where it is a view
    node      where its gradient goes, with which result of it; None where it needs none
    turned    whether it lies in memory with its heads and positions the other way round
    """

    elements: int
    width: int
    allocation: Allocation
    node: TapeNode | None = None
    result: int = 0
    view: bool = False
    turned: bool = False


Gradients = list[TapeValue | None]
Backward = Callable[[Gradients], Sequence[TapeValue | None]]
"""From the gradients of a node's results to those of its operands. Both are given up by who had them."""


@dataclass(eq=False, slots=True)
class TapeNode:
    """An operator that was run, or a weight, whose `backward` is None and whose gradient stays.

    operands   where the gradients of the operands go, and how many elements of how many bytes they have
    gradients  of its results, as far as they are there
    kept       the tensors that its backward needs
    frame      the checkpointed part that it belongs to, where that has to make again what it keeps
    """

    backward: Backward | None
    operands: tuple[tuple[TapeNode, int, int, int] | None, ...] = ()
    gradients: Gradients = field(default_factory=lambda: [None])
    kept: tuple[TapeValue, ...] = ()
    frame: Frame | None = None
    label: str = ""


@dataclass(eq=False, slots=True)
class Frame:
    """A part of the forward pass: `run` makes it again; `nodes` are those that keep something."""

    run: Callable[[], object]
    nodes: list[TapeNode] = field(default_factory=list)


WEIGHT = "a weight"
"""The label of what is no operator."""

_REMADE = TapeNode(None)
"""In the place of the nodes of what runs again: their gradients are wanted, and go elsewhere."""


class _RemadeError(Exception):
    """All that a frame keeps was made again."""


class Tape:
    """What runs forward, to be run backwards.

    width      bytes of an element, where nothing else is said
    label      what runs now
    gradients  bytes of weights' gradients when `stop_at` bytes were taken
    cuda       whether it runs on a GPU, where some operators are other kernels
    """

    cuda = False

    def __init__(self, width: int, stop_at: int | None = None) -> None:
        self.width, self.label = width, ""
        self.gradients = 0
        self.account = AllocationLog(stop_at, lambda: self.label, self._look)
        self._weights: list[TapeNode] = []
        self._nodes: list[TapeNode] = []
        self._frame: Frame | None = None
        self._again: list[TapeNode] | None = None
        self._without = False

    def new(self, elements: int, width: int = 0, turned: bool = False) -> TapeValue:
        width = width or self.width
        return TapeValue(elements, width, Allocation(self.account, elements * width), turned=turned)

    def _look(self, allocations: Mapping[int, tuple[int, int | str]]) -> None:
        gradients = {id(gradient.allocation) for node in self._weights for gradient in node.gradients if gradient}
        self.gradients = sum(allocations[allocation][0] for allocation in gradients)

    def weight(self, elements: int, width: int, allocation: Allocation) -> TapeValue:
        """A weight that learns, in a room that holds others too."""
        node = TapeNode(None, label=WEIGHT)
        self._weights.append(node)
        return TapeValue(elements, width, allocation, node)

    @property
    def learned(self) -> list[int]:
        """Elements of the weights that have a gradient, in the order in which they were first read."""
        return [gradient.elements for node in self._weights for gradient in node.gradients if gradient]

    def run(
        self,
        operands: Sequence[TapeValue],
        results: Sequence[tuple[int, int]],
        backward: Backward,
        keeps: Sequence[TapeValue] = (),
        keeps_results: Sequence[int] = (),
        views: Allocation | None = None,
        turned: bool = False,
    ) -> list[TapeValue]:
        """An operator: its results, new ones of so many elements of so many bytes, or in the room they are views of.

        keeps          operands that its backward needs
        keeps_results  results that its backward needs, by number
        backward       must hold no tensors
        """
        needed = not self._without and any(operand.node for operand in operands)
        target = self._again.pop(0) if self._again and needed and (keeps or keeps_results) else None
        if target and not keeps_results and not self._again:
            target.kept = tuple(keeps)
            raise _RemadeError
        if views:
            made_values = [TapeValue(size, width, views, None, 0, True, turned) for size, width in results]
        else:
            made_values = [self.new(size, width, turned) for size, width in results]
        if not needed:
            return made_values
        remembered = (*keeps, *(made_values[number] for number in keeps_results))
        if self._again is None:
            node = self._node(operands, len(made_values), backward, remembered)
        elif target:
            node, target.kept = _REMADE, remembered
            if not self._again:
                raise _RemadeError
        else:
            node = _REMADE
        for number, value in enumerate(made_values):
            value.node, value.result = node, number
        return made_values

    def _node(
        self, operands: Sequence[TapeValue], results: int, backward: Backward, remembered: tuple[TapeValue, ...]
    ) -> TapeNode:
        places = tuple(
            (operand.node, operand.result, operand.elements, operand.width) if operand.node else None
            for operand in operands
        )
        node = TapeNode(backward, places, [None] * results, label=self.label)
        if remembered and self._frame:
            node.frame = self._frame
            self._frame.nodes.append(node)
        else:
            node.kept = remembered
        self._nodes.append(node)
        return node

    def checkpoint(self, run: Callable[[], list[TapeValue]]) -> list[TapeValue]:
        """A part of the forward pass whose operators keep nothing; `run` holds what the part is given."""
        self._frame = Frame(run)
        result = run()
        self._frame = None
        return result

    def reentrant(
        self, run: Callable[[Sequence[TapeValue]], list[TapeValue]], arguments: Sequence[TapeValue]
    ) -> list[TapeValue]:
        """The same as PyTorch's older way: the part runs without a tape, and its node runs it again with one."""
        self._without = True
        results = run(arguments)
        self._without = False
        if not any(value.node for value in arguments):
            return results  # as PyTorch has it: nothing below wants a gradient, so nothing in it gets one
        sizes = [(value.elements, value.width, value.allocation) for value in results]
        needs = [bool(value.node) for value in arguments]
        detached = [
            TapeValue(value.elements, value.width, value.allocation, turned=value.turned) for value in arguments
        ]

        def backward(gradients: Gradients) -> Sequence[TapeValue | None]:
            return self._run_again(run, detached, needs, gradients)

        node = self._node(arguments, len(sizes), backward, ())
        for number, value in enumerate(results):
            value.node, value.result = node, number
        return results

    def _run_again(
        self,
        run: Callable[[Sequence[TapeValue]], list[TapeValue]],
        detached: list[TapeValue],
        needs: list[bool],
        gradients: Gradients,
    ) -> Sequence[TapeValue | None]:
        before, self._nodes, label = self._nodes, [], self.label
        leaves = [TapeNode(None) if need else None for need in needs]
        for value, leaf in zip(detached, leaves, strict=True):
            value.node, value.result = leaf, 0
        results = run(detached)
        for value in results:
            if value.node:
                value.node.gradients[value.result] = gradients.pop(0)
        outputs = [value.allocation for value in results]  # CheckpointFunction.backward has them to its end
        del results, value
        gradients.clear()
        for operand in detached:
            operand.node = None
        detached.clear()
        self._backward()
        del outputs
        self._nodes, self.label = before, label
        return [leaf.gradients[0] if leaf else None for leaf in leaves]

    def backward(self, outputs: Sequence[TapeValue]) -> None:
        """From the outputs, whose gradients are given, to the gradients of all weights."""
        for output in outputs:
            if output.node:
                output.node.gradients[output.result] = self.new(output.elements, output.width)
        self._backward()

    def _backward(self) -> None:
        while self._nodes:
            node = self._nodes.pop()
            if not any(node.gradients):
                node.kept = ()
                continue
            self.label = node.label if node.label.endswith(", backward") else f"{node.label}, backward"
            again = node.frame is not None
            self._remake(node)
            self._back(node, again)

    def _remake(self, node: TapeNode) -> None:
        frame = node.frame
        node.frame = None
        if frame is None or not frame.nodes:
            return
        self._again, frame.nodes = frame.nodes, []
        label = self.label
        with suppress(_RemadeError):
            frame.run()
        self._again, self.label = None, label

    def _back(self, node: TapeNode, again: bool) -> None:
        gradients, node.gradients = node.gradients, []
        assert node.backward
        results = list(node.backward(gradients))
        if again:
            node.kept = ()  # the hook that unpacks what was made again holds it no longer
        for number, place in enumerate(node.operands):
            gradient, results[number] = results[number], None
            results[number] = self._settled(gradient, *place[2:]) if place and gradient else None
            del gradient
        del gradients
        node.kept = ()
        node.backward = None
        for place in reversed(node.operands):
            gradient = results.pop()
            if place and gradient:
                owner, number, *_ = place
                other = owner.gradients[number]
                if other is None:
                    owner.gradients[number] = gradient
                elif other.view or _references(other) != _ALONE:  # else in place
                    owner.gradients[number] = self.new(gradient.elements, gradient.width, gradient.turned)
                if owner.label == WEIGHT and (waiting := owner.gradients[number]):
                    self.account.log.call(id(waiting.allocation), "gradients")
                    del waiting
                del other
            del gradient

    def _settled(self, gradient: TapeValue, elements: int, width: int) -> TapeValue:
        """A gradient as its operand is (`validate_outputs`): summed where that was spread, in its type."""
        if gradient.elements > elements:
            gradient = self.new(elements, gradient.width)
        return gradient if gradient.width == width else self.new(elements, width, gradient.turned)


def _references(waiting: TapeValue) -> tuple[int, int]:
    """How many hold a gradient that waits, and its memory."""
    return getrefcount(waiting), getrefcount(waiting.allocation)


def _of_one_alone() -> tuple[int, int]:
    place = [TapeValue(0, 0, Allocation(AllocationLog(), 0))]
    other = place[0]
    return _references(other)


_ALONE = _of_one_alone()
"""Where its place alone does, as this Python counts."""

"""The tape of PyTorch's autograd, on tensors without values: what is kept for the backward pass, and when it goes.

As `torch/csrc/autograd/engine.cpp` has it: the node that was made last runs first; gradients that meet are added into a
new tensor; what a node kept goes when it has run. A frame is a part of the forward pass under
`torch.utils.checkpoint`: it keeps what it was given, and runs again, up to the last tensor that is kept, when the first
of its nodes needs one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from learncost.schedule.account import Account, Room


@dataclass(eq=False)
class Value:
    """A tensor: how many elements, the room that holds them (of another one's where it is a view), and where its
    gradient goes: which result of which node; None where it needs none."""

    elements: int
    room: Room
    node: Node | None = None
    result: int = 0


Gradients = list[Value | None]
Backward = Callable[[Gradients], Sequence[Value | None]]
"""From the gradients of a node's results to those of its operands. Both are given up by who had them."""


@dataclass(eq=False)
class Node:
    """An operator that was run, or a weight, whose `backward` is None and whose gradient stays.

    operands   where the gradients of the operands go
    gradients  of its results, as far as they are there
    kept       the tensors that its backward needs
    frame      the checkpointed part that it belongs to, where that has to make again what it keeps
    """

    backward: Backward | None
    operands: tuple[tuple[Node, int] | None, ...] = ()
    gradients: Gradients = field(default_factory=lambda: [None])
    kept: tuple[Value, ...] = ()
    frame: Frame | None = None
    label: str = ""


@dataclass(eq=False)
class Frame:
    """A part of the forward pass: `run` makes it again; `nodes` are those that keep something."""

    run: Callable[[], None]
    nodes: list[Node] = field(default_factory=list)


_REMADE = Node(None)
"""In the place of the nodes of what runs again: their gradients are wanted, and go elsewhere."""


class _RemadeError(Exception):
    """All that a frame keeps was made again."""


class Tape:
    """What runs forward, to be run backwards.

    width   bytes of an element
    label   what runs now
    gradients  bytes of weights' gradients when `stop_at` bytes were taken
    """

    def __init__(self, width: int, stop_at: int | None = None) -> None:
        self.width, self.label = width, ""
        self.gradients = 0
        self.account = Account(stop_at, lambda: self.label, self._look)
        self._weights: list[Node] = []
        self._nodes: list[Node] = []
        self._frame: Frame | None = None
        self._again: list[Node] | None = None

    def new(self, elements: int) -> Value:
        return Value(elements, Room(self.account, elements * self.width))

    def _look(self, taken: Mapping[int, tuple[int, int | str]]) -> None:
        found = (gradient for node in self._weights for gradient in node.gradients if gradient)
        self.gradients = sum(taken[id(gradient.room)][0] for gradient in found)

    def weight(self, elements: int, room: Room) -> Value:
        """A weight that learns, in a room that holds others too."""
        node = Node(None)
        self._weights.append(node)
        return Value(elements, room, node)

    def run(
        self,
        operands: Sequence[Value],
        results: Sequence[int],
        backward: Backward,
        keeps: Sequence[Value] = (),
        keeps_results: Sequence[int] = (),
        views: Room | None = None,
    ) -> list[Value]:
        """An operator: its results, new ones of so many elements each, or in the room that they are views of.

        keeps          operands that its backward needs
        keeps_results  results that its backward needs, by number
        backward       must hold no tensors
        """
        needed = any(operand.node for operand in operands)
        target = self._again.pop(0) if self._again and needed and (keeps or keeps_results) else None
        if target and not keeps_results and not self._again:
            target.kept = tuple(keeps)
            raise _RemadeError
        made = [Value(size, views) if views else self.new(size) for size in results]
        kept = (*keeps, *(made[number] for number in keeps_results))
        if not needed:
            return made
        if self._again is None:
            node = self._node(operands, len(made), backward, kept)
        elif target:
            node, target.kept = _REMADE, kept
            if not self._again:
                raise _RemadeError
        else:
            node = _REMADE
        for number, value in enumerate(made):
            value.node, value.result = node, number
        return made

    def _node(self, operands: Sequence[Value], results: int, backward: Backward, kept: tuple[Value, ...]) -> Node:
        places = tuple((one.node, one.result) if one.node else None for one in operands)
        node = Node(backward, places, [None] * results, label=self.label)
        if kept and self._frame:
            node.frame = self._frame
            self._frame.nodes.append(node)
        else:
            node.kept = kept
        self._nodes.append(node)
        return node

    def checkpoint(self, run: Callable[[], list[Value]]) -> list[Value]:
        """A part of the forward pass whose operators keep nothing; `run` holds what the part is given."""

        def again() -> None:
            run()

        self._frame = Frame(again)
        result = run()
        self._frame = None
        return result

    def backward(self, loss: Value) -> None:
        """From the loss, whose gradient is 1, to the gradients of all weights."""
        assert loss.node
        loss.node.gradients[loss.result] = self.new(1)
        while self._nodes:
            node = self._nodes.pop()
            if not any(node.gradients):
                continue
            self.label = f"{node.label}, backward"
            self._remake(node)
            self._back(node)

    def _remake(self, node: Node) -> None:
        frame = node.frame
        node.frame = None
        if frame is None or not frame.nodes:
            return
        self._again, frame.nodes = frame.nodes, []
        label = self.label
        with suppress(_RemadeError):
            frame.run()
        self._again, self.label = None, label

    def _back(self, node: Node) -> None:
        gradients, node.gradients = node.gradients, []
        assert node.backward
        found = list(node.backward(gradients))
        del gradients
        node.kept = ()
        for place in reversed(node.operands):
            gradient = found.pop()
            if place and gradient:
                owner, number = place
                other = owner.gradients[number]
                owner.gradients[number] = self.new(gradient.elements) if other else gradient
                del other
            del gradient

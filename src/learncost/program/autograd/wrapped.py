"""A module over devices as PyTorch wraps it: DistributedDataParallel, or `fully_shard` on every block and on the whole.

What a wrapper takes beside the module, PyTorch 2.13. DDP (`torch/csrc/distributed/c10d/reducer.cpp`) has a place in a
bucket for every gradient beside it (`gradient_as_bucket_view=False`), from step to step. FSDP2
(`torch/distributed/fsdp/_fully_shard`) has parts of weights, and gathers those of a block before it runs, forward and
again backward:

- a message of all parts (`all_gather_output`) is there beside the weights that are copied out of it; in the forward
  pass until the next block's is there, in the backward pass it is gone then, and that of the block before is gathered;
- weights outside of blocks are whole from the first line to the end of the backward pass, and so are their gradients;
- gradients of a block are copied into one message (`reduce_scatter_input`), which stays until the next block is done,
  and what this device has of the sum is one array.

Parts are told to the element: PyTorch fills each up along the first axis of its weight, by less than a row. What the
library that sends has for itself is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from learncost.program.account import Allocation, TensorStorage
from learncost.program.autograd.operators import TapeTensor
from learncost.program.autograd.tape import Gradients, Tape, TapeValue

BUCKETS, GATHERED, MESSAGES = "buckets", "gathered weights", "messages"
"""What wrappers take, as memory is told by."""


@dataclass(frozen=True)
class Wrapping:
    """How a module lies on devices.

    parts    into how many every weight is cut; 1: DDP
    stored   bytes of an element of a part that learns; 0 where that is the optimizer's copy in float
    reduced  bytes of an element of a gradient while it is summed, and afterwards
    """

    parts: int
    stored: int
    reduced: int

    @property
    def said(self) -> str:
        """What is wrapped, in words."""
        if self.parts == 1:
            return "DistributedDataParallel, whose buckets lie beside the gradients"
        return "fully_shard of every block and of the whole module, of which parts are told to the element"

    def part(self, elements: int) -> int:
        """The elements of a weight that a device has."""
        return -(-elements // self.parts)


@dataclass(eq=False)
class ParameterGroup:
    """The weights of a block, or those outside of blocks: `elements` of all, filled up; `place` among the blocks."""

    elements: int
    allocation: TensorStorage
    place: int = -1
    message: Allocation | None = None
    weights: list[TapeValue] = field(default_factory=list)
    is_done: bool = False


class Sharded:
    """The weights of a step under `fully_shard`.

    width  bytes of an element of a gathered weight
    """

    def __init__(self, tape: Tape, wrapping: Wrapping, width: int) -> None:
        self.tape, self.wrapping, self.width = tape, wrapping, width
        self._groups: dict[Hashable, ParameterGroup] = {}
        self._order: list[ParameterGroup] = []
        self._gathered: Allocation | None = None  # the message of the block before, in the forward pass
        self._scattered: Allocation | None = None  # and in the backward pass

    def group(self, key: Hashable, elements: Sequence[int] = ()) -> ParameterGroup:
        """The group of weights of so many elements, which are known when it is first asked for."""
        if key not in self._groups:
            padded = sum(self.wrapping.part(several) for several in elements) * self.wrapping.parts
            self._groups[key] = ParameterGroup(padded, TensorStorage(self.tape.account))
        return self._groups[key]

    def _room(self, size: int, label: str) -> Allocation:
        label, self.tape.label = self.tape.label, label
        allocation = Allocation(self.tape.account, size)
        self.tape.label = label
        return allocation

    def _gather(self, group: ParameterGroup) -> None:
        """Begin to gather: the parts are cast first where they are floats, and the message is of all devices' parts."""
        if group.message is None and not group.allocation.bytes:
            casts = 0 if self.wrapping.stored else group.elements // self.wrapping.parts * self.width
            cast = self._room(casts, MESSAGES)
            group.message = self._room(group.elements * self.width, MESSAGES)
            del cast

    def _copy_out(self, group: ParameterGroup) -> Allocation | None:
        """Weights out of their message, which is given to who asks."""
        message, group.message = group.message, None
        if message:
            label, self.tape.label = self.tape.label, GATHERED
            group.allocation.resize(group.elements * self.width)
            self.tape.label = label
        return message

    def before_forward(self, group: ParameterGroup) -> None:
        self._gather(group)
        self._gathered = None
        self._gathered = self._copy_out(group)

    def after_forward(self, group: ParameterGroup, keeps: bool = False) -> None:
        """After a block its weights go; of the whole module the last message does."""
        group.place = len(self._order)
        self._order.append(group)
        if keeps:
            self._gathered = None
        else:
            group.allocation.resize(0)

    def before_backward(self, group: ParameterGroup) -> None:
        self._gather(group)
        message = self._copy_out(group)
        del message
        if group.place > 0:
            self._gather(self._order[group.place - 1])

    def after_backward(self, group: ParameterGroup) -> None:
        """A block's gradients are summed, and this device has its part of each."""
        learned = [weight.node for weight in group.weights if weight.node and weight.node.gradients[0]]
        parts = [self.wrapping.part(node.gradients[0].elements) for node in learned if node.gradients[0]]
        group.allocation.resize(0)
        group.is_done = True
        self._scattered = None
        if not learned:
            return
        elements, width = sum(parts), self.wrapping.reduced
        message = self._room(elements * self.wrapping.parts * width, MESSAGES)
        for node in learned:
            node.gradients[0] = None
        reduced = Allocation(self.tape.account, elements * width)
        self.tape.account.log.call(id(reduced), "gradients")
        for node, part in zip(learned, parts, strict=True):
            node.gradients[0] = TapeValue(part, width, reduced, view=True)
        self._scattered = message

    def finish(self) -> None:
        """At the end of the backward pass: what no gradient came back through."""
        for group in self._groups.values():
            if not group.is_done:
                self.after_backward(group)
        self._scattered = None

    def entered(self, group: ParameterGroup, given: Sequence[TapeTensor]) -> list[TapeTensor]:
        """What a block is given; when all that it made has run backwards, its gradients are complete."""
        first, *others = given
        return [self._watched(first, self.after_backward, group), *others]

    def left(self, group: ParameterGroup, made: Sequence[TapeTensor]) -> list[TapeTensor]:
        """What a block made; a gradient that comes is the first that the block sees."""
        *others, last = made
        return [*others, self._watched(last, self.before_backward, group)]

    def _watched(self, tensor: TapeTensor, tell: Callable[[ParameterGroup], None], group: ParameterGroup) -> TapeTensor:
        """The same tensor, whose gradient is told of."""
        value = tensor.value

        def backward(gradients: Gradients) -> Gradients:
            tell(group)
            return [gradients.pop()]

        sizes = ((value.elements, value.width),)
        (result,) = self.tape.run((value,), sizes, backward, views=value.allocation, turned=value.turned)
        return TapeTensor(self.tape, result)

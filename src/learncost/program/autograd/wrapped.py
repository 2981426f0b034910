"""A module on several devices as PyTorch wraps it: DistributedDataParallel, or `fully_shard` on every block and the
root.

The memory of wrappers in PyTorch 2.13. DDP (`torch/csrc/distributed/c10d/reducer.cpp`) has bucket space for every
gradient in addition to it (`gradient_as_bucket_view=False`), between steps, too. FSDP2
(`torch/distributed/fsdp/_fully_shard`) stores shards of weights, and all-gathers those of a block before it runs,
forward and again backward:
- a bucket of all shards (`all_gather_output`) is alive together with the weights that are copied out of it; in the
  forward
  pass until the next block's is allocated, in the backward pass it is freed by then, and that of the previous block is
  gathered;
- weights outside of blocks are unsharded from the first line to the end of the backward pass, and so are their
  gradients;
- gradients of a block are copied into one bucket (`reduce_scatter_input`), which lives until the next block is done,
  and
  this device's shard of the sum is one array.
Shards are predicted to the element: PyTorch pads each along the first axis of its weight, by less than a row. The
communication library's own memory is not included.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence

from learncost.ir.dataclass import dataclass, field
from learncost.program.autograd.operators import Gradients, Storage, TapeTensor
from learncost.program.autograd.tape import Tape, TapeNode
from learncost.program.program import BEFORE, GRADIENTS, WEIGHTS

BUCKETS, GATHERED, MESSAGES = "buckets", "gathered weights", "messages"
"""The categories of memory that wrappers use."""


@dataclass(frozen=True)
class Wrapping:
    """The distribution of a module over devices.

    parts    the number of shards of every weight; 1: DDP
    stored   bytes of an element of a trainable shard; 0 where that is the optimizer's copy in float
    reduced  bytes of an element of a gradient during and after its reduction
    reshards whether the weights of a block are freed behind its forward pass (`reshard_after_forward`)
    staged   whether weights stay gathered from the first pass to the last, as in stages of a pipeline
    divides  under DDP, whether each device updates a part of the weights (ZeroRedundancyOptimizer)
    syncs    whether gradients are reduced behind every microbatch, and not behind the last alone (`no_sync`)
    keeps_inputs  whether the inputs of blocks and their gradients stay to the end of the backward pass: FSDP 1's hooks
             of frozen weights hold the leaves that reentrant checkpoints around a wrapped block make of its inputs
             (torch/distributed/fsdp/_runtime_utils.py: _register_post_backward_reshard_only_hook)
    """

    parts: int
    stored: int
    reduced: int
    reshards: bool = True
    syncs: bool = True
    divides: bool = False
    staged: bool = False
    keeps_inputs: bool = False

    @property
    def summary(self) -> str:
        """A description of the wrapper."""
        if self.parts == 1:
            buckets = "in addition to the gradients" if self.reduced else "the sums of the gradients"
            states = " and ZeroRedundancyOptimizer, whose states are divided evenly" if self.divides else ""
            return f"DistributedDataParallel, whose buckets are {buckets}{states}"
        kept = "" if self.reshards else ", with reshard_after_forward=False"
        kept += "" if self.syncs else ", which reduces gradients only after the last microbatch"
        kept += ", whose hooks keep the inputs of blocks and their gradients, as FSDP 1" if self.keeps_inputs else ""
        return f"fully_shard of every block and of the whole module{kept}, with shards exact to the element"

    def part(self, elements: int) -> int:
        """Return the elements of a weight's shard."""
        return -(-elements // self.parts)


@dataclass(eq=False)
class ParameterGroup:
    """The weights of a block, or those outside of blocks: `elements` of all, padded; `place` among the blocks."""

    elements: int
    storage: Storage = field(default_factory=lambda: Storage(BEFORE))
    place: int = -1
    message: int = BEFORE
    weights: list[TapeTensor] = field(default_factory=list)
    is_done: bool = False


class Sharded:
    """The weights of a step under `fully_shard`.

    width    bytes of an element of a gathered weight
    hosted   roles of shards that are on the host: of weights (`CPUOffloadPolicy`), of gradients
    reduces  whether the gradients of this microbatch are reduced
    """

    def __init__(self, tape: Tape, wrapping: Wrapping, width: int, hosted: Collection[str] = ()) -> None:
        self.tape, self.wrapping, self.width, self.hosted = tape, wrapping, width, hosted
        tape.is_sharded = wrapping.syncs or wrapping.reduced != width
        tape.keeps_inputs = wrapping.keeps_inputs
        self.reduces = True
        self._groups: dict[Hashable, ParameterGroup] = {}
        self._order: list[ParameterGroup] = []
        self._gathered = BEFORE  # the bucket of the previous block, in the forward pass
        self._scattered = BEFORE  # and in the backward pass

    def group(self, key: Hashable, elements: Sequence[int] = ()) -> ParameterGroup:
        """Return the group of weights with these elements, which are given at the first call."""
        if key not in self._groups:
            padded = sum(self.wrapping.part(several) for several in elements) * self.wrapping.parts
            self._groups[key] = ParameterGroup(padded)
        return self._groups[key]

    def _message(self, size: int, name: str = "c10d::allgather_") -> int:
        """Return a new bucket, which an op fills."""
        buffer = self.tape.builder.make(size, MESSAGES, MESSAGES)
        self.tape.builder.run(name, label=MESSAGES)
        self.tape.builder.hold(buffer)
        return buffer

    def _resize(self, group: ParameterGroup, size: int) -> None:
        """Free the weights of a group, and allocate them with a new size, as PyTorch's `resize_`."""
        self.tape.builder.hold(group.storage.buffer)
        group.storage.buffer = self.tape.builder.make(size, GATHERED, GATHERED) if size else BEFORE

    def _gather(self, group: ParameterGroup) -> None:
        """Start an all-gather: shards in float are cast first, those on the host are copied, and the bucket has the
        shards of all devices.
        """
        if group.message == group.storage.buffer == BEFORE:
            copies = not self.wrapping.stored or WEIGHTS in self.hosted
            cast = self._message(group.elements // self.wrapping.parts * self.width if copies else 0)
            group.message = self._message(group.elements * self.width)
            self.tape.builder.hold(cast)

    def _copy_out(self, group: ParameterGroup) -> int:
        """Copy weights out of their bucket, and return that."""
        message, group.message = group.message, BEFORE
        if message != BEFORE:
            self._resize(group, group.elements * self.width)
            self.tape.builder.run("aten::split_with_sizes_copy", label=GATHERED)
            self.tape.builder.hold(message)
        return message

    def before_forward(self, group: ParameterGroup) -> None:
        self._gather(group)
        self.tape.builder.hold(self._gathered)
        self._gathered = self._copy_out(group)

    def after_forward(self, group: ParameterGroup, keeps: bool = False) -> None:
        """Free a block's weights after its forward; for the root module, free the last bucket."""
        if group not in self._order:
            group.place = len(self._order)
            self._order.append(group)
        if keeps:
            self.tape.builder.hold(self._gathered)
            self._gathered = BEFORE
        elif self.wrapping.reshards:
            self._resize(group, 0)

    def before_backward(self, group: ParameterGroup) -> None:
        self._gather(group)
        self._copy_out(group)
        if group.place > 0:
            self._gather(self._order[group.place - 1])

    def after_backward(self, group: ParameterGroup) -> None:
        """Reduce-scatter a block's gradients, so that this device has its shard of each, or keep them whole."""
        nodes, width = [weight.node for weight in group.weights if weight.node], self.wrapping.reduced
        whole = {node: sums for node in nodes if (sums := self._whole(node))}
        if self.reduces or not self.wrapping.staged:
            self._resize(group, 0)
        group.is_done = True
        self.tape.builder.hold(self._scattered)
        self._scattered = BEFORE
        if not self.reduces:
            for node, gradient in whole.items():
                self.tape.keep_gradient(node, gradient, width)
        if not self.reduces or not whole:
            return
        parts = [self.wrapping.part(gradient.elements) for gradient in whole.values()]
        elements = sum(parts)
        self._scattered = self._message(elements * self.wrapping.parts * width, "fsdp::chunk_cat")
        self.tape.hold(*whole.values())
        reduced = Storage(self.tape.builder.make(elements * width, GRADIENTS))
        self.tape.builder.run("c10d::reduce_scatter_")
        self.tape.builder.hold(reduced.buffer)
        for node, part in zip(whole, parts, strict=True):
            if GRADIENTS in self.hosted:
                node.gradients[0] = None  # copied to the host, and added there
            else:
                self.tape.give_gradient(node, TapeTensor(self.tape, part, width, reduced, view=True))

    def _whole(self, node: TapeNode) -> TapeTensor | None:
        """Return the gradient that is reduced, or kept whole: of this microbatch, or summed with those before it."""
        return node.gradients[0] if self.wrapping.syncs else self.tape.summed_whole(node)

    def finish(self) -> None:
        """Reduce the groups that no gradient passed through, at the end of the backward pass of a microbatch."""
        for group in self._groups.values():
            if not group.is_done:
                self.after_backward(group)
            group.is_done = False
        self.tape.builder.hold(self._scattered)
        if not self.wrapping.staged:
            self._order.clear()
        self._gathered = self._scattered = BEFORE

    def entered(self, group: ParameterGroup, given: Sequence[TapeTensor]) -> list[TapeTensor]:
        """Return the inputs of a block, watched for the end of its backward."""
        first, *others = given
        return [self._watched(first, self.after_backward, group), *others]

    def left(self, group: ParameterGroup, made: Sequence[TapeTensor]) -> list[TapeTensor]:
        """Return the outputs of a block, watched for the start of its backward."""
        *others, last = made
        return [*others, self._watched(last, self.before_backward, group)]

    def _watched(
        self, tensor: TapeTensor, report: Callable[[ParameterGroup], None], group: ParameterGroup
    ) -> TapeTensor:
        """Return the same tensor with a callback for its gradient."""

        def backward(gradients: Gradients) -> Gradients:
            report(group)
            return gradients

        sizes = ((tensor.elements, tensor.width),)
        return self.tape.run("view", (tensor,), sizes, backward, views=tensor.storage, transposed=tensor.transposed)[0]

"""The tape of PyTorch's autograd, on tensors without values: the saved tensors of the backward pass, and their
lifetimes.

It follows `torch/csrc/autograd/engine.cpp`: the newest node runs first; gradients of one tensor are added, in-place
where the first has no other owner (`input_buffer.cpp`); a node's saved tensors are freed after it has run. A frame is a
part of the forward pass under `torch.utils.checkpoint`: it saves its inputs, and is recomputed when the first of its
nodes is needed: up to the last saved tensor, or completely with `use_reentrant=True`.

A tensor is in memory until the last operator that reads or writes it, or `hold`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import prod
from typing import Any

from learncost.ir.dataclass import dataclass, field, replace
from learncost.program.autograd.operators import Gradients, Storage, TapeTensor
from learncost.program.program import (
    ACTIVATIONS,
    BACKWARD,
    ENDS,
    GRADIENTS,
    HOST,
    RECOMPUTE,
    SHOWN,
    WORKSPACE,
    Operand,
    ProgramBuilder,
    omitted_of,
)

Backward = Callable[[Gradients], Gradients]
"""A function from the gradients of a node's results to those of its operands."""


@dataclass(eq=False, slots=True)
class TapeNode:
    """An operator that has run, or a weight, whose `backward` is None and whose gradient remains.

    shape      of a weight
    operands   the receivers of the operands' gradients, with their numbers of elements and widths
    gradients  of its results, as far as they are defined
    saved      its saved tensors
    frame      the checkpoint that recomputes its saved tensors
    """

    backward: Backward | None
    operands: tuple[tuple[TapeNode, int, int, int] | None, ...] = ()
    gradients: Gradients = field(default_factory=lambda: [None])
    saved: tuple[TapeTensor, ...] = ()
    frame: Frame | None = None
    label: str = ""
    name: str = ""
    shape: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Frame:
    """A part of the forward pass: `run` recomputes it from its inputs; `nodes` are those with saved tensors.

    inputs   as they are saved
    others   inputs of several parts
    results  of the selected operators, which are not computed again
    products how many matrix products have run
    """

    run: Callable[[Sequence[TapeTensor]], object]
    inputs: Sequence[TapeTensor]
    others: Sequence[TapeTensor]
    results: list[Sequence[TapeTensor]] = field(default_factory=list)
    products: int = 0
    nodes: list[TapeNode] = field(default_factory=list)


TYPES = {1: "bool", 2: "bfloat16", 4: "float32", 8: "float64"}
"""The types of elements by their bytes."""

WEIGHT = "a weight"
"""The label of weights."""

STASH, SMALLEST = 5, 1024
"""Saved tensors that stay until as many later ones are copied to the host, and bytes of the smallest that is copied:
`OffloadActivations` of torchtune 05cda5e9 (training/_activation_offloading.py) and of TRL."""

_RECOMPUTED = TapeNode(None)
"""A placeholder for the nodes of recomputed operators, whose gradients flow elsewhere."""


class StopRecomputationError(Exception):
    """All saved tensors of a frame have been recomputed."""


class Tape:
    """The operators that have run forward, in order.

    width      bytes of an element, by default
    label      the operator that runs now
    nodes      those whose backward pass is the next, oldest first
    cuda       whether it runs on a GPU, where some operators have other kernels
    hooked     whether a hook of each weight steps the optimizer and sets the gradient to None, as soon as all operators
               that read the weight have run backward. It is written with `Tensor.register_post_accumulate_grad_hook`
               and an optimizer for each weight: PyTorch's tutorial "How to save memory by fusing the optimizer step
               into the backward pass", and torchtune's `optimizer_in_bwd`
    summed     bytes of an element of the sums to which a hook adds the gradient instead, as Megatron's `main_grad`;
               0: there are none
    autocast   bytes of an element of the type to which autocast casts operands of products; 0: there is no autocast
    """

    def __init__(
        self, width: int, cuda: bool = False, hooked: bool = False, summed: int = 0, autocast: int = 0
    ) -> None:
        self.width, self.label, self.cuda, self.autocast = width, "", cuda, autocast
        self.builder = ProgramBuilder("cuda" if cuda else "cpu", lambda: self.label)
        self.is_sharded = False  # whether gradients wait for their reduction
        self._name, self._read = "", list[Operand]()
        self._arguments: Mapping[str, Any] = {}  # of the operator that runs now
        self._weights: list[TapeNode] = []
        self._repeated: dict[TapeNode, list[TapeNode]] = {}  # those of omitted iterations, by the weight before them
        self.nodes: list[TapeNode | Callable[[], None]] = []
        self._frame: Frame | None = None
        self._again: list[TapeNode] | None = None
        self._without = False
        self._casts: dict[TapeNode, TapeTensor] = {}
        self._hooked, self._sum_width = hooked, summed
        self.offloads = False  # whether tensors that are saved now go to the host
        self.selects = False  # whether frames keep the results of some operators (`_is_selected`)
        self._source: Frame | None = None  # of what is recomputed
        self._stash: list[TapeTensor] = []
        self._summed: dict[TapeNode, TapeTensor] = {}
        self._readers: Counter[TapeNode] = Counter()
        self._waiting: Counter[int] = Counter()  # gradients that no node has read yet, by their buffers
        self.keeps_inputs, self._kept_inputs = False, list[TapeTensor]()  # of checkpoints (`Wrapping.keeps_inputs`)

    def new(self, elements: int, width: int = 0, transposed: bool = False, name: str = "") -> TapeTensor:
        """Run a kernel, which allocates its result; `name` is its operator's, by default that of the node that runs."""
        value = self._value(elements, width or self.width, transposed)
        self.builder.run(f"aten::{name or self._name}", self._read, [self._operand(value)])
        return value

    def _value(self, elements: int, width: int, transposed: bool) -> TapeTensor:
        return TapeTensor(self, elements, width, Storage(self.builder.make(elements * width)), transposed=transposed)

    def read(self, *values: TapeTensor | None) -> None:
        """Set what the next kernels read."""
        self._read = [self._operand(value) for value in values if value]

    @contextmanager
    def given(self, **arguments: Any) -> Iterator[None]:
        """Give arguments to the operators inside."""
        self._arguments = arguments
        try:
            yield
        finally:
            self._arguments = {}

    def hold(self, *values: TapeTensor | None) -> None:
        """Hold tensors until here, as a variable of a module's code does that nothing reads any more."""
        self.builder.hold(*(value.storage.buffer for value in values if value))

    def _operand(self, value: TapeTensor) -> Operand:
        size = value.elements
        step = 1 + (value.view and self.builder.buffers[value.storage.buffer].bytes > size * value.width)
        shape: tuple[int, ...] = (size,)
        strides: tuple[int, ...] = (step,)
        if value.transposed and size % 2 == 0:  # another order of two axes
            shape, strides = (2, size // 2), (step, 2 * step)
        return Operand(value.storage.buffer, shape, TYPES.get(value.width, ""), strides, 0)

    def lowered(self, value: TapeTensor) -> TapeTensor:
        """Cast an operand of a product to the type of autocast, which keeps the copies of weights (`cached_cast`)."""
        if not self.autocast or value.width <= self.autocast:
            return value
        node = value.node
        if node is None or node.label != WEIGHT:
            return value.to(self.autocast)
        if node not in self._casts:
            self._casts[node] = value.to(self.autocast)
        return self._casts[node]

    def leave_autocast(self) -> None:
        """Free the copies of weights that autocast keeps up to its end."""
        self.hold(*self._casts.values())
        self._casts.clear()

    def weight(self, shape: Sequence[int], width: int, storage: Storage) -> TapeTensor:
        """Return a trainable weight of a shape, in a storage that may hold others, too."""
        node, elements = TapeNode(None, label=WEIGHT, shape=tuple(shape)), prod(shape)
        self._weights.append(node)
        return TapeTensor(self, elements, width, storage, node)

    @property
    def learned(self) -> list[tuple[int, ...]]:
        """The shapes of the weights with a gradient, in the order in which they were first read."""
        weights = [each for node in self._weights for each in (node, *self._repeated.get(node, ()))]
        return [node.shape for node in weights if any(node.gradients) or node in self._summed]

    def accumulate(self) -> None:
        """Keep the gradients of weights: those of the next microbatch are added to them, in-place."""
        for node in self._weights:
            gradient, node.gradients = node.gradients[0], [None]
            if gradient:
                self._summed[node] = gradient

    def give_gradient(self, node: TapeNode, shard: TapeTensor) -> None:
        """Give a weight its shard of the reduced gradient, or add that to the sum of earlier microbatches, in-place."""
        node.gradients[0] = None if node in self._summed else shard
        if node in self._summed:
            self.read(self._summed[node], shard)
            self.builder.run("aten::add_", self._read, self._read[:1])

    def summed_whole(self, node: TapeNode) -> TapeTensor | None:
        """Take the whole gradient of a weight: it is added to the sum of earlier microbatches, where there is one."""
        total, gradient = self._summed.pop(node, None), node.gradients[0]
        if total and gradient:
            self.read(total, gradient)
            self.builder.run("aten::add_", self._read, self._read[:1])
        node.gradients[0] = None
        return total or gradient

    def keep_gradient(self, node: TapeNode, gradient: TapeTensor, width: int) -> None:
        """Give a weight its whole gradient in the type of its reduction."""
        if gradient.width != width:
            self.read(gradient)
            gradient = self.new(gradient.elements, width, gradient.transposed, "_to_copy")
            self.builder.assign(gradient.storage.buffer, GRADIENTS)
        node.gradients[0] = gradient

    def hold_gradients(self) -> None:
        """Hold the gradients of weights, and the sums of those of several microbatches."""
        self.hold(*(node.gradients[0] for node in self._weights), *self._summed.values())

    def run(
        self,
        name: str,
        operands: Sequence[TapeTensor],
        results: Sequence[tuple[int, int]],
        backward: Backward,
        keeps: Sequence[TapeTensor | int] = (),
        views: Storage | None = None,
        transposed: bool = False,
    ) -> list[TapeTensor]:
        """Run an operator and return its results, with new allocations of the given sizes, or as views.

        name           PyTorch's
        keeps          operands that its backward needs, and results, by number
        """
        needed = not self._without and any(operand.node for operand in operands)
        target = self._again.pop(0) if self._again and needed and keeps else None
        saved = tuple(each for each in keeps if not isinstance(each, int))
        if target and len(saved) == len(keeps) and not self._again:
            target.saved = saved
            raise StopRecomputationError
        selected = self._is_selected(name, operands)
        if views:
            made_values = [TapeTensor(self, *size, views, view=True, transposed=transposed) for size in results]
        elif selected and self._source:
            made_values = [replace(value, node=None) for value in self._source.results.pop(0)]
        else:
            made_values = [self._value(size, width, transposed) for size, width in results]
        if not (selected and self._source):
            read, written = [*map(self._operand, operands)], [*map(self._operand, made_values)]
            self.builder.run(f"aten::{name}", read, written, arguments=self._arguments)
        if selected and self._frame:
            self._frame.results.append(made_values)
        self.hold(*saved)
        if not needed:
            return made_values
        remembered = (*saved, *(made_values[each] for each in keeps if isinstance(each, int)))
        if self._again is None:
            node = self._node(name, operands, len(made_values), backward, remembered)
        elif target:
            node, target.saved = _RECOMPUTED, remembered
            if not self._again:
                raise StopRecomputationError
        else:
            node = _RECOMPUTED
        for number, value in enumerate(made_values):
            value.node, value.result = node, number
        return made_values

    def _is_selected(self, name: str, operands: Sequence[TapeTensor]) -> bool:
        """Return whether an operator's results are kept in a frame: of attention, and of every second product without
        a bias from the first on (torchtitan 238fa995, distributed/activation_checkpoint.py: aten.mm).
        """
        if not self.selects or not (frame := self._source or self._frame):
            return False
        is_product = name == "linear" and len(operands) == len(("x", "weight"))
        frame.products += is_product
        return (is_product and frame.products % 2 == 1) or name == "_scaled_dot_product_flash_attention"

    def _node(
        self,
        name: str,
        operands: Sequence[TapeTensor],
        results: int,
        backward: Backward,
        remembered: tuple[TapeTensor, ...],
    ) -> TapeNode:
        places = tuple(
            (operand.node, operand.result, operand.elements, operand.width) if operand.node else None
            for operand in operands
        )
        node = TapeNode(backward, places, [None] * results, label=self.label, name=name)
        if remembered and self._frame:
            node.frame = self._frame
            self._frame.nodes.append(node)
        else:
            node.saved = self._packed(remembered)
        self.nodes.append(node)
        return node

    def iterations(self, count: int) -> Iterator[int]:
        """Yield the iterations of a loop that run, forward and backward (`ProgramBuilder.iterations`)."""
        repeats: list[Callable[[], None]] = []
        omitted = 0 if self._without or self._again is not None else omitted_of(count)  # these have no nodes
        for iteration in self.builder.iterations(count):
            if omitted and iteration == ENDS - SHOWN:
                self.nodes.append(lambda: repeats.pop()())
            if omitted and iteration == ENDS:
                self.nodes.append(lambda: repeats.append(self.builder.recorded(omitted)))
            before = len(self._weights)
            yield iteration
            if omitted and iteration == ENDS:
                self.nodes.append(self.builder.record)
                if weights := self._weights[before:]:
                    self._repeated[weights[-1]] = weights * omitted

    def checkpoint(
        self,
        run: Callable[[Sequence[TapeTensor]], list[TapeTensor]],
        inputs: Sequence[TapeTensor],
        others: Iterable[TapeTensor],
    ) -> list[TapeTensor]:
        """Run a part of the forward pass whose operators save nothing; `others` are inputs of several parts."""
        self._frame = Frame(run, self._packed(inputs), (*others,))
        result = run(inputs)
        self._frame = None
        return result

    def without_gradients(self, run: Callable[[], list[TapeTensor]]) -> list[TapeTensor]:
        """Run a part of the forward pass as under `torch.no_grad`."""
        self._without = True
        results = run()
        self._without = False
        return results

    def reentrant(
        self, run: Callable[[Sequence[TapeTensor]], list[TapeTensor]], arguments: Sequence[TapeTensor]
    ) -> list[TapeTensor]:
        """Run a reentrant checkpoint: the part runs without a tape, and its node recomputes it with one."""
        results = self.without_gradients(lambda: run(arguments))
        if not any(value.node for value in arguments):
            return results  # as in PyTorch: without an input that requires a gradient, nothing inside has one
        saved = self._packed(arguments)

        def backward(gradients: Gradients) -> Gradients:
            detached = [
                replace(value, node=TapeNode(None) if value.node else None, result=0, view=False)
                for value in self._unpacked(saved)
            ]
            before, self.nodes, label = self.nodes, [], self.label
            self.builder.phase = RECOMPUTE
            again = run(detached)
            self.leave_autocast()
            for value in again:
                if value.node:
                    value.node.gradients[value.result] = gradient = gradients.pop(0)
                    self._wait(gradient)
            self.builder.phase = BACKWARD
            self._backward()
            self.hold(*detached, *again)  # CheckpointFunction.backward has them to its end
            self.nodes, self.label = before, label
            made = [value.node.gradients[0] if value.node else None for value in detached]
            if self.keeps_inputs:
                self._kept_inputs += [each for each in (*detached, *made) if each]
                return made
            for each in made:
                self._wait(each, -1)
            return made

        node = self._node("", arguments, len(results), backward, ())
        for number, value in enumerate(results):
            value.node, value.result = node, number
        return results

    def _packed(self, saved: Sequence[TapeTensor]) -> tuple[TapeTensor, ...]:
        """Return saved tensors, those on the host that are offloaded: neither weights nor the smallest."""
        return tuple(self._offloaded(value) if self._is_offloaded(value) else value for value in saved)

    def _is_offloaded(self, value: TapeTensor) -> bool:
        if not self.offloads or value.elements * value.width < SMALLEST or value.storage.buffer < 0:
            return False
        return self.builder.buffers[value.storage.buffer].role in (ACTIVATIONS, WORKSPACE)

    def _offloaded(self, value: TapeTensor) -> TapeTensor:
        """Copy a tensor to the host; it stays on the device until `STASH` later ones are copied."""
        if len(self._stash) == STASH:
            self.hold(self._stash.pop(0))
        copied = Storage(self.builder.make(value.elements * value.width, ACTIVATIONS, device=HOST))
        result = replace(value, storage=copied, view=False)
        self.builder.run("aten::_to_copy", [self._operand(value)], [self._operand(result)])
        self._stash.append(value)
        return result

    def _unpacked(self, saved: Sequence[TapeTensor]) -> tuple[TapeTensor, ...]:
        """Return saved tensors on the device: new copies of those that are on the host."""
        return tuple(
            self._fetched(value)
            if value.storage.buffer >= 0 and self.builder.buffers[value.storage.buffer].device == HOST
            else value
            for value in saved
        )

    def _fetched(self, value: TapeTensor) -> TapeTensor:
        self.hold(*self._stash)  # the forward pass is over
        self._stash.clear()
        result = replace(value, storage=self._value(value.elements, value.width, value.transposed).storage)
        self.builder.run("aten::_to_copy", [self._operand(value)], [self._operand(result)])
        return result

    def backward(self, outputs: Sequence[TapeTensor]) -> None:
        """Run backward from the outputs, with given gradients, to the gradients of all weights."""
        for output in outputs:
            if output.node:
                seed = self.new(output.elements, output.width, name="ones_like")
                output.node.gradients[output.result] = seed
                self._wait(seed)
        self.builder.phase = BACKWARD
        self._backward()
        self.hold(*self._kept_inputs)
        self._kept_inputs.clear()
        self._name = ""

    def _backward(self) -> None:
        nodes = (node for node in self.nodes if isinstance(node, TapeNode))
        self._readers.update(place[0] for node in nodes for place in node.operands if place)
        while self.nodes:
            node = self.nodes.pop()
            if not isinstance(node, TapeNode):
                node()
                continue
            if not any(node.gradients):
                self.hold(*node.saved)
                self._ran(node)
                continue
            self.label = node.label if node.label.endswith(", backward") else f"{node.label}, backward"
            frame = node.frame
            self._remake(node)
            if frame:
                self.hold(*frame.inputs, *frame.others, *(each for several in frame.results for each in several))
            self._back(node, frame is not None)

    def _remake(self, node: TapeNode) -> None:
        frame = node.frame
        node.frame = None
        if frame is None or not frame.nodes:
            return
        self._again, frame.nodes = frame.nodes, []
        label, self.builder.phase = self.label, RECOMPUTE
        inputs = self._unpacked(frame.inputs)
        self._source, frame.products = frame, 0
        with suppress(StopRecomputationError):
            frame.run(inputs)
        self._source = None
        self.hold(*inputs)
        self.leave_autocast()
        self._again, self.label, self.builder.phase = None, label, BACKWARD

    def _back(self, node: TapeNode, again: bool) -> None:
        gradients, node.gradients = node.gradients, []
        assert node.backward
        self._name, node.saved = node.name, self._unpacked(node.saved)
        self.read(*gradients, *node.saved)
        for incoming in gradients:
            self._wait(incoming, -1)
        results = [*node.backward(gradients)]
        self.hold(*results)
        for number, place in enumerate(node.operands):
            gradient = results[number]
            results[number] = self._settled(gradient, *place[2:]) if place and gradient else None
            self._wait(results[number])
        self.hold(*gradients)  # `call_function` has them until their results are validated
        if not again:  # the hook that unpacks a recomputed tensor no longer holds it
            self.hold(*node.saved)
        for place, gradient in zip(reversed(node.operands), reversed(results), strict=True):
            if place and gradient:
                owner, number, *_ = place
                other = owner.gradients[number]
                owner.gradients[number] = result = self._sum(other, gradient) if other else gradient
                if owner.label == WEIGHT:
                    self.builder.assign(result.storage.buffer, GRADIENTS)
        self._ran(node)
        self.read()

    def _wait(self, gradient: TapeTensor | None, times: int = 1) -> None:
        """Count a gradient among those that wait for their nodes."""
        if gradient:
            self._waiting[gradient.storage.buffer] += times

    def _sum(self, first: TapeTensor, second: TapeTensor) -> TapeTensor:
        """Return the sum of two waiting gradients of one tensor, in place of the first unless this is a view, or waits
        for another node too.
        """
        alone = not first.view and self._waiting[first.storage.buffer] == 1
        self._wait(second, -1)
        self.read(first, second)
        if alone:
            self.builder.run("aten::add_", self._read, self._read[:1])
            return first
        self._wait(first, -1)
        result = self.new(second.elements, second.width, second.transposed, "add")
        self._wait(result)
        self.builder.assign(first.storage.buffer, WORKSPACE)
        return result

    def _ran(self, node: TapeNode) -> None:
        """Free the gradients of weights, once all of their parts are there, that a hook steps or that are added."""
        for place in node.operands:
            if place:
                weight, number, *_ = place
                self._readers[weight] -= 1
                frees = self._hooked or self._sum_width or (weight in self._summed and not self.is_sharded)
                if weight.label == WEIGHT and not self._readers[weight] and frees:
                    gradient, weight.gradients[number] = weight.gradients[number], None
                    self._wait(gradient, -1)
                    self.read(self._summed.get(weight), gradient)
                    if gradient and self._sum_width and not self.cuda:  # add_ casts on a CPU, as TensorIterator does
                        self.new(gradient.elements, self._sum_width)
                    elif gradient and not self._hooked:
                        self.builder.run("aten::add_", self._read, self._read[:1])

    def _settled(self, gradient: TapeTensor, elements: int, width: int) -> TapeTensor:
        """Return a gradient in its operand's form (`validate_outputs`): reduced over broadcast axes, in its type."""
        if gradient.elements > elements:
            self.read(gradient)
            gradient = self.new(elements, gradient.width, name="sum")
        if gradient.width == width:
            return gradient
        self.read(gradient)
        return self.new(elements, width, gradient.transposed, "_to_copy")

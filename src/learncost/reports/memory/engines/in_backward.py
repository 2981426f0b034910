"""PyTorch's autograd with its optimizer in the backward pass: a weight is updated when its gradient is there.

As people write it with `Tensor.register_post_accumulate_grad_hook`, an optimizer a weight, whose hook steps and sets
the gradient to None: PyTorch's tutorial "How to save memory by fusing the optimizer step into the backward pass", and
torchtune's `optimizer_in_bwd`. A weight that is read twice is updated after both of its gradients are there.
"""

from __future__ import annotations

from collections import Counter

from learncost.program.autograd.tape import Tape, TapeNode
from learncost.reports.memory.engines.eager import OptimizerStepping, chosen_engine


class _InBackward(Tape):
    """A tape on which the gradient of a weight goes when the last operator that reads the weight has run backwards."""

    def __init__(self, width: int, stop_at: int | None = None) -> None:
        super().__init__(width, stop_at)
        self._readers: Counter[TapeNode] = Counter()

    def _backward(self) -> None:
        self._readers.update(place[0] for node in self._nodes for place in node.operands if place)
        super()._backward()

    def _back(self, node: TapeNode, again: bool) -> None:
        super()._back(node, again)
        for place in node.operands:
            if place:
                weight = place[0]
                self._readers[weight] -= 1
                if weight.backward is None and weight in self._weights and not self._readers[weight]:
                    weight.gradients[place[1]] = None


RUNNERS = (
    chosen_engine(
        OptimizerStepping(
            "eager-in-backward",
            "fused",
            "over the old ones",
            "",
            ", stepped in the hook of each gradient",
            "until their update",
            "Each gradient lives until its weight is updated",
            _InBackward,
            "DDP and FSDP2 reduce gradients before a hook could step",
        )
    ),
)

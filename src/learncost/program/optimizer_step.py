"""The optimizer's step under autograd: gradient clipping, and the temporaries of each implementation of PyTorch's.

Each function makes and holds what the Python code of its source does: a local name holds an array until it is assigned
again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from learncost.ir.dataclass import dataclass, field
from learncost.ops.optimizers import LARGEST_SIDE

if TYPE_CHECKING:
    from learncost.program.program import ProgramBuilder

Shapes: TypeAlias = "Sequence[tuple[int, ...]]"
Temporaries: TypeAlias = "Callable[[OptimizerStep, Shapes, ProgramBuilder], None]"
"""The temporaries of an optimizer's step."""
STEP = "optimizer step"
"""The label of the step's ops."""

FLOAT, BFLOAT16 = 4, 2


@dataclass(frozen=True)
class OptimizerStep:
    """The step of an optimizer.

    how    its implementation: fused, foreach or for-loop
    width  bytes of an element of its states
    clip   whether gradients are clipped to a norm before (`torch.nn.utils.clip_grad_norm_`)
    cuda   whether it runs on a GPU
    """

    optimizer: str = ""
    how: str = ""
    width: int = FLOAT
    clip: bool = False
    cuda: bool = False

    def is_pytorchs(self, width: int) -> bool:
        """Return whether PyTorch has this optimizer of weights of so many bytes, with states of their type."""
        return bool(self.optimizer) and bool(CLASSES[self.optimizer].pytorch) and width == self.width


@dataclass(frozen=True)
class OptimizerClass:
    """An optimizer as PyTorch's users have it.

    implementations    those that there are, the default first
    pytorch, settings  the class in `torch.optim`, if it has one, and the arguments that are not the default
    """

    name: str
    implementations: Sequence[str] = ("fused", "foreach", "for-loop")
    pytorch: str = ""
    settings: Mapping[str, float] = field(default_factory=dict)


CLASSES: Mapping[str, OptimizerClass] = {
    "sgd": OptimizerClass("SGD", pytorch="SGD"),
    "momentum": OptimizerClass("SGD with momentum", pytorch="SGD", settings={"momentum": 0.9}),
    "adamw": OptimizerClass("AdamW", pytorch="AdamW"),
    "rmsprop": OptimizerClass("RMSprop", ("for-loop", "foreach"), "RMSprop"),
    "adafactor": OptimizerClass("Adafactor", ("for-loop", "foreach"), "Adafactor"),
    "muon": OptimizerClass("Muon for matrices and fused AdamW for all else", ("for-loop",)),
    "soap": OptimizerClass("SOAP of nikhilvyas/SOAP, a step between two decompositions", ("for-loop",)),
    "lion": OptimizerClass("Lion", ("fused", "for-loop")),
    "adamw8bit": OptimizerClass("AdamW8bit of bitsandbytes", ("fused",)),
    "adamw4bit": OptimizerClass("AdamW4bit of torchao", ("fused",)),
    "adam8bit": OptimizerClass("Adam8bit of bitsandbytes", ("fused",)),
}
"""Of `torch.optim`; Lion and AdamW8bit of bitsandbytes, where fused. Lion's for-loop is that of google/automl."""

FOREACH_ON_GPU = ("rmsprop",)
"""The optimizers whose default on a GPU is foreach, where they have no fused implementation (`torch.optim`)."""

CHUNK = 65536
"""Elements that a block of `torch._foreach_norm` reduces on a GPU (`kChunkSize`, MultiTensorApply.cuh)."""


def default_implementation(optimizer: str, cuda: bool) -> str:
    """Return the implementation of an optimizer where none is named."""
    return "foreach" if cuda and optimizer in FOREACH_ON_GPU else CLASSES[optimizer].implementations[0]


def step_weights(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
    """Run the temporaries of an optimizer's step over weights of these shapes."""
    if stepping.clip:
        _clip(stepping, shapes, builder)
    if run := TEMPORARIES.get((stepping.optimizer, stepping.how)):
        run(stepping, shapes, builder)


def _new(builder: ProgramBuilder, elements: int, width: int) -> int:
    """Run an op that makes an array of a number of elements of a number of bytes each."""
    buffer = builder.make(elements * width, label=STEP)
    builder.run("optimizer", label=STEP)
    builder.hold(buffer)
    return buffer


def _clip(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
    """`torch.nn.utils.clip_grad_norm_`: a norm of every gradient; on a GPU one of each of its chunks."""
    norms = [_new(builder, 1, stepping.width) for _ in shapes]
    if stepping.cuda and shapes:
        _new(builder, len(shapes) * max(-(-prod(shape) // CHUNK) for shape in shapes), FLOAT)
    _new(builder, len(shapes), stepping.width)
    builder.hold(*norms)


def _roots(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
    """`_multi_tensor_adamw`, `_multi_tensor_rmsprop`: `torch._foreach_sqrt` of all second moments."""
    builder.hold(*[_new(builder, prod(shape), stepping.width) for shape in shapes])


def _for_loop(assigned: Callable[[tuple[int, ...], int], Mapping[str, int]], *deleted: str) -> Temporaries:
    """Return the step of one weight after the other.

    assigned  the variables that it assigns for a weight of a shape and so many elements, in order, with their elements
    deleted   those that no longer hold their array when the next weight is stepped
    """

    def run(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
        variables: dict[str, int] = {}
        for shape in shapes:
            for name, elements in assigned(shape, prod(shape)).items():
                new = _new(builder, elements, stepping.width)
                builder.hold(*variables.values())
                variables[name] = new
            variables = {name: buffer for name, buffer in variables.items() if name not in deleted}

    return run


def _factored(shape: tuple[int, ...], elements: int) -> Mapping[str, int]:
    """`_single_tensor_adafactor`: means of squares; their product is the update."""
    of_matrix = {"row": elements // shape[-1], "column": elements // shape[-2]} if len(shape) > 1 else {}
    return (of_matrix or {"squared": elements}) | {"estimate": elements}


def _adafactor_foreach(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
    """`_multi_tensor_adafactor`: all matrices, then all vectors, while the matrices' list is still held."""
    width = stepping.width
    estimates: list[int] = []
    for matrices in (True, False):
        group = [shape for shape in shapes if (len(shape) > 1) == matrices]
        for axis in (-1, -2) if matrices else ():
            builder.hold(*[_new(builder, prod(shape) // shape[axis], width) for shape in group])
        if not matrices:
            builder.hold(*[_new(builder, prod(shape), width) for shape in group])
        new = [_new(builder, prod(shape), width) for shape in group]
        builder.hold(*estimates, *new)
        estimates = new


NEWTON_SCHULZ = 5
"""The steps of `torch.optim.Muon` by default."""


def _muon(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
    """`_single_tensor_muon` of matrices, with `_zeropower_via_newtonschulz` in bf16; fused AdamW of all else.

    It has the matrix and its square, of the shorter side, at each step.
    """
    update: list[int] = []
    for shape in (shape for shape in shapes if len(shape) == 2):
        elements, square = prod(shape), min(shape) ** 2
        before = _new(builder, elements, stepping.width)
        builder.hold(*update)
        result = before if stepping.width == BFLOAT16 else _new(builder, elements, BFLOAT16)
        inner: list[int] = []
        for _ in range(NEWTON_SCHULZ):
            gram = _new(builder, square, BFLOAT16)
            builder.hold(result, *inner)
            change = _new(builder, square, BFLOAT16)
            builder.hold(result, gram, *inner[1:])
            new = _new(builder, elements, BFLOAT16)
            builder.hold(result, gram, change)
            result, inner = new, [gram, change]
        builder.hold(before)
        if stepping.width != BFLOAT16 and not stepping.cuda:  # add_ casts its operand on a CPU
            _new(builder, elements, stepping.width)
        builder.hold(result)
        update = [result]


def _soap(stepping: OptimizerStep, shapes: Shapes, builder: ProgramBuilder) -> None:
    """`SOAP.step`, which projects matrices into the bases of their sides and back, by a product for each.

    A new average of gradients takes the place of the old one, which a variable holds until the next weight.
    """
    variables: dict[str, int] = {}

    def assign(name: str, new: int) -> None:
        builder.hold(*filter(None, (variables.get(name),)))
        variables[name] = new

    for shape in shapes:
        elements, width = prod(shape), stepping.width
        sides = [side for side in shape if len(shape) == 2 and side <= LARGEST_SIDE]

        def projected(before: int = 0, elements: int = elements, sides: int = len(sides)) -> int:
            for _ in range(sides):
                new = _new(builder, elements, stepping.width)
                builder.hold(*filter(None, (before,)))
                before = new
            return before

        assign("seen", projected())
        assign("average", 0)
        builder.hold(_new(builder, elements, width))
        assign("denominator", _new(builder, elements, width))
        assign("update", projected(_new(builder, elements, width)))
        outside = projected()
        product = 0
        for side in sides:
            new = _new(builder, side**2, width)
            builder.hold(*filter(None, (product,)))
            product = new
        inside = projected()
        builder.hold(*filter(None, (outside, product)))
        assign("average", inside)


TEMPORARIES: Mapping[tuple[str, str], Temporaries] = {
    ("adamw", "foreach"): _roots,
    # _single_tensor_adamw: exp_avg_sq.sqrt() / bias_correction2_sqrt
    ("adamw", "for-loop"): _for_loop(lambda _, n: {"root": n, "denominator": n}, "root"),
    ("rmsprop", "foreach"): _roots,
    # _single_tensor_rmsprop: square_avg.sqrt()
    ("rmsprop", "for-loop"): _for_loop(lambda _, n: {"average": n}),
    # google/automl, lion_pytorch.py: update = exp_avg * beta1 + grad * (1 - beta1)
    ("lion", "for-loop"): _for_loop(lambda _, n: {"average": n, "part": n, "update": n}, "average", "part"),
    ("adafactor", "for-loop"): _for_loop(_factored),
    ("adafactor", "foreach"): _adafactor_foreach,
    ("muon", "for-loop"): _muon,
    ("soap", "for-loop"): _soap,
}
"""By optimizer and implementation; all others step in-place."""

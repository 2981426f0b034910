"""PyTorch's operators on a tape: the tensors that each saves for backward, and the allocations of its backward, in
order.

They follow `tools/autograd/derivatives.yaml` and the CPU kernels of PyTorch 2.13; where CUDA kernels differ, the tape
has a flag. Workspace inside of kernels is not counted. A tensor here has only a number of elements and a width, and is
written as in PyTorch: `x * y + 1`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, TypeAlias

from learncost.ir.dataclass import dataclass
from learncost.ops import op_called

if TYPE_CHECKING:
    from learncost.program.autograd.tape import Tape, TapeNode

FLOAT = 4
"""Bytes of torch.float32, in which norms, softmax and losses are computed whatever the module's type."""
BOOLEAN = 1
"""Bytes of torch.bool."""
COPIED = "copied"
"""A value that every device has, as the operand of a product with its own part of a weight (Megatron's f)."""
INTEGER = 8
"""Bytes of torch.int64."""


@dataclass(frozen=True)
class OperatorRow:
    """An operator of one operand: its saved tensors, and the temporaries of its backward formula.

    keeps   "operand", "result", "both", or ""
    before  how many temporaries the forward has
    tested  whether its result is compared, into booleans, while the operand is alive
    """

    keeps: str = ""
    temporaries: int = 0
    before: int = 0
    tested: bool = False


POINTWISE = {
    "scale": OperatorRow(),  # self: grad * other, a number
    "shift": OperatorRow(),  # self: grad
    "neg": OperatorRow(),
    "clamp": OperatorRow("operand", 1),  # where(mask, grad, 0): the mask is of booleans, and not counted
    "pow": OperatorRow("operand", 2),  # grad * (exponent * self.pow(exponent - 1))
    "rsqrt": OperatorRow("result", 2),  # -0.5 * grad * result.pow(3)
    "sqrt": OperatorRow("result", 1),  # grad / (2 * result)
    "log_sigmoid": OperatorRow("both"),  # log_sigmoid_backward(grad, self, buffer)
    "safe_softmax": OperatorRow("result", tested=True),  # _safe_softmax: rows without a key are zeros
    "cumsum": OperatorRow("", 2),  # grad.flip(dim).cumsum(dim).flip(dim)
    "bloom_gelu": OperatorRow("operand", 4, 2),  # modeling_bloom.py: GeLUFunction, which recomputes tanh
}
"""By name, for operators that are not ops here or whose PyTorch formula differs from the op's gradient."""

IN_FLOAT = ("pow", "rsqrt", "exp", "log", "softplus", "cumsum", "softmax", "log_softmax")
"""Operators that run in float under autocast on CUDA (PyTorch 2.13, ATen/autocast_mode.h: AT_FORALL_FP32)."""

NAMES = {
    "scale": "mul",
    "shift": "add",
    "log_sigmoid": "log_sigmoid_forward",
    "safe_softmax": "_safe_softmax",
    "softmax": "_softmax",
    "log_softmax": "_log_softmax",
}
"""PyTorch's names of operators that have another one here."""


@cache  # by op
def _row(name: str) -> OperatorRow:
    """Return the operator of this name; an op saves its result if its gradient reads that and no operand."""
    if name in POINTWISE:
        return POINTWISE[name]
    op = op_called(name)
    reads = {*op.gradient_reads(f"d{name}" for name in op.inputs)} if op else set()
    return OperatorRow("result" if op and reads & {*op.outputs} and not reads & {*op.inputs} else "operand")


Gradients: TypeAlias = "list[TapeTensor | None]"
"""The gradients of a node's results, or of its operands."""


@dataclass(slots=True)
class Storage:
    """The memory of a tensor and of its views: a buffer."""

    buffer: int


@dataclass(eq=False, slots=True)
class TapeTensor:
    """A tensor without values, written as in PyTorch.

    elements  their number
    width     bytes of one
    storage   its memory, that of another tensor for a view
    node      the node that receives its gradient, with the number of the result; None where it requires none
    transposed  whether its layout has heads and positions exchanged
    """

    tape: Tape
    elements: int
    width: int
    storage: Storage
    node: TapeNode | None = None
    result: int = 0
    view: bool = False
    transposed: bool = False

    def viewed_as(self, elements: int, width: int = 0, transposed: bool = False) -> TapeTensor:
        """Return a view without a gradient."""
        return TapeTensor(self.tape, elements, width or self.width, self.storage, view=True, transposed=transposed)

    @property
    def learns(self) -> bool:
        """Return whether it requires a gradient."""
        return self.node is not None

    # Of one operand.

    def apply(self, name: str, width: int = 0) -> TapeTensor:
        """Run an operator of `POINTWISE`, whose result may have another type."""
        if name in IN_FLOAT and (raised := self.raised()) is not self:
            return raised.apply(name)
        row, tape, result_width = _row(name), self.tape, width or self.width

        def backward(gradients: Gradients) -> Gradients:
            transposed = _given(gradients).transposed
            temporaries = [tape.new(self.elements, result_width, transposed) for _ in range(row.temporaries)]
            result = tape.new(self.elements, result_width, transposed)
            tape.hold(*temporaries)
            return [tape.new(self.elements, self.width, transposed) if self.width != result_width else result]

        saved_by: dict[str, tuple[TapeTensor | int, ...]] = {"operand": (self,), "result": (0,), "both": (self, 0)}
        before = [tape.new(self.elements, result_width, self.transposed) for _ in range(row.before)]
        (result,) = tape.run(
            NAMES.get(name, name),
            (self,),
            ((self.elements, result_width),),
            _same if name == "shift" else backward,
            saved_by.get(row.keeps, ()),
            transposed=self.transposed,
        )
        tape.hold(*before)
        if row.tested:
            tape.new(self.elements, BOOLEAN)
            tape.hold(self)
        return result

    @property
    def coded(self) -> bool:
        """Return whether it is a weight that is stored as codes and scales."""
        return not self.width

    def decoded(self) -> TapeTensor:
        """Return a weight as numbers: a dequantized copy if it is quantized."""
        return self.tape.new(self.elements, self.tape.autocast) if self.coded else self

    def to(self, width: int) -> TapeTensor:
        """Cast to another type; return itself where it has that."""
        return self if width == self.width else self.copied(self.elements, width, self.transposed)

    def lowered(self) -> TapeTensor:
        """Return an operand of a product as autocast casts it; without autocast, itself."""
        return self.tape.lowered(self)

    def raised(self) -> TapeTensor:
        """Return an operand of an operator that runs in float under autocast on CUDA."""
        return self.in_float() if self.tape.cuda and self.tape.autocast else self

    def in_float(self) -> TapeTensor:
        return self.to(FLOAT) if self.width < FLOAT else self

    def copied(self, elements: int = 0, width: int = 0, transposed: bool = False) -> TapeTensor:
        """Return a copy, with more elements if some are repeated; its gradient has as many as before."""
        name = "_to_copy" if width not in (0, self.width) else "clone"
        return self._sized(name, elements or self.elements, width=width, transposed=transposed, laid=transposed)

    def _sized(
        self,
        name: str,
        elements: int,
        keeps: Sequence[TapeTensor] = (),
        views: bool = False,
        width: int = 0,
        transposed: bool = False,
        laid: bool = False,
    ) -> TapeTensor:
        """Run an operator whose result has so many elements, and whose gradient is a new tensor of the operand's size.

        views   whether the result is a view
        transposed  whether the result has heads and positions exchanged, and `laid`, whether its gradient has
        """
        sizes, storage = ((elements, width or self.width),), self.storage if views else None

        def backward(_: Gradients) -> Gradients:
            return [self.tape.new(self.elements, self.width, laid)]

        return self.tape.run(name, (self,), sizes, backward, keeps, storage, transposed)[0]

    def repeated(self, times: int) -> TapeTensor:
        """Run `repeat_kv`: every head `times` times, in a copy."""
        return self if times == 1 else self.copied(self.elements * times)

    def cloned(self) -> TapeTensor:
        """Return a copy in another layout, through which the gradient passes unchanged."""
        return self.tape.run("clone", (self,), ((self.elements, self.width),), _same)[0]

    def cumsum(self) -> TapeTensor:
        return self.apply("cumsum")

    def expanded(self, elements: int) -> TapeTensor:
        """Return an expanded view; its gradient is summed."""
        return self._sized("expand", elements, views=True)

    def contiguous(self) -> TapeTensor:
        return self.copied(self.elements) if self.transposed else self

    def mean(self, rows: int) -> TapeTensor:
        """Return the mean over all but `rows` rows."""
        return self._sized("mean", rows)

    def viewed(self) -> TapeTensor:
        """Return a view of another shape; its gradient, which is expanded, is copied."""
        return self._sized("view", self.elements, views=True)

    def sum(self, rows: int) -> TapeTensor:
        """Return the sum over all but `rows` rows; its gradient is one of as many elements, expanded."""
        if (raised := self.raised()) is not self:
            return raised.sum(rows)

        def backward(gradients: Gradients) -> Gradients:
            return [_given(gradients).viewed_as(self.elements, self.width)]

        return self.tape.run("sum", (self,), ((rows, self.width),), backward)[0]

    def transpose(self) -> TapeTensor:
        """Return a view with heads and positions exchanged; a gradient with another layout is copied."""
        tape, sizes, transposed = self.tape, (self.elements, self.width), not self.transposed

        def backward(gradients: Gradients) -> Gradients:
            gradient = _given(gradients)
            laid = gradient if gradient.transposed == transposed else tape.new(*sizes)
            return [laid.viewed_as(*sizes)]

        return tape.run("transpose", (self,), (sizes,), backward, views=self.storage, transposed=transposed)[0]

    def split(self, sizes: Sequence[int]) -> list[TapeTensor]:
        """Return views by `split` or `chunk`; their gradients are concatenated."""
        return self.tape.run(
            "split",
            (self,),
            [(size, self.width) for size in sizes],
            lambda _: [self.tape.new(self.elements, self.width)],
            views=self.storage,
            transposed=self.transposed,
        )

    def slice(self, elements: int) -> TapeTensor:
        """Return a view of a part; its gradient has the full size, zero elsewhere."""
        return self._sized("slice", elements, views=True, transposed=self.transposed)

    def pooled(self, elements: int, chooses: bool) -> TapeTensor:
        """Return the maximum of every window, with saved indices, or the mean; both save their operand."""
        indices = [self.tape.new(elements, INTEGER)] if chooses else []
        name = "max_pool2d_with_indices" if chooses else "avg_pool2d"
        return self._sized(name, elements, (self, *indices))

    def gather(self, index: TapeTensor, elements: int, keeps: bool = False) -> TapeTensor:
        """Return the elements at an index; its gradient has the operand's full size."""
        operand = (self,) if keeps else ()
        return self._sized("gather" if keeps else "embedding", elements, (index, *operand))

    def dropout(self) -> TapeTensor:
        """Run `functional.dropout`: on a CPU a product with noise of the operand's type; on CUDA `native_dropout`,
        which saves a boolean mask.
        """
        if self.tape.cuda:
            return self._dropped()
        noise = self.tape.new(self.elements, self.width, self.transposed)
        return self * noise

    def _dropped(self) -> TapeTensor:
        return self.tape.run(
            "native_dropout",
            (self,),
            ((self.elements, self.width), (self.elements, BOOLEAN)),
            lambda _: [self.tape.new(self.elements, self.width, self.transposed)],
            (1,),
            transposed=self.transposed,
        )[0]

    def __neg__(self) -> TapeTensor:
        return self.apply("neg")

    def pow(self) -> TapeTensor:
        return self.apply("pow")

    def masked(self, mask: TapeTensor) -> TapeTensor:
        """Run `masked_fill`, which saves the boolean mask."""
        return self._sized("masked_fill", self.elements, (mask,))

    def sent(self, op: str, elements: int) -> TapeTensor:
        """Run a functional collective, whose result is a new tensor, and whose backward is the reverse of it: nothing
        of a sum, and a sum of what all devices have (`COPIED`).
        """
        copied = op == COPIED
        name, views = ("view", self.storage) if copied else (op, None)

        def backward(gradients: Gradients) -> Gradients:
            return gradients if op == "all_reduce" else [self.tape.new(self.elements, self.width, name=op)]

        return self.tape.run(name, (self,), ((elements, self.width),), backward, views=views)[0]

    # Of two.

    def divided(self, other: TapeTensor) -> TapeTensor:
        """Divide by one number per row: both operands are saved, and the divisor's gradient recomputes a quotient."""
        tape, sizes = self.tape, (self.elements, self.width)

        def backward(_: Gradients) -> Gradients:
            temporaries = [tape.new(*sizes) for _ in range(3)]  # -grad * ((self / other) / other)
            divisor = tape.new(*sizes)
            tape.hold(*temporaries)
            result = tape.new(*sizes)
            return [result, divisor]

        return tape.run("div", (self, other), (sizes,), backward, (self, other))[0]

    def maximum(self, other: TapeTensor) -> TapeTensor:
        """Return the larger of two, both of which are saved: where(self == other, grad / 2, grad), masked."""
        operands, sizes = (self, other), (self.elements, self.width)

        def backward(_: Gradients) -> Gradients:
            return [self.tape.new(*sizes) if each.learns else None for each in operands]

        return self.tape.run("maximum", operands, (sizes,), backward, operands)[0]

    def set_slice(self, part: TapeTensor) -> TapeTensor:
        """Run `self[:, i] = part`, whose backward copies the gradient of the whole (`CopySlices`)."""
        tape, sizes = self.tape, (self.elements, self.width)

        def backward(_: Gradients) -> Gradients:
            whole = tape.new(*sizes)
            tape.read()
            return [whole, tape.new(part.elements, part.width)]

        return tape.run("copy_", (self, part), (sizes,), backward, views=self.storage)[0]

    def __mul__(self, other: TapeTensor | float) -> TapeTensor:
        if not isinstance(other, TapeTensor):
            return self.apply("scale")
        return self.times(other)

    def times(self, other: TapeTensor, elements: int = 0) -> TapeTensor:
        """Return an elementwise product, of so many elements where both factors are broadcast."""
        return _times(self, other, elements or max(self.elements, other.elements))

    def __rmul__(self, other: float) -> TapeTensor:
        return self.apply("scale")

    def __truediv__(self, other: float) -> TapeTensor:
        return self.apply("scale")

    def __add__(self, other: TapeTensor | float) -> TapeTensor:
        if not isinstance(other, TapeTensor):
            return self.apply("shift")
        return self.plus(other)

    def plus(self, other: TapeTensor, elements: int = 0) -> TapeTensor:
        """Return a sum, of so many elements where both operands are broadcast."""
        return _plus(self, other, elements or max(self.elements, other.elements))

    def __radd__(self, other: float) -> TapeTensor:
        return self.apply("shift")

    def add_(self, other: TapeTensor) -> TapeTensor:
        """Return a sum in-place of its first operand."""
        return _plus(self, other, self.elements, self.storage)

    def index_add_(self, rows: TapeTensor, index: TapeTensor) -> TapeTensor:
        """Add rows in-place at an index, both of which are saved (`expand_as`); their gradient is selected."""
        tape, sizes = self.tape, (self.elements, self.width)

        def backward(gradients: Gradients) -> Gradients:
            return [*gradients, tape.new(rows.elements, rows.width)]

        return tape.run("index_add_", (self, rows), (sizes,), backward, (index, rows), self.storage)[0]

    def div_(self) -> TapeTensor:
        """Divide a view in place by a number: `CopySlices` copies the gradient of the whole, and that of the view."""
        tape, sizes = self.tape, (self.elements, self.width)

        def backward(_: Gradients) -> Gradients:
            whole, *temporaries = (tape.new(*sizes) for _ in range(3))
            tape.hold(*temporaries)
            return [whole]

        return tape.run("div_", (self,), (sizes,), backward, views=self.storage)[0]

    def matmul(self, other: TapeTensor, elements: int, rows: int = 0) -> TapeTensor:
        """Return a product with a sum; each factor is saved for the other's gradient."""
        return self.lowered().product(other.lowered(), elements, rows)

    def solved(self, other: TapeTensor) -> TapeTensor:
        """Run `linalg.solve_triangular` of a triangular matrix, which saves it and the result; its gradient is a
        negative product, cut to the triangle.
        """
        tape = self.tape

        def backward(_: Gradients) -> Gradients:
            entering = tape.new(other.elements, other.width)
            product, negative = (tape.new(self.elements, self.width) for _ in range(2))
            tape.hold(product)
            result = tape.new(self.elements, self.width)
            tape.hold(negative)
            return [result, entering]

        return tape.run(
            "linalg_solve_triangular", (self, other), ((other.elements, other.width),), backward, (self, 0)
        )[0]

    def product(self, other: TapeTensor, elements: int, rows: int = 0) -> TapeTensor:
        """Return the product inside of a kernel, where autocast casts nothing; it has `rows` in all matrices."""
        tape, factors = self.tape, (self, other)
        keeps = [factor for factor, each in zip(factors[::-1], factors, strict=True) if each.learns]

        def backward(_: Gradients) -> Gradients:
            return [tape.new(each.elements, each.width) if each.learns else None for each in factors]

        sizes = ((elements, max(self.width, other.width)),)
        with tape.given(rows=rows):
            return tape.run("bmm", factors, sizes, backward, keeps)[0]


def _given(gradients: Gradients) -> TapeTensor:
    """Return the gradient of the only result."""
    (gradient,) = gradients
    assert gradient
    return gradient


def _same(gradients: Gradients) -> Gradients:
    """Return the gradient unchanged."""
    return gradients


def _cast_copies(operands: Sequence[TapeTensor], width: int) -> list[TapeTensor]:
    """Return copies of operands of narrower types, which a CPU operator makes (`TensorIterator.cpp`); CUDA casts while
    reading (`gpu_kernel_with_dynamic_casting`).
    """
    return [each.tape.new(each.elements, width) for each in operands if each.width < width and not each.tape.cuda]


def _times(left: TapeTensor, right: TapeTensor, elements: int) -> TapeTensor:
    """Return an elementwise product, factors broadcast: each is saved for the other's gradient."""
    tape, operands, width = left.tape, (left, right), max(left.width, right.width)
    transposed = max(operands, key=lambda each: each.elements).transposed

    def backward(gradients: Gradients) -> Gradients:
        incoming = _given(gradients)
        results: Gradients = [None, None]
        for number in (1, 0):  # the second operand's first, as in Functions.cpp
            if operands[number].learns:
                copies = _cast_copies([operands[1 - number]], width)
                results[number] = tape.new(elements, width, incoming.transposed)
                tape.hold(*copies)
        return results

    keeps = [factor for factor, each in zip(operands[::-1], operands, strict=True) if each.learns]
    copies = _cast_copies(operands, width)
    (result,) = tape.run("mul", operands, ((elements, width),), backward, keeps, transposed=transposed)
    tape.hold(*copies)
    return result


def _plus(left: TapeTensor, right: TapeTensor, elements: int, storage: Storage | None = None) -> TapeTensor:
    """Return a sum, operands broadcast: nothing is saved, and the gradient passes through."""
    tape, operands, width = left.tape, (left, right), max(left.width, right.width)
    transposed = max(operands, key=lambda each: each.elements).transposed

    def backward(gradients: Gradients) -> Gradients:
        return [gradients[0] if each.learns else None for each in operands]

    copies = _cast_copies(operands, width)
    name = "add_" if storage else "add"
    (result,) = tape.run(name, operands, ((elements, width),), backward, views=storage, transposed=transposed)
    tape.hold(*copies)
    return result


def cat(
    parts: Sequence[TapeTensor],
    transposed: bool = False,
    shares: Sequence[int] = (),
    elements: int = 0,
    views: Storage | None = None,
    width: int = 0,
) -> TapeTensor:
    """Run `torch.cat`, a copy unless the parts are adjacent `views`; its gradient is split into views.

    shares    elements of the parts after broadcasting
    elements  of the result, where parts are left out
    width     of the result, where an empty part has another type
    """
    tape, width = parts[0].tape, width or parts[0].width
    sizes = [part.elements for part in parts]
    spread = tuple(shares) or tuple(sizes)

    def backward(gradients: Gradients) -> Gradients:
        incoming = _given(gradients)
        return [
            incoming.viewed_as(size, width, incoming.transposed) if size == share else tape.new(size, width)
            for size, share in zip(sizes, spread, strict=True)
        ]

    return tape.run("cat", parts, ((elements or sum(spread), width),), backward, views=views, transposed=transposed)[0]


def linear(
    x: TapeTensor,
    weight: TapeTensor,
    elements: int,
    bias: TapeTensor | None = None,
    saves_both: bool = False,
    name: str = "linear",
    casts: bool = True,
) -> TapeTensor:
    """Run `functional.linear`, which saves its operand for the weight's gradient, and the weight for the operand's.

    For a quantized weight it is bitsandbytes' `Linear4bit`, which dequantizes in both directions, holds the codes, and
    returns the type of its operand. Autocast does not know all products: of others (`casts` is False) the operand
    has the type of the weight.
    """
    width = x.width
    if casts or weight.coded:
        x, weight, bias = x.lowered(), weight.lowered(), bias and bias.lowered()
    elif x.tape.autocast:
        x = x.to(weight.width)
    tape, operands = x.tape, [each for each in (x, weight, bias) if each]

    def backward(_: Gradients) -> Gradients:
        numbers = weight.decoded() if weight.coded else None
        results = [tape.new(each.elements, each.width) if each.learns else None for each in operands]
        tape.hold(numbers)
        return [result and result.viewed_as(result.elements) for result in results]

    needed = (x, saves_both or weight.learns), (weight, saves_both or (x.learns and not weight.coded))
    keeps = [factor for factor, is_needed in needed if is_needed]
    numbers = weight.decoded()
    (result,) = tape.run(name, operands, ((elements, x.width),), backward, keeps)
    tape.hold(numbers)
    return result.to(width) if weight.coded else result


def flash_attention(
    q: TapeTensor, k: TapeTensor, v: TapeTensor, elements: int, rows: int, mask: TapeTensor | None = None
) -> TapeTensor:
    """Run fused `scaled_dot_product_attention`, which saves all operands, the result, and one float per row.

    The result has the queries' layout, and gradients have positions before heads (`empty_like`, `zeros`); on CUDA in
    float the result does too (`_efficient_attention_forward`).
    """
    tape, operands = q.tape, [q, k, v]
    keeps = [*operands, mask] if mask else operands
    return tape.run(
        "_scaled_dot_product_flash_attention",
        operands,
        ((elements, q.width), (rows, max(FLOAT, q.width))),
        lambda _: [tape.new(each.elements, each.width, True) for each in operands],
        (*keeps, 0, 1),
        transposed=q.transposed or (tape.cuda and q.width >= FLOAT),
    )[0]


def layer_norm(x: TapeTensor, weights: Sequence[TapeTensor], rows: int) -> TapeTensor:
    """Run `functional.layer_norm`, which saves its operand, and every row's mean and deviation, on CUDA in float."""
    return _norm(x, weights, rows, "native_layer_norm", 2)


def rms_norm(x: TapeTensor, weights: Sequence[TapeTensor], rows: int) -> TapeTensor:
    """Run `functional.rms_norm` on CUDA (`_fused_rms_norm`), which saves its operand, and every row's root."""
    return _norm(x, weights, rows, "_fused_rms_norm", 1)


def _norm(x: TapeTensor, weights: Sequence[TapeTensor], rows: int, name: str, numbers: int) -> TapeTensor:
    """Run a norm in one kernel, with `numbers` saved numbers per row."""
    x = x.raised()
    tape, operands = x.tape, [x, *weights]
    of_row = rows, max(FLOAT, x.width) if tape.cuda else x.width
    return tape.run(
        name,
        operands,
        ((x.elements, x.width), *[of_row] * numbers),
        lambda _: [tape.new(each.elements, each.width) if each.learns else None for each in operands],
        (x, *range(1, numbers + 1)),
    )[0]


def convolution(x: TapeTensor, weight: TapeTensor, elements: int, bias: TapeTensor | None = None) -> TapeTensor:
    """Run `functional.conv1d` or `conv2d`, which save both factors, a frozen weight's too."""
    return linear(x, weight, elements, bias, saves_both=True, name="convolution")


def cross_entropy(scores: TapeTensor, targets: TapeTensor | None) -> TapeTensor:
    """Run `functional.cross_entropy`: log-softmax saves its result, and so does the loss."""
    scores = scores.in_float() if scores.tape.autocast else scores
    logs = scores.apply("log_softmax")
    given = (logs, targets) if targets else (logs,)
    loss, _ = logs.tape.run(
        "nll_loss",
        given,
        ((1, logs.width), (1, logs.width)),
        lambda _: [logs.tape.new(logs.elements, logs.width), *[None] * (len(given) - 1)],
        (*given, 1),
    )
    scores.tape.hold(scores)
    return loss


def parallel_cross_entropy(scores: TapeTensor) -> TapeTensor:
    """Run `functional.cross_entropy` under `loss_parallel`: this device's log-probabilities are saved, and the gradient
    of the scores is made in one function (`torch/distributed/tensor/parallel/loss.py`).
    """
    scores = scores.in_float() if scores.tape.autocast else scores
    tape, sizes = scores.tape, (scores.elements, scores.width)

    def backward(_: Gradients) -> Gradients:
        filled, shares, total = (tape.new(*sizes, name=name) for name in ("zeros_like", "exp", "add"))
        tape.hold(shares)
        result = tape.new(*sizes, name="mul")
        tape.hold(filled, total)
        return [result]

    tape.read(scores)
    shifted = tape.new(*sizes, name="sub")
    tape.new(*sizes, name="exp")
    (logs,) = tape.run("_log_softmax", (scores,), (sizes,), _same)
    tape.hold(shifted)
    (loss,) = tape.run("nll_loss_forward", (logs,), ((1, logs.width),), backward, (logs,))
    tape.hold(scores)
    return loss

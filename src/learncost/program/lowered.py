"""The step of a tape as the operators that PyTorch issues: with the shapes that decide their kernels, and with views.

A tape has the kernels of a module's step, on tensors that have a number of elements alone. The sides of a product
follow from the elements of its factors and its result, and from its rows where it has a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isqrt, prod

from learncost.ir.dataclass import replace
from learncost.program.program import BACKWARD, BEFORE, GRADIENTS, OPTIMIZER, WEIGHTS, Operand, Program, ProgramOp

VIEWS: Mapping[str, tuple[int, int]] = {
    "linear": (3, 7), "addmm": (2, 5), "bmm": (5, 6), "bias": (0, 2), "attention": (2, 10), "transpose": (1, 0),
    "sum": (0, 2), "native_layer_norm": (0, 2), "mean": (0, 1), "embedding": (0, 1), "rsqrt": (1, 1), "tanh": (1, 1),
    "sigmoid": (1, 1), "exp": (1, 1), "_softmax": (1, 1), "_log_softmax": (2, 2),
}  # fmt: skip
"""The views that PyTorch 2.13 issues with an operator, in the forward and in the backward pass. `functional.linear`
flattens its operand and its result and transposes its weight; heads are views that are transposed; a result that is
saved is detached, and so is a gradient where it is accumulated (`accumulate_grad.h`)."""

MORE: Mapping[str, tuple[int, int]] = {"bloom_gelu": (6, 13)}
"""The elementwise operators that code issues besides those whose results a tape has, forward and backward."""

PRODUCTS = ("linear", "addmm", "bmm")

BACKWARD_OF: Mapping[str, str] = {
    "_softmax": "_softmax_backward_data", "_log_softmax": "_log_softmax_backward_data", "nll_loss": "nll_loss_backward",
    "embedding": "embedding_dense_backward", "split": "cat", "unbind": "cat", "slice": "slice_backward",
    "select": "select_backward", "native_dropout": "native_dropout_backward", "transpose": "clone", "view": "clone",
    "native_layer_norm": "native_layer_norm_backward", "_fused_rms_norm": "_fused_rms_norm_backward",
}  # fmt: skip
"""The backward operators by the names of the forward ones, for those that are not elementwise."""

PACKED = ("arange", "add", "view", "view", "view", "sub", "cat", "view", "view", "sub", "ne", "cumsum", "view", "eq",
          "all", "_local_scalar_dense")  # fmt: skip
"""The positions of tokens, and whether they are of packed sequences, for which the CPU waits: transformers' code of a
causal mask asks for it where there is no KV cache (`masking_utils.py`, `find_packed_sequence_indices`)."""

ROTARY = ("view", "_to_copy", "_to_copy", "mul", "cat", "cos", "mul", "sin", "mul", "_to_copy", "_to_copy")
"""The angles of rotary positions (`LlamaRotaryEmbedding`)."""

JOINT_BACKWARD = ("native_layer_norm", "_fused_rms_norm", "_log_softmax", "_softmax", "nll_loss", "split", "unbind")
"""The operators whose backward pass is one operator that reads all gradients and saved tensors."""

ADDED = ("add", "add_", "_to_copy", "sum")
"""Operators of the backward pass that are no node's: sums of gradients, and their casts."""

ACTIVATIONS = ("gelu", "silu", "relu", "tanh", "sigmoid")
"""The operators that are called as modules."""


SUBLAYERS = {
    "attn.Q": "attention.self.Q", "A": "attention.output.A", "X.2": "attention.output.X", "F": "output.F",
    "X.3": "output.X",
}  # fmt: skip
"""The modules within a block of BERT's code, by the lines that they run (`BertSelfOutput`, `BertOutput`)."""


def lowered(
    program: Program, update: Program, before: Sequence[str] = (), sublayers: Mapping[str, str] | None = None
) -> Program:
    """Return the program of a tape with the operators that PyTorch issues.

    update  the optimizer's step, in place of that of the tape; what it is given are buffers of no bytes
    before  the operators with which every forward pass begins, on a few numbers that the tape does not have
    sublayers  the modules of lines, where they are within others
    """
    held = {place for place, each in enumerate(program.buffers) if each.role == WEIGHTS}
    ops, firsts, lasts = program.ops, list[int](), list[int]()
    named = {op.label for op in ops if _name(op) in ACTIVATIONS or any(each.buffer in held for each in op.inputs)}
    gradients = {place for place, each in enumerate(program.buffers) if each.role == GRADIENTS}
    lowering, place = _OfTape(named, gradients, sublayers or {}), 0
    passes = next(place for place, op in enumerate(ops) if op.phase == OPTIMIZER)
    while place < passes:
        op, end = ops[place], place + 1
        if place == 0 or op.microbatch != ops[place - 1].microbatch:
            lowering.begin(op, before)
        while op.phase == BACKWARD and ops[end][:4] == op[:3] + ops[end][3:4] and ops[end].label == op.label:
            end += 1  # the gradients of another operand
        reader = ops[end].inputs
        if _name(op) == "_log_softmax" and _name(ops[end]) == "nll_loss":  # which has a target for each row
            scores = _elements(op.inputs[0])
            lowering.columns[scores] = scores // (_elements(reader[1]) if len(reader) > 1 else 1)
        firsts += [len(lowering.ops)] * (end - place)
        lowering.run(op, [each for one in ops[place:end] for each in one.outputs])
        lasts += [len(lowering.ops) - 1] * (end - place)
        place = end
    begin, several = len(lowering.ops), [each for each in program.buffers if each.first < passes]
    count = begin + len(update.ops)
    firsts, lasts = ([*each, *[count] * (len(ops) - passes + 1), BEFORE] for each in (firsts, lasts))
    buffers = [replace(each, first=firsts[each.first], last=lasts[each.last]) for each in several]
    for each in update.buffers:
        first, last = (place + begin * (place != BEFORE) for place in (each.first, each.last))
        buffers.append(replace(each, first=first, last=last))

    def moved(operands: Sequence[Operand]) -> tuple[Operand, ...]:
        return tuple(each._replace(buffer=each.buffer + len(several)) for each in operands)

    updates = [op._replace(inputs=moved(op.inputs), outputs=moved(op.outputs)) for op in update.ops]
    return replace(program, ops=(*lowering.ops, *updates), buffers=tuple(buffers))


class _OfTape:
    """The operators so far, with what decides the kernels of later ones.

    columns  of scores by their number, those of attention and of the loss
    named   the labels of lines that are called as modules
    gradients  the buffers of weights' gradients
    """

    def __init__(self, named: Collection[str], gradients: Collection[int], sublayers: Mapping[str, str]) -> None:
        self._sublayers = sublayers
        self.ops: list[ProgramOp] = []
        self.columns: dict[int, int] = {}
        self._named, self._label, self._path, self._block, self._seen = named, "", "", 0, set[str]()
        self._products = 0  # of the line
        self._batches: dict[tuple[str, tuple[int, ...]], int] = {}
        self._attentions: dict[int, ProgramOp] = {}
        self._gradients = gradients

    def run(self, op: ProgramOp, outputs: Sequence[Operand]) -> None:
        """Add what PyTorch issues for an operator of the tape; in the backward pass `outputs` are all gradients."""
        name, backward = _name(op), op.phase == BACKWARD
        for _ in range(VIEWS.get(name, (0, 0))[backward] if op.inputs else 0):
            self._add(op, "view", op.inputs[:1], op.inputs[:1])
        for _ in range(MORE.get(name, (0, 0))[backward]):
            self._add(op, "mul_", op.inputs[-1:], op.inputs[-1:])
        if name in PRODUCTS:
            (self._gradients_of_product if backward else self._product)(op, outputs)
        elif name == "attention":
            (self._gradients_of_attention if backward else self._attention)(op, outputs)
        elif name in ("_softmax", "_log_softmax"):
            columns = [self.columns.get(_elements(each), 1) for each in op.inputs]
            given = [
                _shaped(each, _elements(each) // size, size) for each, size in zip(op.inputs, columns, strict=True)
            ]
            self._add(op, BACKWARD_OF[name] if backward else name, given, outputs)
        elif not backward:
            self._add(op, "nll_loss_forward" if name == "nll_loss" else name, op.inputs, outputs)
        elif name == "add_" and op.microbatch and op.inputs[0].buffer in self._gradients:
            last = next(at for at in reversed(range(len(self.ops))) if self.ops[at].name == "aten::view")
            self.ops[last] = op  # in place of the view that detaches the gradient of the first microbatch
        elif name in JOINT_BACKWARD:
            self._add(op, BACKWARD_OF[name], op.inputs, outputs)
        else:  # every gradient is that of the result, with one of the saved tensors
            for at, result in enumerate(outputs):
                inputs = op.inputs if name in ADDED else (*op.inputs[:1], *op.inputs[1 + at : 2 + at])
                self._add(op, BACKWARD_OF.get(name, name), inputs, [result])

    def _add(self, op: ProgramOp, name: str, inputs: Sequence[Operand], outputs: Sequence[Operand]) -> None:
        path = "" if op.phase == BACKWARD else self._module(op.label, name in ("mm", "addmm"))
        self.ops.append(op._replace(name=f"aten::{name}", inputs=tuple(inputs), outputs=tuple(outputs), path=path))

    def begin(self, op: ProgramOp, names: Sequence[str]) -> None:
        """Add the operators with which a forward pass begins."""
        number = [_shaped(op.inputs[0], 1)]
        for name in names:
            self._add(op, name, number, number if name == "view" else ())
            self.ops[-1] = self.ops[-1]._replace(synchronizes=name == "_local_scalar_dense")

    def _module(self, label: str, is_linear: bool) -> str:
        """Return the module that runs a line: one for each product, and another block where a line comes again."""
        if label in self._named and label != self._label:
            if label in self._seen:
                self._block += 1
                self._seen.clear()
            self._seen.add(label)
            line = label.partition("+")[0].removesuffix(".unrotated")
            self._path = f"blocks.{self._block}.{self._sublayers.get(line, line)}"
            self._products = 0
        self._products += is_linear
        if is_linear and self._products > 1 and label in self._named:
            self._path += "+"
        self._label = label
        return self._path

    def _product(self, op: ProgramOp, outputs: Sequence[Operand]) -> None:
        first, second, *bias = op.inputs
        sizes = [_elements(each) for each in (first, second, *outputs)]
        rows = op.arguments.get("rows", 0)
        batch = max(sizes[1] * rows * rows // (sizes[0] * sizes[2]), 1) if rows else 1
        self._batches[op.label, _key(first, second, *outputs)] = batch
        matrices = _matrices(first, second, outputs[0], batch)
        if rows:
            self.columns[_elements(outputs[0])] = matrices[1].shape[-1]
        self._add(op, "addmm" if bias else "bmm" if rows else "mm", (*bias, *matrices), outputs)

    def _gradients_of_product(self, op: ProgramOp, outputs: Sequence[Operand]) -> None:
        """Add a product of the gradient with the factor that gives a result its sides, and a sum for a bias."""
        gradient, *kept = op.inputs
        for result in outputs:
            keys = {(op.label.removesuffix(", backward"), _key(gradient, each, result)): each for each in kept}
            if key := next((key for key in keys if key in self._batches), None):
                batch, factor = self._batches[key], keys[key]
                self._add(op, "bmm" if batch > 1 else "mm", _matrices(gradient, factor, result, batch), [result])
                continue
            self._add(op, "sum", [gradient], [result])
            for _ in range(VIEWS["bias"][1]):
                self._add(op, "view", [result], [result])

    def _attention(self, op: ProgramOp, outputs: Sequence[Operand]) -> None:
        q, k, v, *mask = op.inputs
        rows, keys = _elements(outputs[1]), op.arguments["keys"]
        width = _elements(q) // rows
        several = max(_elements(k) // (keys * width), 1)
        heads = several * op.arguments["groups"]
        q, k = _shaped(q, 1, heads, rows // heads, width), _shaped(k, 1, several, keys, width)
        v = _shaped(v, 1, several, keys, _elements(v) // several // keys)
        self._add(op, "_scaled_dot_product_cudnn_attention", [q, k, v, *mask], outputs)
        self._attentions[outputs[1].buffer] = self.ops[-1]

    def _gradients_of_attention(self, op: ProgramOp, outputs: Sequence[Operand]) -> None:
        forward = next(self._attentions[each.buffer] for each in op.inputs if each.buffer in self._attentions)
        given = op.inputs[0], *forward.inputs[:3], *op.inputs[4:]
        op = op._replace(arguments=forward.arguments)
        self._add(op, "_scaled_dot_product_cudnn_attention_backward", given, outputs)


def _name(op: ProgramOp) -> str:
    name = op.name.rpartition("::")[2]
    return "attention" if name.endswith("attention") else name


def _elements(operand: Operand) -> int:
    return prod(operand.shape)


def _key(*operands: Operand) -> tuple[int, ...]:
    """Return what a product and its gradients have in common: the elements of the three matrices."""
    return tuple(sorted(map(_elements, operands)))


def _shaped(operand: Operand, *shape: int) -> Operand:
    """Return an operand of a shape, dense."""
    return operand._replace(shape=shape, strides=tuple(prod(shape[at + 1 :]) for at in range(len(shape))))


def _matrices(first: Operand, second: Operand, result: Operand, batch: int) -> list[Operand]:
    """Return two factors as matrices m x k and k x n, whose sides follow from their elements and the result's."""
    left, right, made = (_elements(each) // batch for each in (first, second, result))
    k = max(isqrt(left * right // max(made, 1)), 1)
    of = (batch,) if batch > 1 else ()
    return [_shaped(first, *of, max(left // k, 1), k), _shaped(second, *of, k, max(right // k, 1))]

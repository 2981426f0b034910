"""PyTorch's operators on a tape: what each keeps for its backward, and what that makes, in its order.

As `tools/autograd/derivatives.yaml` and the kernels for processors have it, PyTorch 2.13. Buffers inside of kernels are
not counted. Backwards hold numbers alone, no tensors.
"""

from __future__ import annotations

from collections.abc import Sequence

from learncost.readings.rooms.autograd.tape import Gradients, Tape, Value

BY_RESULT = ("relu", "sigmoid", "tanh")
"""Activations whose gradient is a function of their result."""
BY_OPERAND = ("gelu", "gelu_tanh", "silu")
"""Activations whose gradient is a function of their operand."""
ACTIVATIONS = (*BY_RESULT, *BY_OPERAND)


def embedding(tape: Tape, weight: Value, index: Value, elements: int) -> Value:
    """Rows of a weight; its gradient is as large as the weight."""
    rows = weight.elements
    (result,) = tape.run((weight,), (elements,), lambda _: (tape.new(rows),), keeps=(index,))
    return result


def linear(tape: Tape, x: Value, weight: Value, elements: int, bias: Value | None = None) -> Value:
    """`functional.linear`: keeps its operand for the weight's gradient."""
    x_elements, w_elements, b_elements = x.elements, weight.elements, bias.elements if bias else 0
    x_needs, w_needs = bool(x.node), bool(weight.node)

    def backward(gradients: Gradients) -> list[Value | None]:
        dx = tape.new(x_elements) if x_needs else None
        dw = tape.new(w_elements) if w_needs else None
        return [dx, dw, tape.new(b_elements)] if b_elements else [dx, dw]

    operands = (x, weight, bias) if bias else (x, weight)
    keeps = (x,) if w_needs else (weight,)
    (result,) = tape.run(operands, (elements,), backward, keeps)
    return result


def split(tape: Tape, x: Value, sizes: Sequence[int]) -> list[Value]:
    """Views; their gradients are joined."""
    whole = x.elements
    return tape.run((x,), sizes, lambda _: (tape.new(whole),), views=x.room)


def join(tape: Tape, parts: Sequence[Value]) -> Value:
    """`torch.cat`; its gradient is cut into views."""
    sizes = [part.elements for part in parts]

    def backward(gradients: Gradients) -> list[Value | None]:
        whole = gradients.pop()
        assert whole
        return [Value(size, whole.room) for size in sizes]

    (result,) = tape.run(parts, (sum(sizes),), backward)
    return result


def attention(tape: Tape, q: Value, k: Value, v: Value, elements: int, rows: int) -> Value:
    """`functional.scaled_dot_product_attention`, fused: keeps all operands, the result, and a sum of every row."""
    sizes = [one.elements for one in (q, k, v)]
    found = tape.run(
        (q, k, v), (elements, rows), lambda _: [tape.new(size) for size in sizes], keeps=(q, k, v), keeps_results=(0, 1)
    )
    return found[0]


def layer_norm(tape: Tape, x: Value, weights: Sequence[Value], rows: int) -> Value:
    """`functional.layer_norm`: keeps its operand, and every row's mean and deviation."""
    operands = (x, *weights)
    sizes = [one.elements for one in operands]
    found = tape.run(
        operands, (x.elements, rows, rows), lambda _: [tape.new(n) for n in sizes], keeps=(x,), keeps_results=(1, 2)
    )
    return found[0]


def rms_norm(tape: Tape, x: Value, weights: Sequence[Value], rows: int) -> Value:
    """`functional.rms_norm`, which is composed of others: keeps its operand and what the scale multiplies."""
    elements = x.elements

    def powered(gradients: Gradients) -> list[Value | None]:
        one = tape.new(elements)  # x to the first power, twice that, and the product with the gradient
        two = tape.new(elements)
        found = tape.new(elements)
        del one, two
        return [found]

    (square,) = tape.run((x,), (elements,), powered, keeps=(x,))
    (mean,) = tape.run((square,), (rows,), lambda _: (tape.new(elements),))
    del square
    (root,) = tape.run((mean,), (rows,), lambda _: (tape.new(rows),), keeps_results=(0,))
    del mean
    normed = times(tape, x, root)
    del root, x
    return times(tape, normed, *weights) if weights else normed


def times(tape: Tape, one: Value, two: Value) -> Value:
    """A product by elements, the second spread where it is smaller: each is kept for the other's gradient."""
    one_elements, two_elements = one.elements, two.elements
    one_needs, two_needs = bool(one.node), bool(two.node)

    def backward(gradients: Gradients) -> list[Value | None]:
        first = tape.new(one_elements) if one_needs else None
        second = tape.new(one_elements) if two_needs else None
        gradients.clear()
        if second and two_elements < one_elements:
            second = tape.new(two_elements)
        return [first, second]

    keeps = [kept for kept, needed in ((two, one_needs), (one, two_needs)) if needed]
    (result,) = tape.run((one, two), (one_elements,), backward, keeps)
    return result


def scaled(tape: Tape, x: Value) -> Value:
    """A product with a number, or its negative: nothing is kept."""
    elements = x.elements
    (result,) = tape.run((x,), (elements,), lambda _: (tape.new(elements),))
    return result


def plus(tape: Tape, one: Value, two: Value) -> Value:
    """A sum, one operand spread where it is smaller: nothing is kept, and the gradient goes on as it is."""
    sizes = one.elements, two.elements
    elements = max(sizes)

    def backward(gradients: Gradients) -> list[Value | None]:
        whole = gradients.pop()
        assert whole
        return [whole if size == elements else tape.new(size) for size in sizes]

    (result,) = tape.run((one, two), (elements,), backward)
    return result


def activation(tape: Tape, x: Value, word: str) -> Value:
    """An activation, which keeps its operand or its result."""
    elements = x.elements
    by_result = word in BY_RESULT
    (result,) = tape.run(
        (x,), (elements,), lambda _: (tape.new(elements),), () if by_result else (x,), (0,) if by_result else ()
    )
    return result


def turned(tape: Tape, x: Value, cosine: Value, sine: Value) -> Value:
    """Rotary positions: `x * cosine + cat((-second, first)) * sine`, a head's halves being first and second."""
    half = x.elements // 2
    fixed = times(tape, x, cosine)
    first, second = split(tape, x, (half, half))
    del x
    second = scaled(tape, second)
    joined = join(tape, (second, first))
    del first, second
    joined = times(tape, joined, sine)
    return plus(tape, fixed, joined)


def cross_entropy(tape: Tape, scores: Value, targets: Value) -> Value:
    """`functional.cross_entropy`: log-softmax keeps its result, the loss that too."""
    elements = scores.elements
    (logs,) = tape.run((scores,), (elements,), lambda _: (tape.new(elements),), keeps_results=(0,))
    loss, _ = tape.run((logs,), (1, 1), lambda _: (tape.new(elements),), keeps=(logs, targets), keeps_results=(1,))
    return loss

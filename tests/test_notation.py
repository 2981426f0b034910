"""What is not well formed is refused in one line that says what is wrong and quotes the line."""

import numpy as np
import pytest

import fuzz_tables
import learncost as lc
from learncost.cli.command import main
from learncost.ir.loop import walk

MIXED = "a line is a product or a sum, not both"

# Header, lines, what the message says; it ends with the last line given here unless the header is at fault.
REFUSED = [
    ("t(X; W) -> Y", "Y[a] = Z[a]", "Z is not defined before it is read"),
    ("t(X) -> Y", "Y[a] = X[a] + X[a b]", "X[a] is read with 2 axes"),
    (
        "t(X) -> Y",
        "Z[c y] = exp(X[c y])\nY[c y] = sum[u](Z[c=c + u - #u/2 y])",
        "Z[c y] is read with 1 axes; write an index",
    ),
    ("t(X; W) -> Y", "H[e] = X[d] W[d e]\nY[d] = X[d] H[d]", "axis d has the size of d and of e; a second axis"),
    ("t(X) -> Y", "Y[a] = X[a b]", "axis b is summed but occurs in one factor only"),
    (
        "t(X; W) -> Y",
        "Y[a] = X[a b] W[a]",
        "axis b is summed but occurs in one factor only; sum it first: S[a] = sum[b](X",
    ),
    ("t(X; W) -> Y", "Y[a c] = X[a b] W[b a]", "axis c on the left is not on the right"),
    ("t(X; W) -> Y", "Y[ac] = X[ab] W[bc]", "axis ac on the left is not on the right; axes are separated by spaces"),
    ("t(X; W) -> Y", "Y[a] = X[a b] + W[b a]", "axis b of X[a b] is not on the left"),
    ("t(X) -> Y", "Y[a] = softmx[a](X[a])", "no operator is called 'softmx'; the nearest is 'softmax'"),
    ("t(X) -> Y", "repeat 3 carry X:", "a loop needs an indented body"),
    ("t(X) -> X", "repeat ² carry X:", "a loop cannot run ² times"),
    ("t(X) -> Y", "Y[²] = X[²]", "'²' is not a name: use letters, digits and _"),
    ("t(X) -> X", "repeat 0 carry X:", "a loop cannot run 0 times"),
    ("t(X) -> X", "repeat n carry X X:", "X occurs twice in the loop"),
    ("t(X) -> Y", "repeat n:", "a loop is written `repeat COUNT carry X:`"),
    ("t(X) -> Y", "Y[a] = X[a] X[a] + X[a]", MIXED),
    ("t(X) -> Y", "Y[a] = X[a] + X[a] X[a]", MIXED),
    ("t(X) -> Y", "Y[a] = softmax(X[a])", "softmax needs the axes it acts on, as in softmax[N](...)"),
    ("t(X) -> Y", "Y[a] = gelu[a](X[a])", "gelu is elementwise: remove the axes"),
    ("t(X) -> Y", "Y[a] = softmax[b](X[a])", "softmax acts on axis b, which no operand has"),
    ("t(X) -> Y", "Y[a] = gelu(X[a], X[a])", "gelu takes 1 operands, not 2"),
    ("t(X) -> Y Z", "Y[a] Z[a] = gelu(X[a])", "gelu gives 1 results, not 2"),
    ("t(X) -> Y", "Y[a a] = X[a] X[a]", "an axis occurs twice in Y; write the second with a prime (N and N')"),
    (
        "t(X T) -> Y",
        "Y[a] = X[a=T[a] a]",
        "an axis occurs twice in X; write the second with a prime (N and N'): X[a=T[a] a']",
    ),
    ("t(X) -> Y", "Y[a] = softmax[a a](X[a])", "axis a occurs twice in softmax[a a]"),
    ("t(X) -> Y", "Y[a] = X[a] where b <= a", "where b <= a: axis b is not in the line"),
    ("t(X) -> Y", "Y[a] = X[a] where a <= a", "where a <= a: two different axes are needed"),
    ("t(X) -> Y", "Y[a] = X[a] where 1 <= 3", "where 1 <= 3 has no axis"),
    ("t(X) -> Y", "Y[a] = X[a] where a = 3 < a + 2", "a window needs two axes, as in `where N <= M < N + w`"),
    ("t(X) -> Y", "Y[a] = X[a] where a", "`where` takes two axes, as in `where N <= M`"),
    (
        "t(X) -> Y",
        "Y[a b] = 1[] X[a b] where a <= b < w + a",
        "a window must begin at the first axis, as in `where a <= b < a + a`",
    ),
    ("t(X) -> Y", "Y[a b] = 1[] X[a b] where a <= b < a + w'", "the window w' is a size, which has no prime"),
    ("t(X) -> Y", "Y[a b] = 1[] X[a b] where a <= b < a + 0", "the window 0 is empty: it must be a size or a number"),
    *(
        (
            "t(X) -> Y",
            f"Y[a b] = 1[] X[a b] where {text}",
            "`where` takes two axes, as in `where N <= M`, and a window's",
        )
        for text in ("a <= b <= a + w", "a <= b < a", "a <= b < a + 1.5", "a <= b < a - w", "b < a + w + 1")
    ),
    (
        "t(X) -> Y",
        "Y[a b] = normalize[a](X[a b]) where a <= b",
        "normalize cannot have a `where` on an axis it",
    ),
    ("t(X) -> Y", "Y[a] = X[a] ?", "expected a name before '?'"),
    ("t(X) -> Y", "Y[a] =", "expected a name at the end"),
    ("t(X) -> Y", "Y = X[a]", "expected '[' before '='"),
    ("t(X) -> Y", "2[] = X[a]", "expected a value, not a number"),
    ("t(X) -> Y", "Y[a] = X[a] #b^x[]", "expected a number"),
    ("t(X) -> Y", "Y[a] = X[a] #a^inf[]", "a size is raised to a number, not to infinity"),
    ("t(X) -> Y", "Y[a] = X[a] 1e400[]", "1e400 is larger than the largest floating-point number"),
    ("t(X) -> Y", "Y'[a] = X[a]", '"Y\'": a prime belongs to an axis, not to a name'),
    ("t(X T) -> Y", "Y[a] = X[v=T[a]] T[a]", "T is read both as a value and as an index"),
    ("t(X T) -> Y", "Y[v=T[a]] = X[a] + X[a]", "only a product may have an index on the left"),
    ("t(X T) -> Y", "Y[v=T[a]] = gelu(X[a])", "only a product may have an index on the left"),
    ("t(X; W) -> Y", "Y[a] Z[a] = X[a] W[a]", "only an operator or a call may have several names on the left"),
    ("t(X) -> Y", "Y[a] = attentio(X; w)", "no layer is called 'attentio'; the nearest is 'attention'"),
    ("t(X) -> Y", "Y[B M d] = norm(X, X; w)", "norm takes 1 inputs, not 2"),
    ("t(X) -> Y", "Y[B M d] = norm(X; u v w)", "norm has 2 weights: give one prefix or as many names"),
    ("t(X) -> Y", "Y[a] = norm(X; w)", "norm expects the axes B M d, not a"),
    ("t(X) -> Y", "Y[a] = norm[a](X; w)", "a call takes names without axes before its parenthesis"),
    ("t(X) -> Y", "Y[B M d] = norm(X; w) where M' <= M", "where M' <= M: no line of norm has both axes"),
    (
        "t(X) -> Y",
        "Y[B M k] = attention(X, X, X; w, N = M')",
        "axes k and d of attention would both be k: rename one of them",
    ),
    (
        "t(X) -> Y",
        "H[B M d] = exp(X[B M d])\nY[B M d] = attention(H, H, H; w)",
        "axes M and N of attention would both be M: rename one of them, as in `; ..., N = M'`",
    ),
]

# What people write first, and what they are told to write.
ATTEMPTS = [
    ("t(X) -> Y", "Y[B,M,d] = X[B,M,d]", "axes are separated by spaces: write Y[B M d]"),
    ("t(X) -> Y", "Y[B] = 2 X[B]", "write 2[] X[B]"),
    ("t(X) -> Y", "Y[B] = 1.5e-3 X[B]", "write 1.5e-3[] X[B]"),
    ("t(X; W) -> Y", "Y[M f] = gelu(X[M d] W[d f])", "first H[M f] = X[M d] W[d f], then Y[M f] = gelu(H[M f])"),
    ("t(X; W) -> Y", "Y[M f] = gelu(X W)", "first H[M f] = X W, then Y[M f] = gelu(H[M f])"),
    ("t(X; b) -> Y", "Y[M f] = relu(X[M f] + b[f])", "first H[M f] = X[M f] + b[f], then Y[M f] = relu(H[M f])"),
    ("t(X) -> Y", "Y[B] = relu(gelu(X[B]))", "first H[B] = gelu(X[B]), then Y[B] = relu(H[B])"),
    ("t(X) -> Y", "Y[B] = relu X[B]", "relu(X[B])"),
    ("t(X; W b) -> Y", "Y[M f] = X[M d] W[d f] + b[f]", "first H[M f] = X[M d] W[d f], then Y[M f] = H[M f] + b[f]"),
    ("t(H; W b) -> Y", "Y[M] = b[M] - H[M d] W[d]", "first G[M] = H[M d] W[d], then Y[M] = b[M] - G[M]"),
    ("t(X) -> Y", "Y[d d] = X[M d] X[M d]", "write the second with a prime (N and N')"),
    ("t(X) -> Y", "Y[B] = X[B d]", "write Y[B] = sum[d](X[B d]), or mean[d](X[B d])"),
    ("t(X) -> Y", "Y[B] = reduce_mean(X[B d])", "the mean over d is Y[M] = mean[d](X[M d])"),
    ("t(X) -> Y", "Y[B] = sum(X[B d])", "sum needs the axes it acts on, as in sum[N](...)"),
    ("t(X) -> Y", "Y[B] = mean[M](X[B M]) where M <= B", "mean cannot have a `where` on an axis it acts"),
    ("t(X; W) -> Y", "Y[B f] = ∑ X[B d] W[d f]", "an axis that is not on the left is summed"),
    ("t(X; W) -> Y", "Y = X W", "a value is written with its axes"),
    ("t(X; W) -> Y", "Y[B f] = X[B d] @ W[d f]", "factors are written one after the other without a sign"),
    ("t(X; W) -> Y", "Y[B f] = X[B d] * W[d f]", "factors are written one after the other without a sign"),
    ("t(X; W) -> Y", "Y = einsum('bd,df->bf', X, W)", "write its factors one after the other"),
    ("t(X; W) -> Y", "Y(B f) = X(B d) W(d f)", "axes are written in square brackets"),
    ("t(X) -> Y", "Y[B] = X[B]^2", "a square is a product"),
    ("t(X) -> Y", "Y[B] = X[B] / 2", "by a number it is a product, 0.5[] X[M]"),
    ("t(X Z) -> Y", "Y[B] = (X[B] + Z[B])", "give the inner one its own line"),
    ("t(X) -> Y", "Y[d B] = X.T[d B]", "write them in the order in which the value declares them"),
    ("t(X) -> Y", "Y[d B] = transpose(X[B d])", "write them in the order in which the value declares them"),
    ("t(X) -> Y", "Y[B N] = softmax(X[B N], dim=-1)", "softmax[N](S[M N])"),
    ("t(X) -> Y", "Y[1 B] = X[B]", "an axis is a name"),
    ("t(X) -> Y", "Y[B] := X[B]", "a line has one `=`"),
    ("t(X) -> Y", "Y[B] = X[B] X[B]  # squares", "a comment is a separate line that begins with %"),
    ("t(X; W) -> Y", "return X[B d] W[d f]", "outputs are named in the header"),
    ("t(X) -> Y", "Y[B] = GELU(X[B])", "the nearest is 'gelu'"),
]

# What is read with other axes than it has, sizes that nothing has, what a layer has no use for, what would not learn.
MISFITS = [
    ("t(X) -> Y", "v[] = X[B] X[B]\nY[B] = X[B] v[B]", "v[] is read with 1 axes"),
    ("t(X) -> Y", "Y[B k] = X[B k] #q^-0.5[]", "#q is not the size of an axis of t; write the size of one, such as #"),
    ("t(X; d) -> Y", "Y[B f] = X[B d] d[d f]", "d is an axis and a name of the header: rename one of them"),
    (
        "t(X; e) -> Y",
        "Y[B d] = normalize[d](X[B d], e[])",
        "normalize has no gradient for its operand e: give a",
    ),
    ("t(X a) -> Y", "Y[B d] = at_most(X[B d], a[])", "at_most has no gradient for its operand a: give a number"),
    (
        "t(X; w) -> Y",
        "a[] = w[d] w[d]\nY[B d] = at_most(X[B d], a[])",
        "at_most has no gradient for its operand a: give a number, as in at_most(X[B d], 1e-05[]), or an input that a",
    ),
    (
        "t(X Z) -> Y",
        "Y[B d] = append[d](X[B d], Z[B d])",
        "append is an operator of derived tables: a layer",
    ),
    (
        "t(X) -> Y",
        "Y[B] = topk[d](X[B d])",
        "the result of topk has a new axis, as in T[M k] = topk[v](X[M v])",
    ),
    ("t(X) -> Y", "Y[B d] = cumsum[B d](X[B d])", "cumsum acts along one axis"),
    ("t(X) -> Y", "Y[B] = argmax[d](X[B d]) where B != 1", "argmax can only have a `where` on the axis it acts on"),
    ("t(X) -> Y", "T[B] = argmax[d](X[B d])\nY[B] = T[B] 2[]", "T holds indices: use it as an index, as in X[v=T[B]]"),
    ("t(X) -> Y", "Y[a] = X[a] #(b+1)[]", "#b is not the size of an axis of t"),
    ("t(X) -> Y", "Y[a] = X[a] #(a*2)[]", "sizes are added, as in #(M+N)^-1[]"),
    ("t(X) -> Y", "Y[a] = X[a] #()[]", "sizes are added, as in #(M+N)^-1[]"),
    (
        "t(X) -> Y",
        "I[d] = eye()",
        "eye needs an even number of axes: the second half of those of I[d] is paired with the first",
    ),
]

REPEATS = [
    ("X", "Y[a] = X[a] W[a]", "X is carried but never assigned"),
    ("W", "W[a] = X[a] 2[]", "W is carried but never read as it comes in"),
    ("Z", "X[a] = X[a] W[a]", "Z is carried but not defined before"),
    ("X", "X[b] = X[a] W[a b]", "X starts an iteration with axes a and ends it with b"),
]

SIZES_AND_NAMES = [
    ("t(P share) -> T", "T[B] = P[B share=share[B]]", "share is an axis and a name of the header"),
    ("t(X; M) -> Y", "F[B d] = X[B M=0[] d]\n Y[B d] = F[B d] M[d]", "M is an axis and a name of the header"),
    ("t(X; w) -> Y", "Y[a b] = X[a b] w[a] where a <= b < a + w", "w is a size and a name of the header"),
    ("t(X; n) -> X", "repeat n carry X:\n   X[a] = X[a] n[a]", "n is a size and a name of the header"),
]

MALFORMED_CALLS = [
    (
        "attention(X, X, X; a, attention d M')",
        '"M\'": a prime belongs to an axis, not to a weight; an axis has',
    ),
    ("attention(X, X, X; a, attention d e)", "d is an axis and a weight of the call: rename one of them"),
    ("attention(X, X, X; a b c n, N = M')", "n is a size and a weight of the call: rename one of them"),
    ("norm(X; M, b)", "M is an axis and a weight of the call: rename one of them"),
    ("attention(X, X, X; a b c)", "attention has 4 weights: give one prefix or as many names"),
    ("attention(X, X; a)", "attention takes 3 inputs, not 2"),
    ("attention(X, X, X)", "attention has 4 weights: give one prefix or as many names"),
    ("attention(X, X, X; *, a, b, c)", "* stands for all weights of attention; give it alone, or a name for each"),
    ("attention(X, X, X; a, N = M', N = e)", "an axis of attention is named twice; write N = M' once"),
    ("attention(X, X, X; a, e = M')", "attention has no axis e; it has "),
    ("attention(X, X, X; a, N = 3)", "N is an axis of attention: give it a name, not a number"),
    ("attention(X, X, X; a, 3)", "expected a name before '3'"),
    ("attention(X, X, X; W[d h k])", "expected a name before '['"),
    ("attention(X, X, Z; a)", "Z is not defined before it is read"),
]
"""Calls `Y[B M d] = ...` of a shipped layer in a loop that runs n times, and what refuses each."""

HEADERS = [
    *(
        (header, f"a layer must begin with its header `name(inputs; weights) -> outputs`; {message}, in line: {header}")
        for header, message in (
            ("t(X)", "write the outputs after an arrow, -> Y"),
            ("t(X) → Y", "the arrow is ->"),
            ("# of my own", "a comment begins with %"),
            ("def t(X) -> Y", "write no keyword before the name"),
            ("my-own(X) -> Y", "names use _ instead of a hyphen"),
            ("(X) -> Y", "a layer needs a name"),
        )
    ),
    (
        "t(X[a]) -> Y",
        "'X[a]' is not a name: use letters, digits and _; the header names values without their axes; the first line "
        "that reads a value declares them, in line: t(X[a]) -> Y",
    ),
    (
        "t(X) -> (Y)",
        "'(Y)' is not a name: use letters, digits and _; outputs have no parentheses, in line: t(X) -> (Y)",
    ),
    ("", "a layer must begin with its header `name(inputs; weights) -> outputs`, in line: (empty)"),
    ("t(X) -> Z", "the output Z is never defined, in line: t"),
    ("t(X; T) -> Y", "T is read as an index: declare it as an input, not as a weight, in line: t"),
    ("t(X) -> X", "the output X is an input that no line assigns, in line: t"),
    ("t(X Z) -> Y", "Z is declared in the header of t and never read"),
    ("t(X) -> ", "the header names no output after ->, in line: t(X) ->"),
    ("t(X) -> Y;", "'Y;' is not a name: use letters, digits and _, in line: t(X) -> Y;"),
    ("t(X; X) -> Y", "X occurs twice in the header, in line: t(X; X) -> Y"),
    ("t(X) -> Y Y", "Y occurs twice in the header, in line: t(X) -> Y Y"),
]


ATTEMPTS += [
    ("t(X; W) -> Y", "Y[B f] = X[B d] W^T[d f]", "axes have names, so no transpose is needed"),
    ("t(X) -> Y", "Y[B] = X[B]**2", "a square is a product"),
    ("t(X; W) -> Y", "Y[d] = X[d] − W[d]", "a minus is the sign - of the keyboard"),
    ("t(X) -> Y", "Y[d] = X[d′]", "a prime is the sign ' of the keyboard"),
    ("t(X; W) -> Y", "Y{d} = X{d} W{d}", "axes are written in square brackets"),
    ("t(X; b) -> X", "X[d] += b[d]", "a line has one `=`, and names what it reads"),
    ("t(X) -> Y", "Y[d = X[d]", "a square bracket is open"),
    ("t(X) -> Y", "Y[d] = 1 - X[d]", "a number has empty brackets: write 1[]"),
    ("t(X) -> Y", "Y[d] = max(X[d], 0[])", "the larger of two is maximum(X[M], 0[])"),
    ("t(X) -> Y", "Y[d] = LayerNorm[d](X[d])", "a normalization is normalize[d](X[M d])"),
    ("t(X) -> Y", "Y[d] = dropout(X[d])", "dropout is a product with a random mask"),
    ("t(X) -> Y", "Y[d] = gelu(X)", "gelu is an operator: write its operands with their axes, as in gelu(X[M d])"),
    ("t(X; W) -> Y", "y[f] = x[d] W[d f]", "x is not defined before it is read; there is X"),
    ("t(X) -> Y", "Y[f] = X[d] W[d f]", "declare an input or a weight in the header"),
    ("t(X) -> Y", "Y[d] = X[d] 2[] % twice", "a comment is a separate line that begins with %"),
]


@pytest.mark.parametrize(("header", "line", "message"), ATTEMPTS, ids=[line for _, line, _ in ATTEMPTS])
def test_a_first_attempt_is_told_what_to_write(header, line, message):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"{header}\n  {line}")
    assert message in str(refused.value)
    assert str(refused.value).endswith(f", in line: {line}")


def test_what_first_attempts_are_told_to_write_can_be_read():
    for text in (
        "Y[M] = #d^-1[] X[M d]",
        "Y[M] = 1[] X[M d]",
        "Y[M d] = #d^-1[] X[M d]",
        "Y[M d] = divide(X[M d], X[M d])",
    ):
        assert lc.check_layer(lc.layer(f"t(X) -> Y\n  {text}"))


def test_an_input_named_under_constants_needs_no_gradient():
    bounded = lc.layer("t(X a) -> Y\nconstants: a\n  Y[B d] = at_most(X[B d], a[])")
    assert tuple(lc.derive(bounded).gradients) == ("X",)


def test_texts_of_chance_are_layers_or_refused():
    """A sample of `python -m tests.fuzz --tables`."""
    assert fuzz_tables.fuzz(100, seed=1) == []


CANCELS = """drawn(X1 X5 T6 T7 T13; W12) -> Y9 Y14 Y4
  Y2[b a c] = tanh(X1[b a c])
  Y3[b a c] = exp(Y2[b a c])
  Y4[b c a] = swish(Y3[b a c])
  Y8[z j] = Y2[q z j] Y4[b=T6[] j z] X5[c=T7[q]]
  Y9[c a] = -0.5[] Y8[a c] #a^0.5[]
  repeat 3 carry Y8:
    Y10[a] = #c^0.5[] X5[c] Y8[a c] 2[]
    Y11[a] = Y10[a] Y10[a]
    D[a c] = Y11[a] W12[a c] 0.3[]
    Y8[a c] = Y8[a c] + D[a c]
  Y14[c s] = softmax[c s](Y8[a=T13[s c] c])"""


def test_what_large_numbers_leave_is_held_to_extended_precision(monkeypatch):
    """Values of 2e9 leave gradients of 1e-7, of which two orders of a sum differ by as much as they are."""
    assert fuzz_tables.tried(CANCELS) == ""
    run = fuzz_tables.execute

    def wrong(*arguments):
        return {name: array + (1e-4 if name == "dX1" else 0) for name, array in run(*arguments).items()}

    monkeypatch.setattr(fuzz_tables, "execute", wrong)
    assert fuzz_tables.tried(CANCELS) == "the emitted program has another value"


def test_products_that_are_stored_at_places_without_a_sum_are_no_maccs():
    """The gradient of X has a product for each B, M, c and d, and no two of them at one place."""
    layer = lc.layer("window(X; D) -> Y\n  Z[B M d] = X[B M q=(M + c - #c/2) d] D[c d]\n  Y[B M d] = tanh(Z[B M d])")
    sizes = {"B": 2, "M": 3, "q": 4, "c": 6, "d": 5}
    rows = {row.source.name: row for row in lc.price(lc.derive(layer).step, sizes, "run").rows}
    points = 2 * 3 * 6 * 5
    gradient = next(row for name, row in rows.items() if name.startswith("dX"))
    assert (gradient.maccs.at(sizes), gradient.flops.at(sizes)) == (0, points)
    gradient = next(row for name, row in rows.items() if name.startswith("dD"))
    assert (gradient.maccs.at(sizes), gradient.flops.at(sizes)) == (points, 2 * points)


LONG = "9" * 40
NUMBERS = ("inf", "-inf", "1e400", "1e308", "1e22", "1e-400", "nan", "infinity", LONG, "9" * 5000, "1e99999999", "²")
"""As no place, no size, no power and no count of turns may be, but the tiny one, which is 0."""

WRITTEN = (
    "L[B e] = X[B d=({} + c)] W[c e]",
    "L[B e] = X[B d=({} c)] W[c e]",
    "L[B e] = X[B d=(c - {})] W[c e]",
    "L[B e] = X[B d=(#d/{} c)] W[c e]",
    "L[B={} e] = X[B d] W[d e]",
    "L[B e] = X[B d] W[d e] #{}[]",
    "L[B e] = X[B d] W[d e] #(d+{})[]",
    "L[B e] = X[B d] W[d e] #d^{}[]",
    "L[B e] = X[B d] W[d e] {}[]",
    "L[B e] = X[B d] W[d e] where d <= {}",
    "L[B e] = X[B d] W[d e] where d <= e < d + {}",
    "L[B e] = norm(X; W, d = {})",
    "repeat {} carry X:\n    X[B d] = X[B d'] W[d' d]",
    "L[B e] = X[B d] W[d e]\n  sizes: d={}",
    "L[B e] = X[B d] W[d e]\n  unread: {}",
    "L[B e] = X[B d] W[d e]\n  unused: {} B",
    "L[B e] = opaque(X[B d], W[d e]) forward {} B",
)


@pytest.mark.parametrize("written", WRITTEN)
def test_a_number_that_is_none_here_is_one_line(written):
    """Refused where it stands, or taken: nothing that reads the table ends in anything else."""
    for number in NUMBERS:
        assert not fuzz_tables.tried(f"t(X; W) -> L\n  {written.format(number)}"), number


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "L[B e] = X[B d=(inf + c)] W[c e]",
            "an index on an axis takes whole numbers up to 1,000,000,000,000, not inf",
        ),
        (
            "L[B e] = X[B d=(1e22 c)] W[c e]",
            "an index on an axis takes whole numbers up to 1,000,000,000,000, not 1e+22",
        ),
        (f"L[B e] = X[B d] W[d e] #{LONG}[]", "1e+40 is larger than 1,000,000,000,000, the largest whole number"),
        (f"L[B e] = X[B d] W[d e] where d <= {LONG}", "1e+40 is larger than 1,000,000,000,000"),
    ],
)
def test_a_whole_number_beyond_all_sizes_is_refused_with_its_line(line, message):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"t(X; W) -> L\n  {line}")
    assert str(refused.value).startswith(message)
    assert str(refused.value).endswith(f", in line: {line}")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("L[B e] = X[B d] W[d e] #d^1e5[]", r"#d\^100000\[\] is larger than the largest floating-point number"),
        ("L[B e] = X[B d] W[d e] #(d-e)^0.5[]", r"#\(d-e\)\^0.5\[\] is a root of -2"),
        ("L[B e] = X[B d=(#d/100 c)] W[c e]", "#d/100 c is the same place everywhere: #d is 3"),
    ],
)
def test_a_number_that_sizes_make_too_large_or_too_small_is_told_where_it_runs(line, message):
    layer = lc.layer(f"t(X; W) -> L\n  {line}")
    sizes = {"B": 2, "d": 3, "e": 5, "c": 3}
    arrays = {"X": np.ones((2, 3)), "W": np.ones((3, 5))}
    with pytest.raises(lc.InputError, match=message):
        lc.run(layer, arrays, sizes)


@pytest.mark.parametrize(
    ("follows", "message"),
    [
        ("y=9**9**9**9", r"9\*\*9\*\*9\*\*9 has no value"),
        ("y=10**5000", r"10\*\*5000 has no value"),
        ("y=d//0", "d//0 has no value where d = 3"),
        ("y=1e400", "the axis y would have the size inf"),
        ("y=f(d)", "t leaves f open"),
        ("y=min(d)", r"min\(d\) has no value where d = 3"),
        ("y=1j*d", "y"),
        ("y=d+", "a size that depends on others is written once and without spaces"),
        ("y=d" + "+d" * 3000, "a size that depends on others|has no value"),
    ],
)
def test_a_size_that_cannot_follow_is_one_line(follows, message):
    with pytest.raises(lc.InputError, match=message):
        lc.cost(lc.layer(f"t(X; W) -> L\n  L[B y] = X[B d] W[d y]\n  follows: {follows}"), B=2, d=3)


@pytest.mark.parametrize("sign", ["\x1b", "\x00", "\u202e", "\udc80", "\x7f"])
def test_a_line_is_quoted_as_a_terminal_can_show_it(sign):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"t(X) -> Y\n  Y[a{sign}] = X[a] ?")
    assert str(refused.value).isprintable()


REFUSED += [("t(X; W) -> Y", "repeat 2 carry ,:", "a loop is written")]
REFUSED += MISFITS


@pytest.mark.parametrize(("header", "lines", "message"), REFUSED, ids=[message[:40] for *_, message in REFUSED])
def test_a_line_that_is_not_well_formed_is_quoted(header, lines, message):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(header + "\n  " + "\n  ".join(lines.splitlines()))
    text = str(refused.value)
    assert "\n" not in text
    assert text.startswith(message)
    assert text.endswith(f", in line: {lines.splitlines()[-1]}")


@pytest.mark.parametrize(("header", "lines", "message"), SIZES_AND_NAMES)
def test_a_name_of_the_header_is_no_size(header, lines, message):
    with pytest.raises(lc.NotationError, match=message):
        lc.layer(f"{header}\n {lines}")


@pytest.mark.parametrize(("call", "message"), MALFORMED_CALLS)
def test_a_malformed_call_is_refused_in_the_line_that_has_it(call, message):
    line = f"X[B M d] = {call}"
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"t(X) -> X\n  repeat n carry X:\n    {line}")
    start, _, quoted = str(refused.value).partition(", in line: ")
    assert (message in start, quoted) == (True, line)


@pytest.mark.parametrize("command", ["cost", "memory", "explain", "emit", "verify", "formulas", "report"])
def test_every_command_refuses_a_malformed_call(command, tmp_path, capsys):
    line = "Y[B M d] = attention(X, X, X; a, b d c, N = M')"
    (tmp_path / "k.table").write_text(f"t(X) -> Y\n  {line}\n")
    assert main([command, str(tmp_path / "k.table")]) == 2
    problem = "d is an axis and a weight of the call: rename one of them"
    assert capsys.readouterr().err == f"learncost: {problem}, in line: {line}\n"


@pytest.mark.parametrize(("carried", "line", "message"), REPEATS)
def test_a_repeat_carries_what_it_says(carried, line, message):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"t(X; W) -> X\n  repeat 3 carry {carried}:\n    {line}")
    assert str(refused.value) == f"{message}, in line: repeat 3 carry {carried}:"


@pytest.mark.parametrize(("header", "message"), HEADERS)
def test_a_header_says_what_goes_in_and_comes_out(header, message):
    with pytest.raises(lc.NotationError) as refused:
        lc.layer(f"{header}\n  Y[a] = {'X[b=T[a]]' if 'T' in header else 'X[a]'}" if header else "")
    assert str(refused.value) == message


def test_a_notation_error_is_bad_input():
    assert issubclass(lc.NotationError, lc.InputError)
    assert issubclass(lc.InputError, ValueError)


def test_a_minus_between_terms_is_a_sign_and_at_the_beginning_part_of_a_number():
    values = {"X": [3.0, 4.0]}
    assert lc.run(lc.layer("t(X) -> Y\n Y[a] = X[a] -2[]"), values)["Y"].tolist() == [1.0, 2.0]
    assert lc.run(lc.layer("t(X) -> Y\n Y[a] = -2[] X[a]"), values)["Y"].tolist() == [-6.0, -8.0]
    assert lc.run(lc.layer("t(X) -> Y\n Y[a] = - X[a]"), values)["Y"].tolist() == [-3.0, -4.0]


def test_a_name_that_is_met_first_declares_its_axes_as_the_others_have_them():
    layer = lc.layer("t(X; V W) -> Z\n Y[a b] = X[a b] V[a]\n Z[p q] = Y[p q] + W[q p]")
    assert layer.table.axes["Z"] == ("a", "b")
    assert layer.table.axes["W"] == ("b", "a")


def test_a_version_takes_no_name_that_something_has():
    """The second X is not the value that is called X.2, whichever of them comes first."""
    for lines, result in (
        ("X.2[a] = X[a] 2[]\n X[a] = X.2[a] 3[]", 12.0),
        ("X[a] = X[a] 3[]\n X.2[a] = X[a] 2[]", 18.0),
    ):
        values = lc.run(lc.layer(f"t(X) -> Y\n {lines}\n Y[a] = X[a] X.2[a]"), {"X": [1.0], "dY": [1.0]})
        assert (values["Y"].tolist(), values["dX"].tolist()) == ([result], [2 * result])


def test_what_has_the_name_of_a_gradient_is_told_where_one_is_derived():
    layer = lc.layer("t(X; dX) -> Y\n Y[a] = X[a] dX[a]")
    with pytest.raises(lc.InputError, match="dX is a value of the layer and the gradient of X"):
        lc.derive(layer)
    by_hand = lc.layer("backward(X dY; W) -> dX dW\n dX[a] = dY[b] W[a b]\n dW[a b] = X[a] dY[b]")
    assert lc.run(by_hand, {"X": [2.0], "dY": [3.0], "W": [[5.0]]})["dW"].tolist() == [[6.0]]


ORIGINS = """imported(X; 0.weight h.each.attn.c_attn.weight g) -> Y
  sizes: d=4 f=6
  sizes: n_layer=3
  frozen: 0.weight
  unread: 12
  H[B M d'] = X[B M d] 0.weight[d' d] @ 0 linear (3)
  repeat n_layer carry H shared g:
    A[B M f] = H[B M d] h.each.attn.c_attn.weight[d f] where M != 0 @ transformer.h.*.attn.c_attn addmm
    U[B M d] = A[B M f] h.each.attn.c_attn.weight[d f]
    H[B M d] = rms_norm(U; g) @ transformer.h.*.ln
  Y[B M d] = tanh(H[B M d]) @ ."""


def test_a_line_says_the_module_and_the_operator_that_it_is_of_and_derived_ones_have_them():
    imported = lc.layer(ORIGINS)
    assert (imported.sizes, imported.frozen, imported.unread) == ({"d": 4, "f": 6, "n_layer": 3}, ("0.weight",), 12)
    assert lc.layer(str(imported)) == imported  # what is written keeps all of it
    derived = lc.derive(imported)
    origins = {line.name: (line.meta.module, line.meta.operator) for line, _ in walk(derived.step.lines)}
    assert origins["H"] == ("0", "linear")
    assert origins["Y"] == (".", "")
    assert origins["A"] == origins["dH"] == ("transformer.h.*.attn.c_attn", "addmm")
    assert origins["dU"] == ("transformer.h.*.ln", "")
    assert origins["dh.each.attn.c_attn.weight"] == ("transformer.h.*.attn.c_attn", "")  # two parts, added
    assert "d0.weight" not in origins  # frozen: but where it is asked for
    assert [line.name for line in lc.derive(imported, ["0.weight"]).update.lines] == ["d0.weight"]


INNER = """inner(X; W) -> Y
  H[B M f] = X[B M d] W[d f] @ fc linear
  Y[B M f] = tanh(H[B M f]) @ ."""


def test_the_path_of_a_call_stands_before_those_of_its_lines():
    outer = lc.layer("outer(X; V) -> Y\n  Y[B M f] = inner(X; V) @ net.*.mlp", {"inner": lc.layer(INNER)})
    metas = [(line.meta.module, line.meta.operator) for line, _ in walk(outer.table.lines)]
    assert metas == [("net.*.mlp.fc", "linear"), ("net.*.mlp", "")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("sizes: q=3", "`sizes:` names q, which is not the size of an axis, count or window of t; there are B, M, d"),
        ("sizes: d=0", "a size is a name and a whole number from 1 to 1,000,000,000,000"),
        ("sizes: d", "as in `sizes: d=768 f=3072`, not 'd'"),
        ("sizes: d=5, d=6", "d is 5 already"),
        ("frozen: h", "`frozen:` names h, which is not a weight of t; there are g"),
        ("unread: some", "a whole number, as in `unread: 4096`"),
        ("unused: some FLOPs/s", "`unused:` takes FLOPs, as in `unused: 2 B M d`"),
        ("unused: inf B d", "as in `unused: 2 B M d`; 'inf B d' is not finite: inf is not a size"),
        ("unused: 2 B + 3 nan", "as in `unused: 2 B M d`; '2 B + 3 nan' is not finite: nan is not a size"),
        ("unused: -5 B", "as in `unused: 2 B M d`; '-5 B' is negative at all sizes"),
        ("U[B M d] = opaque(X[B M d]) forward 2 Inf", "'2 Inf' is not finite: Inf is not a size"),
        ("U[B M d] = opaque(X[B M d]) forward 2 B backward - B", "'- B' is negative at all sizes"),
        ("U[B M d] = tanh(X[B M d]) @ a b c", "the path of its module and the operator there"),
        ("U[B M d] = tanh(X[B M d]) @", "the path of its module and the operator there"),
        ("U[B M d] = rms_norm(X; g) @ a linear", "the lines of rms_norm name their own operators: write only @ a"),
    ],
)
def test_what_is_stated_of_a_layer_or_a_line_is_checked(line, message):
    with pytest.raises(lc.NotationError) as caught:
        lc.layer(f"t(X; g) -> Y\n  {line}\n  Y[B M d] = X[B M d] g[d]")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_size_may_follow_from_others():
    layer = lc.layer("half(X) -> Y\n  follows: y=(H-1)//2+1\n  Y[B y] = X[B H=2 y]\n")
    whole = lc.layer("half(X) -> Y\n  Y[B y] = X[B H=2 y]\n")
    assert lc.cost(layer, B=3, H=9).rows == lc.cost(whole, B=3, H=9, y=5).rows
    with pytest.raises(lc.NotationError, match="written once and without spaces, as in `follows: y=H//2"):
        lc.layer("half(X) -> Y\n  follows: y=__import__('os')\n  Y[B y] = X[B H=2 y]\n")
    with pytest.raises(lc.NotationError, match="names z, which is not the size of an axis"):
        lc.layer("half(X) -> Y\n  follows: z=H-1\n  Y[B y] = X[B H=2 y]\n")


def test_a_share_is_of_answers():
    lines = "net(X Z{more}; W) -> loss\n  {role}\n  H[B v] = X[B d] W[d v]\n  T[B] = {read}\n  loss[] = T[B] share[B]\n"
    value = lines.format(more=" share", role="share: share of Z", read="Z[B] H[B v=0[]]")
    with pytest.raises(lc.InputError, match=r"Z holds values; a share needs targets .*Z: index of v"):
        lc.layer(value)
    assert lc.layer(lines.format(more=" share", role="share: share of Z", read="H[B v=Z[B]]")).name == "net"


def test_unused_operations_that_are_no_whole_number_are_said_as_a_fraction():
    layer = lc.layer("t(X; g) -> Y\n  unused: 1/2\n  Y[B M d] = X[B M d] g[d]")
    assert "1/2 FLOPs are excluded" in " ".join(str(lc.cost(layer, B=1, M=2, d=3)).split())


C = np.array([1.0, 0.0, 1.0])  # X < 0.5 below
TRUTHS = {
    "Y[b] = silu(C[b])": C / (1 + np.exp(-C)),
    "Y[b] = tanh(C[b])": np.tanh(C),
    "Y[b] = -1[] C[b]": -C,
    "Y[b] = C[b] + D[b]": C + 1,
    "Y[b] = C[b] - D[b]": C - 1,
    "E[b] = C[b] C[b]\n  Y[b] = E[b] + E[b]": 2 * C,
    "E[b] = select(C[b], C[b], D[b])\n  Y[b] = softmax[b](E[b])": np.full(3, 1 / 3),
    "E[b k] = C[b] F[k]\n  Y[b] = E[b k] F[k]": 2 * C,
}


@pytest.mark.parametrize("line", TRUTHS)
def test_truth_values_are_numbers_but_where_they_are_conditions(line):
    """NumPy adds booleans to a boolean, refuses to negate them, and computes their functions in half precision."""
    more = "  F[k] = less(Z[k], 0.5[])\n" if "F[" in line else ""
    head = f"t(X{' Z' if more else ''}) -> Y V\n  C[b] = less(X[b], 0.5[])\n  D[b] = equal(X[b], X[b])\n"
    table = f"{head}{more}  {line}\n  V[b] = D[b] X[b]"
    assert fuzz_tables.tried(table) == ""  # the emitted program agrees
    sizes = {"b": 3, **({"k": 2} if more else {})}
    arrays = {"X": np.array([0.1, 0.9, 0.2]), **({"Z": np.zeros(2)} if more else {})}
    assert np.allclose(lc.run(lc.layer(table), arrays, sizes)["Y"], TRUTHS[line], rtol=1e-12)


def test_the_error_function_has_extended_precision_as_input():
    from math import erf

    from learncost.interpreter.operation import function_of
    from learncost.ops import entry

    values = np.array([-1.0, 0.0, 0.5], np.longdouble)
    found = function_of(entry("erf"))(values)
    assert found.dtype == np.longdouble
    assert np.allclose(found.astype(float), [erf(each) for each in (-1.0, 0.0, 0.5)], rtol=1e-15)


@pytest.mark.parametrize(
    "inner", ["", "    repeat n carry X shared U:\n      X[b d] = tanh(X[b d])\n      X[b d] = X[b d] U[d]\n"]
)
def test_a_weight_that_is_carried_is_the_first_value_and_no_stack(inner):
    weights = "W X U" if inner else "W X"
    layer = lc.layer(f"net(; {weights}) -> X\n  repeat 3 carry X:\n    X[b d] = X[b d'] W[d' d]\n{inner}")
    assert layer.table.axes["X"] == ("b", "d'")
    assert lc.verify(layer).passed

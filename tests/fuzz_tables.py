"""Tables of chance: every text is a layer that all readings take, or is refused in one line.

    python -m tests.fuzz --tables 100000

The texts are the shipped layers, layers written at random and some with repeats, with one to four things changed:
pieces taken out, doubled, exchanged or replaced, names given to other things, lines moved, turned into repeats. What
is accepted is derived, priced, its memory counted, written, run on small sizes and emitted; the emitted program must
give what the interpreter gives.
"""

from __future__ import annotations

import random
import re
import traceback
from collections import Counter
from functools import cache

import numpy as np

import learncost as lc
from learncost.cost_models.books import BOOKS
from learncost.interpreter import execute as definition
from learncost.ir.loop import walk
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.layers.layer import shipped, shipped_layer
from learncost.ops import entries
from learncost.passes.lower import lower
from learncost.reports.notation import latex, mathml, text
from learncost.verification.sample import random_arrays, small_sizes
from programs import execute
from writing import SIZES, Writer

OWN = (
    """recurrent(X; W) -> X
  repeat n_turn carry X shared W:
    H[B d'] = X[B d] W[d d']
    X[B d] = tanh(H[B d])""",
    """stacks(X Z; W V) -> Y S
  repeat n carry X each z=Z keep Y=h:
    h[B d] = X[B d'] W[d' d]
    g[B d] = h[B d] + z[B d]
    X[B d] = g[B d] V[d]
  S[n B] = Y[n B d] X[B d]""",
    """nested(X Z; W V U) -> X
  repeat 2 carry X:
    X[b d] = X[b d'] W[d' d] 0.3[]
    repeat n carry X shared U:
      H[b d] = X[b d] V[d]
      G[b d] = sigmoid(H[b d])
      X[b d] = G[b d] + Z[b d]
      X[b d] = X[b d] U[d]""",
    """block(X; ln attn) -> X
  repeat n_layer carry X:
    H[B M d] = norm(X; ln)
    A[B M d] = attention(H, H, H; attn, N = M') where M' <= M
    X[B M d] = X[B M d] + A[B M d]""",
    """causal(Q K V) -> A
  R[B M M'] = Q[B M k] K[B M' k] where M' <= M < M' + w
  P[B M M'] = softmax[M'](R[B M M']) where M' <= M < M' + w
  A[B M k] = P[B M M'] V[B M' k] where M' <= M < M' + w""",
    """squares(L own) -> u
  Q[B B'] = log_softmax[B](L[B B'])
  u[B] = Q[B'=own[B] B]""",
)
MARKS = ("[", "]", "(", ")", "+", "-", "=", ",", ";", "->", "<=", "<", "#", "^", ":", "'", ".", "%", "*", "~", "@", "/")
KEYWORDS = ("where", "repeat", "carry", "each", "keep", "shared", "constants:", "cache:", "gradients:", "n", "_", "_ n")
NUMBERS = (
    *("0", "1", "2", "-1", "0.5", "-inf", "inf", "1e400", "1e-5", "9", "0[]", "1[]", "-inf[]", "#d[]", "#d^-0.5[]"),
    *(
        "1e308",
        "1e22",
        "1e5",
        "inf +",
        "1e22 +",
        "9" * 40,
        "9" * 500,
        "nan",
        "1e99999",
        "#d/9",
        "#d^9999[]",
        "#(d-M)[]",
    ),
)
NAMES = (
    "X",
    "Y",
    "W",
    "dX",
    "dY",
    "X.2",
    "X*",
    "loss",
    "for",
    "np",
    "step",
    "B",
    "M",
    "M'",
    "N",
    "d",
    "d'",
    "v",
    "α",
    "Q",
)
LINES = (
    "constants: X", "cache: K V", "gradients: dX (1)", "  Y[B M d] = X[B M d]", "  Y[B d] = X[B d] W[d d']",
    "  T[] = Y[B M d] Y[B M d]", "  Y[B M d] = norm(X; ln)", "  Y[B M d] = attention(X, X, X; a, N = M')",
    "  Y[B M d] = E[v=X[B M] d]", "  Y[v=X[B M] d] = E[B M d] F[B M d]", "  Y[B d] = Y[B d] 2[]", "",
)  # fmt: skip
PIECE = re.compile(r"\s+|[^\W\d][\w.]*'*|-?\d+\.?\d*|->|<=|.")
MOST_POINTS = 50_000
"""Of a line: more are not run."""

LARGEST = 1e12
"""Of a value: of larger ones rounding decides, as in a softmax of numbers of 1e22, and they are not compared."""

ROUNDINGS = 10
"""The emitted program may be so many times as far from extended precision as the interpreter is."""

Arrays = dict[str, np.ndarray]


def fuzz(count: int, seed: int = 0) -> list[str]:
    """What went wrong in so many tables, the same for the same seed; what has one cause is told once."""
    chance = random.Random(seed)
    first_text: dict[str, str] = {}
    times: Counter[str] = Counter()
    for _ in range(count):
        written = changed(chance)
        fault = tried(written)
        if fault:
            times[fault] += 1
            first_text.setdefault(fault, written)
    return [f"{fault} ({times[fault]} times): {written!r}" for fault, written in first_text.items()]


def tried(written: str) -> str:
    """What is wrong with what becomes of a text; nothing where it is a layer or is refused as it should be."""
    try:
        with np.errstate(all="ignore"):
            return read(written)
    except lc.InputError as refused:
        return "several lines are said" if "\n" in str(refused) else ""
    except RecursionError:
        return "RecursionError"
    except Exception as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "learncost" in frame.filename]
        last = frames[-1] if frames else traceback.extract_tb(error.__traceback__)[-1]
        message = re.sub(r"[^\w ]+\S*", "", str(error))[:40]
        return f"{type(error).__name__} {message} at {last.filename.rpartition('/')[2]}:{last.lineno}"


def read(written: str) -> str:
    """Everything that reads a layer, one after the other; what two of them say differently."""
    layer = lc.layer(written)
    str(layer), text(layer), latex(layer), mathml(layer)
    forward = layer.table
    sizes = small_sizes(forward)
    lc.price(layer, sizes)
    derived = lc.derive(layer)
    step = derived.step
    for book in BOOKS.values():
        if book.rule != "formula":
            lc.price(step, {}, book.name)
    str(step), latex(step)
    parts = (derived.forward, derived.backward, derived.update)
    prices, split = lc.price(step, sizes), [lc.price(part, sizes) for part in parts]
    if (prices.maccs, prices.flops) != (sum(part.maccs for part in split), sum(part.flops for part in split)):
        return "the passes do not add up to the step"
    if prices.flops < 2 * prices.maccs or prices.maccs < lc.price(step, sizes, "matmul").maccs:
        return "MACCs of run and of matmul"
    lc.live(derived, sizes)
    if _large(step, sizes):
        return ""
    arrays = random_arrays(step, sizes)
    lc.run(layer, {name: arrays[name] for name in (*forward.inputs, *forward.weights)}, sizes)
    expected = dict(arrays)
    definition(lower(step), expected, sizes)
    if any(np.size(array) and np.nanmax(np.abs(array)) > LARGEST for array in expected.values()):
        return ""
    emitted = execute(step, "numpy", arrays, sizes)
    differing = [name for name, each in emitted.items() if not np.allclose(each, expected[name], 1e-8, 1e-8, True)]
    if differing and not _rounded(step, sizes, arrays, expected, {name: emitted[name] for name in differing}):
        return "the emitted program has another value"
    return ""


def _rounded(table: Table, sizes: dict[str, int], arrays: Arrays, expected: Arrays, emitted: Arrays) -> bool:
    """Whether emitted values are as near those in extended precision as the interpreter's own in double precision.

    Where large numbers cancel, as 1e9 and what differs from it by 1e-7, two orders of a sum differ by their rounding.
    """
    exact = {name: each.astype(np.longdouble) if each.dtype == np.float64 else each for name, each in arrays.items()}
    definition(lower(table), exact, sizes)
    return all(
        _distance(array, exact[name]) <= ROUNDINGS * _distance(expected[name], exact[name])
        for name, array in emitted.items()
    )


def _distance(array: np.ndarray, exact: np.ndarray) -> float:
    """The largest difference; infinite where only one of the two has a number."""
    if not (np.isfinite(array) == np.isfinite(exact)).all():
        return np.inf
    return float(np.max(np.abs(array - exact), where=np.isfinite(exact), initial=0.0))


def _large(table: Table, sizes: dict[str, int]) -> bool:
    """Whether a line goes over more points, all turns together, than are run."""
    for line, nest in walk(lower(table).lines):
        points = 1
        for axis in (*line.loops, *nest.counts):
            points *= int(size_of(axis, sizes))
        if points > MOST_POINTS:
            return True
    return False


# Texts.


@cache
def _texts() -> tuple[str, ...]:
    return (*(shipped_layer(name).text for name in shipped()), *OWN)


@cache
def _words() -> tuple[str, ...]:
    return tuple(entry.name for entry in entries())


def changed(chance: random.Random) -> str:
    """A text with some things changed."""
    kind = chance.random()
    written = Writer(chance).write() if kind < 0.3 else chance.choice(OWN if kind < 0.5 else _texts())
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        written = chance.choice((_piece, _piece, _piece, _name, _name, _line, _line, _repeat))(chance, written)
    return written


def _other(chance: random.Random, pieces: list[str]) -> str:
    kinds = (MARKS, NAMES, NUMBERS, KEYWORDS, _words(), tuple(SIZES), [piece for piece in pieces if piece.strip()])
    return chance.choice(chance.choice([kind for kind in kinds if kind]))


def _piece(chance: random.Random, written: str) -> str:
    """A piece is taken out, doubled, replaced, put in, or exchanged with another."""
    pieces = PIECE.findall(written)
    solid = [at for at, piece in enumerate(pieces) if piece.strip()]
    if not solid:
        return written
    at, two = chance.choice(solid), chance.choice(solid)
    kind = chance.randrange(6)
    if kind == 0:
        pieces[at] = ""
    elif kind == 1:
        pieces[at] = f"{pieces[at]} {pieces[at]}"
    elif kind == 2:
        pieces[at] = _other(chance, pieces)
    elif kind == 3:
        pieces[at] = f"{pieces[at]} {_other(chance, pieces)}"
    elif kind == 4:
        pieces[at], pieces[two] = pieces[two], pieces[at]
    else:  # of the same kind, so that more of them are layers
        same = [p for p in solid if pieces[p][0].isalpha() and pieces[p][0].isupper() == pieces[at][0].isupper()]
        pieces[at] = pieces[chance.choice(same or solid)]
    return "".join(pieces)


def _name(chance: random.Random, written: str) -> str:
    """One name becomes another wherever it stands."""
    names = sorted(set(re.findall(r"[^\W\d][\w.]*", written)))
    if not names:
        return written
    old, other = chance.choice(names), chance.choice((*names, *NAMES))
    return re.sub(rf"(?<![\w.]){re.escape(old)}(?![\w.])", lambda _: other, written)


def _line(chance: random.Random, written: str) -> str:
    """A line is taken out, doubled, moved, indented, or put in; a condition is added to one."""
    lines = written.split("\n")
    at, two = chance.randrange(len(lines)), chance.randrange(len(lines))
    kind = chance.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(two, lines[at])
    elif kind == 2:
        lines[at], lines[two] = lines[two], lines[at]
    elif kind == 3:
        lines[at] = "  " + lines[at]
    elif kind == 4:
        lines[at] = lines[at].removeprefix("  ")
    elif kind == 5:
        lines.insert(at, chance.choice(LINES))
    else:
        axes = sorted(set(re.findall(r"(?<=[\[ ])[A-Za-z]'?(?=[\] ])", lines[at]))) or ["M"]
        low, high = chance.choice(axes), chance.choice(axes)
        window = chance.choice(("", "", f" < {low} + w", f" < {low} + 2"))
        lines[at] += f" where {low} {chance.choice(('<=', '<'))} {high}{window}"
    return "\n".join(lines)


def _repeat(chance: random.Random, written: str) -> str:
    """Some lines become a repeat."""
    lines = written.split("\n")
    if len(lines) < 3:
        return written
    first = chance.randrange(1, len(lines))
    last = min(len(lines), first + chance.randint(1, 4))
    names = sorted(set(re.findall(r"([^\W\d][\w.]*)\[", written))) or ["X"]
    head = f"{chance.choice(('  ', '    '))}repeat {chance.choice(('n', '2', '1', 'n_layer', '0', 'B'))}"
    head += f" carry {chance.choice(names)}" if chance.random() < 0.9 else ""
    head += f" each z={chance.choice(names)}" if chance.random() < 0.15 else ""
    head += f" keep K={chance.choice(names)}" if chance.random() < 0.2 else ""
    head += f" shared {chance.choice(names)}" if chance.random() < 0.2 else ""
    return "\n".join((*lines[:first], f"{head}:", *("  " + line for line in lines[first:last]), *lines[last:]))

"""Every axis, constant, operation and price is changed in turn, and each time the proof must fail.

The changes are made from the tables, the words and the source of the price rules themselves, so that what is added
later is changed as well. A change that changes nothing is named in EQUIVALENT_... with its reason.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import re
import textwrap
from dataclasses import replace
from importlib.resources import files

import pytest

import learncost as lc
from learncost.cost_models import elements, executed
from learncost.ir.line import Op, Product, Sum
from learncost.ir.term import Literal, Term, terms_of
from learncost.layers.layer import shipped, shipped_layer
from learncost.layers.products import matrix_maccs
from learncost.ops import entries, entry
from learncost.verification.references import LAYERS
from learncost.verification.verify import verify_op, verify_table
from sampling import sampled

VOCABULARY = inspect.getmodule(entry)


def fails(checks):
    """Whether a check fails; the rest is not run."""
    return any(check.passed is False for check in checks)


# Lines of layers.

AXIS = re.compile(r"[^\W\d][\w.]*'*(?![\w.'\[=(])")
CALL = re.compile(r"= \w+\([\w, ]*[;)]")  # its left names the axes of what it gives, in whatever order
WORD_FOR = {"softmax": "log_softmax", "log_softmax": "softmax", "gelu_tanh": "gelu", "gelu": "gelu_tanh"}
WORD_FOR |= {"tanh": "sigmoid", "relu": "silu", "normalize": "softmax"}


def axes_in(line):
    """Start, end and name of every axis that the line writes between brackets."""
    axes_found = []
    for match in AXIS.finditer(line):
        before = line[: match.start()]
        if before.count("[") > before.count("]") and not before.endswith("#"):
            axes_found.append((match.start(), match.end(), match.group()))
    return axes_found


def changed_lines(line):
    """The line with one thing changed, in every way, each with what was done."""
    axes = axes_in(line)
    names = sorted({name for *_, name in axes})
    for start, end, name in axes:
        for other in names:
            if other != name:
                yield f"{line[:start]}{other}{line[end:]}"
        yield re.sub(r"\[\s+", "[", f"{line[:start]}{line[end:]}")
    for (start, middle, axis_text), (begin, end, two) in itertools.pairwise(axes):
        if not line[middle:begin].strip() and not CALL.search(line):
            yield f"{line[:start]}{two}{line[middle:begin]}{axis_text}{line[end:]}"
    for match in re.finditer(r"(?<![\w.^-])(-?[\d.]+)\[\]", line):
        index = line[: match.start()].endswith("=")
        number = str((int(match.group(1)) + 1) % 3) if index else repr(float(match.group(1)) * 1.25 or 0.5)
        yield f"{line[: match.start(1)]}{number}{line[match.end(1) :]}"
    for match in re.finditer(r"-inf\[\]", line):
        yield f"{line[: match.start()]}-1[]{line[match.end() :]}"
    for match in re.finditer(r"#([\w']+)\^(-?[\d.]+)\[\]", line):
        yield f"{line[: match.start(2)]}{float(match.group(2)) * 0.9:g}{line[match.end(2) :]}"
        yield line[: match.start()] + line[match.end() :]
        for other in names:
            if other.rstrip("'") != match.group(1):
                yield f"{line[: match.start(1)]}{other}{line[match.end(1) :]}"
    for match in re.finditer(r" ([+-]) ", line):
        yield f"{line[: match.start(1)]}{'-' if match.group(1) == '+' else '+'}{line[match.end(1) :]}"
    right = line.partition(" = ")[2]
    if "(" not in right.partition("  ")[0] and " + " not in right:
        yield re.sub(r"\] (?=[A-Za-z])", "] + ", line.partition(" = ")[0] + " = " + right, count=1)
    for match in re.finditer(r"(\w+)(?=[\[(])", right):
        if match.group() in WORD_FOR and match.end() < len(right):
            yield line.replace(f" = {match.group()}", f" = {WORD_FOR[match.group()]}")


def mutants(name):
    """The texts of a shipped layer with one line changed."""
    text = (files("learncost.layers") / "tables" / f"{name}.table").read_text(encoding="utf-8")
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if " = " not in line or line.startswith(("%", "gradients:", "constants:")):
            continue
        body, number = re.fullmatch(r"(.*?)(\s+\([\d, ()\-]+\))?", line).groups()
        for changed in dict.fromkeys(changed_lines(body)):
            if changed != body:
                yield (
                    f"{changed} <- {body.strip()}",
                    "\n".join([*lines[:at], changed + (number or ""), *lines[at + 1 :]]),
                )


EQUIVALENT_LINES = {
    # One number added to every position's logit changes no softmax over the positions; its gradient is nothing.
    # What has been seen before the first token has no weight, however large the number is that is taken out.
    "time_mixing": ["  p[B c] = -1e38[] + p0[B c] <- p[B c] = -1e38[] p0[B c]"],
    # Places are whole numbers: a quarter of one moves no floor of a whole scale, such as the 8192 of Llama 4.
    "growing_temperature": ["  p[M] = q[M] + 1.25[] <- p[M] = q[M] + 1[]"],
    # Distances are whole numbers too; and behind the width, where a half would be more than the second, the sign is 0.
    "relative_buckets": ["  behind[M N] = less(0.5[], x[M N]) <- behind[M N] = less(0[], x[M N])"],
    "rotary_halves": ["  second[k] = minimum(w[k], 1.25[]) <- second[k] = minimum(w[k], 1[])"],
    # Two places are in one chunk whichever is the query's: the result transposed, and its names, are the same.
    "same_chunk": ["  visible[N M] = equal(a[M], b[N]) <- visible[M N] = equal(a[M], b[N])"],
    # Every gated network's output is summed over its f and over the t that are chosen; here the other of them first.
    "scaled_mixture_of_experts": [
        "  E[B M f d] = H[B M t f] WD[e=chosen[B M t] f d] <- E[B M t d] = H[B M t f] WD[e=chosen[B M t] f d]"
    ],
    # A norm over both axes of a group does not ask which of them is named first.
    "state_space_duality": [
        "  N[B M i j p] = rms_normalize[p j](H[B M i j p]) <- N[B M i j p] = rms_normalize[j p](H[B M i j p])"
    ],
    "spans": ["  O[B M l] = L[B M l] - b[l] <- O[B M l] = L[B M l] + b[l]"],
}


# Random numbers seldom reach these branches of angles and buckets: tests/test_computed_inputs.py has theirs.
SELDOM_REACHED = {"alibi_slopes", "distance_buckets", "distance_rows", "llama3_frequencies", "log_buckets"}
SELDOM_REACHED |= {"longrope_scale", "rotary_angles", "sinusoids", "yarn_frequencies", "yarn_scale"}
MUTABLE = tuple(name for name in shipped() if name not in SELDOM_REACHED)


@pytest.mark.one_in(every=14)
@pytest.mark.parametrize("name", sampled(MUTABLE, 8, start=3))
def test_a_change_of_any_line_of_a_layer_is_seen(name):
    assert not fails(verify_table(shipped_layer(name).table, name, LAYERS[name]))
    survivors, count = [], 0
    for mutant, text in mutants(name):
        count += 1
        try:
            changed = lc.layer(text)
        except lc.InputError:
            continue  # refused when it is defined
        if not fails(verify_table(changed.table, name, LAYERS[name])):
            survivors.append(mutant)
    assert survivors == EQUIVALENT_LINES.get(name, []), "\n".join(survivors)
    assert count > 3


# Bodies, gradients and Jacobians of words.

TWINS = {"exp": "tanh", "tanh": "exp", "log": "sqrt", "sqrt": "log", "erf": "tanh", "divide": "maximum"}
TWINS |= {"maximum": "divide", "less": "equal", "equal": "less", "sigmoid": "tanh"}


def changed_word_lines(line):
    """A line of a word's table with one thing changed, in every way."""
    for i, term in enumerate(line.right):
        rest = line.right[:i], line.right[i + 1 :]
        if isinstance(term, Literal):
            if term.sizes:
                other = replace(term, power=term.power * 0.9)
            elif abs(term.value) == float("inf"):
                other = Literal(0.0)
            else:
                other = replace(term, value=term.value * 1.1 or 0.5)
            yield replace(line, right=(*rest[0], other, *rest[1]))
        elif "n" in term.axes and "n'" not in term.axes:
            yield replace(line, right=(*rest[0], Term(term.name, tuple(a for a in term.axes if a != "n")), *rest[1]))
        if len(line.right) > 1 and not isinstance(line, Op):
            more = {"signs": (*line.signs[:i], *line.signs[i + 1 :])} if isinstance(line, Sum) else {}
            yield replace(line, right=(*rest[0], *rest[1]), **more)
    if isinstance(line, Product):
        yield replace(line, right=(*line.right, Literal(1.1)))
        if len(line.right) == 2:
            yield Sum(line.left, line.right, signs=(1, 1))
            yield Sum(line.left, line.right, signs=(1, -1))
    if isinstance(line, Sum):
        for i in range(len(line.signs)):
            yield replace(line, signs=tuple(-s if i == j else s for j, s in enumerate(line.signs)))
        yield Product(line.left, line.right)
    if isinstance(line, Op):
        if line.op in TWINS:
            yield replace(line, op=TWINS[line.op])
        for i in range(len(line.right) - 1):
            swapped = list(line.right)
            swapped[i], swapped[i + 1] = swapped[i + 1], swapped[i]
            yield replace(line, right=tuple(swapped))
    if len(line.left) == 1 and "n" in line.left[0].axes:
        shorter = Term(line.left[0].name, tuple(a for a in line.left[0].axes if a != "n"))
        yield replace(line, left=(shorter,))


def changed_words():
    """Every word with one thing changed: a line of one of its tables, a default, its outside value, its kind."""
    for op in entries():
        for part in ("body", "gradient", "jacobian"):
            lines = getattr(op, part)
            for at, line in enumerate(lines):
                for changed in changed_word_lines(line):
                    other = replace(op)
                    other.__dict__[part] = (*lines[:at], changed, *lines[at + 1 :])
                    yield op.name, f"{op.name} {part}: {changed} <- {line}", other
        for at, number in enumerate(op.defaults):
            numbers = (*op.defaults[:at], Literal(number.value * 1.1), *op.defaults[at + 1 :])
            yield op.name, f"{op.name} default {number}", replace(op, defaults=numbers)
        if op.outside:
            yield op.name, f"{op.name} outside {op.outside}", replace(op, outside=0.0)


SYMMETRIC = "it does not matter which of the two is which"
GUARDED = "the maximum and the sum of the body keep what is outside away by themselves; only the cost differs"
UNSEEN = "no sample is 0, or a row without anything; tests/test_ops.py has both"
BELOW = "1e-20 is below the rounding of every sum that is not zero"
EQUIVALENT_WORDS = {
    "max gradient: E[_ n] = equal(Y[_], X[_ n]) <- E[_ n] = equal(X[_ n], Y[_])": SYMMETRIC,
    **{
        f"proportion {change}": BELOW
        for change in (
            "body: w[_] = s[_] <- w[_] = s[_] + e[]",
            "body: w[_] = s[_] - e[] <- w[_] = s[_] + e[]",
            "default 1e-20[]",
        )
    },
    "relu body: Y[_] = maximum(0[], X[_]) <- Y[_] = maximum(X[_], 0[])": SYMMETRIC,
    "log_sigmoid body: m[_] = maximum(0[], N[_]) <- m[_] = maximum(N[_], 0[])": SYMMETRIC,
    "softmax_with_sink body: m[_] = maximum(z[_], a[_]) <- m[_] = maximum(a[_], z[_])": SYMMETRIC,
    "softmax_with_sink outside -inf": GUARDED,
    **{f"{op} outside -inf": GUARDED for op in ("softmax", "log_softmax", "safe_softmax", "safe_log_softmax")},
    "topk outside -inf": "no layer of one line has its places under a `where`",
    "argmax outside -inf": "no layer of one line has its places under a `where`",
    "argmin outside inf": "no layer of one line has its places under a `where`",
    "min gradient: E[_ n] = equal(Y[_], X[_ n]) <- E[_ n] = equal(X[_ n], Y[_])": SYMMETRIC,
    "at_most body: Y[_] = minimum(X[_], Z[_]) <- Y[_] = minimum(Z[_], X[_])": SYMMETRIC,
    "softplus body: m[_] = maximum(0[], X[_]) <- m[_] = maximum(X[_], 0[])": SYMMETRIC,
    "elu body: m[_] = minimum(0[], X[_]) <- m[_] = minimum(X[_], 0[])": SYMMETRIC,
    "elu body: p[_] = maximum(0[], X[_]) <- p[_] = maximum(X[_], 0[])": SYMMETRIC,
    "elu body: S[_] = E[_] <- S[_] = a[] E[_]": "a is 1 where it is not given",
    "sum body: Y[_] = X[_ n] <- Y[_] = 1[] X[_ n]": "a product with 1[]",
    **{
        f"{op} body: {change}": why
        for op in ("safe_softmax", "safe_log_softmax")
        for change, why in {
            "m[_] = maximum(a[_], -1.1e+29[]) <- m[_] = maximum(a[_], -1e+29[])": UNSEEN,
            "m[_] = maximum(-1e+29[], a[_]) <- m[_] = maximum(a[_], -1e+29[])": SYMMETRIC,
            "t[_] = divide(s[_], 1[]) <- t[_] = maximum(s[_], 1[])": UNSEEN,
            "t[_] = maximum(1[], s[_]) <- t[_] = maximum(s[_], 1[])": SYMMETRIC,
        }.items()
    },
    **{
        f"power gradient: {change}": UNSEEN
        for change in (
            "O[_] = equal(Z[_], 0.5[]) <- O[_] = equal(Z[_], 0[])",
            "O[_] = less(Z[_], 0[]) <- O[_] = equal(Z[_], 0[])",
            "O[_] = equal(0[], Z[_]) <- O[_] = equal(Z[_], 0[])",
            "T[_] = select(O[_], 0.5[], S[_]) <- T[_] = select(O[_], 0[], S[_])",
            "T[_] = select(0[], O[_], S[_]) <- T[_] = select(O[_], 0[], S[_])",
            "N[_] = equal(X[_], 0.5[]) <- N[_] = equal(X[_], 0[])",
            "N[_] = less(X[_], 0[]) <- N[_] = equal(X[_], 0[])",
            "N[_] = equal(0[], X[_]) <- N[_] = equal(X[_], 0[])",
            "B[_] = select(N[_], 1.1[], X[_]) <- B[_] = select(N[_], 1[], X[_])",
        )
    },
}


def word_survives(name, other, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(VOCABULARY._entries, name, other)
        return not fails(verify_op(other))


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("name", sampled((entry.name for entry in entries() if entry.kind != "constant"), 6))
def test_a_change_of_any_line_of_a_word_is_seen(name, monkeypatch):
    assert not fails(verify_op(entry(name)))
    changes = [(change, other) for op_name, change, other in changed_words() if op_name == name]
    survivors = [change for change, other in changes if word_survives(name, other, monkeypatch)]
    assert sorted(survivors) == sorted(op for op in EQUIVALENT_WORDS if op.startswith(f"{name} "))


# Price rules.


FLIPPED = {ast.Eq: ast.NotEq, ast.Gt: ast.LtE, ast.Lt: ast.GtE, ast.In: ast.NotIn, ast.LtE: ast.Gt}


class Changed(ast.NodeTransformer):
    """The n-th place of a function's source changed; `done` says what, or stays empty when there is no n-th place."""

    def __init__(self, place):
        self.place = place
        self.done = ""

    def here(self, node):
        self.place -= 1
        if self.place == -1:
            self.done = f"line {node.lineno}: {ast.unparse(node)}"
        return self.place == -1

    def visit_Constant(self, node):
        if type(node.value) is int and self.here(node):
            return ast.copy_location(ast.Constant(node.value + 1), node)
        return node

    def visit_Compare(self, node):
        self.generic_visit(node)
        if type(node.ops[0]) in FLIPPED and self.here(node):
            node.ops = [FLIPPED[type(node.ops[0])]()]
        return node

    def visit_BoolOp(self, node):
        self.generic_visit(node)
        if self.here(node):
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node

    def visit_IfExp(self, node):
        self.generic_visit(node)
        if self.here(node):
            node.body, node.orelse = node.orelse, node.body
        return node

    def visit_If(self, node):
        self.generic_visit(node)
        if self.here(node.test):
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        return node

    def visit_BinOp(self, node):
        self.generic_visit(node)
        return node.left if self.here(node) else node

    def visit_Name(self, node):
        if node.id == "points" and isinstance(node.ctx, ast.Load) and self.here(node):
            return ast.copy_location(ast.Name("ZERO", ast.Load()), node)
        if node.id == "ZERO" and self.here(node):
            return ast.parse("Count.of(())", mode="eval").body
        if node.id in ("any", "all") and self.here(node):
            return ast.copy_location(ast.Name("all" if node.id == "any" else "any", ast.Load()), node)
        return node

    def visit_arg(self, node):
        return node

    def visit_FunctionDef(self, node):
        node.body = [self.visit(statement) for statement in node.body]
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
        return node


RULES = (executed, matrix_maccs, elements, terms_of)
EQUIVALENT_RULES = {
    "executed, line 11: any": "in the normal form a product with a number has two factors and sums nothing",
    **dict.fromkeys(
        ("matrix_maccs, line 12: 2", "matrix_maccs, line 12: len(terms) == 2"),
        "lines that name an operator are held to FlopCounterMode: tests/test_products_without_rows.py",
    ),
    **dict.fromkeys(
        ("executed, line 18: ZERO", "executed, line 18: line.opaque.flops(line.part) or ZERO"),
        "what is not derived runs nowhere: tests/test_not_derived.py holds its price to the product written out",
    ),
}
TABLES = ("norm", "embedding", "head", "loss", "error_projection", "restricted_attention", "jiang_packed_attention")
PAIRS = """pairs(X Z W F G) -> Y T
  S[] = X[a] X[a]
  Y[a b] = X[a] Z[b] W[a b] S[] where a <= b
  n[] = 1[] + 0.5[]
  T[a] = W[a b] F[b c] G[c] n[]"""


def changed_rules(rule):
    """The function of a price rule, changed in every place of its source."""
    source = textwrap.dedent(inspect.getsource(rule))
    place = 0
    while True:
        change = Changed(place)
        tree = ast.fix_missing_locations(change.visit(ast.parse(source)))
        if not change.done:
            return
        scope = dict(rule.__globals__)
        exec(compile(tree, rule.__name__, "exec"), scope)
        yield f"{rule.__name__}, {change.done}", scope[rule.__name__]
        place += 1


def rule_survives(rule, function, monkeypatch):
    tables = [(shipped_layer(name).table, name, LAYERS[name]) for name in TABLES] + [
        (lc.layer(PAIRS).table, "pairs", None)
    ]
    with monkeypatch.context() as patch:
        patch.setattr(rule, "__code__", function.__code__)
        return not any(fails(verify_table(*table)) for table in tables)


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(rule, id=rule.__name__, marks=pytest.mark.slow if rule in (executed, matrix_maccs) else ())
        for rule in RULES
    ],
)
def test_a_change_of_any_price_rule_is_seen(rule, monkeypatch):
    assert rule_survives(rule, rule, monkeypatch)
    changes = list(changed_rules(rule))
    assert changes
    survivors = [change for change, function in changes if rule_survives(rule, function, monkeypatch)]
    assert sorted({*survivors}) == sorted(
        change for change in EQUIVALENT_RULES if change.startswith(f"{rule.__name__}, ")
    )

"""Costs of operations without a rule from PyTorch's FLOP formulas, evaluated at symbolic sizes.

The formulas are those of `torch.utils.flop_counter`, and the user's own, by `register_flop_formula`. The backward pass
is run on tensors without values, and its operations are counted in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from fractions import Fraction
from itertools import pairwise, product
from math import log2, prod
from typing import Any

import sympy
import torch
from torch._ops import HigherOrderOperator
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._sympy.functions import FloorDiv
from torch.utils.flop_counter import FlopCounterMode, flop_registry

from learncost.importer.constants import NodeConstants
from learncost.importer.functions import FUNCTIONS
from learncost.importer.nodes import CHECKPOINT_KEY, arguments_of, mark, mark_of, module_of, operator_name, size_of
from learncost.importer.tried import has_fraction
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.line import Opaque


def registered(node: Any, values: NodeConstants, given: Collection[Any] = ()) -> tuple[Opaque, str]:
    """Return the known cost of a node of an exported graph, in the graph's symbols, and a clause with what is unknown.

    The clause is empty if everything is known. Operands in `given` have no gradient. `values` are the tensors of the
    module and the integers of the example inputs: sequence offsets among them give the lengths of the sequences.
    """
    name = name_of(node.target)
    if name in OVER_SEQUENCES and (over := sequences(node, values)) is not None:
        forward, backward = map(polynomial, flops(node, over))
        visible = over.visible
        share = "" if visible is None else f"{visible.numerator}/{visible.denominator}"
        return Opaque(forward, backward, f"the products over {over}, with the scores twice in a step", share), ""
    open_before = _open_sizes(node)
    try:
        forward, backward, unknown = _counted(node, given)
    except SymbolicSizeError as error:
        return Opaque(), str(error)
    except RuntimeError:  # PyTorch's formulas that do not accept symbolic sizes
        if not open_before:
            raise
        return Opaque(), f"PyTorch counts the FLOPs of {name} only at fixed sizes: give them numbers"
    if _open_sizes(node) != open_before:  # PyTorch converted a symbolic size to a number
        return Opaque(), f"PyTorch counts the FLOPs of {name} only at fixed sizes: give them numbers"
    texts = [None if count is None else polynomial(count) for count in (forward, backward)]
    packet = getattr(node.target, "_overloadpacket", None)
    textbook = next((row.source for row in FORMULAS if row.packet is packet), "")
    source = textbook or NO_FORMULA
    if packet in flop_registry:
        source = f"the FLOP formula registered for {name}"
    elif isinstance(node.target, HigherOrderOperator) or node.target in FUNCTIONS:
        source = "the products of its functions, forward and backward"
    if any(key.startswith(OFFSETS) and value is not None for key, value in arguments_of(node).items()):
        source += ", with every sequence as long as the longest: an upper bound"
    for count, text, of in zip((forward, backward), texts, ("", "the gradient of "), strict=True):
        if count is not None and text is None:
            return Opaque(), f"the FLOPs of {of}{name} are not a polynomial in the symbolic sizes: give them numbers"
    unknown = name if texts[0] is None else "" if texts[1] is not None else unknown or f"the gradient of {name}"
    sizes = "at fixed sizes they may be, else " if open_before and texts[0] is not None else ""
    missing = f"the FLOPs of {unknown} are not known: {sizes}register_flop_formula says them" if unknown else ""
    if name == "while_loop":
        sizes = " or on open sizes: give these numbers, or" if open_before else ":"
        missing = f"how often it runs depends on values{sizes} --as-run (in Python as_run=True) takes those of one run"
    return Opaque() if texts[0] is None else Opaque(texts[0], texts[1], source), missing


PYTORCH = ("aten", "prim", "prims")
"""The namespaces of PyTorch's own operators: those without a formula have no products."""


NO_FORMULA = "PyTorch's FLOP registry, which has no formula for it"


def name_of(target: Any) -> str:
    """Return the name of an operator in Python's registry, `mylib::scan`; of a user's function without its number."""
    name = str(target).removesuffix(".default").replace(".", "::", 1)
    return name.rpartition("_")[0] if target in FUNCTIONS else name


def _counted(node: Any, given: Collection[Any]) -> tuple[Any, Any, str]:
    """Return the FLOPs forward and backward, None if unknown, and the name of an operation without a formula."""
    packet = getattr(node.target, "_overloadpacket", None)
    rows = {row.packet: row for row in FORMULAS if row.packet not in flop_registry}
    if packet in rows and (times := rows[packet].backward) is not None:
        forward = rows[packet].of(node)
        return forward, forward * times, ""
    formulas = {packet: row.flops for packet, row in rows.items()}
    arguments, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: _value_of(each, each in given))
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return _of_bodies(node, arguments, formulas)
    function = FUNCTIONS.get(node.target, node.target)
    own = function is not node.target or node.target.namespace in PYTORCH
    if packet not in flop_registry and packet not in formulas and not own:
        return None, None, ""
    return _run(_mode_of(node), function, arguments, named, formulas)


def _of_bodies(node: Any, arguments: Sequence[Any], formulas: Mapping[Any, Any]) -> tuple[Any, Any, str]:
    """Return the FLOPs of the functions that an operator runs: of each position, or of the larger branch."""

    mode, name = _mode_of(node), str(node.target)
    if name == "cond":
        _, *branches, operands = arguments
        counts = [_run(mode, torch.fx.Interpreter(each).run, operands, {}, formulas) for each in branches]
        forward, backward = (max(each[place] or 0 for each in counts) for place in (0, 1))
        return forward, backward, next((each[2] for each in counts if each[2]), "")
    if name not in OVER_POSITIONS:
        return None, None, ""
    body, *starts, rows, others = arguments
    with mode:
        places = [_leaf_of(each.detach()[0]) for each in rows]
    flat = [*(_leaf_of(each) for several in starts for each in several), *places, *others]
    forward, backward, unknown = _run(mode, torch.fx.Interpreter(body).run, flat, {}, formulas)
    many = rows[0].shape[0]
    return forward * many, None if backward is None else backward * many, unknown


OVER_POSITIONS = ("scan", "map_impl")
"""Operators that run a function for each position of the first axis."""


def run_bodies(name: str, arguments: Sequence[Any]) -> Any:
    """Return the results of an operator that runs functions."""
    if name == "cond":
        holds, first, second, operands = arguments
        return (first if holds else second)(*operands)
    body, *starts, rows, others = arguments
    carry, several = [each for start in starts for each in start], []
    for place in range(rows[0].shape[0]):
        results = body(*carry, *(each[place] for each in rows), *others)
        carry, made = results[: len(carry)], results[len(carry) :]
        several.append(made)
    return [*carry, *map(torch.stack, zip(*several, strict=True))]


def _run(
    mode: Any, function: Any, arguments: Any, named: Mapping[str, Any], formulas: Mapping[Any, Any]
) -> tuple[Any, Any, str]:
    """Return the FLOPs of a function and of autograd's backward pass of it, on tensors without values."""
    seen = list[str]()  # operations that ran, have no formula and are not part of PyTorch

    class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function._overloadpacket not in flop_registry and function.namespace not in PYTORCH:
                seen.append(name_of(function))
            return function(*args, **(kwargs or {}))

    leaves = [each for each in _leaves((arguments, named)) if isinstance(each, torch.Tensor) and each.requires_grad]
    counts = FlopCounterMode(display=False, custom_mapping=dict(formulas))
    with mode, torch.enable_grad(), counts as counter, OperatorWatch():  # type: ignore[no-untyped-call]
        result = function(*arguments, **named)
        forward = counter.get_total_flops()
        learned = [each for each in _leaves(result) if isinstance(each, torch.Tensor) and each.requires_grad]
        seen.clear()
        if not learned or not leaves:
            return forward, None if leaves else 0, ""
        try:
            torch.autograd.grad(learned, leaves, [torch.ones_like(each) for each in learned], allow_unused=True)
            is_known = True
        except Exception as error:  # a user's, or of an operator of PyTorch's that runs on tensors with values alone
            without = getattr(function, "namespace", "") in PYTORCH and function._overloadpacket not in formulas
            is_known = without and "derivative for" not in str(error)
        if is_known and not seen:
            return forward, counter.get_total_flops() - forward, ""
        return forward, None, next(iter(seen), "")


def _leaves(values: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(values))


def _open_sizes(node: Any) -> set[str]:
    """Return the symbols in a node's arguments and results, and in their sizes."""
    values = _leaves([each.meta.get("val") for each in (*node.all_input_nodes, node)])
    sizes = [size for each in values for size in getattr(each, "shape", [each]) if hasattr(size, "node")]
    return {str(symbol) for size in sizes for symbol in size.node.expr.free_symbols}


def _value_of(node: Any, given: bool) -> Any:
    """Return the value of a node, which requires a gradient if it is not given, or the graph that it is."""
    value = body_of(node) or node.meta["val"]
    return value if given else _leaf_of(value)


def body_of(node: Any) -> Any:
    """Return the graph that a node is, which an operator runs; None for other nodes."""
    held = getattr(node.graph.owning_module, node.target, None) if node.op == "get_attr" else None
    return held if isinstance(held, torch.fx.GraphModule) else None


def _leaf_of(value: Any) -> Any:
    """Return a tensor that requires a gradient, if it may have one."""
    return value.detach().requires_grad_(has_fraction(value)) if isinstance(value, torch.Tensor) else value


def _mode_of(node: Any) -> Any:
    """Return the fake tensor mode of the graph's tensors."""
    for value in torch.utils._pytree.tree_leaves([each.meta.get("val") for each in (*node.all_input_nodes, node)]):
        if hasattr(value, "fake_mode"):
            return value.fake_mode
    raise AssertionError("a node without tensors")


def polynomial(count: Any) -> str | None:
    """Return a count in the syntax of `Polynomial.parse`, in the graph's symbols; None if it is not a polynomial in
    them.
    """
    size = size_of(count)
    if isinstance(size, int):
        return str(size)
    expression = _whole(size)
    symbols = sorted(expression.free_symbols, key=str)
    if not expression.is_polynomial(*symbols):
        return None
    terms = []
    for powers, coefficient in sympy.Poly(expression, *symbols).terms() if symbols else [((), expression)]:
        if not coefficient.is_Rational:
            return None
        factors = [f"{symbol}^{power}" for symbol, power in zip(symbols, powers, strict=True) if power]
        terms.append(f"{'-' if coefficient < 0 else '+'} {' '.join([str(abs(coefficient)), *factors])}")
    return " ".join(terms).removeprefix("+ ")


LARGEST = 12
"""The largest divisor of a floor division that is expanded; with a larger one, a count is treated as no polynomial."""


def _whole(expression: Any) -> Any:
    """Expand an expression, and replace floor divisions that are exact at all sizes: M (M + 1) // 2."""
    for part in sorted(expression.atoms(FloorDiv), key=str):
        above, below = part.args
        symbols = sorted(above.free_symbols, key=str)
        if below.is_Integer and 0 < below <= LARGEST and len(symbols) <= 2 and above.is_polynomial(*symbols):
            rests = product(range(int(below)), repeat=len(symbols))
            if all(above.subs(dict(zip(symbols, rest, strict=True))) % below == 0 for rest in rests):
                expression = expression.xreplace({part: above / below})
    return sympy.expand(expression)


@dataclass(frozen=True)
class UnusedProducts:
    """Products that no output of a module depends on.

    flops   FLOPs of the forward pass and of checkpoints that repeat it, in the graph's symbols; None if they are no
            polynomial in them
    places  the operators, each with the path of its module
    """

    flops: str | None = "0"
    places: Sequence[str] = ()


def unused(program: Any) -> UnusedProducts:
    """Return the dead products of a graph that has all operations of a run, as `torch.export` returns it."""
    flops: Any = 0
    places: dict[str, None] = {}
    for part in program.graph_module.modules():
        for node in reversed([*_unread(part.graph)] if isinstance(part, torch.fx.GraphModule) else []):
            of_node = _flops(node)
            if not isinstance(of_node, int) or of_node:
                flops = flops + of_node * (1 + _times_again(node))
                path, operator = module_of(node), operator_name(node.target)
                places[f"{path} {operator}".strip()] = None
    return UnusedProducts(polynomial(flops), tuple(places))


def _times_again(node: Any) -> int:
    """Return how many checkpoints run a dead product again. One that stops early ends where such a product comes last,
    and runs all before it, as without an early stop.
    """
    nodes = [each for each in node.graph.nodes if each.op == "call_function" and mark_of(each)]
    around = [each for each in mark_of(node).split("/") if each and not each.endswith("-")]
    after = {each for other in nodes[nodes.index(node) + 1 :] for each in mark_of(other).split("/")} if around else ()
    last = [each for each in around if "!" not in each and each not in after]
    for other in nodes if last else ():
        mark(
            other, CHECKPOINT_KEY, "/".join(f"{each}!" if each in last else each for each in mark_of(other).split("/"))
        )
    return len(around) - len(last)


def _unread(graph: Any) -> Iterator[Any]:
    """Yield the dead operator calls of a graph, the last first.

    An in-place change is live if its storage is read.
    """
    of_storage: dict[Any, Any] = {}
    for node in graph.nodes:
        returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
        shares = any(each.alias_info is not None for each in returns) and node.args
        first = node.args[0] if shares else None
        of_storage[node] = of_storage.get(first, node) if isinstance(first, torch.fx.Node) else node
    read: set[Any] = {node for node in graph.nodes if node.op == "placeholder"}
    for node in reversed(graph.nodes):
        is_operator = isinstance(node.target, torch._ops.OpOverload)
        changes = is_operator and node.target._schema.is_mutable and of_storage[node] in read
        if is_operator and node not in read and not changes:
            yield node
        elif "_like" not in str(node.target):  # these read a shape alone
            read |= {each for source in node.all_input_nodes for each in (source, of_storage[source])}


def _flops(node: Any) -> Any:
    """Return the FLOPs of one call by PyTorch's formulas, with attention as plain products."""
    if node.target.is_view:  # it computes nothing; removing it would remove the level of a forward derivative, too
        return 0
    values = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta.get("val"))
    tensors = [each for each in torch.utils._pytree.tree_leaves(values) if isinstance(each, torch.Tensor)]
    if not any(map(has_fraction, tensors)):
        return 0
    mode = getattr(tensors[0], "fake_mode", None)
    if mode is None:
        return 0
    counter = FlopCounterMode(display=False)
    guards = mode.shape_env.suppress_guards() if mode.shape_env is not None else nullcontext()
    with mode, guards, torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        node.target(*values[0], **values[1])
    return counter.get_total_flops()


# FLOPs of operations that have no lines: Fourier transforms, factorizations, attention over packed sequences


_GOLUB = "Golub & Van Loan 2013, Matrix Computations"


class SymbolicSizeError(InputError):
    """A size must be a number for these FLOPs, and is open."""


@dataclass(frozen=True)
class FlopFormula:
    """The FLOPs of an operation as a function of its arguments, with shapes in place of tensors.

    backward   the FLOPs of its gradient; if absent, the operations of PyTorch's backward pass are counted
    """

    packet: Any
    flops: Callable[..., Any]
    source: str
    backward: int | None = None

    def of(self, node: Any) -> Any:
        """Return the FLOPs of a node of a graph."""

        def shape(value: Any) -> Any:
            return tuple(value.meta["val"].shape)

        arguments, named = (torch.fx.node.map_arg(value, shape) for value in (node.args, node.kwargs))
        several = node.meta["val"]
        made = tuple(several.shape) if isinstance(several, torch.Tensor) else None
        return self.flops(*arguments, **named, out_shape=made)


def _transformed(share: float, is_of_result: bool = False) -> Callable[..., Any]:
    """Return a formula of Fourier transforms over dimensions of the operand, or of the result, times a factor."""

    def flops(x: Sequence[Any], dims: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> Any:
        shape = out_shape if is_of_result else x
        sizes = [shape[dim] for dim in dims]
        if not all(isinstance(size, int) for size in sizes):
            raise SymbolicSizeError("the FLOPs of a Fourier transform need a fixed length: use a number")
        points = prod(sizes)
        others = prod(size for place, size in enumerate(shape) if place not in {dim % len(shape) for dim in dims})
        return round(share * points * log2(points)) * others

    return flops


def _matrices(x: Sequence[Any]) -> tuple[Any, Any, Any]:
    """Return the number of matrices, and their rows and columns."""
    return prod(x[:-2]), x[-2], x[-1]


def _cubed(thirds: int) -> Callable[..., Any]:
    """Return a formula of this many thirds of n^3, for square matrices."""

    def flops(x: Sequence[Any], *_: Any, **__: Any) -> Any:
        many, n, _n = _matrices(x)
        return many * (thirds * n**3 // 3)

    return flops


def _solved(a: Sequence[Any], b: Sequence[Any], *_: Any, **__: Any) -> Any:
    many, n, _n = _matrices(a)
    columns = 1 if len(b) == len(a) - 1 else b[-1]
    return many * (2 * n**3 // 3 + 2 * n * n * columns)


def _by_triangle(times: int, matrix: int) -> Callable[..., Any]:
    """Return a formula for a triangular system: `times` n^2 for each column. The argument at this position is the
    matrix.
    """

    def flops(*shapes: Any, **_: Any) -> Any:
        _, n, _n = _matrices(shapes[matrix])
        b = shapes[1 - matrix]
        return times * prod(b[:-2]) * n * n * b[-1]

    return flops


def _orthogonal(x: Sequence[Any], *_: Any, **__: Any) -> Any:
    many, m, n = _matrices(x)
    k = min(m, n)
    return many * 4 * (m * n * k - k**3 // 3) if m >= n else many * (4 * m * m * n - 4 * m**3 // 3)


def _singular(x: Sequence[Any], full_matrices: bool = False, compute_uv: bool = True, **_: Any) -> Any:
    many, m, n = _matrices(x)
    m, n = max(m, n), min(m, n)
    return many * (14 * m * n * n + 8 * n**3 if compute_uv else 4 * m * n * n - 4 * n**3 // 3)


def _symmetric(x: Sequence[Any], UPLO: str = "L", compute_v: bool = True, **_: Any) -> Any:
    many, n, _n = _matrices(x)
    return many * (9 * n**3 if compute_v else 4 * n**3 // 3)


def _reflected(x: Sequence[Any], reflectors: Sequence[Any], *_: Any, **__: Any) -> Any:
    many, m, n = _matrices(x)
    k = reflectors[-1]
    return many * (4 * m * n * k - 2 * (m + n) * k * k + 4 * k**3 // 3)


_ATEN = torch.ops.aten
_FFT = "N log2 N for N points, as FFTW is measured (Frigo & Johnson 2005, The design and implementation of FFTW3)"
FORMULAS = (
    FlopFormula(_ATEN._fft_c2c, _transformed(5.0), f"5 {_FFT}", 1),
    FlopFormula(_ATEN._fft_r2c, _transformed(2.5), f"2.5 {_FFT}", 2),
    FlopFormula(_ATEN._fft_c2r, _transformed(2.5, True), f"2.5 {_FFT}", 1),
    FlopFormula(_ATEN.linalg_cholesky_ex, _cubed(1), f"n^3/3, {_GOLUB}, chapter 4"),
    FlopFormula(_ATEN.linalg_inv_ex, _cubed(6), f"2 n^3, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN._linalg_det, _cubed(2), f"2 n^3/3 of its factors, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN._linalg_slogdet, _cubed(2), f"2 n^3/3 of its factors, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN.linalg_lu_factor_ex, _cubed(2), f"2 n^3/3, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN._linalg_solve_ex, _solved, f"2 n^3/3 + 2 n^2 for each column, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN.linalg_solve_triangular, _by_triangle(1, 0), f"n^2 for each column, {_GOLUB}, chapter 3", 3),
    FlopFormula(_ATEN.triangular_solve, _by_triangle(1, 1), f"n^2 for each column, {_GOLUB}, chapter 3", 3),
    FlopFormula(_ATEN.cholesky_solve, _by_triangle(2, 1), f"2 n^2 for each column, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN.linalg_lu_solve, lambda a, _p, b, *_r, **_n: 2 * prod(b[:-2]) * a[-1] ** 2 * b[-1],
            f"2 n^2 for each column, {_GOLUB}, chapter 3"),
    FlopFormula(_ATEN.linalg_matrix_exp, _cubed(30), "10 n^3: 5 products of a Taylor polynomial of degree 18, without "
            "squarings; a gradient 8 times that, of a matrix twice as wide (Bader, Blanes & Casas 2019)", 8),
    FlopFormula(_ATEN.linalg_householder_product, _reflected, "4 m n k - 2 (m + n) k^2 + 4 k^3/3 (LAPACK Working "
            "Note 41, ORGQR), a gradient twice that", 2),
    FlopFormula(_ATEN.linalg_qr, _orthogonal, f"4 n^2 (m - n/3) for both factors, {_GOLUB}, chapter 5"),
    FlopFormula(_ATEN._linalg_eigh, _symmetric, f"9 n^3, 4 n^3/3 without vectors, {_GOLUB}, chapter 8"),
    FlopFormula(
        _ATEN._linalg_svd, _singular, f"14 m n^2 + 8 n^3, 4 m n^2 - 4 n^3/3 without vectors, {_GOLUB}, chapter 8"
    ),
)  # fmt: skip
"""FLOP formulas that PyTorch's table does not have."""


OFFSETS = ("cu_seq", "cum_seq")
"""The prefixes of the offsets of sequences in attention kernels."""

OVER_SEQUENCES = ("aten::_flash_attention_forward", "aten::_efficient_attention_forward", "torch_attn::_varlen_attn")
"""PyTorch's attentions that read them, whose products are two forward and five backward (torch.utils.flop_counter)."""

LISTED = 8
"""A source lists the lengths of up to so many sequences."""

_TOP_LEFT, _BOTTOM_RIGHT = 1, 2  # `custom_mask_type` of aten::_efficient_attention_forward


@dataclass(frozen=True)
class Sequences:
    """The sequences of an attention and its causal mask.

    lengths   the queries and the keys of each sequence
    causal    the kind of its causal mask, 0 where it has none
    window    how many keys before its own place a query sees under that mask; -1: all
    """

    lengths: tuple[tuple[int, int], ...]
    causal: int = 0
    window: int = -1

    @property
    def pairs(self) -> int:
        """The pairs of a query and a key of the same sequence."""
        return sum(queries * keys for queries, keys in self.lengths)

    @property
    def visible(self) -> Fraction | None:
        """The share of the pairs that the causal mask leaves; None without a mask."""
        seen = sum(self._seen(*lengths) for lengths in self.lengths)
        return Fraction(seen, self.pairs) if self.causal and self.pairs else None

    def _seen(self, queries: int, keys: int) -> int:
        """Return the pairs of one sequence under the mask; its diagonal ends at the last key or begins at the first."""
        first = keys - queries if self.causal == _BOTTOM_RIGHT else 0
        seen = 0
        for last in range(first, first + queries):
            lowest = 0 if self.window < 0 else max(0, last - self.window)
            seen += max(0, min(last, keys - 1) - lowest + 1)
        return seen

    def __str__(self) -> str:
        every = [str(queries) if queries == keys else f"{queries} by {keys}" for queries, keys in self.lengths]
        if len(every) > LISTED:
            return f"{len(every)} sequences of {sum(queries for queries, _ in self.lengths)} tokens in all"
        return f"sequences of {', '.join(every)} tokens"


def sequences(node: Any, values: NodeConstants) -> Sequences | None:
    """Return the sequences of such a node; None where their lengths are not known.

    values   the tensors that the module holds and the whole numbers of the example inputs
    """
    named = arguments_of(node)
    offsets = [value for name, value in named.items() if name.startswith(OFFSETS) and value is not None]
    used = [value for name, value in named.items() if name in ("seqused_k", "seqlen_k", "block_table")]
    if not offsets or any(each is not None for each in used) or not {"query", "key", "value"} <= named.keys():
        return None
    tokens = [named[name].meta["val"].shape[-3] for name in ("query", "key")]
    queries, keys = (_lengths(each, many, values) for each, many in zip((offsets[0], offsets[-1]), tokens, strict=True))
    if queries is None or keys is None or len(queries) != len(keys):
        return None
    return Sequences(tuple(zip(queries, keys, strict=True)), *_mask(named))


def _mask(named: Mapping[str, Any]) -> tuple[int, int]:
    """Return the kind of the causal mask and its window, as the arguments of an attention have them."""
    size = named.get("window_size")
    if isinstance(size, int):  # the last keys up to the query's own
        before, after = size - 1, 0
    else:
        sides = size or [named.get(f"window_size_{side}") for side in ("left", "right")]
        before, after = (-1 if side is None else side for side in sides)
    causal = named.get("custom_mask_type") or (_BOTTOM_RIGHT if named.get("is_causal") or after == 0 else 0)
    return causal, before


def flops(node: Any, over: Sequences) -> tuple[int, int]:
    """Return the FLOPs of the products, forward and backward, where a kernel computes the scores a second time."""
    named = arguments_of(node)
    heads, points = named["query"].meta["val"].shape[-2:]
    values = named["value"].meta["val"].shape[-1]
    return 2 * heads * over.pairs * (points + values), 2 * heads * over.pairs * (3 * points + 2 * values)


def _lengths(offsets: Any, tokens: Any, values: NodeConstants) -> list[int] | None:
    """Return the lengths between offsets that go from 0 to the number of tokens; None if they are unknown."""
    if (known := values.values(offsets)) is None or len(known) > 1:  # which differ by open sizes
        return None
    places = [int(each) for each in known[0].tolist()]
    lengths = [after - before for before, after in pairwise(places)]
    if not lengths or min(lengths) < 0 or places[0] != 0 or not isinstance(tokens, int) or places[-1] != tokens:
        return None
    return lengths

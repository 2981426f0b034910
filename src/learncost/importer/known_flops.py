"""FLOPs of operations that have no lines: textbook counts of Fourier transforms and factorizations, a row each with its
source, and attention over sequences of several lengths in one row, by the pairs of tokens that its products are over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import pairwise
from math import log2, prod
from typing import Any

import torch

from learncost.importer.constants import GivenError, NodeConstants
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError

_GOLUB = "Golub & Van Loan 2013, Matrix Computations"


class OpenError(InputError):
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


def _transformed(shape: Sequence[Any], dims: Sequence[int], share: float) -> Any:
    """Return the FLOPs of complex Fourier transforms over dimensions, times a factor."""
    sizes = [shape[dim] for dim in dims]
    if not all(isinstance(size, int) for size in sizes):
        raise OpenError("the FLOPs of a Fourier transform need a fixed length: use a number")
    points = prod(sizes)
    others = prod(size for place, size in enumerate(shape) if place not in {dim % len(shape) for dim in dims})
    return round(share * points * log2(points)) * others


def _complex(x: Sequence[Any], dims: Sequence[int], *_: Any, **__: Any) -> Any:
    return _transformed(x, dims, 5.0)


def _from_real(x: Sequence[Any], dims: Sequence[int], *_: Any, **__: Any) -> Any:
    return _transformed(x, dims, 2.5)


def _to_real(x: Sequence[Any], dims: Sequence[int], *_: Any, out_shape: Any = None, **__: Any) -> Any:
    return _transformed(out_shape, dims, 2.5)


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
    FlopFormula(_ATEN._fft_c2c, _complex, f"5 {_FFT}", 1),
    FlopFormula(_ATEN._fft_r2c, _from_real, f"2.5 {_FFT}", 2),
    FlopFormula(_ATEN._fft_c2r, _to_real, f"2.5 {_FFT}", 1),
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


def has_offsets(node: Any) -> bool:
    """Return whether a node of a graph is attention over packed sequences."""
    return any(name.startswith(OFFSETS) and value is not None for name, value in _arguments(node).items())


def sequences(node: Any, values: NodeConstants) -> Sequences | None:
    """Return the sequences of such a node; None where their lengths are not known.

    values   the tensors that the module holds and the whole numbers of the example inputs
    """
    named = _arguments(node)
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
    named = _arguments(node)
    heads, points = named["query"].meta["val"].shape[-2:]
    values = named["value"].meta["val"].shape[-1]
    return 2 * heads * over.pairs * (points + values), 2 * heads * over.pairs * (3 * points + 2 * values)


def _arguments(node: Any) -> dict[str, Any]:
    """Return the arguments of a node by the names of its schema, with the defaults of those that it leaves out."""
    schema = node.target._schema.arguments if hasattr(node.target, "_schema") else ()
    named = {each.name: each.default_value for each in schema if each.has_default_value()}
    return named | {each.name: value for each, value in zip(schema, node.args, strict=False)} | dict(node.kwargs)


def _lengths(offsets: Any, tokens: Any, values: NodeConstants) -> list[int] | None:
    """Return the lengths between offsets that go from 0 to the number of tokens; None if they are unknown."""
    try:
        places = [int(each) for each in values.at(offsets, {}).tolist()]
    except (GivenError, RuntimeError, TypeError, IndexError):
        return None
    lengths = [after - before for before, after in pairwise(places)]
    if not lengths or min(lengths) < 0 or places[0] != 0 or not isinstance(tokens, int) or places[-1] != tokens:
        return None
    return lengths

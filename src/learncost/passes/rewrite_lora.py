"""Rewrite a table for LoRA: a low-rank path is added to a product with a frozen weight, and only the path is trained.

Hu et al. 2022, LoRA, section 4.1: h = W x + (alpha / r) B A x. The order is that of the peft library, which scales the
path's result: result = base(x) + lora_B(lora_A(x)) * scaling. A bias of the product is added after the path here, but
before it in peft, which gives the same sum.
"""

from __future__ import annotations

from collections.abc import Iterable

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Meta, Product, Sum
from learncost.ir.loop import Loop, Statement
from learncost.ir.table import Table
from learncost.ir.term import Axis, Literal, Operand, Read, Term
from learncost.ir.value import Value
from learncost.ops import applied

RANK = "rank"
"""The rank axis of the path."""


@dataclass(frozen=True)
class LoraTarget:
    """The weights that one path adapts: the path's name, the weights, and the layers with adapted lines (all if empty).

    Several weights that multiply the same value are one matrix in their module, such as GPT-2's c_attn of queries, keys
    and values: they share the path's A, and each has its own columns of B.
    """

    name: str
    weights: tuple[str, ...]
    layers: tuple[str, ...] = ()


def is_linear(line: Line, weight: str) -> bool:
    """Return whether a line is a matrix product with a weight, which sums some of the weight's axes and keeps
    others."""
    if not isinstance(line, Product) or line.left[0].indexed:
        return False
    terms = [term for term in line.right if term.name == weight]
    if len(line.right) != 2 or len(terms) != 1 or terms[0].indexed or line.right[0].name == line.right[1].name:
        return False
    free_axes = line.sides.rows if line.right[0].name == weight else line.sides.columns
    return bool(free_axes) and not line.sides.batch and len(free_axes) < len(terms[0].loops)


def is_lookup(line: Line, weight: str) -> bool:
    """Return whether a line gathers rows of a weight, as an embedding does."""
    if not isinstance(line, Product) or len(line.right) != 1:
        return False
    term = line.right[0]
    return isinstance(term, Term) and term.name == weight and term.indexed and bool(_out(term, line.left[0]))


def is_of_experts(line: Line, weight: str) -> bool:
    """Return whether a line is a matrix product of every row with the matrix of a chosen expert."""
    if not isinstance(line, Product) or len(line.right) != 2 or line.left[0].indexed:
        return False
    terms = [term for term in line.right if isinstance(term, Term) and term.name == weight]
    if len(terms) != 1 or sum(isinstance(axis, Read) for axis in terms[0].axes) != 1:
        return False
    return 0 < len(_out(terms[0], line.left[0])) < len(terms[0].axes) - 1


def with_lora(table: Table, projections: Iterable[LoraTarget], scale: float, decomposes: bool = False) -> Table:
    """Return the table with a low-rank path for every product of the targets' weights, times `scale`.

    The path of `attn.WQ` has the weights `attn.WQ.A[in.. rank]` and `attn.WQ.B[rank out..]`; where several weights
    share one, A has the target's name. In a loop, every iteration has separate paths. DoRA `decomposes` the adapted
    weight into directions and the magnitudes `attn.WQ.M[out..]`. Raises `InputError` for a weight that no line
    multiplies as a matrix.
    """
    chosen = tuple(projections)
    outer = _LoraScope(dict(table.values), chosen, scale, decomposes)
    lines = outer.rewritten(table.lines)
    for projection in chosen:
        for weight in projection.weights:
            if (projection.name, weight) not in outer.used:
                raise InputError(f"{weight} cannot have a low-rank path: no line multiplies by it as a matrix")
    return replace(table, lines=lines, values=outer.values, weights=(*table.weights, *outer.weights))


@dataclass
class _LoraScope:
    """The rewriting of one scope: its values, the added weights, and the targets found so far."""

    values: dict[str, Value]
    projections: tuple[LoraTarget, ...]
    scale: float
    decomposes: bool
    weights: dict[str, Value] = field(default_factory=dict)
    adapted: dict[str, str] = field(default_factory=dict)  # by added weight: the one that it adapts
    used: set[tuple[str, str]] = field(default_factory=set)
    middles: dict[tuple[str, tuple[Operand, ...], tuple[Axis, ...]], Term] = field(default_factory=dict)

    def rewritten(self, lines: Iterable[Statement]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for line in lines:
            if isinstance(line, Loop):
                result.append(self._repeat(line))
                continue
            adapted = self._meant(line)
            result += [line] if adapted is None else self._path(line, *adapted)
        return tuple(result)

    def _repeat(self, line: Loop) -> Loop:
        """Return a loop with paths; the new weights are slices of stacks if the adapted weight is one."""
        inner = _LoraScope(dict(line.values), self.projections, self.scale, self.decomposes)
        body = inner.rewritten(line.lines)
        self.used |= inner.used
        sliced = {name for name, _ in line.each}
        sliced_weights = tuple(name for name in inner.weights if inner.adapted[name] in sliced)
        for name, value in inner.weights.items():
            self.weights[name] = self.values[name] = value.stacked(line.count) if name in sliced_weights else value
        shared = inner.weights.keys() - {*sliced_weights}  # read by iterations as they read the weight
        values = {name: value for name, value in inner.values.items() if name not in shared}
        return replace(line, lines=body, values=values, each=(*line.each, *((name, name) for name in sliced_weights)))

    def _meant(self, line: Line) -> tuple[LoraTarget, Term] | None:
        for projection in self.projections:
            if projection.layers and line.meta.layer not in projection.layers:
                continue
            for weight in projection.weights:
                if is_linear(line, weight) or is_lookup(line, weight) or is_of_experts(line, weight):
                    (term,) = (term for term in line.right if term.name == weight)
                    assert isinstance(term, Term)
                    return projection, term
        return None

    def _path(self, line: Line, projection: LoraTarget, weight: Term) -> list[Line]:
        """Return the lines of an adapted product: the product under another name, D = X A, E = D B, S = E scale, and
        the sum."""
        self.used.add((projection.name, weight.name))
        if self.decomposes and weight.indexed:
            raise InputError(
                f"{weight.name} cannot have DoRA, which adapts matrices of linear layers: leave out its name"
            )
        left = line.left[0]
        out, local_name = _out(weight, left), _local(weight)
        others = tuple(term for term in line.right if term is not weight)
        inside = tuple(axis for axis in weight.axes if axis not in out)
        path: list[Line] = []
        key = projection.name, others, inside
        if key not in self.middles:
            a = Term(f"{projection.name}.A", (*inside, RANK))
            self._weight(a, weight)
            batch_axes = tuple(axis for axis in left.loops if axis not in out)
            middle = self._value(f"{left.name}.low", (*batch_axes, RANK))
            path.append(self._product(line, f"{local_name}.low", middle, *others, a))
            self.middles[key] = middle
        middle = self.middles[key]
        chosen = () if is_lookup(line, weight.name) else tuple(axis for axis in inside if isinstance(axis, Read))
        b = Term(f"{weight.name if len(projection.weights) > 1 else projection.name}.B", (*chosen, RANK, *out))
        self._weight(b, weight)
        base, up = (self._value(f"{left.name}.{part}", left.loops) for part in ("base", "up"))
        path.append(self._product(line, f"{local_name}.up", up, middle, b))
        if self.decomposes:
            path += self._decomposed(line, weight, base, up, Term(f"{projection.name}.A", (*inside, RANK)), b)
        else:
            scaled = self._value(f"{left.name}.path", left.loops)
            path.append(self._product(line, f"{local_name}.scaled", scaled, up, Literal(self.scale)))
        terms = base, path[-1].left[0]
        path_sum = Sum((left,), terms, line.where, _meta(line, f"{local_name}.sum", left, terms), (1, 1))
        return [replace(line, left=(base,), meta=replace(line.meta, local=f"{line.meta.local}.base")), *path, path_sum]

    def _decomposed(self, line: Line, weight: Term, base: Term, up: Term, a: Term, b: Term) -> list[Line]:
        """Return the lines of DoRA up to what is added to the product, in peft's order, with the norm of the adapted
        weight's columns detached: Liu et al. 2024, equation (5) and section 4.3; peft 0.21.2, tuners/lora/dora.py.
        """
        out = _out(weight, line.left[0])
        magnitude = Term(f"{b.name.removesuffix('.B')}.M", out)
        self._weight(magnitude, weight)
        lines: list[Line] = []

        def made(name: str, axes: tuple[str, ...], *right: Operand, op: str = "", signs: tuple[int, ...] = ()) -> Term:
            left = self._value(f"{line.name}.{name}", axes)
            meta = _meta(line, f"{_local(weight)}.{name}", left, right)
            if op:
                lines.append(applied(op, left, right, meta))
            else:
                lines.append(Sum((left,), right, (), meta, signs) if signs else Product((left,), right, (), meta))
            return left

        change = made("change", weight.loops, made("product", weight.loops, a, b), Literal(self.scale))
        adapted = made("adapted", weight.loops, weight, change, signs=(1, 1))
        norm = made("norm", out, made("squares", out, made("square", weight.loops, adapted, adapted)), op="sqrt")
        gain = made("gain", out, magnitude, made("constant", out, norm, op="stop_gradient"), op="divide")
        excess = made("rest", up.loops, base, made("excess", out, gain, Literal(1.0), signs=(1, -1)))
        path = made("path", up.loops, made("gained", up.loops, up, gain), Literal(self.scale))
        made("added", up.loops, excess, path, signs=(1, 1))
        return lines

    def _value(self, name: str, axes: tuple[str, ...]) -> Term:
        self.values[name] = Value(axes)
        return Term(name, axes)

    def _weight(self, term: Term, adapted: Term) -> None:
        self.adapted[term.name] = adapted.name
        self.weights[term.name] = self.values[term.name] = Value(term.declared)

    def _product(self, line: Line, path: str, left: Term, *right: Operand) -> Line:
        return Product((left,), right, (), _meta(line, path, left, right))


def _out(weight: Term, left: Term) -> tuple[str, ...]:
    """Return the axes of the weight that the result has."""
    return tuple(axis for axis in weight.axes if isinstance(axis, str) and axis in left.loops)


def _meta(line: Line, path: str, left: Term, right: tuple[Operand, ...]) -> Meta:
    """Return the metadata of a path's line, which belongs to the layer lora and is named after the adapted line.

    A checkpoint around the adapted line includes the path. If its policy saves the product, it also saves the path's
    products.
    """
    binding = tuple((axis, axis) for axis in dict.fromkeys(a for t in (left, *right) for a in t.loops))
    locals_ = tuple(map(_local, right))
    multiplies = all(isinstance(term, Term) for term in right) and left.name.endswith((".low", ".up"))
    again = line.meta.again if multiplies else line.meta.again.replace("-", "")
    return Meta(
        "lora", line.meta.block, local=path, locals=locals_, binding=binding, module=line.meta.module, again=again
    )


def _local(term: Operand) -> str:
    return term.name.rpartition(".")[2]

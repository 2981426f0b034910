"""The interface of rules to a graph: its operands as views, numbers and indices, and the recording of lines."""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from learncost.importer.axes import AxisClass, Size, equal, product
from learncost.importer.constants import Mask, NodeConstants
from learncost.importer.equations import (
    DimensionCondition,
    Equation,
    EquationRecorder,
    Letters,
    NamedView,
    NumberOperand,
    StatisticsUpdate,
)
from learncost.importer.nodes import (
    OPERATOR,
    arguments_of,
    is_float,
    is_real,
    mark_of,
    module_of,
    name_of,
    operator_name,
    place_of,
    size_of,
)
from learncost.importer.rule import RULES, VIEW_RULES, rule_of
from learncost.importer.sized import expression_of, lines_of, number_of
from learncost.importer.tried import has_fraction
from learncost.importer.views import (
    GivenTensor,
    IntegerValue,
    SelectedPositions,
    ShapeError,
    StoredValue,
    View,
    is_inside,
)
from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, shown

AS_RUN = "; its size depends on values: --as-run (in Python as_run=True) takes those of one run"


COPIES = ("_to_copy", "clone", "lift_fresh_copy", "detach", "alias", "expand", "view", "select.int")
"""Operators that return the numbers of their operand unchanged, or some of them."""


_VARIANT = re.compile(
    r"^_*((native|cudnn|fused)_(?=\w*norm))?|(?<=norm)_(legit|with_update)(_functional|_no_training)?$"
)
"""Suffixes of operator names that select a PyTorch variant of the same operation."""


class UnsupportedOperatorError(InputError):
    """An operator that cannot be read, with its module and the user's line."""


@dataclass
class GraphReader:
    """A reader of one graph.

    values          the operand of every node: a view, or another kind
    node            the node that is being read
    allows_unknown  whether operators of unknown cost are recorded
    makes           whether the module has no weights and no inputs that require a gradient: it computes inputs for
                    other modules. Its table computes values from positions and settings; for other modules these
                    values are inputs
    unsettled       nodes that every run computes although they have no gradient, such as those of changed buffers
    """

    graph: Any
    allows_unknown: bool = False
    makes: bool = False
    unsettled: Set[Any] = frozenset()
    recorder: EquationRecorder = field(default_factory=EquationRecorder)
    constants: NodeConstants = field(default_factory=lambda: NodeConstants({}))
    examples: NodeConstants = field(default_factory=lambda: NodeConstants({}))  # with whole numbers of example inputs
    values: dict[Any, Any] = field(default_factory=dict)
    limits: dict[Size, int] = field(default_factory=dict)  # the number of rows of each indexed table
    given: dict[Any, View] = field(default_factory=dict)  # outside inputs by node and use
    kept: dict[StoredValue, Sequence[int]] = field(default_factory=dict)  # the dimensions of a weight that are axes
    buffers: Mapping[str, str] = field(default_factory=dict)  # their paths, by placeholder
    counted: frozenset[str] = frozenset()  # those that a forward pass changes
    averages: frozenset[str] = frozenset()  # modules whose running statistics cover all batches equally
    statistics: dict[str, StoredValue] = field(default_factory=dict)  # those that a step updates, by path
    lines_of_made: dict[Any, View | None] = field(default_factory=dict)  # outside nodes that have lines
    learned: Set[Any] = frozenset()  # the nodes that may have a gradient
    node: Any = None

    # Operands

    def argument(self, value: Any) -> Any:
        """Return an argument of a node in the form that rules take: views, outside values, numbers, and lists of
        them.
        """
        return torch.fx.node.map_arg(value, self.values.__getitem__)

    @property
    def settings(self) -> SimpleNamespace:
        """Return the arguments of the node that is read, by the names of its schema."""
        return SimpleNamespace(**{name: self.argument(value) for name, value in arguments_of(self.node).items()})

    def view(self, value: Any) -> View:
        """Return a tensor as a view; an outside tensor becomes an input of the table."""
        if isinstance(value, View):
            return value.fresh()
        if isinstance(value, SelectedPositions):
            value = GivenTensor(value.node)
        if isinstance(value, IntegerValue):
            return value.view.fresh()
        if isinstance(value, GivenTensor):
            return self.outside(value, "constant")
        if (expression := expression_of(value)) is not None and isinstance(view := lines_of(self, expression), View):
            return view
        if isinstance(getattr(value, "real", None), View):
            raise self.refusal("a complex number in place of a real one")
        raise self.refusal(f"{shown(value)}, which is not a tensor,")

    def outside(self, value: GivenTensor, kind: str) -> View:
        """Return an outside tensor as an input: numbers, or an index."""
        source, is_loss = value.source, kind.startswith("share")  # all targets of a loss, or a view of them
        if source and value.look and (not is_loss or equal(product(value.shape), product(source.shape))):
            node, self.node = self.node, value.node
            view = None
            with suppress(ShapeError):  # lines may split axes that the input does not split
                view = value.look(self.outside(source, kind))
            self.node = node
            if isinstance(view, View):
                return view.fresh()
        key = (value.node, kind)
        if kind == "constant" and (number := self.constant(value)) in (0.0, 1.0):
            return self.filled(value.shape, number)
        if kind == "constant" and (made := self.made(value)) is not None:
            return made
        if key not in self.given:
            name = {"share": "share", "unlike": "is_no_padding"}.get(kind.partition(" ")[0], name_of(value.node))
            self.given[key] = View.new(name, value.shape, kind, str(value.node.name))
        return self.given[key].fresh()

    def made(self, value: GivenTensor) -> View | None:
        """Record the lines of an outside tensor; None if it is an input instead. Lines are made for `unsettled` nodes,
        and, with `makes`, for floats and booleans computed from positions and settings alone, provided that rules can
        read them.
        """
        node = value.node
        if not (self.makes or node in self.unsettled) or node.op != "call_function" or not is_real(node):
            return None
        if node not in self.lines_of_made:
            self.lines_of_made[node] = None
            known = rule_of(operator_name(node.target), RULES)
            reading, self.node, origin = self.node, node, self.recorder.origin()
            arguments = [self._in_lines(self.argument(each)) for each in node.args]
            if known is not None and any(map(is_inside, arguments)):
                self.set_position(node)
                with suppress(InputError):
                    view = known(self, *arguments, **{name: self.argument(each) for name, each in node.kwargs.items()})
                    if isinstance(view, View):
                        self.lines_of_made[node] = typed(self.shaped(view, node.meta["val"], arguments), node)
            self.node = reading
            self.recorder.go_back(origin)
        made = self.lines_of_made[node]
        return None if made is None else made.fresh()

    def _in_lines(self, value: Any) -> Any:
        """Return an outside tensor of real numbers, or several, as views."""
        if isinstance(value, list) and all(isinstance(each, GivenTensor) and is_float(each.node) for each in value):
            return [self.view(each) for each in value]
        return self.view(value) if isinstance(value, GivenTensor) and is_real(value.node) else value

    def filled(self, shape: Sequence[Size], number: float | None) -> View:
        """Record a tensor of zeros or ones as a line."""
        op = "ones" if number else "zeros"
        view = View.new(op, shape)
        self.recorder.add(Equation("op", (NamedView(view, tuple(range(len(shape)))),), (), op=op))
        return view

    def index(self, value: Any, reads: AxisClass) -> View:
        """Return an integer tensor as an index into an axis, which can then not be split."""
        reads.keep_whole()
        if isinstance(value, SelectedPositions):
            return value.view.fresh()
        if isinstance(value, IntegerValue):
            value = GivenTensor(value.node)
        if not isinstance(value, GivenTensor):
            raise self.refusal("an index made from comparisons of computed values")
        view = self.outside(value, "index")
        view.stored.reads = reads
        return view

    def part(self, number: int) -> GivenTensor | None:
        """Return one of several results of the node that is read as an outside value; None if nothing reads it."""
        return next((GivenTensor(user) for user in self.node.users if user.args[1:] == (number,)), None)

    def leaf(self, node: Any) -> View:
        """Record a value for which the forward pass sets requires_grad: zeros with a gradient are added to it."""
        view = self.view(self.values[node])
        return self.add(view, View.new("leaf", view.shape, "leaf", str(node.name)))

    def looked(self, node: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> GivenTensor:
        """Return an outside node: a view of another, if it only changes the shape."""
        name = operator_name(node.target)
        look = rule_of(name, RULES)
        first = arguments[0] if arguments else None
        if look is None or look not in VIEW_RULES or not isinstance(first, GivenTensor):
            return GivenTensor(node)
        if node.meta["val"].dtype.is_floating_point != first.node.meta["val"].dtype.is_floating_point:
            return GivenTensor(node)
        return GivenTensor(node, first, lambda view: look(self, view, *arguments[1:], **named))

    def number(self, value: Any) -> NumberOperand | None:
        """Return a number, or an expression of sizes, as an operand; None for a tensor, and for an expression that
        needs lines.
        """
        if isinstance(value, NumberOperand):
            return value
        if isinstance(value, bool | int | float):
            if value != value:
                raise self.refusal("nan, which the notation cannot express,")
            return NumberOperand(float(value))
        if (expression := expression_of(value)) is not None:
            return number_of(expression)
        if isinstance(value, GivenTensor):
            known = self.constant(value)
            return None if known is None else self.number(known)
        return None

    def constant(self, value: GivenTensor) -> float | None:
        """Return the number that fills an outside tensor, if the graph says so."""
        node = value.node
        name = operator_name(node.target) if node.op == "call_function" else ""
        if name in ("full", "full_like", "scalar_tensor", "new_full"):
            fill = node.args[0] if name == "scalar_tensor" else node.args[-1]
            return float(fill) if isinstance(fill, bool | int | float) else None
        if name in ("zeros", "zeros_like", "new_zeros"):
            return 0.0
        if name in ("ones", "ones_like", "new_ones"):
            return 1.0
        if name in COPIES:
            inner = self.values.get(node.args[0])
            return self.constant(inner) if isinstance(inner, GivenTensor) else None
        known = self.constants.tensors.get(node)
        if known is not None and known.numel() == 1 and known.device.type != "meta" and known.dtype.is_floating_point:
            return float(known)
        return None

    def refusal(self, what: str, more: str = "") -> UnsupportedOperatorError:
        """Return the error for a node that cannot be read."""
        where = place_of(self.node)
        return UnsupportedOperatorError(f"{what} cannot be read{where}{more or self._on_values()}")

    def _on_values(self) -> str:
        """Return advice if a node has sizes that depend on values; "" otherwise."""
        nodes = [] if self.node is None else [self.node, *self.node.all_input_nodes]
        values = [each.meta.get("val") for each in nodes]
        sizes = [size for value in values for size in (*getattr(value, "shape", ()), value)]
        if any(hasattr(size, "node") and free_unbacked_symbols(size) for size in sizes):
            return AS_RUN
        return ""

    def mask(self, value: Any, hides: bool = False) -> Mask | None:
        """Return the causal mask that an outside mask is; None if it is not causal.

        hides   whether true in it means hidden
        """
        return self.constants.mask(value.node, hides) if isinstance(value, GivenTensor) else None

    def hidden(self, place: int, mask: Any, hides: bool = False) -> None:
        """Note that the last line hides some of the scores at this place among its operands, if its mask is causal."""
        if (seen := self.mask(mask, hides)) is not None:
            self.recorder.equations[-1].hides = place, seen

    # Lines

    def pointwise(
        self,
        operands: Sequence[Any],
        *,
        signs: Sequence[int] = (),
        op: str = "",
        hint: str = "",
        where: Sequence[DimensionCondition] = (),
    ) -> View:
        """Record an elementwise line; operands are broadcast from the last dimension on."""
        numbers = [self.number(operand) for operand in operands]
        tensors = [self.view(o) for n, o in zip(numbers, operands, strict=True) if n is None]
        numbers = [None if _is_wider(o, tensors) else n for n, o in zip(numbers, operands, strict=True)]
        views = [None if n is not None else self.view(o) for n, o in zip(numbers, operands, strict=True)]
        most = max((len(view.dims) for view in views if view is not None), default=0)
        reads: list[tuple[View, Letters] | NumberOperand] = []
        for number, view in zip(numbers, views, strict=True):
            if view is None:
                assert number is not None
                reads.append(number)
            else:
                reads.append((view, range(most - len(view.dims), most)))
        return self.recorder.line(reads, range(most), signs=signs, op=op, hint=hint, where=where)

    def add(self, *operands: Any, signs: Sequence[int] = (), hint: str = "") -> View:
        return self.pointwise(operands, signs=signs or [1] * len(operands), hint=hint)

    def multiply(self, *operands: Any, hint: str = "") -> View:
        return self.pointwise(operands, hint=hint)

    def op(self, op: str, *operands: Any, hint: str = "") -> View:
        return self.pointwise(operands, op=op, hint=hint)

    def along(
        self, op: str, view: View, dims: Sequence[int], *more: NumberOperand, keep: bool = True, hint: str = ""
    ) -> View:
        """Record an op along dimensions; `keep` keeps these in the result, as in a softmax."""
        letters = range(len(view.dims))
        acts = [dim for dim in dims if view.dims[dim]]
        out = letters if keep else [letter for letter in letters if letter not in dims]
        return self.recorder.line([(view, letters), *more], out, op=op, acts=acts, hint=hint)

    def keep(self, value: View, mean: Any, variance: Any, momentum: float) -> None:
        """Record that the last line, a normalization, updates running statistics of dimension 1 in these buffers."""
        paths = [path for each in (mean, variance) if (path := self._buffer(each)) is not None]
        equation = self.recorder.equations[-1]
        if len(paths) < 2 or equation.op != "normalize" or equation.stored is not value.stored:
            return
        module = paths[0].rpartition(".")[0]
        counted = f"{module}.num_batches_tracked".removeprefix(".")
        row = equation.left[0].view.fresh().dims[1]
        kept = []
        for path in paths:
            stored = self.statistics.setdefault(
                path, StoredValue(path, tuple(slot.axis for slot in row), "running", path)
            )
            kept.append(NamedView(View.of(stored, [len(row)]), (1,)))
        if counted in self.counted:
            stored = self.statistics.setdefault(counted, StoredValue(counted, (), "running", counted))
            kept.append(NamedView(View.of(stored, []), ()))
        is_average = module in self.averages and len(kept) > 2
        equation.running = StatisticsUpdate(tuple(kept), None if is_average else float(momentum))

    def _buffer(self, value: Any) -> str | None:
        """Return the path of the buffer that an outside tensor is, unchanged or as an earlier line updated it."""
        node = value.node if isinstance(value, GivenTensor) else None
        while node is not None and node.name not in self.buffers:
            source: Any = node.args[0] if node.args else None
            if node.target is operator.getitem and node.args[1] in (3, 4):  # the new statistics of a normalization
                source = source.args[node.args[1]]
            node = source if hasattr(source, "all_input_nodes") else None
        return None if node is None else self.buffers[node.name]

    def set_position(self, node: Any) -> None:
        """Set the node that the following lines are from."""
        if node.op != "call_function":
            return
        name = mark_of(node, OPERATOR) or operator_name(node.target).partition(".")[0]
        self.recorder.module, self.recorder.operator = module_of(node), name
        self.recorder.name = _VARIANT.sub("", name) or name
        self.recorder.place, self.recorder.again = place_of(node), mark_of(node)

    def shaped(self, value: View, result: Any, arguments: Sequence[Any]) -> View:
        """Return a value in the shape that the graph gives it: expanded if a tensor was read as a single number."""
        shape = tuple(map(size_of, result.shape))
        if value.shape != shape and any(isinstance(each, GivenTensor) and self.number(each) for each in arguments):
            value = value.expanded(list(shape))
        if len(shape) != len(value.dims) or not all(map(_as_long, shape, value.shape, result.shape)):
            name = operator_name(self.node.target)
            raise self.refusal(f"{name}, read as {value.shape} instead of {shape} (a bug of the importer),")
        return value


def typed(value: Any, node: Any) -> Any:
    """Return a view with the type of its node: booleans are marked, and integers, such as sums of booleans, may be used
    as indices.
    """
    if not isinstance(value, View) or has_fraction(node.meta["val"]):
        return value
    if node.meta["val"].dtype != torch.bool:
        return IntegerValue(value, node)
    if value.stored.kind == "value":
        value.stored.kind = "truth"
    return value


def _is_wider(value: Any, views: Sequence[View]) -> bool:
    """Return whether a tensor of one number has a dimension that no other operand has, so that the result has it."""
    if not isinstance(value, GivenTensor):
        return False
    others = [[*view.shape][::-1] for view in views]
    return any(
        not equal(size, 1) and all(place >= len(shape) or equal(shape[place], 1) for shape in others)
        for place, size in enumerate([*value.shape][::-1])
    )


def _as_long(size: Size, read: Size, of_graph: Any) -> bool:
    """Return whether a size is the one that was read; if symbols cannot decide, at the sizes of the example. Sizes that
    depend on values have no example, and PyTorch checks them in a run.
    """
    if equal(size, read) or not hasattr(of_graph, "node"):
        return equal(size, read)
    if free_unbacked_symbols(size) or free_unbacked_symbols(read):
        return True
    hint = of_graph.node.shape_env.size_hint
    return bool(hint(sympy.sympify(size)) == hint(sympy.sympify(read)))

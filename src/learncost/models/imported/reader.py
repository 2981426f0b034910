"""Reads an exported graph node by node: views stay views, and a rule takes down the lines of every other operator."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from learncost.equation.errors import InputError
from learncost.models.imported.axes import Axis, Size, equal, product, simple
from learncost.models.imported.constants import Constants, Mask
from learncost.models.imported.equations import Equation, Letters, Number, Read, Recorder, Where
from learncost.models.imported.opaque import opaque
from learncost.models.imported.refusals import is_local
from learncost.models.imported.sized import lines_of, number_of, plain
from learncost.models.imported.views import Stored, View
from learncost.models.wording import shown

Rule = Callable[..., Any]
_Rule = TypeVar("_Rule", bound=Rule)
RULES: dict[str, Rule] = {}
"""What an operator does, by its name without the namespace `aten` and the overload `default`."""


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers the rule of operators."""

    def register(function: _Rule) -> _Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


COMPLEX_RULES: dict[str, Rule] = {}
"""What an operator does where an operand is a pair of real numbers."""


def complex_rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Registers what operators do with complex numbers."""

    def register(function: _Rule) -> _Rule:
        for name in names:
            COMPLEX_RULES[name] = function
        return function

    return register


@dataclass(frozen=True)
class Outside:
    """A tensor that depends on no weight and no float input, or is of integers: it is given to the table.

    source, look   where it is a view of another: that, and what looks at it
    """

    node: Any
    source: Outside | None = None
    look: Callable[[View], Any] | None = None

    @property
    def shape(self) -> tuple[Size, ...]:
        return shape_of(self.node)


@dataclass(frozen=True)
class Chosen:
    """Places that a word chooses: an index of the table where it is read at, else a tensor outside."""

    view: View
    node: Any


@dataclass(frozen=True)
class Whole:
    """Whole numbers that are made of values of the table: lines where they are computed with, places from outside."""

    view: View
    node: Any


@dataclass(frozen=True)
class Complex:
    """A tensor of complex numbers: views of their real and their imaginary parts, or numbers."""

    real: Any
    imaginary: Any


@dataclass(frozen=True)
class Masked:
    """Scores of which a causal mask hides those behind each place: a softmax reads them under a `where`.

    value   the number in the place of what is hidden; None where the mask is added
    hides   whether what is true in the mask is hidden
    """

    view: View
    by: Outside
    value: float | None
    mask: Mask
    hides: bool


class UnreadError(InputError):
    """An operator that cannot be read, with the module and the user's line that it is from."""


SAME_SIZES: ContextVar[Mapping[Any, Any]] = ContextVar("SAME_SIZES", default={})  # noqa: B039 - it is never written
"""Of the graph that is read: symbols that the user calls by one letter, with the first of them."""


def size_of(value: Any) -> Size:
    """A size of a graph: an int, or an expression in the symbols of the inputs."""
    if isinstance(value, int):
        return value
    expression = value.node.expr if hasattr(value, "node") else value
    same = SAME_SIZES.get()
    return simple(expression.xreplace(same) if same else expression)


def shape_of(node: Any) -> tuple[Size, ...]:
    """The sizes of a node's dimensions."""
    return tuple(map(size_of, node.meta["val"].shape))


def operator_name(target: Any) -> str:
    """`aten.add.Tensor` as `add.Tensor`, `aten.linear.default` as `linear`, `my.op.default` as `my.op`."""
    return str(target).removeprefix("aten.").removesuffix(".default")


@dataclass
class Reader:
    """Reads one graph.

    letters         what the dimensions of inputs are called, by symbol
    allows_unknown  whether an operator may be taken down of which nobody knows the cost
    makes           whether the module has no weights, and inputs that want no gradient: it makes numbers for others,
                    and what it computes of positions and settings is in its table, where that of others is given
    """

    graph: Any
    allows_unknown: bool = False
    makes: bool = False
    recorder: Recorder = field(default_factory=Recorder)
    values: dict[Any, Any] = field(default_factory=dict)
    limits: dict[Size, int] = field(default_factory=dict)  # of sizes: how many places there are to look up
    given: dict[Any, Stored] = field(default_factory=dict)  # what is given from outside, by node and use
    kept: dict[Stored, Sequence[int]] = field(default_factory=dict)  # of a weight: the dimensions that are axes
    of_masked: list[tuple[View, Masked]] = field(default_factory=list)  # lines of masked scores
    node: Any = None

    # Values

    def argument(self, value: Any) -> Any:
        """An argument of a node as rules take it: views, what is outside, numbers, and rows of them."""
        import torch

        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self.argument(each) for each in value]
        if isinstance(value, slice):
            return slice(self.argument(value.start), self.argument(value.stop), self.argument(value.step))
        return value

    def view(self, value: Any) -> View:
        """A tensor as a view; one that is outside becomes an input of the table."""
        if isinstance(value, View):
            return value.fresh()
        if isinstance(value, Chosen):
            value = Outside(value.node)
        if isinstance(value, Whole):
            return value.view.fresh()
        if isinstance(value, Masked):
            return self.unmasked(value)
        if isinstance(value, Outside):
            return self.outside(value, "constant")
        if (expression := _expression(value)) is not None and isinstance(view := lines_of(self, expression), View):
            return view
        if isinstance(getattr(value, "real", None), View):
            raise self.refusal("a complex number where a real one is read")
        raise self.refusal(f"{shown(value)} is no tensor")

    def start(self, value: Any) -> int | None:
        """The first of positions from outside that follow one another."""
        return self.constants.start(value.node) if isinstance(value, Outside) else None

    def unmasked(self, value: Masked) -> View:
        """Masked scores as a line, for what is no softmax."""
        known = next((view for view, each in self.of_masked if each is value), None)
        if known is None:
            if value.value is None:
                known = self.add(value.view, value.by)
            else:
                kept, hidden = (value.value, value.view) if value.hides else (value.view, value.value)
                known = self.word("select", value.by, kept, hidden)
            self.of_masked.append((known, value))
        return known.fresh()

    @property
    def masked(self) -> Mapping[Stored, Masked]:
        """How the scores are masked that a line masks."""
        return {view.stored: value for view, value in self.of_masked}

    def outside(self, value: Outside, kind: str) -> View:
        """A tensor from outside as an input: numbers, or an index."""
        if value.source is not None and value.look is not None and _same_many(value, value.source, kind):
            node, self.node = self.node, value.node
            view = value.look(self.outside(value.source, kind))
            self.node = node
            if isinstance(view, View):
                return view.fresh()
        key = (value.node, kind)
        if kind == "constant" and (number := self.constant(value)) in (0.0, 1.0):
            return self.filled(value.shape, number)
        if kind == "constant" and (made := self.made(value)) is not None:
            return made
        if key not in self.given:
            axes = [Axis(size) for size in value.shape if not equal(size, 1)]
            name = {"share": "share", "unlike": "is_no_padding"}.get(kind.partition(" ")[0], str(value.node.name))
            self.given[key] = Stored(name, tuple(axes), kind, str(value.node.name))
        stored = self.given[key]
        return View.of(stored, [0 if equal(size, 1) else 1 for size in value.shape])

    def made(self, value: Outside) -> View | None:
        """The lines of what is computed in floats of positions and settings alone, and of what holds of these, in a
        module that makes such numbers; None where it is given: in others, and where no rule reads it.
        """
        node = value.node
        if not self.makes or node.op != "call_function" or not _is_real(node):
            return None
        if node not in self.lines_of_made:
            self.lines_of_made[node] = None
            known = _rule_of(operator_name(node.target), RULES)
            reading, self.node = self.node, node
            arguments = [self._in_lines(self.argument(each)) for each in node.args]
            if known is not None and any(map(_inside, arguments)):
                self._stand_at(node)
                with suppress(InputError):
                    view = known(self, *arguments, **{name: self.argument(each) for name, each in node.kwargs.items()})
                    if isinstance(view, View):
                        self.lines_of_made[node] = self._shaped(view, node.meta["val"], arguments)
            self.node = reading
            self._stand_at(reading)
        made = self.lines_of_made[node]
        return None if made is None else made.fresh()

    lines_of_made: dict[Any, View | None] = field(default_factory=dict)

    def _in_lines(self, value: Any) -> Any:
        """A tensor of real numbers from outside, or several, as views."""
        if isinstance(value, list) and all(isinstance(each, Outside) and _is_float(each.node) for each in value):
            return [self.view(each) for each in value]
        return self.view(value) if isinstance(value, Outside) and _is_real(value.node) else value

    def filled(self, shape: Sequence[Size], number: float | None) -> View:
        """A tensor of zeros or of ones, as a line."""
        stored = self.recorder.stored(
            [Axis(size) for size in shape if not equal(size, 1)], "ones" if number else "zeros"
        )
        view = View.of(stored, [0 if equal(size, 1) else 1 for size in shape])
        letters = tuple(range(len(shape)))
        self.recorder.add(Equation("word", (Read(view, letters),), (), word="ones" if number else "zeros"))
        return view

    def index(self, value: Any, reads: Axis) -> View:
        """A tensor of places as an index of an axis, which stays whole."""
        reads.keep_whole()
        if isinstance(value, Chosen):
            return value.view.fresh()
        if isinstance(value, Whole):
            value = Outside(value.node)
        if not isinstance(value, Outside):
            raise self.refusal("an index that is computed from values that learn")
        view = self.outside(value, "index")
        view.stored.reads = reads
        return view

    def looked(self, node: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Outside:
        """What a node outside is: a view of another, where it only looks at it otherwise."""
        name = operator_name(node.target)
        look = _rule_of(name, RULES)
        first = arguments[0] if arguments else None
        if look is None or not look.__module__.endswith("rules.views") or not isinstance(first, Outside):
            return Outside(node)
        if node.meta["val"].dtype.is_floating_point != first.node.meta["val"].dtype.is_floating_point:
            return Outside(node)
        return Outside(node, first, lambda view: look(self, view, *arguments[1:], **named))

    def number(self, value: Any) -> Number | None:
        """A number, or what follows from a size, as an operand; None for a tensor, and for what takes lines."""
        if isinstance(value, Number):
            return value
        if isinstance(value, bool | int | float):
            if value != value:
                raise self.refusal("nan, for which the notation has no number,")
            return Number(float(value))
        if (expression := _expression(value)) is not None:
            return number_of(expression)
        if isinstance(value, Outside):
            known = self.constant(value)
            return None if known is None else self.number(known)
        return None

    def constant(self, value: Outside) -> float | None:
        """The number that a tensor outside holds everywhere, where the graph says so."""
        node = value.node
        name = operator_name(node.target) if node.op == "call_function" else ""
        if name in ("full", "full_like", "scalar_tensor", "new_full"):
            fill = node.args[0] if name == "scalar_tensor" else node.args[-1]
            return float(fill) if isinstance(fill, bool | int | float) else None
        if name in ("zeros", "zeros_like", "new_zeros"):
            return 0.0
        if name in ("ones", "ones_like", "new_ones"):
            return 1.0
        if name in (
            "_to_copy",
            "to.dtype",
            "to.device",
            "clone",
            "expand",
            "view",
            "lift_fresh_copy",
            "detach",
            "alias",
            "contiguous",
            "detach_",
        ):
            inner = self.values.get(node.args[0])
            return self.constant(inner) if isinstance(inner, Outside) else None
        known = self.constants.tensors.get(node)
        if known is not None and known.numel() == 1 and known.device.type != "meta" and known.dtype.is_floating_point:
            return float(known)
        return None

    constants: Constants = field(default_factory=lambda: Constants({}))

    def refusal(self, what: str, more: str = "") -> UnreadError:
        """What is said of a node that cannot be read."""
        where = place_of(self.node)
        return UnreadError(f"{what} cannot be read{where}{more or self._on_values()}")

    def _on_values(self) -> str:
        """What helps where a node's sizes are those that values decide; "" where they are not."""
        from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

        nodes = [] if self.node is None else [self.node, *self.node.all_input_nodes]
        values = [each.meta.get("val") for each in nodes]
        sizes = [size for value in values for size in (*getattr(value, "shape", ()), value)]
        if any(hasattr(size, "node") and free_unbacked_symbols(size) for size in sizes):
            return AS_RUN
        return ""

    def given_numbers(self, numbers: Any, *axes: Axis) -> View:
        """Numbers that follow from settings alone, as an input without a gradient."""
        return self._given(numbers, axes, "constant", "shares")

    def given_places(self, places: Sequence[int], axis: Axis) -> View:
        """Places that follow from settings alone, as an index."""
        return self._given(places, (axis,), "places", "places")

    def _given(self, numbers: Any, axes: Sequence[Axis], kind: str, name: str) -> View:
        key = (kind, repr(numbers))
        if key not in self.given:
            self.given[key] = Stored(name, tuple(axis for axis in axes if not equal(axis.size, 1)), kind, "")
            self.numbers[self.given[key]] = numbers
        return View.of(self.given[key], [0 if equal(axis.size, 1) else 1 for axis in axes])

    numbers: dict[Stored, Any] = field(default_factory=dict)

    def targets(self, value: Outside, logs: View, classes: int) -> View:
        """The answers of a loss, as an index of its classes."""
        view = self.index(value, logs.dims[classes][0].axis)
        view.stored.kind = "targets"
        return view

    def shares(self, value: Outside, reduction: str, ignore: int) -> View:
        """What each answer counts in a loss: -1/count where there is one, 0 elsewhere."""
        return self.outside(value, f"share {reduction} {ignore}")

    def mask(self, value: Any, hides: bool = False) -> Mask | None:
        """Whether a mask from outside lets each place see those up to itself, or the last of them.

        hides   whether what is true in it is hidden
        """
        return self.constants.mask(value.node, hides) if isinstance(value, Outside) else None

    def hidden(self, scores: Any, mask: Any, value: float | None, hides: bool = False) -> Masked | None:
        """Scores that a causal mask hides behind a very negative number; None where it is another mask."""
        seen = self.mask(mask, hides)
        view = self.view(scores)
        if seen is None or len(view.dims) < 2 or any(len(row) != 1 for row in view.dims[-2:]):
            return None
        if any(slot in view.spread for row in view.dims[-2:] for slot in row):
            return None
        return Masked(view, mask, value, seen, hides)

    # Lines

    def pointwise(
        self,
        kind: str,
        operands: Sequence[Any],
        *,
        signs: Sequence[int] = (),
        word: str = "",
        hint: str = "",
        where: Sequence[Where] = (),
    ) -> View:
        """A line over each element; operands are spread over each other from the last dimension on."""
        numbers = [self.number(operand) for operand in operands]
        tensors = [self.view(o) for n, o in zip(numbers, operands, strict=True) if n is None]
        numbers = [None if _is_wider(o, tensors) else n for n, o in zip(numbers, operands, strict=True)]
        views = [None if n is not None else self.view(o) for n, o in zip(numbers, operands, strict=True)]
        most = max((len(view.dims) for view in views if view is not None), default=0)
        reads: list[tuple[View, Letters] | Number] = []
        for number, view in zip(numbers, views, strict=True):
            if view is None:
                assert number is not None
                reads.append(number)
            else:
                reads.append((view, range(most - len(view.dims), most)))
        return self.recorder.line(kind, reads, range(most), signs=signs, word=word, hint=hint, where=where)

    def add(self, *operands: Any, signs: Sequence[int] = (), hint: str = "") -> View:
        return self.pointwise("sum", operands, signs=signs or [1] * len(operands), hint=hint)

    def multiply(self, *operands: Any, hint: str = "") -> View:
        return self.pointwise("product", operands, hint=hint)

    def word(self, word: str, *operands: Any, hint: str = "") -> View:
        return self.pointwise("word", operands, word=word, hint=hint)

    def along(
        self, word: str, view: View, dims: Sequence[int], *more: Number, keep: bool = True, hint: str = ""
    ) -> View:
        """A word that acts along dimensions; `keep`: they stay in the result, as in a softmax."""
        letters = range(len(view.dims))
        acts = [dim for dim in dims if view.dims[dim]]
        out = letters if keep else [letter for letter in letters if letter not in dims]
        return self.recorder.line("word", [(view, letters), *more], out, word=word, acts=acts, hint=hint)

    def read(self, node: Any) -> None:
        """Take down what a node does."""
        import torch

        self.node = node
        if _is_empty(node.meta.get("val")):  # an expert's rows, say, where a run chose it for none
            self.values[node] = Outside(node)
            return
        arguments = [self.argument(value) for value in node.args]
        named = {name: self.argument(value) for name, value in node.kwargs.items()}
        if node.target is operator.getitem:
            part = arguments[0][arguments[1]] if isinstance(arguments[0], list | tuple) else Outside(node)
            self.values[node] = Chosen(part.view, node) if isinstance(part, Chosen) else part
            return
        result = node.meta.get("val")
        if "val" not in node.meta or result is None:  # it checks something, and gives nothing
            self.values[node] = None
            return
        if not any(map(_inside, [*arguments, *named.values()])):
            if isinstance(result, tuple | list):
                self.values[node] = Outside(node)
            else:
                self.values[node] = self.looked(node, arguments, named) if isinstance(result, torch.Tensor) else result
            return
        if isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
            self.values[node] = result
            return
        name = operator_name(node.target)
        self._stand_at(node)
        known = _rule_of(name, RULES)
        if _is_complex([*arguments, *named.values()]):
            known = _rule_of(name, COMPLEX_RULES)
            if known is None and _rule_of(name, RULES) is not None:
                raise self.refusal(f"{name} of complex numbers")
        if known is None and name in COURSES:
            raise self.refusal(f"torch.{name}, whose course depends on values,", f"; {COURSES[name]}")
        if known is None:
            if isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and not result.dtype.is_complex:
                self.values[node] = Outside(node)
                return
            self.values[node] = opaque(self, node, [*arguments, *named.values()])
            return
        kind = known.__module__.rpartition(".")[2]
        if any(isinstance(each, Chosen) for each in arguments) and kind not in TAKES_CHOSEN:
            if (
                kind == "views"
                and isinstance(arguments[0], Chosen)
                and getattr(result, "dtype", None) is not torch.bool
            ):
                looked = known(self, arguments[0].view, *arguments[1:], **named)
                several = isinstance(looked, list)
                self.values[node] = [Chosen(each, node) for each in looked] if several else Chosen(looked, node)
                return
            arguments = [Outside(each.node) if isinstance(each, Chosen) else each for each in arguments]
            if not any(map(_inside, [*arguments, *named.values()])):
                self.values[node] = Outside(node)
                return
        if not any(_learns(each) for each in (*arguments, *named.values())):
            self.values[node] = Outside(node)  # of places that are chosen and what is outside: it has no gradient
            return
        if name not in TAKES_MASKED:
            arguments = [self.view(each) if isinstance(each, Masked) else each for each in arguments]
        arguments = [[_placed(e) for e in each] if isinstance(each, list) else each for each in arguments]
        if any(isinstance(each, Whole) for each in arguments):
            self.values[node] = self._of_whole(known, node, arguments, named)
            return
        value = known(self, *arguments, **named)
        if isinstance(value, View) and isinstance(result, torch.Tensor):
            value = _typed(self._shaped(value, result, arguments), result)
            value = Complex(value, 0.0) if result.dtype.is_complex else value  # a real number among complex ones
        self.values[node] = value

    def _stand_at(self, node: Any) -> None:
        """The lines that follow are from this node."""
        if node.op != "call_function":
            return
        name = operator_name(node.target).partition(".")[0]
        self.recorder.module, self.recorder.operator, self.recorder.name = module_of(node), name, name
        self.recorder.place = place_of(node)

    def _of_whole(self, known: Rule, node: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What a rule makes of whole numbers: they may be an operand, an index from outside, or refused."""
        result = node.meta["val"]
        with suppress(InputError):
            value = known(self, *[self.view(each) if isinstance(each, Whole) else each for each in arguments], **named)
            if not isinstance(value, View) or result.dtype.is_floating_point:
                return value
            if _typed(value, result).stored.kind == "truth":
                return value
            return Whole(self._shaped(value, result, arguments), node)
        arguments = [Outside(each.node) if isinstance(each, Whole) else each for each in arguments]
        if not any(map(_inside, [*arguments, *named.values()])):
            return Outside(node)
        value = known(self, *arguments, **named)
        return self._shaped(value, result, arguments) if isinstance(value, View) else value

    def _shaped(self, value: View, result: Any, arguments: Sequence[Any]) -> View:
        """A value of the shape that the graph gives it: spread where a tensor was read as its one number."""
        shape = tuple(map(size_of, result.shape))
        if value.shape != shape and any(isinstance(each, Outside) and self.number(each) for each in arguments):
            value = value.expanded(list(shape))
        if len(shape) != len(value.dims) or not all(map(_as_long, shape, value.shape, result.shape)):
            name = operator_name(self.node.target)
            raise self.refusal(f"{name}: read as {value.shape}, which is {shape}; this is a fault of the reader, it")
        return value


AS_RUN = "; its size depends on values: --as-run (in Python as_run=True) takes those of one run"

COURSES = {
    "cond": "torch.where computes both branches",
    "while_loop": "a loop in Python runs as often as it says",
    "scan": "a loop in Python runs once for each place",
}
"""Operators that run parts of a graph, and how a table may have their lines."""

TAKES_CHOSEN = ("indexing",)
"""Kinds of rules that read at chosen places; for others the places are outside."""

TAKES_MASKED = ("softmax.int", "_softmax", "_safe_softmax", "_to_copy", "to.dtype")
"""Operators that may read masked scores as they are."""


def _rule_of(name: str, rules: Mapping[str, Rule]) -> Rule | None:
    """The rule of an operator, or of all its overloads."""
    return rules.get(name) or rules.get(name.partition(".")[0])


def _is_float(node: Any) -> bool:
    """Whether a node gives a tensor of real numbers."""
    return bool(getattr(getattr(node.meta.get("val"), "dtype", None), "is_floating_point", False))


def _is_real(node: Any) -> bool:
    """Whether a node gives a tensor of real numbers, or of what holds."""
    import torch

    return _is_float(node) or getattr(node.meta.get("val"), "dtype", None) is torch.bool


def _expression(value: Any) -> Any:
    """What a number of a graph says in sizes; None for other values."""
    if hasattr(value, "free_symbols") or hasattr(getattr(value, "node", None), "expr"):
        size = size_of(value)
        return None if isinstance(size, int) else plain(size)
    return None


def _same_many(value: Outside, source: Outside, kind: str) -> bool:
    """Whether a view of an input may be taken of it as it is given: of a loss's answers only where it has all."""
    return not kind.startswith("share") or equal(product(value.shape), product(source.shape))


def _inside(value: Any) -> bool:
    """Whether anything of an argument is in the table."""
    if isinstance(value, list | tuple):
        return any(map(_inside, value))
    return isinstance(value, View | Chosen | Whole | Masked | Complex)


def _is_wider(value: Any, views: Sequence[View]) -> bool:
    """Whether a tensor of one number has places that no other operand has, so that the result has them by it."""
    if not isinstance(value, Outside):
        return False
    others = [[*view.shape][::-1] for view in views]
    return any(
        not equal(size, 1) and all(place >= len(shape) or equal(shape[place], 1) for shape in others)
        for place, size in enumerate([*value.shape][::-1])
    )


def _is_complex(value: Any) -> bool:
    """Whether anything of an argument is of complex numbers."""
    if isinstance(value, list | tuple):
        return any(map(_is_complex, value))
    if isinstance(value, Outside):
        return bool(getattr(value.node.meta.get("val"), "is_complex", bool)())
    return isinstance(value, Complex | complex)


def _typed(value: View, result: Any) -> View:
    """A value that says what holds is marked so, whichever lines have made it."""
    if str(result.dtype) == "torch.bool" and value.stored.kind == "value":
        value.stored.kind = "truth"
    return value


def _is_empty(value: Any) -> bool:
    """Whether a tensor has no numbers: nothing is computed of it, and nothing has a gradient through it."""
    return any(isinstance(size, int) and size == 0 for size in getattr(value, "shape", ()))


def _placed(value: Any) -> Any:
    """Whole numbers in a row, as indices are given, as what they are outside."""
    return Outside(value.node) if isinstance(value, Whole) else value


def _learns(value: Any) -> bool:
    """Whether anything of an argument is a value of the table."""
    if isinstance(value, list | tuple):
        return any(map(_learns, value))
    return isinstance(value, View | Whole | Masked | Complex)


def _as_long(size: Size, read: Size, of_graph: Any) -> bool:
    """Whether a size is what was read; where symbols cannot tell, at the sizes of the example. What values decide has
    none, and PyTorch itself checks it in a run."""
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    if equal(size, read) or not hasattr(of_graph, "node"):
        return equal(size, read)
    if free_unbacked_symbols(size) or free_unbacked_symbols(read):
        return True
    hint = of_graph.node.shape_env.size_hint
    return bool(hint(size) == hint(read))


def module_of(node: Any) -> str:
    """The path of the module that a node is from."""
    stack = node.meta.get("nn_module_stack") or {}
    path = ""
    for entry in stack.values():
        path = entry[0] if isinstance(entry, tuple) else path
    return re.sub(r"\.slice\([^)]*\)", "", str(path))  # layers[:2].0 is layers.0


def place_of(node: Any) -> str:
    """Where a node is from, for a message: module, and the user's file and line; a package's where there is none."""
    if node is None:
        return ""
    path = module_of(node)
    text = f" in {path}" if path else ""
    trace = node.meta.get("stack_trace") or ""
    places = re.findall(r'File "(.+)", line (\d+)', trace)
    if places:
        file, line = ([each for each in places if is_local(Path(each[0]))] or places)[-1]
        text += f" ({file}:{line})"
    return text

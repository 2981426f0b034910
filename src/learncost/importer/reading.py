"""Read the nodes of an exported graph in order: decide which are outside, and record the lines of the others by
rules.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from learncost.importer.nodes import is_empty, operator_name
from learncost.importer.opaque import opaque
from learncost.importer.reader import GraphReader, typed
from learncost.importer.rule import COMPLEX_RULES, INDEX_RULES, RULES, VIEW_RULES, Rule, rule_of
from learncost.importer.tried import has_fraction
from learncost.importer.views import (
    Complex,
    GivenTensor,
    IntegerValue,
    SelectedPositions,
    View,
    is_complex,
    is_inside,
    learns,
)
from learncost.ir.errors import InputError


def read(reader: GraphReader, node: Any) -> None:
    """Record the lines of a node. Raises `InputError` for unsupported operators."""
    reader.node = node
    reader.values[node] = _value(reader, node)


def _value(reader: GraphReader, node: Any) -> Any:
    """Return the operand of a node: views of lines, or an outside value."""
    result = node.meta.get("val")
    if is_empty(result):  # for example, an expert's rows when a run selected none for it
        return GivenTensor(node)
    arguments = [reader.argument(value) for value in node.args]
    named = {name: reader.argument(value) for name, value in node.kwargs.items()}
    if node.target is operator.getitem:
        part = arguments[0][arguments[1]] if isinstance(arguments[0], list | tuple) else GivenTensor(node)
        return SelectedPositions(part.view, node) if isinstance(part, SelectedPositions) else typed(part, node)
    if result is None:  # a check, without a result
        return None
    operands = [*arguments, *named.values()]
    if not any(map(is_inside, operands)):
        if isinstance(result, tuple | list):
            return GivenTensor(node)
        return reader.looked(node, arguments, named) if isinstance(result, torch.Tensor) else result
    if isinstance(result, torch.SymInt | torch.SymFloat | torch.SymBool | int | float | bool):
        return result
    reader.set_position(node)
    known = rule_of(operator_name(node.target), COMPLEX_RULES if is_complex(operands) else RULES)
    if known is not None:
        return _by_rule(reader, known, node, arguments, named)
    if isinstance(result, torch.Tensor) and not has_fraction(result):
        return GivenTensor(node)
    return opaque(reader, node, operands)


def _by_rule(reader: GraphReader, known: Rule, node: Any, arguments: list[Any], named: Mapping[str, Any]) -> Any:
    """Return the result of a rule, with the operands converted to the kinds that it accepts."""
    result = node.meta["val"]
    if any(isinstance(each, SelectedPositions) for each in arguments) and known not in INDEX_RULES:
        first = arguments[0]
        if (
            known in VIEW_RULES
            and isinstance(first, SelectedPositions)
            and getattr(result, "dtype", None) is not torch.bool
        ):
            looked = known(reader, first.view, *arguments[1:], **named)
            return (
                [SelectedPositions(each, node) for each in looked]
                if isinstance(looked, list)
                else SelectedPositions(looked, node)
            )
        arguments = [GivenTensor(each.node) if isinstance(each, SelectedPositions) else each for each in arguments]
    if not any(map(learns, (*arguments, *named.values()))):
        return GivenTensor(node)  # of selected positions and outside values: it has no gradient
    if known in INDEX_RULES:
        arguments = [_placed(each) if isinstance(each, list) else each for each in arguments]
    if any(
        isinstance(each, IntegerValue) for each in tree_leaves(arguments)
    ):  # integers become an operand, an outside index, or are refused
        with suppress(InputError):
            return _applied(reader, known, node, _in_lines(arguments), named)
        arguments = _placed(arguments)
        if not any(map(is_inside, [*arguments, *named.values()])):
            return GivenTensor(node)
    return _applied(reader, known, node, arguments, named)


def _applied(reader: GraphReader, known: Rule, node: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    """Return the result of a rule in the shape and type that the graph gives it."""
    result, value = node.meta["val"], known(reader, *arguments, **named)
    if not isinstance(value, View) or not isinstance(result, torch.Tensor):
        return value
    value = reader.shaped(value, result, arguments)
    return Complex(value, 0.0) if result.dtype.is_complex else typed(value, node)  # a real number among complex ones


def _in_lines(values: Any) -> Any:
    """Return integers as values of the table."""
    return tree_map_only(IntegerValue, lambda each: each.view.fresh(), values)


def _placed(values: Any) -> Any:
    """Return integers as outside values, which indices are."""
    return tree_map_only(IntegerValue, lambda each: GivenTensor(each.node), values)

"""Refuse in-place changes that autograd does not see: an export makes steps of them, which stop gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from learncost.importer.nodes import place_of
from learncost.ir.errors import InputError


def check_changes(program: Any, learns: set[str]) -> None:
    """Refuse a change under `torch.no_grad`, or through `detach`, of a value that has a gradient and is read again.

    program   the exported program before functionalization
    learns    the placeholders that have a gradient
    Raises `InputError` with the module's path, file, and line.
    """
    _Changes().walk(program.graph, {}, learns, True)


class _Changes:
    """The values that depend on trainable ones, and the memory of theirs that was changed, in a graph and its
    subgraphs.
    """

    def __init__(self) -> None:
        self.learns: set[Any] = set()  # nodes
        self.written: set[int] = set()  # memory into which autograd saw a write of a trainable value
        self.apart: set[Any] = set()  # nodes that share memory with others, and no gradient
        self.unseen: dict[int, Any] = {}  # the change by memory

    def walk(self, graph: Any, given: dict[Any, Any], learns: set[str], enabled: bool) -> Any:
        """Return the outputs of a graph. `given` are the outer nodes of its placeholders, `enabled` is the grad
        mode.
        """
        results: Any = ()
        for node in graph.nodes:
            if node.op == "placeholder":
                if node.name in learns or self.learned(given.get(node)):
                    self.learns.add(node)
            elif node.op == "output":
                results = node.args[0]
                if not given:
                    self._read(node)
            elif node.op == "call_function":
                self._step(node, enabled)
        return results

    def _step(self, node: Any, enabled: bool) -> None:
        if node.target is torch.ops.higher_order.wrap_with_set_grad_enabled:
            inside = getattr(node.graph.owning_module, node.args[1].target).graph
            places = [each for each in inside.nodes if each.op == "placeholder"]
            results = self.walk(inside, dict(zip(places, node.args[2:], strict=True)), set(), bool(node.args[0]))
            for getitem in node.users:
                if self.learned(results[getitem.args[1]]):
                    self.learns.add(getitem)
            return
        if getattr(node.target, "__name__", "") == "getitem":
            if enabled and self.learned(node.args[0]):
                self.learns.add(node)
            return
        memory, detached = memory_of(node), "detach" in str(node.target)
        if enabled and not detached:
            self._read(node)
        shares = [each for each in node.all_input_nodes if memory_of(each) == memory]
        if detached or (shares and all(each in self.apart for each in shares)):
            self.apart.add(node)
        changed = list(changed_by(node))
        for each in changed:
            touched = memory_of(each)
            if touched is None or (enabled and each not in self.apart):
                continue
            if touched in self.written or any(memory_of(other) == touched for other in self.learns):
                self.unseen.setdefault(touched, node)
        value = node.meta.get("val")
        if detached or (isinstance(value, torch.Tensor) and not (value.is_floating_point() or value.is_complex())):
            return
        if any(self.learned(each) for each in (node.all_input_nodes if enabled else changed)):
            self.learns.add(node)
            if enabled:
                self.written |= {memory_of(each) or 0 for each in changed if each not in self.apart}

    def learned(self, node: Any) -> bool:
        """Return whether a node has a gradient."""
        return node in self.learns or (
            isinstance(node, _node_type()) and node not in self.apart and memory_of(node) in self.written
        )

    def _read(self, node: Any) -> None:
        for each in node.all_input_nodes:
            change = self.unseen.get(memory_of(each) or 0)
            if self.learned(each) and change is not None:
                raise InputError(
                    f"an in-place change{place_of(change)} of a tensor with a gradient, which is read again, is not "
                    "seen by autograd, which an export does not keep: write y = x + (changed - x).detach(), and "
                    "use y from then on"
                )


def _node_type() -> type:
    return torch.fx.Node


def changed_by(node: Any) -> Iterator[Any]:
    """Yield the arguments that a step writes into."""
    if not isinstance(node.target, torch._ops.OpOverload) or not node.target._schema.is_mutable:
        return
    for place, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name)
            if isinstance(value, torch.fx.Node):
                yield value


def memory_of(node: Any) -> int | None:
    """Return the identity of a value's memory."""
    value = node.meta.get("val")
    try:
        return int(value.untyped_storage()._cdata) if isinstance(value, torch.Tensor) else None
    except (NotImplementedError, RuntimeError):  # a tensor of torch.func, or one without memory
        return None

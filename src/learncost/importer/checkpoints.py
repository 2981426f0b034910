"""The module's activation checkpoints: which nodes of its graph are recomputed in the backward pass, and which are
saved.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from learncost.importer.replaced import attributes_replaced

AGAIN = "again"
"""The metadata key for the checkpoints around a node, outermost first, as in `Meta.again`."""


def marked() -> AbstractContextManager[None]:
    """Make `torch.utils.checkpoint` call its function once while a graph is traced, and mark the nodes that the call
    adds.
    """
    import torch
    import torch.utils.checkpoint as module

    numbers = itertools.count(1)

    def without_reentrant(
        _function: Any, _preserve: bool, context_fn: Any, _check: Any, _debug: Any, early_stop: bool, *_: Any, **__: Any
    ) -> Iterator[None]:
        stops = module._enable_checkpoint_early_stop
        part = f"{next(numbers)}{'' if (early_stop if stops is None else stops) else '!'}"
        with _kept_by(context_fn()[0]) as kept, _part(part, kept):
            yield

    def reentrant(function: Any, _preserve: bool, *given: Any) -> Any:
        with _part(f"{next(numbers)}!!", set()):
            results = function(*given)
        if any(isinstance(each, torch.Tensor) and each.requires_grad for each in given):
            return results
        # Its backward pass covers only its arguments: if none of them requires a gradient, its weights get none either.
        return torch.utils._pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)

    return attributes_replaced(
        {
            (module, "_checkpoint_without_reentrant_generator"): without_reentrant,
            (module.CheckpointFunction, "apply"): reentrant,
        }
    )


def mark_of(node: Any) -> str:
    """Return the checkpoints around a node."""
    return str((node.meta.get("custom") or {}).get(AGAIN, ""))


@contextmanager
def _part(part: str, kept: set[Any]) -> Iterator[None]:
    """Mark the calls that are added to the traced graph as part of this checkpoint; the results of `kept` are saved."""
    graph = _graph()
    known = 0 if graph is None else len(graph.nodes)
    yield
    for node in () if graph is None else itertools.islice(graph.nodes, known, None):
        if node.op == "call_function":
            marks = filter(None, (f"{part}{'-' if node in kept else ''}", mark_of(node)))
            node.meta["custom"] = {**(node.meta.get("custom") or {}), AGAIN: "/".join(marks)}


def _graph() -> Any:
    """Return the graph that is being traced, if any."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode: Any = get_proxy_mode()
    return None if mode is None else mode.tracer.graph


@contextmanager
def _kept_by(around: AbstractContextManager[Any]) -> Iterator[set[Any]]:
    """Enter the context of a checkpoint's forward call. Yields the nodes whose results a policy in it saves."""
    import torch.utils.checkpoint as module
    from torch.utils._python_dispatch import TorchDispatchMode

    kept: set[Any] = set()
    if not isinstance(around, module._CachingTorchDispatchMode):
        with around:
            yield kept
        return
    policy: Any = around.policy_fn
    graph = _graph()  # operations below those that are added to it are not traced

    class Asking(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """A dispatch mode that asks the policy about every operation, as a run does, and stores nothing."""

        def __torch_dispatch__(self, function: Any, _: Any, given: Sequence[Any] = (), named: Any = None) -> Any:
            result = function(*given, **(named or {}))
            if function not in module.SAC_IGNORED_OPS:
                context = module.SelectiveCheckpointContext(is_recompute=False, op_output=result)
                answer = policy(context, function, *given, **(named or {}))
                saves = answer if isinstance(answer, bool) else not answer.name.endswith("_RECOMPUTE")
                if saves and graph is not None:
                    kept.add(next(reversed(graph.nodes)))
            return result

    with Asking():  # type: ignore[no-untyped-call]
        yield kept

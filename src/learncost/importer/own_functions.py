"""Call a `torch.autograd.Function` whose gradient is not that of its lines as an operator, which an export keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from learncost.importer.tried import drawn

FUNCTIONS: dict[Any, Callable[..., Any]] = {}
"""The functions behind these operators, of their tensors."""

_OPERATORS: dict[Any, Any] = {}
"""The operators by function and by its arguments that are no tensors."""


def operator_of(kind: Any, run: Callable[..., Any], arguments: Sequence[Any]) -> Callable[..., Any]:
    """Return the operator that calls a function, as a function of the same arguments.

    Its backward pass calls the function again, and then the function's own backward pass. Raises what the function
    raises for random numbers.
    """
    places = [place for place, each in enumerate(arguments) if isinstance(each, torch.Tensor)]
    others = {place: each for place, each in enumerate(arguments) if place not in places}
    key = kind, len(arguments), repr(others)

    def of_tensors(*tensors: Any) -> Any:
        filled = others | dict(zip(places, tensors, strict=True))
        return run(*(filled[place] for place in range(len(filled))))

    if key not in _OPERATORS:
        with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.random.fork_rng([]):
            answer = of_tensors(*(drawn(arguments[place]) for place in places))
        _OPERATORS[key] = _registered(f"functions::{kind.__name__}_{len(_OPERATORS)}", of_tensors, len(places), answer)
    return lambda *given: _OPERATORS[key](*(given[place] for place in places))


def _registered(name: str, of_tensors: Callable[..., Any], count: int, answer: Any) -> Any:
    """Return a new operator of tensors, with the results that a function gave."""

    def apart(*tensors: Any) -> Any:
        with torch.no_grad():
            return torch.utils._pytree.tree_map(torch.clone, of_tensors(*tensors))  # no result is an operand

    def keep(ctx: Any, inputs: Sequence[Any], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, *gradients: Any) -> Any:
        wanted = ctx.needs_input_grad
        given = [each.detach().requires_grad_(want) for each, want in zip(ctx.saved_tensors, wanted, strict=True)]
        with torch.enable_grad():
            results = torch.utils._pytree.tree_leaves(of_tensors(*given))
        pairs = [pair for pair in zip(results, gradients, strict=True) if pair[0].requires_grad and pair[1] is not None]
        learned = [each for each in given if each.requires_grad]
        if not pairs:
            return (None,) * count
        outputs, seeds = zip(*pairs, strict=True)
        taken = iter(torch.autograd.grad(outputs, learned, seeds, allow_unused=True))
        return tuple(next(taken) if want else None for want in wanted)

    returns = f"({', '.join('Tensor' for _ in answer)})" if isinstance(answer, tuple) else "Tensor"
    schema = f"({', '.join(f'Tensor x{place}' for place in range(count))}) -> {returns}"
    made: Any = torch.library.custom_op(name, apart, mutates_args=(), schema=schema)
    made.register_fake(apart)
    made.register_autograd(backward, setup_context=keep)
    FUNCTIONS[made._opoverload] = of_tensors
    return made

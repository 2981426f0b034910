"""Check custom gradients, of which an export keeps only the forward pass.

The gradient of a `torch.autograd.Function` is derived from its forward lines. That is correct if the function's own
backward pass agrees, which is tested with random numbers. A result of `torch.autograd.grad` without a graph has no
gradient, and hooks are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import _disable_current_modes

from learncost.importer.refusals import FUNC
from learncost.importer.replaced import attributes_replaced
from learncost.importer.tried import drawn, gradients, has_fraction, identical, size_of_example
from learncost.ir.errors import InputError

if TYPE_CHECKING:
    from learncost.importer.calls import TracedForward

TOLERANCE = 1e-6
"""The allowed difference between two ways to compute a gradient in float64, relative to its largest number."""


@contextmanager
def own_functions_held() -> Iterator[None]:
    """Make users' functions operators while they are traced, if their backward pass is not that of their lines."""
    known: dict[Any, bool] = {}

    def held(kind: Any, forward: Callable[..., Any]) -> Any:
        def traced(*given: Any) -> Any:
            if get_proxy_mode() is None:
                return forward(*given)
            arguments = given if _is_apart(kind) else given[1:]
            key = kind, tuple(_described(each) for each in arguments)
            if key not in known:
                known[key] = _is_same(kind, kind.apply, arguments)
            return forward(*given) if known[key] else operator_of(kind, kind.apply, arguments)(*arguments)

        return staticmethod(traced)

    def defined(kind: Any, /, **_: Any) -> None:  # in a forward pass
        if _is_own(kind):
            kind.forward = held(kind, kind.forward)

    base: Any = torch.autograd.Function
    kinds = {(kind, "forward"): held(kind, kind.forward) for kind in _kinds(base)}
    with attributes_replaced({**kinds, (base, "__init_subclass__"): classmethod(defined)}):
        yield


def _kinds(kind: Any) -> Iterator[Any]:
    """Yield the users' functions of a kind."""
    for each in kind.__subclasses__():
        if _is_own(each):
            yield each
        yield from _kinds(each)


def _is_own(kind: Any) -> bool:
    """Return whether a function is a user's."""
    return not kind.__module__.startswith("torch.")


def _is_apart(kind: Any) -> bool:
    """Return whether a function saves for its backward pass outside of its forward."""
    return kind.setup_context is not torch.autograd.Function.setup_context


def answers_of_gradients(forward: TracedForward) -> dict[Any, Callable[..., Any]]:
    """Return the answers to calls that compute gradients, or change values without autograd."""

    def backward(*arguments: Any, **named: Any) -> None:
        forward.taken.append("backward")
        torch.autograd.backward(*arguments, **named)

    def grad(*arguments: Any, **named: Any) -> Any:
        by_func = torch._C._functorch.maybe_current_level() is not None  # which calls it, too
        forward.taken.append(FUNC if by_func else "torch.autograd.grad")
        gradients = torch.autograd.grad(*arguments, **named)
        if named.get("create_graph"):
            return gradients
        return tuple(each if each is None else forward.detach(each) for each in gradients)

    def register_hook(*_: Any) -> Any:
        raise InputError("gradient hooks run only in the backward pass, which is not exported: remove the hook")

    data: Any = torch.Tensor.data

    def of_export(tensor: Any) -> bool:
        return isinstance(tensor, FakeTensor) and get_proxy_mode() is not None

    def read_data(tensor: Any) -> Any:  # PyTorch treats it as a constant, and then refuses it
        return forward.detach(tensor) if of_export(tensor) else data.__get__(tensor)

    def set_data(tensor: Any, value: Any) -> None:
        if not of_export(tensor):
            data.__set__(tensor, value)
        elif tensor.shape != value.shape or (tensor.requires_grad and tensor.is_leaf):
            raise InputError("`.data = ...` changes a value without the export seeing it: compute a new tensor")
        else:
            tensor.detach().copy_(value)  # in place, as under torch.no_grad

    return {
        torch.Tensor.detach: forward.detach,
        torch.detach: forward.detach,
        data.__get__: read_data,
        data.__set__: set_data,
        torch.Tensor.register_hook: register_hook,
        torch.autograd.grad: grad,
        torch.autograd.backward: backward,
    }


def check_hooks(module: Any) -> None:
    """Refuse a module with hooks that may change gradients, which an export does not see. Raises `InputError`."""
    of_modules = (
        (path, part) for path, part in module.named_modules() if part._backward_hooks or part._backward_pre_hooks
    )
    of_parameters = ((path, each) for path, each in module.named_parameters() if each._backward_hooks)
    for path, _ in (*of_modules, *of_parameters):
        raise InputError(
            f"{path or type(module).__name__} has a gradient hook, which runs only in the backward pass, which is not "
            "exported: remove the hook"
        )


def check_registered(program: Any, module: Any) -> None:
    """Refuse a tensor that requires a gradient and is not a parameter: it would be neither counted nor updated. Raises
    `InputError`.
    """
    hidden = {each.untyped_storage()._cdata for each in _hidden(module)}
    for name, value in program.constants.items():
        if not hasattr(value, "requires_grad") or torch._C._functorch.is_functorch_wrapped_tensor(value):
            continue
        if value.requires_grad or (hidden and value.untyped_storage()._cdata in hidden):
            shape = " by ".join(map(str, value.shape)) or "one number"
            raise InputError(
                f"{name}, a tensor of {shape} that requires a gradient, is not a parameter: make it an "
                "nn.Parameter of a module, and keep modules in an nn.ModuleList"
            )


def _hidden(module: Any) -> Iterator[Any]:
    """Yield parameters in lists and dicts of a module, which PyTorch does not register."""
    known = {id(each) for each in module.parameters()}
    for part in module.modules():
        values = [value for name, value in vars(part).items() if name not in ("_modules", "_parameters", "_buffers")]
        for leaf in torch.utils._pytree.tree_leaves([each for each in values if isinstance(each, list | tuple | dict)]):
            several = leaf.parameters() if isinstance(leaf, torch.nn.Module) else (leaf,)
            yield from (
                each
                for each in several
                if isinstance(each, torch.nn.Parameter) and each.requires_grad and id(each) not in known
            )


def _described(value: Any) -> Any:
    shape = getattr(value, "shape", None)
    return repr(value) if shape is None else (value.dtype, *map(size_of_example, shape))


def _is_same(kind: Any, run: Callable[..., Any], arguments: Sequence[Any]) -> bool:
    """Return whether both ways give the same gradient at random numbers; false if either fails or is undefined there.

    Integers and booleans are all 0 in a first test, and a random mix of 0 and 1 in a second: behind a mask that hides
    all, any two gradients are the same. If 1 is out of range for an index, only the first test is run.
    """
    learns = [bool(getattr(each, "requires_grad", False)) for each in arguments]
    tried = 0
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.random.fork_rng([]), torch.enable_grad():
        for most in (1, 2):
            torch.manual_seed(0)
            values = [drawn(each, most) for each in arguments]
            try:
                theirs = _gradients(run, values, learns)
                with torch.autograd.graph.allow_mutation_on_saved_tensors():  # no in-place updates, as in an export
                    ours = _gradients(lambda *given: _forward(kind, given), values, learns)
                if any(bool(each.isnan().any()) for each in (*theirs, *ours)):
                    continue  # an undefined gradient has no information
            except Exception:  # any error that a user's function raises
                continue
            if not all(identical([one], [other], TOLERANCE) for one, other in zip(theirs, ours, strict=True)):
                return False
            tried += 1
    return tried > 0


def _gradients(function: Callable[..., Any], values: Sequence[Any], learns: Sequence[bool]) -> list[Any]:
    """Return the gradients of all trainable float tensors, for one random draw of the results' gradients.

    learns   which of the values require a gradient at the call; all are tested if none does
    """
    wanted = [has_fraction(each) and (learn or not any(learns)) for each, learn in zip(values, learns, strict=True)]
    given = [each.clone().requires_grad_() if asked else each for each, asked in zip(values, wanted, strict=True)]
    answer = function(*[each * 1 if asked else each for each, asked in zip(given, wanted, strict=True)])
    results = [each for each in torch.utils._pytree.tree_leaves(answer) if has_fraction(each)]
    return gradients(results, [each for each, asked in zip(given, wanted, strict=True) if asked])


class _ForwardContext:
    """A context that stores what a forward pass saves."""

    needs_input_grad = (True,) * 64

    def _nothing(self, *_: Any) -> None: ...

    save_for_backward = save_for_forward = mark_dirty = mark_non_differentiable = set_materialize_grads = _nothing


def _forward(kind: Any, given: Sequence[Any]) -> Any:
    return kind.forward(*given) if _is_apart(kind) else kind.forward(_ForwardContext(), *given)


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
        if any(isinstance(each, FakeTensor) for each in torch.utils._pytree.tree_leaves(answer)):
            raise InputError(f"the function {kind.__name__} reads a tensor that is not its argument: pass it to apply")
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

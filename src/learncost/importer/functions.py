"""Answer or refuse what an export does not see: gradients of custom functions, gradients that a forward pass takes or
changes, and in-place changes that autograd does not see.

The gradient of a `torch.autograd.Function` is derived from its forward lines. That is correct if the function's own
backward pass agrees, which is tested with random numbers. A result of `torch.autograd.grad` without a graph has no
gradient, and hooks are refused. Of in-place changes that autograd does not see, an export makes steps that stop
gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes

from learncost.importer.nodes import LEAF, mark, place_of
from learncost.importer.refusals import FUNC
from learncost.importer.replaced import attributes_replaced, calling
from learncost.importer.tried import drawn, gradients, has_fraction, identical, size_of_example
from learncost.ir.errors import InputError

if TYPE_CHECKING:
    from learncost.importer.calls import TracedForward


TOLERANCE = 1e-6
"""The allowed difference between two ways to compute a gradient in float64, relative to its largest number."""


@contextmanager
def user_functions_as_operators() -> Iterator[None]:
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


# Parameters that a forward pass makes or changes, and changes in place


REQUIRES_GRAD = "requires_grad"
"""The key of the answer to a call that makes a tensor which requires a gradient."""


class RequiresGradChangedError(InputError):
    """A forward pass changes requires_grad."""


def answers_of_learning(forward: TracedForward, changes: bool) -> dict[Any, Callable[..., Any]]:
    """Return the answers to calls that make a parameter or change requires_grad, which are refused with `InputError`.

    The inputs for which requires_grad is set, also through a view as in wav2vec 2.0 of transformers, are noted.

    changes   whether the forward pass may change requires_grad, as one does that takes gradients
    """
    flag: Any = torch._C.TensorBase.requires_grad  # a descriptor

    def made() -> None:
        if _caller():
            raise InputError(
                "a tensor that requires a gradient is made in a forward pass, where no optimizer sees it: "
                "make it an nn.Parameter in __init__, or remove requires_grad"
            )

    def check(tensor: Any, requires_grad: bool) -> None:
        if flag.__get__(tensor) == requires_grad:
            return
        base = tensor._base if tensor._is_view() else tensor
        places = {place for place, each in enumerate(forward.given) if each is base}
        if requires_grad and places:
            forward.asked.update(places)
            return
        if changes or _follows_from_nothing(base):
            return
        node = node_of(tensor)
        if requires_grad and node is not None and node.op == "call_function":
            mark(node, LEAF, "set")
            return
        raise RequiresGradChangedError(
            "requires_grad is changed in a forward pass, which is not exported: set it on parameters before"
        )

    def set_by_call(tensor: Any, requires_grad: bool = True) -> Any:
        name = _caller()
        if name == "__new__" and requires_grad:
            made()
        elif name:
            check(tensor, requires_grad)
        return tensor.requires_grad_(requires_grad)

    def set_by_name(tensor: Any, requires_grad: bool) -> None:
        if _caller():
            check(tensor, requires_grad)
        flag.__set__(tensor, requires_grad)

    return {
        REQUIRES_GRAD: made,
        torch.Tensor.requires_grad_: set_by_call,
        torch.Tensor.requires_grad.__set__: set_by_name,  # type: ignore[attr-defined]
    }


_TORCH = str(Path(torch.__file__).parent)
_OF_MODULES = torch.nn.Module.requires_grad_.__code__.co_filename
_OF_PARAMETERS = torch.nn.Parameter.__new__.__code__


def _caller() -> str:
    """Return the name of the traced function that calls; "" for one of PyTorch's, but for those that pass a flag on."""
    frame: Any = calling(__file__)
    name = frame.f_code.co_name
    if frame.f_code is _OF_PARAMETERS:
        frame = frame.f_back
    file = frame.f_code.co_filename
    traced = get_proxy_mode() is not None and (file == _OF_MODULES or not file.startswith(_TORCH))
    return name if traced else ""


def moved(part: Any) -> Callable[..., Any]:
    """Return the method `to` of a module, which refuses a change of parameters while it is traced."""
    move = part.to

    def to(*arguments: Any, **named: Any) -> Any:
        if get_proxy_mode() is None:
            return move(*arguments, **named)
        device, kind, *_ = torch._C._nn._parse_to(*arguments, **named)
        for tensor in (*part.parameters(), *part.buffers()):
            if kind and tensor.is_floating_point() and tensor.dtype != kind:
                raise InputError(
                    f"parameters become {kind} in a forward pass, which is not exported: convert them before, "
                    "or convert the tensors computed from them"
                )
            if device and tensor.device != device:
                return move(*arguments, **named)
        return part  # unchanged: PyTorch would put the parameters in again, which an export forbids

    return to


def node_of(tensor: Any) -> Any:
    """Return the node of a traced tensor; None for another."""
    mode: Any = get_proxy_mode()
    proxy: Any = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
    return None if proxy is None else proxy.proxy.node


def _follows_from_nothing(tensor: Any) -> bool:
    """Return whether a traced tensor depends only on sizes and numbers, such as zeros: it passes no gradient on."""
    if (node := node_of(tensor)) is None:
        return False
    left, seen = [node], set[Any]()
    while left:
        node = left.pop()
        if node.op in ("placeholder", "get_attr") and isinstance(node.meta.get("val"), torch.Tensor):
            return False
        left += [each for each in node.all_input_nodes if each not in seen]
        seen.update(node.all_input_nodes)
    return True


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
        if detached or (isinstance(value, torch.Tensor) and not has_fraction(value)):
            return
        if any(self.learned(each) for each in (node.all_input_nodes if enabled else changed)):
            self.learns.add(node)
            if enabled:
                self.written |= {memory_of(each) or 0 for each in changed if each not in self.apart}

    def learned(self, node: Any) -> bool:
        """Return whether a node has a gradient."""
        return node in self.learns or (
            isinstance(node, torch.fx.Node) and node not in self.apart and memory_of(node) in self.written
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

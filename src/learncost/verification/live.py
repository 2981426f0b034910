"""Comparison of a running module with its imported table: outputs, gradients, products, in-place changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from learncost.importer.examples import as_called, flattened, plain
from learncost.importer.inputs import attempts, checked, examples_of, sized, tensors
from learncost.importer.nodes import operator_name
from learncost.importer.pipeline import LiveModule
from learncost.importer.refusals import one_line
from learncost.importer.tried import copied, restored, size_of_example
from learncost.importer.walk import ImportedModule
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.ir.stated import Limit
from learncost.layers.layer import Layer, layer
from learncost.verification.imported import (
    SMALLEST,
    ModuleRun,
    gradient_error,
    in_float64,
    products,
    run_both,
    twin_of,
)
from learncost.verification.report import Check

WITHIN = 1e-6
"""Of the largest number, in float64: batch normalization over two numbers a channel is 2e-7 from itself."""

SINGLE = 1e-3
"""The same of a module that runs in its own precision alone."""


def verify_live(table: Layer, live: LiveModule) -> Iterator[Check]:
    """Compare a table with its module on random inputs at two sizes."""
    name = table.name
    try:
        text, imported, whole = live.read()
    except InputError as error:
        yield Check(name, "the module, read again", str(error), False)
        return
    same = layer(text).table == table.table
    yield Check(name, "the table with the module's, read again", "equal" if same else "they differ", same)
    try:
        sizes = _sizes(live, imported)
    except Exception as error:  # whatever a user's module raises
        yield Check(name, "a run of the module", f"it takes no random numbers: {one_line(error)}", None)
        return
    if len(sizes) == 1:
        why = "one run" if live.options.as_run else "its sizes are fixed"
        if imported.exported.letters.fixed:
            why = "its code makes numbers of its sizes"
        yield Check(name, "a second size", f"{why}: it is run only at these sizes", None)
    if imported.exported.letters.fixed:  # the graph has one size, and so has what is compared with it
        table = layer(imported.text)
    with restored(live.module):
        _move_buffers(live, imported, sizes[0])
        for each in sizes:
            yield from _at(table, live, imported, whole, each)


def _move_buffers(live: LiveModule, imported: ImportedModule, sizes: Mapping[str, int]) -> None:
    """Set mutated buffers to random numbers if the module accepts them: zeros would hide a decay.

    A table of one run is compared with the buffers' values at import.
    """
    import torch

    changed = {of for _, of in imported.exported.changed}
    buffers = [each for path, each in live.module.named_buffers() if path in changed and each.is_floating_point()]
    if live.options.as_run or not buffers:
        return
    before = [each.clone() for each in buffers]
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in buffers:
            each.add_(torch.rand(each.shape, generator=generator))
        try:
            finite = all(bool(each.isfinite().all()) for each in _run(live.module, _drawn(live, sizes)))
        except Exception:  # whatever a user's module raises of such numbers
            finite = False
        if not finite:
            for each, numbers in zip(buffers, before, strict=True):
                each.copy_(numbers)


def _sizes(live: LiveModule, imported: ImportedModule) -> list[dict[str, int]]:
    """Return one or two sizes for each open letter: the second if the module accepts it."""
    if live.options.as_run:
        return [{}]
    if imported.exported.letters.fixed:
        return [_read_at(imported)]
    if isinstance(live.inputs, Mapping):
        first = {
            letter: int(live.inputs[name].shape[dim])
            for letter, (name, dim) in imported.exported.letters.where_open.items()
        }
    else:
        first = _taken(live, attempts(checked(live.inputs, live.module, live.called)))
    if not first or not imported.exported.letters.where_open:
        return [first]
    limits = defaultdict(Limit, imported.exported.letters.limits)
    tries = [{letter: times * size + more for letter, size in first.items()} for times, more in STEPS]
    tries += [{**first, letter: times * size + more} for letter, size in first.items() for times, more in STEPS]
    with suppress(Exception):  # it may accept no other sizes
        return [
            first,
            _taken(live, [sizes for sizes in tries if all(limits[each].holds(n) for each, n in sizes.items())]),
        ]
    return [first]


STEPS = ((1, 1), (2, 0), (3, 0))
"""A size is tried so many times, and so much more: sides halve often, and lengths are whole windows."""


def _read_at(imported: ImportedModule) -> dict[str, int]:
    """Return the sizes of the imported example."""
    exported = imported.exported
    nodes = {exported.inputs.get(node.name): node for node in exported.program.graph.nodes if node.op == "placeholder"}
    where = exported.letters.where_open.items()
    return {letter: size_of_example(nodes[name].meta["val"].shape[dim]) for letter, (name, dim) in where}


def _taken(live: LiveModule, several: Iterable[dict[str, int]]) -> dict[str, int]:
    """Return the first sizes that a module accepts; raise its error if it accepts none."""
    *others, last = several
    for sizes in others:
        with suppress(Exception):  # whatever a user's module raises at a size that it does not take
            _drawn(live, sizes)
            return sizes
    _drawn(live, last)
    return last


@dataclass(frozen=True)
class _Draw:
    """The settings of drawn inputs: a bound of integers, a probability of True, floats above 0 or not.

    distinct   whether integers of a tensor or row are all different
    """

    below: int
    truth: float
    positive: bool = False
    distinct: str = ""


DRAWS = (
    _Draw(5, 0.5),
    _Draw(2, 0.5),
    _Draw(2, 1),
    _Draw(2, 0),
    _Draw(2, 1, True),
    _Draw(2, 0, True),
    _Draw(1, 1, True),
    _Draw(1, 1),
)
"""In the order in which they are tried: a module may look up few places or take logarithms, and a mask may hide all."""

DISTINCT = (_Draw(0, 0.5, distinct="tensor"), _Draw(0, 0.5, distinct="row"))
"""The draws that are tried first for a module that writes at given indices."""


def _drawn(live: LiveModule, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the first random inputs that the module accepts; raise its error if there are none."""
    return next(_draws(live, sizes))


def _draws(live: LiveModule, sizes: Mapping[str, int], draws: Sequence[_Draw] = DRAWS) -> Iterator[dict[str, Any]]:
    """Yield random inputs that the module accepts, with finite results; raise its error if there are none."""
    given, taken = _given(live, sizes), False
    if live.options.as_run:
        yield given
        return
    failed: Exception = InputError("it gives no finite numbers")
    for draw in draws:
        values = _random(given, draw)
        try:
            results = _run(live.module, values)
        except Exception as error:  # whatever a user's module raises of numbers that it does not take
            failed = error
            continue
        if all(bool(each.isfinite().all()) for each in results):
            taken = True
            yield values
    if not taken:
        try:
            _run(live.module, given)
        except Exception:  # whatever it raises of what it was read with
            raise failed from None
        yield given


def _given(live: LiveModule, sizes: Mapping[str, int]) -> dict[str, Any]:
    if isinstance(live.inputs, Mapping) or not live.options.as_run:
        return dict(sized(live.inputs, sizes, live.options.symbols))
    return tensors(checked(live.inputs, live.module, live.called), examples_of(live.inputs))


def _random(given: Mapping[str, Any], draw: _Draw) -> dict[str, Any]:
    import torch

    generator = torch.Generator().manual_seed(0)

    def made(value: Any) -> Any:
        shape = tuple(value.shape)
        if value.is_complex():
            return torch.randn(shape, generator=generator, dtype=value.dtype).requires_grad_(value.requires_grad)
        if value.is_floating_point():
            numbers = (
                torch.rand(shape, generator=generator) if draw.positive else torch.randn(shape, generator=generator)
            )
            return numbers.to(value.dtype).requires_grad_(value.requires_grad)
        if value.dtype is torch.bool:
            return torch.rand(shape, generator=generator) < draw.truth
        if draw.distinct == "tensor":
            return torch.randperm(value.numel(), generator=generator).reshape(shape).to(value.dtype)
        if draw.distinct and shape:
            return torch.rand(shape, generator=generator).argsort(-1).to(value.dtype)
        return torch.randint(0, max(1, draw.below), shape, generator=generator).to(value.dtype)

    return dict(torch.utils._pytree.tree_map_only(torch.Tensor, made, dict(given)))


def _run(module: Any, values: Mapping[str, Any], seed: int = 0) -> list[Any]:
    """Return the tensors that a module returns, without those it mutates."""
    import torch

    row, by_name = as_called(module, copied(values))
    with restored(module), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        return [each.detach().clone() for each in _tensors(module(*row, **by_name))]


def _tensors(result: Any) -> list[Any]:
    import torch

    leaves = torch.utils._pytree.tree_leaves(plain(result))
    return [
        each for each in leaves if isinstance(each, torch.Tensor) and (each.is_floating_point() or each.is_complex())
    ]


def _at(
    table: Layer, live: LiveModule, imported: ImportedModule, whole: Any, sizes: Mapping[str, int]
) -> Iterator[Check]:
    """Yield the comparisons at one size of each letter."""
    where = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    name = f"{table.name} at {where}" if where else table.name
    draws = (*DISTINCT, *DRAWS) if any(overwriting(imported.exported.program)) else DRAWS
    try:
        values, ran = _first(table, live, imported, whole, _draws(live, sizes, draws))
    except _NoNumbersError as error:
        yield Check(name, "a run of the module", f"it takes no random numbers: {error}", None)
        return
    except Exception as error:  # a table that does not fit its module cannot be run on what this is given
        yield Check(name, "the table's run", one_line(error), False)
        return
    if has_repeated_places(imported.exported.program, ran.of_node):
        why = "it writes several values at one place, of which PyTorch keeps any: not compared"
        yield Check(name, "outputs with the module's run", why, None)
        return
    inputs = _of_run(live, imported, values)
    try:
        own = _own(live.module, values)
    except Exception as error:  # code of the user's, which may not run a second time
        yield Check(name, "a run of the module", f"it does not run as it was read: {one_line(error)}", None)
        return
    yield from _values(name, ran, own, imported)
    yield _gradients(name, live.module if not live.options.as_run else whole, ran, own)
    yield _products(name, *((whole, inputs) if live.options.as_run else (live.module, values)), imported, ran)
    yield from _changes(name, ran, own, imported)


class _NoNumbersError(Exception):
    """The module raises an exception for every random input."""


def _first(
    table: Layer, live: LiveModule, imported: ImportedModule, whole: Any, draws: Iterator[dict[str, Any]]
) -> tuple[dict[str, Any], ModuleRun]:
    """The first inputs of which the table gives numbers where the module does, and no place is written twice, and the
    runs on these; else the first that the module takes.

    A softmax of a row that a mask hides wholly is no number in a table, and zeros in PyTorch's fused attention.
    """
    first: tuple[dict[str, Any], ModuleRun] | None = None
    while True:
        try:
            values = next(draws, None)
        except Exception as error:  # whatever a user's module raises
            raise _NoNumbersError(one_line(error)) from error
        if values is None:
            break
        ran = run_both(whole, _of_run(live, imported, values), imported, table)
        if ran.value != float("inf") and not has_repeated_places(imported.exported.program, ran.of_node):
            return values, ran
        first = first or (values, ran)
    assert first is not None
    return first


def _of_run(live: LiveModule, imported: ImportedModule, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the inputs in the table's form; a table of one run has tensors alone."""
    if not live.options.as_run:
        return dict(values)
    taken = imported.exported.inputs.values()
    return {key: value for key, value in flattened(values).items() if key in taken}


@dataclass(frozen=True)
class _ModuleRecord:
    """The record of a module's run: results, and inputs and buffers before and after the call.

    within   the tolerance against float64
    random   whether the results depend on the seed
    """

    results: Sequence[Any]
    after: Mapping[str, Any]
    before: Mapping[str, Any]
    within: float
    random: bool

    @property
    def smallest(self) -> float:
        """The smallest denominator of a relative difference, in the precision of the run."""
        return SMALLEST if self.within == WITHIN else SINGLE


def _own(module: Any, values: Mapping[str, Any]) -> _ModuleRecord:
    """Run the module, in float64 if it supports it."""
    import torch

    def run(double: bool, seed: int) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        twin = twin_of(module).double() if double else twin_of(module)
        given = copied(values)
        if double:
            given = torch.utils._pytree.tree_map_only(torch.Tensor, in_float64, given)
            given = copied(given)
        before = {path: each.detach().clone() for path, each in twin.named_buffers()}
        row, by_name = as_called(twin, given)
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            results = _tensors(twin(*row, **by_name))
        flat = {key: value for key, value in flattened(given).items() if isinstance(value, torch.Tensor)}
        after = {**flat, **dict(twin.named_buffers()), **dict(twin.named_parameters())}
        return [each.detach() for each in results], {key: each.detach() for key, each in after.items()}, before

    double, within = True, WITHIN
    try:
        results, after, before = run(True, 0)
    except Exception:  # code of the user's, which may not be for float64
        double, within = False, SINGLE
        results, after, before = run(False, 0)
    others, after_others, _ = run(double, 1)
    random = not all(map(_same, results, others)) or not all(_same(after[key], after_others[key]) for key in after)
    return _ModuleRecord(results, after, before, within, random)


def _same(one: Any, other: Any) -> bool:
    import torch

    return one.shape == other.shape and bool(torch.allclose(one, other, rtol=0, atol=0, equal_nan=True))


def _apart(one: Any, other: Any, smallest: float) -> float:
    """Return the largest difference of two tensors relative to the largest number of the second, or to `smallest`."""
    one, other = one.detach().to(other.dtype), other.detach()
    if one.shape != other.shape:
        return float("inf")
    if not other.numel():
        return 0.0
    difference = float((one - other).abs().max()) / max(float(other.abs().max()), smallest)
    return difference if difference == difference else float("inf")


def _values(name: str, ran: ModuleRun, own: _ModuleRecord, imported: ImportedModule) -> Iterator[Check]:
    """Compare outputs of the table with those of the exported graph, and these with the module's."""
    compared = "outputs with the module's run"
    if ran.value > WITHIN:
        yield Check(name, compared, f"the largest difference is {ran.value:.1e} of the largest number", False)
        return
    if own.random:
        found = f"it draws random numbers: compared only with its exported graph at the same draws, {ran.value:.1e}"
        yield Check(name, compared, found, None)
        return
    worst = ran.value
    for output, (mine, _) in zip(imported.outputs, ran.results, strict=True):
        if output not in imported.changed:
            near = [_apart(each, mine, own.smallest) for each in own.results if each.shape == mine.shape]
            worst = max(worst, min(near, default=float("inf")))
    precision = "" if own.within == WITHIN else ", in its own precision, as it does not run in float64"
    yield Check(
        name, compared, f"the largest difference is {worst:.1e} of the largest number{precision}", worst <= own.within
    )


def _gradients(name: str, module: Any, ran: ModuleRun, own: _ModuleRecord) -> Check:
    """Compare the table's gradients with autograd's of the exported graph, and these with the module's."""
    compared = "gradients with the module's"
    worst, reason = ran.gradient, ""
    if worst <= WITHIN:
        apart, reason = (None, "it draws random numbers") if own.random else gradient_error(module, ran)
        worst = max(worst, apart or 0.0)
    found = f"the largest difference is {worst:.1e} of the largest gradient"
    if worst <= WITHIN and reason:
        return Check(name, compared, f"{reason}: compared only with its exported graph's, {worst:.1e}", None)
    return Check(name, compared, found, worst <= WITHIN)


def _products(name: str, module: Any, given: Any, imported: ImportedModule, ran: ModuleRun) -> Check:
    """Compare FLOPs of products with FlopCounterMode's of the module."""
    compared = "FLOPs of products with FlopCounterMode's"
    try:
        counts = products(module, given, imported, ran.read, ran.sizes)
    except InputError as error:
        return Check(name, compared, str(error), None)
    text = " and backward ".join(
        f"{ours:,} of {theirs:,}" for ours, theirs in zip(counts.table, counts.torch, strict=True)
    )
    reason = f" ({counts.reason})" if counts.reason else ""
    return Check(name, compared, f"forward {text}{reason}", counts.equal or bool(counts.reason))


def _changes(name: str, ran: ModuleRun, own: _ModuleRecord, imported: ImportedModule) -> Iterator[Check]:
    """Compare buffers and inputs after the call with the table's results."""
    compared = "buffers and inputs after the call"
    overwritten = {
        of: mine
        for (mine, _), output in zip(ran.results, imported.outputs, strict=True)
        if (of := imported.changed.get(output))
    }
    there = [_apart(own.after[of], mine, own.smallest) for of, mine in overwritten.items() if of in own.after]
    if there and own.random:
        yield Check(name, compared, "it draws random numbers: not compared", None)
    elif there:
        found = f"the largest difference is {max(there):.1e} of the largest number"
        yield Check(name, compared, found, max(there) <= own.within)
    others = [path for path, value in own.before.items() if not (path in overwritten or _same(value, own.after[path]))]
    if others:
        shown = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        change = "change" if len(others) > 1 else "changes"
        yield Check(name, compared, f"{shown} {change} within an operator or as integers, which no line shows", None)


def overwriting(program: Any) -> Iterator[Any]:
    """Return the nodes of an exported program that write different values at indices of tensors.

    PyTorch does not define which of several values at one index stays.
    """
    for node in program.graph.nodes:
        name = operator_name(node.target) if node.op == "call_function" else ""
        if name.partition(".")[0] in ("index_put", "index_copy", "scatter") and ".value" not in name:
            arguments = dict(enumerate(node.args))
            if name.startswith("index_put") and (arguments.get(3) or node.kwargs.get("accumulate")):
                continue
            if ".reduce" not in name and arguments[2 if name.startswith("index_put") else 3].meta["val"].numel() != 1:
                yield node


def has_repeated_places(program: Any, of_node: Mapping[str, Any]) -> bool:
    """Return whether a run wrote several values at one index, so that the result is undefined."""
    return any(_repeats(node, of_node) for node in overwriting(program))


def _repeats(node: Any, of_node: Mapping[str, Any]) -> bool:
    import torch

    if operator_name(node.target).startswith("index_put"):
        indices = [of_node.get(each.name) for each in node.args[1] if each is not None]
        if any(each is None or each.dtype is torch.bool for each in indices):
            return False
        spread: Any = torch.broadcast_tensors(*indices)  # type: ignore[no-untyped-call]
        places = torch.stack(list(spread)).flatten(1).T.tolist()
        return len({*map(tuple, places)}) < len(places)
    dim, index = node.args[1], of_node.get(node.args[2].name)
    if index is None or not index.dim():
        return False
    ordered = index.sort(dim).values
    return bool((ordered.diff(dim=dim) == 0).any())

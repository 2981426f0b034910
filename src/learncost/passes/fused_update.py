"""Apply the plans that fuse the optimizer step into the backward pass: fused-, multi-tensor- and epilogue-update.

fused-update frees gradients one by one: a weight of a block is updated in the block's backward iteration, any other
weight right after the last line that computes its gradient or reads the weight.

multi-tensor-update leaves vectors, whose gradients are small, to the end: one kernel updates all of one shape.

epilogue-update runs an elementwise optimizer in the epilogue of the gradient's matrix product: while an element of the
gradient is in a register, the weight's element and its states are updated, so that the gradient is never stored. It
does for each tile what fused-update does for a full weight.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, defined, map_loops, repeats
from learncost.ir.table import Table
from learncost.ir.term import Term
from learncost.ir.value import Axes, Value
from learncost.layers.names import KernelNames, propagate_copies
from learncost.ops import entry


def fused_update(table: Table, together: bool = False) -> Table:
    """Return the step with the optimizer's lines right after the gradients, which are no longer outputs.

    together  whether one kernel updates all vectors of one shape, at the end
    Raises `InputError` if a line of the optimizer reads several gradients, as clipping by their norm does.
    """
    chains, common = _chains(table)
    moved = defined((*common, *(line for chain in chains.values() for line in chain)))
    lines: list[Statement] = [*common, *(line for line in table.lines if moved.isdisjoint(line.makes))]
    late: dict[Axes, list[Line]] = {}
    for gradient, chain in chains.items():
        if together and _is_vector(lines, gradient) and _elementwise(chain, table.axes[gradient]):
            late.setdefault(table.axes[gradient], []).extend(chain)
            continue
        arrays = {name for line in chain for name in line.reads if table.axes[name]}
        place = next(i for i, line in enumerate(lines) if gradient in line.makes)
        readers = [i for i, line in enumerate(lines) if i > place and not arrays.isdisjoint(line.reads)]
        maker = lines[place]
        if isinstance(maker, Loop) and not readers and gradient in {outer for _, outer in maker.keep}:
            lines[place] = _in_iterations(maker, gradient, chain, table)
        else:
            place = max((place, *readers)) + 1
            lines[place:place] = chain
    names = KernelNames(table)
    for axes, several in late.items():
        kernel = FusedKernel(names.of("update_of_vectors"), axes)
        lines += [replace(line, meta=replace(line.meta, kernel=kernel)) for line in several]
    outputs = tuple(name for name in table.outputs if name not in chains)
    return replace(table, lines=tuple(lines), outputs=outputs)


def _is_vector(lines: Iterable[Statement], gradient: str) -> bool:
    """Return whether a gradient, or each of a stack, is a sum over rows, such as a bias's and a gain's."""
    maker = next((line for line in lines if gradient in line.makes), None)
    if isinstance(maker, Loop):
        inside = {outer: name for name, outer in maker.keep}
        return gradient in inside and _is_vector(maker.lines, inside[gradient])
    return (
        isinstance(maker, Product)
        and _no_gradient(maker) == SUM
        and not any(isinstance(term, Term) and term.indexed for term in maker.right)
    )


def _elementwise(chain: Iterable[Line], axes: Axes) -> bool:
    """Return whether the lines of an update have these axes, and no operator combines several elements."""
    pointwise = all(not isinstance(line, Op) or entry(line.op).pointwise for line in chain)
    return pointwise and all(term.axes == axes for line in chain for term in line.left)


def _chains(table: Table) -> tuple[dict[str, list[Line]], list[Line]]:
    """Map each gradient to the lines that update its weight: the optimizer's, and those of weight decay before them.

    The second result has the lines that read no gradient and belong to several updates, which run first.
    """
    made = [name for line in table.lines if not _updates(line) for name in line.makes]
    waits = {name: place for place, name in enumerate(made)}
    # A scalar, such as a power of two, does not prevent fusion if it is defined before.
    gradients = {n for n in made if table.axes[n] or n in table.outputs or table.values[n].role == "gradient"}
    chains: dict[str, list[Line]] = {}
    gradient_of: dict[str, str] = {}
    before: dict[str, Line] = {}  # lines that read only a weight, such as its decay
    for line in table.lines:
        if not isinstance(line, Line) or not _updates(line):
            continue
        read = {gradient_of.get(name, name) for name in line.reads if name in gradients or name in gradient_of}
        waits |= dict.fromkeys(line.makes, max((waits.get(name, -1) for name in line.reads), default=-1))
        if len(read) > 1 or any(waits[line.name] > waits[name] for name in read):
            raise InputError(
                "the plan fused-update updates a weight as soon as its gradient exists, but this update reads several: "
                f"{line.name} reads {max(2, len(read))} (to clip gradients by their norm, leave out fused-update)"
            )
        if not read:
            before |= dict.fromkeys(line.makes, line)
        for gradient in read:
            chains.setdefault(gradient, []).append(line)
            gradient_of |= dict.fromkeys(line.makes, gradient)
    needed = {gradient: _needed(chain, before) for gradient, chain in chains.items()}
    stacks = {outer for line in table.repeats for _, outer in line.keep}
    readers = Counter(name for lines in needed.values() for line in lines for name in line.makes)
    common: set[str] = set()
    for gradient, lines in needed.items():
        count = next(iter(table.axes[gradient]), "")
        for line in lines:
            along = isinstance(line, Op) and count in line.axes  # a slice of its result needs all of its operand
            identical = gradient not in stacks or (line.left[0].axes[:1] == (count,) and not along)
            common |= set() if identical and readers[line.name] == 1 else set(line.makes)
    for line in reversed(before.values()):
        common |= set(line.reads) & before.keys() if not common.isdisjoint(line.makes) else set()
    for gradient, lines in needed.items():
        chains[gradient][:0] = [line for line in lines if common.isdisjoint(line.makes)]
    return chains, [line for line in dict.fromkeys(before.values()) if not common.isdisjoint(line.makes)]


def _needed(chain: Iterable[Line], before: Mapping[str, Line]) -> list[Line]:
    """Return the earlier lines that a chain needs, directly or indirectly, in order."""
    names = {name for line in chain for name in line.reads}
    result: list[Line] = []
    for line in reversed(dict.fromkeys(before.values())):
        if not names.isdisjoint(line.makes):
            names |= set(line.reads)
            result.insert(0, line)
    return result


def _updates(line: Statement) -> bool:
    return isinstance(line, Line) and line.meta.phase == "optimizer_step"


def _in_iterations(
    repeat: Loop, gradient: str, chain: Sequence[Line], table: Table, around: Mapping[str, Value] | None = None
) -> Loop:
    """Return the loop with the update of each iteration's weight instead of a stack of gradients.

    around   the values of the enclosing scope, for a loop inside another loop
    """
    values = table.values if around is None else around
    names = {outer: inside for inside, outer in (*repeat.keep, *repeat.each)}
    count = values[gradient].axes[:1]
    stacks = [n for line in chain for n in line.reads if values[n].axes[:1] == count and n != gradient]
    makes = [name for line in chain for name in line.makes]
    values_inside = dict(repeat.values)
    each = dict(repeat.each)
    for name in stacks:
        if name not in makes and name not in each.values():
            each[name] = name
    together = repeat.part(names[gradient], values[gradient].axes)
    first = (str(together),) if together else ()
    values_inside |= {
        names.get(name, name): values[name].along((*first, *values[name].axes[1:])) for name in (*stacks, *makes)
    }
    lines = list(repeat.lines)
    if together:  # several iterations' gradients are computed by an inner loop
        place, maker = next((i, line) for i, line in enumerate(lines) if names[gradient] in line.makes)
        assert isinstance(maker, Loop)
        lines[place] = _in_iterations(
            maker, names[gradient], [line.renamed(names) for line in chain], table, {**values, **values_inside}
        )
    else:
        _add(lines, gradient, chain, names, [*stacks, *makes])
    read = {name for line in chain for name in line.reads}
    new = tuple((name, name) for name in makes if name not in read or name in table.outputs)
    keep = tuple(pair for pair in repeat.keep if pair[1] != gradient)
    return replace(repeat, lines=tuple(lines), values=values_inside, each=tuple(each.items()), keep=(*keep, *new))


def _add(
    lines: list[Statement], gradient: str, chain: Sequence[Line], names: Mapping[str, str], stacks: Sequence[str]
) -> None:
    """Insert the update of an iteration's weight into the lines of the iteration."""

    def sliced(term: Term) -> Term:
        axes = term.axes[1:] if term.name in (gradient, *stacks) else term.axes
        return Term(names.get(term.name, term.name), axes)

    iteration = [
        replace(
            line,
            left=tuple(map(sliced, line.left)),
            right=tuple(sliced(term) if isinstance(term, Term) else term for term in line.right),
        )
        for line in chain
    ]
    arrays = {names.get(name, name) for name in (gradient, *stacks)}
    reading = (i for i in reversed(range(len(lines))) if not arrays.isdisjoint(lines[i].reads))
    making = (i for i in reversed(range(len(lines))) if names[gradient] in lines[i].makes)
    place = max(next(reading, -1), next(making))
    lines[place + 1 : place + 1] = iteration


SUM = "a sum over rows, no product of two matrices"
"""The reason why a gradient is not made by a product."""

KERNELS = "in_product"
"""The prefix of the names of this plan's kernels."""


def epilogue_update(table: Table) -> Table:
    """Return the step of fused-update, with updates in the epilogues of gradient products where possible.

    Raises `InputError` if a line of the optimizer reads several gradients, as clipping by their norm does.
    """
    try:
        table = propagate_copies(fused_update(table))
    except InputError as error:
        raise InputError(str(error).replace("fused-update", "epilogue-update")) from None
    names = KernelNames(table)
    inside = map_loops(table.lines, lambda loop: replace(loop, lines=_within(loop.lines, {*loop.ends}, names)))
    return replace(table, lines=_within(inside, {*table.outputs}, names))


@dataclass(frozen=True)
class EpilogueUpdates:
    """The weights that a step updates in the epilogue of their gradient's product.

    inside   the names of these weights
    outside  all other trainable weights, each with the reason: the form of its gradient
    """

    inside: tuple[str, ...]
    outside: Mapping[str, str]

    def __str__(self) -> str:
        names: dict[str, list[str]] = {}
        for weight, reason in self.outside.items():
            names.setdefault(reason, []).append(weight)
        others = "; ".join(f"{', '.join(weights)} ({reason})" for reason, weights in names.items())
        text = f"Updated in the epilogue of the gradient's product: {', '.join(self.inside) or 'no weight'}."
        return f"{text} The gradient is stored for {others}." if others else text


def updates(table: Table) -> EpilogueUpdates:
    """Return the weights that a step under the plan updates in an epilogue, and all others with the reasons."""
    inside: list[str] = []
    outside: dict[str, str] = {}
    scopes = ((loop.lines, loop.ends) for loop in repeats(table.lines))
    for scope, handed in ((table.lines, table.outputs), *scopes):
        for line in scope:
            if isinstance(line, Op) and line.meta.phase == "optimizer_step" and line.given[:1] == ("W",):
                weight = line.right[0].names[0]
                weight = table.known[weight].of or weight if weight in table.known else weight
                if line.meta.kernel and line.meta.kernel.name.startswith(KERNELS):
                    inside.append(weight)
                else:
                    outside[weight] = _reason(scope, handed, line.right[1].names[0])
    _without_op(table, inside, outside)
    return EpilogueUpdates(tuple(inside), outside)


def _without_op(table: Table, inside: list[str], outside: dict[str, str]) -> None:
    """Add the weights whose update is not an optimizer's op, as in integer training."""
    makers = {name: line for line in table.lines if isinstance(line, Line) for name in line.makes}
    for weight in (name for name in table.renewed if name in table.weights):
        line = makers.get(table.renewed[weight])
        if weight in (*inside, *outside) or line is None:
            continue
        if line.meta.kernel and line.meta.kernel.name.startswith(KERNELS):
            inside.append(weight)
            continue
        lines = [line]
        for update in lines:  # back to values that the optimizer does not compute
            for name in update.reads:
                maker = makers.get(name)
                if maker is not None and table.axes[name] and maker.meta.phase == "optimizer_step":
                    lines += [maker] * (maker not in lines)
                elif maker is not None and table.axes[name]:
                    outside.setdefault(weight, _reason(table.lines, set(table.outputs), name))


def _within(lines: Sequence[Statement], handed: set[str], names: KernelNames) -> tuple[Statement, ...]:
    """Return the lines of a scope, with the products of gradients moved to the updates that are their only readers."""
    result = [*lines]
    for line in lines:
        if not isinstance(line, Product) or _no_gradient(line):
            continue
        chain = _chain(result, line)
        if not chain or _refusal(result, handed, line, chain):
            continue
        axes = line.left[0].loops
        op_names = dict.fromkeys(member.op for member in chain if isinstance(member, Op))
        kernel = FusedKernel(names.of("_".join((KERNELS, *op_names))), axes)
        together = [replace(member, meta=replace(member.meta, kernel=kernel)) for member in (line, *chain)]
        place = result.index(chain[-1])
        gone = {id(member) for member in (line, *chain)}
        after = [member for member in result[place + 1 :] if id(member) not in gone]
        result = [*(member for member in result[: place + 1] if id(member) not in gone), *together, *after]
    return tuple(result)


def _no_gradient(line: Product) -> str:
    """Return the reason why a line is not a product of two matrices that may have an epilogue; "" if it is."""
    if line.left[0].indexed:
        return "rows added up at an index"
    if len(line.right) != 2 or not all(isinstance(term, Term) for term in line.right) or not line.sides.are_of_matrices:
        return SUM
    if line.where or line.meta.kernel:
        return "computed inside another kernel" if line.meta.kernel else "a product with a condition"
    if line.left[0].loops != line.left[0].declared or len({*line.left[0].loops}) < len(line.left[0].loops):
        return "a product that has an axis twice"
    return ""


def _chain(lines: Sequence[Statement], product: Line) -> list[Line]:
    """Return the optimizer's lines that depend on a gradient, in order, with the lines that only they read."""
    waiting = {*product.makes}
    chain: list[Line] = []
    steps: list[Line] = []
    for line in lines:
        if not isinstance(line, Line):
            continue
        if line.meta.phase != "optimizer_step" and (
            waiting.isdisjoint(line.reads) or not _scales(line, product, waiting)
        ):
            continue
        steps.append(line)
        if not waiting.isdisjoint(line.reads):
            chain.append(line)
            waiting |= {*line.makes}
    if not any(line.meta.phase == "optimizer_step" for line in chain):
        return []
    identical = [line for line in steps if line.left[0].loops == product.left[0].loops]
    while True:
        read = {name for line in chain for name in line.reads}
        feeding = [line for line in identical if line not in chain and not read.isdisjoint(line.makes)]
        if not feeding:
            return [line for line in steps if line in chain]
        chain += feeding


def _scales(line: Line, product: Line, waiting: Collection[str]) -> bool:
    """Return whether a line scales a product's sums elementwise, as it does after an integer product."""
    terms = [term for term in line.right if isinstance(term, Term) and term.name in waiting]
    identical = all(term.axes == product.left[0].axes for term in (*terms, line.left[0]))
    return isinstance(line, Product) and not line.where and len(terms) == 1 and identical


def _refusal(lines: Sequence[Statement], handed: Collection[str], line: Line, chain: Sequence[Line]) -> str:
    """Return the reason why a product and the optimizer's lines after it cannot be one kernel; "" if they can."""
    axes = line.left[0].loops
    if line.name in handed or any(line.name in other.reads and other not in chain for other in lines):
        return "read by other lines than the optimizer's"
    for member in chain:
        terms = [term for term in (*member.left, *member.right) if isinstance(term, Term) and term.axes]
        across = any(not set(term.axes) <= set(axes) for term in terms)
        if across or not _elementwise([member], axes):
            return "for an optimizer that is not elementwise"
    between = lines[_place(lines, line) + 1 : _place(lines, chain[-1])]
    again = {name for other in between for name in other.makes} & {*line.reads}
    return f"of {min(again)}, which is recomputed before the weight may change" if again else ""


def _place(lines: Sequence[Statement], line: Line) -> int:
    return next(i for i, other in enumerate(lines) if other is line)


def _reason(scope: Sequence[Statement], handed: Collection[str], name: str) -> str:
    """Return the form of a gradient, as the reason why its weight is not updated in an epilogue."""
    seen: set[str] = set()
    while name not in seen:
        seen.add(name)
        maker = next((line for line in scope if name in line.makes), None)
        if isinstance(maker, Line) and maker.meta.phase == "optimizer_step":  # weight decay of the gradient
            name = maker.right[0].names[0]
            continue
        if maker is None or isinstance(maker, Loop):
            return "added up over the iterations of a loop"
        if isinstance(maker, Sum):
            return f"a sum of {len(maker.right)}"
        if not isinstance(maker, Product):
            return f"made by {getattr(maker, 'op', 'an operator')}"
        return _no_gradient(maker) or _refusal(scope, handed, maker, _chain(scope, maker)) or "made elsewhere"
    return "made elsewhere"

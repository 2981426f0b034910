"""Calls of modules as PyTorch runs them: the nodes on the tape, and their saved tensors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from learncost.ir.affine import Affine
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line, Op, Product, Sum, is_sum_of_products
from learncost.ir.loop import Loop, Statement
from learncost.ir.polynomial import base, size_of
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ops import entry, is_choice
from learncost.ops.collectives import is_collective
from learncost.program.autograd.calls import (
    Attention,
    Dropout,
    Embedding,
    Experts,
    Linear,
    LinearLoss,
    LineCall,
    Loss,
    Mixer,
    Norm,
    OperatorCall,
    Projection,
    Rotary,
    local_name,
)
from learncost.program.autograd.mixers import MIXERS, MixerScope
from learncost.program.autograd.module import AttentionInputs
from learncost.program.autograd.operators import BOOLEAN, COPIED, INTEGER, TapeTensor, cat, linear
from learncost.program.autograd.state import ScopeNames, Values

if TYPE_CHECKING:
    from learncost.program.autograd.losses import LossRow


@dataclass(frozen=True)
class ViewParts(OperatorCall):
    """A value as one view per position of its axis, including views that nothing reads."""

    value: str
    axis: str
    places: tuple[int, ...]

    @property
    def title(self) -> str:
        return self.value


def with_parts(
    lines: Sequence[Statement], outputs: Collection[str], axes: Mapping[str, tuple[str, ...]]
) -> tuple[list[Statement], dict[str, ViewParts]]:
    """Return the lines with every such view as a separate value, and the values that are split."""
    by_name: dict[str, dict[int, Term]] = {}
    at: dict[str, set[int]] = {}
    others = {*outputs, *(name for line in lines if isinstance(line, Loop) for name in line.reads)}
    for line in lines:
        for term in line.right if isinstance(line, Line) else ():
            place = _place(term)
            if place is None or not isinstance(term, Term):
                others |= set(term.names)
                continue
            number, position = place
            at.setdefault(term.name, set()).add(position)
            declared = axes[term.name]
            part = Term(f"{term.name}#{number}", (*declared[:position], *declared[position + 1 :]))
            by_name.setdefault(term.name, {})[number] = part
    makers = {name: line for line in lines if isinstance(line, Line) for name in line.makes}
    view_parts = {}
    for name, parts in by_name.items():
        if name not in others and len(at[name]) == 1 and name in makers:
            (position,) = at[name]
            line = replace(makers[name], left=tuple(parts.values()), right=(Term(name, axes[name]),))
            view_parts[name] = ViewParts((line,), tuple(parts.values()), name, axes[name][position], tuple(parts))

    def renamed(term: Operand) -> Operand:
        place = _place(term)
        if place is None or not isinstance(term, Term) or term.name not in view_parts:
            return term
        number, position = place
        return Term(f"{term.name}#{number}", (*term.axes[:position], *term.axes[position + 1 :]))

    return [
        replace(line, right=tuple(map(renamed, line.right))) if isinstance(line, Line) else line for line in lines
    ], view_parts


def after_makers(
    calls: Iterable[OperatorCall | Loop], view_parts: Mapping[str, ViewParts]
) -> list[OperatorCall | Loop]:
    """Return the calls, with the views of each split value right after the call that defines it."""
    result: list[OperatorCall | Loop] = []
    for call in calls:
        result.append(call)
        if isinstance(call, OperatorCall):
            result += [view_parts[term.name] for term in call.makes if term.name in view_parts]
    return result


def _place(operand: Operand) -> tuple[int, int] | None:
    """Return the fixed position at which a term is read, and the number of that axis; None for any other read."""
    if not isinstance(operand, Term):
        return None
    reads = [(position, axis.at) for position, axis in enumerate(operand.axes) if isinstance(axis, Read)]
    if len(reads) != 1:
        return None
    ((position, at),) = reads
    if not isinstance(at, Affine) or not at.fixed or at.sizes or len(at.parts) != 1:
        return None
    return at.parts[0].factor, position


def with_mixers(calls: Iterable[OperatorCall | Loop]) -> list[OperatorCall | Loop]:
    """Return the calls, with those of a recurrent layer joined into one."""
    result: list[OperatorCall | Loop] = []
    for layer, group in groupby(calls, _layer):
        of_layer = list(group)
        lines = tuple(line for call in of_layer if isinstance(call, OperatorCall) for line in call.lines)
        result += [Mixer(lines, lines[-1].left[:1], tuple(of_layer))] if layer in MIXERS else of_layer
    return result


def with_head_losses(calls: Iterable[OperatorCall | Loop], row: LossRow) -> list[OperatorCall | Loop]:
    """Return the calls, with every loss joined to the head that makes its scores and to what acts on these in place.

    Raises `InputError` for scores that are no product with a weight, or that the loss does not change as the model.
    """
    result = [*calls]
    for loss in [call for call in result if isinstance(call, Loss)]:
        between: list[OperatorCall] = []
        scores = loss.scores
        while True:
            makers = (call for call in result if isinstance(call, OperatorCall))
            maker = next((call for call in makers if [term.name for term in call.makes] == [scores]), None)
            if not isinstance(maker, LineCall) or len(maker.reads) != 1:
                break
            between.append(maker)
            (scores,) = maker.reads
        if not isinstance(maker, Linear) or (row.is_kernel and maker.groups[0][0].path[0]):
            raise InputError("this loss requires a head without a low-rank path right before it")
        capped = any(isinstance(line, Op) and line.op == "tanh" for call in between for line in call.lines)
        if between and not (row.is_kernel or capped):
            raise InputError(f"this loss requires the head's product as scores, which {between[-1].title} changes")
        lines = tuple(line for call in (maker, *between[::-1], loss) for line in call.lines)
        result[result.index(loss)] = LinearLoss(lines, loss.makes, maker.groups[0][0], maker.value, capped)
        result = [call for call in result if call is not maker and call not in between]
    return result


def _layer(call: OperatorCall | Loop) -> str:
    """Return the layer of a call; "" for a loop over layers."""
    line = call.lines[0]
    return line.meta.layer if isinstance(line, Line) else ""


def call_module(names: ScopeNames, call: OperatorCall, values: Values) -> None:
    """Run a call; its results are added to the values."""
    if isinstance(call, Linear):
        _linear(names, call, values)
        return
    if isinstance(call, ViewParts):
        whole, parts = names.found(call.value, values), names.count((call.axis,))
        views = whole.split([whole.elements // parts] * parts)
        values |= {term.name: views[place] for term, place in zip(call.makes, call.places, strict=True)}
        return
    values[call.makes[0].name] = _KINDS[type(call)](names, call, values)


def _linear(names: ScopeNames, call: Linear, values: Values) -> None:
    for group in call.groups:
        x = names.found(call.value, values)
        sizes = [names.count(projection.makes.declared) for projection in group]
        sizes, named = ([sum(sizes)], group[:1]) if call.whole else (sizes, group)
        biases = [projection.bias for projection in group if projection.bias]
        bias = names.leaf(*biases) if biases else None
        weight = names.leaf(*(projection.weight for projection in group))
        if names.is_copied(call.value, group[0].weight):
            x = x.sent(COPIED, x.elements)
        if local_name(call) in names.module.floats:
            x, weight = x.in_float(), weight.in_float()
        if local_name(call) in names.module.casts:
            x = x.to(max(x.width, weight.width))
        path, low = _path(names, group, x)
        parts_made = names.module.linear(x, weight, bias, sizes, path, low, names.state.asked.drops_paths)
        for projection in reversed(named):
            part = parts_made.pop()
            if call.heads:
                part = part.transpose()
            if call.heads and names.module.heads == "copies":
                part = part.contiguous()
            values[projection.makes.name] = part
        names.tape.hold(x)
        state, of_block = names.state, len(names.weights[group[0].weight]) > 1
        if names.module.of_family and state.passed and not of_block and not state.hidden:
            state.hidden.append(x)


def _path(names: ScopeNames, group: Sequence[Projection], x: TapeTensor) -> tuple[list[TapeTensor], int]:
    """Return A and B of a low-rank path, DoRA's magnitudes, and the number of elements between A and B."""
    first, *others = group[0].path
    if not first:
        return [], 0
    *inward, rank = names.axes[first]
    low = x.elements // names.count(inward) * names.count((rank,))
    joined = (names.leaf(*(projection.path[place] for projection in group)) for place, _ in enumerate(others, 1))
    return [names.leaf(first), *joined], low


def _attention(names: ScopeNames, call: Attention, values: Values) -> TapeTensor:
    count, (first, last) = names.count, (call.lines[0], call.lines[-1])
    assert isinstance(first, Product)
    assert isinstance(last, Product)
    keys, queries = first.sides.columns, first.sides.rows
    place = next((where.upper for where in first.where if where.ordered), queries[-1])
    groups = count([axis for axis in queries if axis != place])
    length = count(keys)
    scores = count(first.left[0].loops)
    widths = [count(line.sides.summed) for line in call.scores]
    q = _joined([names.found(name, values) for name, _ in call.pairs], widths)
    k = _joined([names.found(name, values) for _, name in call.pairs], widths)
    batch = first.left[0].loops[:1] if first.left[0].loops[0] in first.sides.batch else ()
    windows = [where.window for where in first.where if where.window]
    terms = [term for line in call.lines for term in line.right if isinstance(term, Term)]
    masks = count((*batch, place)) * length
    added = [names.operand(term, values) for term in terms if term.name in call.added]
    attention_scores = AttentionInputs(
        groups=groups,
        heads=count([axis for axis in first.sides.batch if axis not in batch]),
        elements=scores,
        results=count(last.left[0].declared),
        rows=scores // length,
        masked=masks,
        causal=bool(first.where),
        windowed=any(size_of(window, names.state.sizes) < length for window in windows),
        filled=bool(windows) and length == names.module.window,
        padded=call.padded,
        added=added,
        capped=call.capped,
        scaled=call.scaled,
        sink=names.leaf(call.sink) if call.sink else None,
        dropped=call.dropped,
        cached=bool(first.where) or base(keys[-1]) != base(place),
        identical=sum(widths) == count(last.sides.columns),
        cache=names.state.cache,
        held=[q, k, *added],
    )

    def mask(width: int, elements: int = 0) -> TapeTensor:
        spread = call.padded or width > BOOLEAN
        elements = elements or (masks if spread else count((place,)) * length)
        return names.state.mask((masks, width, *first.where), elements, width)

    result = names.module.attended(q, k, names.found(call.values, values), attention_scores, mask)
    result = result.transpose().contiguous()
    names.tape.hold(*attention_scores.held)
    return result


def _joined(parts: Sequence[TapeTensor], widths: Sequence[int]) -> TapeTensor:
    """Return parts of heads concatenated, with one that all heads share repeated."""
    if len(parts) == 1:
        return parts[0]
    heads = max(part.elements // width for part, width in zip(parts, widths, strict=True))
    return cat(parts, shares=[heads * width for width in widths])


def _norm(names: ScopeNames, call: Norm, values: Values) -> TapeTensor:
    x = names.found(call.op.right[0].name, values)
    rows = x.elements // names.count(call.op.axes)
    weights = [names.leaf(name) for name in call.weights]
    if wider := names.state.asked.norms:
        weights = [each if each.learns else each.viewed_as(each.elements, wider) for each in weights]
    return names.module.normed(x, call.op, weights, call.from_one, rows)


def _loss(names: ScopeNames, call: Loss, values: Values) -> TapeTensor:
    targets = names.found(call.targets, values) if call.targets else None
    parallel = isinstance(call.lines[0], Op) and any("/" in axis for axis in call.lines[0].axes)
    return names.module.loss(names.found(call.scores, values), targets, parallel)


def _linear_loss(names: ScopeNames, call: LinearLoss, values: Values) -> TapeTensor:
    row, head, drops = names.state.asked.loss, call.head, names.state.asked.drops_paths
    assert row
    hidden, weight = names.found(call.value, values), names.leaf(head.weight)
    if call.capped and row.caps_values:
        hidden = _capped(hidden)
    bias = names.leaf(head.bias) if head.bias else None
    sizes = [axis for axis in head.makes.declared if axis in names.axes[head.weight]]
    classes, features = names.count(sizes), weight.elements // names.count(sizes)

    def scored(part: TapeTensor) -> TapeTensor:
        path, low = _path(names, (head,), part)
        (scores,) = names.module.linear(part, weight, bias, [part.elements // features * classes], path, low, drops)
        return _capped(scores) if call.capped and not row.caps_values else scores

    from learncost.program.autograd.losses import HeadInputs  # imported where it is needed: start-up counts

    sequences = names.count(head.makes.declared[:1])
    return row.run(HeadInputs(hidden, weight, bias, classes, sequences, scored, names.state.scores))


def _capped(values: TapeTensor) -> TapeTensor:
    return (values / 2.0).apply("tanh") * 2.0  # the cap itself takes no memory


def _rotary(names: ScopeNames, call: Rotary, values: Values) -> TapeTensor:
    x, cosine, sine = (names.found(name, values) for name in (call.value, call.cosine, call.sine))
    return names.module.rotated(x, cosine, sine)


def _dropout(names: ScopeNames, call: Dropout, values: Values) -> TapeTensor:
    return names.found(call.value, values).dropout()


MOST_LINEAR = 64
"""The most experts that are linear modules in transformers before 4.50 (OLMoE): more are computed at once."""


def _experts(names: ScopeNames, call: Experts, values: Values) -> TapeTensor:
    """Run transformers' `grouped_mm_experts_forward`: tokens sorted by experts, grouped products, sorted back.

    Low-rank paths are added to copies of the weights (peft 0.21.2, tuners/lora/layer.py: `ParamWrapper`).
    With scaled operands it is `Llama4TextMoe`: all experts have all tokens, which are zeros where they are not chosen.
    Python names hold the sorted tokens, and the biases of the last product, until the end.
    """
    count, tape = names.count, names.tape
    every = count(names.axes[call.outward.right[1].name][:1])
    if names.module.linear_experts and not call.scaled and every <= MOST_LINEAR:
        return _linear_experts(names, call, values, every)
    shares = names.found(call.shares, values)
    order = tape.new(shares.elements, INTEGER)
    selected = count(call.outward.left[0].declared)
    value, back, into = (
        names.found(call.value, values),
        *(
            _with_path(names, [line.right[1].name for line in each], call.paths)
            for each in ((call.outward,), call.inward)
        ),
    )
    if back.coded:  # one at a time is dequantized
        into, back = (replace(weight, elements=weight.elements // every) for weight in (into, back))
    sizes = [count(line.left[0].declared) for line in call.inward]
    multiplied: Callable[[TapeTensor, TapeTensor, int], TapeTensor] = partial(linear, casts=False)  # grouped_mm
    if call.scaled:
        experts = back.elements * shares.elements**2 // (sizes[0] * selected)
        times = experts * value.elements // selected
        rows = value.repeated(experts) * shares.gather(order, shares.elements * times)
        sizes, selected, multiplied = [size * times for size in sizes], selected * times, TapeTensor.matmul
    else:
        rows = value.gather(order, selected)
    parts = multiplied(rows, into, sum(sizes)).split(sizes)
    local = {**values, **{line.name: part for line, part in zip(call.inward, parts, strict=True)}}
    biased: set[str] = set()
    biases: list[TapeTensor] = []
    for line in call.lines[call.scaled : -1]:
        biased.add(line.name)
        if line == call.outward:
            local[line.name] = multiplied(local[line.right[0].name], back, selected)
        elif isinstance(line, Sum) and line.right[-1].name in names.weights:  # out.add_(bias)
            bias = names.operand(line.right[-1], local)
            tape.hold(*biases)
            biases = [bias] if call.outward.name in biased else [*biases, bias]
            local[line.name] = local[line.right[0].name].add_(bias)
        elif line not in call.inward:
            local[line.name] = _line(names, line, local)
    (last,) = (term.name for term in call.lines[-1].right if term.name in biased)
    result, width = local[last], local[last].width
    try:
        if not call.scaled:
            result = (result * names.module.routed(shares).gather(order, shares.elements)).gather(order, selected)
        return result.viewed().sum(count(call.makes[0].declared)).to(width)
    finally:  # a recomputation may end inside
        tape.hold(rows, *biases)


def _linear_experts(names: ScopeNames, call: Experts, values: Values, experts: int) -> TapeTensor:
    """Run transformers' `MixtralSparseMoeBlock` (4.48): one expert after the other, each with as many tokens, adds to
    the result; Python names hold its tokens and results until the next has its own.
    """
    tape, value, shares = names.tape, names.found(call.value, values), names.found(call.shares, values)
    expert_names = replace(names, divided=experts)
    result, before = tape.new(value.elements, value.width), list[TapeTensor]()
    mask = tape.new(shares.elements * experts, INTEGER)  # functional.one_hot
    for number in range(experts):
        index = tape.new(2 * shares.elements // experts, INTEGER)  # of tokens, and of their choices
        rows = value.gather(index, expert_names.count(call.outward.left[0].declared))
        tape.hold(*before)
        local = {**values, call.value: rows}
        for line in call.lines[:-1]:
            if line in (*call.inward, call.outward):
                name = line.right[1].name
                elements = names.count(names.axes[name]) // experts
                weight = names.state.leaf([(*names.weights[name], f"expert {number}")], elements)
                made = linear(local[line.right[0].name], weight, expert_names.count(line.left[0].declared))
            else:
                made = _line(expert_names, line, local)
            local[line.name] = made
        weighted = made * shares.gather(index, shares.elements // experts)
        result, before = result.index_add_(weighted, index), [rows, weighted]
    tape.hold(*before, mask)
    return result


def _with_path(names: ScopeNames, weights: Sequence[str], paths: Mapping[str, tuple[str, str]]) -> TapeTensor:
    """Return the weights of experts as one, with the product of A and B added by `baddbmm` if they have a path."""
    weight, adapted = names.leaf(*weights), [paths[name] for name in weights if name in paths]
    if not adapted:
        return weight
    a, b = names.leaf(adapted[0][0]), names.leaf(*(b for _, b in adapted))
    return a.product(b, weight.elements)


def _mixer(names: ScopeNames, call: Mixer, values: Values) -> TapeTensor:
    MIXERS[_layer(call)](MixerScope(names, call, values, call_module))
    return values[call.makes[0].name]


def _single(names: ScopeNames, call: LineCall, values: Values) -> TapeTensor:
    return _line(names, call.lines[0], values)


def _embedding(names: ScopeNames, call: Embedding, values: Values) -> TapeTensor:
    tensor = names.operand(call.lines[0].right[0], values)
    if len(call.lines) > 1:
        tensor = tensor * 1.0
    names.state.embeds(names.weights[call.lines[0].right[0].name][0], tensor)
    return tensor


def _line(names: ScopeNames, line: Line, values: Values) -> TapeTensor:
    """Run a single line: a product is multiplied and summed, a sum added, an op its function."""
    elements = names.count(line.left[0].loops)
    if is_choice(line):
        return names.tape.new(elements, INTEGER)  # indices have no gradient
    if (pooled := _pooled(line)) is not None:
        return names.found(pooled.name, values).pooled(elements, isinstance(line, Op))
    terms = [term for term in line.right if isinstance(term, Term)]
    operands = [names.operand(term, values) for term in terms]
    numbers = any(isinstance(term, Literal) for term in line.right)
    result = operands.pop(0) if operands else names.fresh(elements)
    module = names.module
    if f"{line.meta.layer}.{line.meta.local}" in module.floats:
        result = result.in_float()
    if is_collective(line):
        return result.sent(line.op, elements)
    if isinstance(line, Op):
        return module.activated(result, line.op)
    if is_sum_of_products(line) and operands:
        if module.attention == "disentangled" and line.sides.batch:  # positions are broadcast to all sequences
            result, factor = result.contiguous(), operands.pop()
            spread = names.count(line.left[0].loops[:1])
            return result.matmul(factor.copied(factor.elements * spread), elements)
        return result.matmul(operands.pop(), elements)
    if module.attention == "disentangled" and isinstance(line, Product) and numbers and not operands:
        return result  # the division was before
    if isinstance(line, Product) and terms[1:] == terms[:1]:
        return result.pow()  # torch.square
    loops = terms[0].loops if terms else ()
    for term, other in zip(terms[1:], operands, strict=True):
        loops = tuple(dict.fromkeys((*loops, *term.loops)))
        together = result.plus if isinstance(line, Sum) else result.times
        result = together(other, names.count(loops))
    if numbers:
        result = result + 1.0 if isinstance(line, Sum) else result * 1.0
    return result.sum(elements) if result.elements > elements else result


def _pooled(line: Line) -> Term | None:
    """Return the operand that a line pools by maximum or mean in windows; None where it does not."""
    terms = [term for term in line.right if isinstance(term, Term)]
    if len(terms) != 1 or not terms[0].beyond or len(line.left) != 1:
        return None
    sums = isinstance(line, Product) and not {*terms[0].loops} <= {*line.left[0].loops}
    return terms[0] if sums or (isinstance(line, Op) and entry(line.op).kind == "reduction") else None


_KINDS: dict[type[OperatorCall], Callable[..., TapeTensor]] = {
    Attention: _attention,
    Norm: _norm,
    Loss: _loss,
    LinearLoss: _linear_loss,
    Rotary: _rotary,
    Experts: _experts,
    Dropout: _dropout,
    Embedding: _embedding,
    Mixer: _mixer,
    LineCall: _single,
}
"""The functions of calls with a single result."""

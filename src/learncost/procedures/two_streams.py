"""Rewrite blocks as reversible blocks with two streams, whose inputs are recomputed from their outputs.

A block's branches alternately read one of two streams and add to the other: y1 = x1 + f(x2), y2 = x2 + g(y1). Therefore
x2 = y2 - g(y1) and x1 = y1 - f(x2), and a block saves no tensor for its backward pass. Both streams begin as the first
block's input, and the output of the last block is their mean. Gomez et al. 2017, The reversible residual network,
equations 6 to 8; Kitaev et al. 2020, Reformer, section 3.
"""

from __future__ import annotations

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Meta, Product, Sum
from learncost.ir.loop import Carry, Loop, Statement
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.models.model import Model
from learncost.passes.recompute import Chain, chain_of
from learncost.procedures.places import LinePlace, blocks, stream


def in_two_streams(model: Model, doing: str) -> Model:
    """Return the model with two-stream blocks. Raises `InputError` if a block is not a sequence of branches."""
    chains = {place.repeats[-1].makes: _branches(model, place, doing) for place in blocks(model, doing)}
    lines, values = list[Statement](), dict(model.table.values)
    for line in model.table.lines:
        chain = chains.pop(line.makes, None) if isinstance(line, Loop) else None
        lines += [line] if chain is None or not isinstance(line, Loop) else _twice(line, chain, values)
    if chains:
        raise InputError(f"{doing} needs blocks outside of loops, which {model.configuration.name} does not have")
    return replace(model, table=replace(model.table, lines=tuple(lines), values=values))


def _branches(model: Model, place: LinePlace, doing: str) -> Chain:
    """Return the sums that add branches to the stream in sequence. Raises `InputError` if their number is odd."""
    repeat, on_stream = place.repeats[-1], stream(place, model)
    chain = chain_of(place.lines, repeat.carry[0].start, repeat.carry[0].end) or []
    alone = {line.name for line, _ in chain} | {repeat.carry[0].start} == on_stream
    if len(repeat.carry) > 1 or len(place.repeats) > 1 or not chain or len(chain) % 2 or not alone:
        raise InputError(
            f"{doing} needs blocks of an even number of branches, each added to the stream before the next one reads "
            f"it, which {model.configuration.name} does not have"
        )
    if repeat.repeats:
        raise InputError(
            f"{doing} needs blocks without saved tensors: those of {model.configuration.name} save the results "
            f"of an inner loop, such as the states of a scan"
        )
    return chain


def _twice(repeat: Loop, chain: Chain, values: dict[str, Value]) -> list[Statement]:
    """Return the loop with both streams, and the line of their mean after it; the new names are added to `values`."""
    (carry,) = repeat.carry
    second, names = f"{carry.start}|2", [line.name for line, _ in chain]
    summed = {line.name: (at, of) for (line, at), of in zip(chain, (carry.start, second, *names), strict=False)}
    lines: list[Statement] = []
    for line in repeat.lines:
        if isinstance(line, Sum) and line.name in summed:
            at, of = summed[line.name]
            right = [replace(t, name=of) if i == at and isinstance(t, Term) else t for i, t in enumerate(line.right)]
            lines.append(replace(line, right=tuple(right)))
        else:
            lines.append(line.renamed({carry.start: second}))
    finals, total = (f"{carry.final}|1", f"{carry.final}|2"), f"{carry.final}|both"
    axes, meta = values[carry.final].axes, Meta("streams", local="mean")
    values |= {name: Value(axes, "part", carry.final) for name in (*finals, total)}
    ends = zip((carry.start, second), names[-2:], finals, strict=True)
    carries = tuple(Carry(start, end, carry.initial, final) for start, end, final in ends)
    inner = {**repeat.values, second: repeat.values[carry.start]}
    return [
        replace(repeat, lines=tuple(lines), carry=carries, values=inner),
        Sum((Term(total, axes),), tuple(Term(final, axes) for final in finals), (), meta, (1, 1)),
        Product((Term(carry.final, axes),), (Term(total, axes), Literal(0.5)), (), meta),
    ]

"""Rewrite a forward table for inference: prefill writes the KV cache, decode reads it.

A layer declares the values that are cached for each key position (`cache: K V`). In decode, the lines that compute such
a value run only over the M new positions, their results are appended to the C positions of the cache, and every reader
reads T = C + M keys. Values cached for other positions, such as the encoder's, are only read. A loop over the tokens
begins with the state behind the last one, and a causal convolution reads the last rows of its input.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.displayed import Displayed
from learncost.ir.line import Line, Meta, Op, Product, Sum
from learncost.ir.loop import Loop, Statement, map_loops, walk
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ir.term import Operand, Read, Term
from learncost.ir.value import Value
from learncost.layers.active import of_part
from learncost.layers.layer import Layer, table_of
from learncost.ops import is_log_softmax
from learncost.procedures.decoding import (
    ALL,
    CACHED,
    KEPT,
    RECENT,
    TOKENS,
    CachedValue,
    Decoding,
    axis_of,
    cache,
    kept_axes,
    last_rows,
    lookback,
    meta_of,
)
from learncost.procedures.needed import needed


@dataclass(frozen=True)
class Inference(Displayed):
    """The tables of prefill and decode, with the KV cache.

    Attributes
    ----------
    prefill
        The pass over a prompt. Its outputs are the logits of the last position of each sequence, and the cache; its
        input `last[B]` is the number of that position.
    decode
        One decoding step, which reads the cache. Its outputs are the logits of the new tokens, and the cache with them.
    cache
        The cached values, each with its `name`, its axes, and the `elements` per token.

    Examples
    --------
    >>> tables = lc.inference(lc.layer('''one(X) -> Y
    ...   Y[B M d] = attention(X, X, X; attn, N = M') where M' <= M
    ... '''))
    >>> [(kept.name, str(kept.elements)) for kept in tables.cache]
    [('attn.K.cache', 'h k'), ('attn.V.cache', 'h k')]
    >>> tables.lengths({}, context=100, new=1)
    {'M': 1, 'C': 100, 'T': 101}
    """

    prefill: Table
    decode: Table
    cache: tuple[CachedValue, ...]

    @property
    def remade(self) -> bool:
        """Return whether every step of decode multiplies the cached values of all positions with weights again."""
        all_axes = {axis_of(ALL, array.window) for array in self.cache if array.tokens}
        lines = (line for line, _ in walk(self.decode.lines) if isinstance(line, Product))
        return any(all_axes & set(line.left[0].loops) and set(line.reads) & set(self.decode.weights) for line in lines)

    def lengths(self, sizes: Mapping[str, Any], context: int, new: int) -> dict[str, int]:
        """Return the sizes of the axes of positions: M, C and T, and those of every window."""
        lengths = {TOKENS: new}
        for window in {array.window for array in self.cache if array.tokens}:
            most = context if not window else min(context, _number(window, sizes) - 1)
            lengths |= {axis_of(CACHED, window): most, axis_of(ALL, window): most + new}
        for kept in {array.kept for array in self.cache if array.kept}:
            rows = _number(kept, sizes)
            lengths |= {axis_of(KEPT, kept): rows, axis_of(RECENT, kept): rows + new}
        return lengths


def inference(model: Layer | Table, name: str = "", several: bool = False) -> Inference:
    """Return prefill and decode of a model's forward table, whose tokens have the axes B and M.

    Parameters
    ----------
    model
        The layer or the table.
    name
        The model's name in messages.
    several
        Whether decode runs several new tokens of a sequence at once. Its inputs `seen[M T]` (and `seen.w` for a window
        of w) then select the keys that each of them attends to. One new token attends to the full cache.

    Returns
    -------
    Inference
        The two tables and the cached values.

    Raises
    ------
    InputError
        For a model that cannot decode: its tokens attend to later ones, or a line reads other positions that are not
        cached.

    Examples
    --------
    >>> lc.inference(lc.layer('''one(X) -> Y
    ...   Y[B M d] = attention(X, X, X; attn, N = M') where M' <= M
    ... ''')).remade
    False
    """
    table = model.marked if isinstance(model, Layer) else table_of(model)
    name = name or table.title or "the table"
    forward = to_logits(table)
    decode, cached = Decoding(forward, name, several).table()
    return Inference(_prefill(_last_only(forward), cached), decode, cached)


def _number(window: str, sizes: Mapping[str, Any]) -> int:
    return int(size_of(window, sizes))


# Both share the forward pass up to the logits.


def to_logits(table: Table) -> Table:
    """Return the table up to the logits, without the log-softmax and the loss.

    Logits are the values that lines compare with targets; a table that reads no targets is returned unchanged.
    """
    loss_inputs = {name for name in table.inputs if table.values[name].role in ("share", "sign")}
    compared = {*loss_inputs, *(table.values[name].of for name in loss_inputs)}
    makers = {line.name: line for line in table.lines if isinstance(line, Op)}
    logits: dict[str, None] = {}
    for line in table.lines:
        if compared.intersection(line.reads):
            logits |= {name: None for name in line.reads if name not in compared and name not in table.inputs}
            compared.update(line.makes)
    ops = (makers.get(name) for name in logits)
    logit_names = [op.right[0].name if is_log_softmax(op) else name for name, op in zip(logits, ops, strict=True)]
    return needed(table, tuple(logit_names) or table.outputs)


def scored(table: Table) -> str:
    """Return the name of the class scores that a loss compares with its first targets: logits, or log-probabilities."""
    answers = {value.of for value in table.values.values() if value.role == "share"}
    answers |= {name for name in table.inputs if table.values[name].role == "sign"}
    for line, _ in walk(table.lines):
        if isinstance(line, Line) and answers & set(line.reads):
            return next(term.name for term in line.right if isinstance(term, Term) and term.name not in answers)
    return to_logits(table).outputs[0]


def _last_only(table: Table) -> Table:
    """Return the table with the head only at the last position of each sequence."""
    head_values = {line.name for line in table.lines if isinstance(line, Line) and of_part(line, "head")}
    if not head_values:
        return table

    def cut(term: Operand) -> Operand:
        if not isinstance(term, Term) or TOKENS not in term.axes:
            return term
        if term.name in head_values:
            return Term(term.name, tuple(axis for axis in term.axes if axis != TOKENS))
        return Term(term.name, tuple(Read(a, Term("last", ("B",))) if a == TOKENS else a for a in term.axes))

    lines: list[Statement] = []
    for line in table.lines:
        if isinstance(line, Line) and line.name in head_values:
            left = tuple(term for term in map(cut, line.left) if isinstance(term, Term))
            line = replace(line, left=left, right=tuple(map(cut, line.right)))
        lines.append(line)
    values = {n: v.along(a for a in v.axes if n not in head_values or a != TOKENS) for n, v in table.values.items()}
    values["last"] = Value(("B",), "index")
    return replace(table, lines=tuple(lines), values=values, inputs=(*table.inputs, "last"))


# Prefill.


def _prefill(table: Table, cached: Iterable[CachedValue]) -> Table:
    """Return the forward pass, which also outputs what decode reads: the KV cache, and states."""
    arrays = {array.name: array for array in cached}
    values: dict[str, Value] = {}

    def declared(name: str, axes: tuple[str, ...]) -> Term:
        values[name] = Value(axes, "cache", arrays[name].of)
        return Term(name, axes)

    def copies(line: Statement) -> Iterator[Line]:
        """Yield the lines that keep what a line makes."""
        if isinstance(line, Loop):
            finals = {array.of: array for array in arrays.values() if array.is_state}
            for carry in line.carry:
                if carry.final in finals:
                    left = declared(finals[carry.final].name, line.axes[carry.end])
                    meta = meta_of(line).of_step(f"{carry.start}.cache")
                    yield Sum((left,), (Term(carry.final, left.declared),), (), meta, (1,))
        elif (name := cache(line.name)) in arrays and not arrays[name].kept:
            meta = Meta(line.meta.layer, line.meta.block, local=f"{line.meta.local}.cache", locals=(line.meta.local,))
            meta = replace(meta, module=line.meta.module)
            yield Sum((declared(name, line.left[0].declared),), (line.left[0],), (), meta, (1,))

    def kept(line: Line) -> Iterator[Line]:
        """Yield the lines that keep the last rows of what a line reads."""
        for term in line.right:
            found = lookback(term)
            if found and isinstance(term, Term) and (name := cache(term.name)) in arrays and name not in values:
                place, _, rows = found
                left = declared(name, kept_axes(term, place, rows))
                yield last_rows(left, Term(term.name, term.declared), place, line.meta)

    def whole(lines: Iterable[Statement]) -> Iterator[Statement]:
        for line in lines:
            if isinstance(line, Line):
                yield from kept(line)
            yield line
            yield from copies(line)

    def stacked(loop: Loop) -> Loop:
        lines = tuple(whole(loop.lines))
        made = {name for line in lines for name in line.makes}
        inside = {name: value for name, value in values.items() if name in made}
        values.update({name: value.stacked(loop.count) for name, value in inside.items()})
        keep = (*loop.keep, *((name, name) for name in inside))
        return replace(loop, lines=lines, values={**loop.values, **inside}, keep=keep)

    lines = tuple(whole(map_loops(table.lines, stacked)))
    return needed(replace(table, lines=lines, values={**table.values, **values}), (*table.outputs, *arrays))

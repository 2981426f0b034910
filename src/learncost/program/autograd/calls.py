"""The lines of a scope as calls of a module's operators: projections, norms, attention, experts, a loss.

Calls are recognized by the operations of their lines. A line that is part of no larger call is a separate call, so
that no line is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TypeGuard

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Line, Op, Product, Sum, is_sum_of_products
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.term import Literal, Term

NORMS = ("normalize", "rms_normalize")
SOFTMAX = ("softmax", "softmax_with_sink")


@dataclass(frozen=True)
class OperatorCall:
    """Lines that are one call; `makes` are the results that others read."""

    lines: tuple[Line, ...]
    makes: tuple[Term, ...]

    @property
    def title(self) -> str:
        """Its name in curves and lists."""
        return "+".join(term.name for term in self.makes)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names that it reads from other calls."""
        makes = {name for line in self.lines for name in line.makes}
        return tuple(dict.fromkeys(name for line in self.lines for name in line.reads if name not in makes))


@dataclass(frozen=True)
class LineCall(OperatorCall):
    """A call of a single line."""


@dataclass(frozen=True)
class Projection:
    """A product with a weight: its result, its bias, and the names of A and B of its low-rank path, with DoRA's M."""

    makes: Term
    weight: str
    bias: str = ""
    path: tuple[str, ...] = ("", "")


@dataclass(frozen=True)
class Linear(OperatorCall):
    """Products of one value with weights. Each group is one matrix. `heads`: the results are inputs of attention;
    `whole`: the result of a group is not split, and has the first one's name.
    """

    value: str
    groups: tuple[tuple[Projection, ...], ...]
    heads: bool
    whole: bool = False


@dataclass(frozen=True)
class Norm(OperatorCall):
    """A normalization op, then a scale, which may be one plus the weight, and a shift."""

    op: Op
    weights: tuple[str, ...]
    from_one: bool


@dataclass(frozen=True)
class Loss(OperatorCall):
    """The log-softmax of scores, and the mean over the targets."""

    scores: str
    targets: str


@dataclass(frozen=True)
class LinearLoss(OperatorCall):
    """The head and the loss of its scores, which are computed together; `capped`: the model caps these by tanh."""

    head: Projection
    value: str
    capped: bool


@dataclass(frozen=True)
class Rotary(OperatorCall):
    """A value times a cosine, plus the value with its halves exchanged times a sine."""

    value: str
    cosine: str
    sine: str


@dataclass(frozen=True)
class Attention(OperatorCall):
    """Attention: scores of queries and keys, softmax, product with values.

    pairs    queries and keys whose scores are added, in the lines of `scores`
    values   the operand of the attention probabilities
    added    biases of the scores, without masks
    capped   whether the scores are soft-capped by a tanh
    padded   whether keys are masked
    sink     a weight that is one more logit of every row; ""
    dropped  whether the probabilities have dropout
    """

    pairs: tuple[tuple[str, str], ...]
    scores: tuple[Product, ...]
    values: str
    added: tuple[str, ...]
    capped: bool
    scaled: bool
    padded: bool
    sink: str
    dropped: bool


@dataclass(frozen=True)
class Experts(OperatorCall):
    """The weighted sum of the chosen experts' results for a value.

    scaled   whether the shares scale the experts' operand, in the first line, and not their results
    inward   products of the value with the experts' weights, which are one matrix
    outward  the product back to the model width; the lines between and after it are separate
    paths    A and B of the low-rank paths that are merged into a weight
    """

    value: str
    shares: str
    inward: tuple[Line, ...]
    outward: Line
    scaled: bool
    paths: Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Dropout(OperatorCall):
    """A value times dropout noise."""

    value: str


@dataclass(frozen=True)
class Embedding(OperatorCall):
    """Rows of a weight, with a scale."""


@dataclass(frozen=True)
class Mixer(OperatorCall):
    """All calls of a recurrent layer, which the module writes out as one function."""

    calls: tuple[OperatorCall | Loop, ...]

    @cached_property
    def lines_of(self) -> dict[str, Line]:
        """The lines by the names of their results in the layer's table, those of its loops among them.

        The result of a product with a low-rank path is that of the sum with the path.
        """
        loops = [line for line, _ in walk(call for call in self.calls if isinstance(call, Loop))]
        result: dict[str, Line] = {}
        local_names: dict[str, str] = {}
        for line in (*self.lines, *loops):
            base = local_names.get(line.right[0].name, "") if line.meta.layer == "lora" and line.right else ""
            local = base.removesuffix(".base") if isinstance(line, Sum) and base else line.meta.local
            local_names[line.name] = local
            result[local] = line
        return result


Joins = Callable[[Sequence[Projection]], Sequence[Sequence[Projection]]]
"""A function that groups the projections of a value that are one matrix."""


def reads_experts(line: Line | Loop) -> str:
    """Return the weights of experts that a product gathers; empty if it gathers none."""
    return line.right[1].name if is_sum_of_products(line) and line.right[1].indexed else ""


def _merged(lines: Sequence[Statement]) -> tuple[Sequence[Statement], dict[str, tuple[str, str]]]:
    """Return the lines with low-rank paths of experts in their weights, as peft merges them, and A and B by weight."""
    made = {name: line for line in lines if isinstance(line, Line) for name in line.makes}
    paths: dict[str, tuple[str, str]] = {}
    changed: dict[str, Line | None] = {}
    for line in made.values():
        if not isinstance(line, Sum) or line.meta.layer != "lora":
            continue
        base, scaled = (made.get(term.name) for term in line.right)
        up = made.get(scaled.right[0].name) if scaled else None
        if base and scaled and up and reads_experts(base) and reads_experts(up):
            low = made[up.right[0].name]
            paths[reads_experts(base)] = reads_experts(low), reads_experts(up)
            changed |= {low.name: None, up.name: None, scaled.name: None, line.name: None}
            changed[base.name] = replace(base, left=line.left)
    kept = (changed.get(line.name, line) if isinstance(line, Line) else line for line in lines)
    return [line for line in kept if line] if paths else lines, paths


class CallScope:
    """The calls of the lines of one scope.

    weights  the names that are weights there
    drawn    names of noise
    outputs  names that are read after the scope
    joins    groups projections that are one matrix; with `gathers` all products of a value are adjacent
    """

    def __init__(
        self,
        lines: Sequence[Statement],
        weights: Collection[str],
        drawn: Collection[str],
        outputs: Collection[str],
        joins: Joins,
        gathers: bool,
    ) -> None:
        lines, self.paths = _merged(lines)
        self.lines, self.weights, self.drawn, self.wanted = lines, weights, drawn, outputs
        self.joins, self.gathers = joins, gathers
        self.values = {term.name for line in lines if isinstance(line, Line) for term in line.right} - set(weights)
        self.readers: dict[str, list[Statement]] = {}
        self.makers: dict[str, Line] = {}
        for line in lines:
            for name in line.reads:
                self.readers.setdefault(name, []).append(line)
            if isinstance(line, Line):
                self.makers |= dict.fromkeys(line.makes, line)
        self.attentions = {
            attention.lines[0].name: attention
            for line in lines
            if isinstance(line, Line)
            if (attention := self._attention(line))
        }
        self.heads = {_of(line) for attention in self.attentions.values() for line in attention.lines[:1]}

    def calls(self) -> Iterator[OperatorCall | Loop]:
        """Yield the calls, in the order of their first lines."""
        done: set[str] = set()
        waiting: list[OperatorCall | Loop] = []
        unmade = {name for line in self.lines for name in line.makes}
        for line in self.lines:
            if isinstance(line, Loop):
                waiting.append(line)
            elif line.name not in done:
                waiting.append(call := self._call(line))
                done |= {name for done_line in call.lines for name in done_line.makes}
        waiting = _late(waiting)
        while waiting:  # a call may begin before the operands of its later lines are defined
            ready = next(call for call in waiting if not unmade.intersection(call.reads))
            waiting.remove(ready)
            unmade -= set(_made(ready))
            yield ready

    def _call(self, line: Line) -> OperatorCall:
        if line.name in self.attentions:
            return self.attentions[line.name]
        if not line.right:
            return LineCall((line,), line.left[:1])
        for find in (
            self._linear,
            self._convolution,
            self._embedding,
            self._norm,
            self._loss,
            self._rotary,
            self._experts,
            self._dropout,
        ):
            if call := find(line):
                return call
        return LineCall((line,), line.left[:1])

    def _weight_of(self, line: Statement | None) -> str:
        """Return the weight of a product of a value that sums over features; "" where it is none."""
        if not is_sum_of_products(line):
            return ""
        weights = [term for term in line.right if isinstance(term, Term) and term.name in self.weights]
        return weights[0].name if len(weights) == 1 and not weights[0].indexed and not line.sides.batch else ""

    def _linear(self, line: Line) -> Linear | None:
        if not self._weight_of(line):
            return None
        value = _other(line, self._weight_of(line))
        attended = {name for attention in self.attentions.values() for each in attention.lines for name in each.makes}
        heads = (line.meta.layer, line.meta.module.rpartition(".")[0]) in self.heads and value not in attended
        projections: list[Projection] = []
        lines_of: dict[str, tuple[Line, ...]] = {}
        local_names: set[str] = set()
        for reader in self.readers[value][self.readers[value].index(line) :]:
            of_one = isinstance(reader, Line) and _of(reader) == _of(line)
            if isinstance(reader, Line) and of_one and self._weight_of(reader):
                if reader.meta.local in local_names:  # of another block
                    break
                local_names.add(reader.meta.local)
                projection, lines = self._projection(reader, value)
                if not any(reader.name == other.name for other in lines_of.get(projection.makes.name, ())):
                    projections.append(projection)
                    lines_of[projection.makes.name] = lines
        groups = [tuple(group) for group in self.joins(projections)]
        if not (self.gathers or heads):
            groups = [group for group in groups if any(line in lines_of[projection.makes.name] for projection in group)]
        joined = [projection for group in groups for projection in group]
        lines = tuple(dict.fromkeys(own_line for projection in joined for own_line in lines_of[projection.makes.name]))
        return Linear(lines, tuple(projection.makes for projection in joined), value, tuple(groups), heads)

    def _convolution(self, line: Line) -> Linear | None:
        """Return a product of a weight with windows of a value as a projection; it reads the value itself."""
        if not is_sum_of_products(line):
            return None
        weight = next((t.name for t in line.right if t.name in self.weights and not t.indexed), "")
        source = next((term for term in line.right if weight and term.name != weight), None)
        if not isinstance(source, Term) or not source.indexed or source.name not in self.values:
            return None
        if line.sides.batch and not source.beyond:  # groups are those of windows
            return None
        projection, lines = self._projection(line, source.name, weight)
        return Linear(lines, (projection.makes,), source.name, ((projection,),), False)

    def _projection(self, line: Line, value: str, weight: str = "") -> tuple[Projection, tuple[Line, ...]]:
        """Return a product with its low-rank path and its bias, and all their lines."""
        lines, bias = [line], ""
        path: tuple[str, ...] = ("", "")
        weight = weight or self._weight_of(line)
        added = self._only(line.name, Sum)
        if added and len(added.right) == 2 and (path_lines := self._path(_other(added, line.name), value)):
            lines += [*path_lines, added]
            path = self._weight_of(path_lines[0]), self._weight_of(path_lines[1])
            added = self._only(added.name, Sum)
        elif decomposed := self._decomposed(line, value):
            lines += decomposed.values()
            path = *map(self._weight_of, (decomposed["low"], decomposed["up"])), decomposed["gain"].right[0].name
            added = self._only(lines[-1].name, Sum)
        if added and len(added.right) == 2:
            other = _other(added, lines[-1].name)
            if other in self.weights and not any(term.indexed for term in added.right):
                lines.append(added)
                bias = other
        return Projection(lines[-1].left[0], weight, bias, path), tuple(lines)

    def _path(self, name: str, value: str) -> tuple[Line, Line, Line] | None:
        """Return the lines D = X A, E = D B, S = E scale of a low-rank path that ends in a name."""
        scaled = self.makers.get(name)
        if not (isinstance(scaled, Product) and any(isinstance(term, Literal) for term in scaled.right)):
            return None
        up = self.makers.get(scaled.right[0].name)
        if up is None or not self._weight_of(up):
            return None
        low = self.makers.get(_other(up, self._weight_of(up)))
        if low is None or not self._weight_of(low) or _other(low, self._weight_of(low)) != value:
            return None
        return low, up, scaled

    def _decomposed(self, line: Line, value: str) -> dict[str, Line]:
        """Return the lines of DoRA by their parts, the sum with the product last; empty for any other product."""
        waiting: list[Line] = [
            each for each in self.readers.get(line.name, ()) if isinstance(each, Sum) and each.meta.layer == "lora"
        ]
        parts: dict[str, Line] = {}
        while waiting:
            made = waiting.pop()
            parts[made.meta.local.rpartition(".")[2]] = made
            makers = (self.makers.get(name) for name in made.reads if name != value)
            waiting += [maker for maker in makers if maker and maker.meta.layer == "lora"]
        return dict(reversed(parts.items())) if "gain" in parts else {}

    def _norm(self, line: Line) -> Norm | None:
        if not (isinstance(line, Op) and line.op in NORMS):
            return None
        lines: list[Line] = [line]
        weights: list[str] = []
        from_one = False
        for kind in (Product, Sum):
            following = self._only(lines[-1].name, kind)
            other = _other(following, lines[-1].name) if following and len(following.right) == 2 else ""
            if following is None or not other:
                break
            if other not in self.weights:
                shifted = self.makers.get(other)
                if weights or shifted is None or len(shifted.right) != 2 or shifted.right[0].name not in self.weights:
                    break
                from_one = True
                lines.append(shifted)
                other = shifted.right[0].name
            lines.append(following)
            weights.append(other)
        return Norm(tuple(lines), lines[-1].left[:1], line, tuple(weights), from_one)

    def _loss(self, line: Line) -> Loss | None:
        if not (isinstance(line, Op) and line.op == "log_softmax"):
            return None
        lines: list[Line] = [line]
        targets = ""
        while lines[-1].left[0].axes:
            following = self._only(lines[-1].name, Product)
            if following is None:
                return None
            targets = targets or next((name for name in following.right[0].names[1:]), "")
            lines.append(following)
        return Loss(tuple(lines), lines[-1].left[:1], line.right[0].name, targets)

    def _attention(self, line: Line) -> Attention | None:
        apart = line.meta.operator and "attention" not in line.meta.operator  # such as bmm: a composed attention
        if apart or not self._is_scores(line):
            return None
        lines: list[Line] = [line]
        following: Line | None
        pairs = [(line.right[0].name, line.right[1].name)]
        scores: list[Product] = [line]
        added: list[str] = []
        softmax: Op | None = None
        capped = scaled = padded = dropped = False
        while True:
            following = self._only(lines[-1].name, Line)
            if following is None or any(term.indexed for term in following.right if term.name == lines[-1].name):
                return None
            others = [term.name for term in following.right if term.name and term.name != lines[-1].name]
            lines.append(following)
            if isinstance(following, Sum):
                for name in others:
                    other = self.makers.get(name)
                    at_index = any(term.indexed for term in following.right if term.name == name)
                    if other and self._is_scores(other) and not at_index:
                        pairs.append((other.right[0].name, other.right[1].name))
                        scores.append(other)
                        lines = [*lines[:-1], other, lines[-1]]
                    else:
                        added.append(name)
            elif isinstance(following, Op):
                if following.op in SOFTMAX:
                    softmax = following
                elif following.op == "tanh":
                    capped = True
                elif following.op == "select":
                    padded = True
                else:
                    return None
            elif isinstance(following, Product) and not others:
                scaled = True
            elif softmax and isinstance(following, Product) and len(others) == 1 and others[0] in self.drawn:
                dropped = True
            elif softmax and isinstance(following, Product) and len(others) == 1 and following.sides.sums:
                break
            else:
                return None
        sink = next((term.name for term in softmax.right if term.name in self.weights), "")
        (values,) = others
        return Attention(
            tuple(lines),
            lines[-1].left[:1],
            tuple(pairs),
            tuple(scores),
            values,
            tuple(added),
            capped,
            scaled,
            padded,
            sink,
            dropped,
        )

    def _is_scores(self, line: Line) -> TypeGuard[Product]:
        """Return whether a product of two values sums over features."""
        return is_sum_of_products(line) and all(
            isinstance(term, Term) and term.name not in self.weights and not term.indexed for term in line.right
        )

    def _rotary(self, line: Line) -> Rotary | None:
        added = self._only(line.name, Sum) if isinstance(line, Product) and len(line.right) == 2 else None
        value = line.right[0]
        if added is None or not isinstance(value, Term) or value.name in self.weights:
            return None
        for reader in self.readers[value.name]:
            if (
                reader != line
                and isinstance(reader, Product)
                and added in self.readers.get(reader.name, ())
                and reader.right[0].indexed
            ):
                return Rotary(
                    (line, reader, added), added.left[:1], value.name, line.right[1].name, reader.right[1].name
                )
        return None

    def _experts(self, line: Line) -> Experts | None:
        """Return the call from the first product with gathered experts' weights to the sum over the chosen experts.

        Where the gates scale the operand of that product, the call begins there.
        """
        readers = self.readers.get(line.name, []) if isinstance(line, Product) and len(line.right) == 2 else []
        scaled = any(self._is_expert(reader) and reader.reads[0] == line.name for reader in readers)
        if not scaled and not self._is_expert(line):
            return None
        value = line.name if scaled else line.right[0].name
        lines = [line] if scaled else []
        made_inside: set[str] = set()
        inward: list[Line] = []
        outward: Line | None = None
        for candidate in self.lines:
            if not isinstance(candidate, Line) or candidate.meta.layer != line.meta.layer:
                continue
            if self._is_expert(candidate) and candidate.right[0].name == value:
                inward.append(candidate)
            elif not made_inside & set(candidate.reads):
                continue
            elif self._is_expert(candidate):
                outward = candidate
            elif outward and isinstance(candidate, Product) and candidate.sides.sums:
                others = (term.name for term in candidate.right if isinstance(term, Term))
                shares = next((name for name in others if name not in made_inside), line.right[0].name)
                value = line.right[1].name if scaled else value
                given = value, shares, tuple(inward), outward, scaled, self.paths
                return Experts((*lines, candidate), candidate.left[:1], *given)
            lines.append(candidate)
            made_inside |= set(candidate.makes)
        return None

    def _is_expert(self, line: Line | Loop) -> bool:
        return reads_experts(line) in self.weights

    def _embedding(self, line: Line) -> Embedding | None:
        first = line.right[0]
        if not (isinstance(line, Product) and len(line.right) == 1 and first.indexed and first.name in self.weights):
            return None
        scaled = self._only(line.name, Product)
        if scaled and any(isinstance(term, Literal) for term in scaled.right):
            return Embedding((line, scaled), scaled.left[:1])
        return Embedding((line,), line.left[:1])

    def _dropout(self, line: Line) -> Dropout | None:
        if not (isinstance(line, Product) and len(line.right) == 2 and line.right[1].name in self.drawn):
            return None
        return Dropout((line,), line.left[:1], line.right[0].name)

    def _only(self, name: str, kind: type[Line]) -> Line | None:
        """Return the only line that reads a name, if it is of a kind."""
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and isinstance(readers[0], kind) and name not in self.wanted else None


def _of(line: Line) -> tuple[str, str]:
    """Return the layer and the module of a line; products of different modules are separate calls."""
    return line.meta.layer, line.meta.module


def _other(line: Line, name: str) -> str:
    return next((term.name for term in line.right if term.name != name), "")


def _late(calls: list[OperatorCall | Loop]) -> list[OperatorCall | Loop]:
    """Move embeddings, and calls on them only, before the blocks that read them: a decoder's after the encoder."""
    makers = {name: place for place, call in enumerate(calls) for name in _made(call)}
    early: set[int] = set()
    for place, call in enumerate(calls):
        reads = {makers[name] for name in call.reads if name in makers}
        if isinstance(call, Embedding) or (isinstance(call, LineCall | Norm | Dropout) and reads and reads <= early):
            early.add(place)
    at = list(range(len(calls)))
    readers: dict[int, list[int]] = {}
    for place, call in enumerate(calls):
        for name in call.reads:
            if name in makers:
                readers.setdefault(makers[name], []).append(place)
    starts: dict[str | None, int] = {None: len(calls)}
    for place, call in enumerate(calls):
        if isinstance(call, OperatorCall) and place not in early:
            starts.setdefault(call.lines[0].meta.block, place)
    for place in sorted(early, reverse=True):
        places = [min(at[reader], starts.get(_block(calls[reader]), len(calls))) for reader in readers.get(place, ())]
        at[place] = min(places, default=place)
    return [calls[place] for place in sorted(range(len(calls)), key=lambda place: (at[place], place))]


def _block(call: OperatorCall | Loop) -> str | None:
    return call.lines[0].meta.block if isinstance(call, OperatorCall) else None


def _made(call: OperatorCall | Loop) -> list[str]:
    return list(call.makes) if isinstance(call, Loop) else [name for line in call.lines for name in line.makes]


def local_name(call: OperatorCall | Loop) -> str:
    """Return the name of a call's result in its layer's table."""
    meta = call.lines[-1].meta if isinstance(call, OperatorCall) else None
    return f"{meta.layer}.{meta.local}" if meta else ""

"""The mixers of recurrent models as transformers 5.23 writes them in PyTorch's operators, without fused kernels.

A mixer's function follows the code that it names line by line: what its names hold, what is a view, what is indexed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.line import Line, Op
from learncost.ir.loop import walk
from learncost.ir.table import Table
from learncost.program.autograd.calls import Linear, Mixer, Projection
from learncost.program.autograd.operators import BOOLEAN, FLOAT, TapeTensor, cat, convolution
from learncost.program.autograd.state import ScopeNames, Values


@dataclass(frozen=True)
class MixerScope:
    """The names of a mixer's layer, and the lines that compute them.

    run  a function that runs one of its calls
    """

    names: ScopeNames
    call: Mixer
    values: Values
    run_call: Callable[..., None]

    def at(self, local: str) -> Line:
        """Return the line of a name of the layer, and label what runs next with it."""
        line = self.call.lines_of[local]
        self.names.tape.label = line.name
        return line

    def _product(self, local: str) -> tuple[Linear, Projection]:
        """Return the product that ends in a name, with its call, and without a bias that is added after that name."""
        line = self.at(local)
        call = next(call for call in self.call.calls if isinstance(call, Linear) and line in call.lines)
        projections = {projection.makes.name: projection for group in call.groups for projection in group}
        if line.name in projections:
            return call, projections[line.name]
        biased = next(each.name for each in call.lines if line.name in each.reads and each.name in projections)
        return call, replace(projections[biased], makes=line.left[0], bias="")

    def run(self, *names: str) -> None:
        """Run the products that end in names, each with those of the same matrix, and the norms behind them."""
        for local in names:
            line = self.call.lines_of[local]
            if (unscaled := f"{local}.unscaled") in self.call.lines_of:
                self.run(unscaled)
                self.at(local)
                self.give(local, self.value(unscaled) * 1.0)
            elif norm := next(
                (each for each in self.call.calls if not isinstance(each, Linear) and line in each.lines), None
            ):
                self.run(f"{local}.projected")
                self.run_call(self.names, norm, self.values)
            elif line.name not in self.values:
                call, projection = self._product(local)
                whole = any(projection in group for group in call.groups)
                self.run_call(self.names, call if whole else replace(call, groups=((projection,),)), self.values)

    def joined(self, names: Sequence[str]) -> TapeTensor:
        """Run the products that end in these names as one matrix, whose result may be scaled, and return it."""
        scaled = f"{names[0]}.unscaled" in self.call.lines_of
        products = [self._product(f"{local}.unscaled" if scaled else local) for local in names]
        call, group = products[0][0], tuple(projection for _, projection in products)
        self.run_call(self.names, replace(call, groups=(group,), whole=True), self.values)
        result = self.values[group[0].makes.name]
        return result * 1.0 if scaled else result

    def is_joined(self, local: str, other: str) -> bool:
        """Return whether the products that end in two names are one matrix."""
        call, projection = self._product(local)
        return any(projection in group and self._product(other)[1] in group for group in call.groups)

    def value(self, local: str) -> TapeTensor:
        """Return the value of a name."""
        return self.values[self.call.lines_of[local].name]

    def read(self) -> TapeTensor:
        """Return the mixer's input."""
        return self.names.found(self.call.reads[0], self.values)

    def weight(self, local: str, place: int = 0) -> TapeTensor:
        """Return the weight that a line reads at a place."""
        return self.names.leaf(self.at(local).right[place].name)

    def count(self, local: str) -> int:
        """Return the number of elements of a name."""
        return self.names.count(self.call.lines_of[local].left[0].loops)

    def size(self, axis: str) -> int:
        return self.names.count((axis,))

    def give(self, local: str, tensor: TapeTensor) -> None:
        """Set the value of a name."""
        self.values[self.call.lines_of[local].name] = tensor

    def convolved(self, x: TapeTensor, names: Sequence[str], activated: str) -> TapeTensor:
        """Run `causal_conv1d_fn`: the result of a padded convolution, cut, and activated."""
        projections = [self._product(local)[1] for local in names]
        window = self.names.axes[projections[0].weight][-1]
        elements = x.elements // self.size("M") * (self.size("M") + self.size(window) - 1)
        weight = self.names.leaf(*(projection.weight for projection in projections))
        biases = [projection.bias for projection in projections if projection.bias]
        result = convolution(x, weight, elements, self.names.leaf(*biases) if biases else None).slice(x.elements)
        line = self.at(activated)
        assert isinstance(line, Op)
        return self.names.module.activated(result, line.op)

    def rows(self, x: TapeTensor) -> TapeTensor:
        """Return the operand of a product with a transposed view, whose rows are a copy if there are sequences."""
        return x.copied() if self.size("B") > 1 else x


def selective_state_space(scope: MixerScope) -> None:
    """Run `MambaMixer` with `mamba_selective_scan` of modeling_mamba.py."""
    tape, count, width = scope.names.tape, scope.count, scope.names.tape.width
    scope.run("S", "Z")
    hidden, gate = scope.value("S"), scope.value("Z")
    decay = scope.weight("a").in_float().apply("exp").apply("neg")
    hidden = scope.convolved(hidden, ["V"], "U")
    scope.give("U", scope.rows(hidden))
    scope.run(*"REC")
    entering, read = scope.value("E"), scope.value("C")
    scope.run("T")
    step = scope.value("T").cloned()
    delta = (step + scope.weight("L", 1).to(width)).apply("softplus")
    scope.at("F")
    kept = decay.times(delta, count("G")).apply("exp")
    scope.at("J")
    entered = delta.times(entering.in_float(), count("I"))
    entered_now = entered * hidden.in_float()
    scope.at("h")
    state = tape.new(count("h"))
    results = []
    for _ in tape.iterations(scope.size("M")):
        scope.at("h")
        state = kept.slice(state.elements) * state + entered_now.slice(state.elements)
        scope.at("q")
        at_place = read.slice(read.elements // scope.size("M"))
        results.append(state.to(width).matmul(at_place, count("s") // scope.size("M")))
    scanned = cat(results, elements=count("s"))
    scanned = scanned + hidden * scope.weight("s", 1).in_float()
    scope.at("H")
    scanned = scanned * gate.apply("silu")
    tape.hold(step, delta, entering, read, kept, entered, entered_now, state, *results)
    scope.give("H", scope.rows(scanned.to(width)))
    scope.run("Y")


def _shifted(scope: MixerScope, names: str) -> None:
    """Run `hidden * mix + shifted * (1 - mix)` of every name, and then its projection."""
    hidden = scope.read()
    shifted = hidden.copied()  # nn.ZeroPad2d
    for name in names:
        mix = scope.weight(f"E{name}")
        scope.give(f"F{name}", hidden * mix + shifted * (1.0 + mix.apply("neg")))
    scope.names.tape.hold(hidden, shifted)


def time_mixing(scope: MixerScope) -> None:
    """Run `RwkvSelfAttention` with `rwkv_linear_attention_cpu` of modeling_rwkv.py."""
    tape, count, width = scope.names.tape, scope.count, scope.names.tape.width
    _shifted(scope, "KVR")
    scope.run(*"KVR")
    key, value, gate = scope.value("K"), scope.value("V"), scope.value("R")
    gate = gate.apply("sigmoid")
    scope.at("y")
    at_place = count("s")
    result = tape.new(key.elements)
    numerator, denominator, exponent = (tape.new(at_place, FLOAT) for _ in range(3))
    decay = scope.weight("e").apply("exp").apply("neg")
    first = scope.weight("s")
    for _ in tape.iterations(scope.size("M")):
        scope.at("q")
        now, entered = key.slice(at_place).in_float(), value.slice(at_place)
        largest = exponent.maximum(now + first)
        before, new = (exponent + largest).apply("exp"), (now + first + largest).apply("exp")
        scope.at("y")
        above, below = before * numerator + new * entered, before * denominator + new
        result = result.set_slice(above.divided(below).to(width))
        scope.at("P")
        largest = (exponent + decay).maximum(now)
        before, new = (exponent + decay + largest).apply("exp"), (now + largest).apply("exp")
        scope.at("a")
        numerator, denominator = before * numerator + new * entered, before * denominator + new
        exponent = largest
    scope.at("O")
    scope.give("O", gate * result)
    tape.hold(key, value, gate, numerator, denominator, exponent, before, new, above, below, now, entered)
    scope.run("Y")


def channel_mixing(scope: MixerScope) -> None:
    """Run `RwkvFeedForward` of modeling_rwkv.py."""
    _shifted(scope, "KR")
    scope.run("K")
    scope.give("H", scope.value("K").apply("relu").pow())
    scope.run("V")
    scope.run("R")
    gate = scope.value("R").apply("sigmoid")
    scope.at("Y")
    scope.give("Y", gate * scope.value("V"))


def _segment_sum(x: TapeTensor, length: int) -> TapeTensor:
    """Run `segment_sum`, between two masks of booleans."""
    masks = [x.tape.new(length * length, BOOLEAN) for _ in range(2)]
    masked = x.expanded(x.elements * length).masked(masks[0])
    result = masked.cumsum().masked(masks[1])
    x.tape.hold(masked)
    return result


def _product(left: TapeTensor, right: TapeTensor, elements: int, copied: Sequence[bool] = (True, True)) -> TapeTensor:
    """Run `einsum` of two operands as `bmm`, whose operands in another layout are copied, as is its gradient."""
    first, second = (x.cloned() if copies else x for x, copies in zip((left, right), copied, strict=True))
    result = first.matmul(second, elements).viewed()
    left.tape.hold(first, second)
    return result


def state_space_duality(scope: MixerScope) -> None:
    """Run `Mamba2Mixer` with `mamba2_chunk_scan` of modeling_mamba2.py."""
    tape, count = scope.names.tape, scope.count
    names = ("Z", "PX", "PB", "PC", "PT")
    gate, *projected, step = scope.joined(names).split([count(name) for name in names])
    widths = [one.elements for one in projected]
    decay = scope.weight("a").in_float().apply("exp").apply("neg")
    mixed = cat(projected, views=gate.storage)
    mixed = scope.convolved(mixed, ("QX", "QB", "QC"), "U")
    hidden, entering, read = mixed.split(widths)
    scope.at("delta")
    delta = (step + scope.weight("L", 1).to(step.width)).apply("softplus").apply("clamp")
    scanned = _chunk_scan(scope, hidden.in_float(), delta, decay, entering.in_float(), read.in_float())
    variance = None
    scope.at("R")
    if "N" in scope.call.lines_of:
        scope.at("N")
        scanned = scanned * gate.in_float().apply("silu")
        variance = scanned.pow().mean(count("L") // scope.size(scope.at("L").left[0].loops[-1]))
        scanned = scanned * (variance + 1e-6).apply("rsqrt")
        scope.at("R")
        scanned = scope.weight("R", 1) * scanned
    else:
        scanned = scanned * gate.apply("silu")
    scope.give("R", scanned.to(tape.width))
    tape.hold(gate, step, decay, mixed, hidden, entering, read, delta, variance)
    scope.run("Y")


def _chunk_scan(
    scope: MixerScope, hidden: TapeTensor, delta: TapeTensor, decay: TapeTensor, entering: TapeTensor, read: TapeTensor
) -> TapeTensor:
    """Run `mamba2_chunk_scan`, with sequences padded to chunks."""
    length, places = scope.names.module.chunk, scope.size("M")
    chunks = -(-places // length)
    batch, heads = scope.size("B"), scope.count("F") // scope.size("B") // places
    width, inside = hidden.elements // scope.count("F"), scope.count("h") * places // scope.count("J")
    rows = batch * chunks * length * heads  # of places and heads; functional.pad copies even where it adds nothing
    alone = batch * chunks == 1  # then a product's operands are views
    entering, read = (x.copied(scope.count("F") * inside) for x in (entering, read))  # repeat_interleave
    scope.at("s")
    residual = hidden.copied(rows * width) * scope.weight("s", 1)
    scope.at("J")
    hidden = hidden * delta.in_float()
    scope.at("F")
    decays = decay * delta.in_float()
    hidden, decays, entering, read = (
        x.copied(rows * each) for x, each in ((hidden, width), (decays, 1), (entering, inside), (read, inside))
    )
    sums = decays.cumsum()
    kept = _segment_sum(decays, length).apply("exp")
    scope.at("q")
    scores = _product(read, entering, rows * length, (not alone, not alone))
    weights = scores * kept
    inner = _product(weights, hidden, rows * width, (False, chunks > 1))  # whose positions are innermost
    scope.at("h")
    last = (sums.slice(rows // length) + sums).apply("exp")
    decayed = entering * last
    states = _product(decayed, hidden, rows // length * width * inside, (not alone, chunks > 1))
    first = states.tape.new(states.elements // chunks, FLOAT)
    states = cat((first, states))
    ends = sums.slice(rows // length).copied(batch * heads * (chunks + 1))
    between = _segment_sum(ends, chunks + 1).apply("exp")
    every = _product(between, states, states.elements, (False, batch > 1))
    states = every.slice(states.elements - first.elements)
    out = sums.apply("exp")
    scope.at("q")
    across = _product(read, states, rows * width, (not alone, chunks > 1))
    outer = across * out
    result = (inner + outer).cloned()
    scope.at("O")
    result = result + residual
    variables = (hidden, decays, entering, read, sums, kept, scores, weights, inner, last, decayed, states, first, ends)
    result.tape.hold(*variables, between, every, out, across, outer)
    return result if rows * width == scope.count("J") else result.slice(scope.count("J"))


def gated_delta_net(scope: MixerScope) -> None:
    """Run `Qwen3NextGatedDeltaNet`, or `Qwen3_5GatedDeltaNet`, whose matrices are separate."""
    tape, values = scope.names.tape, ("PQ", "PK", "PV")
    widths = [scope.count(name) for name in values]
    if scope.is_joined("PQ", "Z"):  # heads of queries, keys, values and gates in turn
        parts = scope.joined((*values, "Z")).split([*widths, scope.count("Z")])
        parts += scope.joined(("PB", "PA")).split([scope.count("PB")] * 2)
        query, key, value, gate, rate, step = (one.copied() for one in parts)
        mixed = cat((query, key, value))
    else:
        mixed, *parts = (scope.joined(names) for names in (values, ("Z",), ("PB",), ("PA",)))
        gate, rate, step = parts
    mixed = scope.convolved(mixed, ("CQ", "CK", "CV"), "SQ")
    query, key, value = mixed.split(widths)
    scope.at("b")
    rate = rate.apply("sigmoid")
    scope.at("F")
    decay = scope.weight("a").in_float().apply("exp").apply("neg")
    decay = decay * (step.in_float() + scope.weight("L", 1)).apply("softplus")
    scanned = _delta_scan(scope, query, key, value, decay, rate)
    scope.at("N")
    inner = scanned.in_float()
    variance = inner.pow().mean(inner.elements // scope.size("p"))
    normed = inner * (variance + 1e-6).apply("rsqrt")
    scope.at("R")
    gained = scope.weight("R", 1) * normed.to(tape.width)
    scope.at("H")
    gated = gained * gate.in_float().apply("silu")
    scope.give("H", gated.to(tape.width))
    tape.hold(query, key, value, gate, rate, step, mixed, decay, scanned, variance, *parts)
    scope.run("Y")


DELTA_CHUNK = 64
"""The chunk_size of transformers' `torch_chunk_gated_delta_rule`, which no model sets."""


def _unit(x: TapeTensor, rows: int) -> TapeTensor:
    """Run `l2norm`."""
    return x * ((x * x).sum(rows) + 1e-6).apply("rsqrt")


def _delta_scan(
    scope: MixerScope, query: TapeTensor, key: TapeTensor, value: TapeTensor, decay: TapeTensor, rate: TapeTensor
) -> TapeTensor:
    """Run `torch_chunk_gated_delta_rule`."""
    tape, places, each = scope.names.tape, scope.count("b"), scope.size("n")
    width, inner, chunks = query.width, scope.size("p"), -(-scope.size("M") // DELTA_CHUNK)
    rows = places // scope.size("M") * chunks * DELTA_CHUNK  # of places and heads, padded
    scope.at("Q")
    if query.elements < places * each:
        query, key = (x.copied(places * each) for x in (query, key))  # repeat_interleave
    query, key, value, rate, decay = (x.in_float() for x in (query, key, value, rate, decay))
    query, key = _unit(query, places), _unit(key, places)
    query = query * 1.0
    scope.at("F")
    query, key, value = (x.copied(rows * size) for x, size in ((query, each), (key, each), (value, inner)))
    rate, decay = (x.copied(rows) for x in (rate, decay))
    entering, learned = value * rate, key * rate
    sums = decay.cumsum()
    pairs = sums.plus(sums, rows * DELTA_CHUNK).masked(tape.new(DELTA_CHUNK**2, BOOLEAN)).apply("exp")
    scope.at("m")
    # in float nothing before has put heads before positions; padding would
    laid = rows == places and width == FLOAT and scope.size("B") * chunks > 1
    system, inside = (_product(x, key, rows * DELTA_CHUNK, (laid, laid)) * pairs for x in (learned, query))
    decayed = learned * sums.apply("exp")
    new, known = system.solved(entering), system.solved(decayed)
    scope.at("h")
    part = rows // chunks * inner
    state, result = tape.new(rows // chunks // DELTA_CHUNK * each * inner, FLOAT), tape.new(rows * inner, FLOAT)
    query, ends = query * sums.apply("exp"), sums.slice(rows // DELTA_CHUNK)
    key = key * (ends + sums).apply("exp")
    last = ends.apply("exp")

    def advanced(result: TapeTensor, state: TapeTensor) -> tuple[TapeTensor, ...]:
        scope.at("e")
        now = new.slice(part) + known.slice(known.elements // chunks).matmul(state, part)
        scope.at("o")
        across = _product(query.slice(query.elements // chunks), state, part, (laid, False))
        return result.set_slice(across + inside.slice(inside.elements // chunks).matmul(now, part)), now

    result, now = advanced(result, state)
    for _ in tape.iterations(chunks - 1):  # the last chunk's state is dropped
        scope.at("h")
        kept = state * last.slice(last.elements // chunks)
        state = kept + _product(key.slice(key.elements // chunks), now, state.elements, (laid, False))
        result, now = advanced(result, state)
    tape.hold(query, key, value, rate, decay, entering, learned, sums, pairs, system, inside, decayed, new, known)
    tape.hold(state, ends, last, now)
    return result.slice(places * inner).to(width)


MIXERS: Mapping[str, Callable[[MixerScope], None]] = {
    "gated_delta_net": gated_delta_net,
    "selective_state_space": selective_state_space,
    "state_space_duality": state_space_duality,
    "time_mixing": time_mixing,
    "channel_mixing": channel_mixing,
}
"""The functions of layers."""

RECURRENCES = (
    "Recurrences run operator by operator, without the kernels of mamba_ssm, causal_conv1d, flash-linear-attention and "
    "RWKV"
)
"""The note on the code of recurrences."""


def has_recurrences(table: Table) -> bool:
    """Return whether a table has a layer of a recurrent model."""
    return any(line.meta.layer in MIXERS for line, _ in walk(table.lines))

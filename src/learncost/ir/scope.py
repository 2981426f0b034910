"""Name binding, from parsed lines to a checked table: values get versions and declared axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import NotationError, advice, close_to
from learncost.ir.line import Line, Op, Product, Sum
from learncost.ir.line_reader import twice
from learncost.ir.loop import Carry, Loop, Statement, walk
from learncost.ir.parsed import OWN_NAMES, Header, LayerCall, Parsed, ParsedLoop
from learncost.ir.polynomial import base, names_of_sizes
from learncost.ir.table import Table
from learncost.ir.term import Literal, Operand, Read, Term
from learncost.ir.value import Value


def settle(line: Line, declared: Mapping[str, tuple[str, ...]]) -> Line:
    """Rename the axes of a line to those that its values declare; a single N' becomes N.

    Axes keep their primes where possible: among the axes of one size, the one with the fewest primes becomes unprimed.
    """
    sizes: dict[str, str] = {}
    order = list(line.loops)
    line = line.with_changed(where=tuple(c for c in line.where if c.axes <= set(order)))
    if not any("'" in axis for axis in order) and all(declared.get(t.name, t.axes) == t.axes for t in line.terms):
        return line
    for term in line.terms:
        axes = declared.get(term.name)
        if axes is None:
            continue
        for axis, name in zip(term.axes, axes, strict=True):
            if not isinstance(axis, str):
                continue
            if sizes.setdefault(axis, base(name)) != base(name):
                raise NotationError(
                    f"axis {axis} has the size of {sizes[axis]} and of {base(name)}; "
                    f"a second axis of the same size is {axis}', as in a square matrix W[{axis} {axis}']",
                    str(line),
                )
    groups: dict[str, list[str]] = {}
    for axis in order:
        groups.setdefault(sizes.get(axis, base(axis)), []).append(axis)
    renaming = {}
    for size, members in groups.items():
        members.sort(key=lambda axis: (base(axis) != size, axis.count("'"), order.index(axis)))
        for primes, axis in enumerate(members):
            renaming[axis] = size + "'" * primes
    if changed := {a: b for a, b in renaming.items() if a != b}:
        line = line.renamed({}, changed)
    return line.with_changed(right=tuple(_labelled(term, declared) for term in line.right))


def _labelled(term: Operand, declared: Mapping[str, tuple[str, ...]]) -> Operand:
    """Rename the axes that a term reads at an index to those that its value declares."""
    if isinstance(term, Literal) or not term.indexed or term.name not in declared:
        return term
    pairs = zip(term.axes, declared[term.name], strict=True)
    return Term(term.name, tuple(Read(name, axis.at) if isinstance(axis, Read) else axis for axis, name in pairs))


def show_declared(line: Line, declared: Mapping[str, tuple[str, ...]]) -> Line:
    """Rename a derived line so that its left side shows the declared axes of the result."""
    term = line.left[0]
    want = declared[term.name]
    pairs = zip(term.axes, want, strict=True)
    swap = {axis: name for axis, name in pairs if isinstance(axis, str) and axis != name}
    free = [axis for axis in swap if axis not in swap.values()]
    for name in tuple(swap.values()):
        if name in line.loops and name not in swap:
            swap[name] = free.pop(0)
    if not swap and term.declared == want:
        return line
    line = line.renamed({}, swap)
    # An axis written at an index keeps its declared name, even where a loop axis has that name, too.
    pairs = zip(line.left[0].axes, want, strict=True)
    axes = tuple(Read(name, axis.at) if isinstance(axis, Read) else axis for axis, name in pairs)
    return replace(line, left=(Term(term.name, axes), *line.left[1:]))


def check_shape(line: Line) -> None:
    """Raise `NotationError` for a line of a layer whose axes do not match."""
    left = set(line.left[0].loops)
    right = {axis for term in line.right for axis in term.loops}
    if (missing := sorted(left - right)) and line.right and not isinstance(line, Op):
        parted = "; axes are separated by spaces, as in Y[B M d]" if len(missing[0]) > 1 else ""
        raise NotationError(f"axis {missing[0]} on the left is not on the right{parted}", str(line))
    if isinstance(line, Product):
        numbers = [term for term in line.right if isinstance(term, Literal)]
        reduces = numbers and len(line.right) == len(numbers) + 1  # a number next to a single value means a sum
        for axis in sorted(right - left) if not reduces else ():
            if sum(axis in term.loops for term in line.right) == 1:
                raise NotationError(
                    f"axis {axis} is summed but occurs in one factor only{_reduced(line, axis)}", str(line)
                )
    elif isinstance(line, Sum):
        for term in line.right:
            if extra := sorted(set(term.loops) - left):
                raise NotationError(f"axis {extra[0]} of {term} is not on the left", str(line))
    elif isinstance(line, Op):
        for axis in line.axes:
            if axis not in right:
                raise NotationError(f"{line.op} acts on axis {axis}, which no operand has", str(line))
            if line.axes.count(axis) > 1:
                raise NotationError(f"axis {axis} occurs twice in {line.op}[{' '.join(line.axes)}]", str(line))
    if line.left[0].indexed and not isinstance(line, Product):
        raise NotationError("only a product may have an index on the left", str(line))
    for condition in line.where:
        if condition.lower == condition.upper:
            raise NotationError(f"where {condition}: two different axes are needed, or an axis and a number", str(line))


def _reduced(line: Product, axis: str) -> str:
    """Return the correction for a sum or a mean of a single value, or of one factor before the product."""
    (term, *more) = line.right
    if line.left[0].indexed:
        return ""
    if more:
        term = next(factor for factor in line.right if axis in factor.loops)
        if term.indexed:
            return ""
        first = f"S[{' '.join(axis_left for axis_left in term.loops if axis_left != axis)}]"
        return f"; sum it first: {first} = sum[{axis}]({term}), then {first} in its place"
    over = " ".join(axis_summed for axis_summed in term.loops if axis_summed not in line.left[0].loops)
    return f"; write {line.left[0]} = sum[{over}]({term}), or mean[{over}]({term})"


Axes = Mapping[str, tuple[str, ...]]
AxesOf = Callable[[str], tuple[str, ...] | None]
Check = Callable[[Line], Line]


@dataclass(frozen=True)
class Expanded:
    """The expansion of a call of a layer.

    lines    its lines and loops, under the caller's names and axes
    weights  the weights that it adds
    drawn    the inputs that it adds: masks
    roles    the roles of the caller's names that the layer declares
    made     the names of values that the lines define and the caller does not name
    """

    lines: tuple[Parsed, ...]
    weights: tuple[str, ...]
    drawn: tuple[str, ...]
    roles: Mapping[str, Value]
    made: frozenset[str] = frozenset()


Expand = Callable[[LayerCall, AxesOf], Expanded]


def bind(
    header: Header,
    parsed: Iterable[Parsed],
    check: Check | None = None,
    expand: Expand | None = None,
    roles: Mapping[str, Value] = {},
) -> Table:
    """Return the table of a header and its lines.

    `check` may refuse or complete a line once its axes are known; `expand` returns the expansion of a call of a layer;
    `roles` are the declared roles of inputs, such as constants, which have no gradient.
    """
    parsed = tuple(parsed)
    scope = _TableScope(header, check, expand, _read_outside(parsed))
    scope.roles |= roles
    lines = scope.statements(parsed)
    for name in header.outputs:
        if name not in scope.current:
            raise NotationError(f"the output {name} is never defined", header.name)
        if scope.current[name] in (*header.inputs, *header.weights):
            raise NotationError(f"the output {name} is an input that no line assigns", header.name)
    for name in (*header.inputs, *header.weights):
        if name not in scope.axes and name not in scope.indices:
            raise NotationError(f"{name} is declared in the header of {header.name} and never read")
    if learned := [name for name in scope.weights if name in scope.indices]:
        raise NotationError(f"{learned[0]} is read as an index: declare it as an input, not as a weight", header.name)
    _check_names(header, scope.added, lines)
    return Table(
        lines,
        scope.valued(scope.axes),
        (*header.inputs, *scope.drawn),
        tuple(scope.weights),
        tuple(scope.current[name] for name in header.outputs),
        title=header.name,
    )


def _check_names(header: Header, added: Mapping[str, str], lines: Iterable[Statement]) -> None:
    """Raise `NotationError` for a size of no axis, and for a name of the header or of a call that is also a size."""
    every = [*walk(lines)]
    axes = {
        base(axis): line for line, _ in reversed(every) for axis in (*line.loops, *(a.axis for a in line.indexed_axes))
    }
    counts = {size: line for line, nest in reversed(every) for size in (*nest.counts, *line.windows)}
    for name in (*header.inputs, *header.weights, *added):
        if name in axes or name in counts:
            kind = "an axis" if name in axes else "a size"
            place = "weight of the call" if name in added else "name of the header"
            text = added.get(name) or str(axes.get(name) or counts[name])
            raise NotationError(f"{name} is {kind} and a {place}: rename one of them", text)
    for line, _ in every:
        operands = (*line.right, *(axis.at for axis in line.indexed_axes))
        sizes_read = (size for operand in operands if not isinstance(operand, Term) for size in operand.sizes)
        sizes = {name for size in sizes_read for name in names_of_sizes(size) if not name.isdigit()}
        if isinstance(line, Op) and line.opaque:
            flops = (line.opaque.flops(part) for part in ("body", "gradient"))
            sizes |= {size for count in flops if count for size in count.sizes}
        if unknown := sorted(sizes - {*axes, *counts}):
            near = close_to(unknown[0], axes) or next(iter(axes), "")
            hint = f"; write the size of one, such as #{near}" if near else ""
            raise NotationError(f"#{unknown[0]} is not the size of an axis of {header.name}{hint}", str(line))


def _read_outside(parsed: Iterable[Parsed]) -> frozenset[str]:
    names: set[str] = set()
    for line in parsed:
        names.update(line.reads if isinstance(line, Line) else line.weights if isinstance(line, LayerCall) else ())
    return frozenset(names)


class _TableScope:
    """The names of a table while its lines are read in order; a loop opens an inner scope."""

    def __init__(self, header: Header, check: Check | None, expand: Expand | None, outside: frozenset[str]) -> None:
        self.given = frozenset((*header.inputs, *header.weights))
        self.weights = list(header.weights)
        self.drawn: list[str] = []
        self.stacked: dict[str, None] = {}  # weights that earlier loops stack, one per iteration
        self.called: dict[str, str] = {}  # for a weight that a call adds: the call's argument, one name for all
        self.added: dict[str, str] = {}  # the same: the text of the call
        self.roles: dict[str, Value] = {}
        self.check = check
        self.expand = expand
        self.outside = outside  # names that lines outside of loops read: a weight among them is shared
        self.current: dict[str, str] = {name: name for name in self.given}
        self.versions: dict[str, int] = {}
        self.first: dict[str, str] = {}  # for a version: the name without its number
        self.taken: set[str] = set(self.given)  # names in use
        self.axes: dict[str, tuple[str, ...]] = {}
        self.indices: set[str] = set()
        self.values: set[str] = set()

    def version(self, name: str) -> str:
        """Return a unique name for a result: the second X is X.2, unless that name is in use."""
        version = name
        while version in self.taken:
            self.versions[name] = self.versions.get(name, 1) + 1
            version = f"{name}.{self.versions[name]}"
        self.taken.add(version)
        self.first[version] = name if version != name else ""
        return version

    def statements(self, parsed: Iterable[Parsed]) -> tuple[Statement, ...]:
        result: list[Statement] = []
        for line in parsed:
            if isinstance(line, ParsedLoop):
                result.append(self.repeat(line))
            elif isinstance(line, Line):
                result.append(self.line(line))
            else:
                result.extend(self.statements(self.call(line)))
        return tuple(result)

    def hint(self, name: str) -> str:
        """Return the name that was probably meant by an undefined one."""
        near = next((candidate for candidate in self.current if candidate.lower() == name.lower()), None)
        return f"; there is {near}" if near else "; declare an input or a weight in the header, name(inputs; weights)"

    def call(self, call: LayerCall) -> tuple[Parsed, ...]:
        if self.expand is None:
            raise NotationError(f"no layer is called {call.layer!r} here", call.text)
        for name in call.arguments:
            if name not in self.current:
                raise NotationError(f"{name} is not defined before it is read", call.text)
        expansion = self.expand(call, lambda name: self.axes.get(self.current.get(name, "")))
        if call.is_own and (twice := sorted(expansion.made & self.taken)):
            problem = f"{twice[0]} is a value of {call.layer} and of this layer: give a prefix in place of {OWN_NAMES}"
            raise NotationError(problem, call.text)
        self.roles |= {name: value for name, value in expansion.roles.items() if name not in self.roles}
        for name in (*expansion.weights, *expansion.drawn):
            if name not in self.given:
                if name in self.taken:
                    raise NotationError(f"{name} is a value already: rename the weight of {call.layer}", call.text)
                self.given |= {name}
                self.current[name] = name
                self.taken.add(name)
                (self.drawn if name in expansion.drawn else self.weights).append(name)
                self.called[name] = call.weights[0] if len(call.weights) == 1 else name
                self.added[name] = call.text
        return expansion.lines

    def valued(self, axes: Axes) -> dict[str, Value]:
        """Return the values of names with these axes."""
        return {name: self.value(name, name_axes) for name, name_axes in axes.items()}

    def value(self, name: str, axes: tuple[str, ...]) -> Value:
        has_role = name in self.roles and name in self.given and name not in self.weights
        if name in self.indices:
            value = self.roles[name] if has_role else Value(axes)
            return value.along(axes) if value.role in ("kind", "end") else Value(axes, "index")
        return self.roles[name].along(axes) if has_role else Value(axes, of=self.first.get(name, ""))

    def line(self, line: Line) -> Line:
        for name in line.reads:
            if name not in self.current:
                hint = (advice(str(line)) if "." in name else "") or self.hint(name)
                raise NotationError(f"{name} is not defined before it is read{hint}", str(line))
        meta, called = line.meta, bool(line.meta.local)  # the lines of a called layer were checked there
        line = line.with_changed(
            meta=meta if called else replace(meta, local=line.name, locals=tuple(t.name for t in line.right)),
            right=tuple(t.renamed(self.current) for t in line.right),
            left=tuple(_reading(t, self.current) for t in line.left),
        )
        loops = set(line.loops)
        for condition in line.where:
            if unknown := sorted(condition.axes - loops):
                raise NotationError(f"where {condition}: axis {unknown[0]} is not in the line", str(line))
        if not called:
            self.check_counts(line)
        line = settle(line, self.axes)  # first, so that a new name declares axes of known values
        known = len(self.axes)
        for term in line.right:
            if isinstance(term, Term):
                self.meet(term, line, index=False)
        for term in line.left:
            for axis in term.indexed_axes:
                if isinstance(axis.at, Term):
                    self.meet(axis.at, line, index=True)
        read = [term.name for term in line.terms]
        if len(self.axes) > known and len({*read}) < len(read):  # two reads of a new name have the same axes
            line = settle(line, self.axes)
        if not called or line.where:
            check_shape(line)
        if self.check:
            line = self.check(line)
        names = {term.name: self.version(term.name) for term in line.left}
        for term in line.left:
            self.current[term.name] = names[term.name]
            self.declare(Term(names[term.name], term.axes), line)
        return line.with_changed(left=tuple(Term(names[t.name], t.axes) for t in line.left))

    def check_counts(self, line: Line) -> None:
        """Check that every name is read with as many axes as it declares."""
        first_axes: dict[str, tuple[str, ...]] = {}
        for term in line.terms:
            declared = (
                self.axes[term.name] if term.name in self.axes else first_axes.setdefault(term.name, term.declared)
            )
            if len(declared) != len(term.axes):
                text = f"{term.name}[{' '.join(declared)}] is read with {len(term.axes)} axes"
                if len(declared) > len(term.axes) and term.beyond:
                    text += "; write an index before another axis in parentheses, as y=(i + u) in [y=(i + u) x]"
                raise NotationError(text, str(line))

    def declare(self, term: Term, line: Line) -> None:
        """Declare the axes of a name, those of the line in which it occurs first."""
        if len(set(term.declared)) < len(term.axes):
            raise NotationError("".join(twice(term)), str(line))
        self.axes[term.name] = term.declared

    def meet(self, term: Term, line: Line, index: bool) -> None:
        """Record a read: the first one of a name declares its axes, later ones must have as many."""
        if term.name not in self.axes:
            self.declare(term, line)
        (self.indices if index else self.values).add(term.name)
        if term.name in self.indices and term.name in self.values:
            raise NotationError(f"{term.name} is read both as a value and as an index", str(line))
        for axis in term.indexed_axes:
            if isinstance(axis.at, Term):
                self.meet(axis.at, line, index=True)

    def repeat(self, block: ParsedLoop) -> Loop:
        for handed in block.carry:
            if handed.initial not in self.current:
                raise NotationError(f"{handed.initial} is carried but not defined before", block.text)
        outer, outer_axes = dict(self.current), dict(self.axes)
        shared = frozenset((*block.shared, *(handed.initial for handed in block.carry))) | self.outside
        slices = self.slices(block)
        starts = [self.start(handed) for handed in block.carry]
        sliced = [name for name in self.stacked if self.is_own(name, block, shared)]
        self.axes |= {name: self.axes[name][1:] for name in sliced if self.axes[name][:1] == (block.count,)}
        outside = self.outside
        self.outside |= _read_outside(block.lines)  # inner loops share the values that these lines read
        lines = self.statements(block.lines)
        self.outside = outside
        carry = [self.handed(handed, start, outer, block) for handed, start in zip(block.carry, starts, strict=True)]
        inner_axes = {n: a for n, a in self.axes.items() if n not in outer_axes or n in starts}
        read = dict.fromkeys(name for line in lines for name in line.reads)
        stackable = {*self.weights, *self.drawn}
        each = tuple(name for name in read if name in stackable and self.is_own(name, block, shared))
        for name in each:
            inner_axes[name] = self.axes[name]
        kept_pairs = [(new, self.kept(old, outer, block)) for new, old in block.keep]
        self.current = {name: name for name in (*self.weights, *self.drawn)} | outer
        self.axes = outer_axes
        values = self.valued(inner_axes)
        self.stacks(slices, inner_axes, block)
        for name in read:
            if name in self.given and name not in self.axes:
                self.axes[name] = (block.count, *inner_axes[name]) if name in each else inner_axes[name]
                if name not in each and name not in starts:
                    values.pop(name, None)
        self.stacked |= dict.fromkeys(each)
        for place, handed in enumerate(block.carry):
            final = self.current[handed.final] = self.version(handed.final)
            self.axes[final] = self.axes.setdefault(carry[place].initial, inner_axes[starts[place]])
            carry[place] = replace(carry[place], final=final)
        keep = []
        for new, inside in kept_pairs:
            self.current[new] = self.version(new)
            self.axes[self.current[new]] = (block.count, *inner_axes[inside])
            keep.append((inside, self.current[new]))
        pairs = (*((n, n) for n in each), *slices)
        return Loop(block.count, lines, values, tuple(carry), pairs, tuple(keep), block.backwards)

    def is_own(self, name: str, block: ParsedLoop, shared: frozenset[str]) -> bool:
        """Return whether a weight, or a mask, is stacked, one per iteration."""
        return not {name, self.called.get(name)} & shared if block.own is None else name in block.own

    def start(self, handed: Carry) -> str:
        """Return the name of a loop-carried value at the start of an iteration: its outer name, or a new one."""
        initial = self.current[handed.initial]
        if handed.start == handed.initial:
            return initial
        start = self.current[handed.start] = self.version(handed.start)
        if initial in self.axes:
            self.axes[start] = self.axes[initial]
        return start

    def handed(self, handed: Carry, start: str, outer: Mapping[str, str], block: ParsedLoop) -> Carry:
        """Return a loop-carried value; it must be read and assigned inside, with the same axes."""
        name, end = handed.initial, self.current.get(handed.end, start)
        if end == start:
            raise NotationError(f"{name} is carried but never assigned", block.text)
        if start not in self.axes:
            raise NotationError(f"{name} is carried but never read as it comes in", block.text)
        if _bases(self.axes[end]) != _bases(self.axes[start]):
            first, last = " ".join(self.axes[start]), " ".join(self.axes[end])
            raise NotationError(f"{name} starts an iteration with axes {first} and ends it with {last}", block.text)
        return Carry(start, end, outer[name], handed.final)

    def slices(self, block: ParsedLoop) -> tuple[tuple[str, str], ...]:
        """Bind `each x=X`: x is a new name inside, an iteration's slice of the stack X."""
        pairs = []
        for new, old in block.each:
            if old not in self.current:
                raise NotationError(f"{old} is not defined before it is read", block.text)
            if new in self.current:
                raise NotationError(f"{new} is defined already: rename the slice", block.text)
            stack = self.current[old]
            self.current[new] = self.version(new)
            if stack in self.axes:
                if base(self.axes[stack][0] if self.axes[stack] else "") != block.count:
                    declared = f"{old}[{' '.join(self.axes[stack])}]"
                    raise NotationError(f"{declared} must have {block.count} as its first axis", block.text)
                self.axes[self.current[new]] = self.axes[stack][1:]
            pairs.append((self.current[new], stack))
        return tuple(pairs)

    def stacks(self, slices: Iterable[tuple[str, str]], inner: Axes, block: ParsedLoop) -> None:
        """Declare the stacks that inner lines read first, with their axes, and whether they are indices."""
        for new, stack in slices:
            if new not in inner:
                raise NotationError(f"{new} is a slice of {stack} that no line reads", block.text)
            self.axes.setdefault(stack, (block.count, *inner[new]))
            index = new in self.indices
            if new in self.roles:
                self.roles.setdefault(stack, self.roles[new])
            self.indices.discard(new)
            self.values.discard(new)
            (self.indices if index else self.values).add(stack)
            if stack in self.indices and stack in self.values:
                raise NotationError(f"{stack} is read both as a value and as an index", block.text)

    def kept(self, name: str, outer: Mapping[str, str], block: ParsedLoop) -> str:
        """Bind `keep Y=y`: return the inner name of the value that the stack Y collects."""
        if name not in self.current or self.current[name] == outer.get(name):
            raise NotationError(f"{name} is collected by keep but not defined inside the loop", block.text)
        return self.current[name]


def _reading(term: Term, names: Mapping[str, str]) -> Term:
    """Return a result with the names that its indices read renamed."""
    axes = (Read(axis.axis, axis.at.renamed(names)) if isinstance(axis, Read) else axis for axis in term.axes)
    return Term(term.name, tuple(axes)) if term.indexed else term


def _bases(axes: Iterable[str]) -> tuple[str, ...]:
    return tuple(base(axis) for axis in axes)

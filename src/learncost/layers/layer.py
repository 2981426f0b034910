"""Define layers from text in the notation. Calls of other layers are expanded when a layer is defined."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property, reduce
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, NotationError, advice, close_to, shown
from learncost.ir.line import Line, Op, Opaque
from learncost.ir.loop import map_lines, map_loops, walk
from learncost.ir.parse import parse_header, parse_lines, split_names
from learncost.ir.parsed import Header, LayerCall, Parsed
from learncost.ir.polynomial import ZERO, Polynomial, base
from learncost.ir.scope import AxesOf, Expanded, bind
from learncost.ir.stated import Limit, Stated, StateDictEntry, role, spelled
from learncost.ir.stated import check as check_roles
from learncost.ir.table import Table
from learncost.ir.term import Literal, Term
from learncost.ir.value import Value
from learncost.layers.active import SHIPPED_KEYWORDS
from learncost.layers.called import expanded, own_equations
from learncost.layers.gradient_plan import GradientPlan
from learncost.layers.spelling import differentiable, spell
from learncost.ops import OpDef, canonical, entries, entry, is_choice, plain

ALSO = "also:"  # the comma-separated synonyms of a layer

_DIGITS = re.compile(r"\d{300,}")  # a float has at most 309 digits

EVALUATION = "evaluation:"
"""The line of a file after which the layer in evaluation mode follows."""

_EVALUATION = re.compile(rf"^\s*{EVALUATION}\s*$", re.MULTILINE)

KEYS = "N"  # the axis of key positions in a layer of attention


@dataclass(frozen=True)
class Origin:
    """The module that a layer was imported from, in this process.

    evaluation   returns the forward pass in evaluation mode as text; "" if it equals that in training mode
    values       returns the initial parameters and buffers by their paths; empty if they have no values
    saved        returns the entries of the state_dict among these
    description  a description of these values
    """

    evaluation: Callable[[], str]
    values: Callable[[], Mapping[str, Any]]
    saved: Callable[[], Mapping[str, Any]]
    description: str


@dataclass(frozen=True)
class CachedAlong:
    """The note on a line that computes a value of the KV cache: the number of its axis of key positions."""

    keys: int


@dataclass(frozen=True)
class Layer(Displayed):
    """A layer: its forward equations as a table, with their source.

    Attributes
    ----------
    name
        Its name.
    table
        The forward equations; `table.inputs`, `table.weights`, `table.outputs` and `table.axes` are its signature.
    equations
        The numbers of the printed equations that derived lines equal, by the names of the gradients.
    text
        The layer in the notation.
    source
        The text of its comments, which names the publication.
    cache
        The values in the KV cache.
    sizes
        The sizes of axes, trip counts and windows that it fixes; other sizes are given when it is priced or run.
    limits
        The ranges of sizes to which its lines are restricted, if they are.
    follows
        Sizes that depend on other sizes, by name, each as an expression such as `(H-1)//2+1`.
    undecided
        Sizes that depend on the values of an input, such as the number of positions that a mask selects.
    frozen
        Weights that are not trainable.
    unread
        The number of stored parameters that no line reads.
    unused
        FLOPs of products in the forward pass of its source module whose results nothing reads; no line contains them.
    stored
        The state_dict entries of its source module whose names differ from those here.
    evaluation
        For a layer in training mode: the layer in evaluation mode, if it differs.
    steps
        For a module imported in this process: a function that records its training step.
    origin
        For a module imported in this process: its values and its forward pass in evaluation mode.
    live
        For a module imported in this process: a function that creates it with values and inputs, for `verify`.

    Examples
    --------
    >>> norm = lc.layer('''% My own.
    ... scaled(X; g) -> Y
    ...   Y[B M d] = X[B M d] g[d]
    ... ''')
    >>> norm.name, norm.table.weights, norm.table.axes["Y"], norm.source
    ('scaled', ('g',), ('B', 'M', 'd'), 'My own.')
    """

    name: str
    table: Table
    equations: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    source: str = ""
    cache: tuple[str, ...] = ()
    sizes: Mapping[str, int] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    follows: Mapping[str, str] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    unread: int = 0
    unused: Polynomial = ZERO
    stored: Mapping[str, StateDictEntry] = field(default_factory=dict)
    evaluation: Layer | None = None
    steps: Callable[..., Any] | None = field(default=None, compare=False, repr=False)
    origin: Origin | None = field(default=None, compare=False, repr=False)
    live: Callable[[], Any] | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        return self.text

    @cached_property
    def marked(self) -> Table:
        """Return its table in which the lines that compute cached values are marked."""

        def mark(line: Line) -> tuple[Line]:
            if line.name not in self.cache:
                return (line,)
            return (replace(line, meta=replace(line.meta, note=CachedAlong(self.table.axes[line.name].index(KEYS)))),)

        return replace(self.table, lines=map_lines(self.table.lines, mark)) if self.cache else self.table


def layer(text: str, layers: Mapping[str, Layer] | None = None) -> Layer:
    """Return a shipped layer by its name or a synonym, or a layer from its text in the notation.

    The notation has a header `name(inputs; weights) -> outputs`, then one equation per line. Comments begin with % and
    become the layer's source. A line `gradients: dX (31), dW (33)` assigns the numbers of printed equations to derived
    lines, and `cache: K V` names the values in the KV cache. For inputs, `constants: S` declares those without a
    gradient, `targets: index of v` those that are indices of an axis, and `share: share of targets` the weight of each
    target in the loss, -1/count where there is one (`learncost.ir.stated`). For the layer, `sizes: d=768 f=3072` fixes
    sizes, `limits: M<=1024` restricts them, `frozen: W` names weights that are not trainable, `unread: 4096` is the
    number of parameters that no line reads, and `unused: 2 B M d` the FLOPs of a module's forward pass that no line
    contains, since nothing reads their results.

    Parameters
    ----------
    text
        The layer in the notation, or the name of a shipped one (`learncost list layers`).
    layers
        Layers that the lines may call, by name; shipped layers can always be called.

    Returns
    -------
    Layer
        The layer, with names, axes and operators checked.

    Raises
    ------
    NotationError
        For a malformed line; the message quotes it.

    Examples
    --------
    >>> causal = lc.layer('''causal(Q K V) -> A
    ...   R[B M M'] = Q[B M k] K[B M' k] where M' <= M
    ...   P[B M M'] = softmax[M'](R[B M M']) where M' <= M
    ...   A[B M k] = P[B M M'] V[B M' k] where M' <= M
    ... ''')
    >>> lc.layer("mha").name
    'attention'
    >>> causal.table.outputs
    ('A',)
    """
    if isinstance(text, str) and re.fullmatch(r"\s*[\w .-]+\s*", text, re.ASCII) and "\n" not in text.strip():
        return shipped_layer(names_of_layers().get(plain(text), text.strip()))
    if not isinstance(text, str):
        raise NotationError(f"a layer must be a text in the notation, not {text!r}")
    text, *others = _EVALUATION.split(text.removeprefix("\ufeff"), maxsplit=1)
    evaluation = layer(others[0], layers) if others else None
    remarks: list[str] = []
    equations: dict[str, str] = {}
    roles: dict[str, Value] = {}
    cache: list[str] = []
    stated = Stated()
    declarations: list[str] = []
    lines: list[str] = []
    for line in text.splitlines():
        if (digits := _DIGITS.search(line)) is not None:
            raise NotationError(f"a number of {len(digits[0]):,} digits exceeds every floating-point number")
        if line.strip().startswith("%"):
            remarks.append(line.strip().lstrip("% "))
        elif line.strip().startswith("gradients:"):
            equations |= _equations(line)
            declarations.append(line)
        elif value_role := role(line):
            roles |= value_role
            declarations.append(line)
        elif line.strip().startswith("cache:"):
            cache += split_names(line.partition(":")[2])
            declarations.append(line)
        elif stated.take(line):
            declarations.append(line)
        elif line.strip() and not line.strip().startswith((ALSO, *SHIPPED_KEYWORDS)):  # only in files of shipped layers
            lines.append(line)
    header = parse_header(lines[0] if lines else "")
    parsed = defined(header, parse_lines(lines[1:]), layers or {}, spelled(roles, header), equations)
    lefts = {term.name for line, _ in walk(parsed.table.lines) for term in line.left}
    for name in cache:
        if name not in lefts or KEYS not in parsed.table.axes.get(name, ()):
            raise NotationError(f"`cache:` names {name}: no value of {header.name} along {KEYS}", lines[0])
    stated.check(parsed.table)
    return replace(
        parsed,
        table=replace(parsed.table, sizes=stated.sizes),
        text="\n".join([*lines[:1], *declarations, *lines[1:], *([EVALUATION, evaluation.text] if evaluation else [])]),
        source=" ".join(remarks),
        cache=(*parsed.cache, *cache),
        sizes=stated.sizes,
        limits=stated.limits,
        follows=stated.follows,
        undecided=tuple(stated.undecided),
        frozen=tuple(stated.frozen),
        unread=stated.unread or 0,
        unused=stated.unused or ZERO,
        stored=stated.stored,
        evaluation=evaluation,
    )


def defined(
    header: Header,
    lines: Iterable[Parsed],
    layers: Mapping[str, Layer],
    roles: Mapping[str, Value] = {},
    equations: Mapping[str, str] = {},
) -> Layer:
    """Return the layer of a header and parsed lines, which may call other layers, with its declarations."""
    calls = _Calls(layers)
    table = _with_choices(bind(header, lines, _check_op, calls, roles))
    check_roles(table, header, roles)
    equations = {**calls.equations, **equations}
    table = replace(table, lines=map_lines(table.lines, lambda line: (_tagged(line, header.name, equations),)))
    _check_gradients(table)
    return Layer(header.name, table, equations, cache=tuple(n for n in calls.cache if KEYS in table.axes[n]))


def in_evaluation(layer_in_training: Layer) -> Layer:
    """Return the layer in evaluation mode, which is the layer itself if both modes are equal. Raises `InputError`."""
    if layer_in_training.evaluation is None and layer_in_training.origin is not None:
        text = layer_in_training.origin.evaluation()
        return layer(text) if text else layer_in_training
    return layer_in_training.evaluation or layer_in_training


def _check_gradients(table: Table) -> None:
    """Raise `NotationError` if an operand needs a gradient that its op does not define.

    The conditions that `less` and `equal` compute are piecewise constant: they need no gradient for any operand.
    """
    plan: GradientPlan | None = None  # takes a while, and few lines have such an operand
    for line, nest in walk(table.lines):
        if isinstance(line, Op) and entry(line.op).gradient:
            may = {*differentiable(line), *map(line.given.index, entry(line.op).conditions)}
            for place, term in enumerate(line.right):
                if place in may or not term.name:
                    continue
                if plan is None:
                    plan = GradientPlan(frozenset(table.weights))
                    plan.needs(table.lines, {*table.inputs, *table.weights} - table.indices - table.constants)
                if term.name in reduce(lambda outer, loop: outer.inner[loop.makes], nest.loops, plan).needed:
                    raise NotationError(
                        f"{line.op} has no gradient for its operand {term.name}: give a number, as in "
                        f"{_with_number(line, place)}, or an input that a line `constants: {term.name}` names",
                        str(line),
                    )


def _with_choices(table: Table) -> Table:
    """Return the table with the results of choices declared as indices. Raises `NotationError` if one is read as a
    value."""
    lines = [line for line, _ in walk(table.lines)]
    chosen = {line.name for line in lines if is_choice(line)}
    for line in lines:
        if wrong := next((term for term in line.right if term.name in chosen), None):
            problem = f"{wrong.name} holds indices: use it as an index, as in X[v={wrong}]"
            raise NotationError(problem, str(line))

    def known(values: Mapping[str, Value]) -> dict[str, Value]:
        return {n: replace(v, role="index", of="") if n in chosen else v for n, v in values.items()}

    if not chosen:
        return table
    inside = map_loops(table.lines, lambda loop: replace(loop, values=known(loop.values)))
    return replace(table, lines=inside, values=known(table.values))


def _with_number(line: Op, place: int) -> str:
    right = (*line.right[:place], Literal(1e-05), *line.right[place + 1 :])
    return str(replace(line, right=right)).partition(" = ")[2]


def _equations(line: str) -> dict[str, str]:
    pairs = {}
    for item in line.partition(":")[2].split(","):
        name, _, number = item.strip().partition(" ")
        if not number.startswith("(") or not number.endswith(")"):
            raise NotationError("`gradients:` takes names with equation numbers, as in `dX (31), dW (33)`", line)
        pairs[name] = number[1:-1].replace(")-(", "-")
    return pairs


def _tagged(line: Line, name: str, equations: Mapping[str, str]) -> Line:
    if line.meta.layer:
        return line
    gradients = tuple(equations.get(f"d{operand}", "") for operand in line.meta.locals)
    jacobian = next((equations[f"J{o}"] for o in line.meta.locals if f"J{o}" in equations), "")
    binding = tuple((base(a), base(a)) for a in line.loops)
    return replace(line, meta=replace(line.meta, layer=name, gradients=gradients, jacobian=jacobian, binding=binding))


def _check_op(line: Line) -> Line:
    """Check an op and complete it: its canonical name, default operands, and the body's names of operands and
    results."""
    if not isinstance(line, Op) or line.given:
        return line
    try:
        op = entry(line.op)
    except ValueError as error:
        raise NotationError(f"{error}{advice(str(line)) if 'nearest' not in str(error) else ''}", str(line)) from None
    if op.kind == "constant" and op.name in ("append", "join"):
        raise NotationError(f"{op.name} is an operator of derived tables: a layer cannot use it", str(line))
    if op.kind == "opaque":
        return _opaque(line)
    missing = len(op.inputs) - len(line.right)
    if missing < 0 or missing > len(op.defaults):
        problem = f"{op.name} takes {len(op.inputs)} operands, not {len(line.right)}"
        raise NotationError(f"{problem}{advice(str(line))}", str(line))
    if len(line.left) != len(op.outputs):
        raise NotationError(f"{op.name} gives {len(op.outputs)} results, not {len(line.left)}", str(line))
    if op.pointwise and line.axes:
        raise NotationError(f"{op.name} is elementwise: remove the axes", str(line))
    if not op.pointwise and not line.axes and op.kind != "constant":
        raise NotationError(f"{op.name} needs the axes it acts on, as in {op.name}[N](...)", str(line))
    left, right = set(line.left[0].loops), {axis for term in line.right for axis in term.loops}
    if op.kind == "constant":
        half, more = divmod(len(line.left[0].axes), 2)
        if op.fill is None and (more or not half or line.left[0].indexed):
            problem = (
                f"eye needs an even number of axes: the second half of those of {line.left[0]} is paired with the first"
            )
            raise NotationError(problem, str(line))
        return replace(line, op=op.name, given=op.inputs, gives=op.outputs)
    if op.kind in ("scan", "choice") and len(line.axes) != 1:
        raise NotationError(f"{op.name} acts along one axis", str(line))
    acted = set(line.axes) if op.reduces else set()
    if op.chooses == "some":
        if len(left - right) != 1 or left & acted:
            problem = f"the result of {op.name} has a new axis, as in T[M k] = {op.name}[v](X[M v])"
            raise NotationError(problem, str(line))
        right |= left - right
    if missing_there := sorted(left - right):
        raise NotationError(f"axis {missing_there[0]} on the left is not on the right", str(line))
    if left != right - acted:
        raise NotationError(f"the axes of {line.left[0]} must be those of the operands of {op.name}", str(line))
    if op.outside is None and any(condition.axes & set(line.axes) for condition in line.where):
        raise NotationError(f"{op.name} cannot have a `where` on an axis it acts on", str(line))
    if op.kind == "choice" and any(not condition.axes & set(line.axes) for condition in line.where):
        raise NotationError(f"{op.name} can only have a `where` on the axis it acts on", str(line))
    if op.inline:
        return _inline(line, op)
    defaults = op.defaults[len(op.defaults) - missing :] if missing else ()
    meta = replace(line.meta, locals=(*line.meta.locals, *("" for _ in defaults)))
    right_terms = (*line.right, *defaults)
    return replace(line, op=canonical(line.op), right=right_terms, given=op.inputs, gives=op.outputs, meta=meta)


def _opaque(line: Op) -> Op:
    """Check an opaque line, which may read and define any values, and name its operands and results."""
    if line.axes or line.where:
        raise NotationError("opaque takes neither axes nor a `where`, as its computation is unknown", str(line))
    if any(isinstance(term, Literal) or term.indexed for term in (*line.left, *line.right)):
        raise NotationError("the operands and results of opaque must be values without indices, not numbers", str(line))
    given = tuple(f"X{number}" for number, _ in enumerate(line.right, 1))
    gives = tuple(f"Y{number}" for number, _ in enumerate(line.left, 1))
    opaque = replace(line.opaque or Opaque(), call=line.left[0].name)
    return replace(line, given=given, gives=gives, opaque=opaque)


def _inline(line: Op, op: OpDef) -> Line:
    """Return the single line of an op's body, with the operands and axes of this line."""
    (body,) = op.body
    operands = dict(zip(op.inputs, line.right, strict=True))
    right = tuple(
        replace(term, sizes=spell(term.sizes, line)) if isinstance(term, Literal) else operands[term.name]
        for term in body.right
    )
    names = dict(zip(op.inputs, line.meta.locals, strict=True))
    meta = replace(line.meta, locals=tuple(names.get(term.name, "") for term in body.right))
    return replace(body, left=line.left, right=right, where=line.where, meta=meta)


@dataclass
class _Calls:
    """The expansion of calls of given and shipped layers, which collects the equations and cached values of calls with
    `*`."""

    layers: Mapping[str, Layer]
    equations: dict[str, str] = field(default_factory=dict)
    cache: list[str] = field(default_factory=list)

    def __call__(self, call: LayerCall, axes_of: AxesOf) -> Expanded:
        callee = self.layers[call.layer] if call.layer in self.layers else shipped_layer(call.layer, call.text)
        expansion = expanded(callee.marked, call, axes_of)
        if call.is_own:
            self.equations |= own_equations(callee.equations, callee.table, call)
            self.cache += callee.cache
        return expansion


def table_of(layer: object) -> Table:
    """Return the table of a layer, or a table itself. Raises `InputError` for anything else."""
    if not isinstance(layer, Layer | Table):
        raise InputError(f"expected a layer, as of lc.layer, or a table, not {shown(layer)}: lc.cost takes models")
    return layer.table if isinstance(layer, Layer) else layer


TABLES = Path(__file__).with_name("tables")
"""The folder of shipped layers, each in a file NAME.table."""


@cache
def shipped() -> tuple[str, ...]:
    """Return the names of the shipped layers."""
    return tuple(sorted(file.stem for file in TABLES.glob("*.table")))


@cache
def names_of_layers() -> Mapping[str, str]:
    """Map the names and synonyms of shipped layers, as `plain` spells them, to the layers' names."""
    usual: dict[str, str] = {}
    for name in shipped():
        text = (TABLES / f"{name}.table").read_text(encoding="utf-8")
        lines = [line.strip().removeprefix(ALSO) for line in text.splitlines() if line.strip().startswith(ALSO)]
        usual |= {plain(synonym): name for line in lines for synonym in line.split(",")}
    return usual | {plain(name): name for name in shipped()}


def shipped_layer(name: str, line: str = "") -> Layer:
    """Return a shipped layer by its name (hyphens accepted). Raises `NotationError` for an unknown one."""
    name = name.replace("-", "_")
    if name not in shipped():
        hint = f"; the nearest is {near!r}" if (near := close_to(name, shipped())) else advice(line)
        if any(canonical(name) == op.name for op in entries()):
            hint = f"; {name} is an operator: write its operands with their axes, as in {name}(X[M d])"
        raise NotationError(f"no layer is called {name!r}{hint}", line)
    return _shipped_layer(name)


@cache  # by shipped file
def _shipped_layer(name: str) -> Layer:
    return layer((TABLES / f"{name}.table").read_text(encoding="utf-8"))


def term(table: Table, name: str) -> Term:
    """Return a value of the table as a term with its declared axes."""
    return Term(name, table.axes[name])

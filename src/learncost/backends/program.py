"""The printer of a table as a program: a function for the step, one per loop iteration, records and helpers."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from learncost.backends import function
from learncost.backends.backend import Backend, backend
from learncost.backends.between import JAX_MESH, MESH, NUMPY_MESH, SENT, TORCH_MESH
from learncost.backends.expression import PRODUCT, SUM, WIDTH, Code, Identifiers, binary, call, returned
from learncost.backends.function import FunctionParameter, SizeSource
from learncost.backends.helpers import Helpers
from learncost.backends.lines import heading_of, write
from learncost.backends.loops import LoopsWriter
from learncost.backends.optimizer import collapsed
from learncost.backends.precision import typed
from learncost.backends.records import RecordNode, Tree, WeightRecords, leaves, renamed
from learncost.backends.scope import FIRST, FunctionScope
from learncost.backends.scope import EmittedStatement as Made
from learncost.backends.shard_map import NAME as OVER
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.loop import Loop, Statement, check_derived, walk, windows
from learncost.ir.polynomial import sharded_over, size_of, whole
from learncost.ir.precision import precision_of
from learncost.ir.table import Table
from learncost.layers.spelling import condition_names
from learncost.ops import entries
from learncost.ops.collectives import is_collective
from learncost.passes.lower import lower

_RESERVED = (
    *("np", "torch", "functional", "jax", "jnp", "math", "itertools", "threading", "NamedTuple", "einsum", "erf"),
    *("filled", "trimmed", "axis", "stack", "each", "updated", "_", MESH, SENT, OVER),
    *(TORCH_MESH.type, JAX_MESH.type, JAX_MESH.imports.rpartition(" ")[2], NUMPY_MESH.type),
)


@dataclass(frozen=True)
class ProgramText:
    """A program's text, and the table's names in it.

    names        every name of the table that the text has, with its identifier: one-to-one
    parameters   what the function takes, in order: a name each, or a record of names
    results      what it returns, in the same way; a single result comes without a tuple
    sizes        what cannot be read off an array, such as a window, with its identifier: further parameters, by name
    meets        whether it is one of several devices: its last parameter, `mesh`, is their DeviceMesh
    """

    text: str
    function: str
    names: Mapping[str, str]
    parameters: tuple[Tree, ...]
    results: tuple[Tree, ...]
    sizes: Mapping[str, str]
    meets: bool = False


def program(
    table: Table,
    backend_name: str = "numpy",
    function_name: str = "step",
    title: str = "",
    sizes: Mapping[str, int] | None = None,
    dtype: str | None = None,
) -> ProgramText:
    """Return the program of a table, with weights and inputs as arguments and outputs as results.

    function_name   of the function
    title           what the program is, its first lines
    sizes           numbers for sizes that no array has, such as windows; those without one are parameters
    dtype           a precision. bf16-masters: products and activations are rounded, arrays given and returned are fp32;
                    bf16-true: the weights given are bf16 too; None, fp32, fp64: all have the type of the arrays given
    Raises `InputError` for an unknown backend, and for a type that it does not have.
    """
    library = backend(backend_name)
    table, low = in_types(table, library, dtype)
    return FunctionWriter(closed(table), library, function_name, title, dict(sizes or {}), low).program()


def in_types(table: Table, library: Backend, dtype: str | None) -> tuple[Table, frozenset[str]]:
    """Return a table with the casts of a precision, and its names in bf16. Raises `InputError` without a type."""
    if dtype is None or precision_of(dtype).values != "bf16":
        return table, frozenset()
    if not library.casts:
        raise InputError(f"{library.name} has no bf16: choose torch or jax")
    table, types = typed(table, dtype)
    return table, frozenset(name for name, dtype_of_name in types.items() if dtype_of_name == "bf16")


def closed(table: Table) -> Table:
    """Return the table with all undefined names of its lines as inputs."""
    available: set[str] = {*table.inputs, *table.weights}
    free: list[str] = []
    for line in table.lines:
        free += [name for name in line.reads if name not in available]
        available |= {*free, *line.makes}
    return replace(table, inputs=(*table.inputs, *dict.fromkeys(free)))


@dataclass(frozen=True)
class Stops:
    """The points where a function stops: after its forward pass, and after its backward pass if updates are separate.

    updates  how many statements of its table, the last ones, these are; None: they are not apart
    """

    updates: int | None = None

    @property
    def phases(self) -> tuple[str, ...]:
        """Return the passes after which it stops."""
        return ("forward",) if self.updates is None else ("forward", "backward")

    def passed(self, line: Statement, table: Table) -> int:
        """Return the number of stops before a lowered line of the table."""
        meta = next(inner for inner, _ in walk((line,))).meta
        if self.updates is None or meta.phase == "forward":
            return int(meta.phase != "forward")
        return 1 + (meta.origin >= sum(1 for _ in walk(table.lines[: len(table.lines) - self.updates])))


@dataclass
class FunctionWriter:
    """A function during printing, with the functions of its loops' iterations."""

    table: Table
    backend: Backend
    function: str
    title: str
    given: dict[str, int]
    low: frozenset[str]
    reserved: tuple[str, ...] = ()  # what the text around it calls its classes and functions
    before: FunctionWriter | None = None  # of the same text: the function of the same weights, whose records it has
    is_part: bool = False  # whether it is a function of a step in several: its results are always a tuple
    stops: Stops | None = None  # where it stops, and goes on when it is asked to
    stopped: int = 0  # how often it has done so

    def __post_init__(self) -> None:
        table, before = self.table, self.before
        check_derived(table.lines, "no program computes it")
        self.lowered = lower(table, whole=True)
        self.steps = frozenset(name for name, value in self.lowered.known.items() if value.role == "step")
        ops = [op.name for op in entries() if op.body and not op.inline]
        gradients = (f"{op.name}_gradient" for op in entries())
        reserved = (*_RESERVED, *ops, *gradients, self.function, *self.reserved)
        self.identifiers: Identifiers = before.identifiers if before else Identifiers(reserved)
        self.helpers = Helpers(self.backend)
        self.weights: WeightRecords = (
            before.weights
            if before
            else WeightRecords.of(table, self.identifiers, self.backend.array, self._stack_title)
        )
        axes = {axis for declared in self.lowered.axes.values() for axis in declared} | set(windows(self.lowered.lines))
        self.w = self.identifiers.of("weights" if "w" in axes else "w", "record") if self.weights.tree else ""
        self.w = before.w if before else self.w
        self.identifiers.of("iteration", "loop")  # before a value of this name
        self.states = self._states()
        paths = {name: f"{self.w}.{end}" for name, end in self.weights.paths.items()}
        for part, names in self.states.items():
            paths |= {identifier: f"{part}.{self.weights.paths[name]}" for name, identifier in names.items()}
        self.scope = FunctionScope(
            self.backend, self.identifiers, self.helpers, self.lowered.axes, paths=paths, low=self.low
        )
        self.scope.filled = frozenset(name for name in self.given if sharded_over(name))
        # indices that are stored in bytes, and their slices
        slices = {inside for line in table.repeats for inside, outer in line.each if outer in table.codes}
        self.scope.codes = table.codes | slices
        self.scope.narrow = frozenset(name for name, value in table.known.items() if value.dtype)
        self.made_first: list[Made] = []
        self.scope.like = self._like(paths)
        self.scope.weights_of = {
            paths.get(name) or self.identifiers.of(name): table.axes[name] for name in table.weights
        }
        self.iterations = LoopsWriter(self.lowered, self.weights, self.w, self.statements)

    def _stack_title(self, names: Sequence[str]) -> str:
        """Return the name of a group's iterations: block, encoder_block, decoder_block."""
        blocks = {
            line.meta.block
            for repeat in self.table.repeats
            if {outer for _, outer in repeat.each} & set(names)
            for line, _ in walk(repeat.lines)
        }
        every = {line.meta.block for line, _ in walk(self.table.lines) if line.meta.block}
        return f"{blocks.pop()}_block" if len(every) > 1 and len(blocks) == 1 and None not in blocks else "block"

    def _states(self) -> dict[str, dict[str, str]]:
        """Return the inputs that belong to weights, such as `W.M` or gradients, as records like that of the weights."""
        if self.weights.tree is None:
            return {}
        states: dict[str, dict[str, str]] = {}
        for name in self.table.inputs:
            end, weight = self._state(name)
            if self.table.values[name].role == "gradient":
                end, weight = "", self.table.values[name].of
            if weight in self.table.weights:
                states.setdefault(end, {})[weight] = name
        called = {end: f"state.{end}" if end else "gradients" for end in states}
        return {
            self.identifiers.of(called[end], "record"): {w: names[w] for w in self.table.weights if w in names}
            for end, names in states.items()
        }

    def _state(self, name: str) -> tuple[str, str]:
        """Return the name of an optimizer state, such as M, and its weight; empty for other values."""
        value = self.table.values[name]
        return (name.removeprefix(f"{value.of}."), value.of) if value.role in ("state", "gathered") else ("", "")

    def _belongs(self, name: str) -> tuple[str, str]:
        """Return the group of an output, such as the gradients, and its weight; empty for other values."""
        value = self.table.values[name]
        if value.role == "gradient":
            return "the gradients", value.of
        if value.role != "new":
            return "", ""
        end, weight = self._state(value.of)
        return (f"the new state_{end}", weight) if weight else ("the new weights", value.of)

    def _like(self, paths: Mapping[str, str]) -> str:
        """Return the array whose type all numbers have: the first weight, or the first input that is no index or mask.

        Where there is none, such as in a layer of constants, the program begins with a number of the library's type.
        """
        conditions = condition_names(self.lowered.lines)
        numbers = (n for n in self.table.inputs if n not in self.table.indices and n not in conditions)
        for name in (*self.table.weights, *numbers):
            return paths.get(name) or self.identifiers.of(name)
        number = self.identifiers.of("number", "like")
        device = f", device={self.identifiers.of(n)}.device" if (n := next(iter(self.table.inputs), "")) else ""
        zero = f"{self.backend.module}.zeros((){device if self.backend.like == 'torch' else ''})"
        self.made_first = [Made(f"{number} = {zero}")]
        return number

    # The whole.

    def program(self) -> ProgramText:
        """Return the program's text with this function alone."""
        inputs, _, results, sizes = self.written()
        return ProgramText(
            self._text(), self.function, self.identifiers.values, inputs, results, sizes, self.scope.meets
        )

    def written(self) -> tuple[tuple[Tree, ...], list[FunctionParameter], tuple[Tree, ...], dict[str, str]]:
        """Print the function; return its arguments, parameters, results, and the sizes among its parameters."""
        table, scope = self.table, self.scope
        inputs, parameters = self._parameters()
        self.statements(scope, self.lowered.lines, set(table.outputs))
        results = self._results()
        scope.put(self._return(results), ())
        arguments = [*table.weights, *table.inputs]
        sources = [SizeSource(scope.paths.get(n) or self.identifiers.of(n), table.axes[n]) for n in arguments]
        mask_lines = function.masks(scope)
        places = self._places(scope)
        first, missing = function.sizes(scope, sources)
        numbers = {name: number for name in missing if (number := self._number(name)) is not None}
        constants = [Made(f"{scope.sizes[name]} = {number}") for name, number in numbers.items()]
        missing = [name for name in missing if name not in numbers and not name.endswith(FIRST)]
        parameters += [FunctionParameter(scope.sizes[name], "int") for name in missing]
        if scope.meets:
            parameters.append(FunctionParameter(MESH, self.backend.mesh.type))
        if self.stops:
            parameters.append(FunctionParameter(SENT, "list"))
        stops = f"Stops after the {' and the '.join(self.stops.phases)} pass. Gives" if self.stops else "Returns"
        about = f"{stops} "
        about += f"{', '.join(self._says(tree) for tree in results)}."
        body = function.freed(scope, {*table.inputs, *table.weights})
        begin = [*constants, *first, *places, *mask_lines]
        if any(scope.like in re.findall(r"\w+", statement.text) for statement in (*begin, *body)):
            begin = [*self.made_first, *begin]
        self.iterations.functions.append(function.text(self.function, parameters, about, begin, body))
        if scope.meets and self.backend.sharded:
            of_parts = self._filled()
            self.iterations.functions.append(self.backend.sharded(self.function, inputs, results, table.axes, of_parts))
        return inputs, parameters, results, {name: scope.sizes[name] for name in missing}

    def _filled(self) -> dict[str, int]:
        """Return the axes with padded shards and their sizes; mark the padding helpers as used."""
        filled = self.scope.filled
        for axis in filled:
            if axis.rpartition("/")[0] in filled:
                size, over = size_of(whole(axis), self.given), " and ".join(sharded_over(axis))
                raise InputError(
                    f"{whole(axis)} is {size:,}, and parts of it over {over} are padded, and so are shards of these: "
                    "JAX programs do not support that, use --backend torch"
                )
        for helper in ("filled", "trimmed") if filled else ():
            self.helpers.library(helper)
        return {whole(axis): int(size_of(whole(axis), self.given)) for axis in filled}

    def _number(self, size: str) -> int | None:
        """Return a given size, or a shard of one."""
        try:
            return int(size_of(size, self.given))
        except KeyError:
            return None

    def _places(self, scope: FunctionScope) -> list[Made]:
        """Return this device's first position on each sharded axis."""
        statements = []
        for name in [name for name in scope.sizes if name.endswith(FIRST)]:
            axis = name.removesuffix(FIRST)
            scope.meets = True
            place = Code("")
            for mesh_axis in sharded_over(axis):
                rank = scope.backend.place_along(mesh_axis)
                outer = Code(f"{place.at(PRODUCT)} * {scope.backend.devices_along(mesh_axis)}", PRODUCT)
                place = binary(outer, "+", rank, SUM) if place.text else rank
            statements.append(Made(f"{scope.sizes[name]} = {place.at(PRODUCT)} * {scope.size(axis)}"))
        return statements

    def _parameters(self) -> tuple[tuple[Tree, ...], list[FunctionParameter]]:
        table, names = self.table, self.identifiers
        tree = self.weights.tree
        state = {state_name for group in self.states.values() for state_name in group.values()}
        gradients = [name for name in table.inputs if table.values[name].role == "gradient"]
        later = {name for name in gradients if table.values[name].of in table.outputs}
        weights: list[Tree] = [tree] if tree else list(table.weights)
        before = [name for name in table.inputs if name not in state and name not in later]
        after = [name for name in table.inputs if name in later]
        states: list[Tree] = [renamed(tree, group) for group in self.states.values()]
        trees: tuple[Tree, ...] = (*weights, *states, *before, *after) if tree else (*before, *weights, *after)
        parameters = []
        for array_or_record in trees:
            if isinstance(array_or_record, RecordNode):
                name = self.w if array_or_record is tree else list(self.states)[states.index(array_or_record)]
                parameters.append(FunctionParameter(name, array_or_record.record))
            elif array_or_record is not None:
                parameters.append(FunctionParameter(names.of(array_or_record), axes=table.axes[array_or_record]))
        return trees, parameters

    # Statements.

    def statements(self, scope: FunctionScope, lines: Sequence[Statement], handed: set[str]) -> None:
        """Print the lines of one function; `handed` are its outputs."""
        scope.once = _read_once(lines, self.steps) - handed
        scope.handed = handed
        makes = Counter(name for line in lines for name in line.makes)
        scope.again = {name for name, count in makes.items() if count > 1}
        before = ""
        rest = list(lines)
        if self.weights.tree is not None and scope is self.scope and not any(map(is_collective, lines)):
            updates = _last(lines)
            rest = [line for line in lines if line not in updates]
        else:
            updates = []
        for line in rest:
            if self.stops and scope is self.scope:
                for phases in self.stops.phases[self.stopped : self.stops.passed(line, self.table)]:
                    scope.put("yield", (), heading=f"behind the {phases} pass")
                    self.stopped += 1
            if isinstance(line, Loop):
                self.iterations.write(scope, line, lines, handed)
                before = ""
                continue
            heading, count = heading_of(line) or before, len(scope.statements)
            write(scope, line, heading if heading != before else "")
            before = heading if len(scope.statements) > count else before
        for done, heading in collapsed(scope, updates, self.weights):
            if isinstance(done, Line):
                write(scope, done, heading)

    # Results.

    def _results(self) -> tuple[Tree, ...]:
        """Return the outputs in order, with gradients, weights and states as records like that of the weights."""
        tree, table = self.weights.tree, self.table
        if tree is None:
            return tuple(dict.fromkeys(table.outputs))
        results: list[Tree] = []
        done: set[str] = set()
        belongs = {name: self._belongs(name) for name in table.outputs}
        for name, (kind, weight) in belongs.items():
            if weight not in table.weights:
                results.append(name)
            elif kind not in done:
                done.add(kind)
                stays = {w: w for w in table.weights} if kind == "the new weights" else {}
                results.append(
                    renamed(
                        tree, stays | {w: array for array, (belongs_as, w) in belongs.items() if belongs_as == kind}
                    )
                )
        return tuple(results)

    def _return(self, results: Sequence[Tree]) -> str:
        built = [self.built(self.scope, tree) for tree in results]
        text = returned(built)
        if self.is_part and len(built) < 2:
            text = f"return ({built[0]},)" if built else "return ()"
        if not self.stops:
            return text
        more = "yield\n" * (len(self.stops.phases) - self.stopped)
        return more + text.replace("return", "yield", 1)

    def built(self, scope: FunctionScope, tree: Tree) -> str:
        """Return a tree of names in Python: a record's name if all fields are that record's."""
        if tree is None:
            return "None"
        if isinstance(tree, str):
            code = scope.settled(tree)  # what microbatches add up is given in fp32
            return (scope.backend.cast(code, "fp32") if self.stops and tree in scope.low else code).text
        texts = [self._part(scope, part) for part in tree.fields]
        starts = {text.rpartition(".")[0] for text in texts}
        if len(starts) == 1 and (start := starts.pop()) and start.isidentifier() and start in scope.variables.values():
            return start
        return f"{tree.record}({', '.join(texts)})"

    def _part(self, scope: FunctionScope, tree: Tree) -> str:
        """Return a part of a record; a long one is assigned to a name on a separate line."""
        text, name = self.built(scope, tree), next(leaves(tree), None)
        if not isinstance(tree, RecordNode) or name is None or len(text) < WIDTH // 2:
            return text
        group = next(group for group in self.weights.groups if group.record == tree.record)
        first = self._belongs(name)[1] or name
        variable = self.identifiers.of(name.replace(first, group.field, 1), "record")
        # What the record holds is read by the return, and stays until then.
        read, scope.read = scope.read, []
        items = [self.built(scope, part) for part in tree.fields]
        before, scope.read = scope.read, []
        scope.put(call(tree.record, items, f"{variable} = "), (variable,))
        scope.read = [*read, *before, variable]
        return variable

    def _says(self, tree: Tree) -> str:
        if tree is None:
            return "nothing"
        if isinstance(tree, str):
            return self.identifiers.of(tree)
        return self._belongs(next(leaves(tree)))[0] or "the new weights"  # of those that do not learn, the old ones

    # The text.

    def _text(self) -> str:
        imports = [] if not self._uses("math.") else ["import math"]
        records = [*self.weights.records, *self.iterations.records]
        if records:
            imports.append("from typing import NamedTuple")
        used = {"from torch.nn import functional": "functional.", "import jax": "jax."}
        needed = [line for line in self.backend.imports if line not in used or self._uses(used[line])]
        of_mesh = self.backend.mesh
        meets = self._uses(f"{MESH}: {of_mesh.type}")
        if meets:
            (imports if of_mesh.text else needed).append(of_mesh.imports)
        parts = [f'"""{self.title}"""' if self.title else "", "\n".join(imports), "\n".join(needed)]
        head = "\n\n".join(part for part in parts if part)
        texts = [*map(str, records), *([of_mesh.text] if meets and of_mesh.text else []), *self.helpers.texts.values()]
        return "\n\n\n".join((head, *texts, *self.iterations.functions)) + "\n"

    def _uses(self, module: str) -> bool:
        texts = (
            *map(str, (*self.weights.records, *self.iterations.records)),
            *self.helpers.texts.values(),
            *self.iterations.functions,
        )
        return any(module in text for text in texts)


def _last(lines: Sequence[Statement]) -> list[Line]:
    """Return the optimizer's lines that nothing else reads, such as those of random directions."""
    steps = [line for line in lines if isinstance(line, Line) and line.meta.phase == "optimizer_step"]
    read = {name for line in lines if line not in steps for name in line.reads}
    for line in reversed(steps):
        read |= set(line.reads) if not read.isdisjoint(line.makes) else set()
    return [line for line in steps if read.isdisjoint(line.makes)]


def _read_once(lines: Iterable[Statement], steps: Set[str]) -> set[str]:
    """Return the names of intermediate steps with a single reader, into which they can be inlined."""
    reads: Counter[str] = Counter()
    barred: set[str] = set()
    for line in lines:
        if isinstance(line, Loop):
            barred |= set(line.reads)
        else:
            reads.update(name for term in (*line.left, *line.right) for name in term.names if name in steps)
            reads.subtract(name for name in line.makes if name in steps)
    return {name for name, count in reads.items() if count == 1} - barred

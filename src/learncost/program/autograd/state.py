"""The state of a step under autograd in addition to its values: weights, masks, inputs, and sharded weights."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from learncost.ir.dataclass import dataclass, field
from learncost.ir.loop import Loop, Statement, walk
from learncost.ir.polynomial import shape_of, size_of
from learncost.ir.table import Table
from learncost.ir.term import Operand, Term
from learncost.ops.collectives import is_collective
from learncost.program.autograd.module import Module
from learncost.program.autograd.operators import Storage, TapeTensor
from learncost.program.autograd.tape import Tape, TapeNode
from learncost.program.autograd.wrapped import ParameterGroup, Sharded, Wrapping
from learncost.program.optimizer_step import OptimizerStep
from learncost.program.program import HOST

if TYPE_CHECKING:
    from learncost.program.autograd.losses import LossRow


@dataclass(frozen=True)
class StepOptions:
    """The options of a step in addition to its table.

    given        bytes by name of what is allocated before the step: optimizer state, master weights
    width        bytes of a weight
    learning     the trainable weights
    drawn        the inputs that are dropout noise
    checkpoint   "" or how every block runs under `torch.utils.checkpoint`: "frames" or "reentrant"
    every        of so many blocks the first runs under a checkpoint
    selects      whether checkpoints keep the results of some operators
    whole        whether all iterations of loops that have weights run
    blocks       the number of blocks, where an iteration of a loop may contain several; 0: an iteration is one
    stepping     the optimizer's step
    microbatches the number of microbatches whose gradients are summed
    matrices     the number of rows of each weight that is a matrix
    coded        the weights that are stored as codes and scales, with the bytes of both
    wrapping     how the module is distributed over devices
    loss         the loss that is computed together with the head; None: the module's own
    drops_paths  whether operands of low-rank paths have dropout
    hosted       roles of what lies in the memory of the host
    norms        bytes of an element of norms' weights that do not learn; 0: as of the others
    other        a model that runs behind the forward pass, without gradients; None: there is none
    between      the values that stages of a pipeline send to each other
    """

    module: Module
    given: Mapping[str, int]
    width: int
    learning: Collection[str]
    drawn: Collection[str] = ()
    checkpoint: str = ""
    every: int = 1
    blocks: int = 0
    stepping: OptimizerStep = field(default_factory=OptimizerStep)
    microbatches: int = 1
    matrices: Mapping[str, int] = field(default_factory=dict)
    coded: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    wrapping: Wrapping | None = None
    loss: LossRow | None = None
    drops_paths: bool = False
    hosted: Collection[str] = ()
    other: OtherModel | None = None
    selects: bool = False
    whole: bool = False
    norms: int = 0
    between: Collection[str] = ()

    def place(self, role: str) -> str:
        """Return the device of what has a role: the host, or the default."""
        return HOST if role in self.hosted else ""


@dataclass(frozen=True)
class OtherModel:
    """A model that runs behind the forward pass of the one that learns, or before it, without gradients.

    weights  bytes of those that it has on this device, in addition to the model's; 0: it is the model itself
    joined   makes the loss of the outputs of both; None: the loss of the first is there already
    """

    name: str
    table: Table
    sizes: Mapping[str, int]
    asked: StepOptions
    weights: int
    joined: Callable[[TapeTensor, TapeTensor], TapeTensor] | None = None
    before: bool = False


Block: TypeAlias = "tuple[Sequence[Statement], list[str], list[str]]"
"""Lines, the names they start from, and the names they end with."""


def whole_block(repeat: Loop) -> Block:
    """Return the body as one block; its saved values follow its loop-carried ones."""
    return repeat.lines, [carry.start for carry in repeat.carry], [*repeat.ends]


def blocks_of(repeat: Loop, sharded_over: int) -> list[Block]:
    """Return the body in blocks of `cuts` places each; as one where that does not divide."""
    cuts_possible = places(repeat)
    if not sharded_over or len(cuts_possible) % sharded_over or len(repeat.carry) != 1 or repeat.keep:
        return [whole_block(repeat)]
    ends = cuts_possible[sharded_over - 1 :: sharded_over]
    starts = [(0, repeat.carry[0].start), *ends[:-1]]
    return [(repeat.lines[a:b], [start], [end]) for (a, start), (b, end) in zip(starts, ends, strict=True)]


def places_in_block(repeats: Sequence[Loop], blocks: int, sizes: Mapping[str, int]) -> int:
    """Return the number of places of a block with a single live value, including its end; 0: an iteration is a block.

    blocks  the number of blocks of all loops; 0 where it is not known
    """
    every = sum(size_of(repeat.count, sizes) * len(places(repeat)) for repeat in repeats)
    return every // blocks if blocks and not every % blocks else 0


def places(repeat: Loop) -> list[tuple[int, str]]:
    """Return the places in the body where a single value is live: the number of lines before, and the value; the last
    is the end.
    """
    last = {name: len(repeat.lines) for name in (carry.end for carry in repeat.carry)}
    for at, line in reversed(list(enumerate(repeat.lines))):
        for name in line.reads:
            last.setdefault(name, at)
    alive = {carry.start for carry in repeat.carry}
    single_values = []
    for at, line in enumerate(repeat.lines):
        alive |= set(line.makes)
        alive = {name for name in alive if last.get(name, -1) > at}
        if len(alive) == 1:
            single_values.append((at + 1, next(iter(alive))))
    return single_values


SavedForward: TypeAlias = (
    "tuple[list[TapeNode | Callable[[], None]], list[TapeTensor], dict[tuple[object, ...], TapeTensor]]"
)
"""Nodes, inputs and masks of a forward pass."""

ROOT = ()
"""The group of weights outside of blocks."""


@dataclass
class StepState:
    """The state of a step: weights and their leaves, masks, and tensors that live until the model returns."""

    tape: Tape
    table: Table
    sizes: Mapping[str, int]
    asked: StepOptions
    storages: dict[str, Storage] = field(default_factory=dict)
    leaves: dict[tuple[str, ...], TapeTensor] = field(default_factory=dict)
    masks: dict[tuple[object, ...], TapeTensor] = field(default_factory=dict)
    embedded: list[TapeTensor] = field(default_factory=list)
    cache: list[TapeTensor] = field(default_factory=list)
    hidden: list[TapeTensor] = field(default_factory=list)  # the last hidden state, which a ModelOutput has
    inputs: list[TapeTensor] = field(default_factory=list)
    scores: list[TapeTensor] = field(default_factory=list)
    tokens: str = ""
    passed: int = 0

    @property
    def learning(self) -> list[str]:
        """The trainable weights of its table."""
        return [name for name in self.table.weights if name in self.asked.learning]

    def exchange(self, passed: SavedForward | None = None) -> SavedForward:
        """Take up what a backward pass needs of its forward pass, by default nothing, and return what was there."""
        before = self.tape.nodes, self.inputs, self.masks
        self.tape.nodes, self.inputs, self.masks = passed or ([], [], {})
        return before

    @cached_property
    def sharded(self) -> Sharded | None:
        """The sharded weights, where the module is wrapped with `fully_shard`."""
        wrapping = self.asked.wrapping
        if not wrapping or wrapping.parts == 1:
            return None
        return Sharded(self.tape, wrapping, self.asked.width, self.asked.hosted)

    @cached_property
    def gathered(self) -> frozenset[str]:
        """The values that a collective gathers, whose gradients it reduces."""
        return frozenset(line.name for line, _ in walk(self.table.lines) if is_collective(line))

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The loops of the model, by identity."""
        return {id(line): number for number, line in enumerate(self.table.repeats) if line in self.table.lines}

    @cached_property
    def blocks(self) -> dict[str, tuple[int, int]]:
        """The weights that are stacks of the blocks', each with its loop and its block within an iteration."""
        result = dict[str, tuple[int, int]]()
        for repeat in (line for line in self.table.lines if id(line) in self.numbers):
            assert isinstance(repeat, Loop)
            for place, (lines, _, _) in enumerate(blocks_of(repeat, self.sharded_over)):
                reads = {name for line in lines for name in line.reads}
                stacks = (outer for inside, outer in repeat.each if inside in reads and outer in self.table.weights)
                result |= dict.fromkeys(stacks, (self.numbers[id(repeat)], place))
        return result

    @cached_property
    def root(self) -> ParameterGroup:
        """The weights outside of blocks."""
        assert self.sharded
        names = [name for name in self.table.weights if name not in self.blocks]
        return self.sharded.group(ROOT, [self.stored(name, self.table.axes[name]) for name in names])

    def group(self, block: tuple[int, int], iteration: int) -> ParameterGroup:
        """Return the weights of a block of an iteration."""
        assert self.sharded
        names = [name for name, of in self.blocks.items() if of == block]
        elements = [self.stored(name, self.table.axes[name][1:]) for name in names]
        return self.sharded.group((*block, iteration), elements)

    def stored(self, name: str, axes: Sequence[str]) -> int:
        """Return how many elements a weight is stored as, whole or in a block: codes lie in elements of its type, as
        with `bnb_4bit_quant_storage`."""
        elements, whole = self.count(axes), self.count(self.table.axes[name])
        coded = self.asked.coded.get(name)
        return elements * coded[0] // (whole * self.asked.width) if coded else elements

    @cached_property
    def sharded_over(self) -> int:
        """The number of places of a block with a single live value, as of `places_in_block`."""
        return places_in_block(self.table.repeats, self.asked.blocks, self.sizes)

    def leaf(self, names: Sequence[tuple[str, ...]], elements: int) -> TapeTensor:
        """Return a weight of an iteration, or several that are one."""
        key = tuple(part for name in names for part in name)
        if key not in self.leaves:
            storage = self.storages[names[0][0]]
            width = 0 if names[0][0] in self.asked.coded else self.asked.width
            learns = any(name[0] in self.asked.learning for name in names)
            if self.sharded:
                block = self.blocks.get(names[0][0])
                group = self.group(block, int(names[0][1])) if block else self.root
                storage = group.storage
            rows = self.asked.matrices.get(names[0][0], 0)
            shape = (rows, elements // rows) if rows else (elements,)
            frozen = TapeTensor(self.tape, elements, width, storage)
            leaf = self.tape.weight(shape, width, storage) if learns else frozen
            if self.sharded:
                group.weights.append(leaf)
            self.leaves[key] = leaf
        return self.leaves[key]

    def embeds(self, weight: str, embedded: TapeTensor) -> None:
        """Keep an embedding until the model returns; under checkpoints that of the tokens requires a gradient."""
        if self.table.inputs and self.table.values[self.table.inputs[0]].role == "index":
            self.tokens = self.tokens or weight
        if self.asked.module.holds == "embeddings":
            self.embedded.append(embedded)
        if self.asked.checkpoint and not embedded.learns and weight == self.tokens:  # enable_input_require_grads
            embedded.node = TapeNode(None)
            self.inputs.append(embedded)

    def release(self, tensors: list[TapeTensor]) -> None:
        """Hold tensors until here, and forget them."""
        self.tape.hold(*tensors)
        tensors.clear()

    def release_masks(self) -> None:
        """Hold masks until here; the next forward pass makes new ones."""
        self.tape.hold(*self.masks.values())
        self.masks.clear()

    def mask(self, key: tuple[object, ...], elements: int, width: int) -> TapeTensor:
        """Return a mask that is created once and lives until the model returns; with recomputation, as long as that."""
        if key not in self.masks:
            self.masks[key] = self.tape.new(elements, width)
        return self.masks[key]

    def count(self, axes: Sequence[str]) -> int:
        return int(prod(shape_of(axes, self.sizes)))


Values = dict[str, TapeTensor]


@dataclass
class ScopeNames:
    """The names of one scope: their axes, the weights with their iterations, the noise, and the outer values.

    divided  into how many parts values are cut, of which the scope has one, as of the tokens of one of so many experts
    """

    state: StepState
    axes: Mapping[str, tuple[str, ...]]
    weights: Mapping[str, tuple[str, ...]]
    drawn: frozenset[str]
    around: Values
    divided: int = 1

    @property
    def tape(self) -> Tape:
        return self.state.tape

    @property
    def module(self) -> Module:
        return self.state.asked.module

    def count(self, axes: Sequence[str]) -> int:
        return self.state.count(axes) // self.divided

    def is_value(self, name: str) -> bool:
        return name not in self.weights and name not in self.drawn

    def found(self, name: str, values: Values) -> TapeTensor:
        """Return a value by its name, or a weight."""
        if name in values or name in self.around:
            return values[name] if name in values else self.around[name]
        return self.leaf(name).decoded()

    def leaf(self, *names: str) -> TapeTensor:
        elements = sum(self.count(self.axes[name]) for name in names)
        return self.state.leaf([self.weights[name] for name in names], elements)

    def operand(self, term: Operand, values: Values) -> TapeTensor:
        """Return an operand: a value, a weight, noise, or a gather of one."""
        assert isinstance(term, Term)
        elements = self.count(term.loops)
        if term.name in self.drawn:
            return self.fresh(elements)
        tensor = self.found(term.name, values)
        reads = term.indexed_axes
        if not reads:
            return tensor
        index = next((read.at.name for read in reads if read.at.name), "")
        keeps = term.name not in self.weights  # torch.gather saves its operand, an embedding does not
        if not index:  # as many elements: the same ones in another shape
            return tensor if elements == tensor.elements else tensor.slice(elements)
        places = self.found(index, values)
        if keeps and self.module.attention == "disentangled":
            places = places.copied()  # clamped in every layer
        return tensor.gather(places, elements, keeps)

    def is_copied(self, value: str, weight: str) -> bool:
        """Return whether a value that no collective gathers is whole, and the weight of its product is a part."""
        parts = [{part for axis in self.axes[name] for part in axis.split("/")[1:]} for name in (value, weight)]
        return bool(parts[1] - parts[0]) and value not in self.state.gathered

    def fresh(self, elements: int) -> TapeTensor:
        return self.tape.new(elements)

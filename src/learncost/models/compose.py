"""Compose the lines of a model's table from its family and configuration: fill the slots and arrange the blocks.

A line `repeat num_hidden_layers carry X:` stands for that number of blocks. If a slot depends on the block's number i,
blocks differ: consecutive equal blocks become one loop, and a periodic pattern, such as alternating local and global
attention, becomes a loop of several blocks, whose weights are prefixed by their kinds. A value that blocks of one kind
compute and others read, such as keys shared by later layers, is stacked by the loop of that kind and read from the
stack.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, shown
from learncost.ir.line import Line
from learncost.ir.loop import repetition
from learncost.ir.parse import parse_lines, split_names
from learncost.ir.parsed import Header, Parsed, ParsedLoop, calls_of, makes, names_of
from learncost.models.configuration import Configuration, family_of
from learncost.models.expression import evaluate, names
from learncost.models.families import BaseLayer, Family
from learncost.models.sizes import MODEL_SIZES

MOST_LAYERS = 2000  # where each may be of a different kind
MOST_KINDS = 128  # unrolled blocks
LONGEST_PATTERN = 64  # the longest period of a pattern

SYMBOLS = {size.name: size.symbol for size in MODEL_SIZES}

_SLOT = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class PlannedLayer:
    """A layer that a model calls: its name in the model, the shipped layer, and its rewritings with arguments as
    JSON."""

    name: str
    base: str
    rewritings: tuple[tuple[str, str], ...]
    dropped: tuple[str, ...] = ()
    padded: bool = False


@dataclass(frozen=True)
class CompositionPlan:
    """The composition of a model: its lines, the layers that it calls, the trip counts of its loops, and the layers
    outside of blocks that belong to a side, encoder or decoder, if there are both."""

    header: Header
    lines: tuple[Parsed, ...]
    layers: tuple[PlannedLayer, ...]
    counts: tuple[tuple[str, int], ...]
    sided: tuple[str, ...]


def plan(configuration: Configuration) -> CompositionPlan:
    """Return the composition of the model that a configuration describes. Raises `InputError` for unknown kinds of
    blocks."""
    family = family_of(configuration)
    values = configuration.values
    head = family.heads[configuration.head]
    composition = _Composition(family, values, head.get("lines", ""))
    lines = composition.lines()
    for text in family.made.values():
        composition.filled(text)  # refuses unknown kinds of what makes inputs, such as rotary positions
    every = dict.fromkeys((*family.inputs, *head.get("inputs", "").split()))
    inputs = [name for stack in every for name in composition.stacks.get(stack, [stack])]
    read = {name for line in lines for name in names_of(line)}
    header = Header(
        family.name.replace("-", "_"),
        tuple(name for name in inputs if name in read),
        tuple(name for name in family.shared if name in read),
        split_names(composition.filled(head["outputs"])),
    )
    layer_names = dict.fromkeys(call.layer for call in calls_of(lines))
    layers = tuple(_planned(name, family.layers[name], values) for name in layer_names if name in family.layers)
    sided = family.sided if len({*family.blocks}) > 1 else ()
    return CompositionPlan(header, lines, layers, tuple(composition.counts), sided)


def making(configuration: Configuration, names_needed: Iterable[str]) -> tuple[Header, tuple[Parsed, ...]]:
    """Return the header and the lines that compute inputs of the model's table. Raises `InputError`."""
    family = family_of(configuration)
    composition, names_needed = _Composition(family, configuration.values, ""), tuple(names_needed)
    texts = [text for names, text in family.made.items() if set(names.split()) & set(names_needed)]
    lines = parse_lines([line for text in texts for line in composition.filled(text).splitlines()])
    made_names: set[str] = set()
    read_names: dict[str, None] = {}
    for line in lines:
        read_names |= dict.fromkeys(name for name in names_of(line) if name not in made_names)
        made_names.update(makes(line))
    outputs = tuple(name for name in names_needed if name in made_names)
    return Header(f"{family.name.replace('-', '_')}_positions", tuple(read_names), (), outputs), lines


def _planned(name: str, layer: BaseLayer, values: Mapping[str, Any]) -> PlannedLayer:
    chosen = [rewriting for rewriting in layer.rewritings if not rewriting.when or evaluate(rewriting.when, values)]
    rewritings = tuple((rewriting.name, json.dumps(_evaluated(rewriting.argument, values))) for rewriting in chosen)
    return PlannedLayer(name, layer.base, rewritings, layer.dropped, layer.padded)


def _evaluated(argument: Any, values: Mapping[str, Any]) -> Any:
    """Return the argument of a rewriting, in which texts that begin with = are evaluated as expressions."""
    if isinstance(argument, str) and argument.startswith("="):
        return evaluate(argument[1:], values)
    if isinstance(argument, dict):
        return {key: _evaluated(value, values) for key, value in argument.items()}
    return [_evaluated(value, values) for value in argument] if isinstance(argument, list) else argument


class _Composition:
    """The lines of a model during composition; `stacks` maps each stacked input to its names, one for each kind of
    block."""

    def __init__(self, family: Family, values: Mapping[str, Any], head: str) -> None:
        self.family = family
        self.values = values
        self.head = head
        self.counts: list[tuple[str, int]] = []
        self.stacks: dict[str, list[str]] = {}
        self.kinds: dict[str, int] = {}

    def lines(self) -> tuple[Parsed, ...]:
        """Return the lines of the full table."""
        template = self.family.table.rstrip("\n").splitlines()
        sides = iter(self.family.blocks)
        result: list[Parsed] = []
        while template:
            line = template.pop(0)
            if not line.strip().startswith("repeat "):
                result += parse_lines(self.filled(line).splitlines())
                continue
            body = []
            while template and len(template[0]) - len(template[0].lstrip()) > len(line) - len(line.lstrip()):
                body.append(template.pop(0))
            made = {name for line in result for name in makes(line)}
            result += self.repeats(line, "\n".join(body), next(sides), made)
        return tuple(result)

    def filled(self, text: str, **more: Any) -> str:
        """Return the text with its slots filled; the lines of a slot that is alone on a line have its indentation."""

        def fill(line: str) -> str:
            while match := _SLOT.search(line):
                indent = line[: match.start()] if not line[: match.start()].strip() else ""
                inner = self.slot(match[1], more).replace("\n", f"\n{indent}")
                line = line[: match.start()] + inner + line[match.end() :]
            return line

        return "\n".join(map(fill, text.splitlines()))

    def slot(self, name: str, more: Mapping[str, Any]) -> str:
        """Return the text of a slot."""
        if name == "head":
            return self.head
        slot = self.family.slots[name]
        return slot.texts[self.choice(name, more)] if slot.choose else slot.texts[""]

    def choice(self, name: str, more: Mapping[str, Any]) -> str:
        """Return the name of the text that the configuration chooses for a slot."""
        slot = self.family.slots[name]
        chosen = evaluate(slot.choose, {**self.values, **more})
        key = str(chosen).lower() if isinstance(chosen, bool) else str(chosen)
        if key not in slot.texts:
            raise InputError(
                f"{self.family.name} has no {name.replace('_', ' ')} of the kind {shown(chosen)}; "
                f"there are {', '.join(slot.texts)}"
            )
        return key

    def slots(self, text: str) -> set[str]:
        """Return the names of the slots of a text, including nested ones."""
        slots_seen: set[str] = set()
        left = [text]
        while left:
            new = set(_SLOT.findall(left.pop())) - slots_seen
            slots_seen |= new
            left += [inner for name in new if name != "head" for inner in self.family.slots[name].texts.values()]
        return slots_seen - {"head"}

    def repeats(self, head: str, body: str, side: str, made: Container[str]) -> list[Parsed]:
        """Return the loops over the blocks of one stack; `made` are the values that earlier lines define."""

        def block(**more: Any) -> ParsedLoop:
            (parsed,) = parse_lines([self.filled(head), *self.filled(body, **more).splitlines()])
            assert isinstance(parsed, ParsedLoop)
            return parsed

        varying = [n for n in sorted(self.slots(body)) if "i" in names(self.family.slots[n].choose or "0")]
        if not varying:
            return [self.segment([("", block())], side)]
        size = head.split()[1]
        number = self.values[size]
        if number > MOST_LAYERS:
            raise InputError(
                f"{size} {number:,} is too large: models with different kinds of blocks may have at most "
                f"{MOST_LAYERS:,}"
            )
        every = [tuple(self.choice(name, {"i": i}) for name in varying) for i in range(number)]
        blocks = {kind: block(i=every.index(kind)) for kind in dict.fromkeys(every)}
        if len(blocks) == 1:
            return [self.segment([("", blocks[every[0]])], side)]
        read = {name for each in blocks.values() for name in _read_first(each) if name not in made}
        kept = {kind: handed for kind, each in blocks.items() if (handed := _handed_on(each, read))}
        result: list[Parsed] = []
        for place, (pattern, iterations) in enumerate(segments(every, kept), 1):
            named_blocks = [(self.own_name(kind), blocks[kind]) for kind in pattern]
            count = f"{SYMBOLS.get(size, size)}_{place}"
            repeat = self.segment(named_blocks, side, (count, iterations))
            handed = kept.get(pattern[0], {})
            stacks = tuple((f"{name}.{place}", name) for name in handed)
            result.append(replace(repeat, keep=stacks))
            read_again = [
                f"{name}[{axes}] = {name}.{place}[{count}={iterations - 1}[] {axes}]" for name, axes in handed.items()
            ]
            result += parse_lines(read_again)
        return result

    def own_name(self, kind: tuple[str, ...]) -> str:
        """Return the name of an unrolled block: its kinds, with a number if other blocks have the same kinds."""
        name = "_".join(filter(None, dict.fromkeys(kind)))
        self.kinds[name] = self.kinds.get(name, 0) + 1
        return name if self.kinds[name] == 1 else f"{name}_{self.kinds[name]}"

    def segment(
        self, blocks: list[tuple[str, ParsedLoop]], side: str, count: tuple[str, int] | None = None
    ) -> ParsedLoop:
        """Return one loop over blocks, given by their names ("" for a single kind) and lines; `count` replaces its trip
        count."""
        symbol = self.counted(blocks[0][1], count)
        lines: list[Parsed] = []
        each: list[tuple[str, str]] = []
        for name, block in blocks:
            names: dict[str, str] = {}
            for inside, stack in block.each:
                if any(inside in names_of(line) for line in block.lines):
                    pair = (f"{inside}_{name}", f"{stack}_{name}") if name else (inside, stack)
                    names[inside] = pair[0]
                    self.stacks.setdefault(stack, []).append(pair[1])
                    each.append(pair)
            lines += (self.line_renamed(line, side, name, names) for line in block.lines)
        return replace(blocks[0][1], count=symbol, each=tuple(each), lines=tuple(lines))

    def counted(self, block: ParsedLoop, count: tuple[str, int] | None = None) -> str:
        """Record the trip count of a loop and return its symbol."""
        self.counts.append(count or (SYMBOLS.get(block.count, block.count), self.values[block.count]))
        return self.counts[-1][0]

    def line_renamed(self, line: Parsed, side: str, name: str, names: Mapping[str, str]) -> Parsed:
        """Return a line of a block of a side with its weights prefixed by the block's name, and its slices renamed by
        `names`."""
        if isinstance(line, ParsedLoop):
            symbol = self.counted(line)
            lines = tuple(self.line_renamed(inner, side, name, names) for inner in line.lines)
            return replace(line, count=symbol, lines=lines)
        if isinstance(line, Line):
            return line.renamed(names, meta=replace(line.meta, block=side))
        weights = (
            weight if weight in self.family.shared else f"{name}.{weight}" if name else weight
            for weight in line.weights
        )
        arguments = tuple(names.get(argument, argument) for argument in line.arguments)
        return replace(line, weights=tuple(weights), arguments=arguments, block=side)


def _read_first(block: ParsedLoop) -> Iterator[str]:
    """Yield the names that a block reads before it defines them and that are not loop-carried."""
    made = {handed.start for handed in block.carry}
    for line in block.lines:
        yield from (name for name in names_of(line) if name not in made)
        made.update(makes(line))


def _handed_on(block: ParsedLoop, read: Container[str]) -> dict[str, str]:
    """Return the results of a block that other blocks `read`, with their axes."""
    terms = [term for line in block.lines if not isinstance(line, ParsedLoop) for term in line.left]
    return {term.name: " ".join(term.declared) for term in terms if term.name in read}


def segments(kinds: list[Any], alone: Container[Any] = ()) -> list[tuple[list[Any], int]]:
    """Split a sequence into patterns, each with its number of repetitions.

    From the left, the pattern that covers most is chosen, on ties the shortest. Kinds in `alone` get separate patterns.
    """
    if ends := [place for place, kind in enumerate(kinds) if kind in alone]:
        parts = (kinds[: ends[0]], kinds[ends[0] : ends[0] + 1], kinds[ends[0] + 1 :])
        return [each for part, among in zip(parts, ((), (), alone), strict=True) for each in segments(part, among)]
    result = []
    at = 0
    while at < len(kinds):
        period, iterations = repetition(kinds, at, LONGEST_PATTERN)
        result.append((kinds[at : at + period], iterations))
        if sum(len(pattern) for pattern, _ in result) > MOST_KINDS:
            raise InputError(
                f"the kinds of the {len(kinds):,} blocks follow no pattern: at most {MOST_KINDS} "
                f"separate blocks are supported"
            )
        at += period * iterations
    return result

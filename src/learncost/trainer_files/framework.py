"""A framework's files as data: how they are recognised, the defaults of their keys, and what each key means.

The training step that files describe is in terms that all frameworks share.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import dataclass, field, fields, replace
from learncost.ir.errors import InputError, printable
from learncost.models.files import PYTHON, SHELL, YAML
from learncost.trainer_files.documents import Document

FULL, SELECTIVE = "full", "selective"  # checkpointing of every block; of some, or of some operators


@dataclass(frozen=True)
class Step:
    """A training step of a trainer. None: the file does not say it.

    micro_batch_size          samples of one device in one forward and backward pass
    global_batch_size         samples of all devices in one optimizer step
    accumulate                microbatches of one device in an optimizer step
    precision                 a name of `learncost list precisions`
    optimizer                 a name of `learncost list optimizers`
    optimizer_implementation  of AdamW and others: fused, foreach or for-loop
    offload                   what is not in the memory of the device, as of `learncost memory --offload`
    offload_activations       whether saved tensors are on the host up to the backward pass
    plan                      a plan of `learncost list plans`
    lora                      the modules with LoRA, or all-linear
    lora_parameters           the parameters of experts with LoRA
    dora                      whether the columns of the adapted weights have trainable magnitudes
    lora_dropout              the dropout probability of what these read
    also_trained              modules that are trained next to LoRA
    checkpointing             full, selective or none
    checkpoint_every          of so many blocks the first has a checkpoint; or op, torchtitan's selection of operators
    module                    the trainer's own code of the model, as of `learncost memory --module`
    reentrant                 whether checkpoints are PyTorch's reentrant ones
    loss                      the loss that is computed together with the head, as of `learncost memory --loss`
    packed                    whether sequences are filled to their length
    task                      what is trained for: sft, dpo, orpo and others
    teacher                   the model whose logits are a distillation's targets
    zero                      the stage of ZeRO, of which 3 is fully sharded
    dp, replicate, shard      devices over which batches are split: all, and those of HSDP's two axes
    devices                   of the whole run
    no_sync                   whether FSDP reduces gradients behind the last microbatch alone, and not behind each
    communication_buffers     bytes on each device
    chunks                    stages of the pipeline on each device
    sequence_parallel         whether tensor parallelism also splits the sequences between its products
    sizes                     the keys of a config.json, with its model_type where no model is named
    """

    model: str | None = None
    seq_len: int | None = None
    micro_batch_size: int | None = None
    global_batch_size: int | None = None
    accumulate: int | None = None
    precision: str | None = None
    optimizer: str | None = None
    optimizer_implementation: str | None = None
    offload: str | None = None
    offload_activations: bool | None = None
    plan: str | None = None
    clip: float | None = None
    dropout: float | None = None
    lora: str | None = None
    lora_rank: int | None = None
    lora_alpha: float | None = None
    lora_parameters: str | None = None
    dora: bool | None = None
    lora_dropout: float | None = None
    also_trained: str | None = None
    checkpointing: str | None = None
    checkpoint_every: int | str | None = None
    module: str | None = None
    reentrant: bool | None = None
    loss: str | None = None
    packed: bool | None = None
    task: str = "sft"
    teacher: str | None = None
    zero: int | None = None
    dp: int | None = None
    replicate: int | None = None
    shard: int | None = None
    tp: int | None = None
    cp: int | None = None
    pp: int | None = None
    ep: int | None = None
    devices: int | None = None
    no_sync: bool | None = None
    communication_buffers: int | None = None
    chunks: int | None = None
    sequence_parallel: bool | None = None
    sizes: Mapping[str, Any] | None = None

    def get(self, name: str) -> Any:
        """Return the value of a field, or of one of the sizes, `sizes.NAME`."""
        field, _, size = name.partition(".")
        value = getattr(self, field)
        return (value or {}).get(size) if size else value

    def having(self, name: str, value: Any) -> Step:
        """Return the step with another value of a field, or of one of the sizes, `sizes.NAME`."""
        field, _, size = name.partition(".")
        changed: Any = {field: {**(self.sizes or {}), size: value} if size else value}
        return replace(self, **changed)


FOLDER = Path(__file__).with_name("frameworks")

STEP, LAUNCH, ENGINE, ADAPTER = "step", "launch", "engine", "adapter"
"""The roles of files: the training step, its processes, its sharding engine, and the low-rank adapter."""

START = Step()  # before any file

AUTOMATIC = "auto"  # in a DeepSpeed file, the value of the trainer

ANY = "*"  # in a condition, any value


@dataclass(frozen=True)
class KeyRule:
    """A rule from keys to the fields of a step.

    conditions   by key, the values at which the rule holds; `ANY` is any value, and `*dpo*` a text with that word; a
                 list has each of its items, in which `ANY` is any, too
    unless       by key, values at which it does not hold
    absent       keys that the file does not have
    where        by field, the values that the files before give the step; `none` is no value
    fields       what the step has then; a value `$KEY` is the value of a key, `sizes.NAME` is one of the sizes, and
                 `A to B` is A, up to a multiple of B
    unsupported  what is not counted then, and in which direction the answer errs
    refused      why the step is no training that can be predicted
    asks         what the files do not say: devices and others
    follows      a key whose value is the path of another file of the step
    source       file and line in the framework
    """

    conditions: Mapping[str, tuple[Any, ...]]
    unless: Mapping[str, tuple[Any, ...]]
    absent: tuple[str, ...] = ()
    where: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fields: Mapping[str, Any] | None = None
    unsupported: str = ""
    refused: str = ""
    asks: str = ""
    follows: str = ""
    source: str = ""

    def holds(self, given: Mapping[str, Any], usual: Mapping[str, Any], before: Step = START) -> bool:
        """Return whether the rule holds for the values of a file and the defaults of its absent keys.

        before  the step that other files give
        """
        values = {**usual, **given}
        return (
            not any(key in given for key in self.absent)
            and all(key in values for key in self.taken)
            and all(_is_one_of(before.get(name) or "none", wanted) for name, wanted in self.where.items())
            and all(key in values and _is_one_of(values[key], wanted) for key, wanted in self.conditions.items())
            and not any(key in values and _is_one_of(values[key], these) for key, these in self.unless.items())
        )

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys that the rule reads."""
        return (*self.conditions, *self.unless, *self.absent, *self.taken)

    @cached_property
    def taken(self) -> tuple[str, ...]:
        """The keys whose values are those of fields."""
        texts = [value for value in (self.fields or {}).values() if isinstance(value, str) and "$" in value]
        return tuple(each[1:] for text in texts for each in text.split() if each.startswith("$"))


def _is_one_of(value: Any, wanted: tuple[Any, ...]) -> bool:
    items = value if isinstance(value, list) else [value]
    return ANY in wanted or any(_matches(item, one) for item in items for one in wanted)


def _matches(value: Any, wanted: Any) -> bool:
    """Return whether a value is the wanted one, or a list of those, where conditions are those of `KeyRule`."""
    if isinstance(value, str) and isinstance(wanted, str) and wanted.strip(ANY) != wanted != ANY:
        return bool(re.search(f"(?<![a-z]){re.escape(wanted.strip(ANY))}(?![a-z])", value.lower()))
    if isinstance(wanted, bool) and isinstance(value, int | str):  # as parsers of configurations take texts and 1
        return str(value).lower() in (("true", "1") if wanted else ("false", "0"))
    if wanted == ANY or type(value) is not type(wanted) or not isinstance(value, list):
        return wanted == ANY or (type(value) is type(wanted) and bool(value == wanted))
    return len(value) == len(wanted) and all(map(_matches, value, wanted))


@dataclass(frozen=True)
class Framework:
    """A kind of file.

    needs, some, without  keys that a file has: all of these, one of these, none of these
    suffixes              the endings of the files; none: any of data
    underscores           whether hyphens in keys are underscores
    renamed               other spellings of keys
    defaults              the value of an absent key, and where the framework sets it
    no_effect             keys that change neither memory nor time; a last `*` stands for any ending
    export                of a file that is written, the `keys` that it has whatever its step is, where `$node` is the
                          devices of a node and `$nodes` the nodes; and keys that it is `without`
    """

    name: str
    title: str
    source: str
    role: str
    needs: tuple[str, ...]
    some: tuple[str, ...]
    without: tuple[str, ...]
    suffixes: tuple[str, ...]
    defaults: Mapping[str, tuple[Any, str]]
    rules: tuple[KeyRule, ...]
    no_effect: tuple[str, ...]
    underscores: bool = False
    renamed: Mapping[str, str] = field(default_factory=dict)
    export: Mapping[str, Any] = field(default_factory=dict)

    def spelled(self, document: Document) -> Document:
        """Return a document with its keys as the framework spells them."""
        if not self.underscores and not self.renamed.keys() & document.values.keys():
            return document

        def spelled(key: str) -> str:
            return self.renamed.get(key, key.replace("-", "_") if self.underscores else key)

        values, lines = ({spelled(key): v for key, v in every.items()} for every in (document.values, document.lines))
        return replace(document, values=values, lines=lines)

    def recognises(self, document: Document) -> bool:
        """Return whether a document has the keys of this framework."""
        name, document = document.name.lower(), self.spelled(document)
        return (
            (name.endswith(self.suffixes) if self.suffixes else not name.endswith(PYTHON))
            and all(_has(document, key) for key in self.needs)
            and (not self.some or any(_has(document, key) for key in self.some))
            and not any(_has(document, key) for key in self.without)
        )

    def is_without_effect(self, key: str) -> bool:
        """Return whether a key is known to change neither memory nor time."""
        return any(key == known or (known.endswith(ANY) and key.startswith(known[:-1])) for known in self.no_effect)

    def takes(self, key: str) -> bool:
        """Return whether the value of a key decides what rules give, and not only whether the key is there."""
        return any(key in rule.taken or ANY not in rule.conditions.get(key, (ANY,)) for rule in self.rules)

    def gives(self, key: str) -> set[str]:
        """Return the fields whose values are those of a key, and an empty name if it decides others."""
        fields = {name for rule in self.rules if key in rule.taken for name in rule.fields or ()}
        return fields | {"" for rule in self.rules if not rule.asks and ANY not in rule.conditions.get(key, (ANY,))}

    def is_automatic(self, key: str, value: Any) -> bool:
        """Return whether a value of a sharding engine leaves the key to the trainer, and no rule is for that."""
        automatic = self.role == ENGINE and value == AUTOMATIC
        return automatic and not any(AUTOMATIC in rule.conditions.get(key, ()) for rule in self.rules)

    def knows(self, key: str, value: Any) -> bool:
        """Return whether a text is one that rules name for a key, if they name some and no rule is for all others."""
        if not all(isinstance(item, str) for item in (value if isinstance(value, list) else [value])):
            return True
        rules = [each for rule in self.rules for each in (rule.conditions, rule.unless) if key in each]
        named = [each[key] for each in rules if ANY not in each[key]]
        takes = any(
            (key in rule.taken and key not in rule.conditions)
            or ((key in rule.taken or key in rule.unless) and ANY in rule.conditions.get(key, ()))
            for rule in self.rules
        )
        usual = self.defaults.get(key, (None, ""))[0]
        return takes or not named or value == usual or any(_is_one_of(value, wanted) for wanted in named)

    @cached_property
    def keys(self) -> frozenset[str]:
        """The keys that rules read."""
        return frozenset(key for rule in self.rules for key in rule.keys)


def _has(document: Document, key: str) -> bool:
    return key in document.values or any(known.startswith(f"{key}.") for known in document.values)


@cache
def frameworks() -> tuple[Framework, ...]:
    """Return all frameworks."""
    return tuple(_of_file(path) for path in sorted(FOLDER.glob("*.toml")))


def framework_of(document: Document, named: str = "") -> Framework:
    """Return the framework whose files have a document's keys, or the one that is named if it is a training's file.

    Raises InputError if none has, or several.
    """
    every = frameworks()
    found = [each for each in every if each.recognises(document)]
    if named:
        known = next((each for each in every if each.name == named), None)
        if known is None:
            raise InputError(f"the trainer is {_any_of(every)}, not {named!r}")
        if not found or any(each.role == STEP for each in found):
            return known
    if len(found) == 1:
        return found[0]
    name = printable(document.name)
    if found:
        raise InputError(
            f"{name} may be a file of {_any_of(found)}: add a key that only one of them has, or "
            "name it: --format-of NAME"
        )
    keys = ", ".join(map(printable, list(document.values)[:4])) or "no keys"
    raise InputError(
        f"{name} has the keys of no known trainer ({keys}, ...), and no model_type: {_any_of(every)} are read"
    )


def _any_of(several: Sequence[Framework]) -> str:
    return " or ".join(each.name for each in several)


def _of_file(path: Path) -> Framework:
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    parts = [*(_shared(name, renamed) for name, renamed in data.get("include", {}).items()), data]
    known = {each.name for each in fields(Step)}
    rules = tuple(rule for part in parts for rule in _rules(part))
    if wrong := {name.partition(".")[0] for rule in rules for name in rule.fields or ()} - known:
        raise ValueError(f"{path.name}: no fields of a step: {sorted(wrong)}")
    recognised = {name: tuple(data["recognised"].get(name, ())) for name in ("needs", "some", "without")}
    suffixes = {"shell": (*SHELL, *YAML), "python": (PYTHON,), "": ()}[data["recognised"].get("language", "")]
    return Framework(
        name=path.stem,
        title=data["title"],
        source=data["source"],
        role=data.get("role", STEP),
        **recognised,
        suffixes=suffixes,
        defaults={
            key: (row["value"], row["source"]) for part in parts for key, row in part.get("defaults", {}).items()
        },
        rules=rules,
        no_effect=tuple(key for part in parts for key in part.get("no_effect", ())),
        underscores=data["recognised"].get("underscores", False),
        renamed=data.get("renamed", {}),
        export=data.get("export", {}),
    )


def _shared(name: str, renamed: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the tables that several frameworks have, with some keys of values renamed."""
    data = tomllib.loads((FOLDER / "shared" / f"{name}.toml").read_text(encoding="utf-8"))
    return data | {"values": {renamed.get(key, key): rows for key, rows in data.get("values", {}).items()}}


def _rules(data: Mapping[str, Any]) -> Iterator[KeyRule]:
    """Yield the rules of a framework's file in order: keys that are fields, values that are fields, all others."""
    for key, name in data.get("fields", {}).items():
        yield KeyRule({key: (ANY,)}, {}, fields={name: f"${key}"})
    for key, rows in data.get("values", {}).items():
        for value, row in rows.items():
            listed = {key: [each for each in rows if each != ANY]} if value == ANY else {}
            yield _rule({"when": {key: value}, "unless": listed, **row})
    yield from map(_rule, data.get("rules", ()))


def _rule(row: Mapping[str, Any]) -> KeyRule:
    conditions, unless, where = (
        {key: tuple(value) if isinstance(value, list) else (value,) for key, value in row.get(name, {}).items()}
        for name in ("when", "unless", "where")
    )
    texts = (row.get(name, "") for name in ("unsupported", "refused", "asks", "follows", "source"))
    return KeyRule(conditions, unless, tuple(row.get("absent", ())), where, row.get("set"), *texts)

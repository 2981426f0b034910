"""Read trainers' files into one step, with what became of every key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import isfinite, prod
from os.path import isfile
from pathlib import Path
from typing import Any

from learncost.ir.dataclass import OPTIONAL, dataclass, field, fields, replace
from learncost.ir.errors import InputError, nearest, printable, shown
from learncost.models.files import DATA_FILES, SHELL, YAML
from learncost.trainer_files.documents import Document, read_document
from learncost.trainer_files.framework import ADAPTER, ENGINE, LAUNCH, STEP, Framework, KeyRule, Step, framework_of

ORDER = (LAUNCH, STEP, ENGINE)
"""The roles in the order of precedence, the last one first where a field differs; adapters come last."""

NAMED_FILES = {"the DeepSpeed file": ENGINE, "the accelerate file": LAUNCH, "the acceleration file": ADAPTER}
"""Files that another one names and that are asked for where they are not found, by the role that they have."""

BATCHES = ("micro_batch_size", "accumulate", "global_batch_size")
"""Fields of a step that two files must not have with different values."""

AXES = ("pp", "cp", "tp", "ep")
"""Fields of a step that are axes of a mesh, the innermost last."""

COUNTS = (*BATCHES, "seq_len", "lora_rank")
"""Fields of a step that are numbers from 1."""

SCIENTIFIC = re.compile(r"[-+]?\d+[eE][-+]?\d+")
"""A number that YAML 1.1 reads as a text, since it has no point."""

_TYPES = {each.name: str(each.type) for each in fields(Step)}


@dataclass(frozen=True)
class KeyRead:
    """A key of a file and what became of it.

    effect  the fields of the step that it gives, or why it is not counted
    near    of an unknown key, the known ones that are nearest
    """

    file: str
    key: str
    value: Any
    effect: str = ""
    line: int | None = None
    near: str = field(default="", metadata=OPTIONAL)


@dataclass(frozen=True)
class Reading:
    """Trainers' files as a step.

    read         keys whose values give the step
    assumed      keys that are absent, with the framework's defaults
    no_effect    keys that change neither memory nor time
    unsupported  keys whose effect is not counted, each with the direction of the error
    unknown      keys, or values of keys, that the framework's data does not have
    asks         what the files do not say
    refused      why the step is no training that can be predicted; empty if it is one
    """

    files: tuple[str, ...]
    frameworks: tuple[Framework, ...]
    step: Step
    read: tuple[KeyRead, ...]
    assumed: tuple[KeyRead, ...]
    no_effect: tuple[KeyRead, ...]
    unsupported: tuple[KeyRead, ...]
    unknown: tuple[KeyRead, ...]
    asks: tuple[str, ...]
    refused: str = ""


class TrainerFiles(tuple[str, ...]):
    """The paths of files that are one step.

    format_of  the framework of the step's file, if its keys are those of several
    strict     whether keys that are not known are refused
    """

    format_of: str
    strict: bool

    def __new__(cls, paths: Iterable[str], format_of: str = "", strict: bool = False) -> TrainerFiles:
        files = super().__new__(cls, paths)
        files.format_of, files.strict = format_of, strict
        return files


def is_trainer_file(path: object) -> bool:
    """Return whether a MODEL argument is a file of a trainer by its suffix and, for JSON, by its keys."""
    if not isinstance(path, str) or not path.lower().endswith(DATA_FILES) or not isfile(path):
        return False
    if path.lower().endswith((*YAML, *SHELL)):
        return True
    try:
        return not describes_model(read_document(path))
    except InputError:  # the error is raised where the file is needed
        return False


def describes_model(document: Document) -> bool:
    """Return whether JSON is the configuration of a model by its keys."""
    return bool({"model_type", "architectures", "_class_name", "text_config.model_type"} & {*document.values})


def read_files(paths: Sequence[str], format_of: str = "", alone: bool = False) -> Reading:
    """Return the step of trainers' files: one of a step, and at most one of each other role.

    paths      a step's file, and files that it is launched with
    format_of  the framework of the step's file, if its keys are those of several
    alone      whether a step's file may be left out, since flags say its model

    Raises InputError for files that cannot be read, recognised or joined.
    """
    documents = [read_document(path) for path in paths]
    known = [(framework_of(each, format_of), each) for each in documents]
    roles = {framework.role for framework, _ in known}
    for place in known:  # which grows
        followed = [(framework_of(each), each) for each in _followed(*place)]
        known += [each for each in followed if each[0].role not in roles]
        roles |= {framework.role for framework, _ in followed}
    return joined(known, alone)


def joined(known: Sequence[tuple[Framework, Document]], alone: bool = False) -> Reading:
    """Return the step of files in the order of their roles. Raises InputError for two of a role, or none of a step.

    alone  whether a step's file may be left out
    """
    roles = [framework.role for framework, _ in known]
    for role in roles:
        if roles.count(role) > 1:
            both = " and ".join(printable(each.name) for framework, each in known if framework.role == role)
            raise InputError(f"{both} are both files of the {role}: give one")
    if STEP not in roles and not alone:
        framework, document = known[0]
        raise InputError(
            f"{printable(document.name)} is a file of {framework.title}, which has no model and no batch: give it "
            "after the file of the training"
        )
    in_order = sorted(known, key=lambda each: ORDER.index(each[0].role) if each[0].role in ORDER else len(ORDER))
    return read_documents(in_order)


def _followed(framework: Framework, document: Document) -> Iterator[Document]:
    """Yield the documents that a file names by a path in its folder, or in the folder of the command."""
    for rule in framework.rules:
        if rule.follows and rule.holds(document.values, {}) and str(document.values[rule.follows]).isprintable():
            for folder in (Path(document.name).parent.resolve(), Path.cwd()):
                path = (folder / str(document.values[rule.follows])).resolve()
                if path.is_relative_to(folder) and path.is_file() and path.suffix.lower() in DATA_FILES:
                    yield read_document(str(path))
                    break


@dataclass(frozen=True)
class _FilePart:
    """A file with the rules of its framework that hold, and the defaults of its absent keys."""

    framework: Framework
    document: Document
    given: Mapping[str, Any]
    usual: Mapping[str, Any]
    holding: tuple[KeyRule, ...]

    def keys(self, step: Step, decided: Mapping[str, KeyRule]) -> dict[str, list[KeyRead]]:
        """Return the keys of the file by what became of them in the step of all files.

        decided  by field, the last rule that gives it
        """
        document, framework, values = self.document, self.framework, {**self.usual, **self.given}
        effects: dict[str, list[str]] = {}
        for name, rule in decided.items():
            for key in dict.fromkeys((*rule.conditions, *rule.taken)) if rule in self.holding else ():
                effects.setdefault(key, []).append(f"{name} = {step.get(name)}")
        unsupported = [
            _key(document, key, values.get(key), rule.unsupported)
            for rule in self.holding
            if rule.unsupported and (not rule.fields or any(decided[name] is rule for name in rule.fields))
            for key in [*rule.conditions][-1:]
        ]
        named = {each.key for each in unsupported}
        read = [
            _key(document, key, self.given[key], "; ".join(effects.get(key, ())))
            for key in self.given
            if key in framework.keys and (key not in named or key in effects)
        ]
        assumed = [
            KeyRead(document.name, key, self.usual[key], f"{'; '.join(effects[key])} ({framework.defaults[key][1]})")
            for key in self.usual
            if effects.get(key)
        ]
        strange = [
            _key(document, key, value, "a value that is not known")
            for key, value in self.given.items()
            if key in framework.keys and not framework.knows(key, value)
        ]
        others = [_key(document, key, self.given[key]) for key in self.given if key not in framework.keys]
        idle = [each for each in others if framework.is_without_effect(each.key)]
        idle += [
            _key(document, key, value, "what runs the file says it")
            for key, value in document.values.items()
            if key not in self.given
        ]
        branches = [
            KeyRead(document.name, key, value, "of a branch, another command or an earlier line, which is not taken")
            for key, value in document.branches.items()
            if not framework.is_without_effect(key)
        ]
        unknown = [*strange, *branches]
        unknown += [replace(each, near=nearest(each.key, framework.keys)) for each in others if each not in idle]
        return {
            "read": read, "assumed": assumed, "no_effect": idle, "unsupported": unsupported, "unknown": unknown
        }  # fmt: skip


def read_documents(known: Sequence[tuple[Framework, Document]]) -> Reading:
    """Return one reading of several files: a later one replaces what an earlier one gives, except different batches."""
    step, parts = Step(), list[_FilePart]()
    decided: dict[str, KeyRule] = {}
    given_by: dict[str, str] = {}
    is_sized = True
    for framework, given_document in known:
        document = framework.spelled(given_document)
        given = {key: value for key, value in document.values.items() if not framework.is_automatic(key, value)}
        opened = dict[str, Any]()
        for key, value in [*given.items()]:
            if framework.takes(key) and _is_open(value):
                fields = {name.partition(".")[0] for name in framework.gives(key)}
                if not fields <= {*BATCHES, *AXES, "devices", "seq_len", "sizes", "model"}:
                    raise InputError(
                        f"{document.at(key)} is {shown(value)}: only references to what the file sets are resolved"
                    )
                is_sized &= "sizes" not in fields or not fields.isdisjoint(AXES)  # which fill up a vocabulary
                opened[key] = given.pop(key)
        usual = {key: value for key, (value, _) in framework.defaults.items() if key not in given | opened}
        holding, before = list[KeyRule](), step
        for rule in framework.rules:
            if not rule.holds(given, usual, before):
                continue
            holding.append(rule)
            for name, value in (rule.fields or {}).items():
                step = step.having(name, _typed(name, _taken(value, {**usual, **given}), rule, document))
                decided[name] = rule
        for name in BATCHES:
            old, new = getattr(before, name), getattr(step, name)
            if old is not None and old != new:
                raise InputError(
                    f"{name.replace('_', ' ')} is {old} in {printable(given_by[name])} and {new} in "
                    f"{printable(document.name)}: make them equal"
                )
            given_by.setdefault(name, document.name)
        parts.append(_FilePart(framework, document, given, usual, tuple(holding)))
    step = step if is_sized else step.having("sizes", None)  # one alone does not name a model
    every = [part.keys(step, decided) for part in parts]
    return Reading(
        files=tuple(part.document.name for part in parts),
        frameworks=tuple(part.framework for part in parts),
        step=step,
        **{name: tuple(key for keys in every for key in keys[name]) for name in every[0]},
        asks=tuple(sorted(_asked(parts, step))),
        refused=next((rule.refused for part in parts for rule in part.holding if rule.refused), ""),
    )


def _is_open(value: Any) -> bool:
    """Return whether a value has a reference to what the file does not set."""
    return isinstance(value, str) and "$" in value


def _asked(parts: Sequence[_FilePart], step: Step) -> set[str]:
    """Return what the files do not say."""
    asks = {rule.asks for part in parts for rule in part.holding if rule.asks}
    if step.devices and step.devices % prod(axis or 1 for axis in (step.tp, step.pp, step.cp)):
        asks.add("devices")  # they are not those of the run
    elif step.devices or step.shard or step.replicate or step.dp:
        asks.discard("devices")
    if step.get("sizes.vocab_size") or not step.sizes:
        asks.discard("vocab_size")
    roles = {part.framework.role for part in parts}
    asks -= {name for name, role in NAMED_FILES.items() if role in roles}
    keys = [(part, key) for part in parts for key in {*part.document.values} - {*part.given}]
    fields = [part.framework.gives(key) for part, key in keys if _is_open(part.document.values[key])]
    is_open = set[str]().union(*fields)
    asks |= {"batch_size"} if is_open & {*BATCHES} or step.micro_batch_size is None else set()
    asks |= is_open & {*AXES}
    return asks | ({"seq_len"} if step.seq_len is None else set())


def _key(document: Document, key: str, value: Any, effect: str = "") -> KeyRead:
    return KeyRead(document.name, key, value, effect, document.lines.get(key))


def _taken(value: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a rule's field: that of a key, as in $KEY, a product, as in 1/3 $KEY $KEY, or itself.

    `A + B` is a sum, and `A to B` is the whole part of A, up to a multiple of B.
    """
    if not isinstance(value, str) or "$" not in value:
        return value
    number, *others = (_sum(each, values) for each in value.split(" to "))
    for multiple in others:
        if isinstance(number, int | float) and isfinite(number) and isinstance(multiple, int) and multiple > 0:
            return -(-int(number) // multiple) * multiple
    return number


def _sum(text: str, values: Mapping[str, Any]) -> Any:
    first, *others = (_product(each, values) for each in text.split(" + "))
    return first + sum(others) if others and all(isinstance(each, int | float) for each in (first, *others)) else first


def _product(text: str, values: Mapping[str, Any]) -> Any:
    above, below = list[Any](), 1.0
    for each in text.split():
        number, _, divisor = each.partition("/")
        above.append(values[number[1:]] if number.startswith("$") else float(number))
        below *= float(divisor or 1)
    if (len(above) == 1 and "$" in text) or not all(isinstance(each, int | float) for each in above):
        return above[-1]  # a text is refused where it is typed
    return int(product) if (product := prod(above) / below).is_integer() else product


def _typed(name: str, value: Any, rule: KeyRule, document: Document) -> Any:
    """Return a value in the type of a field. Raises `InputError` naming the key for one that is not of it."""
    if name not in _TYPES:  # one of the sizes, which the family of the model reads; 1e-6 is a text in YAML
        return float(value) if isinstance(value, str) and SCIENTIFIC.fullmatch(value) else value
    kind = _TYPES[name]
    if isinstance(value, list) and "str" in kind:
        return ",".join(map(str, value))
    if "str" in kind and not ("int" in kind and str(value).isdigit()):
        return str(value)
    if "bool" in kind and isinstance(value, int) and value in (0, 1):
        return bool(value)
    if not isinstance(value, bool) and ("int" in kind or "float" in kind):
        try:
            number = float(value)
            whole = number == int(number)
            if (number > 0 or name not in COUNTS) and (whole or "float" in kind):
                return int(number) if whole else number
        except (TypeError, ValueError, OverflowError):
            pass
    number_wanted = f"a {'' if 'float' in kind else 'whole '}number{' above 0' if name in COUNTS else ''}"
    wanted = "true or false" if "bool" in kind else number_wanted
    raise InputError(f"{document.at([*rule.conditions][-1])} is {shown(value)}, not {wanted}")

"""Questions: functions whose parameters are flags, written once in the signature and the docstring.

From there come the keyword, the flag of the command line with its help, and the JSON schema. What parameters mean that
several functions have stands in flags.toml, once; a docstring has those that mean something else there, or that are
the function's own.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from importlib import import_module
from inspect import Parameter, Signature, cleandoc, signature
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, TypeVar, cast

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import RETIRED, InputError, counted, shown
from learncost.models.files import looks_like_path
from learncost.models.sizes import CANONICAL, RUN_SPELLINGS, spelled

QuestionFunction = TypeVar("QuestionFunction", bound=Callable[..., Any])

_SECTION = re.compile(r"(?:^|\n)(Parameters|Attributes|Returns|Raises|Commands|Examples)\n-{3,}\n")
_ITEM = r"[^,=+]+"


@dataclass(frozen=True)
class Shared:
    """The part of a flag that several questions share: a row of flags.toml, which describes its fields."""

    group: str
    meaning: str = ""
    value: str = ""
    also: Sequence[str] = ()
    typed: str = ""
    known: str = ""
    several: bool = False
    repeats: bool = False
    brief: str = ""
    common: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    besides: Mapping[str, str] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)

    @property
    def choices(self) -> tuple[str, ...]:
        """The allowed values of a flag, if they are a list."""
        names = list[str]()
        for word in self.known.split():
            if word.endswith(".toml"):
                rows = tomllib.loads((Path(__file__).parents[1] / word).read_text(encoding="utf-8"))
                names += (name for key, row in rows.items() for name in (key, *row.get("also", ())))
                continue
            module, is_registry, name = word.partition(":")
            registered = getattr(import_module(f"learncost.{module}"), name) if is_registry else (word,)
            names += registered() if callable(registered) else registered
        return tuple(names)


class _Rows(Mapping[str, Shared]):
    """The rows of flags.toml, each parsed when it is first asked for: start-up counts."""

    def __init__(self) -> None:
        text = Path(__file__).with_name("flags.toml").read_text(encoding="utf-8")
        _, *parts = re.split(r"(?m)^\[(\w+)\.(\w+)\]$", text)  # a row, and below it its tables [Group.name.values]
        self._texts = {n: (g, f"[{g}.{n}]{t}") for g, n, t in zip(parts[::3], parts[1::3], parts[2::3], strict=True)}
        self.groups = tuple(dict.fromkeys(parts[::3]))
        self._parsed: dict[str, Shared] = {}

    def __getitem__(self, name: str) -> Shared:
        if name not in self._parsed:
            group, text = self._texts[name]
            self._parsed[name] = Shared(group, **tomllib.loads(text)[group][name])
        return self._parsed[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


FLAGS = _Rows()

GROUPS = FLAGS.groups
"""The groups of the help in their order."""


@cache
def switches() -> Mapping[str, tuple[str, str]]:
    """Return the switches of other tools, each with the flag and the value that it stands for."""
    return {f"--{switch}": (name, value) for name, row in FLAGS.items() for switch, value in row.switches.items()}


@dataclass(frozen=True)
class Flag:
    """A parameter of a question, with its spelling, meaning and type.

    kind     boolean, integer, number or string, as in a JSON schema
    how      argument, arguments (all that there are), flag, or flags (all others: sizes of a model)
    meaning  as in the docstring: other parameters are between backticks
    about    what it has in common with those of other questions, and its group
    """

    name: str
    kind: str
    default: Any
    how: str
    meaning: str
    about: Shared

    @property
    def names(self) -> tuple[str, ...]:
        """The spellings of a flag, the usual name first; short forms such as -o last."""
        spellings = dict.fromkeys((self.about.typed or self.name, *self.about.also))
        return tuple(name if name.startswith("-") else f"--{name.strip('_').replace('_', '-')}" for name in spellings)

    @property
    def reverses(self) -> bool:
        """Return whether a flag is a switch that --no- before its name turns off."""
        return self.kind == "boolean" and self.default is None

    @property
    def required(self) -> bool:
        return self.default is Parameter.empty and self.how in ("argument", "flag")

    @property
    def value(self) -> str:
        """The placeholder of a flag's value in the help; "" for a switch."""
        usual = {"boolean": "", "integer": "N", "number": "N", "string": "NAME"}[self.kind]
        return self.about.value or usual

    def schema(self) -> dict[str, Any]:
        """Return the property of a JSON schema; numbers may be strings too, such as 3e11 or 8k."""
        number = self.kind in ("integer", "number")
        schema: dict[str, Any] = {"type": [self.kind, "string"] if number else self.kind}
        schema["description"] = typed(self.meaning)
        if self.about.choices:
            schema["examples" if self.about.several else "enum"] = list(self.about.choices)
        if self.how == "arguments" or self.about.repeats:
            schema = {"type": "array", "items": {"type": schema["type"]}, "description": schema["description"]}
        return schema if self.default in (None, "", Parameter.empty) else schema | {"default": self.default}


def question(rest: Callable[..., Any] | None = None, names: str = "") -> Callable[[QuestionFunction], QuestionFunction]:
    """Make a function a question: arguments may have another case or any of their names.

    The docstring then lists all parameters.

    rest   a function or a dataclass whose parameters go among the `**` of the question
    names  which of them; else all
    """

    def make(function: QuestionFunction) -> QuestionFunction:
        own = signature(function).parameters
        of_rest = signature(rest).parameters.values() if rest else ()
        more = [
            parameter.replace(kind=Parameter.KEYWORD_ONLY)
            for parameter in of_rest
            if parameter.name not in own and (not names or parameter.name in names.split())
        ]
        accepted = sorted((*own.values(), *more), key=lambda parameter: parameter.kind)  # `**` is last
        meanings = docstring_parts(rest).parameters if rest else {}
        others = {name: text for name, text in meanings.items() if name not in own or name not in FLAGS}
        return cast("QuestionFunction", asked(function, Signature(accepted), function, others))

    return make


def asked(
    function: Callable[..., Any], accepted: Signature, call: Callable[..., Any], others: Mapping[str, str] = {}
) -> Callable[..., Any]:
    """Return a question: `call` with its arguments in the usual names and spellings, and a docstring that lists all.

    accepted  the parameters
    others    what parameters mean that the docstring says nothing of
    """
    parameters = accepted.parameters
    function.__doc__ = _documented(function, parameters, others)
    function.__dict__["parameters"] = parameters

    @wraps(function)
    def ask(*args: Any, **arguments: Any) -> Any:
        for name in arguments:
            if (today := RETIRED["flag"].get(f"--{name}", "")[2:].replace("-", "_")) in parameters:
                raise InputError(f"the keyword {name!r} is called {today!r} now")
        if "format" in {*arguments} - {*parameters}:
            raise InputError(f"format is no keyword: write the answer by .show({arguments['format']!r})")
        canonical = canonical_arguments(arguments, parameters, [*parameters][: len(args)])
        places = (*parameters, *[""] * len(args))
        try:
            return call(*(_usual(name, value) for name, value in zip(places, args, strict=False)), **canonical)
        except InputError as error:
            name, space, rest = error.written.partition(" ")
            given = {RUN_SPELLINGS.get(spelled(spelling), spelling): spelling for spelling in arguments}
            error.written = given.get(name, name) + space + rest  # such as B, of a table that calls its batch so
            error.args = (in_keywords(error.written, flags_of(function)),)
            raise

    ask.__dict__["__signature__"] = accepted
    return ask


def canonical_arguments(
    arguments: Mapping[str, Any], parameters: Mapping[str, Any], given: Sequence[str] = ()
) -> dict[str, Any]:
    """Return arguments under the names of their parameters, with values in the usual spelling. Raises `InputError`.

    given  the parameters that have a value by their place
    """
    arguments = _without_switches(arguments, parameters)
    renamed = [_renamed(name, parameters) for name in arguments]
    if len({*renamed}) < len(arguments):
        raise InputError(f"{' and '.join(_twice(arguments, parameters))} are the same option: give one of them")
    usual = {name: _usual(name, value) for name, value in zip(renamed, arguments.values(), strict=True)}
    for name, value in zip(renamed, arguments.values(), strict=True):
        besides = FLAGS[name].besides if name in FLAGS else {}
        if other := besides.get(str(value).lower().replace("_", "-")):
            flag, meant = other.split()
            if flag not in parameters:
                raise InputError(
                    f"--{name} {value} is --{name} {usual[name]} --{flag} {meant}, which learncost memory supports: "
                    f"give --{name} {usual[name]}"
                )
            usual = {flag: meant, **usual}
    return _with_lengths(usual, given, parameters)


def _without_switches(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments with gradient_checkpointing=True as procedure="recompute", where the function has that."""
    result = dict[str, Any]()
    for name, value in arguments.items():
        own = name in parameters
        target, meant = ("", "") if own else switches().get(f"--{name.replace('_', '-')}", ("", ""))
        if target not in parameters:
            result[name] = value
        elif value:
            if target in {**arguments, **result}:
                raise InputError(f"{name} and {target} are the same option: give one of them")
            result[target] = meant
    return result


def _renamed(name: str, parameters: Mapping[str, Any]) -> str:
    """Return the function's parameter for the name of an argument."""
    if name in parameters:
        return name
    row = FLAGS.get(name, Shared(""))
    others = (*row.also, row.typed, *(known for known, each in FLAGS.items() if name in each.also))
    return next((other for other in others if other in parameters), name)


def _with_lengths(arguments: dict[str, Any], given: Sequence[str], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with sizes of a run under their parameters' names, such as batch_size for B."""
    renamed = dict(arguments)
    for spelling in arguments:
        name = RUN_SPELLINGS.get(spelled(spelling), "")
        if spelling in parameters or name not in parameters or name in given:
            continue
        value, earlier = renamed.pop(spelling), renamed.get(name)
        if earlier not in (None, value) and (counted(earlier) or -1) != counted(value):
            raise InputError(f"{spelling} = {shown(value)} contradicts {name} = {shown(earlier)}")
        renamed[name] = value
    return renamed


def _twice(arguments: Mapping[str, Any], parameters: Mapping[str, Any]) -> list[str]:
    names = [_renamed(name, parameters) for name in arguments]
    return [name for name in arguments if names.count(_renamed(name, parameters)) > 1]


def _usual(name: str, value: Any) -> Any:
    """Return names as in their registry, such as adamw for AdamW or adamw_torch, and NumPy's numbers as Python's."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()
    elif isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(_usual(name, member) for member in value)
    if type(value) is not str or name not in FLAGS:
        return value
    others = FLAGS[name].values
    choices = {} if value == value.lower() else {choice.lower(): choice for choice in FLAGS[name].choices}
    if not (others or choices):
        return value

    def usual(part: re.Match[str]) -> str:
        word = part[0].strip().lower()
        return choices.get(word) or others.get(word.replace("_", "-"), part[0])

    return re.sub(_ITEM, usual, value)


@dataclass(frozen=True)
class DocParts:
    """The parts of a docstring: the function's summary, its parameters, and its example commands."""

    about: str
    parameters: Mapping[str, str]
    commands: tuple[tuple[str, str], ...]


def docstring_parts(function: Callable[..., Any]) -> DocParts:
    """Return the parts of a docstring that the help shows."""
    about, *parts = _SECTION.split(cleandoc(function.__doc__ or ""))
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    paragraphs = (" ".join(part.split()) for part in about.split("\n\n"))
    meanings, commands = (tuple(_entries(sections.get(name, ""))) for name in ("Parameters", "Commands"))
    return DocParts("\n\n".join(filter(None, paragraphs)), dict(meanings), commands)


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield unindented lines with the indented ones below each."""
    for entry in re.split(r"\n(?=\S)", text.strip("\n")):
        head, _, below = entry.partition("\n")
        if head:
            yield head.strip(), " ".join(below.split())


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter]:
    """Return the parameters of a function, and those of another function to which it passes them."""
    parameters: Mapping[str, Parameter] = getattr(function, "parameters", None) or signature(function).parameters
    return parameters


@cache  # by function that answers a command
def flags_of(function: Callable[..., Any]) -> tuple[Flag, ...]:
    """Return the flags and arguments of a question, in the order of its parameters."""
    meanings, group, flags = docstring_parts(function).parameters, GROUPS[-1], list[Flag]()
    for parameter in _parameters(function).values():
        about = FLAGS.get(parameter.name, Shared(group))
        group, annotation = about.group, str(parameter.annotation)
        how = _HOW.get(parameter.kind, "flag")
        if not flags and parameter.kind is Parameter.POSITIONAL_OR_KEYWORD and parameter.default is Parameter.empty:
            how = "argument"  # that it is about; others have names
        flags.append(
            Flag(parameter.name, _kind(annotation), parameter.default, how, meanings.get(parameter.name, ""), about)
        )
    return tuple(flags)


_HOW: Mapping[Any, str] = {
    Parameter.POSITIONAL_ONLY: "argument",
    Parameter.VAR_POSITIONAL: "arguments",
    Parameter.VAR_KEYWORD: "flags",
}


def schema_of(name: str, function: Callable[..., Any]) -> dict[str, Any]:
    """Return the JSON schema (2020-12) of a question's parameters."""
    flags = flags_of(function)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": typed(docstring_parts(function).about),
        "type": "object",
        "properties": {flag.name: flag.schema() for flag in flags if flag.how != "flags"},
        "required": [flag.name for flag in flags if flag.required],
        "additionalProperties": any(flag.how == "flags" for flag in flags),
    }


def _kind(annotation: str) -> str:
    words = re.findall(r"\w+", annotation)
    kinds = {"bool": "boolean", "int": "integer", "float": "number"}
    return next((kind for word, kind in kinds.items() if word in words), "string")


def _documented(function: Callable[..., Any], parameters: Iterable[str], others: Mapping[str, str]) -> str:
    """Return the docstring with all parameters in order; missing ones have the shared descriptions."""
    about, *parts = _SECTION.split(cleandoc(function.__doc__ or ""))
    meanings, listed = docstring_parts(function).parameters, []
    for name in parameters:
        shared = FLAGS.get(name, Shared(""))
        meaning = meanings.get(name) or others.get(name) or shared.meaning
        assert meaning, f"{function.__name__} does not say what {name} means"
        if "{choices}" in meaning:
            meaning = meaning.replace("{choices}", ", ".join(shared.choices))
        listed.append(f"{name}\n    {meaning}")
    text_of_section = dict(zip(parts[::2], parts[1::2], strict=True))
    sections = {"Parameters": "", **text_of_section} | {"Parameters": "\n".join(listed)}
    return "\n\n".join([about, *(f"{name}\n{'-' * len(name)}\n{text.strip()}" for name, text in sections.items())])


def flags_typed(arguments: Mapping[str, Any]) -> list[str]:
    """Return keywords as command-line arguments."""
    words = list[str]()
    for name, value in arguments.items():
        flag = FLAGS[name].typed or name if name in FLAGS else name
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        words += [f"--{flag.replace('_', '-')}", *(() if value is True else (text,))]
    return words


_COMMAND_LINE = r"\blearncost (?:list )?[a-z][a-z-]*(?: --[a-z][a-z0-9-]*(?: (?!--)[^\s,;:()]+)?)*"
_QUOTED = rf"`[^`]*`|(?<!\w)'[^']*'(?!\w)|torchrun .*|{_COMMAND_LINE}"
_FLAG = r"(?<![\w-])--([A-Za-z][a-z0-9-]*)(?:[ =]([^\s;:()]*[^\s;:(),.])(?=(\W?(?:or )?))?)?"
_SUBJECT = r"([a-zA-Z][a-zA-Z0-9_-]*)(?:(?: [0-9,]+)? (?:must|cannot|requires|contradicts|=|is|are|has) |: )"


def in_keywords(message: str, flags: Iterable[Flag]) -> str:
    """Return a message to someone who calls the question in Python: its flags are keywords."""
    flags = tuple(flags)
    by_spelling = {name: flag for flag in flags for name in flag.names if flag.how == "flag"}
    takes_sizes = any(flag.how == "flags" for flag in flags)

    def keyword(match: re.Match[str]) -> str:
        flag, value = by_spelling.get(f"--{match[1]}"), match[2]
        name = flag.name if flag else match[1].replace("-", "_")
        if flag is None and (FLAGS[name].group == "Import" if name in FLAGS else not takes_sizes):
            return match[0]
        if value is None:
            return name
        is_number, is_placeholder = re.fullmatch(r"[0-9][0-9.e]*", value), re.fullmatch(r"[A-Z_.:]+", value)
        ends = match[3] != " " or (flag is not None and value in flag.about.choices) or bool(re.search(r"[=,]", value))
        if is_number or is_placeholder or ends:
            return f"{name}={value if is_number or is_placeholder else repr(value)}"
        return f"{name} {value}"

    return _outside_quotes(message, lambda text: re.sub(_FLAG, keyword, text))


def in_flags(message: str, flags: Iterable[Flag], words: Iterable[str]) -> str:
    """Return a message to someone who typed a command: keywords are flags, as are sizes, unless a file has them.

    words  of the command line: a name that the message begins with is a flag if it was typed, or if no file was given
    """
    words = [*words]
    flags = [flag for flag in flags if flag.how == "flag"]
    by_spelling = {name: flag.name for flag in flags for name in flag.names}
    names_typed = set[str]()
    for word in words:
        if word.startswith("--"):
            name = spelled(word.partition("=")[0][2:])
            field_name = by_spelling.get(f"--{name.replace('_', '-')}", name)
            names_typed |= {name, field_name, CANONICAL.get(name, name)}
    subject = re.match(_SUBJECT, message)
    first = spelled(subject[1]) if subject else ""
    models = takewhile(lambda word: not word.startswith("-"), words[1:])
    from_file = any(looks_like_path(model.partition(":")[0]) for model in models)
    if first in CANONICAL and (first in names_typed or not from_file):
        names_typed |= {size for size in CANONICAL if "_" in size}
    known = {size: f"--{size.replace('_', '-')}" for size in names_typed & CANONICAL.keys()}
    known |= {flag.name: flag.names[0] for flag in flags}
    start = subject[1] if subject and first in known else ""
    rest = message[len(start) :]
    if start and first in names_typed:
        start = known[first]
    names = "|".join(re.escape(name) for name in known if "_" in name)
    pattern = re.compile(rf"(?<![\w.=-])({names or '(?!)'})(?![\w.=-])")
    return start + _outside_quotes(rest, lambda text: pattern.sub(lambda match: known[match[1]], text))


def _outside_quotes(message: str, change: Callable[[str], str]) -> str:
    """Return a message with a change of all that it does not quote: code, values and command lines."""
    ends = [0, *(end for match in re.finditer(_QUOTED, message) for end in match.span()), len(message)]
    texts = [message[first:last] for first, last in pairwise(ends)]
    return "".join(text if place % 2 else change(text) for place, text in enumerate(texts))


def typed(text: str) -> str:
    """Return a text for the command line: parameters as flags, and no backticks."""
    flagged = re.sub(r"`([a-z][a-z0-9_]*)`", lambda match: f"--{match[1].replace('_', '-')}", text)
    return flagged.replace("`", "")

"""The API reference: every public name with its signature, what it takes and gives, and an example.

Everything is read off `learncost.__all__` and the docstrings behind it; no name is listed here.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from docstring_parser import Docstring, DocstringStyle, parse

import learncost as lc
from learncost.reports.question import docstring_parts

_ELSEWHERE = re.compile(r"mean\s+what\s+they\s+mean\s+in\s+`lc\.(\w+)`")
"""How a docstring says where arguments that it does not list are described."""

_COMMANDS = re.compile(r"\n\nCommands\n-{8}\n.*?(?=\n\n\w+\n-{3,}\n|\Z)", re.DOTALL)
"""What is typed on the command line for the same."""

NAMES = tuple(sorted((name for name in lc.__all__ if not name.startswith("_")), key=str.lower))


def public(name: str) -> Any:
    """What a public name stands for, without what remembers its results."""
    return inspect.unwrap(getattr(lc, name))


def docstring(thing: Any) -> Docstring:
    """The parts of a docstring: what it is, parameters or attributes, what it gives, raises, and an example."""
    return parse(_COMMANDS.sub("", inspect.getdoc(thing) or ""), DocstringStyle.NUMPYDOC)


def parameters(name: str) -> dict[str, inspect.Parameter]:
    """What a call of the name takes; nothing for what is only handed out."""
    thing = public(name)
    return {} if is_dataclass(thing) else dict(_signature(thing).parameters)


def described(name: str) -> dict[str, str]:
    """What is said of every parameter, here or in the function whose meaning the docstring takes over."""
    documented = docstring(public(name))
    each = [one for one in documented.params if one.args[0] == "param"]
    own = {name: one.description or "" for one in each for name in one.arg_name.split(", ")}
    elsewhere = _ELSEWHERE.search(inspect.getdoc(public(name)) or "")
    return described(elsewhere[1]) | own if elsewhere else own


def attributes(name: str) -> dict[str, str]:
    """Return the descriptions of the fields of a record, those that it inherits last."""
    parents = [base for base in getattr(public(name), "__mro__", ()) if is_dataclass(base) and _ours(base)]
    documented = (one for base in parents for one in docstring(base).params)
    return {one.arg_name: one.description or "" for one in documented if one.args[0] == "attribute"}


def members(name: str) -> Iterator[tuple[str, Any, str]]:
    """The methods and properties of a class, with their signatures; a property's is its name alone."""
    thing = public(name)
    names = {field.name for field in fields(thing)} if is_dataclass(thing) else set()
    for member in dict.fromkeys(own for base in thing.__mro__ if _ours(base) for own in vars(base)):
        value = inspect.getattr_static(thing, member)
        if member.startswith("_") or member in names:
            continue
        if isinstance(value, property):
            yield member, value, member
        elif inspect.isfunction(value):
            yield member, value, written(member, _signature(value))


def pages() -> dict[str, str]:
    """A page for each name, names that differ in their letters' case alone on one; and their list."""
    found: dict[str, list[str]] = {}
    for name in NAMES:
        found.setdefault(file_of(name), []).append(name)
    result = {f"api/{file}.md": "\n".join(map(section, names)) for file, names in found.items()}
    rows = "".join(f"| [`{name}`]({file_of(name)}.md) | {summary(name)} |\n" for name in NAMES)
    tree = "\n".join(found)
    result["api/index.md"] = (
        "# Python reference\n\n"
        "Everything public is a name of `learncost`, here called `lc`:\n\n"
        "```python\nimport learncost as lc\n\n"
        'print(lc.cost("gpt2", seq_len=1024))\n```\n\n'
        "The packages below are private and may change. What is wrong with an argument is an\n"
        "[`InputError`](inputerror.md) of one line. The examples are run by the tests.\n\n"
        f"| name | what it is |\n| --- | --- |\n{rows}\n"
        f"```{{toctree}}\n:hidden:\n\n{tree}\n```\n"
    )
    return result


def file_of(name: str) -> str:
    """The page of a name."""
    return name.lower()


def summary(name: str) -> str:
    """The first sentence of its docstring."""
    return linked(docstring(public(name)).short_description or "", name)


def section(name: str) -> str:
    """One name: its signature, what it is, what it takes and gives, an example."""
    thing = public(name)
    documented = docstring(thing)
    text = (inspect.getdoc(thing) or "").partition("\n\n")[2]
    text = re.split(r"^\w+\n-{3,}$", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
    parts = [f"# {name}", f"```python\n{_heading(name)}\n```", summary(name)]
    parts += [linked(text, name)] if text else []
    parts += [f"```pycon\n{example_of(name)}\n```"]
    if typed := docstring_parts(thing).commands if inspect.isfunction(thing) else ():
        lines = "\n".join(f"# {what}\n{command}" for command, what in typed)
        parts.append(f"On the command line:\n\n```sh\n{lines}\n```")
    if takes := parameters(name):
        about = described(name)
        listed = [(own, about[own]) for own in takes]
        parts += ["## Parameters", _definitions(listed, name)]
    if attributes(name):
        parts += ["## Attributes", _definitions(attributes(name).items(), name)]
    if inspect.isclass(thing) and (own := list(members(name))):
        parts += ["## Methods and properties", "\n\n".join(_member(*one, name) for one in own)]
    if documented.returns and documented.returns.description:
        kind_of = linked(f"`{documented.returns.type_name}`", name)
        parts += ["## Returns", f"{kind_of}: {linked(documented.returns.description, name)}"]
    if documented.raises:
        parts += [
            "## Errors",
            _definitions([(e.type_name or "", e.description or "") for e in documented.raises], name),
        ]
    return "\n\n".join(parts) + "\n"


def example_of(name: str) -> str:
    """The example of a name, as it would be typed at Python's prompt."""
    return (inspect.getdoc(public(name)) or "").partition("\nExamples\n--------\n")[2].strip()


def _member(member: str, value: Any, heading: str, name: str) -> str:
    documented = docstring(value.fget if isinstance(value, property) else value)
    text = linked(documented.short_description or "", name)
    if documented.long_description:
        text += "\n\n" + linked(documented.long_description, name)
    parts = [f"### {member}", f"```python\n{heading}\n```" if heading != member else "", text]
    if documented.params:
        parts.append(_definitions([(one.arg_name, one.description or "") for one in documented.params], name))
    return "\n\n".join(part for part in parts if part)


def _definitions(rows: Any, name: str) -> str:
    def block(term: str, text: str) -> str:
        body = linked(text, name).replace("\n", "\n  ")
        return f"{linked(f'`{term}`', name)}\n: {body}"

    return "\n\n".join(block(term, text) for term, text in rows)


def linked(text: str, within: str) -> str:
    """The text with a link behind every public name between backticks: `lc.cost`, or `Cost`, a word with a capital."""

    def link(match: re.Match[str]) -> str:
        name = match[1].partition("(")[0]
        bare = name.removeprefix("lc.")
        if bare not in NAMES or bare == within or (name == bare and bare == bare.lower()):
            return match[0]
        return f"[`{match[1]}`]({file_of(bare)}.md)"

    return re.sub(r"`([\w.]+(?:\([^`]*\))?)`", link, text)


def _heading(name: str) -> str:
    thing = public(name)
    return written(f"class lc.{name}" if inspect.isclass(thing) else f"lc.{name}", _signature(thing))


def _signature(thing: Any) -> inspect.Signature:
    """The signature without `self`; of an exception that takes what all of them take, an empty one."""
    if inspect.isclass(thing) and issubclass(thing, Exception):
        thing = thing.__init__ if "__init__" in vars(thing) else lambda: None
    signature = inspect.signature(thing)
    taken = getattr(thing, "parameters", signature.parameters) if inspect.isfunction(thing) else signature.parameters
    return signature.replace(parameters=[one for one in taken.values() if one.name != "self"])


def written(name: str, signature: inspect.Signature) -> str:
    """A signature as it stands in source, an argument a line where it is long."""
    texts = []
    after = False
    for one in signature.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not after:
            texts, after = [*texts, "*"], True
        text = {one.VAR_KEYWORD: "**", one.VAR_POSITIONAL: "*"}.get(one.kind, "") + one.name
        if one.annotation is not one.empty:
            text += f": {_type(one.annotation)}"
        if one.default is not one.empty:
            shown = "..." if one.default is MISSING or "<" in repr(one.default) else repr(one.default)
            text += f" = {shown}".replace("'", '"')
        texts.append(text)
    given = signature.return_annotation
    end = "" if given in (signature.empty, "None", None) else f" -> {_type(given)}"
    line = f"{name}({', '.join(texts)}){end}"
    return line if len(line) <= 76 else f"{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){end}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _ours(thing: type) -> bool:
    return thing.__module__.startswith("learncost")

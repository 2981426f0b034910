"""Read YAML, JSON and TOML files, shell scripts and assignments in Python into mappings from dotted keys to values.

Files are limited in size, nodes and nesting. YAML is read by its safe loader, which makes plain values only. Shell and
Python are read as text, and nothing in them is run.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from sys import float_info
from typing import Any
from warnings import catch_warnings

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError, imported, printable, shown
from learncost.models.files import PYTHON, SHELL, YAML, parse_json, parse_toml
from learncost.trainer_files.shell import arguments_of, plain_value

LARGEST = 2**19  # bytes; the largest of the public files in benchmarks/trainer_files.json, of OLMo, has 312 kB
NODES = 10_000  # values and keys, with those of aliases counted wherever they are used
DEEPEST = 40  # nested mappings and lists


REFERENCE = re.compile(r"\$\{(\.*)([\w-]+(?:\.[\w-]+)*)\}")
"""A reference of OmegaConf to another key, such as ${model.d_model}, or ${.d_model} in the same mapping."""

COMPUTED = re.compile(r"\$\{(multiply|divide_floor|divide_ceil): *(\d{1,15}) *, *(\d{1,15}) *\}")
"""Two numbers and what NeMo-Framework-Launcher computes of them (launcher_scripts/main.py registers the resolvers)."""

LONGEST = 1_000  # characters of a text with its references replaced


@dataclass(frozen=True)
class Document:
    """A file by its name, with its values by dotted keys; empty values are left out.

    lines     the line of each key, where the format has them
    branches  the arguments that branches of a script add or change, and earlier values of keys that stand twice
    """

    name: str
    values: Mapping[str, Any]
    lines: Mapping[str, int] = field(default_factory=dict)
    branches: Mapping[str, Any] = field(default_factory=dict)

    def at(self, key: str) -> str:
        """Return where a key is, for messages: the file, its line if known, and the key."""
        line = f", line {self.lines[key]}" if key in self.lines else ""
        return f"{printable(self.name)}{line}: {key}"


def read_document(path: str) -> Document:
    """Return the document of a YAML, JSON, TOML or shell file, or of assignments in Python.

    Raises InputError for a file that cannot be read, is malformed, is no mapping, or exceeds the limits.
    """
    largest = LARGEST // 4 if path.lower().endswith(SHELL) else LARGEST  # a script of branches alone takes long
    try:
        with Path(path).open("rb") as file:
            content = file.read(largest + 1)
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{shown(path)} is not UTF-8 text") from None
    except OSError as error:
        raise InputError(f"cannot read {shown(path)}: {error.strerror or error}") from None
    if len(content) > largest:
        raise InputError(f"{shown(path)} is larger than {largest // 2**10} KiB, so it is not a trainer's file")
    return document_of(path, text)


def document_of(path: str, text: str) -> Document:
    """Return the document of a file's text, which is read as the suffix of its name says."""
    suffix = Path(path).suffix.lower()
    if suffix in YAML:
        return _yaml(path, text)
    try:
        values, *more = (
            arguments_of(text)
            if suffix in SHELL
            else _assigned(path, text)
            if suffix == PYTHON
            else ((parse_toml if suffix == ".toml" else parse_json)(text, printable(path)),)
        )
        return Document(path, dict(flattened(values)), *more)
    except RecursionError:
        raise InputError(f"{printable(path)} is nested too deep to be a trainer's file") from None


def flattened(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested mappings by dotted keys, without empty ones; lists are values, as JSON has them."""
    for key, value in values.items():
        name = prefix + (key if isinstance(key, str) else shown(key))
        if isinstance(value, Mapping):
            yield from flattened(value, f"{name}.")
        elif value is not None and value != []:
            yield name, _of_json(value)


def _of_json(value: Any) -> Any:
    """Return a value that JSON can say: dates, sets, bytes, and numbers that are none of a float are texts."""
    if isinstance(value, list):
        return [_of_json(each) for each in value]
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else shown(key): _of_json(each) for key, each in value.items()}
    if value is None or isinstance(value, str) or (isinstance(value, int | float) and abs(value) <= float_info.max):
        return value
    return shown(value) if isinstance(value, int) else str(value)


def _assigned(path: str, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the values that a Python file assigns to names, and their lines; sums of text are left out.

    Raises `InputError` for a file with anything else than assignments of plain values, and imports of time.
    """
    no_settings = InputError(f"{printable(path)} is no file of settings: it has more than names and plain values")
    try:
        with catch_warnings(action="ignore"):
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise no_settings from None
    values, lines = dict[str, Any](), dict[str, int]()
    for each in tree.body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                lines[name] = each.lineno
                if (number := plain_value(value, values)) is not None:
                    values[name] = number
                elif isinstance(value, ast.Constant | ast.JoinedStr) or (
                    isinstance(value, ast.BinOp) and isinstance(plain_value(value.left, values), str)
                ):  # None, or the name of a run
                    values.pop(name, None)
                else:
                    raise no_settings
            case ast.Expr(value=ast.Constant(value=str())) | ast.Import(names=[ast.alias(name="time")]):
                pass
            case _:
                raise no_settings
    return values, lines


def _yaml(path: str, text: str) -> Document:
    yaml = imported("yaml", f"YAML files such as {shown(path)} need PyYAML", "configs")
    where = printable(path)
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is not None:
            _check_size(node, where, yaml.CollectionNode)
        values = loader.construct_document(node) if isinstance(node, yaml.MappingNode) else None
        if not isinstance(values, dict):
            raise InputError(f"{where} is no mapping of keys to values")
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise InputError(f"{where} is not YAML{line}: {getattr(error, 'problem', None) or error}") from None
    except InputError:
        raise
    except (RecursionError, ValueError, LookupError, AttributeError):  # the last two of wrong texts behind !!bool
        raise InputError(f"{where} holds a value that YAML cannot read") from None
    keys = [*_keys(node, yaml.MappingNode)]
    last = {name: text for name, _, text in keys}
    twice = {name: text for name, _, text in keys if text != last[name]}
    found: tuple[dict[str, Any], ...] = (_resolved(dict(flattened(values))), {name: at for name, at, _ in keys}, twice)
    # arguments of a command, as in MODEL_ARGS of Megatron-LM's tests
    return Document(path, *({key.rpartition(".--")[2]: each for key, each in every.items()} for every in found))


def _resolved(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with references to other keys replaced; those to nothing in the file stay as they are.

    Hydra puts a file below the name of its group: ${group.key} is ${key} where the file itself has no such group.
    """
    groups = {key.partition(".")[0] for key in values}

    def value_of(key: str, found: re.Match[str]) -> Any:
        outer = key.split(".")[: -len(found[1])] if found[1] else []
        first, _, inner = found[2].partition(".")
        name = inner if inner and not outer and first not in groups else found[2]
        other = values.get(".".join([*outer, name]), found[0])
        return found[0] if isinstance(other, str) and REFERENCE.search(other) else other

    for _ in range(DEEPEST):
        values |= {key: _computed(text) for key, text in values.items() if isinstance(text, str)}
        left = {key: text for key, text in values.items() if isinstance(text, str) and REFERENCE.search(text)}
        changed = {
            key: value_of(key, whole)
            if (whole := REFERENCE.fullmatch(text))
            else REFERENCE.sub(lambda found, key=key: str(value_of(key, found)), text)[:LONGEST]  # type: ignore[misc]
            for key, text in left.items()
        }
        if changed == left:
            break
        values |= changed
    return values


def _computed(text: str) -> str | int:
    """Return the number that a text computes of two others, or the text."""
    if not (found := COMPUTED.fullmatch(text)):
        return text
    first, second = int(found[2]), int(found[3])
    if found[1] == "multiply":
        return first * second
    return text if not second else first // second if found[1] == "divide_floor" else -(-first // second)


def _check_size(root: Any, where: str, collection: type) -> None:
    """Raise `InputError` if a tree of nodes has too many, or is too deep; nodes of aliases count at every use."""
    count, left = 0, [(root, 0)]
    while left:
        node, depth = left.pop()
        count += 1
        if count > NODES:
            raise InputError(f"{where} has more than {NODES:,} values, so it is not a trainer's file")
        if depth > DEEPEST:
            raise InputError(f"{where} is nested more than {DEEPEST} levels deep, or contains itself")
        if isinstance(node, collection):
            for each in node.value:  # type: ignore[attr-defined]  # nodes of PyYAML have no types here
                left += [(part, depth + 1) for part in (each if isinstance(each, tuple) else (each,))]


def _keys(node: Any, mapping: type, prefix: str = "") -> Iterator[tuple[str, int, str]]:
    """Yield each key with its line and its text; PyYAML takes the last one of a key that stands twice."""
    for key, value in node.value:
        if isinstance(value, mapping):
            yield from _keys(value, mapping, f"{prefix}{key.value}.")
        else:
            yield f"{prefix}{key.value}", key.start_mark.line + 1, str(value.value)

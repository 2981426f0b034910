"""What editors and type checkers read of the public names: src/learncost/__init__.pyi, from the questions themselves.

    python benchmarks/stubs.py           says whether the file is that of today's questions
    python benchmarks/stubs.py --write   writes it

A question's parameters, their choices (as Literal types, which editors complete) and its docstring come from where the
command line has them; every other public name is imported from its module. It takes some three seconds.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import Any

import learncost
from learncost.cli.lists.listing import list_devices, list_models
from learncost.reports import request
from learncost.reports.question import FLAGS, docstring_parts, flags_of

INDENT = "    "

FILE = Path(learncost.__file__).with_suffix(".pyi")

NAMED = {"model": "_Model", "models": "_Model", "subject": "_Model", "on": "_Device"}
"""Parameters whose choices are a list that users can print rather than those of a flag, each with its type."""


def stub() -> str:
    """Return the text of the stub; `ruff format` has the last word on its lines."""
    public = {name: getattr(learncost, name) for name in learncost.__all__ if not name.startswith("_")}
    questions = {name: value for name, value in public.items() if hasattr(value, "parameters")}
    imported = {name: learncost._PUBLIC[name] for name in public if name not in questions}
    functions, literals = list[str](), dict[str, str]()
    for name, function in questions.items():
        functions.append(_function(name, function, literals))
        words = {*re.findall(r"\b[A-Za-z]\w+", " ".join(_annotations(function)))}
        for module in (inspect.getmodule(function), request):
            imported |= {each: home for each, home in _homes(module).items() if each in words and each not in imported}
    lines = set[tuple[bool, str, str]]()
    for name, home in {**imported, "Literal": "typing"}.items():
        others = sorted(other for other in imported if imported[other] == home and other not in public)
        names = f"{name} as {name}" if name in public else "Any, Literal" if home == "typing" else ", ".join(others)
        lines.add((home.startswith("learncost"), home, names))
    imports = [f"from {home} import {names}" for _, home, names in sorted(lines)]
    imports.insert(next(at for at, row in enumerate(sorted(lines)) if row[0]), "")
    head = f'"""{learncost.__doc__}"""\n# Written by benchmarks/stubs.py.\n\n'
    types = "\n".join(f"{name} = {choices}" for name, choices in sorted(literals.items()))
    return "\n\n".join((head + "\n".join(imports), types, "__version__: str", *functions)) + "\n"


def _function(name: str, function: Callable[..., Any], literals: dict[str, str]) -> str:
    parameters = [
        parameter.replace(annotation=_Written(_annotation(parameter, literals)))
        for parameter in inspect.signature(function).parameters.values()
    ]
    answer = inspect.unwrap(function).__annotations__["return"]
    signature = inspect.Signature(parameters, return_annotation=_Written(answer))
    parts = docstring_parts(inspect.unwrap(function))
    meanings = (f"{each.name}: {each.meaning.partition('. ')[0].rstrip('.')}." for each in flags_of(function))
    lines = (parts.about.partition("\n\n")[0], "", *meanings)
    body = "\n".join(fill(line, 112, initial_indent=INDENT, subsequent_indent=INDENT * 2) for line in lines)
    return f'def {name}{signature}:\n{INDENT}r"""{body.lstrip()}\n{INDENT}"""'


class _Written(str):
    """An annotation that is shown as it is written."""

    def __repr__(self) -> str:
        return str(self)


def _annotation(parameter: inspect.Parameter, literals: dict[str, str]) -> str:
    """Return the annotation of a parameter with its choices, which are written once for all questions."""
    name, written = parameter.name, str(parameter.annotation)
    if parameter.default is None and "None" not in written and written not in ("Any", "object"):
        written += " | None"
    literal = NAMED.get(name, f"_{name.title().replace('_', '')}")
    choices = _listed(literal) or (FLAGS[name].choices if name in FLAGS else ())
    if not choices or written == "bool":
        return written
    literals[literal] = f"Literal[{', '.join(map(repr, choices))}]"
    return f"{literal} | {written}"


@cache
def _listed(literal: str) -> tuple[str, ...]:
    """Return the names that users can print, of models and of devices."""
    entries = {"_Model": list_models, "_Device": list_devices}[literal]().entries if literal in NAMED.values() else ()
    return tuple(entry["name"].replace(" ", "-") for entry in entries)


def _annotations(function: Callable[..., Any]) -> Iterator[str]:
    yield str(inspect.unwrap(function).__annotations__["return"])
    for parameter in inspect.signature(function).parameters.values():
        yield str(parameter.annotation)


@cache
def _homes(module: Any) -> dict[str, str]:
    """Return the module of each name that a file imports or defines."""
    homes = dict[str, str]()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom) and node.module:
            homes |= {each.asname or each.name: node.module for each in node.names}
        elif isinstance(node, ast.ClassDef):
            homes[node.name] = module.__name__
    return homes


def main() -> int:
    """Compare or write the stub."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the file")
    if parser.parse_args().write:
        FILE.write_text(stub(), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", str(FILE)], check=True)
        return 0
    if same := ast.dump(ast.parse(FILE.read_text(encoding="utf-8"))) == ast.dump(ast.parse(stub())):
        print(f"{FILE.name} is that of today's questions")
    else:
        print(f"{FILE.name} is not that of today's questions: give --write", file=sys.stderr)
    return not same


if __name__ == "__main__":
    raise SystemExit(main())

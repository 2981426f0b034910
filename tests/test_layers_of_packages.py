"""The packages' layers: every package is in one, none is named by a string from below, and no public name hides one."""

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

import learncost as lc
from learncost.cli.command import COMMANDS
from learncost.reports.question import FLAGS

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "learncost"
CONTRACT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"][0]
LAYERS = [[name.strip() for name in row.split("|")] for row in CONTRACT["layers"]]
HEIGHT = {name: height for height, row in enumerate(reversed(LAYERS)) for name in row}
REGISTRIES = {
    "cli/command.py": {command.where for command in COMMANDS.values()},
    "reports/question.py": {
        word for flag in FLAGS.values() for word in flag.known.split() if re.fullmatch(r"[\w.]+:\w+", word)
    },
}
"""Files that complete `learncost.` by a name of a registry, with these names as module:attribute."""


def packages() -> set[str]:
    """The packages and modules of learncost that hold code."""
    folders = {path.parent.name for path in SOURCES.glob("*/__init__.py")}
    return folders | {path.stem for path in SOURCES.glob("*.py") if path.stem != "__init__"}


@cache
def named_by_strings(path: Path) -> list[str]:
    """The packages of learncost that the strings of a file name as modules; "" where one is put in at run time."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    names = []
    for node in ast.walk(tree):
        called = getattr(node, "func", None)
        if getattr(called, "attr", getattr(called, "id", "")).endswith("import_module"):
            names += [""] * ast.unparse(node.args[0]).startswith(("f'learncost.{", 'f"learncost.{'))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names += re.findall(r"(?<![\w./])learncost\.(\w+)(?=[.:]\w|$)", node.value)
    return names


def lower_and_higher() -> list[tuple[str, str]]:
    """File and package, for every string of a module that names a package of a higher layer than the module's own."""
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        file = str(path.relative_to(SOURCES))
        package = file.partition("/")[0]
        if package not in HEIGHT:  # the root hands the drawing of answers down; the others are at no layer
            continue
        for name in named_by_strings(path):
            targets = [name] if name else [where.partition(".")[0].partition(":")[0] for where in REGISTRIES[file]]
            found += [(file, target) for target in targets if HEIGHT.get(target, -1) > HEIGHT[package]]
    return found


def test_no_module_names_one_of_a_higher_layer_by_a_string():
    assert lower_and_higher() == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import_module('learncost.viz.displays')", ["viz"]),
        ("import_module('learncost.cli')", ["cli"]),
        ("import_module(f'learncost.{name}')", [""]),
        ("f'learncost.{suffix}'", []),
        ("'run learncost.json, or learncost.'", []),
        ("'/home/learncost.cli'", []),
    ],
)
def test_a_string_that_names_a_module_is_found(text, named, tmp_path):
    path = tmp_path / "named.py"
    path.write_text(f"value = {text}\n", encoding="utf-8")
    assert named_by_strings(path) == named


def test_the_registries_that_complete_a_name_are_not_empty():
    completed = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py") if "" in named_by_strings(path)}
    assert completed == set(REGISTRIES)
    assert all(len(names) > 5 for names in REGISTRIES.values())


def test_every_package_is_in_one_of_at_most_ten_layers():
    listed = [name for row in LAYERS for name in row]
    assert len(LAYERS) <= 10
    assert len(listed) == len(set(listed))
    assert set(listed) == packages() - set(CONTRACT["exhaustive_ignores"])
    assert set(CONTRACT["exhaustive_ignores"]) <= {"__main__"}


def test_no_public_name_is_that_of_a_package():
    assert set(lc.__all__) & packages() == set()

"""Functions with many parameters: how many there are, which may only become fewer."""

import ast
from collections.abc import Iterator
from pathlib import Path

import learncost

MANY = 8
"""From so many parameters on, what belongs together is one value."""

LIMIT = 6
"""Functions of the package with many parameters."""


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    """Return the number of parameters of every kind, without self and cls."""
    given = function.args
    places = [*given.posonlyargs, *given.args]
    own = bool(places) and places[0].arg in ("self", "cls")
    return len(places) - own + len(given.kwonlyargs) + bool(given.vararg) + bool(given.kwarg)


def functions_with_many(source: str) -> Iterator[tuple[int, str]]:
    """Return the number of parameters and the name of every function that has many."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and parameters(node) >= MANY:
            yield parameters(node), getattr(node, "name", "lambda")


def test_every_kind_of_parameter_counts() -> None:
    assert list(functions_with_many("def f(a, b, /, c, *d, e, g, h, **i): ...")) == [(8, "f")]
    assert list(functions_with_many("class A:\n  async def f(self, a, b, c, d, e, g, h, i): ...")) == [(8, "f")]
    assert not list(functions_with_many("class A:\n  def f(self, a, b, c, d, e, g, h): ..."))
    assert list(functions_with_many("lambda a, b, c, d, e, f, g, *, h: 0")) == [(8, "lambda")]


def test_functions_with_many_parameters_become_fewer() -> None:
    package = Path(learncost.__file__).parent
    found = [
        (count, str(path.relative_to(package)), name)
        for path in sorted(package.rglob("*.py"))
        for count, name in functions_with_many(path.read_text(encoding="utf-8"))
    ]
    listed = "\n".join(f"{count} {path} {name}" for count, path, name in sorted(found, reverse=True))
    print(listed)
    assert len(found) <= LIMIT, f"{len(found)} functions have {MANY} parameters or more, {LIMIT} may:\n{listed}"

"""learncost.ir.dataclass gives a class what the decorator of the standard library gives it."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import re
import sys
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from learncost.ir.dataclass import dataclass

Decorator = Callable[..., Callable[[type[Any]], type[Any]]]


def _point(decorator: Decorator, **arguments: bool) -> type[Any]:
    class Point:
        kind: ClassVar[str] = "point"
        _values: int
        size: float = 1.5
        values: int = 1
        absent: tuple[int, ...] = dataclasses.field(default_factory=tuple)
        names: list[str] = dataclasses.field(default_factory=list, hash=False)
        note: str = dataclasses.field(default="", compare=False, repr=False, kw_only=True)
        doubled: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", 2 * self._values)

    return decorator(**arguments)(Point)


KINDS: list[dict[str, bool]] = [
    {},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"slots": True},
    {"frozen": True, "eq": False},
    {"frozen": True, "repr": False},
    {"frozen": True, "kw_only": True},
]


def _tried(act: Callable[[], object]) -> object:
    try:
        return act()
    except Exception as error:
        return type(error), str(error).replace("_point.<locals>.", "")


@pytest.mark.parametrize("arguments", KINDS, ids=str)
def test_methods_are_those_of_the_standard_library(arguments: dict[str, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    answers = []
    for decorator in (dataclass, dataclasses.dataclass):
        kind = _point(decorator, **arguments)
        monkeypatch.setattr(sys.modules[__name__], "Point", kind, raising=False)
        kind.__qualname__ = "Point"
        one, same, other = (kind(_values=v, size=2.0, note=n) for v, n in ((1, "a"), (1, "b"), (3, "a")))
        kept = pickle.loads(pickle.dumps(one))
        answers.append(
            [
                re.sub(r"<[^>]*>", "<made>", str(inspect.signature(kind))),
                [dataclasses.asdict(x) for x in (one, other, kept, copy.copy(one))],
                [one == same, one == other, one != same, one == (1, 2.0, 1, (), [])],
                _tried(lambda one=one, same=same: hash(one) == hash(same)),
                _tried(lambda one=one: setattr(one, "size", 3.0)),
                _tried(lambda one=one: delattr(one, "note")),
                _tried(lambda one=one: setattr(one, "other", 3.0)) is None,
                repr(one) if arguments.get("repr", True) else "",
                dataclasses.asdict(dataclasses.replace(other, size=4.0)),
                _tried(lambda kind=kind: kind(size=1.0)),
                _tried(lambda kind=kind: kind(_values=1, doubled=1)),
                kind(_values=1).names is kind(_values=1).names,
                kind.__match_args__,
            ]
        )
    assert answers[0] == answers[1]


@pytest.mark.parametrize("decorator", [dataclass, dataclasses.dataclass])
def test_a_subclass_has_the_fields_of_its_base_and_methods_that_are_written_stay(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Base:
        size: int
        of: tuple[Base, ...] = ()

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Base) and self.size == other.size

    @decorator(frozen=True)
    class Derived(Base):
        name: str = "x"

        def __repr__(self) -> str:
            return self.name

    assert Base(1) == Base(1, (Base(2),))
    assert hash(Base(1)) == hash(Base(1)), "what compares by a method that is written is hashed by its fields"
    assert (repr(Derived(1, name="y")), Derived(1, (), "z").size) == ("y", 1)
    assert [f.name for f in dataclasses.fields(Derived)] == ["size", "of", "name"]

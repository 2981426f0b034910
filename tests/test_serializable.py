"""Dataclasses as dictionaries for JSON: keys, forms, order, and what is left out."""

from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import pytest

from learncost.ir.dataclass import HIDDEN, OPTIONAL, Key, Serializable, attributes, dictionary_of


@dataclass(frozen=True)
class Point:
    x: int
    y: Fraction


@dataclass
class Answer(Serializable):
    _schema = 3

    name: str
    points: tuple[Point, ...]
    first: Point = field(metadata=Key("x_of_first", form=lambda point: point.x).field)
    inner: Point | None = field(default=None, metadata=Key(inline=True).field)
    unit: str = field(default="m", metadata=OPTIONAL)
    secret: object = field(default=None, metadata=HIDDEN)
    early: int = field(default=7, metadata=Key(after="name").field)
    at: Point | None = field(default=None, metadata=Key(form=attributes("x", high="y.denominator")).field)

    @property
    @Key(optional=True)
    def notes(self) -> list[str]:
        return ["a"] if self.unit == "km" else []

    @cached_property
    @Key("count", when=lambda answer: answer.unit == "km", after="early")
    def number(self) -> int:
        return len(self.points)


POINT = Point(1, Fraction(4, 2))


def test_fields_are_keys_in_their_order():
    assert [*Answer("n", (POINT,), POINT).to_dict().items()] == [
        ("schema", 3),
        ("name", "n"),
        ("early", 7),
        ("points", [{"x": 1, "y": 2}]),
        ("x_of_first", 1),
        ("at", None),
    ]


def test_optional_and_conditional_keys_are_written_where_they_say_something():
    found = Answer("n", (), POINT, Point(5, Fraction(1, 2)), "km", {"s"}, 0, Point(3, Fraction(1, 8))).to_dict()
    assert [*found] == ["schema", "name", "early", "count", "points", "x_of_first", "x", "y", "unit", "at", "notes"]
    assert (found["count"], found["x"], found["y"], found["notes"]) == (0, 5, 0.5, ["a"])
    assert found["at"] == {"x": 3, "high": 8}


def test_whole_fractions_are_ints():
    assert type(dictionary_of(POINT)["y"]) is int


def test_a_key_cannot_follow_an_unknown_attribute():
    @dataclass
    class Wrong(Serializable):
        name: str = field(metadata=Key(after="nothing").field)

    with pytest.raises(ValueError, match="empty"):
        Wrong("n").to_dict()

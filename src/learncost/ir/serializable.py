"""Dataclasses as JSON: a dictionary that derives from their fields, and from properties that are marked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from fractions import Fraction
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar, TypeVar

Getter = TypeVar("Getter", bound=Callable[..., Any])

_KEY = "key"


@dataclass(frozen=True)
class Key:
    """The key of a field or a property, and the form in which it is written.

    name      its key, if it is not the attribute's name
    form      what is written of its value
    optional  whether it is left out where it is the field's default, and as a property where it is empty
    when      what the whole object must satisfy for it to be written
    inline    whether its own keys are written instead of it
    after     the attribute that it follows, or schema; by default it is where its field is, and a property is last
    """

    name: str = ""
    form: Callable[[Any], Any] | None = None
    optional: bool = False
    when: Callable[[Any], bool] | None = None
    inline: bool = False
    after: str = ""

    def __call__(self, getter: Getter) -> Getter:
        """Mark the getter of a property, under `@property`."""
        setattr(getter, _KEY, self)
        return getter

    @property
    def field(self) -> Mapping[str, Key]:
        """Return the metadata of a field that is written so."""
        return {_KEY: self}


HIDDEN = Key(when=lambda whole: False).field
"""The metadata of a field that is not written."""

OPTIONAL = Key(optional=True).field
"""The metadata of a field that is left out where it is the default."""


class Serializable:
    """A dataclass with a dictionary for JSON."""

    __slots__ = ()

    schema: ClassVar[int] = 0
    """The version of the dictionary's form, which it begins with; 0 where it is a part of another one."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data, for JSON."""
        return dictionary_of(self)


def dictionary_of(record: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary for JSON."""
    result = {"schema": schema} if (schema := getattr(record, "schema", 0)) else {}
    for name, key, default in _keys(record.__class__):
        if key.when is not None and not key.when(record):
            continue
        value = getattr(record, name)
        if key.optional and (value == default if default is not MISSING else not value):
            continue
        written = plain(value if key.form is None else key.form(value))
        result |= (written or {}) if key.inline else {key.name or name: written}
    return result


def plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses and mappings as dictionaries, sequences as lists."""
    if isinstance(value, Serializable):
        return value.to_dict()
    if is_dataclass(value):
        return dictionary_of(value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


def attributes(names: str = "", **renamed: str) -> Callable[[Any], Any]:
    """Return the form of an object, or of each in a sequence, that has only these attributes.

    names    separated by spaces
    renamed  by their keys; dots lead to attributes of attributes
    """
    readers = {key: attrgetter(name) for key, name in {**{name: name for name in names.split()}, **renamed}.items()}

    def form(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [form(each) for each in value]
        return {key: read(value) for key, read in readers.items()} if value is not None else None

    return form


@cache
def _keys(kind: Any) -> tuple[tuple[str, Key, Any], ...]:
    """Return what is written of a dataclass, in order: the attribute, how, and the default that may be left out."""
    placed, moved = list[tuple[str, Key, Any]](), list[tuple[str, Key, Any]]()
    for each in (*_of_fields(fields(kind)), *_of_properties(kind)):
        (moved if each[1].after else placed).append(each)
    while moved:
        names = ["schema", *(name for name, _, _ in placed)]
        each = moved.pop(max(place for place, each in enumerate(moved) if each[1].after in names))
        placed.insert(names.index(each[1].after), each)
    return tuple(placed)


def _of_fields(given: tuple[Field[Any], ...]) -> Iterator[tuple[str, Key, Any]]:
    for each in given:
        default = each.default if each.default_factory is MISSING else each.default_factory()
        yield each.name, each.metadata.get(_KEY, Key()), default


def _of_properties(kind: type[Any]) -> Iterator[tuple[str, Key, Any]]:
    for parent in reversed(kind.__mro__):
        for name, value in vars(parent).items():
            getter = getattr(value, "fget", None) or getattr(value, "func", None)  # a property, or a cached one
            if isinstance(key := getattr(getter, _KEY, None), Key):
                yield name, key, MISSING

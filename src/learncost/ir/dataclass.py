"""Dataclasses that are defined quickly, and their JSON.

`dataclass` is that of the standard library with one compiled method for a class, its `__init__`, in place of six: the
compilation of a frozen class took 0.8 ms, a third of what `learncost cost gpt2` took. The fields are those of the
standard library, and so are `field`, `fields`, `replace` and `asdict`. The JSON is a dictionary that derives from
fields, and from properties that are marked by a `Key`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, asdict, field, fields, is_dataclass, replace
from dataclasses import dataclass as standard_dataclass
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CodeType, FunctionType
from typing import Any, ClassVar, NoReturn, TypeVar, dataclass_transform, overload

__all__ = [
    "HIDDEN",
    "OPTIONAL",
    "Key",
    "Serializable",
    "asdict",
    "attributes",
    "dataclass",
    "dictionary_of",
    "field",
    "fields",
    "is_dataclass",
    "made_of",
    "plain",
    "replace",
]

T = TypeVar("T")
Getter = TypeVar("Getter", bound=Callable[..., Any])

_KEY = "key"


@overload
def dataclass(cls: type[T], /) -> type[T]: ...
@overload
def dataclass(
    *, frozen: bool = ..., eq: bool = ..., repr: bool = ..., kw_only: bool = ..., slots: bool = ...
) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(field_specifiers=(field,))
def dataclass(
    cls: type[T] | None = None,
    /,
    *,
    frozen: bool = False,
    eq: bool = True,
    repr: bool = True,
    kw_only: bool = False,
    slots: bool = False,
) -> type[T] | Callable[[type[T]], type[T]]:
    """Give a class the methods that `dataclasses.dataclass` gives it for the same arguments."""

    def decorated(cls: type[Any]) -> type[Any]:
        written = {name for name, value in vars(cls).items() if (name, value) != ("__hash__", None)}
        cls = standard_dataclass(init=False, repr=False, eq=False, kw_only=kw_only, slots=slots)(cls)
        methods: dict[str, Any] = {"__init__": _initialiser(cls)}
        if repr:
            methods["__repr__"] = _repr
        if eq:
            methods["__eq__"] = _equal(cls)
            methods["__hash__"] = _hash(cls) if frozen else None
        if frozen:
            methods |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if frozen and slots:
            methods |= {"__getstate__": _state, "__setstate__": _set_state}
        for name, method in methods.items():
            if name not in written:
                setattr(cls, name, method)
        return cls

    return decorated if cls is None else decorated(cls)


def _initialiser(cls: type[Any]) -> Callable[..., None]:
    """Return the `__init__` of a class: one that is compiled for as many fields, with the names of these."""
    own = [each for each in fields(cls) if each.init]  # `__post_init__` sets the others
    own.sort(key=lambda each: each.kw_only is True)
    direct = all("__slots__" not in vars(base) for base in cls.__mro__[:-1])
    made_here = tuple(place for place, each in enumerate(own) if each.default_factory is not MISSING)
    names = {f"f{place}": each.name for place, each in enumerate(own)}
    code = _compiled(len(own), made_here, direct, hasattr(cls, "__post_init__"))
    named = sum(1 for each in own if each.kw_only)
    code = code.replace(
        co_varnames=tuple(names.get(name, name) for name in code.co_varnames),
        co_consts=tuple(names.get(value, value) if isinstance(value, str) else value for value in code.co_consts),
        co_argcount=1 + len(own) - named,
        co_kwonlyargcount=named,
    )
    bound = {"__absent__": MISSING, "__set__": object.__setattr__}
    bound |= {f"make{place}": own[place].default_factory for place in made_here}
    usual = [each for each in own if each.default is not MISSING or each.default_factory is not MISSING]
    made = FunctionType(code, bound, "__init__", tuple(each.default for each in usual if not each.kw_only))
    made.__kwdefaults__ = {each.name: each.default for each in usual if each.kw_only}
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    made.__annotations__ = {each.name: each.type for each in own if each.init} | {"return": None}
    return made


@cache  # by form of a class
def _compiled(count: int, made: tuple[int, ...], direct: bool, ends: bool) -> CodeType:
    """Return the code that sets fields f0, f1, ...: compilation took a tenth of what `learncost cost gpt2` takes.

    made    the places of fields that a function makes where they are not given
    direct  whether the object has a dictionary, which is faster
    ends    whether `__post_init__` is called
    """
    lines = ["__self__ = self.__dict__"] if direct else []
    for place in range(count):
        value = f"make{place}() if f{place} is __absent__ else f{place}" if place in made else f"f{place}"
        lines.append(f"__self__['f{place}'] = {value}" if direct else f"__set__(self, 'f{place}', {value})")
    lines += ["self.__post_init__()"] if ends else []
    bound: dict[str, Any] = {}
    parameters = ", ".join(["self", *(f"f{place}" for place in range(count))])
    exec(f"def __init__({parameters}):\n " + ("\n ".join(lines) or "pass"), bound)
    code: CodeType = bound["__init__"].__code__
    return code


@recursive_repr()
def _repr(self: Any) -> str:
    shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.repr)
    return f"{type(self).__qualname__}({shown})"


def _values(names: list[str]) -> Callable[[Any], Any]:
    """Return a function that reads these fields of an object, as a tuple if there are several."""
    return attrgetter(*names) if names else lambda _: ()


def _equal(cls: type[Any]) -> Callable[[Any, object], bool]:
    values = _values([f.name for f in fields(cls) if f.compare])

    def equal(self: Any, other: object) -> bool:
        return bool(values(self) == values(other)) if type(other) is type(self) else NotImplemented

    return equal


def _hash(cls: type[Any]) -> Callable[[Any], int]:
    values = _values([f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)])

    def hashed(self: Any) -> int:
        return hash(values(self))

    return hashed


def _refuse_to_set(self: object, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


def made_of(kind: type[T], answer: Any, /, **more: Any) -> T:
    """Return an object of a dataclass whose fields that are not given are the answer's fields of the same names."""
    names = (each.name for each in fields(kind) if each.name not in more and hasattr(answer, each.name))  # type: ignore[arg-type]
    return kind(**{name: getattr(answer, name) for name in names}, **more)


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

    _schema: ClassVar[int] = 0
    """The version of the dictionary's form, which it begins with; 0 where it is a part of another one."""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as data, for JSON."""
        return dictionary_of(self)


def dictionary_of(record: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary for JSON."""
    result = {"schema": schema} if (schema := getattr(record, "_schema", 0)) else {}
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
    """Return a value as JSON data: dataclasses and mappings as dictionaries, sequences as lists."""
    if isinstance(value, Serializable):
        return value.to_dict()
    if is_dataclass(value):
        return dictionary_of(value)
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if hasattr(value, "limit_denominator"):  # a Fraction, whose module takes a while to import
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


@cache  # by class
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

"""Every number and every name that a printed price book holds is changed in turn: the printed formulas must object."""

import inspect
from dataclasses import fields, replace
from itertools import product

import pytest

import test_paper_book
from learncost.cost_models import OpPrice, Override
from learncost.cost_models.books import BOOKS
from learncost.ir.polynomial import Polynomial
from learncost.reports import run
from sampling import sampled

PRINTED = [name for name, book in BOOKS.items() if book.rule == "printed"]


def cases():
    """Every test of the paper's books with its parameters, as calls without arguments."""
    for name, function in vars(test_paper_book).items():
        if not name.startswith("test_"):
            continue
        marks = [mark.args for mark in getattr(function, "pytestmark", []) if mark.name == "parametrize"]
        axes = [
            [
                dict(zip(_names(values_marked), value if isinstance(values_marked, tuple) else (value,), strict=True))
                for value in values
            ]
            for values_marked, values in marks
        ]
        for chosen in product(*axes):
            arguments = {key: value for chosen_values in chosen for key, value in chosen_values.items()}
            if arguments.keys() == inspect.signature(function).parameters.keys():
                yield function, arguments


def _names(given):
    return given if isinstance(given, tuple) else (given,)


CASES = list(cases())


def changed_books(name):
    """The book with one of its numbers or names changed, and what was changed."""
    book = BOOKS[name]
    extra = Polynomial.of(())
    for op, price in book.ops.items():
        for field in fields(OpPrice):
            number = getattr(price, field.name)
            if isinstance(number, int):
                other = replace(price, **{field.name: number + 1})
                yield f"{op} {field.name}", replace(book, ops={**book.ops, op: other})
    for key, override in book.overrides.items():
        for field in fields(Override):
            count = getattr(override, field.name)
            if isinstance(count, Polynomial):
                other = replace(override, **{field.name: count + extra})
                yield f"{key} {field.name}", replace(book, overrides={**book.overrides, key: other})
        yield f"{key} left out", replace(book, overrides={k: v for k, v in book.overrides.items() if k != key})
    for layer in sorted(book.unpriced):
        yield f"{layer} priced", replace(book, unpriced=book.unpriced - {layer})
    for layer in sorted(book.one_hot):
        yield f"{layer} not one-hot", replace(book, one_hot=book.one_hot - {layer})
    for key in book.withdrawn:
        yield f"{key} not withdrawn", replace(book, withdrawn={k: v for k, v in book.withdrawn.items() if k != key})
    yield "closed form", replace(book, jacobian=False)


def survives(name, other, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setitem(BOOKS, name, other)
        run._priced.cache_clear()
        try:
            for function, arguments in CASES:
                function(**arguments)
        except (AssertionError, KeyError):
            return False
        finally:
            run._priced.cache_clear()
    return True


PARTS = 40


@pytest.mark.parametrize(
    ("part", "name"), sampled(((part, name) for name in PRINTED for part in range(PARTS)), 2 * PARTS)
)
def test_a_change_of_any_number_of_a_printed_book_is_seen(part, name, monkeypatch):
    # The unchanged book passes: that is what test_paper_book itself says.
    changes = [*changed_books(name)][part::PARTS]
    assert [change for change, other in changes if survives(name, other, monkeypatch)] == []

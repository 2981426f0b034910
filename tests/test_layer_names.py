"""The names that reports show beside letters, such as queries for Q, belong to values and weights of their tables."""

from __future__ import annotations

import pytest

from learncost.layers.active import words_of
from learncost.layers.layer import shipped, shipped_layer


@pytest.mark.parametrize("name", [name for name in shipped() if words_of(name)])
def test_every_letter_with_a_word_is_in_the_table(name: str) -> None:
    table = shipped_layer(name).table
    assert {*words_of(name)} <= {*table.axes, *table.weights}
    assert all(words_of(name).values())


def test_products_of_attention_have_words() -> None:
    assert words_of("attention")["P"] == "probabilities"
    assert words_of("attention")["WO"] == "output projection"
    assert not words_of("no_such_layer")

"""The operators: body, gradient, Jacobian and price of each as tables in the same notation; optimizers; collectives."""

from learncost.ops import collectives as _collectives
from learncost.ops import modern_words as _modern_words
from learncost.ops import optimizers as _optimizers
from learncost.ops import primitives as _primitives
from learncost.ops import words as _words
from learncost.ops.entry import OpDef, canonical, define, entries, entry, plain, word_called

__all__ = ["OpDef", "canonical", "define", "entries", "entry", "plain", "word_called"]

_DEFINING = (_primitives, _words, _modern_words, _optimizers, _collectives)  # imported for the words that they define

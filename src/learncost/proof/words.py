"""Every word as a layer of one line, so that a word is proved as a layer is."""

from __future__ import annotations

from collections.abc import Iterator

from learncost.equation.table import Operand, Table, Tag, Term, Word
from learncost.layers.layer import Layer
from learncost.vocabulary import Entry

# Operands that are numbers, and operands that the word asks for a logarithm, a root, a divisor or a condition of.
SCALARS = frozenset(("lr", "mu", "b1", "c1", "b2", "c2", "k1", "k2", "eps", "decay", "e"))


def word_layer(entry: Entry) -> Layer:
    """The word on operands of axes a and n, along n where it acts along axes."""
    axes = () if entry.pointwise else ("n",)
    operands = tuple(name for name in entry.inputs if name not in SCALARS or not entry.defaults)
    shapes: dict[str, tuple[str, ...]] = {name: () if name in SCALARS else ("a", "n") for name in operands}
    left = ("a",) if entry.kind == "reduction" else ("a", "n")
    shapes |= {f"{name}.out": left for name in entry.outputs}
    right: tuple[Operand, ...] = (*(Term(name, shapes[name]) for name in operands), *entry.defaults)
    outputs = tuple(f"{name}.out" for name in entry.outputs)
    line = Word(
        tuple(Term(name, left) for name in outputs),
        right,
        (),
        Tag(layer=entry.name, local=outputs[0], locals=entry.inputs),
        entry.name,
        axes,
        "body",
        entry.inputs,
        entry.outputs,
    )
    constants = frozenset(name for name in operands if f"d{name}" not in _derived(entry))
    return Layer(entry.name, Table((line,), shapes, operands, (), outputs, frozenset(), constants, entry.name))


def _derived(entry: Entry) -> Iterator[str]:
    return (term.name for line in entry.gradient for term in line.left)

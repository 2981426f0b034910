"""The rules of operators, one module for each kind."""

from learncost.importer.rules import (  # noqa: F401 - they register themselves
    attention,
    bags,
    complex,
    diagonals,
    elementwise,
    enlargements,
    indexing,
    losses,
    movement,
    normalization,
    norms,
    products,
    reductions,
    rounding,
    special,
    views,
    windows,
)

"""The rules of operators, one module for each kind."""

from learncost.importer.rules import (  # noqa: F401 - they register themselves
    complex,
    elementwise,
    indexing,
    losses,
    movement,
    normalization,
    products,
    reductions,
    scans,
    views,
    windows,
)

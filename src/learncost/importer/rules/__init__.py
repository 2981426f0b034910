"""The rules of operators, one module for each kind."""

from learncost.importer.rules import (  # noqa: F401 - they register themselves
    complex,
    elementwise,
    indexing,
    movement,
    normalization,
    products,
    reductions,
    scans,
    views,
    windows,
)

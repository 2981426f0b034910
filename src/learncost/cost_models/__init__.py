"""Cost models: MACCs, FLOPs and bytes of every line under a named price book. All counts are derived from the lines.

A MACC is one term of a product that is summed, even if another line completes the sum, and costs two FLOPs. A product
without a sum costs one FLOP per element.
"""

from learncost.cost_models.row import (
    NOT_DERIVED,
    Book,
    OpPrice,
    Override,
    Price,
    PricedLine,
    counts_of,
    elements,
    kind,
    narrow_elements,
)
from learncost.cost_models.tables import executed, price

__all__ = [
    "NOT_DERIVED",
    "Book",
    "OpPrice",
    "Override",
    "Price",
    "PricedLine",
    "counts_of",
    "elements",
    "executed",
    "kind",
    "narrow_elements",
    "price",
]

"""Price: MACCs, FLOPs and bytes of every line under a named book. No price of a layer is typed here or anywhere.

A MACC is one term of a product that sums, wherever it is added up, and costs two FLOPs; a product without a sum costs
one FLOP a point.
"""

from learncost.cost_models.book import Book, OpPrice, Override
from learncost.cost_models.row import NOT_DERIVED, Price, PricedLine, elements, kind, narrow_elements
from learncost.cost_models.tables import executed, price

__all__ = [
    "NOT_DERIVED",
    "Book",
    "OpPrice",
    "Override",
    "Price",
    "PricedLine",
    "elements",
    "executed",
    "kind",
    "narrow_elements",
    "price",
]

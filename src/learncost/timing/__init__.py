"""Time: seconds of every line on a device, from its operations, its bytes and what the device attains.

`work` says what runs at once and what it moves, `rates` what a device attains, `predict` puts both together.
"""

from learncost.timing.predict import Bound, Seconds, Time, time
from learncost.timing.rates import MatmulGrid, RateCurve, Rates
from learncost.timing.work import MatmulShape, Priced, Work, matrix_product, works

__all__ = [
    "Bound",
    "MatmulGrid",
    "MatmulShape",
    "Priced",
    "RateCurve",
    "Rates",
    "Seconds",
    "Time",
    "Work",
    "matrix_product",
    "time",
    "works",
]

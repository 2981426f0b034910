"""Predict the seconds of every line on a device from its operations, its bytes and the attained rates.

`work` groups lines into kernels, `rates` has a device's attained rates, `predict` combines both.
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

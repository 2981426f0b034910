"""Liveness analysis: which arrays are live at each line, what forward must save, the peak, and the live arrays there.

An array is live from the line that defines it to the last line that reads it; inputs and weights are live throughout,
outputs to the end. The table is read as written: an operator's inner values appear after lowering, and a second name
for an array (a sum of one term) is the same array. No operation is in-place.
"""

from learncost.liveness.sizes import levels, live, moments, stretches
from learncost.liveness.walk import (
    Instant,
    Live,
    LiveArray,
    LiveInterval,
    Liveness,
    Moment,
    SizedArray,
    highest,
    live_arrays,
    live_intervals,
)

__all__ = [
    "Instant",
    "Live",
    "LiveArray",
    "LiveInterval",
    "Liveness",
    "Moment",
    "SizedArray",
    "highest",
    "levels",
    "live",
    "live_arrays",
    "live_intervals",
    "moments",
    "stretches",
]

"""Liveness analysis: which arrays are live at each line, what forward must save, the peak, and the live arrays there.

An array is live from the line that defines it to the last line that reads it; inputs and weights are live throughout,
outputs to the end. The table is read as written: an operator's inner values appear after lowering, and a second name
for an array (a sum of one term) is the same array. No operation is in-place.
"""

from learncost.liveness.answer import Live, LiveArray, LiveInterval, Moment
from learncost.liveness.given_sizes import live, moments
from learncost.liveness.open_sizes import Instant, SymbolicInterval, levels, stretches

__all__ = [
    "Instant",
    "Live",
    "LiveArray",
    "LiveInterval",
    "Moment",
    "SymbolicInterval",
    "levels",
    "live",
    "moments",
    "stretches",
]

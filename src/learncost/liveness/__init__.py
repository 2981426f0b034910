"""Live: which arrays are alive when - what forward must keep, the peak, and the arrays that make it.

An array lives from the line that defines it to the last line that reads it; inputs and weights live throughout, outputs
to the end. The table is read as written: a word's inner values are seen by reading the lowered table, and another name
for an array (a sum of one term) is the same array. Nothing is assumed to happen in place.
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

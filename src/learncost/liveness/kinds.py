"""The parts of memory that answers name."""

from __future__ import annotations

SPLIT = ("weights", "master weights", "gradients", "optimizer state", "activations", "workspace")
"""The parts of memory. Activations are values of the forward pass that later passes read, and the batch; workspace is
what is defined and freed within a pass."""

BUFFERS = "communication buffers"
"""The part of the memory of what is sent, where a trainer keeps it beside the arrays of the step."""

FIXED = "fixed matrices"
"""The part of the memory of random matrices that are drawn once and read in every step."""

KINDS = {
    "weight": "weights",
    "gradient": "gradients",
    "kept": "activations",
    "index": "activations",
    "projection": FIXED,
}
"""The part of an array, by its role; workspace otherwise."""

"""Rewritings of attention that make it disentangled: scores of contents against relative positions, as DeBERTa's code.

`rows` holds a row for each bucket of distances (axis a), and delta[M N] the row for query M and key N, which both terms
read: He et al. 2021, equation (4), and transformers' DisentangledSelfAttention. A weight that the layer has already is
shared (share_att_key of DeBERTa v2 and v3). `unread` is a weight that the rows are multiplied by too, and that nothing
reads: forward alone.
"""

from __future__ import annotations

from learncost.layers.layer import Layer
from learncost.layers.refinement import refined


def with_content_to_position(layer: Layer, weight: str, scale: float, unread: str = "") -> Layer:
    """Scores with those of each query against the keys of its distances: S + scale Q (rows W)^T."""
    return refined(layer, "content_to_position", "S", {"scale": scale}, {"W": weight, "unread": unread})


def with_position_to_content(layer: Layer, weight: str, scale: float, unread: str = "") -> Layer:
    """Scores with those of each key against the queries of its distances: S + scale K (rows W)^T."""
    return refined(layer, "position_to_content", "S", {"scale": scale}, {"W": weight, "unread": unread})

"""Rewrites of attention into disentangled attention: scores of contents against relative positions, as in DeBERTa.

`rows` holds a row for each bucket of distances (axis a), and delta[M N] the row for query M and key N, which both terms
read: He et al. 2021, equation (4), and transformers' DisentangledSelfAttention. A weight that the layer has already is
shared (share_att_key of DeBERTa v2 and v3). `unread` is a weight that also multiplies the rows and whose product
nothing reads: it has a forward pass only.
"""

from __future__ import annotations

from learncost.layers.layer import Layer
from learncost.layers.refinement import refined


def with_content_to_position(layer: Layer, weight: str, scale: float, unread: str = "") -> Layer:
    """Add scores of each query against the keys of its distances: S + scale Q (rows W)^T."""
    return refined(layer, "content_to_position", "S", {"scale": scale}, {"W": weight, "unread": unread})


def with_position_to_content(layer: Layer, weight: str, scale: float, unread: str = "") -> Layer:
    """Add scores of each key against the queries of its distances: S + scale K (rows W)^T."""
    return refined(layer, "position_to_content", "S", {"scale": scale}, {"W": weight, "unread": unread})

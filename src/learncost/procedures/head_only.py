"""The head alone: backpropagation in which everything but the head stays as it is drawn.

What random features under a trained head reach is the control of a procedure that is to learn features: one that does
not do better has taught the blocks nothing.
"""

from __future__ import annotations

from learncost.models.adaptation import Adaptation, adapted, said
from learncost.models.model import Model

HEAD = Adaptation(("head",))


def head_only(model: Model) -> Model:
    """The model of which only the head learns. Raises `InputError` for one without a head."""
    return adapted(model, HEAD)


def head_said(model: Model) -> str:
    """What learns, in words; a head that is the embedding too learns in both places."""
    return said(model, HEAD)

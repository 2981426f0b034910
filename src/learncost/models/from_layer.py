"""A layer of one's own as a model, so that every learning procedure takes it."""

from __future__ import annotations

from collections.abc import Iterable

from learncost.equation.errors import InputError
from learncost.equation.table import defined
from learncost.layers.layer import Layer
from learncost.models.configuration import Configuration
from learncost.models.model import Model


def from_layer(layer: Layer, projected: Iterable[str] = ()) -> Model:
    """The model that a layer is. One whose only output is `loss` can learn from it.

    projected   inputs, or embeddings, to which PEPITA adds the output's error through a fixed random matrix: the
                training's input `X.F` for X
    """
    projected = tuple(projected)
    names = {*layer.table.inputs, *defined(layer.table.lines)}
    for name in projected:
        if name not in names:
            raise InputError(f"{layer.name} has no {name!r} to add an error to; it has {', '.join(sorted(names))}")
    configuration = Configuration(
        name=layer.name,
        family="layer",
        sizes={},
        settings={},
        positions="none",
        tied=False,
        architecture="",
        head="none",
        pooler=False,
        counted=f"the layer {layer.name}",
        dropout={},
        source="layer",
    )
    return Model(configuration, layer.table, {}, (), projected)

"""Layers and models as `torch.nn.Module`s whose backward pass is derived from their tables, without autograd's graph.

import learncost.torch as lt
attention = lt.layer("attention", d=64, h=4, k=16)
gpt2 = lt.model("gpt2", n_layer=2)
"""

from learncost.torch.layer import LayerModule, layer
from learncost.torch.model import ModelModule, model

__all__ = ["LayerModule", "ModelModule", "layer", "model"]

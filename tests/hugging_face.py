"""Configurations of Hugging Face's families held against transformers' own modules, on the meta device."""

import io
import json

import pytest

import learncost as lc
from learncost.layers.active import parameters
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402


def read(values, **overrides):
    """The configuration of a config.json with these keys."""
    return configure("-", overrides, io.StringIO(json.dumps(values)))


def module_of(values, architecture, device="meta"):
    """transformers' own module with eager attention and eager experts."""
    keys = {key: value for key, value in values.items() if key not in ("model_type", "architectures")}
    config = transformers.AutoConfig.for_model(values["model_type"], **keys)
    config._attn_implementation = config._experts_implementation = "eager"
    with torch.device(device):
        return getattr(transformers, architecture)(config)


def parameters_of(module):
    """Parameters, tied ones once; buffers are none."""
    return sum(parameter.numel() for parameter in module.parameters())


def flops_of(module, inputs, loss):
    """FLOPs of the matrix products, forward, and forward and backward, that torch counts.

    The angles of rotary positions, which transformers makes by a product of frequencies and positions, are left out;
    the third number says how many FLOPs they are.
    """
    with FlopCounterMode(display=False) as counted:
        result = loss(module(**inputs))
    by_module = counted.get_flop_counts()
    angles = sum(sum(counts.values()) for name, counts in by_module.items() if name.endswith("rotary_emb"))
    with FlopCounterMode(display=False) as counted_back:
        result.backward()
    forward = counted.get_total_flops() - angles
    return forward, forward + counted_back.get_total_flops(), angles


def check_parameters(values, architecture=None):
    """Ours and theirs; returns our model."""
    model = build(read({**values, **({"architectures": [architecture]} if architecture else {})}))
    name = architecture or model.configuration.architecture
    assert parameters(model.table).at(model.sizes) == parameters_of(module_of(values, name)), values
    return model


def check_flops(values, architecture, inputs, loss, batch, length, target=None, device="meta"):
    """The `matmul` book's forward, and forward and backward, against torch's count; returns FLOPs of rotary angles."""
    configuration = read({**values, "architectures": [architecture]})
    model = build(configuration)
    sizes = run_sizes(model, batch, length, target)
    forward = lc.price(model.table, sizes, "matmul").flops
    step = lc.price(lc.derive(model.table, wanted=model.table.weights).step, sizes, "matmul").flops
    theirs = flops_of(module_of(values, architecture, device), inputs, loss)
    assert (forward, step) == theirs[:2], values
    return theirs[2]

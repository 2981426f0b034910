"""Every engine by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec

from learncost.engines.options import Options, refuse_schedule
from learncost.ir.errors import named_one
from learncost.models.configuration import Configuration
from learncost.training.engine import NumPyEngine, TrainingEngine


def _torch(configuration: Configuration, options: Options) -> TrainingEngine:
    from learncost.training.torch_engine import TorchEngine

    return TorchEngine(configuration, options)


def _jax(configuration: Configuration, options: Options) -> TrainingEngine:
    from learncost.training.jax_engine import JaxEngine

    return JaxEngine(configuration, options)


ENGINES: Mapping[str, Callable[[Configuration, Options], TrainingEngine]] = {
    "numpy": NumPyEngine,
    "torch": _torch,
    "jax": _jax,
}
"""Every engine by its name."""


def usual() -> str:
    """Return the default engine: PyTorch's, if PyTorch is installed."""
    return "torch" if find_spec("torch") else "numpy"


def engine(configuration: Configuration, options: Options) -> TrainingEngine:
    """Return the engine of the options, with initial weights."""
    if options.mesh is not None:
        from learncost.training.stages_engine import mesh_engine

        return mesh_engine(configuration, options)
    refuse_schedule(options)
    return named_one("engine", options.engine or usual(), ENGINES)(configuration, options)

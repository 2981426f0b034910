"""learncost tells what learning costs a neural network - and proves it by running it.

    import learncost as lc
    print(lc.cost("gpt2", procedure="pepita", seq_len=1024))

Everything public is a name of this module, with its parameters in __init__.pyi; the packages below are private and may
change.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from learncost.ir import displayed

__version__ = "0.2.0"

_MODULES = {
    "autodiff.derive": "derive Derived",
    "cli.emit": "emit",
    "cli.lists.listing": "list_devices list_models",
    "cost_models": "Book Price",
    "cost_models.books": "book price",
    "cost_models.errata": "errata",
    "devices.cluster": "cluster Cluster",
    "devices.device": "device Device",
    "devices.figure": "Figure",
    "devices.rates": "rates",
    "engines.layer_training": "LayerTraining",
    "engines.numpy_engine": "Training",
    "importer.from_module": "from_module",
    "interpreter": "run",
    "ir.errors": "InputError NotationError",
    "layers.layer": "Layer layer",
    "liveness": "Live live",
    "passes.lower": "lower",
    "procedures.inference": "inference Inference",
    "reports.compare": "compare Comparison",
    "reports.complexity": "complexity",
    "reports.conventions": "conventions Conventions",
    "reports.cost": "cost",
    "reports.formulas.explain": "explain",
    "reports.formulas.explanation": "Explanation",
    "reports.formulas.formulas": "formulas Formulas",
    "reports.formulas.of_model": "ModelFormulas",
    "reports.memory.fit": "fit Fit",
    "reports.memory.memory": "memory Memory",
    "reports.placed": "place PlacedStep",
    "reports.record": "Cost",
    "reports.rules": "rules",
    "reports.rules_of_thumb": "Rules",
    "reports.run_cost.record": "RunCost",
    "reports.run_cost.run_cost": "run_cost",
    "reports.search.search": "search Search",
    "reports.sweep": "Sweep sweep",
    "reports.trainer_step": "TrainerStep request_of",
    "training.compiled": "compile CompiledStep",
    "training.train": "train",
    "verification.check": "check_layer",
    "verification.verify": "verify",
    "viz.report": "report Report",
    "viz.trace": "trace Trace",
}
"""The public names of each module, which is imported when one of them is first used."""

_PUBLIC = {name: f"learncost.{module}" for module, names in _MODULES.items() for name in names.split()}

# Answers below the pictures are drawn by them, which are imported when the first one is shown.
displayed.drawing = lambda: import_module("learncost.viz.displays")

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'learncost' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

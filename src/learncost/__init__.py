"""learncost tells what learning costs a neural network - and proves it by running it.

    import learncost as lc
    print(lc.cost("gpt2", procedure="pepita", seq_len=1024))

Everything public is a name of this module; the packages below are private and may change.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from learncost.ir import displayed

if TYPE_CHECKING:
    from learncost.autodiff.derive import Derived as Derived
    from learncost.autodiff.derive import derive as derive
    from learncost.cli.emit import emit as emit
    from learncost.cli.lists.listing import list_devices as list_devices
    from learncost.cli.lists.listing import list_models as list_models
    from learncost.cost_models import Book as Book
    from learncost.cost_models import Price as Price
    from learncost.cost_models.books import book as book
    from learncost.cost_models.errata import errata as errata
    from learncost.devices.cluster import Cluster as Cluster
    from learncost.devices.cluster import cluster as cluster
    from learncost.devices.device import Device as Device
    from learncost.devices.device import device as device
    from learncost.devices.figure import Figure as Figure
    from learncost.devices.rates import rates as rates
    from learncost.engines.layer_training import LayerTraining as LayerTraining
    from learncost.engines.numpy_engine import Training as Training
    from learncost.importer.from_module import from_module as from_module
    from learncost.interpreter import run as run
    from learncost.ir.errors import InputError as InputError
    from learncost.ir.errors import NotationError as NotationError
    from learncost.layers.layer import Layer as Layer
    from learncost.layers.layer import layer as layer
    from learncost.liveness import Live as Live
    from learncost.liveness import live as live
    from learncost.passes.lower import lower as lower
    from learncost.procedures.inference import Inference as Inference
    from learncost.procedures.inference import inference as inference
    from learncost.reports.compare import Comparison as Comparison
    from learncost.reports.compare import compare as compare
    from learncost.reports.complexity import complexity as complexity
    from learncost.reports.conventions import Conventions as Conventions
    from learncost.reports.conventions import conventions as conventions
    from learncost.reports.cost import cost as cost
    from learncost.reports.formulas.explain import explain as explain
    from learncost.reports.formulas.explanation import Explanation as Explanation
    from learncost.reports.formulas.formulas import Formulas as Formulas
    from learncost.reports.formulas.formulas import formulas as formulas
    from learncost.reports.formulas.of_model import ModelFormulas as ModelFormulas
    from learncost.reports.memory.fit import Fit as Fit
    from learncost.reports.memory.fit import fit as fit
    from learncost.reports.memory.memory import Memory as Memory
    from learncost.reports.memory.memory import memory as memory
    from learncost.reports.placed import PlacedStep as PlacedStep
    from learncost.reports.placed import place as place
    from learncost.reports.record import Cost as Cost
    from learncost.reports.rules import rules as rules
    from learncost.reports.rules_of_thumb import Rules as Rules
    from learncost.reports.run_cost.record import RunCost as RunCost
    from learncost.reports.run_cost.run_cost import run_cost as run_cost
    from learncost.reports.search.search import Search as Search
    from learncost.reports.search.search import search as search
    from learncost.reports.sweep import Sweep as Sweep
    from learncost.reports.sweep import sweep as sweep
    from learncost.reports.trainer_step import TrainerStep as TrainerStep
    from learncost.reports.trainer_step import request_of as request_of
    from learncost.training.train import train as train
    from learncost.verification.check import check_layer as check_layer
    from learncost.verification.verify import verify as verify
    from learncost.viz.report import Report as Report
    from learncost.viz.report import report as report
    from learncost.viz.trace import Trace as Trace
    from learncost.viz.trace import trace as trace

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

"""Which code of transformers trains a model: what its family's file says in `[module]`."""

from __future__ import annotations

from learncost.models.expression import evaluate
from learncost.models.families import ACTIVATIONS, FAMILIES
from learncost.models.model import Model
from learncost.models.modules import joint
from learncost.program.autograd.module import MODULES, USUAL_MODULE, Itself, Module


def usual_module(model: Model, recomputes: bool = False) -> str:
    """Whose code is assumed where nobody is named: of a layer of one's own that of its lines, of one that was read its
    module's."""
    if model.configuration.layer is None:
        return USUAL_MODULE
    return Module.name if recomputes or runs_otherwise(model) else Itself.name


def runs_otherwise(model: Model) -> str:
    """Why a module that was read does not run itself; "" where it does."""
    layer = model.configuration.layer
    if layer is None or layer.steps is None:
        return "is of a module that is in memory, or is named as FILE.py:NAME"
    if {weight.partition("@")[0] for weight in model.table.weights} != {*layer.table.weights}:
        return "knows no adapters that are added to a module that was read"
    return ""


def learns_otherwise(model: Model) -> bool:
    """Whether other weights learn than those of the module that was read."""
    layer = model.configuration.layer
    return layer is not None and {*model.learning} != {*layer.table.weights} - {*layer.frozen}


def module_of(model: Model, name: str, checkpointed: bool = False, width: int = 4) -> Module:
    """The module of a name for a model with weights of so many bytes; under checkpoints no cache is kept."""
    family = FAMILIES.get(model.configuration.family)
    if family is None or name == "plain":
        return MODULES[name]()
    module_settings = dict(family.module)
    weights = {model.table.values[weight].group or weight for weight in model.table.weights}
    usual = str(family.settings.get("activation", ""))
    written = {ACTIVATIONS.get(usual, usual): usual}
    if "buffers" in module_settings:
        module_settings["buffers"] = evaluate(
            module_settings["buffers"], {**model.configuration.values, "width": width}
        )
    arguments = {
        "cache": model.causal,
        "upcast": model.causal and not model.two_sided,
        "written": written,
        "holds": "embeddings",
        "checkpointed": checkpointed,
        **module_settings,
    }
    if checkpointed or not MODULES[name].caches:
        arguments["cache"] = False
    return MODULES[name](packed=tuple(group for _, group in joint(family.name, weights)), **arguments)

"""Which code of transformers trains a model: what its family's file says in `[module]`."""

from __future__ import annotations

from learncost.models.expression import evaluate
from learncost.models.families import ACTIVATIONS, FAMILIES
from learncost.models.model import Model
from learncost.models.modules import joint
from learncost.schedule.autograd.module import MODULES, USUAL_MODULE, Module


def usual_module(model: Model) -> str:
    """Whose code is assumed where nobody is named: of a layer of one's own, that of its lines."""
    return Module.name if model.configuration.layer else USUAL_MODULE


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

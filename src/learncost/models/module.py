"""Which code of transformers trains a model: what its family's file says in `[module]`."""

from __future__ import annotations

from learncost.models.expression import evaluate
from learncost.models.families import ACTIVATIONS, FAMILIES
from learncost.models.model import Model
from learncost.models.modules import joint
from learncost.schedule.autograd.module import MODULES, Module


def module_of(model: Model, name: str, checkpointed: bool = False, width: int = 4) -> Module:
    """The module of a name for a model with weights of so many bytes; under checkpoints no cache is kept."""
    family = FAMILIES.get(model.configuration.family)
    if family is None or name == "plain":
        return MODULES[name]()
    said = dict(family.module)
    weights = {model.table.values[weight].group or weight for weight in model.table.weights}
    usual = str(family.settings.get("activation", ""))
    written = {ACTIVATIONS.get(usual, usual): usual}
    if "buffers" in said:
        said["buffers"] = evaluate(said["buffers"], {**model.configuration.values, "width": width})
    given = {
        "cache": model.causal,
        "upcast": model.causal and not model.two_sided,
        "written": written,
        "holds": "embeddings",
        "checkpointed": checkpointed,
        **said,
    }
    if checkpointed or not MODULES[name].caches:
        given["cache"] = False
    return MODULES[name](packed=tuple(group for _, group in joint(family.name, weights)), **given)

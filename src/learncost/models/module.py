"""Choose the code of a model's eager training: transformers' code, as `[module]` in the family's file describes it, or
a module of the user."""

from __future__ import annotations

from learncost.models.configuration import adds_paths
from learncost.models.expression import evaluate
from learncost.models.families import ACTIVATIONS, FAMILIES
from learncost.models.model import Model
from learncost.models.modules import joint
from learncost.program.autograd.module import DEFAULT_MODULE, MODULES, Module, UserModule


def default_module(model: Model, recomputes: bool = False) -> str:
    """Return the name of the default code of a model: transformers' for a model of a family, otherwise a layer's lines
    or an imported module."""
    if model.configuration.layer is None:
        return DEFAULT_MODULE
    return Module.name if recomputes or why_not_runnable(model) else UserModule.name


def why_not_runnable(model: Model) -> str:
    """Return the reason why a model's imported module cannot run; "" if it can."""
    layer = model.configuration.layer
    if layer is None:
        whole = {*model.learning} == {*model.table.weights} - {*FAMILIES[model.configuration.family].frozen}
        whole = whole and not (adds_paths(model.configuration) or model.quantized)
        return "" if whole and not model.masks else "trains all weights of a preset, without adapters and dropout"
    if layer.steps is None:
        return "is of a module that is in memory, or is named as FILE.py:NAME"
    if {weight.partition("@")[0] for weight in model.table.weights} != {*layer.table.weights}:
        return "does not support adapters on an imported module"
    return ""


def trains_other_weights(model: Model) -> bool:
    """Return whether the model's trainable weights differ from those of the imported module."""
    layer = model.configuration.layer
    return layer is not None and {*model.learning} != {*layer.table.weights} - {*layer.frozen}


def module_of(model: Model, name: str, checkpointed: bool = False, width: int = 4, unfused: bool = False) -> Module:
    """Return the code of a model by its name; checkpointing disables its KV cache, and `width` is the bytes of a
    weight's element. Attention is that of attn_implementation="eager" where it shall not be fused."""
    family = FAMILIES.get(model.configuration.family)
    if family is None or not MODULES[name].of_family:
        stable = MODULES[name].stable and bool(model.quantized)
        embedding = model.configuration.sizes["vocab_size"] * model.configuration.sizes["hidden_size"] if stable else 0
        return MODULES[name](attention="eager" if unfused else "sdpa", buffers=2 * embedding * width)
    module_settings = {**family.module}
    if unfused and module_settings.get("attention", "sdpa") == "sdpa":
        module_settings["attention"] = "eager"
    weights = {model.table.values[weight].group or weight for weight in model.table.weights}
    usual = str(family.settings.get("activation", ""))
    written = {ACTIVATIONS.get(usual, usual): usual}
    values = {**model.configuration.values, "width": width}
    for setting in ("buffers", "chunk", "floats"):
        if isinstance(text := module_settings.get(setting), str):
            value = evaluate(text, values)
            module_settings[setting] = [value] if isinstance(value, str) else value
    arguments = {
        "cache": model.causal,
        "upcast": model.causal and not model.two_sided,
        "written": written,
        "holds": "embeddings",
        "checkpointed": checkpointed,
        "window": model.configuration.values.get("sliding_window") or 0,
        **module_settings,
    }
    if checkpointed or not MODULES[name].caches:
        arguments["cache"] = False
    return MODULES[name](packed=tuple(group for _, group in joint(family.name, weights)), **arguments)

"""A live module of transformers as a configuration: what its class and its config say, held against its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any

from learncost.ir.errors import InputError, nearest, shown
from learncost.layers.layer import Layer, Origin, layer
from learncost.models.configuration import Configuration, configure
from learncost.models.families import FAMILIES
from learncost.models.live_weights import learned, parameters_of
from learncost.models.model import Model, build


def from_module(
    module: Any,
    inputs: Any = None,
    symbols: Mapping[str, str] | None = None,
    *,
    as_run: bool = False,
    unknown: str = "refuse",
    fold: bool = True,
) -> Configuration | Layer:
    """A PyTorch module that is in memory as a model; `lc.cost` and all that take a model take it.

    With `inputs` any module is read: PyTorch exports it, and its operations become the lines of a table. Nothing is
    computed, and parameters may be on the device meta.

    Without them it is a model of transformers of a class that is known, and PyTorch exports nothing: the class is the
    architecture, and its config gives the sizes. Then its parameters are counted, shared ones once, and must be as many
    as the config describes. What has `requires_grad=False` is frozen, and the low-rank paths of peft are counted as
    they are.

    Parameters
    ----------
    module
        A torch.nn.Module.
    inputs
        What its forward takes: example tensors, in a tuple in their order or in a dict by name, or texts by name, such
        as {"idx": "int B M", "x": "float B 3 64 64"}. A float tensor that requires a gradient gets one.
    symbols
        Of example tensors, which of their sizes stay open, by name: {"idx": "B M"}. Every other size is as it is.
    as_run
        Take down the operations of one run, with the branches on values that it takes.
    unknown
        What becomes of an operation of which nobody knows the cost: refuse, or zero, a line without a number.
    fold
        Equal blocks become a repeat.

    Returns
    -------
    Configuration or Layer
        What the other functions take as a model. Sizes that stay open are then keywords, `lc.cost(model, B=8, M=64)`.

    Raises
    ------
    InputError
        For a class that is not known, for a module that was changed after its config was written, with the difference,
        and for adapters and patterns of frozen weights that cannot be read, with the call that says them.

    Examples
    --------
    >>> import transformers
    >>> sizes = {"n_layer": 1, "n_embd": 8, "n_head": 2, "vocab_size": 10, "n_positions": 16}
    >>> config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)
    >>> module = transformers.GPT2LMHeadModel(config)
    >>> lc.cost(lc.from_module(module), seq_len=16).parameters
    1096
    """
    if isinstance(module, type) or not callable(getattr(module, "named_parameters", None)):
        hint = f": call it, as in {module.__name__}(...)" if isinstance(module, type) else ""
        raise InputError(f"a torch.nn.Module is needed, not {shown(module)}{hint}")
    if inputs is not None:
        return _read(module, inputs, symbols or {}, as_run, unknown, fold)
    if symbols:
        raise InputError("symbols are of inputs: give these, too, such as {'idx': 'int B M'}")
    if callable(getattr(module, "get_base_model", None)):  # peft's wrapper around an adapted model
        module = module.get_base_model()
    kind = type(module).__name__
    config: Any = getattr(module, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        raise InputError(
            f"{kind} has no config of transformers, so its structure is not known: "
            f"give `inputs`, such as lc.from_module(module, {{'x': 'float B 3 64 64'}}){_inside(module)}"
        )
    values = config.to_dict()
    family = values.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"{kind} is of the model type {shown(family)}, which is unknown{nearest(family, FAMILIES)}")
    classes = [architecture.name for architecture in FAMILIES[family].architectures]
    if kind not in classes:
        raise InputError(f"{kind} is not a class that is known for {family} ({', '.join(classes)}){_inside(module)}")
    plain, paths = parameters_of(module)
    theirs = sum(parameter.size for parameter in plain)
    model = _built(values, kind)
    ours = model.parameters.at(model.sizes)
    if ours != theirs and model.configuration.tied:  # peft's modules_to_save gives a tied head a matrix of its own
        apart = _built({**values, "tie_word_embeddings": False}, kind)
        model = apart if apart.parameters.at(apart.sizes) == theirs else model
        ours = model.parameters.at(model.sizes)
    if ours != theirs:
        raise InputError(
            f"{kind} has {theirs:,} parameters, and its config describes {ours:,} ({theirs - ours:+,}): "
            "it was changed, so its config does not say what it costs"
        )
    return replace(model.configuration, learned=learned(model, plain, paths))


def _read(module: Any, inputs: Any, symbols: Mapping[str, str], as_run: bool, unknown: str, fold: bool) -> Layer:
    """The table of a module with what it reads."""
    from learncost.importer.inputs import examples, sized
    from learncost.importer.live import LiveModule, evaluation_of, saved_of, values_of
    from learncost.importer.materialize import with_room, with_values
    from learncost.importer.pipeline import table_of
    from learncost.importer.running import ModuleStepping
    from learncost.importer.wrappers import readable

    module = readable(module)
    given = examples(inputs, module, symbols)
    called, given_module, module = type(module).__name__, module, with_room(module)
    ways: dict[str, Any] = {"symbols": symbols, "as_run": as_run, "unknown": unknown}
    text, _ = table_of(module, given, called, fold=fold, **ways)
    origin = Origin(
        cache(partial(evaluation_of, module, given, called, text, **ways)),
        partial(values_of, given_module),
        partial(saved_of, given_module),
        f"the {called} that was read has them",
    )
    steps = ModuleStepping(lambda: module, lambda sizes: sized(given, sizes, symbols))
    live = partial(
        LiveModule, partial(with_values, given_module, module), given, called, symbols, as_run, unknown, fold
    )
    return replace(layer(text), steps=steps, origin=origin, live=live)


def _built(values: dict[str, Any], kind: str) -> Model:
    return build(replace(configure({**values, "architectures": [kind]}), name=kind, source="a live module"))


def _inside(module: Any) -> str:
    """The parts of a module that are known, for the end of a message."""
    parts = [f"{name} is a {type(part).__name__}" for name, part in _known_parts(module)]
    return f"; inside it {' and '.join(parts[:3])}: give that" if parts else ""


def _known_parts(module: Any) -> Iterator[tuple[str, Any]]:
    """The outermost modules inside of a module that are of a known class."""
    above = "\0"
    for name, part in module.named_modules():
        to_dict = getattr(getattr(part, "config", None), "to_dict", None)
        if not name or name.startswith(f"{above}.") or not callable(to_dict):
            continue
        family = to_dict().get("model_type")
        if family in FAMILIES and type(part).__name__ in [a.name for a in FAMILIES[family].architectures]:
            above = name
            yield name, part

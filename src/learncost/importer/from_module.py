"""Convert a transformers module in memory to a configuration: its class and config, checked against its parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache, partial
from typing import Any

from learncost.ir.dataclass import replace
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
    """Return a model of a PyTorch module in memory, for `lc.cost` and every other function that takes a model.

    With `inputs`, any module can be imported: PyTorch exports it, and its operations become the lines of a table.
    Nothing is computed, and parameters may be on the meta device.

    Without inputs, the module must be a known class of transformers, and nothing is exported: the class gives the
    architecture, and the config the sizes. The number of parameters, with tied ones counted once, must match the
    config. Parameters with `requires_grad=False` are frozen, and the LoRA adapters of peft are counted.

    Parameters
    ----------
    module
        A torch.nn.Module.
    inputs
        The arguments of forward: example tensors, in a tuple in order or in a dict by name, or descriptions by
        name, such as {"idx": "int B M", "x": "float B 3 64 64"}. A float tensor that requires a gradient gets
        one.
    symbols
        The symbolic dimensions of example tensors, by name: {"idx": "B M"}. Every other size is fixed.
    as_run
        Trace one concrete forward pass; data-dependent branches are fixed as taken.
    unknown
        The treatment of operations with unknown cost: refuse (an error), or zero (a line without cost).
    fold
        Merge equal blocks into a loop.

    Returns
    -------
    Configuration or Layer
        A model for the other functions. Open sizes are keywords there, `lc.cost(model, B=8, M=64)`.

    Raises
    ------
    InputError
        For an unknown class; for a module that does not match its config, with the difference in parameters; and
        for unsupported adapters and patterns of frozen weights, with the call that describes them instead.

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
        raise InputError(f"expected a torch.nn.Module, not {shown(module)}{hint}")
    if inputs is not None:
        return _read(module, inputs, symbols or {}, as_run, unknown, fold)
    if symbols:
        raise InputError("symbols require inputs: pass inputs as well, such as {'idx': 'int B M'}")
    if callable(getattr(module, "get_base_model", None)):  # peft's wrapper around an adapted model
        module = module.get_base_model()
    kind = type(module).__name__
    config: Any = getattr(module, "config", None)
    if not callable(getattr(config, "to_dict", None)):
        raise InputError(
            f"{kind} has no config of transformers, so its structure is unknown: "
            f"pass `inputs`, such as lc.from_module(module, {{'x': 'float B 3 64 64'}}){_inside(module)}"
        )
    values = config.to_dict()
    family = values.get("model_type")
    if family not in FAMILIES:
        raise InputError(f"{kind} has the unknown model type {shown(family)}{nearest(family, FAMILIES)}")
    classes = [architecture.name for architecture in FAMILIES[family].architectures]
    if kind not in classes:
        raise InputError(f"{kind} is not a known class of {family} ({', '.join(classes)}){_inside(module)}")
    plain, paths = parameters_of(module)
    theirs = sum(parameter.size for parameter in plain)
    model = _built(values, kind)
    ours = model.parameters.at(model.sizes)
    if ours != theirs and model.configuration.tied:  # peft's modules_to_save copies a tied head
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
    """Return the table of a module with its inputs."""
    from learncost.importer.examples import readable
    from learncost.importer.inputs import MOST, examples, sized
    from learncost.importer.nested import by_parts
    from learncost.importer.pipeline import ImportOptions, LiveModule, evaluation_of, saved_of, table_of, values_of
    from learncost.importer.recorder import ModuleStep
    from learncost.importer.tried import allocated, with_values
    from learncost.program.interpolated import Interpolated

    module = readable(module)
    module, given, symbols = by_parts(module, examples(inputs, module, symbols), symbols)
    called, given_module, module = type(module).__name__, module, allocated(module)
    options = ImportOptions(symbols, as_run, unknown, fold)
    text, _ = table_of(module, given, called, options)
    origin = Origin(
        cache(partial(evaluation_of, module, given, called, text, options)),
        partial(values_of, given_module),
        partial(saved_of, given_module),
        f"the {called} that was read has them",
    )
    steps = Interpolated(ModuleStep(lambda: module, lambda sizes: sized(given, sizes, symbols, MOST)))
    live = partial(LiveModule, partial(with_values, given_module, module), given, called, options)
    return replace(layer(text), steps=steps, origin=origin, live=live)


def _built(values: dict[str, Any], kind: str) -> Model:
    return build(replace(configure({**values, "architectures": [kind]}), name=kind, source="a live module"))


def _inside(module: Any) -> str:
    """Return the known submodules of a module, for the end of a message."""
    parts = [f"{name} is a {type(part).__name__}" for name, part in _known_parts(module)]
    return f"; inside it {' and '.join(parts[:3])}: give that" if parts else ""


def _known_parts(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the outermost submodules of a known class."""
    above = "\0"
    for name, part in module.named_modules():
        to_dict = getattr(getattr(part, "config", None), "to_dict", None)
        if not name or name.startswith(f"{above}.") or not callable(to_dict):
            continue
        family = to_dict().get("model_type")
        if family in FAMILIES and type(part).__name__ in [a.name for a in FAMILIES[family].architectures]:
            above = name
            yield name, part

"""Build a module without weights, and its inputs, from a config.json of transformers or diffusers.

Only classes of the installed packages are built, by name: no code of the file is run, and nothing is downloaded.
"""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any
from unittest.mock import patch

from learncost.importer.inputs import Input, parse_inputs
from learncost.importer.refusals import one_line
from learncost.ir.errors import InputError, nearest, shown
from learncost.models.argument import unknown_type

SIDE, SAMPLES = 224, 16_000
"""Defaults where a file gives neither: the side of an image, and one second of sound, sixteen thousand samples."""

TRAINED = "learncost_trains"
"""The key of files that `preset_steps` writes: the module has the library's attention and returns its loss alone."""

CODE_OF_ITS_OWN = ("auto_map", "custom_pipelines")
"""Keys that name code that comes with a file, which is never run."""


def module_of(values: Mapping[str, Any]) -> Any:
    """Return the module that the keys of a config.json describe; its parameters are made on the current default device.

    Raises `InputError` for a type or a class that the installed packages do not have.
    """
    with patch.dict(os.environ, HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1"):  # no downloads
        return _of_diffusers(values) if "_class_name" in values else _of_transformers(values)


def check_installed(values: Mapping[str, Any]) -> None:
    """Refuse the keys of a config.json that nothing installed can build, with the most likely error first."""
    package = "diffusers" if "_class_name" in values else "transformers"
    missing = [name for name in ("torch", package) if find_spec(name) is None]
    if missing:
        install = " ".join("'learncost[torch]'" if name == "torch" else name for name in missing)
        what = unknown_type(values.get("model_type"))
        if package == "diffusers":
            what = f"no family of models here has the class {shown(values['_class_name'])}"
        raise InputError(f"{what}; {package} is needed to build its types and classes: pip install {install}")


def _of_transformers(values: Mapping[str, Any]) -> Any:
    transformers = importlib.import_module("transformers")
    known = transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES
    kind = values.get("model_type")
    if kind not in known:
        not_run = f"; its remote code ({', '.join(values['auto_map'])}) is not run" if values.get("auto_map") else ""
        raise InputError(f"transformers {transformers.__version__}: {unknown_type(kind, known)}{not_run}")
    settings = {key: value for key, value in values.items() if key not in (*CODE_OF_ITS_OWN, TRAINED, "model_type")}
    if "use_pretrained_backbone" in settings:
        settings["use_pretrained_backbone"] = False
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    try:
        config = transformers.AutoConfig.for_model(kind, **settings)
        if not values.get(TRAINED):
            config._attn_implementation = "eager"
        if getattr(config, "is_encoder_decoder", False) and not hasattr(config, "decoder_start_token_id"):
            config.decoder_start_token_id = config.pad_token_id  # as all published files of T5 have it
        module = _class(transformers, config, settings)(config)
        if values.get(TRAINED):
            module.register_forward_hook(lambda _, __, result: getattr(result, "loss", None))  # None: all results
        return module
    except InputError:
        raise
    except Exception as error:  # any error that a class raises about its config
        raise InputError(f"transformers cannot build {shown(kind)} of this file: {one_line(error)}") from None
    finally:
        transformers.logging.set_verbosity(verbosity)


def _class(transformers: Any, config: Any, values: Mapping[str, Any]) -> Any:
    """Return the class that a file names: the causal language model for text models, the bare model for other types."""
    names = values.get("architectures") or ()
    name = names[0] if isinstance(names, list | tuple) and names else values.get("architecture")
    module = importlib.import_module(type(config).__module__.replace("configuration", "modeling"))
    if name is None:
        is_text = "_text" in str(config.model_type) or "architectures" in values
        head = next(filter(lambda each: _reads_text(each, config), vars(module).values()), None) if is_text else None
        return head or transformers.AutoModel._model_mapping[type(config)]
    model_class = getattr(module, str(name), None) or getattr(transformers, str(name), None)
    if not (inspect.isclass(model_class) and issubclass(model_class, transformers.PreTrainedModel)):
        classes = [each for each, value in vars(module).items() if inspect.isclass(value) and each[0].isupper()]
        raise InputError(f"transformers has no class {shown(name)} for this type{nearest(str(name), classes)}")
    return model_class


def _reads_text(kind: Any, config: Any) -> bool:
    """Return whether a class is the causal language model of a config."""
    return (
        inspect.isclass(kind)
        and kind.__name__.endswith("ForCausalLM")
        and getattr(kind, "config_class", None) is type(config)
    )


def _of_diffusers(values: Mapping[str, Any]) -> Any:
    diffusers = importlib.import_module("diffusers")
    name = str(values["_class_name"])
    model_class = getattr(diffusers, name, None)
    if not (inspect.isclass(model_class) and hasattr(model_class, "from_config") and hasattr(model_class, "forward")):
        raise InputError(
            f"diffusers {diffusers.__version__} has no module {shown(name)}{nearest(name, dir(diffusers))}"
        )
    try:
        return model_class.from_config({key: value for key, value in values.items() if key not in CODE_OF_ITS_OWN})
    except Exception as error:  # any error that a class raises about its config
        raise InputError(f"diffusers cannot build {name} of this file: {one_line(error)}") from None


def inputs_of(module: Any) -> tuple[Input, ...]:
    """Return the inputs of a module of transformers or diffusers, by the names of its forward; batch and lengths are
    open.

    A class that computes a loss also gets labels. The config gives the size of images and sounds.
    """
    names = inspect.signature(module.forward).parameters
    lines = list(_of_diffusers_inputs(module, names) if hasattr(module, "_internal_dict") else _lines(module, names))
    return parse_inputs(lines)


def _setting(config: Any, *names: str) -> Any:
    """Return the first of several settings that a config, or a nested config, has."""
    parts = [getattr(config, part, None) for part in ("vision_config", "audio_config", "text_config")]
    for part in (config, *parts):
        for name in names:
            if (value := getattr(part, name, None)) is not None:
                return value
    return None


def _lines(module: Any, names: Mapping[str, Any]) -> Iterator[str]:
    config, kind = module.config, type(module).__name__
    pair = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names
    tokens = "N" if pair else "M"
    reads_tokens = "input_ids" in names and not (pair and module.main_input_name != "input_ids")
    if module.main_input_name == "pixel_values":
        reads_tokens = reads_tokens and "return_loss" in names
    if reads_tokens:
        yield f"input_ids: int B {tokens}"
    if "pixel_values" in names:
        size = _setting(config, "image_size", "sample_size") or SIDE
        high, wide = size if isinstance(size, list | tuple) else (size, size)
        yield f"pixel_values: float B {_setting(config, 'num_channels', 'in_channels') or 3} {high} {wide}"
    if "input_values" in names:
        yield f"input_values: float B {SAMPLES}"
    if "input_features" in names:
        bins = _setting(config, "num_mel_bins", "input_feat_per_channel", "feature_projection_input_dim") or 80
        frames = _setting(config, "max_source_positions")
        yield f"input_features: float B {bins} {2 * frames}" if frames else f"input_features: float B T {bins}"
    answers = "B M" if any(op in kind for op in ("ForCausalLM", "LMHead", "MaskedLM", "TokenClass", "Double")) else ""
    answers = answers or ("B M" if "ForConditionalGeneration" in kind or "ForSeq2Seq" in kind else "")
    answers = answers or ("B" if any(op in kind for op in ("ForImageClass", "SequenceClass", "AudioClass")) else "")
    if answers and "labels" in names:
        yield f"labels: int {answers}"
    elif pair:
        yield "decoder_input_ids: int B M"
    if "return_loss" in names:
        yield "return_loss = true"
    if "use_cache" in names:
        yield "use_cache = false"


def _of_diffusers_inputs(module: Any, names: Mapping[str, Any]) -> Iterator[str]:
    config = module.config
    size = config.get("sample_size") or 32
    high, wide = size if isinstance(size, list | tuple) else (size, size)
    first = next(name for name in names if name in ("sample", "hidden_states"))
    yield f"{first}: float B {config.get('in_channels', 3)} {high} {wide}"
    if "timestep" in names:
        yield "timestep: int B"
    if "class_labels" in names and config.get("num_embeds_ada_norm"):
        yield "class_labels: int B"
    if "encoder_hidden_states" in names and (
        width := config.get("cross_attention_dim") or config.get("caption_channels")
    ):
        yield f"encoder_hidden_states: float B M {width}"
    yield "return_dict = false"

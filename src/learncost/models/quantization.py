"""Rewrite a model's table so that the frozen matrices of its blocks are stored as codes and scales."""

from __future__ import annotations

from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Line
from learncost.ir.precision import Precision
from learncost.models.adaptation import Adaptation, TrainableWeights, adapted
from learncost.models.model import Model
from learncost.models.purposes import linear_layers
from learncost.passes.rewrite_quantized import with_quantized
from learncost.passes.split import flat


def changed(
    model: Model, learned: Adaptation | TrainableWeights | None, precision: Precision, learns: bool = True
) -> Model:
    """Return the model with the requested trainable parameters in a precision. Raises `InputError`.

    learns  whether any weights are trained; none are in inference
    """
    if learned is not None:
        model = adapted(model, learned)
    if precision.saved or precision.products or precision.is_whole:
        whole, integers = bool(precision.products), precision.is_whole
        model = replace(model, saved=precision.saved, whole=whole, integers=integers)
    return quantized(model, precision, learns) if precision.quantized is not None else model


def quantized(model: Model, precision: Precision, learns: bool = True) -> Model:
    """Return the model with its frozen or trainable matrices in the quantized types of the precision, if these exist.

    As in bitsandbytes, these are the linear layers in blocks: embeddings, norms, biases, the head, routers and
    convolutions are unchanged. For types whose scale is applied after the product, every matrix that only products read
    is quantized. Raises `InputError` if none of them is frozen.
    learns  whether any weights are trained; none are in inference
    """
    kind = precision.quantized
    if kind is None:
        return model
    model = replace(model, table=flat(model.table, model.sizes))
    learning = set(model.learning) if learns else set[str]()
    every, linear = kind.scales_sums, linear_layers(model)

    def chosen(line: Line, inside: str, outer: str) -> bool:
        # In integer-only steps, frozen matrices are codes, too.
        meant = kind.powers or (outer in learning) == (kind.learns and learns)
        return meant and (every or inside in linear)

    table, stored = with_quantized(model.table, chosen, kind)
    if not stored and kind.learns:
        raise InputError(
            f"the precision {precision.name} needs trainable matrices that only products read, which "
            f"{model.configuration.name} does not have"
        )
    if not stored:
        raise InputError(
            f"the precision {precision.name} stores frozen matrices{'' if every else ' of blocks'} as "
            f"{kind.name}, but {model.configuration.name} has none: freeze some, for example with --lora all-linear"
        )
    block_counts = {axis: size for weight in stored for axis, size in weight.sizes(model.sizes).items()}
    codes = {weight.weight: weight.codes.name for weight in stored}
    trained = None if model.trained is None else tuple(codes.get(name, name) for name in model.trained)
    if not learns or (trained is None and not kind.learns):
        trained = model.learning if learns else ()
    return replace(
        model, table=table, sizes={**model.sizes, **block_counts}, quantized=stored, plain=model.table, trained=trained
    )

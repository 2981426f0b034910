"""Precisions: the data type of each role of a step. Every row of this table is a precision in every command.

A type is plain (`BYTES`), or codes of few bits with a scale per block (`BLOCKS`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, named_one

BYTES = {"fp64": 8, "fp32": 4, "bf16": 2, "fp16": 2, "int8": 1, "int32": 4}
"""Bytes of an element, by its plain type."""

PRODUCTS_ALONE = ("fp8", "fp4")
"""Types of matrix products in which no tensor of a step is stored: recipes keep weights, states and most activations in
bf16 or fp32, with scales for the tensors that are cast. Until a recipe is a precision here, memory and time are
unknown. torchtitan, docs/performance.md and docs/float8.md: in float8 the peak memory is that of bf16.
"""


def check_stored(name: str) -> None:
    """Raise `InputError` for a type that is known for its products only."""
    if name in PRODUCTS_ALONE:
        raise InputError(
            f"the memory and time of {name} are unknown: the recipe decides which tensors are {name} and which "
            f"remain in bf16 or fp32; use bf16-masters (only learncost cost counts the FLOPs of {name})"
        )


@dataclass(frozen=True)
class BlockScales:
    """A quantized type: codes of few bits, and a scale for every block; a number is its code's level times the scale.

    bits         of a code
    block        how many consecutive numbers share a scale; 0: all that one result sums
    scales       the type of the scales, plain or quantized again
    levels       the values of the codes, from -1 to 1, in the order of the codes; None: no table reads them
    least        arrays of fewer numbers are fp32
    scales_sums  whether a product reads the codes as integers and multiplies its sum by the scale; the weight is then
                 never dequantized
    learns       whether these are trainable weights
    powers       whether a tensor has one scale, a power of two, of which the exponent is stored
    """

    name: str
    bits: int
    block: int
    scales: str
    source: str
    levels: tuple[float, ...] | None = None
    least: int = 0
    scales_sums: bool = False
    learns: bool = False
    powers: bool = False

    def bytes(self, count: int) -> int:
        """Return the bytes of consecutive numbers: codes, and the scales of their blocks."""
        if count < self.least:
            return count * BYTES["fp32"]
        return -(-count * self.bits // 8) + bytes_of_type(self.scales, -(-count // self.block) if self.block else 1)


_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Dettmers et al. 2023, QLoRA, appendix E: the quantiles of a normal distribution."""

BLOCKS: Mapping[str, BlockScales] = {
    precision.name: precision
    for precision in (
        BlockScales(
            "int8-256", 8, 256, "fp32",
            "bitsandbytes, optim/optimizer.py: blocks of 256; states of fewer than 4,096 numbers are fp32", least=4096,
        ),
        BlockScales(
            "int8-2048", 8, 2048, "fp32",
            "Dettmers et al. 2022, 8-bit optimizers via block-wise quantization, section 2", least=4096,
        ),
        BlockScales(
            "int8-rows", 8, 0, "fp32",
            "Dettmers et al. 2022, LLM.int8(), section 2.1: a scale for each result's weights, the largest over 127",
            tuple(code / 127 for code in range(-127, 128)),
        ),
        BlockScales(
            "int8-sums", 8, 0, "fp32",
            "Jacob et al. 2018, Quantization and training for integer-arithmetic-only inference, section 2.2, without "
            "zero points; a scale for each result as Krishnamoorthi 2018, Quantizing deep convolutional networks, "
            "section 3.1.1",
            tuple(code / 127 for code in range(-127, 128)), scales_sums=True,
        ),
        BlockScales(
            "int8-learned", 8, 0, "fp32",
            "Lin et al. 2022, On-device training under 256KB memory, section 2.1: a fixed scale for each result; here "
            "the largest of its weights begins at half of what a code can say",
            tuple(code / 64 for code in range(-127, 128)), scales_sums=True, learns=True,
        ),
        BlockScales(
            "int8-powers", 8, 0, "int32",
            "Wang et al. 2020, NITI, section 3: a power of two as the scale of an array; here it is fixed, and the "
            "largest of a weight begins between a quarter and half of what a code can say",
            tuple(code / 64 for code in range(-127, 128)), scales_sums=True, learns=True, powers=True,
        ),
        BlockScales("nf4-64", 4, 64, "fp32", "Dettmers et al. 2023, QLoRA, section 3: NF4 in blocks of 64", _NF4),
        BlockScales(
            "nf4-64-double", 4, 64, "uint8-256",
            "Dettmers et al. 2023, QLoRA, section 3: NF4 in blocks of 64, whose scales are of 8 bits in blocks of 256",
            _NF4,
        ),
        BlockScales(
            "uint8-256", 8, 256, "fp32",
            "Dettmers et al. 2023, QLoRA, section 3, with codes from 0 up in place of taking the mean off",
            tuple(code / 255 for code in range(256)),
        ),
        BlockScales(
            "int4-128", 4, 128, "fp16",
            "Lin et al. 2024, AWQ, section 5: groups of 128, here without zero points",
            tuple(code / 7 for code in range(-7, 8)),
        ),
    )
}  # fmt: skip
"""The quantized types by their names."""


def bytes_of_type(name: str, count: int) -> int:
    """Return the bytes of consecutive numbers of a type."""
    return BLOCKS[name].bytes(count) if name in BLOCKS else BYTES[name] * count


@dataclass(frozen=True)
class Precision:
    """The data type of each role of a step.

    weights    of trainable weights, and of frozen ones that no block multiplies by (embeddings, norms, the head)
    gradients  of the gradients of weights
    values     of activations and their gradients; products are computed in it, too
    states     of the optimizer states; "": only inference is known
    masters    of the master weights, which the optimizer updates; "": it updates the weights themselves
    loss       of the operands and results of log-softmax and its gradient, which programs widen
    frozen     of frozen weights that blocks multiply by as matrices; "": as the other weights
    saved      of saved tensors until the backward pass; "": as the other values
    products   of the factors of matrix products, which have a scale per row and column; "": as the values
    autocast   whether values are of the type to which PyTorch's autocast casts operands of products, and others of that
               of the weights
    norms      of the weights of RMS norms where that is wider; their results are of it. "": as the other weights
    learned    of trainable matrices that only products read, with stochastic rounding of updates; "": as the other
               weights
    also       other names
    """

    name: str
    title: str
    weights: str
    gradients: str
    values: str
    states: str
    masters: str
    loss: str
    source: str
    frozen: str = ""
    saved: str = ""
    products: str = ""
    learned: str = ""
    autocast: bool = False
    norms: str = ""
    also: tuple[str, ...] = ()

    @property
    def is_stored(self) -> bool:
        """Return whether the storage types are known; otherwise only FLOPs are."""
        return self.values not in PRODUCTS_ALONE

    @property
    def is_trained(self) -> bool:
        """Return whether the types of a training step are known; `bf16` alone does not have those of its updates."""
        return bool(self.states)

    @cached_property
    def weight(self) -> int:
        """Bytes of an element of a weight."""
        return BYTES[self.weights]

    @cached_property
    def gradient(self) -> int:
        """Bytes of an element of a weight's gradient."""
        return BYTES[self.gradients]

    @cached_property
    def value(self) -> int:
        """Bytes of an element of a value."""
        return BYTES[self.values]

    @cached_property
    def master(self) -> int:
        """Bytes of an element of the master weights; 0 where there are none."""
        return BYTES[self.masters] if self.masters else 0

    @cached_property
    def scores(self) -> int:
        """Bytes of an element of the operands and results of log-softmax."""
        return BYTES[self.loss]

    @property
    def array(self) -> str:
        """The NumPy type of a training's arrays: fp32 for bf16, with rounding; fp64 for integers."""
        return "float64" if "fp64" in (self.weights, self.masters) or self.is_whole else "float32"

    @property
    def is_whole(self) -> bool:
        """Return whether all numbers are integers."""
        return self.values == "int32"

    @property
    def quantized(self) -> BlockScales | None:
        """The quantized type of matrices, frozen or trainable."""
        return BLOCKS.get(self.frozen or self.learned)

    @property
    def computed(self) -> str:
        """The precision in which a program computes that reads codes directly: the type of its other numbers."""
        codes = self.saved or self.products or (self.quantized is not None and self.quantized.scales_sums)
        return self.values if codes else self.name


ROLES = ("weights", "frozen", "gradients", "values", "states", "masters", "loss")
"""The fields of a precision that name a type."""


def _one(name: str, title: str) -> Precision:
    return Precision(name, title, name, name, name, name, "", name, "one type for all")


_INFERENCE = "torch.nn.Module.to(dtype): one type for all but the logits of the loss; inference only"
_MIXED = "Micikevicius et al. 2018, Mixed precision training: fp32 master weights"
_AUTOCAST = (
    "PyTorch 2.13, ATen/autocast_mode.h, as Trainer(bf16=True) and torch.autocast do it: products take copies, and "
    "what adds to the residual stream stays fp32"
)
_PURE = "torchtune's recipes, dtype: bf16: weights, gradients and states are bf16; the loss is computed in fp32"
_QLORA = "Dettmers et al. 2023, QLoRA, section 3; low-rank paths in bf16 and states in fp32 as in its program qlora.py"
_QLORA_TRUE = (
    "torchtune bd2a0fc7, modules/peft/lora.py, and litgpt 26857050, finetune/lora.py, --precision bf16-true: what "
    "learns is made in bf16, and so are its states"
)

PRECISIONS: dict[str, Precision] = {
    precision.name: precision
    for precision in (
        _one("fp32", "fp32 for all"),
        _one("fp64", "fp64 for all"),
        Precision(
            "bf16", "bf16 in inference; training needs bf16-masters or bf16-true",
            "bf16", "bf16", "bf16", "", "", "fp32", _INFERENCE, also=("bfloat16",),
        ),
        Precision(
            "fp16", "fp16 in inference; training needs fp16-masters or fp16-true",
            "fp16", "fp16", "fp16", "", "", "fp32", _INFERENCE, also=("float16", "half"),
        ),
        Precision(
            "bf16-masters", "bf16 weights with fp32 master weights",
            "bf16", "bf16", "bf16", "fp32", "fp32", "fp32", _MIXED,
        ),
        Precision(
            "bf16-masters-fp32-gradients", "as bf16-masters, with gradients summed in fp32",
            "bf16", "fp32", "bf16", "fp32", "fp32", "fp32",
            "Megatron-LM d98e8a64, training/arguments.py: --bf16 sets accumulate_allreduce_grads_in_fp32; nanotron "
            "2411b022, OptimizerArgs.accumulate_grad_in_fp32",
        ),
        Precision(
            "amp", "fp32 weights, products in bf16 by PyTorch's autocast",
            "fp32", "fp32", "bf16", "fp32", "", "fp32", _AUTOCAST, autocast=True,
        ),
        Precision(
            "amp-fp16", "fp32 weights, products in fp16 by PyTorch's autocast",
            "fp32", "fp32", "fp16", "fp32", "", "fp32", _AUTOCAST, autocast=True,
        ),
        Precision(
            "fp16-masters", "fp16 weights with fp32 master weights",
            "fp16", "fp16", "fp16", "fp32", "fp32", "fp32", _MIXED,
        ),
        Precision(
            "fp8", "products in fp8; only their FLOPs are known", "", "", "fp8", "", "", "",
            "Micikevicius et al. 2022, FP8 formats for deep learning: operands of products in 8 bits; what is stored "
            "in which type is up to a recipe",
        ),
        Precision(
            "int8", "int8 for all", "int8", "int8", "int8", "int8", "", "int8",
            "Lin et al. 2022, On-device training under 256KB memory: everything in int8",
        ),
        Precision(
            "bf16-true", "bf16 throughout, the optimizer's states too",
            "bf16", "bf16", "bf16", "bf16", "", "fp32", _PURE,
        ),
        Precision(
            "fp16-true", "fp16 throughout, the optimizer's states too",
            "fp16", "fp16", "fp16", "fp16", "", "fp32",
            "torch.nn.Module.half(): every parameter in fp16, without a master copy",
        ),
        Precision(
            "int8-frozen", "bf16, frozen matrices of the blocks in int8 with a scale a row",
            "bf16", "bf16", "bf16", "fp32", "", "fp32", BLOCKS["int8-rows"].source, "int8-rows",
        ),
        Precision(
            "int8-frozen-fp32", "fp32, frozen matrices in int8, each result of a product scaled",
            "fp32", "fp32", "fp32", "fp32", "", "fp32", BLOCKS["int8-sums"].source, "int8-sums",
        ),
        Precision(
            "int8-saved", "fp32, saved tensors in int8 with a scale per row",
            "fp32", "fp32", "fp32", "fp32", "", "fp32",
            "Chakrabarti & Moseley 2019, Backprop with approximate activations for memory-efficient network training, "
            "section 3: forward is exact, and the copy that backward reads has few bits",
            saved="int8",
        ),
        Precision(
            "int8-products", "fp32, matrix products of int8 codes with a scale a row and a column",
            "fp32", "fp32", "fp32", "fp32", "", "fp32",
            "Dettmers et al. 2022, LLM.int8(), section 2.1: vector-wise quantization, here of both passes and of what "
            "makes the gradients of weights",
            products="int8",
        ),
        Precision(
            "int8-frozen-products", "as int8-products, frozen matrices in int8, which are not quantized again",
            "fp32", "fp32", "fp32", "fp32", "", "fp32",
            "Dettmers et al. 2022, LLM.int8(), section 2.1, whose weights are frozen", "int8-sums", products="int8",
        ),
        Precision(
            "int8-learned", "fp32, matrices that learn in int8, their updates scaled and rounded at random",
            "fp32", "fp32", "fp32", "fp32", "", "fp32",
            "Lin et al. 2022, On-device training under 256KB memory, section 2.1: weights of 8 bits and "
            "quantization-aware scaling; rounded as Gupta et al. 2015, Deep learning with limited numerical precision, "
            "section 3", learned="int8-learned",
        ),
        Precision(
            "int8-learned-products", "as int8-learned, and matrix products of int8 codes",
            "fp32", "fp32", "fp32", "fp32", "", "fp32",
            "as int8-learned; products as Dettmers et al. 2022, LLM.int8(), section 2.1", products="int8",
            learned="int8-learned",
        ),
        Precision(
            "integer-only", "integers only: products of int8, sums of int32, powers of two as scales",
            "int32", "int32", "int32", "int32", "", "int32",
            "Wang et al. 2020, NITI: arrays of 8 bits with a power of two, scaled by shifts of bits; updates as Lin et "
            "al. 2022, On-device training under 256KB memory, section 2.1, rounded as Gupta et al. 2015, section 3",
            learned="int8-powers", also=("int32",),
        ),
        Precision(
            "nf4", "bf16, frozen matrices of the blocks in 4 bits (NF4) with a scale for 64",
            "bf16", "bf16", "bf16", "fp32", "", "fp32", _QLORA, "nf4-64",
        ),
        Precision(
            "nf4-double", "as nf4, with the scales in 8 bits",
            "bf16", "bf16", "bf16", "fp32", "", "fp32", _QLORA, "nf4-64-double", also=("qlora",),
        ),
        Precision(
            "nf4-double-amp", "as nf4-double, what has no codes in fp32, products in bf16 by PyTorch's autocast",
            "fp32", "fp32", "bf16", "fp32", "", "fp32",
            "peft 5d602fdb, utils/other.py, prepare_model_for_kbit_training: what is not quantized becomes fp32",
            "nf4-64-double", autocast=True,
        ),
        Precision(
            "nf4-double-fp32-norms", "as nf4-double, RMS norms in fp32, whose results the residual stream adds up",
            "bf16", "bf16", "bf16", "fp32", "", "fp32",
            "qlora.py of Dettmers et al. 2023, get_accelerate_model, and TRL 0.13, peft_module_casting_to_bf16: norms "
            "in fp32, embeddings, the head and low-rank paths in bf16, under autocast",
            "nf4-64-double", autocast=True, norms="fp32",
        ),
        Precision(
            "nf4-true", "as nf4, the optimizer's states in bf16 too",
            "bf16", "bf16", "bf16", "bf16", "", "fp32", _QLORA_TRUE, "nf4-64",
        ),
        Precision(
            "nf4-double-true", "as nf4-double, the optimizer's states in bf16 too",
            "bf16", "bf16", "bf16", "bf16", "", "fp32", _QLORA_TRUE, "nf4-64-double",
        ),
        Precision(
            "nf4-fp16", "as nf4, in fp16 with fp32 master weights",
            "fp16", "fp16", "fp16", "fp32", "fp32", "fp32",
            "bitsandbytes, bnb_4bit_compute_dtype=float16, for GPUs without bf16; what learns as in " + _MIXED,
            "nf4-64",
        ),
        Precision(
            "int4-frozen", "bf16, frozen matrices of the blocks in int4 with an fp16 scale for 128",
            "bf16", "bf16", "bf16", "fp32", "", "fp32", BLOCKS["int4-128"].source, "int4-128",
        ),
    )
}  # fmt: skip
"""The precisions by their names; a new one needs only a row."""


SPLIT = {"bf16-8bit-states": "bf16-true", "fp32-8bit-states": "fp32"}
"""Precisions of earlier versions that also gave the type of optimizer states, each with the precision."""


def precision_of(name: str) -> Precision:
    """Return a precision by its name. Raises `InputError` for an unknown one, with those that exist."""
    if name in SPLIT:
        raise InputError(f"{name} is now --precision {SPLIT[name]} --optimizer adamw8bit")
    by_name = {**PRECISIONS, **{other: precision for precision in PRECISIONS.values() for other in precision.also}}
    return named_one("precision", name, by_name)


def check_trained(kind: Precision) -> None:
    """Raise `InputError` for a precision that does not have all types of a training step."""
    if kind.is_stored and not kind.is_trained:
        cast = next(row.name for row in PRECISIONS.values() if row.autocast and row.values == kind.values)
        names = (training_precision(kind.values), f"{kind.values}-true", cast)
        *first, last = (f"{name} ({PRECISIONS[name].title})" for name in names)
        choices = f"{', '.join(first)} or {last}"
        raise InputError(f"{kind.name} is ambiguous in training: give {choices}")


def training_precision(dtype: str) -> str:
    """Return the usual precision of a training step whose products have a type: fp32 masters where it is narrow."""
    return f"{dtype}-masters" if f"{dtype}-masters" in PRECISIONS else dtype


def without_autocast(kind: Precision) -> str:
    """Return the nearest precision without autocast: the first with the same frozen matrices, or the usual one."""
    rows = (row.name for row in PRECISIONS.values() if kind.frozen and row.frozen == kind.frozen)
    return next(rows, training_precision(kind.values))


def stored(name: str, trains: bool = True) -> Precision:
    """Return a precision whose memory and time are known, in training or in inference alone. Raises `InputError`."""
    check_stored(name)
    kind = precision_of(name)
    if trains:
        check_trained(kind)
    return kind


def either(
    dtype: str | None, precision: str | None, usual: str = "fp32", counts_alone: bool = False, trains: bool = True
) -> Precision:
    """Return the precision named by `precision`, or by `dtype`, its short form; both may be given where they agree.

    counts_alone  whether no bytes and no time depend on it
    trains        whether the answer depends on the types of weights, gradients and states in training
    """
    if dtype is not None and precision is not None and precision_of(dtype) != precision_of(precision):
        raise InputError(f"dtype {dtype} and precision {precision} are the same setting: give one of them")
    name = precision or dtype or usual
    return precision_of(name) if counts_alone else stored(name, trains)

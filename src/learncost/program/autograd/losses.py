"""The losses of trainers that are computed together with the head: how each makes the scores, and what it saves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add

from learncost.ir.dataclass import dataclass, field, replace
from learncost.program.autograd.operators import FLOAT, INTEGER, Gradients, TapeTensor, cat, cross_entropy


@dataclass(frozen=True)
class HeadInputs:
    """The operands of a head and its loss.

    hidden     the values that the head reads
    weight, bias  of the head
    classes    the scores of a token
    sequences  how many there are
    scored     makes the scores of some of the values
    held       what the training loop holds until the next scores are there
    """

    hidden: TapeTensor
    weight: TapeTensor
    bias: TapeTensor | None
    classes: int
    sequences: int
    scored: Callable[[TapeTensor], TapeTensor]
    held: list[TapeTensor]

    @property
    def tokens(self) -> int:
        return self.hidden.elements * self.classes // self.weight.elements

    def share(self, tokens: int) -> int:
        """Return the elements of the values of some tokens."""
        return self.hidden.elements // self.tokens * tokens

    @property
    def operands(self) -> list[TapeTensor]:
        return [each for each in (self.hidden, self.weight, self.bias) if each]


@dataclass(frozen=True)
class LossRow:
    """A loss.

    is_kernel    the head is inside of a kernel, which caps scores itself and has no low-rank path
    caps_values  where a model caps scores, the values that the head reads are capped instead
    """

    title: str
    source: str
    run: Callable[[HeadInputs], TapeTensor]
    is_kernel: bool = False
    caps_values: bool = False


def _liger(head: HeadInputs) -> TapeTensor:
    """Run the head and the loss for a chunk of tokens at a time.

    The forward pass computes the gradients of its operands, which are all that is kept, and those of a chunk's logits
    are in place of these. A chunk has the power of two of tokens whose logits are about as large as the operand.
    """
    tape, rows = head.hidden.tape, head.tokens
    chunks = -(-head.classes * rows // head.hidden.elements)
    tokens = min(1 << (-(-rows // chunks) - 1).bit_length(), rows)
    made = [tape.new(each.elements, each.width) if each.learns else None for each in head.operands]
    tape.new(tokens * head.classes, head.hidden.width)
    tape.hold(*made)
    return tape.run("linear_cross_entropy", head.operands, ((1, FLOAT),), lambda _: made)[0]


def _cut(head: HeadInputs) -> TapeTensor:
    """Run the head and the loss in tiles of registers: a logsumexp of every token is saved next to the operands."""
    tape, operands = head.hidden.tape, head.operands
    loss, _ = tape.run(
        "cut_cross_entropy",
        operands,
        ((1, FLOAT), (head.tokens, FLOAT)),
        lambda _: [tape.new(each.elements, each.width) if each.learns else None for each in operands],
        (*operands, 1),
    )
    return loss


TORCHTUNE_CHUNKS = 8
"""torchtune bd2a0fc7, modules/loss/cross_entropy_loss.py: num_output_chunks."""


def _torchtune(head: HeadInputs) -> TapeTensor:
    """Run `LinearCrossEntropyLoss`: tokens that count are selected, and chunks of them have scores in float."""
    tape = head.hidden.tape
    order, targets = (tape.new(head.tokens, INTEGER) for _ in range(2))
    chosen = head.hidden.gather(order, head.hidden.elements)
    several = [
        head.tokens // TORCHTUNE_CHUNKS + (place < head.tokens % TORCHTUNE_CHUNKS) for place in range(TORCHTUNE_CHUNKS)
    ]
    chunks = [chosen.slice(head.share(tokens)) for tokens in several if tokens]

    def loss(chunk: TapeTensor) -> TapeTensor:
        scores = head.scored(chunk)
        result = cross_entropy(scores.in_float(), targets)
        tape.hold(scores)
        return result

    return reduce(add, map(loss, chunks))


LITGPT_CHUNK = 128
"""litgpt 26857050, finetune/lora.py: lm_head_chunk_size, in positions."""


def _litgpt(head: HeadInputs) -> TapeTensor:
    """Run the head in chunks of positions, and `chunked_cross_entropy` of their scores, all of which are held.

    Fabric gives the model's results in float: lightning 2.5, fabric/plugins/precision/half.py: convert_output.
    """
    length = head.tokens // head.sequences
    several = [min(LITGPT_CHUNK, length - start) * head.sequences for start in range(0, length, LITGPT_CHUNK)]
    parts = head.hidden.split([head.share(tokens) for tokens in several])
    made = [head.scored(part.copied() if head.sequences > 1 else part) for part in parts]
    scores = [each.in_float() for each in made]
    return _in_chunks(head, scores, scores)


def _litgpt_full(head: HeadInputs) -> TapeTensor:
    """Run `chunked_cross_entropy` of 128 tokens at a time of the scores of all but the last position."""
    scores = head.scored(head.hidden).in_float()
    several = [min(LITGPT_CHUNK, head.tokens - start) * head.classes for start in range(0, head.tokens, LITGPT_CHUNK)]
    return _in_chunks(head, [scores], _shifted(head, scores).split(several))


def _in_chunks(head: HeadInputs, held: list[TapeTensor], parts: list[TapeTensor]) -> TapeTensor:
    """Return the loss of parts of the scores, which the loop holds until it has the next ones."""
    head.hidden.tape.hold(*head.held)  # those of the microbatch before
    head.held[:] = held
    targets = head.hidden.tape.new(head.tokens, INTEGER)
    return reduce(add, [cross_entropy(each, targets) for each in parts])


def _shifted(head: HeadInputs, scores: TapeTensor) -> TapeTensor:
    """Return the scores of all but the last position: a copy where there are several sequences."""
    shifted = scores.slice(scores.elements)
    return shifted.cloned() if head.sequences > 1 else shifted


def _olmo(head: HeadInputs) -> TapeTensor:
    """Run flash-attention's kernel on the scores of all but the last position, with or without the z-loss."""
    scores = head.scored(head.hidden)
    tape, shifted, rows = scores.tape, _shifted(head, scores), (head.tokens, FLOAT)
    losses, *_ = tape.run(
        "flash_cross_entropy",
        (shifted,),
        (rows, rows, rows),
        lambda _: [tape.new(shifted.elements, shifted.width)],
        (shifted, 1),
    )
    tape.hold(scores)
    return losses.sum(1)


def _probable(head: HeadInputs) -> TapeTensor:
    """Run `selective_log_softmax` of every sequence in turn: the log-probabilities of its tokens.

    The scores of a sequence in 16 bits are a log-softmax, of which the tokens are gathered; in float tokens are
    gathered from all scores, less their logsumexp.
    """
    scores = _scores(head)
    tape, tokens = scores.tape, head.tokens // head.sequences
    shifted = scores.slice(scores.elements)
    targets = tape.new(head.tokens, INTEGER)
    parts = shifted.split([tokens * head.classes] * head.sequences)
    if scores.width >= FLOAT:
        chosen = shifted.gather(targets, head.tokens)
        return (chosen + -cat([_logsumexp(part, tokens) for part in parts])).sum(1)
    return cat([part.apply("log_softmax").gather(targets, tokens) for part in parts]).sum(1)


def _logsumexp(scores: TapeTensor, rows: int) -> TapeTensor:
    """Run `torch.logsumexp`: grad * (self - result).exp() backward."""
    tape, sizes = scores.tape, (scores.elements, scores.width)

    def backward(_: Gradients) -> Gradients:
        difference, shares = tape.new(*sizes), tape.new(*sizes)
        tape.hold(difference)
        result = tape.new(*sizes)
        tape.hold(shares)
        return [result]

    tape.read(scores)
    shifted = tape.new(*sizes, name="sub")
    (result,) = tape.run("logsumexp", (scores,), ((rows, scores.width),), backward, (scores, 0))
    tape.hold(shifted)
    return result


def _with_odds(head: HeadInputs) -> TapeTensor:
    """Run the log-softmax of all scores, and the cross-entropy of the chosen half."""
    scores = head.scored(head.hidden)
    targets = scores.tape.new(head.tokens, INTEGER)
    chosen = cross_entropy(scores.slice(scores.elements // 2), targets)
    result = scores.slice(scores.elements).apply("log_softmax").gather(targets, head.tokens).sum(1) + chosen
    scores.tape.hold(scores)
    return result


def _graded(head: HeadInputs) -> TapeTensor:
    """Run the log-probabilities of scores that are divided in place by the temperature of sampling."""
    return _probable(replace(head, scored=lambda hidden: head.scored(hidden).div_(), held=[]))


def _scores(head: HeadInputs) -> TapeTensor:
    """Return the scores, which the loop holds."""
    scores = head.scored(head.hidden)
    head.held[:] = [scores]
    return scores


def _reverse_divergence(own: TapeTensor, others: TapeTensor) -> TapeTensor:
    """Run the divergence of the scores of a model from those of its teacher: `generalized_jsd_loss` of beta 1.

    Both are divided by the temperature, and `functional.kl_div` of their log-softmaxes is target.exp() * (target -
    input), of which the completions' rows are selected.
    """
    divided = [each.slice(each.elements) / 2.0 for each in (own, others)]
    student, teacher = (each.apply("log_softmax") for each in divided)
    difference = student.plus(teacher)
    divergence = student.apply("exp") * difference
    own.tape.hold(others, *divided)
    chosen = divergence.gather(own.tape.new(divergence.elements // 2, INTEGER), divergence.elements)
    own.tape.hold(divergence, student, teacher)
    return chosen.sum(1)


@dataclass(frozen=True)
class TrainedTask:
    """A training on something else than the next token.

    loss       computed together with the head; None: the model's own
    pairs      whether sequences are pairs, of which the second half are the rejected ones
    again      forward passes of the model without gradients
    reference  those of a reference model, which are behind the forward pass, or before it
    teacher    whether another model, which is named, has one
    joined     makes the loss of the outputs of both models, where the task's loss does not
    sizes      of the model: of its head
    """

    loss: LossRow | None = None
    pairs: bool = False
    again: int = 0
    reference: int = 0
    before: bool = False
    teacher: bool = False
    joined: Callable[[TapeTensor, TapeTensor], TapeTensor] | None = None
    sizes: Mapping[str, str | int] = field(default_factory=dict)


TASKS: Mapping[str, TrainedTask] = {
    "dpo": TrainedTask(
        LossRow(
            "DPO's (Rafailov et al. 2023): log-probabilities of pairs, and those of a reference without gradients",
            "TRL 001ea5fc, trainer/dpo_trainer.py: DPOTrainer, utils.py: selective_log_softmax",
            _probable,
        ),
        pairs=True,
        reference=1,
    ),
    "orpo": TrainedTask(
        LossRow(
            "ORPO's (Hong et al. 2024): log-probabilities of pairs, and the cross-entropy of the chosen ones",
            "TRL 9d58faa7, trainer/orpo_trainer.py: odds_ratio_loss, get_batch_logps",
            _with_odds,
        ),
        pairs=True,
    ),
    "kto": TrainedTask(
        LossRow(
            "KTO's (Ethayarajh et al. 2024): log-probabilities, also of exchanged completions, and a reference's",
            "TRL f2cd5771, trainer/kto_trainer.py: _compute_loss, calculate_KL",
            _probable,
        ),
        again=1,
        reference=2,
    ),
    "reward": TrainedTask(pairs=True, sizes={"architecture": "ForSequenceClassification", "num_labels": 1}),
    "grpo": TrainedTask(
        LossRow(
            "GRPO's (Shao et al. 2024): log-probabilities of a group's completions, which a separate request generates",
            "TRL f2cd5771, trainer/grpo_trainer.py: beta 0, its default",
            _graded,
        )
    ),
    "grpo-kl": TrainedTask(
        LossRow(
            "GRPO's with its penalty: also log-probabilities of a reference; completions come from a separate request",
            "TRL f2cd5771, trainer/grpo_trainer.py: beta above 0",
            _graded,
        ),
        reference=1,
        before=True,
    ),
    "distillation": TrainedTask(
        LossRow(
            "the divergence of all scores from a teacher's (Agarwal et al. 2024), whose forward pass has no gradients",
            "TRL f2cd5771, experimental/distillation/distillation_trainer.py: generalized_jsd_loss",
            _scores,
        ),
        teacher=True,
        joined=_reverse_divergence,
    ),
}
"""The trainings on something else than the next token, by their names."""

LOSSES: Mapping[str, LossRow] = {
    "liger": LossRow(
        "Liger's fused linear cross-entropy: the head and the loss in chunks of tokens, gradients in the forward pass",
        "Liger-Kernel 00eba634, ops/fused_linear_cross_entropy.py",
        _liger,
        is_kernel=True,
    ),
    "cut": LossRow(
        "Apple's cut cross-entropy: the head and the loss in one kernel, which stores no scores",
        "ml-cross-entropy d42911f9, cut_cross_entropy/cce.py",
        _cut,
        is_kernel=True,
    ),
    "torchtune": LossRow(
        "torchtune's LinearCrossEntropyLoss: the head and the loss in eight chunks of tokens",
        "torchtune bd2a0fc7, modules/loss/cross_entropy_loss.py; models/gemma2/_component_builders.py: Gemma2FinalNorm",
        _torchtune,
        caps_values=True,
    ),
    "litgpt": LossRow(
        "litgpt's chunked_cross_entropy with LoRA: the head and the loss in chunks of 128 positions",
        "litgpt 26857050, utils.py, finetune/lora.py:355",
        _litgpt,
    ),
    "litgpt-full": LossRow(
        "litgpt's chunked_cross_entropy of full fine-tuning: the loss in chunks of 128 tokens",
        "litgpt 26857050, utils.py, finetune/full.py:284",
        _litgpt_full,
    ),
    "olmo": LossRow(
        "OLMo's fused loss: flash-attention's cross-entropy, which saves the scores, with or without the z-loss",
        "OLMo 59a53e3f, olmo/train.py:156; flash-attention 0251105a, ops/triton/cross_entropy.py",
        _olmo,
    ),
}
"""The losses by their names."""

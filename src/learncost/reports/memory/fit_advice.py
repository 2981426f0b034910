"""What to change where a learning procedure does not fit a device's memory, and why one is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from learncost.reports.memory.fit_question import FitPlan, FitQuestion
from learncost.reports.memory.inference import NAME

ADVICE = {
    "weights": "a smaller model has fewer, and frozen ones lie in --flash",
    "master weights": "int8 has none, nor have weights that do not learn",
    "gradients": "the plan fused-update keeps few, and weights that do not learn have none",
    "optimizer state": "sgd has none, nor have weights that do not learn",
    "activations": "shorter sequences have fewer, and recomputation keeps few",
    "workspace": "the head's scores are as wide as the vocabulary, and the fewer the shorter the sequences",
    "cache": "shorter sequences have less, and models whose queries share keys",
    "values": "shorter sequences have fewer, and the plan flash stores no scores",
}
"""What makes the largest part of a peak smaller."""

MOST_CHANGES = 3
"""So many are said."""

CHANGES: tuple[tuple[str, Mapping[str, str]], ...] = (
    ("--optimizer sgd", {"optimizer": "sgd"}),
    ("--dtype bf16", {"dtype": "bf16"}),
    ("--dtype int8", {"dtype": "int8"}),
    ("--lora all-linear", {"lora": "all-linear"}),
    ("--train-layers 'last 1'", {"train_layers": "last 1"}),
)
"""What is tried where nothing fits, one after the other: advice is what then does fit."""


def advice_for(question: FitQuestion, procedure: str, ways: Sequence[FitPlan]) -> str:
    """What to change where a procedure does not fit: how near its least is, what takes most, and what was tried that
    does fit."""
    least = min((way.fitting for way in ways), key=lambda fitting: fitting.ram)
    under = f" under {least.plan}" if least.plan else ""
    sentences = []
    if question.flash is not None and least.flash > question.flash:
        subject = "All" if procedure == NAME else "Frozen"
        sentences.append(
            f"{subject} weights take {least.flash:,} bytes, {least.flash / question.flash:,.2f} of the flash, "
            f"{least.flash - question.flash:,} too many: "
            "a smaller model or a narrower --dtype."
        )
    if least.ram > question.ram:
        much = f"{least.ram / question.ram:,.2f} of the RAM, {least.ram - question.ram:,} too many"
        sentences.append(f"The least{under} is {least.ram:,} bytes, {much}.")
        if least.most in ADVICE:
            sentences.append(f"Most of it is {least.most}: {ADVICE[least.most]}.")
    elif len(question.regions) > 1 and question.stored(least.flash):
        regions = " and ".join(f"{region.bytes:,} in {region.name}" for region in question.regions)
        sentences.append(
            f"The least{under} is {least.ram:,} bytes, and its arrays cannot be laid out over {regions}: each lies in "
            "one region, so a smaller batch or model, or another --plan, has smaller ones."
        )
    lengths = sorted({way.longest() or 0 for way in ways}, reverse=True)
    length = next(
        (
            fitting_length
            for fitting_length in lengths
            if fitting_length and replace(question, seq_len=fitting_length).fits(procedure)
        ),
        0,
    )
    changes = [f"--seq-len {length}"] if length else []
    for text, change in CHANGES:
        if (other := question.changed(change, procedure)) and other.fits(procedure):
            changes.append(text)
        if len(changes) == MOST_CHANGES:
            break
    if changes:
        also = f"; with {' or with '.join(changes[1:])} too" if changes[1:] else ""
        sentences.append(f"With {changes[0]} it fits{also}.")
    return " ".join(sentences)


def refusal(refused: tuple[bool, str], procedures: Sequence[str]) -> str:
    """Why procedures are refused: what is said of each of them, or of the model."""
    of_each, text = refused
    if of_each:
        return f"{', '.join(procedures)}{': each' if len(procedures) > 1 else ''} {text}"
    return f"{', '.join(procedures)}: {text}"

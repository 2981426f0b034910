"""What flags mean wherever they stand, a row each; a function's docstring goes before it, where one means more there.

A name between backticks is another argument, on the command line another flag.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Shared:
    """What several questions have in common in a flag.

    group    under which the help shows it, and with it what follows in a signature and has no row
    value    what stands for its value in the help, where it is neither N nor NAME
    also     other names, and short forms
    typed    its name on the command line, where Python's has to be another one
    known    what it may be: words, and registries as module:attribute
    several  whether several go, with commas between
    """

    group: str
    meaning: str = ""
    value: str = ""
    also: tuple[str, ...] = ()
    typed: str = ""
    known: str = ""
    several: bool = False

    @property
    def choices(self) -> tuple[str, ...]:
        """What it may be, where that is a list."""
        found = list[str]()
        for word in self.known.split():
            module, is_registry, name = word.partition(":")
            known = getattr(import_module(f"learncost.{module}"), name) if is_registry else (word,)
            found += known() if callable(known) else known
        return tuple(found)


GROUPS = ("Model", "Step", "Memory", "Device", "Training", "Text", "Output")
"""The groups in their order."""

_PROCEDURES = " ".join(f"procedures.procedure:{name}" for name in ("PROCEDURES", "CONTROLS", "INFERENCE"))

FLAGS: Mapping[str, Shared] = {
    "model": Shared(
        "Model",
        "A preset (`learncost list models` shows them), the path of a config.json or of its folder, - for a "
        "config.json on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.",
    ),
    "sizes": Shared(
        "Model",
        "Any size or setting of the model, such as `num_hidden_layers` 4, `n_embd` 256, `activation` relu or "
        "`architecture` BertForMaskedLM (`learncost list sizes`).",
    ),
    "train": Shared(
        "Model",
        "What learns: all, none, head, embeddings, biases, or names of weights and modules with commas between. All "
        "else is frozen.",
        several=True,
        known="all none head embeddings biases",
    ),
    "train_layers": Shared(
        "Model", 'Which blocks learn, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "first 2", or "last 2".'
    ),
    "lora": Shared(
        "Model",
        "Where LoRA's low-rank paths are, all else being frozen: q_proj,v_proj or c_attn or attention or feed_forward "
        "or all-linear.",
        several=True,
        known="attention feed_forward all-linear",
    ),
    "lora_rank": Shared("Model", "The rank of LoRA. The default is 8.", "N"),
    "lora_alpha": Shared("Model", "LoRA's result is scaled by this over the rank. The default is 16.", "N"),
    "procedure": Shared(
        "Step",
        "How the model learns: bp (backpropagation), recompute, pepita, mempepita, or head-only, a control.",
        also=("procedures",),
        known=_PROCEDURES,
        several=True,
    ),
    "procedures": Shared(
        "Step", value="NAMES", also=("procedures",), typed="procedure", known=_PROCEDURES, several=True
    ),
    "mode": Shared("Step", "How pepita and mempepita update.", known="procedures.forward_learning:MODES"),
    "price_book": Shared(
        "Step",
        "What one operation costs: run, matmul, paper, palm or another (`learncost list price-books`).",
        known="books.book:every",
        several=True,
    ),
    "batch_size": Shared("Step", "How many sequences are in one step."),
    "seq_len": Shared(
        "Step",
        "How many tokens are in a sequence, in the encoder's where there is a decoder too. The default is the number "
        "of positions that the model has.",
    ),
    "target_len": Shared(
        "Step", "How many tokens are in a sequence of the decoder of an encoder-decoder. The default is `seq_len`."
    ),
    "tokens": Shared(
        "Step", "How many tokens a whole training has, such as 3e11. Its steps and its total are then shown too."
    ),
    "optimizer": Shared(
        "Step",
        "What updates the weights: adamw, sgd or momentum. The default is adamw; under the paper's books it is sgd, as "
        "the paper has it.",
        known="procedures.optimizer_state:STATES",
    ),
    "dropout": Shared("Step", "The probability of dropout. Above 0 the products with masks are counted."),
    "dtype": Shared("Step", "The same as `precision`, its short form.", known="equation.precision:PRECISIONS"),
    "precision": Shared(
        "Step",
        "Which type each role of the step has: {choices} (`learncost list precisions`). The default is fp32.",
        known="equation.precision:PRECISIONS",
    ),
    "plan": Shared(
        "Memory",
        "How the step is rewritten to take less memory, with commas between: head,at-once,recompute=gelu+norm "
        "(`learncost list plans`).",
    ),
    "budget": Shared("Memory", value="BYTES", also=("ram",)),
    "ram": Shared("Memory", value="BYTES", also=("budget",)),
    "engine": Shared("Memory", known="ledger.runners:runners jax", several=True),
    "module": Shared("Memory", known="transformers transformers-reentrant plain"),
    "on": Shared("Device"),
    "against": Shared("Device"),
    "quick": Shared("Device"),
    "device": Shared("Device", known="cpu cuda"),
    "backend": Shared("Device", known="numpy torch jax c"),
    "learning_rate": Shared("Training"),
    "seed": Shared("Training"),
    "seeds": Shared("Training"),
    "steps": Shared("Training"),
    "resume": Shared("Training"),
    "start": Shared("Model", typed="from"),
    "tokenizer": Shared("Model"),
    "widths": Shared("Model"),
    "shape": Shared("Step"),
    "context": Shared("Step"),
    "accumulate": Shared("Memory"),
    "prompt": Shared("Text"),
    "out": Shared("Output", value="FILE"),
    "mine": Shared("Output"),
    "every": Shared("Output"),
    "by": Shared("Output", known="ledger.run:BY total"),
    "format": Shared("Output"),
    "json": Shared("Output", "The same as `format` json: everything, exactly, for other programs."),
    "output": Shared("Output", "The file to write. The default is standard output.", "FILE", also=("-o",)),
}
"""Names of flags that are not only of one question."""

"""`learncost --help` and `learncost COMMAND --help`: what a command does, examples, its flags in groups.

A command's docstring says what it does, what its own flags mean and how it is called; what flags mean that several
commands share stands here, once, and so does the group in which each of them is shown.
"""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter as Given
from inspect import cleandoc, signature
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from cyclopts import Parameter

from learncost.equation.precision import PRECISIONS
from learncost.ledger.sheet import styled

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDEST = 100
"""Columns that a page takes at most: longer lines are hard to read."""

SHARED: Mapping[str, str] = {
    "model": "A preset (learncost list models shows them), the path of a config.json or of its folder, - for a "
    "config.json on standard input, or encoder, decoder or encoder-decoder with all sizes as flags.",
    "procedure": "How the model learns: bp (backpropagation), recompute, pepita, mempepita, or head-only, a control.",
    "price_book": "What one operation costs: run, matmul, paper, palm or another (learncost list price-books).",
    "batch_size": "How many sequences are in one step.",
    "seq_len": "How many tokens are in a sequence, in the encoder's where there is a decoder too. The default is the "
    "number of positions that the model has.",
    "target_len": "How many tokens are in a sequence of the decoder of an encoder-decoder. The default is --seq-len.",
    "tokens": "How many tokens a whole training has, such as 3e11. Its steps and its total are then shown too.",
    "optimizer": "What updates the weights: adamw, sgd or momentum. The default is adamw; under the paper's books "
    "it is sgd, as the paper has it.",
    "dropout": "The probability of dropout. Above 0 the products with masks are counted.",
    "train": "What learns: all, none, head, embeddings, biases, or names of weights and modules with commas between. "
    "All else is frozen.",
    "train_layers": 'Which blocks learn, or have LoRA, counted from 0: 10-11, or 0,2,5-7, or "last 2".',
    "lora": "Where LoRA's low-rank paths are, all else being frozen: q_proj,v_proj or c_attn or attention or "
    "feed_forward or all-linear.",
    "lora_rank": "The rank of LoRA. The default is 8.",
    "lora_alpha": "LoRA's result is scaled by this over the rank. The default is 16.",
    "plan": "How the step is rewritten to take less memory, with commas between: head,at-once,recompute=gelu+norm "
    "(learncost list plans).",
    "dtype": "The same as --precision, its short form.",
    "precision": "Which type each role of the step has: {precisions} (learncost list precisions). The default is fp32.",
    "json": "The same as --format json: everything, exactly, for other programs.",
    "sizes": "Any size or setting of the model, such as --num-hidden-layers 4, --n_embd 256, --activation relu or "
    "--architecture BertForMaskedLM (learncost list sizes).",
}
"""What flags mean where a command says nothing else."""

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Model": (
        *("model", "from_", "tokenizer", "architecture", "widths", "sizes"),
        *("train", "train_", "train_layers", "lora", "lora_rank", "lora_alpha"),
    ),
    "Step": (
        *("procedure", "procedures", "mode", "macro", "batch_size", "shape", "seq_len", "target_len", "context"),
        *("hidden_size", "num_attention_heads", "kernel_size", "window", "optimizer", "dropout", "dtype", "precision"),
        *("price_book", "jacobian", "tokens"),
    ),
    "Memory": ("plan", "accumulate", "budget", "ram", "flash", "engine", "engines", "module"),
    "Device": (
        *("on", "backend", "device", "devices", "against", "mfu", "hfu", "tokens_per_second", "peak_tflops"),
        *("peak_flops", "power", "pue", "country", "year", "carbon_intensity", "price_per_hour", "rounds", "quick"),
    ),
    "Training": (
        *("steps", "minutes", "learning_rate", "final_learning_rate", "rates", "warm_up", "beta_2", "weight_decay"),
        *("clip", "seed", "seeds", "resume", "validation_share", "validate_every", "save_every", "sample_every"),
    ),
    "Text": ("prompt", "temperature", "top_k", "top_p"),
    "Output": ("by", "mine", "memory", "every", "skip_invalid", "format", "json", "output", "out"),
}
"""The groups in their order, and in the order of each its flags."""


@dataclass(frozen=True)
class Flag:
    """A flag or an argument: what is typed, and what it means."""

    typed: str
    meaning: str


@dataclass(frozen=True)
class Page:
    """A page of help: lines that fit their width."""

    usage: str
    about: str
    examples: tuple[tuple[str, str], ...]
    groups: Mapping[str, tuple[Flag, ...]]

    def lines(self, width: int) -> Iterator[tuple[str, str]]:
        """The page's lines with their styles."""
        yield from _wrapped(f"Usage: {self.usage}", width, " " * 7)
        for paragraph in self.about.split("\n\n"):
            yield "", ""
            yield from _wrapped(paragraph, width)
        if self.examples:
            yield from (("", ""), ("Examples", "bold"))
        for command, what in self.examples:
            yield from _wrapped(command, width, "      ", "  ")
            yield from _wrapped(what, width, "      ", "      ", "dim")
        longest = max((len(flag.typed) for flags in self.groups.values() for flag in flags), default=0)
        left = min(longest, max(12, width // 3))
        for group, flags in self.groups.items():
            yield from (("", ""), (group, "bold"))
            for flag in flags:
                parts = textwrap.wrap(flag.meaning, max(20, width - left - 4), break_on_hyphens=False)
                first = f"  {flag.typed}"
                if len(flag.typed) > left:
                    yield from _wrapped(first.strip(), width, "      ", "  ")
                    first = ""
                for part in parts:
                    yield f"{first:<{left + 2}}  {part}", ""
                    first = ""

    def __str__(self) -> str:
        width = min(WIDEST, shutil.get_terminal_size().columns)
        return "\n".join(line for line, _ in self.lines(width))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield from styled(self.lines(min(WIDEST, options.max_width)))


def _wrapped(text: str, width: int, later: str = "", first: str = "", style: str = "") -> Iterator[tuple[str, str]]:
    for line in textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False, break_long_words=False
    ):
        yield line, style


def page(name: str, function: Callable[..., Any]) -> Page:
    """The help of one command, from its function's signature and docstring."""
    about, said, examples = told(function)
    hints = get_type_hints(function, include_extras=True)
    arguments: list[Flag] = []
    flags: dict[str, Flag] = {}
    for own in signature(function).parameters.values():
        meaning = (said.get(own.name) or SHARED[own.name]).replace("{precisions}", ", ".join(PRECISIONS))
        if own.kind in (Given.POSITIONAL_ONLY, Given.VAR_POSITIONAL):
            typed = own.name.rstrip("_").upper()
            typed = f"{typed.removesuffix('S')} ..." if own.kind is Given.VAR_POSITIONAL else typed
            arguments.append(
                Flag(typed if own.default is Given.empty and "..." not in typed else f"[{typed}]", meaning)
            )
        else:
            flags[own.name] = Flag(_typed(own, hints[own.name]), f"{meaning}{_default(own, meaning)}")
    groups = {"Arguments": tuple(Flag(flag.typed.strip("[]"), flag.meaning) for flag in arguments)} if arguments else {}
    for group, names in GROUPS.items():
        if own_flags := tuple(flags.pop(each) for each in names if each in flags):
            groups[group] = own_flags
    assert not flags, f"{', '.join(flags)} of {name} are in no group"
    usage = " ".join((f"learncost {name}", *(flag.typed for flag in arguments), "[FLAGS]"))
    return Page(usage, about, examples, groups)


def overview(commands: Mapping[str, str], about: str) -> Page:
    """The help of all commands."""
    groups = {"Commands": tuple(Flag(name, text) for name, text in commands.items())}
    more = {
        "--help": "Shows this page; learncost COMMAND --help says more of one command.",
        "--version": "Shows the version.",
    }
    groups["Flags"] = tuple(Flag(name, text) for name, text in more.items())
    examples = (
        ("learncost cost gpt2", "What one training step of GPT-2 costs."),
        ("learncost list models", "Every model that it knows by name."),
        ("learncost cost --help", "The flags of one command."),
    )
    return Page("learncost COMMAND [FLAGS]", about, examples, groups)


def _typed(own: Given, hint: Any) -> str:
    """What is typed for a flag: its names, and what follows them."""
    if own.kind is Given.VAR_KEYWORD:
        return "--SIZE VALUE"
    settings = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Parameter)]
    letters = [name for each in settings for name in each.name or () if not name.startswith("--")]
    words = [name for each in settings for name in each.name or () if name.startswith("--")]
    name = words[0] if words else f"--{own.name.rstrip('_').replace('_', '-')}"
    if _is_switch(hint):
        return f"{name}, --no-{name[2:]}" if own.default is None else name
    metavars = list(_metavars(hint)) or ["NAME"]
    return " ".join((", ".join((*letters, name)), *metavars))


def _metavars(hint: Any) -> Iterator[str]:
    """What stands for each value of a flag."""
    for each in getattr(hint, "__metadata__", ()):
        if isinstance(each, Parameter) and each.metavar:
            yield str(each.metavar)
    for part in get_args(hint):
        yield from _metavars(part)


def _is_switch(hint: Any) -> bool:
    return hint is bool or any(_is_switch(part) for part in get_args(hint))


def _default(own: Given, meaning: str) -> str:
    if own.default in (None, "", False, Given.empty) or "default" in meaning:
        return ""
    return f" The default is {own.default}."


def told(function: Callable[..., Any]) -> tuple[str, dict[str, str], tuple[tuple[str, str], ...]]:
    """What a docstring tells: what the function does, what its parameters mean, examples with what they show."""
    before, _, parameters = cleandoc(function.__doc__ or "").partition("\nParameters\n----------\n")
    parameters, _, examples = parameters.partition("\nExamples\n--------\n")
    if not examples:
        before, _, examples = before.partition("\nExamples\n--------\n")
    paragraphs = (" ".join(part.split()) for part in before.replace("`", "").split("\n\n"))
    return "\n\n".join(part for part in paragraphs if part), dict(_entries(parameters)), tuple(_entries(examples))


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Lines that stand at the left with the indented ones below each."""
    head, below = "", list[str]()
    for line in [*text.replace("`", "").splitlines(), "end"]:
        if line and not line.startswith(" "):
            if head:
                yield head, " ".join(below)
            head, below = line.strip(), []
        elif line.strip():
            below.append(line.strip())

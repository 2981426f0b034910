"""The documentation's search finds each word of the field on the page that explains it, before every other page."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
PAGES = {
    "adaptation": "LoRA, PEFT, fine-tuning, frozen weights",
    "any-module": "torch.export",
    "clusters": "pipeline parallelism, 1F1B, interconnect, pipeline bubble, NCCL, NVLink",
    "conventions": "FLOPs, MACC",
    "counters": "profiler, FlopCounterMode",
    "emit": "arena, dead code, copy propagation, common-subexpression elimination, JAX, Triton kernel",
    "inference": "KV cache, prefill, decode, speculative decoding, time to first token",
    "many-devices": "ZeRO, FSDP, DDP, sharding, tensor parallelism, sequence parallelism, expert parallelism, "
    "context parallelism, all-reduce, Megatron, Ulysses, ZeRO-3",
    "memory": "OOM, out of memory, optimizer state, Adam, peak memory",
    "figures": "matplotlib",
    "memory-autograd": "GRPO, Muon, Adafactor, CPU offload, distillation",
    "memory-engines": "liveness, saved tensors, workspace, dropout",
    "microcontrollers": "microcontroller, TinyML, Cortex-M",
    "notation-loops": "loop-carried, scan",
    "plans": "gradient checkpointing, activation checkpointing, gradient accumulation, microbatch, flash attention, "
    "epilogue fusion, kernel fusion, recompute",
    "precision": "autocast, mixed precision, QLoRA, quantization, bf16, adamw8bit",
    "ring-attention": "ring attention",
    "run-cost": "MFU, HFU, energy, price",
    "time": "roofline, calibration, calibrate",
    "torch-module": "torch.compile",
    "trace": "Perfetto, chrome://tracing",
    "train": "checkpoint, resume, safetensors",
    "trainer-files": "axolotl, torchtitan, DPO, nanoGPT",
    "procedures": "feedback alignment",
}
"""The words that people of the field search for, by the page that explains them."""
HIGHEST_SCORE_OF_TEXT = 16
"""Sphinx's searchtools.js: a word of the text scores 5, a title at most 15 and 1 more as the page's own."""

_INDEX = re.compile(r"^```\{index\} (.*)\n```$", re.MULTILINE)


def index_entries() -> dict[str, set[str]]:
    """The main index entries of every page."""
    found = {}
    for page in DOCS.glob("*.md"):
        lines = _INDEX.findall(page.read_text(encoding="utf-8"))
        entries = [entry.strip() for line in lines for entry in line.split(",")]
        assert all(entry.startswith("! ") for entry in entries), page  # Sphinx shows other entries behind the text
        found[page.stem] = {entry.removeprefix("! ").lower() for entry in entries}
    return found


def scores(query: str) -> dict[str, int]:
    """The score of every page whose index entries contain the query: Sphinx's searchtools.js, _performSearch."""
    found: dict[str, int] = {}
    for page, entries in index_entries().items():
        for entry in entries:
            if query.lower() in entry and 2 * len(query) >= len(entry):
                found[page] = max(found.get(page, 0), round(100 * len(query) / len(entry)))
    return found


@pytest.mark.parametrize(("page", "word"), [(page, word) for page in PAGES for word in PAGES[page].split(", ")])
def test_a_word_of_the_field_is_found_first_on_its_page(page, word):
    found = scores(word)
    best = found.pop(page)
    assert best > max([HIGHEST_SCORE_OF_TEXT, *found.values()])
    text = _INDEX.sub("", (DOCS / f"{page}.md").read_text(encoding="utf-8"))
    assert word.lower() in " ".join(text.lower().split())


def test_enough_words_are_searched():
    assert len({word for words in PAGES.values() for word in words.split(", ")}) >= 40

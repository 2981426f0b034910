"""The memory of inference: weights, values and the cache of keys, of a prompt and of the token that follows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.precision import Precision
from learncost.ir.table import Table
from learncost.layers.active import parameters
from learncost.liveness import levels, live
from learncost.models.model import Model, Structure, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.decoding import CachedValue
from learncost.procedures.inference import Inference, inference, to_logits
from learncost.procedures.needed import needed
from learncost.program.calls import IN_KERNELS
from learncost.reports.memory.largest import longest_within
from learncost.reports.memory.types import INDEX

NAME = "inference"
"""How `fit` calls it among the learning procedures."""

_NAMES = {8: "fp64", 4: "fp32", 2: "fp16", 1: "int8"}


@dataclass(frozen=True)
class InferencePass:
    """A pass of inference with the sizes of its axes; `grown` are the bytes of the places that it fills in the cache.

    table   what is alive: a cache that a pass is given grows where it lies, and is not handed out
    whole   the same pass as an engine runs it, which hands out the cache
    """

    table: Table
    whole: Table
    sizes: Mapping[str, int]
    grown: int = 0


@dataclass(frozen=True)
class Serving:
    """Inference with sequences of so many tokens: all as a prompt, or the last one with the others in the cache.

    A model that cannot decode has its forward pass alone.
    seq_len, target_len  tokens, as `cost` takes them
    in_flash             all weights lie in flash, not in RAM
    plan                 rewritings of both passes
    """

    model: Model
    kind: Precision
    seq_len: int
    target_len: int | None = None
    in_flash: bool = False
    plan: str = ""

    @property
    def weights(self) -> int:
        """Bytes of all weights, whichever pass reads them."""
        return self._bytes_of(self.model.table) + sum(weight.bytes(self.model.sizes) for weight in self.model.quantized)

    @property
    def flash(self) -> int:
        return self.weights if self.in_flash else 0

    def _bytes_of(self, table: Table) -> int:
        """Bytes of the weights that are not quantized."""
        codes = {weight.codes.name for weight in self.model.quantized}
        plain = replace(table, weights=tuple(name for name in table.weights if name not in codes))
        return int(parameters(plain).at(self.sizes)) * self.kind.weight

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Those of one sequence."""
        return run_sizes(self.model, 1, self.seq_len, self.target_len)

    @cached_property
    def passes(self) -> tuple[InferencePass, ...]:
        """One sequence's."""
        sizes, tables = self.sizes, _tables(Structure(self.model), self.plan)
        prompt = InferencePass(tables.prompt, tables.prompt, sizes)
        if tables.passes is None or sizes["M"] == 1:
            return (prompt,)
        step_lengths = {**sizes, **tables.passes.lengths(sizes, sizes["M"] - 1, 1)}
        grown = int(total(array.elements for array in _growing(tables.passes)).at(step_lengths)) * self.kind.value
        logits, decode = tables.token
        return prompt, InferencePass(logits, decode, step_lengths, grown)

    @property
    def _widths(self) -> dict[str, int]:
        return {"weight": self.kind.weight, "index": INDEX} | self.model.quantized_widths

    def _resident(self, inference_pass: InferencePass) -> int:
        """Bytes of the weights in RAM beyond those that the table of a pass counts; below 0 where they lie in flash."""
        return self.weights - self._bytes_of(inference_pass.table) - self.flash

    @cached_property
    def levels(self) -> tuple[Polynomial, ...]:
        """The bytes in RAM at every line of every pass: polynomials in the batch, of first degree."""
        polynomials: dict[frozenset[tuple[tuple[str, ...], Any]], Polynomial] = {}
        for inference_pass in self.passes:
            others = {name: size for name, size in inference_pass.sizes.items() if name != "B"}
            beside = Polynomial.of(("B",), inference_pass.grown) + Polynomial.of((), self._resident(inference_pass))
            sums = (
                level + beside for level in levels(inference_pass.table, others, _NAMES[self.kind.value], self._widths)
            )
            polynomials |= {frozenset(level.terms.items()): level for level in sums}
        return tuple(polynomials.values())

    def peak(self, batch: int = 1) -> int:
        """The most bytes in RAM."""
        return max(int(level.at({"B": batch})) for level in self.levels)

    def largest(self, budget: int) -> int:
        """The largest batch that fits a budget, 0 where one sequence does not. Raises `InputError` without a batch."""
        growing = [level for level in self.levels if ("B",) in level.terms]
        if not growing:
            raise InputError(
                "its memory does not grow with a batch B, so fit cannot find one; use learncost memory for the peak"
            )
        return min(int(max(0, budget - level.terms.get((), 0)) // level.terms[("B",)]) for level in growing)

    def split(self) -> dict[str, int]:
        """The peak of one sequence: weights, cache of keys, other values."""
        splits: list[dict[str, int]] = []
        for inference_pass in self.passes:
            split, values = (
                {"weights": self._resident(inference_pass), "cache": inference_pass.grown, "values": 0},
                inference_pass.table.known,
            )
            for live_array in live(
                inference_pass.table, inference_pass.sizes, _NAMES[self.kind.value], self._widths, IN_KERNELS
            ).live_at_peak:
                cached = live_array.name in values and values[live_array.name].role == "cache"
                split["weights" if live_array.role == "weight" else "cache" if cached else "values"] += live_array.bytes
            splits.append(split)
        return max(splits, key=lambda split: sum(split.values()))

    def longest(self, budget: int) -> int | None:
        """The longest sequence below this one that fits, 0 where none does; None where there is one length, or two."""
        if self.target_len is not None:
            return None
        if self.weights - self.flash > budget:
            return 0

        def peak(length: int) -> int:
            return replace(self, seq_len=length).peak()

        try:
            return 0 if peak(1) > budget else longest_within(peak, budget, self.seq_len)
        except InputError:  # an image has all its patches
            return None


@dataclass(frozen=True)
class _Tables:
    """The passes of a model under a plan, at whatever lengths; `passes` is None of a model that cannot decode."""

    prompt: Table
    passes: Inference | None
    plan: str

    @cached_property
    def token(self) -> tuple[Table, Table]:
        """The next token's, to its logits alone and whole."""
        assert self.passes is not None
        decode = self.passes.decode
        filled = {f"{array.name}.2" for array in _growing(self.passes)}
        logits = needed(decode, tuple(name for name in decode.outputs if name not in filled))
        return planned(logits, self.plan), planned(decode, self.plan)


@lru_cache(maxsize=8)
def _tables(structure: Structure, plan: str) -> _Tables:
    model = structure.model
    try:
        passes = inference(model.table, model.configuration.name)
    except InputError:  # an encoder
        return _Tables(planned(to_logits(model.table), plan), None, plan)
    return _Tables(planned(passes.prefill, plan), passes, plan)


def _growing(passes: Inference) -> list[CachedValue]:
    return [array for array in passes.cache if array.tokens]

"""The judgement of one answer: right, wrong by how much, refused, or not offered."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations

from torch import Tensor, nn

from conformance.cases import Case
from conformance.counter import Unit

QUANTITIES = {
    "forward": "forward",
    "training": "forward and backward",
    "parameters": "parameters",
    "trained": "trained parameters",
}
"""What is asked, by the name of the adapter's method, and how a table calls it."""


@dataclass(frozen=True)
class Answer:
    """What a counter said, asked twice of a module: numbers, None for "not offered", or an error's first line."""

    first: int | None = None
    second: int | None = None
    error: str = ""


@dataclass(frozen=True)
class Verdict:
    """`kind` is right, wrong, refused, not offered, or no case (nothing to ask); differences in MACCs or parameters."""

    kind: str
    difference: Fraction = Fraction(0)
    because: str = ""
    again: Fraction | None = None

    @property
    def cell(self) -> str:
        """The verdict in a cell of a table; of a second answer that differs, both."""
        if self.kind == "wrong" and self.again is not None:
            return f"{signed(self.difference)}, then {signed(self.again)}"
        return {"wrong": signed(self.difference), "not offered": "-", "no case": ""}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Result:
    """One question to one counter and the judgement of its answer; `left` names functions of torch it left replaced."""

    counter: str
    case: str
    quantity: str
    answer: Answer
    verdict: Verdict
    left: tuple[str, ...] = ()


def signed(difference: Fraction) -> str:
    """An exact difference with its sign; half a MACC is one FLOP."""
    if difference.denominator == 1:
        return f"{int(difference):+,}" if difference else "0"
    return f"{float(difference):+,}"


def judge(case: Case, quantity: str, unit: Unit, answer: Answer) -> Verdict:
    """Hold an answer to the truth. An answer that changes when it is asked for again is wrong, whatever it was."""
    truth = getattr(case.truth, quantity)
    if truth is None:
        return Verdict("no case")
    if answer.error:
        return Verdict("refused", because=answer.error)
    if answer.first is None:
        return Verdict("not offered")
    scale = unit.in_a_macc if quantity in ("forward", "training") else 1
    difference = Fraction(answer.first, scale) - truth
    again = Fraction(answer.second or 0, scale) - truth
    if again != difference:
        return Verdict("wrong", difference, "changes when asked again", again)
    if difference:
        return Verdict("wrong", difference, _because(case, quantity, difference))
    return Verdict("right")


def _because(case: Case, quantity: str, difference: Fraction) -> str:
    """The name of a known amount that is exactly the difference, or of two; "" where there is none."""
    known = _amounts(case, quantity)
    for count in (1, 2):
        for names in combinations(known, count):
            for signs in ((1, 1), (-1, -1), (1, -1), (-1, 1)):
                used = list(zip(signs, names, strict=False))
                if sum(sign * known[name] for sign, name in used) == difference:
                    return ", ".join(f"{'with' if sign > 0 else 'without'} {name}" for sign, name in used)
    return ""


def _amounts(case: Case, quantity: str) -> dict[str, int]:
    truth = case.truth
    if quantity == "forward":
        return dict(case.parts)
    if quantity == "training" and truth.training is not None:
        unneeded = {"unnecessary gradients": 3 * truth.forward - truth.training}
        return {name: 3 * amount for name, amount in case.parts.items()} | {k: v for k, v in unneeded.items() if v}
    return {name: amount for name, amount in _parameters(case).items() if amount}


def _parameters(case: Case) -> dict[str, int]:
    """What counters miss or count twice, read off the module."""
    model, _ = case.built("meta")
    packed = [module for module in model.modules() if isinstance(module, nn.MultiheadAttention)]
    return {
        "frozen parameters": case.truth.parameters - case.truth.trained,
        "the shared matrix twice": _elements(model.named_parameters(remove_duplicate=False)) - case.truth.parameters,
        "positions": _elements(model.named_parameters(recurse=False)),
        "embedding": sum(_elements(m.named_parameters()) for m in model.modules() if isinstance(m, nn.Embedding)),
        "packed attention": sum(_elements(module.named_parameters()) for module in packed),
    }


def _elements(named: Iterable[tuple[str, Tensor]]) -> int:
    return sum(parameter.numel() for _, parameter in named)

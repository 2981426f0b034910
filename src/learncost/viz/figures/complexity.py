"""MACCs of kinds of layer by the length, those whose sizes are known."""

from __future__ import annotations

from learncost.ir.errors import InputError
from learncost.ir.polynomial import Polynomial
from learncost.reports.complexity import Complexity
from learncost.reports.crossing import LETTERS
from learncost.viz.data.curves import CurveLine, Curves
from learncost.viz.figures.curves import draw, height, notes

__all__ = ["draw", "height", "notes", "of"]

LENGTHS = tuple(2**power for power in range(4, 18))


def of(answer: Complexity) -> Curves:
    """The data of a panel. Raises `InputError` where sizes are letters."""
    sizes = {letter: size for letter, size in answer.sizes.items() if letter != "n"}
    lines = []
    for kind in answer.kinds:
        counts = [kind.maccs.at({**sizes, "n": length}) for length in LENGTHS]
        if not kind.part and not any(isinstance(count, Polynomial) for count in counts):
            lines.append(CurveLine(kind.name, tuple(map(float, LENGTHS)), tuple(map(float, counts))))
    if not lines:
        raise InputError("this figure requires sizes: give hidden_size, and kernel_size and window for more kinds")
    names = {letter: name for name, letter in LETTERS.items()}
    said = ", ".join(f"{names.get(letter, letter)} {size:,}" for letter, size in sizes.items())
    dearest = max(lines, key=lambda line: line.values[-1])
    return Curves(
        name="One layer",
        about=f"MACCs over the length · {said}",
        x="tokens in a sequence",
        y="MACCs",
        lines=tuple(lines),
        logarithmic=(True, True),
        finding=f"At {LENGTHS[-1]:,} tokens {dearest.name} takes the most, {dearest.values[-1]:.3g} MACCs",
        notes=(f"one sequence, {said}", "counts derived from the layers' tables"),
    )

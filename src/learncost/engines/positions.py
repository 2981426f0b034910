"""What tables are given that depends on positions alone: their numbers, and rotary angles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from learncost.equation.errors import InputError
from learncost.models.configuration import Configuration
from learncost.models.expression import evaluate
from learncost.models.families import FAMILIES

HALVES = frozenset({"llama", "mistral", "qwen2", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"})
"""The families whose rotary positions turn the first half of each whole head against the second, as Llama's do."""


def at_positions(configuration: Configuration, name: str, places: Any, sizes: Mapping[str, int]) -> Any:
    """An input of a table at these positions; None where it is nothing that positions say.

    places   the numbers of the positions, from 0
    sizes    of the table's axes
    Raises InputError for rotary positions in another layout than Llama's.
    """
    if name == "index":
        offset = FAMILIES[configuration.family].offset
        return places + (evaluate(offset, configuration.values) if offset else 0)
    if name in ("cosine", "sine", "flip"):
        if configuration.family not in HALVES:
            raise InputError(f"the rotary positions of {configuration.family} are not run, only Llama's are")
        if (kind := configuration.settings["rope_type"]) != "default":
            raise InputError(f"rotary positions of the type {kind!r} are not run, only those as they were published")
        return rotary(places, sizes["k"], configuration.settings["rope_theta"])[name]
    return None


def rotary(places: Any, width: int, base: float) -> dict[str, Any]:
    """Su et al. 2021, equation (34), in Llama's layout: cosines and sines [M, k], and each element's partner [k].

    Element i of a head is turned by position / base^(2 (i mod k/2) / k); the first half's sine has the minus sign.
    """
    at, half = np.arange(width), width // 2
    angle = places[:, None] * base ** (-2.0 * (at % half) / width)
    return {
        "cosine": np.cos(angle),
        "sine": np.where(at < half, -1.0, 1.0) * np.sin(angle),
        "flip": (at + half) % width,
    }


def sinusoids(length: int, width: int) -> Any:
    """Vaswani et al. 2017, section 3.5: sin(p / 10000^(2i/d)) at the even places, cos at the odd ones."""
    places = np.arange(width)
    angles = np.arange(length)[:, None] / 10000.0 ** (2 * (places // 2) / width)
    return np.where(places % 2 == 0, np.sin(angles), np.cos(angles))

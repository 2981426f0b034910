"""Which parameters of a module learn, by the names that a table has for its weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from learncost.ir.errors import InputError


def learn_only(module: Any, learning: Iterable[str], weights: Iterable[str]) -> None:
    """Let the parameters of the weights `learning` learn, and none of the others.

    Weights of equal blocks are one in a table, with `each` for the block's number; behind @ are the blocks that are
    meant, as in blocks.each.norm.weight@0-4. Raises `InputError` for a weight that is no parameter of the module.
    """
    parameters = dict(module.named_parameters())
    single = {name for name in weights if name in parameters}
    chosen: set[str] = set()
    for name in learning:
        paths = [name] if name in single else _of_blocks(name, [path for path in parameters if path not in single])
        if not paths:
            raise InputError(f"the module has no parameter of the weight {name}")
        chosen.update(paths)
    for path, parameter in parameters.items():
        parameter.requires_grad_(path in chosen)


def _of_blocks(name: str, paths: Iterable[str]) -> list[str]:
    base, _, iterations = name.partition("@")
    pattern = re.compile(r"\.".join(r"(\d+)" if part == "each" else re.escape(part) for part in base.split(".")))
    found = sorted((tuple(map(int, match.groups())), path) for path in paths if (match := pattern.fullmatch(path)))
    first, _, last = iterations.partition("-")
    return [path for _, path in (found[int(first) : int(last or first) + 1] if iterations else found)]

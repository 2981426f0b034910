"""Find the equal blocks that a module declares as a list, and run the module with a few of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from learncost.program.repeated import Units

KEPT = 3
"""The units of blocks that a program is repeated from; another has one more."""

FEWEST = 12
"""The fewest units of a list of which not all are run: fewer are run as quickly once as three and four of them."""

NUMBERED = re.compile("id|index|number")
"""The attributes that may be the number of a block in its list, such as layer_idx."""

PLAIN = (bool, int, float, str, type(None))


class BlockList(NamedTuple):
    """A list of modules with equal units of blocks, and the number of units beyond `KEPT`."""

    modules: Any
    units: Units
    more: int


def equal_blocks(module: Any) -> BlockList | None:
    """Return the list of a module that has many equal units of blocks; None if there is none, or several.

    Blocks of a second list read those of the first, such as all of a decoder the end of an encoder.
    """
    from torch import nn

    lists = [(path, part) for path, part in module.named_modules() if isinstance(part, nn.ModuleList | nn.Sequential)]
    found = [several for path, part in lists if (several := _units(path, part))]
    return found[0] if len(found) == 1 else None


def _units(path: str, blocks: Any) -> BlockList | None:
    """Return the units of a list of which most are not run; None if there are none."""
    several, best = list(blocks), None
    for period in range(1, len(several) // FEWEST + 1):
        equal = [_equal(one, at, several[at + period], at + period) for at, one in enumerate(several[:-period])]
        first = next((at + 1 for at in reversed(range(len(equal))) if not equal[at]), 0)
        more = (len(several) - first) // period - KEPT
        if more > FEWEST - KEPT - 1 and (best is None or more * period > best.more * best.units.period):
            best = BlockList(blocks, Units(path, first, period), more)
    return best


def _equal(one: Any, number: int, other: Any, its_number: int) -> bool:
    """Return whether two modules run the same: classes, plain attributes but their numbers in the list, and tensors."""
    parts, others = list(one.named_modules()), list(other.named_modules())
    return [name for name, _ in parts] == [name for name, _ in others] and all(
        type(part) is type(its)
        and _plain(part, number) == _plain(its, its_number)
        and _tensors(part) == _tensors(its)
        and not any((*part._forward_hooks, *part._forward_pre_hooks, *its._forward_hooks, *its._forward_pre_hooks))
        for (_, part), (_, its) in zip(parts, others, strict=True)
    )


def _plain(part: Any, number: int) -> dict[str, Any]:
    return {
        name: ("its number" if type(value) is int and value == number and NUMBERED.search(name) else value)
        for name, value in vars(part).items()
        if isinstance(value, PLAIN)
    }


def _tensors(part: Any) -> list[tuple[Any, ...]]:
    there = (*part._parameters.items(), *part._buffers.items())
    return [(name, each is not None and (each.shape, each.dtype, each.requires_grad)) for name, each in there]


@contextmanager
def shortened(blocks: BlockList, units: int) -> Iterator[None]:
    """Give a list so many units inside."""
    modules, (_, first, period), more = blocks
    whole = modules._modules
    several = list(whole.values())
    kept = several[: first + units * period] + several[first + (KEPT + more) * period :]
    modules._modules = {str(number): block for number, block in enumerate(kept)}
    try:
        yield
    finally:
        modules._modules = whole

"""The memory of one training step by several procedures, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from learncost.equation.errors import InputError
from learncost.ledger.memory import Memory, memory
from learncost.models.configuration import Configuration


@dataclass(frozen=True)
class Several:
    """What a step takes by each of several procedures."""

    memories: tuple[Memory, ...]

    def to_dict(self) -> dict[str, Any]:
        """As the JSON has it: by procedure what `Memory` has."""
        return {"procedures": {one.procedure: one.to_dict() for one in self.memories}}

    def __rich__(self) -> Any:
        from learncost.ledger.show_memory import beside

        return beside(self)

    def __str__(self) -> str:
        return str(self.__rich__())


def several(model: str | Configuration, procedures: str, *given: Any, **more: Any) -> Memory | Several:
    """What `memory` says of one procedure, or of several with commas between. Raises `InputError`."""
    names = tuple(name.strip() for name in procedures.split(","))
    if len(names) == 1:
        return memory(model, names[0], *given, **more)
    if len(set(names)) < len(names):
        raise InputError(f"procedures must be different names with commas between them, not {procedures!r}")
    return Several(tuple(memory(model, name, *given, **more) for name in names))

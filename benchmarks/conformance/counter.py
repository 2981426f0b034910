"""What an adapter of a counter looks like: a few attributes and a method for each thing that the counter counts.

    class Mine(Counter):
        name, package, unit = "mine", "my-counter", Unit.FLOP

        def forward(self, case: Case) -> int:
            model, inputs = case.built()
            return my_counter.count(model, **inputs)

A method that is left out is "not offered"; one that raises is "refused", with the first line of the message.
"""

from __future__ import annotations

from enum import Enum
from importlib import metadata

from conformance.cases import Case


class Unit(Enum):
    """What the counter's numbers are, and what they are called."""

    MAC = "MAC"
    FLOP = "FLOP"
    MAC_CALLED_FLOP = "MAC called flop"

    @property
    def in_a_macc(self) -> int:
        """How many of the unit make one multiplication with its addition."""
        return 2 if self is Unit.FLOP else 1


class Counter:
    """An adapter. `package` is the distribution that has to be installed; imports of it belong into the methods."""

    name: str
    package: str
    unit: Unit
    reading: str = ""
    """Why it says what it says, in a sentence or two."""

    @property
    def version(self) -> str | None:
        """The installed version; None where there is none."""
        try:
            return metadata.version(self.package).partition("+")[0]
        except metadata.PackageNotFoundError:
            return None

    def forward(self, case: Case) -> int | None:
        """Matrix products of the forward pass, in its unit."""
        return None

    def training(self, case: Case) -> int | None:
        """Matrix products of the forward and the backward pass, in its unit."""
        return None

    def parameters(self, case: Case) -> int | None:
        """Parameters of the module."""
        return None

    def trained(self, case: Case) -> int | None:
        """Parameters that are trained."""
        return None

"""Engine torch where no kernel computes a step: the emitted program, on PyTorch's operators."""

from contextlib import contextmanager
from unittest.mock import patch

from learncost.ir.errors import InputError
from learncost.reports.memory.engines import emitted


@contextmanager
def on_operators():
    """Refuse every step in place, so that engine torch predicts the memory of operators."""
    with patch.object(emitted, "_parts", side_effect=InputError("on operators")):
        yield

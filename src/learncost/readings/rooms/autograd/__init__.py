"""What PyTorch's autograd takes in memory for a model's step, found by running it on tensors without values."""

from learncost.readings.rooms.autograd.step import run_step
from learncost.readings.rooms.autograd.tape import Tape

__all__ = ["Tape", "run_step"]

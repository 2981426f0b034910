"""What PyTorch's autograd takes in memory for a model's step, found by running it on tensors without values."""

from learncost.schedule.autograd.module import MODULES, USUAL_MODULE, Module, module_named
from learncost.schedule.autograd.step import Asked, run_step
from learncost.schedule.autograd.tape import Tape

__all__ = ["MODULES", "USUAL_MODULE", "Asked", "Module", "Tape", "module_named", "run_step"]

"""What PyTorch's autograd takes in memory for a model's step, found by running it on tensors without values."""

from learncost.schedule.autograd.asked import Asked
from learncost.schedule.autograd.module import MODULES, USUAL_MODULE, Itself, Module, module_named
from learncost.schedule.autograd.running import Running, Steps
from learncost.schedule.autograd.step import run_step, step_weights
from learncost.schedule.autograd.tape import Tape
from learncost.schedule.autograd.wrapped import BUCKETS, GATHERED, MESSAGES, Wrapping

__all__ = [
    "BUCKETS",
    "GATHERED",
    "MESSAGES",
    "MODULES",
    "USUAL_MODULE",
    "Asked",
    "Itself",
    "Module",
    "Running",
    "Steps",
    "Tape",
    "Wrapping",
    "module_named",
    "run_step",
    "step_weights",
]

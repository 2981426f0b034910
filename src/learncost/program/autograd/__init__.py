"""The memory of a model's step under PyTorch's autograd, by a run on tensors without values."""

from learncost.program.autograd.mixers import MIXERS, RECURRENCES
from learncost.program.autograd.module import MODULES, USUAL_MODULE, Itself, Module, module_named
from learncost.program.autograd.state import StepOptions
from learncost.program.autograd.step import DIFFERENT, run_step
from learncost.program.autograd.tape import Tape
from learncost.program.autograd.wrapped import BUCKETS, GATHERED, MESSAGES, Wrapping
from learncost.program.optimizer_step import CLASSES, Stepping, default_implementation, step_weights

__all__ = [
    "BUCKETS",
    "CLASSES",
    "DIFFERENT",
    "GATHERED",
    "MESSAGES",
    "MIXERS",
    "MODULES",
    "RECURRENCES",
    "USUAL_MODULE",
    "Itself",
    "Module",
    "StepOptions",
    "Stepping",
    "Tape",
    "Wrapping",
    "default_implementation",
    "module_named",
    "run_step",
    "step_weights",
]

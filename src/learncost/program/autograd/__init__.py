"""The memory of a model's step under PyTorch's autograd, by a run on tensors without values."""

from learncost.program.autograd.module import MODULES, USUAL_MODULE, Itself, Module, module_named
from learncost.program.autograd.state import RunUsage, StepOptions, Steps
from learncost.program.autograd.step import run_step, step_weights
from learncost.program.autograd.tape import HookedTape, Tape
from learncost.program.autograd.wrapped import BUCKETS, GATHERED, MESSAGES, Wrapping

__all__ = [
    "BUCKETS",
    "GATHERED",
    "MESSAGES",
    "MODULES",
    "USUAL_MODULE",
    "HookedTape",
    "Itself",
    "Module",
    "RunUsage",
    "StepOptions",
    "Steps",
    "Tape",
    "Wrapping",
    "module_named",
    "run_step",
    "step_weights",
]

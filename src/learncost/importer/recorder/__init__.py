"""Record a module's training step as a program, by a run on tensors without values under PyTorch's autograd."""

from learncost.importer.recorder.module_step import ModuleStep

__all__ = ["ModuleStep"]

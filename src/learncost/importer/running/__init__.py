"""Runs a module's training step on tensors without values, and takes down what PyTorch's allocator would hand out."""

from learncost.importer.running.stepping import ModuleStepping

__all__ = ["ModuleStepping"]

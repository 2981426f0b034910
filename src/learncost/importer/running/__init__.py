"""Run a module's training step on tensors without values, and record the allocations of PyTorch's allocator."""

from learncost.importer.running.stepping import ModuleStepping

__all__ = ["ModuleStepping"]

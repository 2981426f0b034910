"""The memory of a model's step under PyTorch's autograd, by a run on tensors without values."""

"""The peers on PyTorch: autograd on a plain module, as it stands and under torch.compile."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from against_torch_and_jax.packing import packed, unpacked
from against_torch_and_jax.sides import Learner
from against_torch_and_jax.subject import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Subject
from against_torch_and_jax.torch_models import module


class Eager(Learner):
    """Operator by operator."""

    def __init__(self) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        start(self.device)

    def begin(self, subject: Subject) -> dict[str, Any]:
        self.subject = subject
        self.module = self.made(subject)
        rates: dict[str, Any] = {"lr": LEARNING_RATE, "betas": BETAS, "eps": EPSILON, "weight_decay": WEIGHT_DECAY}
        self.optimizer = torch.optim.AdamW(self.module.parameters(), fused=True, **rates)
        self.run = self.loss_module(self.module)
        return facts(self.device)

    def made(self, subject: Subject) -> torch.nn.Module:
        """The module, with the weights that all sides start from."""
        weights = packed(subject.built, subject.weights())
        with self.device:
            made = module(subject.configuration)
        made.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()}, strict=False)
        return made

    def loss_module(self, module: torch.nn.Module) -> Any:
        """What is called for the loss."""
        return module

    def prepare(self, tokens: Any, targets: Any) -> tuple[Any, Any]:
        return torch.from_numpy(tokens).to(self.device), torch.from_numpy(targets).to(self.device)

    def step(self, tokens: Any, targets: Any) -> float:
        self.optimizer.zero_grad(set_to_none=True)
        with self._precision():
            loss = self.run(tokens, targets)
        loss.backward()
        self.optimizer.step()
        return float(loss.item())  # waits for a device to have done everything

    def _precision(self) -> AbstractContextManager[Any]:
        if self.subject.dtype == "fp32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def gradients(self) -> dict[str, Any]:
        grads = ((name, parameter.grad) for name, parameter in self.module.named_parameters())
        gradients = {name: gradient.cpu().numpy() for name, gradient in grads if gradient is not None}
        return unpacked(self.subject.built, gradients)

    def peak(self) -> int | None:
        return int(torch.cuda.max_memory_allocated()) if self.device.type == "cuda" else None


class Compiled(Eager):
    """Forward and backward pass compiled; the first step takes the time that this takes."""

    def __init__(self) -> None:
        super().__init__()
        import torch._inductor.compile_fx  # noqa: F401 - the compiler is imported late, and is not the step's memory

    def loss_module(self, module: torch.nn.Module) -> Any:
        return torch.compile(module)


def start(device: torch.device) -> None:
    """A product large enough to start all threads and the libraries behind it."""
    square = torch.ones(256, 256, device=device)
    (square @ square).sum().item()


def facts(device: torch.device) -> dict[str, Any]:
    """What PyTorch runs on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "threads": torch.get_num_threads()}

"""The peer on JAX: its own gradient, the whole step under one jit."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from against_torch_and_jax.jax_models import adamw_step, loss_function
from against_torch_and_jax.packing import packed, unpacked
from against_torch_and_jax.sides import Learner
from against_torch_and_jax.subject import BETAS, EPSILON, LEARNING_RATE, WEIGHT_DECAY, Subject

_TYPES = {"fp32": jnp.float32, "bf16": jnp.bfloat16}


class Jax(Learner):
    """Parameters and moments are overwritten in place, where the device can."""

    def __init__(self) -> None:
        square = jnp.ones((256, 256))
        jax.jit(jnp.matmul)(square, square).block_until_ready()

    def begin(self, subject: Subject) -> dict[str, Any]:
        self.subject = subject
        # Copies: an array that only borrows NumPy's memory could not be donated.
        self.parameters = {n: jnp.array(a, copy=True) for n, a in packed(subject.built, subject.weights()).items()}
        self.first = jax.tree.map(jnp.zeros_like, self.parameters)
        self.second = jax.tree.map(jnp.zeros_like, self.parameters)
        loss = loss_function(subject.configuration, _TYPES[subject.dtype])
        self.run = adamw_step(loss, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY)
        return {"device": jax.devices()[0].device_kind}

    def prepare(self, tokens: Any, targets: Any) -> tuple[Any, Any]:
        return jnp.asarray(tokens, jnp.int32), jnp.asarray(targets, jnp.int32)

    def step(self, tokens: Any, targets: Any) -> float:
        time = np.float32(self.steps + 1)
        stepped = self.run(self.parameters, self.first, self.second, time, tokens, targets)
        self.parameters, self.first, self.second, loss = stepped
        jax.block_until_ready(stepped)  # type: ignore[no-untyped-call]
        return float(loss)

    def gradients(self) -> dict[str, Any]:
        """From the first moments, which after one step are the gradients times 1 - beta_1."""
        gradients = {name: np.asarray(array) / (1 - BETAS[0]) for name, array in self.first.items()}
        return unpacked(self.subject.built, gradients)

    def peak(self) -> int | None:
        stats = jax.devices()[0].memory_stats() or {}
        return stats.get("peak_bytes_in_use")

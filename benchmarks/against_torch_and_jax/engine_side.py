"""learncost's engine as a side: used from outside, by what every engine promises."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from against_torch_and_jax.sides import Learner
from against_torch_and_jax.subject import BETAS, LEARNING_RATE, SEED, WEIGHT_DECAY, Subject
from learncost.engines.options import Options
from learncost.ir.errors import InputError
from learncost.training.engine import engine, usual


class EngineSide(Learner):
    """The engine that a training takes where none is named, with the weights that it draws from the seed itself."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._elsewhere = False  # a device is there, but the engine's weights are not on it
        if usual() == "torch":
            import torch

            from against_torch_and_jax.torch_side import start
            from learncost.training import torch_engine  # noqa: F401 - what it imports is not the step's memory

            self._torch = torch
            start(torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def begin(self, subject: Subject) -> dict[str, Any]:
        self.subject = subject
        self.engine = engine(subject.configuration, options(subject))
        chosen = getattr(self.engine, "plan", None) or subject.plan
        facts: dict[str, Any] = {"engine": usual(), "plan": None if chosen is None else str(chosen)}
        if self._torch is not None:
            facts["threads"] = self._torch.get_num_threads()
            self._elsewhere = self._torch.cuda.is_available() and self._allocated() < 4 * subject.parameters
        return facts

    def step(self, tokens: Any, targets: Any) -> float:
        loss = self.engine.step({"tokens": tokens, "targets": targets}, LEARNING_RATE)
        if self._torch is not None and self._torch.cuda.is_available():
            self._torch.cuda.synchronize()
        return loss

    def gradients(self) -> dict[str, Any]:
        """From the first moments, which after one step are the gradients times 1 - beta_1."""
        state = self.engine.state
        return {name: np.asarray(state[f"{name}.M"]) / (1 - BETAS[0]) for name in self.engine.weights}

    def peak(self) -> int | None:
        if self._torch is None or not self._torch.cuda.is_available():
            return None
        return None if self._elsewhere else int(self._torch.cuda.max_memory_allocated())

    def _allocated(self) -> int:
        return int(self._torch.cuda.memory_allocated())


def options(subject: Subject) -> Options:
    """The training's options that make the same step as the peers'. Raises InputError where the engine lacks one."""
    option_names = {option.name for option in fields(Options)}
    settings: dict[str, Any] = {
        "engine": usual(),
        "procedure": subject.procedure,
        "dtype": subject.dtype,
        "batch_size": subject.batch_size,
        "seq_len": subject.seq_len,
        "learning_rate": LEARNING_RATE,
        "beta_2": BETAS[1],
        "weight_decay": WEIGHT_DECAY,
        "seed": SEED,
    }
    if subject.plan is not None:
        if "plan" not in option_names:
            raise InputError("this engine takes no plans: leave --plan out")
        settings["plan"] = subject.plan
    return Options(**settings)

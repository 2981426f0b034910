"""PyTorch's autograd on a GPU: as on a processor, but for the operators that are other kernels there.

PyTorch 2.11 on an H100 ran what `program/autograd` has for it, beside `benchmarks/on_cuda.py`: an RMS norm is one
kernel, dropout keeps booleans, fused attention drops shares itself and knows groups of heads in bf16 and fp16 alone,
and what is narrower is cast while it is read. The caching allocator's rounding and what cuBLAS keeps are not in it.
"""

from __future__ import annotations

from learncost.program.autograd.tape import Tape
from learncost.reports.memory.engines.eager import OptimizerStepping, chosen_engine


class _OnCuda(Tape):
    """A tape of a GPU."""

    cuda = True


RUNNERS = (
    chosen_engine(
        OptimizerStepping(
            "eager-cuda",
            "fused",
            "over the old ones",
            "Neither are cuBLAS workspaces (66 MiB on an H100) and the allocator's rounding. ",
            tape=_OnCuda,
            place="a GPU",
            device="cuda",
        )
    ),
)

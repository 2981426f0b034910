"""A step in place on a GPU: products by PyTorch's library, everything else by kernels in Triton, in one arena."""

from learncost.backends.triton.standalone import (
    LONGEST,
    WORKSPACES,
    check_lengths,
    in_triton,
    laid_out,
    longest,
    needed,
)

__all__ = ["LONGEST", "WORKSPACES", "check_lengths", "in_triton", "laid_out", "longest", "needed"]

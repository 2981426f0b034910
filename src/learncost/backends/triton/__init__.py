"""A step in place on a GPU: products by PyTorch's library, everything else by kernels in Triton, in one arena."""

from learncost.backends.triton.standalone import LONGEST, check_lengths, emitted, in_triton, laid_out, longest

__all__ = ["LONGEST", "check_lengths", "emitted", "in_triton", "laid_out", "longest"]

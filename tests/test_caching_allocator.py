"""What PyTorch's CUDA allocator reserves: segments by its rules, and published numbers of training runs."""

import pytest

import learncost as lc
from learncost.program.caching_allocator import reserved
from learncost.program.program import BEFORE, Buffer, Program, ProgramBuilder

MIB = 2**20


def program(*lives):
    """A program with a buffer for each (bytes, first op, last op)."""
    builder = ProgramBuilder("cuda")
    for _ in range(max(last for _, _, last in lives) + 1):
        builder.run("aten::mul")
    buffers = tuple(Buffer(size, "cuda", "", "", first, last) for size, first, last in lives)
    return Program(builder.program().ops, buffers, "cuda")


@pytest.mark.parametrize(
    ("lives", "segments", "pages"),
    [
        ([(1, 0, 0)], 2, 2),
        ([(MIB, 0, 0), (MIB, 0, 0), (1, 0, 0)], 4, 4),  # two fill a segment
        ([(MIB + 1, 0, 0)], 20, 20),
        ([(9 * MIB, 0, 0), (9 * MIB, 0, 0)], 20, 20),
        ([(11 * MIB + 1, 0, 0)], 12, 20),  # its own segment, a multiple of 2 MiB
        ([(64 * MIB, 0, 0), (32 * MIB, 1, 2), (32 * MIB, 1, 2)], 64, 80),  # parts of what was free
        ([(32 * MIB, 0, 0), (32 * MIB, 0, 0), (64 * MIB, 1, 1)], 128, 80),  # segments do not join, pages do
        ([(30 * MIB, BEFORE, 2), (10 * MIB, 1, 1)], 40, 40),
        ([(10 * MIB, 0, 1), (50 * MIB, 1, 2), (20 * MIB, 2, 2)], 80, 80),  # the second step begins with the first's
    ],
)
def test_segments_are_those_of_the_allocators_rules(lives, segments, pages):
    assert reserved(program(*lives)) == segments * MIB
    assert reserved(program(*lives), expandable=True) == pages * MIB


def test_what_is_reserved_is_what_torchtitan_published():
    """torchtitan 5940ddeb, llama3_8b.toml on 8 H100s: 49.59 GiB reserved, with expandable segments."""
    found = lc.memory(
        "llama-3-8b", "recompute", batch_size=8, seq_len=8192, mesh="dp=8", placement="fsdp", engine="eager",
        precision="bf16-masters", optimizer="adamw", checkpoint_every="op", on="cuda",
    )  # fmt: skip
    assert found.reserved(expandable=True) == pytest.approx(49.59 * 2**30, rel=0.02)
    assert found.peak < found.reserved(expandable=True) < found.reserved()
    assert lc.memory("gpt2", engine="eager").reserved() is None

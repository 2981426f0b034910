"""The memory that PyTorch's CUDA allocator reserves for a program: segments of the device, which blocks are cut from.

`c10/cuda/CUDACachingAllocator.cpp` of PyTorch 2.13, with no limit on splitting and no free memory given back: sizes are
multiples of 512 bytes; a block is the smallest free one that is large enough, of its stream and of its pool (up to 1
MiB, or more); what it leaves is a free block, and neighbours that are free become one. A new segment has 2 MiB, 20 MiB
for blocks below 10 MiB, or the block's size up to a multiple of 2 MiB. With `expandable_segments:True` a pool is one
segment that grows at its end by pages of 2 or 20 MiB.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict

from learncost.program.program import BEFORE, HOST, Program

LEAST, MIB = 512, 2**20
SMALL, LARGE, SEVERAL = 2 * MIB, 20 * MIB, 10 * MIB
"""Bytes of a segment for small blocks, and of one for several large blocks, which have less than the third number."""

STREAMS = ("c10d::allgather_", "c10d::reduce_scatter_")
"""Ops whose results are on their own stream (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): the buckets of
`foreach_all_gather`, and the sums of `foreach_reduce`."""


class Pool:
    """The segments of a stream for small blocks, or for large ones, at addresses with gaps between segments.

    free, starts, ends  the free blocks: by bytes, their bytes by address, and their addresses by where they end
    """

    def __init__(self, small: bool, expandable: bool) -> None:
        self.page, self.rest, self.expandable = SMALL if small else LARGE, LEAST if small else MIB + 1, expandable
        self.reserved = self.end = 0
        self.free, self.starts, self.ends = list[tuple[int, int]](), dict[int, int](), dict[int, int]()

    def take(self, size: int) -> tuple[int, int]:
        """Return a block of a size, address and bytes, and free what it leaves of a larger one."""
        at = bisect_left(self.free, (size, 0))
        if at == len(self.free):
            self._grow(size)
            at = -1
        length, start = self.free[at]
        self._drop(start)
        if length - size < self.rest:
            return start, length
        self.give(start + size, length - size)
        return start, size

    def give(self, start: int, size: int) -> None:
        """Free a block, and join it with its neighbours that are free."""
        if start in self.ends:
            start, size = self.ends[start], size + self._drop(self.ends[start])
        if start + size in self.starts:
            size += self._drop(start + size)
        self.starts[start], self.ends[start + size] = size, start
        insort(self.free, (size, start))

    def _drop(self, start: int) -> int:
        size = self.starts.pop(start)
        del self.ends[start + size], self.free[bisect_left(self.free, (size, start))]
        return size

    def _grow(self, size: int) -> None:
        """Add a segment that has a block of a size, or pages at the end of the one that grows."""
        page = SMALL if size >= SEVERAL and not self.expandable else self.page
        start = self.end + (not self.expandable)
        more = -(-(size - start + self.ends.get(start, start)) // page) * page
        self.reserved, self.end = self.reserved + more, start + more
        self.give(start, more)


def reserved(program: Program, expandable: bool = False) -> int:
    """Return the bytes of all segments after two steps, of which the second begins with those of the first.

    expandable  whether `expandable_segments` is True
    """
    pools, ops = dict[tuple[str, bool], Pool](), program.ops
    starts, ends = ([list[tuple[Pool, int, int]]() for _ in range(len(ops) + 2)] for _ in range(2))
    for number, buffer in enumerate(program.buffers):
        if not buffer.bytes or buffer.device == HOST:
            continue
        size = -(-buffer.bytes // (buffer.count * LEAST)) * LEAST
        name = ops[buffer.first].name if buffer.first > BEFORE else ""
        key = name if name in STREAMS else "", size <= MIB
        pool = pools.setdefault(key, Pool(key[1], expandable))
        starts[buffer.first + 1] += [(pool, size, number)] * buffer.count
        ends[buffer.last + 1] += [(pool, size, number)] * (buffer.count if buffer.first > BEFORE else 0)
    for pool, size, _ in starts[0]:  # what is there before the step
        pool.take(size)
    live = defaultdict[int, list[tuple[int, int]]](list)
    for begin, end in [*zip(starts[1:], ends[1:], strict=True)] * 2:
        for pool, size, number in begin:
            live[number].append(pool.take(size))
        for pool, _, number in end:
            pool.give(*live[number].pop())
    return sum(pool.reserved for pool in pools.values())

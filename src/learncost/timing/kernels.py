"""The GPU kernels that an operator launches, and their seconds, from physical constants of the GPU.

Products are divided into tiles, and tiles into waves over the multiprocessors (NVIDIA, Matrix Multiplication Background
User's Guide, sections 4 and 5). Attention attains published rates by head size and length. All other kernels are bound
by the bytes that they read and write, which may be in the L2 cache, or by what a kernel takes at least.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, inf, prod, sqrt

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError
from learncost.program.program import CLIP, EVENT, MOVED, REREAD, ROW, Operand, Program, ProgramOp
from learncost.timing.rates import GPU

SHORTEST = 2e-6
"""The seconds from one short kernel to the next on one stream: a kernel that does nothing occupies the GPU for 1 to 2
microseconds, and the next starts about one later (NVIDIA, Getting Started with CUDA Graphs, 2019: 2.9 and 0.5 on V100).
"""

RAMP, WAVE = 4e-6, 1e-6
"""The seconds that a product takes before its first wave, and that every wave takes for the first loads and the last
stores of its tiles: assumed, several latencies of 0.6 microseconds to memory (Luo et al. 2024, arXiv 2402.13499)."""

TILES: Mapping[int, Mapping[tuple[int, int], float]] = {
    2: {(128, 256): 1.0, (256, 128): 1.0, (128, 128): 0.88, (64, 256): 0.85, (256, 64): 0.85, (128, 64): 0.72,
        (64, 128): 0.72, (64, 64): 0.55},
    4: {(128, 128): 1.0, (128, 64): 0.95, (64, 64): 0.85, (32, 128): 0.8},
}  # fmt: skip
"""The tiles of products by bytes of an element, and the share of the best rate that they attain. The tiles and their
order are those of NVIDIA's guide, section 4.2; the shares are assumed."""

TRITON_TILE = (64, 64)
"""The tile of the products that `learncost emit --backend triton` prints (`backends/triton/blocks.py`)."""

STEP_OF_SUM = 64
"""The factors' columns that a tile reads at a time: the summed axis is padded to a multiple of it."""

SPLITS, LEAST_SUM = (1, 2, 4, 8, 16, 32), 256
"""Parts into which a summed axis is split so that more multiprocessors have a tile, and the shortest part: assumed."""

CAST, REDUCTION, CAT, DROPOUT, ROWS, ADDED = 0.85, 0.75, 0.8, 0.9, 0.6, 0.3
"""Shares of the bandwidth that kernels attain. TensorIterator does not vectorize kernels that convert types
(`aten/src/ATen/native/cuda/CUDALoops.cuh`, `launch_unrolled_kernel`); reductions and norms synchronize their threads;
`cat` and random numbers compute more per byte; rows that are gathered or added at an index are not coalesced.
The shares are assumed."""

CONVOLUTION = {False: 0.7, True: 0.6}
"""The rate of convolutions, forward and backward, relative to products of the same FLOPs: assumed."""

SORT = 50e-6
"""The seconds to sort the indices of an embedding's gradient or of `index_put_` with accumulation (`Embedding.cu`,
`Indexing.cu`): several radix passes, each a few kernels; assumed."""

SPILLED, SHARED = 40e6, 48e3
"""The bytes of rows in flight above which a softmax reads its rows again from memory, and the bytes of a row that fit
the shared memory of a multiprocessor (`SoftMax.cu`)."""

TENSORS, ELEMENTS = 36, 21e6
"""The tensors and elements of a launch of a fused optimizer (`multi_tensor_apply.cuh`: 36 tensors of depth 4, and 320
chunks of 65,536 elements)."""

RECOMPUTED = 2.5
"""The FLOPs of attention's backward pass relative to its forward pass (Dao 2023, FlashAttention-2, section 4.1)."""

PLAIN_RATES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float64": "fp64", "tf32": "tf32"}
"""The data types of rates by PyTorch's names."""

PRODUCT, ATTENTION, CONVOLVED = "product", "attention", "convolution"
POINTWISE, CONVERSION, BROADCAST, COPY, FILL = "pointwise", "cast", "broadcast or strided", "copy", "fill"
NORM, SOFTMAX, LOSS, SUM, INDEX, JOIN, RANDOM = "norm", "softmax", "loss", "reduction", "index", "cat", "dropout"
UPDATE, CLIPPING, SORTED, COLLECTIVE = "optimizer", "clip", "sort", "collective"
TILED, FUSED = "product in Triton", "fused kernel in Triton"
"""The kinds of kernels."""


SecondsOfCollective = Callable[[str, float], float]
"""The seconds of a collective by its name and the bytes of its global array."""

COLLECTIVES = {"c10d::_allgather_base_": "all_gather", "c10d::_reduce_scatter_base_": "reduce_scatter",
               "c10d::allreduce_": "all_reduce"}  # fmt: skip
"""The collectives of FSDP2 by the operators that run them."""


@dataclass(frozen=True)
class Kernel:
    """A kernel: its kind, its seconds, the FLOPs of a product, and its name, if it was measured."""

    kind: str
    seconds: float
    flops: float = 0.0
    name: str = ""


def elements(operand: Operand) -> int:
    """Return the number of distinct elements that an operand reads: broadcast axes have stride 0."""
    if not operand.strides:
        return prod(operand.shape)
    return prod(size for size, stride in zip(operand.shape, operand.strides, strict=True) if stride or size <= 1)


WIDTHS = {"bool": 1, "int8": 1, "uint8": 1, "int16": 2, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8,
          "complex64": 8, "complex128": 16}  # fmt: skip
"""The bytes of an element where they are not 4."""


def width(operand: Operand) -> int:
    """Return the bytes of an element."""
    return (
        1 if operand.dtype.startswith("float8") else WIDTHS.get(operand.dtype, 8 if "complex" in operand.dtype else 4)
    )


def size_of_operand(operand: Operand) -> int:
    """Return the distinct bytes of an operand."""
    return elements(operand) * width(operand)


def is_dense(operand: Operand) -> bool:
    """Return whether an operand's elements fill one range of memory, in any order of its axes."""
    expected = 1
    for stride, size in sorted(zip(operand.strides, operand.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def matmul_seconds(
    gpu: GPU, m: int, n: int, k: int, batch: int, dtype: str, tile: tuple[int, int] | None = None
) -> float:
    """Return the seconds of a product of matrices m x k and k x n: the fastest tile, in whole waves of tiles.

    A summed axis may be split, which adds a kernel that sums the parts, unless a tile is given, the only one. Raises
    `InputError` if the type has no rate.
    """
    rate = product_rate(gpu, dtype) / gpu.multiprocessors
    narrow = 2 if dtype in ("bfloat16", "float16") else 4
    best = inf
    for (rows, columns), share in TILES[narrow].items():
        if tile not in (None, (rows, columns)):
            continue
        tiles = ceil(m / rows) * ceil(n / columns) * batch
        for parts in SPLITS[:1] if tile else SPLITS:
            if parts > 1 and k / parts < LEAST_SUM:
                break
            waves = ceil(tiles * parts / gpu.multiprocessors)
            summed = ceil(k / parts / STEP_OF_SUM) * STEP_OF_SUM
            seconds = RAMP + waves * (2 * rows * columns * summed / (rate * share) + WAVE)
            if parts > 1:  # the parts, in float, mostly stay in the cache
                seconds += SHORTEST + parts * m * n * batch * 4 / gpu.bandwidth
            best = min(best, seconds)
    moved = batch * (m * k + k * n + m * n) * narrow
    return max(best, SHORTEST + moved / gpu.bandwidth)


def product_rate(gpu: GPU, dtype: str) -> float:
    """Return the attained FLOP/s of products in a type. Raises `InputError` if the device has no rate in it."""
    name = PLAIN_RATES.get(dtype, dtype)
    if name not in gpu.products:
        has = ", ".join(gpu.products)
        raise InputError(f"{gpu.name} has no rate of products in {name} (known: {has}), so its time is not known")
    return gpu.products[name]


class KernelModel:
    """The kernels of a program's operators, one after the other: which operands are in the cache depends on those
    before."""

    def __init__(self, gpu: GPU, program: Program, collective: SecondsOfCollective | None = None) -> None:
        self.gpu, self._collective = gpu, collective
        self._moved = 0.0
        self._last: dict[int, float] = {}
        self._host = {place for place, each in enumerate(program.buffers) if each.device != program.device}

    def kernels(self, op: ProgramOp) -> list[Kernel]:
        """Return the kernels that an operator launches: none for views, and for tensors of the CPU."""
        name = op.name.rpartition("::")[2].strip("_")
        operands = [*op.inputs, *op.outputs]
        if MOVED in op.arguments:
            launches = max(ceil(op.arguments["tensors"] / TENSORS), ceil(op.arguments["elements"] / ELEMENTS))
            self._moved += op.arguments[MOVED]
            return [Kernel(UPDATE, SHORTEST * launches + op.arguments[MOVED] / self.gpu.bandwidth)]
        if not operands or op.synchronizes or is_view(op) or all(each.buffer in self._host for each in operands):
            return []
        if collective := next((row for text, row in COLLECTIVES.items() if text in op.name), ""):
            payload = max(map(size_of_operand, operands))
            return [Kernel(COLLECTIVE, self._collective(collective, payload) if self._collective else 0.0)]
        if name.startswith(LISTS):
            return self._of_lists(op, name)
        for pattern, rule in RULES:
            if pattern.fullmatch(name):
                return rule(self, op, name)
        return [self._pointwise(op.inputs, op.outputs)]

    def touch(self, inputs: Iterable[Operand], outputs: Iterable[Operand]) -> tuple[float, float]:
        """Return the bytes that come from memory or go there, and those in all; a repeated operand is read once."""
        memory = total = 0.0
        seen = set()
        read, written = list(inputs), list(outputs)
        for each in read:
            if each.buffer not in seen:
                seen.add(each.buffer)
                size = size_of_operand(each)
                total += size
                if self._moved - self._last.get(each.buffer, -inf) + size > self.gpu.cache:
                    memory += size
        for each in written:
            memory += size_of_operand(each)
            total += size_of_operand(each)
        self._moved += total
        self._last |= dict.fromkeys((each.buffer for each in (*read, *written)), self._moved)
        return memory, total

    def moved(
        self, inputs: Sequence[Operand], outputs: Sequence[Operand], share: float = 1.0, scalar: int = 0
    ) -> float:
        """Return the seconds of a kernel that is bound by its bytes.

        share   of the bandwidth that it attains
        scalar  the elements for which it computes offsets
        """
        memory, total = self.touch(inputs, outputs)
        seconds = max(memory / (self.gpu.bandwidth * share), total / self.gpu.cache_bandwidth, scalar / self.gpu.scalar)
        return SHORTEST + seconds

    def _pointwise(self, inputs: Sequence[Operand], outputs: Sequence[Operand], kind: str = POINTWISE) -> Kernel:
        """Return an elementwise kernel: vectorized if all operands have one type and lie in memory in one order."""
        every = [each for each in (*inputs, *outputs) if prod(each.shape) > 1]
        if not every:
            return Kernel(kind, self.moved(inputs, outputs))
        largest = max(outputs or inputs, key=lambda each: prod(each.shape))
        count = prod(largest.shape)
        flat = all(prod(each.shape) == count and is_dense(each) and _order(each) == _order(largest) for each in every)
        types = {each.dtype for each in every}
        if flat:
            share, kind = (1.0, kind) if len(types) == 1 else (CAST, CONVERSION)
            return Kernel(kind, self.moved(inputs, outputs, share))
        return Kernel(BROADCAST, self.moved(inputs, outputs, CAST, count))

    def _product(self, op: ProgramOp, _: str) -> list[Kernel]:
        first, second = op.inputs[-2:]
        batch = first.shape[0] if len(first.shape) == 3 else 1
        m, k, n = *first.shape[-2:], second.shape[-1]
        seconds = matmul_seconds(self.gpu, m, n, k, batch, first.dtype)
        memory, _total = self.touch(op.inputs, op.outputs)
        return [Kernel(PRODUCT, max(seconds, SHORTEST + memory / self.gpu.bandwidth), 2.0 * batch * m * n * k)]

    def _tiled(self, op: ProgramOp, _: str) -> list[Kernel]:
        """Return a product in Triton, which has one tile and loads both factors of every tile from the cache."""
        batch, m, n, k = op.arguments["product"]
        seconds = matmul_seconds(self.gpu, m, n, k, batch, op.arguments["dtype"], TRITON_TILE)
        return [Kernel(TILED, max(seconds, self.moved(op.inputs, op.outputs)), 2.0 * batch * m * n * k)]

    def _generated(self, op: ProgramOp, name: str) -> list[Kernel]:
        """Return a kernel of inductor: pointwise, or a reduction, which may read its rows several times."""
        again, row = op.arguments.get(REREAD, 0), op.arguments.get(ROW, 0)
        spills = row >= SHARED and row * 2 * self.gpu.multiprocessors > SPILLED
        repeated = again / (self.gpu.bandwidth * REDUCTION if spills else self.gpu.cache_bandwidth)
        share = 1.0 if name.startswith("triton_poi") else REDUCTION
        return [Kernel(FUSED, self.moved(op.inputs, op.outputs, share) + repeated)]

    def _vector(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(PRODUCT, self.moved(op.inputs, op.outputs, REDUCTION), 2.0 * prod(op.inputs[-2].shape))]

    def _grouped(self, op: ProgramOp, _: str) -> list[Kernel]:
        """Return a product of experts' rows, which are taken to have equal shares."""
        first, second = op.inputs[:2]
        self.touch(op.inputs, op.outputs)
        if len(second.shape) == 3:
            groups, k, n = second.shape
            m, k_each = first.shape[-2] / groups, float(k)
        else:
            groups, n = op.outputs[0].shape[0], second.shape[-1]
            m, k_each = float(first.shape[0]), first.shape[1] / groups
        seconds = matmul_seconds(self.gpu, ceil(m), n, ceil(k_each), groups, first.dtype)
        return [Kernel(PRODUCT, seconds / self.gpu.experts, 2.0 * groups * m * n * k_each)]

    def _convolution(self, op: ProgramOp, name: str) -> list[Kernel]:
        """Return a convolution as products, with the copies between layouts of channels before and after it."""
        backward = "backward" in name
        first, x, weight = op.inputs[:3] if backward else (op.outputs[0], *op.inputs[:2])
        place = x if op.arguments.get("transposed") else first
        channels = weight.shape[0]
        rows, summed = prod(place.shape) // place.shape[1], prod(weight.shape) // channels
        groups = int(op.arguments.get("groups", 1))
        dtype = "tf32" if x.dtype == "float32" and "tf32" in self.gpu.products else x.dtype
        share = CONVOLUTION[backward]
        flops = 2.0 * rows * channels * summed

        def product(m: int, n: int, k: int) -> float:
            if groups == x.shape[1]:  # a depthwise one is bound by bytes
                return self.moved([x, weight], [first], REDUCTION)
            columns = max(n // groups, 1) if n == channels else n
            return matmul_seconds(self.gpu, m, columns, k, groups, dtype) / share

        if not backward:
            copies = self.moved([x], [x]) + self.moved([first], [first])
            return [Kernel(CONVOLVED, product(rows, channels, summed) + copies, flops)]
        mask = op.arguments.get("output_mask", (True, True, True))
        found = []
        if mask[0]:
            found.append(Kernel(CONVOLVED, product(rows, summed, channels) + self.moved([x], [x]), flops))
        if mask[1]:
            found.append(Kernel(CONVOLVED, product(channels, summed, rows) + self.moved([first], [first]), flops))
        if mask[2]:
            found.append(Kernel(SUM, self.moved([first], [], REDUCTION)))
        return found

    def _attention(self, op: ProgramOp, name: str) -> list[Kernel]:
        """Return fused attention. Its backward pass also computes sums of rows before and adds the parts of the
        gradient of the queries after."""
        backward = "backward" in name
        query, key, value = op.inputs[1:4] if backward else op.inputs[:3]
        batch, heads, length, size = query.shape
        keys, causal = key.shape[-2], op.arguments.get("is_causal") is True
        flops = 2.0 * batch * heads * length * keys * (size + value.shape[-1])
        flops *= (RECOMPUTED if backward else 1.0) * (0.5 if causal else 1.0)
        reach = sqrt(length * keys)
        if query.dtype == "float32":
            rate = self.gpu.attention_fp32
            padded = 1.0
        else:
            rows = self.gpu.attention.backward if backward else self.gpu.attention.forward
            head = self.gpu.attention.head(size)
            rate, padded = self.gpu.attention.at(rows[head], reach), max(head / size, 1.0)
        if causal:
            rate *= self.gpu.attention.at(self.gpu.attention.causal, reach)
        least = self.moved(op.inputs, op.outputs)
        found = [Kernel(ATTENTION, max(least, RAMP + flops * padded / rate), flops)]
        if backward and query.dtype != "float32":
            gradient = op.outputs[:1]
            found += [
                Kernel(ATTENTION, self.moved(op.inputs[:1], [])),
                Kernel(ATTENTION, self.moved(gradient, gradient)),
            ]
        return found

    def _softmax(self, op: ProgramOp, name: str) -> list[Kernel]:
        """Return a softmax over the last axis; a long row is read again for each of its passes."""
        x = op.inputs[0]
        row = x.shape[-1] * width(x) if x.shape else width(x)
        memory, _total = self.touch(op.inputs, op.outputs)
        again = (1 if "backward" in name else 2) * size_of_operand(x) if row >= SHARED else 0
        spills = row * 2 * self.gpu.multiprocessors > SPILLED
        seconds = (memory + again * spills) / (self.gpu.bandwidth * REDUCTION)
        return [Kernel(SOFTMAX, SHORTEST + seconds + again * (not spills) / self.gpu.cache_bandwidth)]

    def _loss(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(LOSS, SHORTEST + prod(op.inputs[1].shape) / 1024 * 0.8e-6)]

    def _loss_backward(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(FILL, self.moved([], op.outputs)), Kernel(LOSS, SHORTEST + 3e-6)]

    def _norm_backward(self, op: ProgramOp, _: str) -> list[Kernel]:
        """Return the gradients of the operand, and of the weights as sums of columns (`layer_norm_kernel.cu`)."""
        operands = op.inputs[:2]
        found = [Kernel(NORM, self.moved(op.inputs, op.outputs[:1], REDUCTION))]
        if op.outputs[1:]:
            found += [Kernel(NORM, self.moved(operands, op.outputs[1:], REDUCTION)), Kernel(NORM, SHORTEST)]
        return found

    def _sum(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(SUM, self.moved(op.inputs[:1], op.outputs, REDUCTION) + SHORTEST / 2)]

    def _running(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(SUM, self.moved(op.inputs, op.outputs, 0.5) + SHORTEST)]

    def _sort(self, op: ProgramOp, name: str) -> list[Kernel]:
        passes = 4 if name == "sort" else 2
        return [Kernel(SORTED, SORT / 2 + passes * self.moved(op.inputs, op.outputs, REDUCTION))]

    def _gather(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(INDEX, self.moved(op.outputs, op.outputs, CAT if op.name.endswith("embedding") else ROWS))]

    def _embedding_backward(self, op: ProgramOp, _: str) -> list[Kernel]:
        gradient = op.inputs[:1]
        return [
            Kernel(FILL, self.moved([], op.outputs)),
            Kernel(INDEX, SORT + self.moved(gradient, gradient, ROWS - 0.2)),
        ]

    def _index_put(self, op: ProgramOp, _: str) -> list[Kernel]:
        """Return an assignment or a sum at indices, of a copy unless it is in place."""
        values, sums = op.inputs[-1:], op.arguments.get("accumulate") is True
        found = [] if op.name.endswith("_") else [Kernel(INDEX, self.moved(op.inputs[:1], op.outputs))]
        seconds = self.moved(values, values, ADDED if sums else ROWS) + (SORT if sums else 0.0)
        return [*found, Kernel(INDEX, seconds)]

    def _into_zeros(self, op: ProgramOp, name: str) -> list[Kernel]:
        inside = self._pointwise(op.inputs, op.inputs, COPY)
        return [Kernel(FILL, self.moved([], op.outputs)), inside]

    def _fill(self, op: ProgramOp, _: str) -> list[Kernel]:
        return [Kernel(FILL, self.moved([], op.outputs))]

    def _copy(self, op: ProgramOp, name: str) -> list[Kernel]:
        return [self._pointwise(op.inputs[-1:] if name == "copy" else op.inputs[:1], op.outputs, COPY)]

    def _of_lists(self, op: ProgramOp, name: str) -> list[Kernel]:
        """Return a kernel over lists of tensors: an optimizer's step, or one of its operations."""
        large = [each for each in op.inputs if prod(each.shape) > 1] or list(op.inputs)
        total = sum(map(size_of_operand, large))
        if name.startswith("fused_ada"):
            lists, written = 4, total * 3 / 4  # weights, gradients and two states; all but gradients are written
        else:
            lists = next((count for pattern, count in OPERANDS if re.search(pattern, f"{name}.{op.overload}")), 1)
            written = sum(map(size_of_operand, op.outputs)) if op.outputs else total / lists
            written = 0 if "norm" in name or "max" in name else written
        self._moved += total + written
        count, points = len(large) / lists, sum(prod(each.shape) for each in large) / lists
        launches = max(1, ceil(count / TENSORS), ceil(points / ELEMENTS))
        kind = CLIPPING if op.phase == CLIP else UPDATE
        return [Kernel(kind, SHORTEST * launches + (total + written) / self.gpu.bandwidth)]


LISTS = ("foreach", "fused_ada")
"""The beginnings of names of operators over lists of tensors."""

OPERANDS = ((r"addc|lerp\.List", 3), (r"lerp|copy|\.List", 2))
"""The lists of tensors that an operator of lists has, by its name and overload; one for all others."""


def _order(operand: Operand) -> tuple[int, ...]:
    """Return the order of an operand's axes in memory, without those of one element."""
    axes = [axis for axis, size in enumerate(operand.shape) if size != 1]
    return tuple(sorted(axes, key=lambda axis: -operand.strides[axis]))


GENERATED = "triton_"
"""The beginning of names of kernels that inductor generates."""

ALLOCATIONS = re.compile(r"(new_)?empty\w*")


def is_view(op: ProgramOp) -> bool:
    """Return whether an operator launches no kernel: its results are in the memory of an operand, or only allocated."""
    name = op.name.rpartition("::")[2]
    if EVENT in op.arguments:
        return True
    if ALLOCATIONS.fullmatch(name) or name == "is_same_size":
        return True
    given = {each.buffer for each in op.inputs}
    aliases = bool(op.outputs) and bool(op.inputs) and all(each.buffer in given for each in op.outputs)
    return aliases and not name.endswith("_") and not name.startswith(GENERATED)


Rule = Callable[[KernelModel, ProgramOp, str], list[Kernel]]


def bound_by_bytes(kind: str, share: float) -> Rule:
    """Return the rule of operators with one kernel, which reads and writes all operands at a share of the bandwidth."""
    return lambda model, op, name: [Kernel(kind, model.moved(op.inputs, op.outputs, share))]


RULES: tuple[tuple[re.Pattern[str], Rule], ...] = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        ("mm|addmm|bmm|baddbmm", KernelModel._product),
        ("mv|addmv|dot|vdot", KernelModel._vector),
        ("grouped_mm", KernelModel._grouped),
        ("tiles", KernelModel._tiled),
        ("rows", bound_by_bytes(FUSED, REDUCTION)),
        (r"triton_\w+", KernelModel._generated),
        (r"(cudnn_|thnn_)?conv\w*", KernelModel._convolution),
        (r"scaled_dot_product_\w+attention(_backward)?", KernelModel._attention),
        (r"(log_)?softmax(_backward_data)?", KernelModel._softmax),
        ("nll_loss2?d?_forward", KernelModel._loss),
        ("nll_loss2?d?_backward", KernelModel._loss_backward),
        (r"native_(layer|group|batch)_norm|fused_rms_norm|cudnn_batch_norm", bound_by_bytes(NORM, REDUCTION)),
        (r"(native_\w+|fused_rms|cudnn_batch)_norm_backward", KernelModel._norm_backward),
        (r"sum|mean|linalg_vector_norm|norm|all|any|amax|amin|max|min|argmax|argmin|var|std|var_mean|prod|logsumexp",
         KernelModel._sum),
        ("cumsum|cumprod|histc|bincount|logcumsumexp", KernelModel._running),
        ("sort|topk|unique2?|kthvalue", KernelModel._sort),
        ("embedding|index|gather|index_select|take", KernelModel._gather),
        ("embedding_dense_backward", KernelModel._embedding_backward),
        ("index_put|index_put_impl|index_add|index_copy|index_fill", KernelModel._index_put),
        (r"scatter\w*", bound_by_bytes(INDEX, 0.5)),
        ("slice_backward|select_backward|constant_pad_nd|embedding_renorm", KernelModel._into_zeros),
        ("cat|stack", bound_by_bytes(JOIN, CAT)),
        ("native_dropout|native_dropout_backward|bernoulli|rand|rand_like|normal|uniform|randn|multinomial|exponential",
         bound_by_bytes(RANDOM, DROPOUT)),
        ("zeros|new_zeros|zeros_like|ones|ones_like|new_ones|fill|zero|full|full_like|new_full|arange|scalar_tensor",
         KernelModel._fill),
        ("clone|copy|to_copy", KernelModel._copy),
    )
)  # fmt: skip
"""The kernels of operators by their names, without underscores at the ends; all others are elementwise."""

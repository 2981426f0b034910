"""The text around the kernels of a file in Triton: imports, helpers, and the command line."""

USE = """\
To run it, with `given` a dictionary of tensors by the names in GIVEN, on the device:

    given |= {name: given[weight].bfloat16() for name, weight in COPIES.items()}
    m = lay_out(given, torch.empty(BYTES, dtype=torch.uint8, device=device()))
    step(m, KERNELS)
    print(m.loss)

On the command line, with made up tensors, and with the registers of the kernels, for which no GPU is needed:

    python step.py
    python step.py --deterministic
    python step.py --compile sm_80 sm_90

Two runs of the kernels in this file are bit-equal: none adds by atomics, and index_put_ sorts. PyTorch's attention and
operators, where they are called, may add by atomics; --deterministic chooses kernels of PyTorch that do not, and the
difference of both times is what that costs.
"""

PREAMBLE = """\
import math
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace


def refuse(reason):
    print(reason, file=sys.stderr)
    raise SystemExit(2)


try:
    import triton
    import triton.language as tl

    import torch
except ModuleNotFoundError as error:
    refuse(f"{error.name} is not installed, which this step needs: pip install {error.name}")
"""

HELPERS = {
    "library_attention": '''\
def library_attention(q, k, v, a, causal, scale, sums=None):
    """a = softmax(scale q k^T) v by PyTorch's library in v's type, each [sequences, heads, positions, width].

    sums  what backward reads: the logarithm of the sum of each row's exponentials
    """
    q, k, several = q.to(v.dtype), k.to(v.dtype), q.shape[1] != k.shape[1]
    if sums is None:
        attend = torch.nn.functional.scaled_dot_product_attention
        a.copy_(attend(q, k, v, is_causal=causal, scale=scale, enable_gqa=several))
        return
    flash = torch.ops.aten._scaled_dot_product_flash_attention
    if not v.is_cuda:
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    for made, each in zip((a, sums), flash(q, k, v, 0.0, causal, scale=scale)):
        made.copy_(each)
''',
    "library_attention_backward": '''\
def library_attention_backward(q, k, v, da, dq, dk, dv, causal, scale, a=None, sums=None):
    """The gradients of attention by PyTorch's library, which makes its output and sums of rows again without these."""
    if sums is None:
        with torch.inference_mode(False), torch.enable_grad():
            factors = [each.detach().to(v.dtype).requires_grad_() for each in (q, k, v)]
            several = q.shape[1] != k.shape[1]
            attend = torch.nn.functional.scaled_dot_product_attention
            made = attend(*factors, is_causal=causal, scale=scale, enable_gqa=several)
            made = torch.autograd.grad(made, factors, da.to(v.dtype))
    else:
        factors = [each.to(v.dtype) for each in (da, q, k, v, a)]
        if v.is_cuda:
            unused = torch.empty(0, dtype=torch.int64, device=v.device)  # the state of random numbers, of dropout alone
            lengths = None, None, q.shape[2], k.shape[2]
            flash = torch.ops.aten._scaled_dot_product_flash_attention_backward
            made = flash(*factors, sums, *lengths, 0.0, causal, unused, unused, scale=scale)
        else:
            flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
            made = flash(*factors, sums, 0.0, causal, scale=scale)
    for gradient, each in zip((dq, dk, dv), made):
        gradient.copy_(each)
''',
    "tanh": '''\
@triton.jit
def tanh(x):
    """The hyperbolic tangent; near 0, where a difference would lose digits, by its series."""
    power = tl.exp(-2.0 * tl.abs(x))
    large = tl.where(x < 0, -1.0, 1.0) * (1.0 - power) / (1.0 + power)
    square = x * x
    series = x * (1.0 + square * (-1.0 / 3 + square * (2.0 / 15 + square * (-17.0 / 315 + square * 62.0 / 2835))))
    return tl.where(square < 0.0025, series, large)
''',
    "log1p": '''\
@triton.jit
def log1p(x):
    """log(1 + x), exact where x is small (Goldberg 1991, theorem 4)."""
    one = 1.0 + x
    return tl.where(one == 1.0, x, x * tl.log(one) / tl.where(one == 1.0, 1.0, one - 1.0))
''',
    "expm1": '''\
@triton.jit
def expm1(x):
    """exp(x) - 1, exact where x is small (Kahan, in Higham 2002, section 1.14.1)."""
    power = tl.exp(x)
    near = tl.where((tl.abs(x) < 0.5) & (power != 1.0), power, 2.0)
    return tl.where(power == 1.0, x, tl.where(tl.abs(x) < 0.5, (near - 1.0) * x / tl.log(near), power - 1.0))
''',
    "power": '''\
@triton.jit
def power(x, z):
    """x to the power z: of a negative x only where z is whole."""
    size = tl.where(z == 0.0, 1.0, tl.exp2(z * tl.log2(tl.abs(x))))
    odd = z - 2.0 * tl.floor(z / 2.0) == 1.0
    negative = tl.where(tl.floor(z) == z, tl.where(odd, -size, size), float("nan"))
    return tl.where(x < 0.0, negative, size)
''',
    "hashed|coin": '''\
@triton.jit
def mixed(x, z):
    """A hash of two whole numbers, of 32 bits."""
    hash = (tl.cast(x, tl.int64) * 0x9E3779B1 + tl.cast(z, tl.int64)) & 0xFFFFFFFF
    for _ in tl.static_range(2):
        hash = ((hash ^ (hash >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
    return hash ^ (hash >> 16)


@triton.jit
def hashed(x, z):
    return (mixed(x, z) >> 8).to(tl.float32)


@triton.jit
def coin(x, z):
    return 1.0 - 2.0 * (mixed(x, z) >> 31).to(tl.float32)
''',
    "dot_bf16": '''\
INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def dot_bf16(left, right, sums):
    """sums + left right, of factors in bf16; as fp32 in Triton's interpreter, which multiplies the bits of bf16."""
    left, right = left.to(tl.bfloat16), right.to(tl.bfloat16)
    if INTERPRETED:
        left, right = left.to(tl.float32), right.to(tl.float32)
    return tl.dot(left, right, sums)
''',
    "add_parts": '''\
@triton.jit
def add_parts(parts, totals, sizes, number):
    """Of each total: total[i] = sum over p of parts[p i], always in the same order."""
    i = tl.program_id(0) * 32 + tl.arange(0, 32)[None, :]
    for each in tl.static_range(len(parts)):
        part, size = parts[each], sizes[each]
        sums = tl.zeros([1, 32], part.dtype.element_ty)
        for first in range(0, number, 64):
            p = first + tl.arange(0, 64)[:, None]
            some = tl.load(part + p * size + i, mask=(p < number) & (i < size), other=0.0)
            sums += tl.sum(some, 0, keep_dims=True)
        tl.store(totals[each] + i, sums, mask=i < size)
''',
    "group_rows": '''\
def group_rows(expert, experts, tile):
    """Return rows in the order of their experts, the expert and first row of every tile, and the first row of experts.

    The last tiles may be empty: how many there are does not depend on the numbers, as a CUDA graph needs it.
    """
    expert = expert.view(-1)
    order = torch.argsort(expert, stable=True)
    begins = torch.searchsorted(expert[order], torch.arange(experts + 1, device=expert.device))
    several = (begins.diff() + tile - 1) // tile
    tiles = torch.arange(-(-len(order) // tile) + experts, device=expert.device)
    ends = several.cumsum(0)
    expert_of = torch.searchsorted(ends, tiles, right=True).clamp(max=experts - 1)
    return order, expert_of, begins[expert_of] + (tiles - (ends - several)[expert_of]) * tile, begins
''',
}
"""The functions of kernels by their names."""

MAIN = '''\
def device():
    """The device of the step: CUDA, or the CPU under TRITON_INTERPRET=1."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if not torch.cuda.is_available():
        refuse("PyTorch finds no CUDA device; with TRITON_INTERPRET=1 the kernels run slowly on the CPU")
    if torch.cuda.get_device_capability() < (8, 0):
        refuse(f"{torch.cuda.get_device_name()} has a lower compute capability than 8.0, that of an A100")
    return "cuda"


def registers(target):
    """Compile every kernel ahead of time, and print its registers and the bytes that it spills; for sm_80, sm_90."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if os.environ.get("TRITON_INTERPRET") == "1":
        refuse("TRITON_INTERPRET=1 interprets kernels: unset it to compile them")
    if target not in ("sm_80", "sm_90"):
        refuse(f"{target} is not sm_80 or sm_90")
    assembler = os.path.join(os.path.dirname(triton.__file__), "backends", "nvidia", "bin", "ptxas")
    for kernel, warps in WARPS.items():
        signature = {parameter.name: parameter.annotation for parameter in kernel.params}
        aligned = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if "*" in kind}
        source = ASTSource(kernel, signature, {}, aligned)
        code = triton.compile(source, target=GPUTarget("cuda", int(target[3:]), 32), options={"num_warps": warps})
        with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
            file.write(code.asm["ptx"])
            file.flush()
            gpu = "sm_90a" if target == "sm_90" else target
            command = [assembler, "-v", f"--gpu-name={gpu}", file.name, "-o", os.devnull]
            log = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        words = log.replace(",", "").split()
        used, spilled = int(words[words.index("registers") - 1]), int(words[words.index("spill") - 2])
        print(f"{target} {kernel.__name__}: {used} registers, {spilled} bytes spilled, {warps} warps")


def captured(m, kernels=KERNELS):
    """The step as a CUDA graph: a function that takes a step. One step is taken before, in which kernels compile.

    It runs on a side stream, as before every capture. Views of `given` and of the arena stay where they are; what
    libraries allocate in the capture lies in the graph's pool.
    """
    side, stream = torch.cuda.Stream(), torch.cuda.current_stream()
    side.wait_stream(stream)
    with torch.cuda.stream(side):
        step(m, kernels)
    stream.wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step(m, KERNELS)
    return graph.replay


def main(arguments):
    if arguments[:1] == ["--compile"]:
        for target in arguments[1:] or ("sm_80", "sm_90"):
            registers(target)
        return
    if arguments == ["--deterministic"]:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without which cuBLAS refuses
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # nothing is read before it is written
    elif arguments:
        refuse(f"{arguments[0]} is no option: --deterministic, --compile [sm_80] [sm_90], or none")
    where = device()
    size = BYTES + sum(math.prod(shape) * kind.itemsize for shape, kind in GIVEN.values())
    size += sum(2 * math.prod(GIVEN[weight][0]) for weight in COPIES.values())
    if where == "cuda" and size > (free := torch.cuda.mem_get_info()[0]):
        refuse(f"the step takes {size:,} bytes, and {free:,} are free: emit it for a smaller batch, or recompute")
    given = {}
    for name, (shape, kind) in GIVEN.items():
        given[name] = torch.full(shape, 0.01 if kind.is_floating_point else 0, dtype=kind, device=where)
    given |= {name: given[weight].bfloat16() for name, weight in COPIES.items()}
    m = lay_out(given, torch.empty(BYTES, dtype=torch.uint8, device=where))
    if where == "cpu":
        step(m, KERNELS)
    else:
        replay = captured(m)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(12)]
        for mark in marks:
            mark.record()
            replay()
        torch.cuda.synchronize()
        times = sorted(one.elapsed_time(other) for one, other in zip(marks, marks[1:]))
        print(f"{torch.cuda.get_device_name()}: {times[5]:.3f} ms a step, {torch.cuda.max_memory_allocated():,} bytes")
    print(f"arena {BYTES:,} bytes; the numbers of this run are made up")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (triton.TritonError, RuntimeError, subprocess.CalledProcessError) as error:
        refuse(f"the kernels do not run here: {str(error).strip().splitlines()[-1]}")
'''

"""Steps in Triton: NumPy's numbers in Triton's interpreter, one file without learncost, compiled without a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import learncost as lc
from learncost.backends.expression import spelled
from learncost.backends.triton import attention, blocks, in_triton, kernel
from learncost.cli.command import main
from learncost.interpreter import execute
from learncost.ir.affine import Affine, AffineTerm
from learncost.ir.line import Meta, Op
from learncost.ir.polynomial import base
from learncost.ir.table import Table
from learncost.ir.term import Read, Term
from learncost.models.configuration import configure
from learncost.models.families import FAMILIES
from learncost.models.model import build, lengths_open, run_sizes
from learncost.models.small import small
from learncost.passes.lower import lower
from learncost.passes.plan import planned
from learncost.procedures.optimizer import without_gradients
from learncost.procedures.step import step
from learncost.reports.memory.planner import chosen
from learncost.verification.sample import random_arrays
from test_emit_c99 import CONVOLUTION, GPT2, LLAMA, MLP, RECURRENCE, VIT

pytest.importorskip("torch")
pytest.importorskip("triton")

RUN = """
import runpy, sys
sys.modules["learncost"] = None  # an import of it fails
import numpy, torch, triton.runtime.interpreter
from triton.language import bfloat16, float32

def rounded(array, source, target, mode, convert=triton.runtime.interpreter._convert_float):
    if (source, target) != (float32, bfloat16):
        return convert(array, source, target, mode)
    return torch.from_numpy(numpy.array(array)).bfloat16().view(torch.uint16).numpy()

triton.runtime.interpreter._convert_float = rounded  # it cuts off where a GPU rounds
for name in sys.argv[1:]:
    file = runpy.run_path(name + ".py")
    arrays = numpy.load(name + ".npz")
    given = {key: torch.from_numpy(arrays[key]).to(kind).reshape(form) for key, (form, kind) in file["GIVEN"].items()}
    copies = {key: given[weight].bfloat16() for key, weight in file["COPIES"].items()}
    m = file["lay_out"](given | copies, torch.full((file["BYTES"],), 255, dtype=torch.uint8))
    file["step"](m, file["KERNELS"])
    assert (name == "bf16") == bool(copies)  # the optimizer writes them with the weights
    assert all(torch.equal(copies[key], given[weight].bfloat16()) for key, weight in file["COPIES"].items())
    made = {key: value for key, value in vars(m).items() if torch.is_tensor(value) and value.dtype != torch.bfloat16}
    numpy.savez(name, **{"made " + key: value.numpy() for key, value in made.items()}, **given)
"""


TRAIN = """
del sys.modules["learncost"]
import re
import learncost
from learncost.engines import in_triton
from learncost.engines.options import Options
from learncost.models.configuration import configure
from learncost.training.engine import engine

configuration = configure("gpt2", dict(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=7))
draw = numpy.random.default_rng(0)
batch = dict(tokens=draw.integers(0, 11, (2, 7)), targets=draw.integers(0, 11, (2, 7)))
plan = "flash,fused,multi-tensor-update,chunked-loss"

def begun(dtype="fp64", **options):
    return engine(configuration, Options(optimizer="adamw", dtype=dtype, **options))

exact, gpu = begun(engine="numpy"), begun(engine="torch", device="cuda", plan=plan)
losses = [[each.step(batch, 0.01) for _ in range(2)] for each in (exact, gpu)]
numpy.testing.assert_allclose(losses[1], losses[0], rtol=1e-12)
for name, array in gpu.weights.items():
    numpy.testing.assert_allclose(array, exact.weights[name], atol=1e-9, err_msg=name)
assert gpu.says == f"engine torch, plan {plan}, kernels in Triton on cpu"  # the library has no attention in fp64
there = learncost.memory(configuration, engine="cuda", plan=plan, batch_size=2, seq_len=7, dtype="fp64").split
assert gpu.memory == sum(there.values()) - there["workspaces"]
low, again = (
    begun("bf16-masters", engine="torch", device="cuda", plan=plan, deterministic=chosen) for chosen in (False, True)
)
loss = low.step(batch, 0.01)
assert abs(loss / losses[0][0] - 1) < 0.01 and again.step(batch, 0.01) == loss
of_attention = "attention_scores_backward"
assert low.says == f"{gpu.says}, not deterministic: {of_attention}"
said = re.search("Triton on cpu, deterministic, which costs -?[0-9.e-]+ ms a step in (.*)", again.says)
assert said[1] == of_attention, again.says
assert not torch.are_deterministic_algorithms_enabled()
low.load(exact.weights, {name: 0 * array for name, array in exact.state.items()}, 0)
lower = [low.step(batch, 0.01) for _ in range(2)]
pool = low._runner.pool
assert len(pool.copies) == 7 and abs(lower[0] / exact.loss(batch) - 1) < 0.01 and lower[1] < lower[0]
for name, copy in pool.copies.items():
    assert torch.equal(copy, pool.tensors[name].bfloat16()), name
there = learncost.memory(
    configuration, engine="cuda", plan=plan, batch_size=2, seq_len=7, precision="bf16-masters", optimizer="adamw"
).split
assert low.memory == sum(there.values()) - there["workspaces"]
resumed = begun(engine="numpy")  # what a checkpoint holds moves to another device
resumed.load(gpu.weights, gpu.state, gpu.steps)
numpy.testing.assert_allclose(resumed.step(batch, 0.01), exact.step(batch, 0.01), rtol=1e-12)
in_triton.free_bytes = lambda device: 67150000
try:
    begun(engine="torch", device="cuda", plan="").step(batch, 0.01)
    raise AssertionError("a step that does not fit was run")
except learncost.InputError as error:
    assert "has 67,150,000 free: give --plan flash,fused,fused-update" in str(error), error
"""

MODULES = """
import torch
import torch.utils._python_dispatch
from torch.library import opcheck
import learncost.torch as lt
from learncost.torch import passes

TINY = dict(n_layer=2, n_embd=8, n_head=2, vocab_size=11, n_positions=8)
draw = torch.Generator().manual_seed(0)
tokens = torch.randint(0, 11, (2, 6), generator=draw)
x = torch.randn(2, 5, 6, dtype=torch.float64, generator=draw)

def gradients(make, run, way=lambda module: module):
    torch.manual_seed(0)
    module, leaf = make(), x.clone().requires_grad_()
    result = run(way(module), leaf)
    result.double().square().sum().backward()
    return [result.detach(), leaf.grad, *(each.grad for each in module.parameters())]

of_layer = (lambda: lt.layer("attention", d=6, h=2, k=3, dtype=torch.float64), lambda module, x: module(x, x, x))
of_model = (lambda: lt.model("gpt2", **TINY, dtype=torch.float64),
            lambda module, x: module(tokens[:, :-1], tokens[:, 1:].clone()))
low = (lambda: lt.model("gpt2", **TINY), of_model[1])
found = [gradients(*case) for case in (of_layer, of_model)]
with torch.autocast("cpu", dtype=torch.bfloat16):
    found.append(gradients(*low))
assert len(passes.REGISTERED) == 6  # forward and backward of each
chosen, passes.precision_of_kernels = passes.precision_of_kernels, lambda like: ""
for case, made, near in zip((of_layer, of_model, low), found, (1e-12, 1e-12, 0.03)):
    for one, other in zip(made, gradients(*case)):
        torch.testing.assert_close(one, other, rtol=0, atol=near, check_dtype=False)
"""

COMPILED = (
    MODULES
    + """
passes.precision_of_kernels = chosen
calls = {}

class Noted(torch.utils._python_dispatch.TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "learncost":
            calls[function] = arguments
        return function(*arguments, **(keywords or {}))

with Noted():
    gradients(*of_model)
assert len(calls) == 2
for function, (tensors, lengths) in calls.items():
    opcheck(function, ([each.detach() for each in tensors], lengths))
for case, made in zip((of_layer, of_model), found):
    compiled = gradients(*case, lambda module: torch.compile(module, fullgraph=True, backend="aot_eager"))
    for one, other in zip(compiled, made):
        torch.testing.assert_close(one, other)
"""
)

COMPILE = """
import numpy, torch, learncost
class Block(torch.nn.Module):  # one projection to queries, keys and values, as GPT-2's
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = torch.nn.LayerNorm(16), torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)
    def forward(self, x):
        q, k, v = (part.view(*x.shape[:2], 2, 8).transpose(1, 2) for part in self.qkv(self.norm(x)).split(16, 2))
        a = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(a.transpose(1, 2).flatten(2))

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.first, self.head = torch.nn.Linear(16, 16), torch.nn.Linear(16, 4)
    def forward(self, x, y):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return torch.nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())

net = Net().double()
inputs = {"x": "float B 5 16", "y": "int B 5"}
"""
TRAINED = (
    COMPILE
    + """
step = learncost.compile(net, inputs, learning_rate=0.01, precision="fp64", device="cuda")
autograd = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
x, y = torch.randn(3, 5, 16, dtype=torch.float64), torch.arange(15).view(3, 5) % 4
class OnGPU(torch.Tensor):  # as its numbers stay there, nothing asks for them on the host
    is_cuda = True
    def cpu(self):
        raise AssertionError("copied to the host")
    numpy = __array__ = cpu

for _ in range(2):
    autograd.zero_grad()
    loss = net(x, y)
    loss.backward()
    autograd.step()
    found = step(x.as_subclass(OnGPU), y)
    assert found.shape == ()  # stays on the device
    numpy.testing.assert_allclose(found, loss.item(), rtol=1e-12)
for path, array in step.state_dict().items():
    torch.testing.assert_close(array, net.state_dict()[path], rtol=0, atol=1e-9)
assert "in Triton" in step.says
there = learncost.memory(step.layer, engine="cuda", B=3, dtype="fp64").split
assert step.memory == sum(there.values()) - there["workspaces"]
"""
)


PRINTED_ANEW = kernel._printed.__wrapped__  # without what was printed under other limits
NEAR = {"fp64": 1e-10, "fp32": 1e-4, "bf16-masters": 0.02}
"""The largest difference, over the largest element if that is more than 1."""


def _step(
    subject: Any, overrides: Any, optimizer: str, plan: str, batch: int, length: int | None, dtype: str = "fp64"
) -> tuple[Table, Any, str]:
    model = build(configure(subject, overrides))
    table = planned(without_gradients(step(model, "bp", optimizer)), plan, model.sizes)
    return table, run_sizes(model, batch, length, None), dtype


def _compare(cases: Mapping[str, tuple[Table, Any, str]], folder: Path, after: str = "") -> None:
    """Compare every output of steps, loss and new weights among them, with the interpreter of tables.

    after  what the process does at its end
    """
    expected = {}
    for name, (table, sizes, dtype) in cases.items():
        with pytest.MonkeyPatch.context() as patch:
            for limit, number in LIMITS.get(name, {}).items():
                patch.setattr(blocks, limit, number)
                patch.setattr(kernel, "_printed", PRINTED_ANEW)
            text = in_triton(table, sizes, dtype, name).text
        assert name not in CASES or ("group_rows" in text) == (name == "mixtral")  # whose rows are sorted by experts
        assert ("attn_A_sums" in text) == (name == "bf16")  # sums of rows that flash attention hands on
        assert name not in CASES or ("library_attention(" in text) == (name in ("bf16", "vit"))
        found = "for start in range" in text, "By PyTorch's operators" in text
        assert found[1] == (name == "operators")
        assert name not in LIMITS or found[0] == (name != "operators")
        defined = re.findall(r"^def (\w+)", text, re.MULTILINE)
        assert len(defined) == len({*defined})
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
        arrays = random_arrays(table, sizes)
        if dtype != "fp64":  # weights as small as those of a model, of which bf16 keeps three digits
            arrays |= {weight: 0.1 * np.asarray(arrays[weight]) for weight in table.weights}
        np.savez(folder / f"{name}.npz", **{key: np.asarray(array) for key, array in arrays.items()})
        expected[name] = dict(arrays)
        execute(lower(table), expected[name], sizes)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", RUN + after, *cases], cwd=folder, env=environment, check=True)
    for name, (table, _, dtype) in cases.items():
        found = np.load(folder / f"{name}.npz")
        old = {new: weight for weight, new in table.renewed.items()}
        for output in table.outputs:
            array = found[old[output]] if output in old else found[f"made {spelled(output)}"]
            right = np.asarray(expected[name][output])
            near = NEAR[dtype] * max(1.0, np.abs(right).max())
            np.testing.assert_allclose(
                array.reshape(right.shape), right, atol=near, rtol=0, err_msg=f"{name}: {output}"
            )


EXPERTS = f"""\
{"experts_" * 15}(X targets share; W O) -> loss
  targets: index of v
  share: share of targets
  constants: X
  sizes: d=5 e=6 t=2 v=4
  V[B d] = 1000[] X[B d]
  N[B d] = hashed(V[B d], 7[])
  K[B d] = coin(N[B d], V[B d])
  D[B d] = X[B d] + K[B d]
  L[B e] = D[B d] W[d e]
  C[B t] = topk[e](L[B e])
  U[B e] = cumsum[e](L[B e])
  A[B e] = cumsum[e](U[B e])
  G[B t] = A[B e=C[B t]]
  S[B] = sum[t](G[B t])
  Z[B v] = S[B] O[v]
  P[B v] = log_softmax[v](Z[B v])
  T[B] = P[B v=targets[B]]
  loss[] = T[B] share[B]
"""
ONE = {"num_hidden_layers": 1}
WIDE = VIT | ONE | {"hidden_size": 16}
CASES = {
    "mlp": (lc.layer(MLP), {}, "adamw", "fused", 5, None),
    "convolution": (lc.layer(CONVOLUTION), {}, "momentum", "fused", 3, None),
    "recurrence": (lc.layer(RECURRENCE), {}, "sgd", "fused,fused-update", 3, None),
    "vit": ("vit-b-16", WIDE, "momentum", "flash,fused,multi-tensor-update,recompute=gelu+affine", 3, None, "fp32"),
    "mistral": ("mistral-7b", LLAMA | ONE | {"sliding_window": 3}, "sgd", "fused", 2, 7),
    "bf16": ("llama-3-8b", LLAMA | ONE | {"head_dim": 8}, "sgd", "flash,fused,epilogue-update", 2, 5, "bf16-masters"),
    "mixtral": ("mixtral-8x7b", LLAMA | ONE | {"num_local_experts": 4}, "adamw", "fused,epilogue-update", 2, 5),
    "experts": (lc.layer(EXPERTS), {}, "sgd", "fused", 5, None),
    "swept": (lc.layer(EXPERTS), {}, "sgd", "fused", 5, None),
    "operators": (lc.layer(EXPERTS), {}, "sgd", "fused", 5, None),
}
"""Sizes that divide no tile; masks, also with a window; heads that share keys; rotation; convolutions, loops."""
LIMITS = {
    "swept": {"LARGEST": 2, "SWEPT": 64},
    "vit": {"LARGEST": 8, "SWEPT": 64},
    "operators": {"LARGEST": 2, "SPILLED": 2, "SWEPT": 0},
}
"""Of `blocks`, under which rows are swept in parts, and kernels are PyTorch's operators."""


@pytest.mark.one_in(every=2)
@pytest.mark.parametrize("names", ["mlp convolution recurrence experts swept operators", "vit mistral mixtral bf16"])
def test_every_output_is_that_of_the_interpreter(names: str, tmp_path: Path) -> None:
    """The files run in a process that cannot import learncost; then GPT-2 learns there by `--device cuda`."""
    _compare({name: _step(*CASES[name]) for name in names.split()}, tmp_path, TRAIN if "mlp" in names else "")


@pytest.mark.parametrize(("op", "right"), [("cumsum", ("2",)), ("topk", ("e",))])
def test_an_axis_without_a_name_is_no_number_in_a_condition(op: str, right: tuple[str, ...]) -> None:
    """As of two blocks that learn from directions: positions along 2 were compared with 2."""
    line = Op((Term("Y", ("2",)),), (Term("X", right),), (), Meta(), op, right)
    conditions = [each for made in kernel.counted(line, kernel.MARK) for each in made.where]
    assert conditions
    assert all(side.endswith(kernel.MARK[:2]) for each in conditions for side in (each.lower, each.upper))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_that_of_the_interpreter(family: str, tmp_path: Path) -> None:
    configuration = small(family)
    lengths = lengths_open(configuration, 6, 5)
    model = build(configuration)
    sizes = run_sizes(model, 2, *lengths)
    table = without_gradients(step(model, "bp", "momentum"))
    table = planned(table, chosen(table, sizes, "fp64"), sizes)
    _compare({family: (table, sizes, "fp64")}, tmp_path)


def test_a_kernel_compiles_without_a_gpu_and_the_step_needs_one(tmp_path: Path) -> None:
    """Registers and spills of one kernel for two targets; one line and exit code 2 for what a GPU lacks."""
    table, sizes, _ = _step(*CASES["mlp"])
    (tmp_path / "step.py").write_text(in_triton(table, sizes, "fp32", "mlp").text, encoding="utf-8")
    run = """
import os, runpy
os.environ.pop("TRITON_INTERPRET", None)
file = runpy.run_path("step.py")
kept = dict([*file["WARPS"].items()][1:2])
file["WARPS"].clear()
file["WARPS"].update(kept)
file["main"](["--compile"])
cuda = file["torch"].cuda
cuda.get_device_name, cuda.mem_get_info = lambda: "Tesla T4", lambda: (1000, 1000)
for capability, there in ((7, 5), True), ((9, 0), True), ((9, 0), False):
    cuda.get_device_capability, cuda.is_available = lambda: capability, lambda: there
    try:
        file["main"]([])
    except SystemExit as stopped:
        assert stopped.code == 2
"""
    found = subprocess.run([sys.executable, "-c", run], cwd=tmp_path, capture_output=True, text=True, check=False)
    for line, target in zip(found.stdout.splitlines(), ("sm_80", "sm_90"), strict=True):
        assert re.fullmatch(rf"{target} \w+_kernel: \d+ registers, 0 bytes spilled, 4 warps", line)
    old, small, none = found.stderr.splitlines()
    assert old == "Tesla T4 has a lower compute capability than 8.0, that of an A100"
    assert re.fullmatch(
        r"the step takes [\d,]+ bytes, and 1,000 are free: emit it for a smaller batch, or recompute", small
    )
    assert none == "PyTorch finds no CUDA device; with TRITON_INTERPRET=1 the kernels run slowly on the CPU"


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_the_kernels_of_every_family_compile_without_a_gpu(family: str, tmp_path: Path) -> None:
    """Registers and spilled bytes of every kernel in bf16 for two targets, which `-s` shows."""
    configuration = small(family)
    model, lengths = build(configuration), lengths_open(configuration, 6, 5)
    sizes = run_sizes(model, 2, *lengths)
    table = without_gradients(step(model, "bp", "adamw"))
    table = planned(table, chosen(table, sizes, "bf16-masters"), sizes)
    (tmp_path / "step.py").write_text(in_triton(table, sizes, "bf16-masters", family).text, encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "step.py", "--compile", "sm_80", "sm_90"]
    found = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    print(f"{family}\n{found.stdout}")
    assert found.returncode == 0, found.stderr
    kernels = re.findall(r"^    \w+_kernel(?:_\d+)?: \d+,$", (tmp_path / "step.py").read_text(encoding="utf-8"), re.M)
    assert len(found.stdout.splitlines()) == 2 * len(kernels) > 0


def test_the_engine_cuda_is_the_emitted_file() -> None:
    """The arena is the file's; the FLOPs of products in kernels are those of the price book, also in tiles."""
    own = LLAMA | ONE | {"sliding_window": 3}  # attention with a window is not the library's
    asked = {"batch_size": 2, "seq_len": 7, "precision": "bf16-masters", **own}
    found = lc.memory("mistral-7b", engine="cuda", **asked)
    assert isinstance(found, lc.Memory)
    file = lc.emit("mistral-7b", "triton", plan=found.plan, **asked)
    assert f"\nBYTES = {found.split['arena']}\n" in file
    assert found.peak == sum(found.split.values())
    took = lc.cost("mistral-7b", engine="cuda", on="H100-SXM", plan=found.plan, optimizer="adamw", **asked).recorded
    assert took is not None
    assert took.took is not None
    model = build(configure("mistral-7b", own))
    sizes = run_sizes(model, 2, 7, None)
    table = planned(without_gradients(step(model, "bp", "adamw")), found.plan, model.sizes)
    assert took.took.flops == lc.price(table, sizes, "matmul").flops
    assert took.low < took.seconds < took.high
    compared = lc.compare("mistral-7b", procedures="bp", engine="cuda", on="H100-SXM", plan=found.plan, **asked)
    assert isinstance(compared, lc.Comparison)
    assert compared.costs["run"]["bp"].time == took.seconds
    assert "never been measured" in " ".join(took.notes())


@pytest.mark.parametrize("head", [2, 8])
def test_attention_is_the_librarys_where_it_has_no_window(head: int) -> None:
    """The arena has no scores then; what the library allocates in its backward pass is counted by hand.

    Flash attention has heads of 8, whose output and sums of rows forward hands on: backward does not make them again.
    """
    asked = {"batch_size": 2, "seq_len": 64, "plan": "flash", "precision": "bf16-masters", "optimizer": "sgd"}
    plain, windowed = (
        lc.memory(name, engine="cuda", **asked, **LLAMA | ONE | {"head_dim": head} | more).split
        for name, more in (("llama-3-8b", {}), ("mistral-7b", {"sliding_window": 3}))
    )
    rows, width, shared = 2 * 64 * 4, head, 2  # of queries, each of a head's width; keys and values have fewer heads
    queries, keys = rows * width, rows * width // shared
    output, casts, gradients = 2 * queries + 4 * rows, 2 * (queries + keys), 2 * (queries + 2 * keys)
    again = output if head == 2 else 0
    assert windowed["workspaces"] == 2 * 2**25
    assert plain["workspaces"] - windowed["workspaces"] == again + casts + gradients + 4 * (queries + rows)
    assert windowed["arena"] - plain["arena"] >= 4 * rows * 60
    took = lc.cost("llama-3-8b", engine="cuda", on="H100-SXM", **asked, **LLAMA | ONE | {"head_dim": head}).recorded
    assert took is not None
    assert took.by_kind["attention"].kernels == 4 + (head == 2)  # forward, three of backward; forward again


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"precision": "int8"}, "supports only fp32 or fp64 or bf16-masters: give engine='graph'"),
        ({"on": "raspberry-pi-5"}, "requires a GPU in on"),
        ({"on": "RTX-4090"}, "the kernels of a step are timed on NVIDIA H100"),
        ({"procedure": "decode", "context": 2}, "runs training steps on one GPU: give engine='graph'"),
    ],
)
def test_what_the_engine_cuda_lacks_names_one_that_has_it(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(lc.InputError, match=message):
        lc.cost("gpt2", **{"engine": "cuda", "on": "H100-SXM", "seq_len": 7, **GPT2, **asked})


@pytest.mark.parametrize(
    ("axes", "subscripts"),
    [
        (("B", "M", "h", "k"), "bmhk->bhmk"),
        (("B", "h", "M'", "k"), "bhmk->bhmk"),
        (("M", "B", "h", "k"), "mbhk->bhmk"),
        (("B", "M", Read("n", Affine((AffineTerm(2),))), "h", "k"), "bmhk->bhmk"),
        (("B", "M", "1", "h", "k"), "bmhk->bhmk"),
        (("B", "h", "k", "M"), ""),  # a head's width is not adjacent
    ],
)
def test_views_of_attention_are_those_of_einsum(axes: Any, subscripts: str) -> None:
    """Also where queries, keys and values are parts of one array, as in modules with one projection to all of them."""
    import torch

    sizes = {"B": 2, "M": 5, "h": 3, "k": 4, "n": 3}
    found = attention._view(Term("a", axes), ("B", "h", "M", "M'"), sizes)
    assert (found is None) == (not subscripts)
    if found is not None:
        shape = [sizes.get(base(axis.axis if isinstance(axis, Read) else axis), 1) for axis in axes]
        a = torch.arange(np.prod(shape)).view(*shape)
        part = a[:, :, 2] if any(isinstance(axis, Read) for axis in axes) else a.squeeze()
        assert torch.equal(eval(f"a{found[1]}", {"a": a.flatten()}), torch.einsum(subscripts, part))
        assert found[0] == (2, 3, 5, 4)


@pytest.mark.slow
def test_a_module_compiles_to_a_step_in_triton() -> None:
    """Losses, weights and memory of `lc.compile` beside autograd; docs/any-module.md has the same on a CPU."""
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    subprocess.run([sys.executable, "-c", TRAINED], env=environment, check=True)


@pytest.mark.parametrize("text", [MODULES, pytest.param(COMPILED, marks=pytest.mark.slow)], ids=["eager", "compiled"])
def test_modules_call_the_kernels(text: str) -> None:
    """Values and gradients of a layer and a model beside PyTorch's operators, also under autocast and torch.compile."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([sys.executable, "-c", text], env=environment, check=True)


def test_a_step_is_one_cuda_graph_for_each_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run on a side stream, a capture, replays; batches go into the tensors that were captured. CUDA is a stub."""
    import torch

    from learncost.engines import in_triton

    events: list[str] = []

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            events.append(f"{self.name} waits for {other.name}")

    @contextmanager
    def within(what: Any) -> Iterator[None]:
        events.append(f"on {what.name}" if isinstance(what, Stream) else "capture")
        yield
        events.append("end")

    def names(text: str, names_of: Any = in_triton.names_of) -> dict[str, Any]:
        namespace: dict[str, Any] = names_of(text)
        namespace["step"] = lambda *_: events.append("step")  # which `captured` of the file calls
        return namespace

    def run(step: Any, inner: Any = in_triton.StepInTriton._run) -> None:
        step.device = "cuda"
        inner(step)

    graph = SimpleNamespace(replay=lambda: events.append("replay"))
    stubs = {"Stream": Stream, "current_stream": lambda: Stream("current"), "stream": within, "graph": within}
    for name, stub in {**stubs, "CUDAGraph": lambda: graph, "device": lambda _: nullcontext()}.items():
        monkeypatch.setattr(torch.cuda, name, stub)
    monkeypatch.setattr(in_triton, "is_interpreted", lambda: True)
    monkeypatch.setattr(in_triton, "names_of", names)
    monkeypatch.setattr(in_triton.StepInTriton, "_run", run)

    class Line(torch.nn.Linear):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.mse_loss(super().forward(x), y)

    step = lc.compile(Line(2, 1), {"x": "float B 2", "y": "float B 1"}, device="cuda")
    x = torch.arange(12.0).view(6, 2)
    for batch in (x[:3], x[3:], x[:2]):
        assert step(batch, batch[:, :1]).shape == ()
    first = ["side waits for current", "on side", "step", "end", "current waits for side", "capture", "step", "end"]
    assert events == [*first, "replay", *first]
    captured = [each.run._inputs["x"].flatten().tolist() for each in step._runner._steps.values()]
    assert captured == [x[3:].flatten().tolist(), x[:2].flatten().tolist()]


def test_what_a_gpu_lacks_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """No CUDA, another card, a kernel that does not compile, no Triton; a step that does not fit is in `TRAIN`."""
    import torch
    from triton.errors import TritonError

    from learncost.engines import in_triton

    with pytest.raises(lc.InputError, match="--device abacus cannot be used here: "):
        in_triton.check_gpu("abacus")
    monkeypatch.setattr(in_triton, "check_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    with pytest.raises(lc.InputError, match=r"needs compute capability 8.0, that of an A100, and Tesla T4 has 7.5"):
        in_triton.check_gpu("cuda")

    raised: list[Exception] = []

    def refused(*_: Any) -> None:
        raise raised.pop()

    step = object.__new__(in_triton.StepInTriton)
    step.device, step._replay, step._captured, step._memory = "cuda", None, refused, None  # type: ignore[assignment]
    step.deterministic, step._kernels = True, SimpleNamespace()
    step.program = SimpleNamespace(functions=())  # type: ignore[assignment]
    for error, message in (
        (TritonError("at 3:4:\n    tl.dot(a)\nout of resource: shared memory\n"),
         "does not compile in Triton: out of resource: shared memory: give --device cpu"),
        (torch.OutOfMemoryError("CUDA out of memory."), "cuda has no memory left for workspaces: give a smaller"),
        (RuntimeError("cumsum_cuda_kernel does not have a deterministic implementation, but you set"),
         "cumsum_cuda_kernel does not have a deterministic implementation: remove --deterministic"),
    ):  # fmt: skip
        raised.append(error)
        with pytest.raises(lc.InputError, match=message):
            step._run()
    build: dict[str, Any] = {"__name__": "triton.runtime.build", "check_call": subprocess.check_call}
    exec("def captured(*_): check_call(['false'])", build)  # as where no C compiler works
    step._captured = build["captured"]
    with pytest.raises(lc.InputError, match=r"in Triton: Command .* non-zero exit status 1\.: give --device cpu"):
        step._run()
    monkeypatch.setattr(in_triton, "find_spec", lambda name: None)
    with pytest.raises(lc.InputError, match="--device cuda needs Triton: pip install triton"):
        in_triton.check_gpu("cuda")


def test_operators_that_need_too_much_are_named_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's operators allocate what they make, where no block of Triton has a row."""
    from learncost.engines import in_triton
    from learncost.engines.options import Options
    from learncost.training.engine import engine

    for name, stub in {"is_interpreted": lambda: True, "free_bytes": lambda device: 2**26 + 100_000}.items():
        monkeypatch.setattr(in_triton, name, stub)
    for limit, number in LIMITS["operators"].items():
        monkeypatch.setattr(blocks, limit, number)
    monkeypatch.setattr(kernel, "_printed", PRINTED_ANEW)
    tokens = np.zeros((1, 5), int)
    trained = engine(small("mixtral"), Options(engine="torch", device="cuda", optimizer="sgd", dtype="fp32"))
    with pytest.raises(lc.InputError, match=r"bytes .* of them in \w+, which PyTorch's operators"):
        trained.step({"tokens": tokens, "targets": tokens}, 0.01)


def test_what_is_missing_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step.py"
    (tmp_path / "mlp.table").write_text(MLP, encoding="utf-8")
    emit = ["emit", str(tmp_path / "mlp.table"), "--backend", "triton", "--batch-size", "5", "-o", str(path)]
    assert main([*emit, "--dtype", "fp64"]) == 0
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(SystemExit) as stopped:
        exec(compile(path.read_text(encoding="utf-8"), "step.py", "exec"), {"__name__": "__main__"})
    assert stopped.value.code == 2
    assert "triton is not installed" in capsys.readouterr().err
    large = ["emit", "gpt2", "--n-layer", "1", "--vocab-size", "200000", "--seq-len", "8", "--backend", "triton"]
    assert main(large) == 0
    assert "for start in range(0, v, 16384):" in capsys.readouterr().out  # of rows that no program holds
    assert main(["emit", "attention", "--backend", "triton"]) == 2
    assert "--backend triton applies to models" in capsys.readouterr().err

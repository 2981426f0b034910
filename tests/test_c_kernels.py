"""Kernels of whole groups of lines in C, taken from the steps of real models, against the interpreter."""

import ctypes
import platform
from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import MagicMock

import numpy as np
import pytest

import learncost as lc
from kernels_in_c import Case, check, needs_compiler
from learncost.backends.c import KernelLines, kernel, source
from learncost.engines import compiler
from learncost.ir.errors import InputError
from learncost.ir.line import FusedKernel, Line
from learncost.ir.loop import Loop
from learncost.ir.parse import parse_line
from learncost.models.configuration import configure
from learncost.models.model import build
from learncost.procedures.step import step

pytestmark = needs_compiler
TINY = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 11, "num_hidden_layers": 2}
LLAMA = {"model_type": "llama", **TINY, "num_key_value_heads": 1}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 3}
# Beyond the 16 floats of a vector and not multiples of them; no two equal, but M and N of one sequence.
SIZES = {"B": 2, "M": 19, "N": 19, "d": 37, "h": 5, "g": 3, "k": 4, "f": 70, "v": 41, "n_layer": 6, "w": 7}
DTYPES = pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])


@cache
def lines(model, optimizer="sgd"):
    """The step of a model: every line outside of repeats, the repeats forward and backward, and the table."""
    configuration = {"llama": LLAMA, "mistral": MISTRAL}.get(model)
    table = step(build(configure(configuration or model, {} if configuration else TINY)), "bp", optimizer)
    forward, backward = (line for line in table.lines if isinstance(line, Loop))
    outside = [line for line in table.lines if isinstance(line, Line)]
    return outside, forward, backward, table


def group(source, names):
    """The lines of these names, in their order, with the axes that their scope declares."""
    return [line for line in source if line.name in names.split()]


def case(model, where, names, outputs, meta, dtype, blocks=None, rows=("B", "M"), sizes=SIZES, **more):
    outside, forward, backward, table = lines(model, more.pop("optimizer", "sgd"))
    scopes = {"outside": outside, "forward": forward.lines, "backward": backward.lines}
    scopes["both"] = (*forward.lines, *backward.lines)
    inner = {"forward": forward.axes, "backward": backward.axes, "both": {**forward.axes, **backward.axes}}
    found = group(scopes[where], names)
    assert len(found) == len(names.split())
    return Case(
        found,
        {**table.axes, **inner.get(where, {})},
        outputs.split(),
        sizes,
        FusedKernel(meta, rows, blocks),
        dtype,
        **more,
    )


@DTYPES
def test_rows_of_gpt2(dtype):
    """Between the products of a block: bias, residual sum and norm; bias and gelu; their gradients with the biases'."""
    norm = case("gpt2", "forward", "A X.2 ln_2.Z ln_2.U G", "X.2 ln_2.Z ln_2.Z:g G", "residual_norm", dtype)
    gelu = case("gpt2", "forward", "mlp.U mlp.G", "mlp.G", "bias_gelu", dtype, constants=("f",))
    back = case("gpt2", "backward", "dmlp.U dmlp.H dmlp.b1", "dmlp.H dmlp.b1", "gelu_backward", dtype)
    names_made = "dln_2.U dln_2.b dln_2.Z dln_2.g dX.2+2 dX.2 dX+1 dA dattn.Y.linear dattn.bO"
    gains = case("gpt2", "backward", names_made, "dX.2 dln_2.b dln_2.g dattn.bO", "norm_backward", dtype)
    assert ("mlp.H", "mlp.G") in gelu.function.shares  # in place: one pass, and every element is read first
    assert ("X", "X.2") in norm.function.shares
    assert ("dmlp.G", "dmlp.H") in back.function.shares
    check([norm, gelu, back, gains])


@DTYPES
def test_what_is_equal_by_algebra_is_computed_once(dtype):
    """GELU made again beside its gradient, which writes the argument of tanh differently; outputs are all made."""
    kernel_case = case("gpt2", "both", "mlp.G dmlp.U", "mlp.G dmlp.U", "gelu_again", dtype)
    assert kernel_case.function.text.count(f"tanh_{'double' if dtype == 'fp64' else 'float'}(") == 1
    twins = """
        twins(X flip; ) -> V
          Y[B d] = X[B d] + X[B d]
          Z[B d] = 2[] X[B d]
          V[B d] = tanh(Y[B d])
          W[B d] = tanh(Z[B d])
          D[B d] = X[B d] - 0.5[]
          E[B d] = D[B d] D[B d]
          F[B d] = W[B d] E[B d]
          G[B d] = Z[B d=flip[d]] X[B d]
        """
    table = lc.layer(twins).table
    outputs = {"V", "W", "Z", "F", "G"}
    again = Case(table.lines, table.axes, outputs, SIZES, FusedKernel("twins", ("B",)), dtype, {"flip": SIZES["d"]})
    assert set(again.function.writes) == outputs
    check([kernel_case, again, means_over_turns(dtype)])


def means_over_turns(dtype):
    """A sum over turns is multiplied when it is complete, as often as it is priced, and not wherever it is added to."""
    means = """
        means(X Z; ) -> a b c
          U[B M f] = X[B M f] + Z[f]
          R[B M f] = tanh(U[B M f])
          a[B f] = mean[M](R[B M f])
          b[f] = 0.5[] R[B M f] X[B M f]
          c[] = mean[B M f](R[B M f])
        """
    table = lc.layer(means).table
    meta = FusedKernel("means", ("B", "M"))
    made = Case(table.lines, table.axes, {"a", "b", "c"}, SIZES, meta, dtype, constants=("f",))
    text = made.function.text
    iterations = text[text.index("#pragma omp for") : text.index("for (int one")]
    assert "number" not in iterations
    assert "0.5" not in iterations
    return made


@DTYPES
def test_rows_of_llama(dtype):
    """rms_norm, rotary positions (read at an index, and scattered back), the gate of silu and its gradient."""
    names_made = "attn.Q.fixed attn.Q.rotated attn.Q"
    rotary = case("llama", "forward", names_made, "attn.Q", "rotary", dtype, integers={"flip": 4})
    names_made = "dattn.K.fixed dattn.K.rotated dattn.K.unrotated+1 dattn.K.unrotated+2 dattn.K.unrotated"
    back = case("llama", "backward", names_made, "dattn.K.unrotated", "rotary_backward", dtype, integers={"flip": 4})
    norm = case("llama", "forward", "X.2 G.Z G", "X.2 G.Z:g G", "rms_norm", dtype)
    gate = case("llama", "forward", "mlp.G mlp.H", "mlp.H mlp.G", "gate", dtype)
    names_made = "dmlp.G dmlp.V dmlp.U"
    gated = case("llama", "backward", names_made, "dmlp.V dmlp.U", "gate_backward", dtype)
    names_made = "dG dG.Z dln_2 dX.2+2 dX.2"
    gains = case("llama", "backward", names_made, "dln_2 dX.2", "rms_norm_backward", dtype)
    check([rotary, back, norm, gate, gated, gains])


@DTYPES
def test_loss(dtype):
    """log_softmax, the loss and the gradient of the logits, which may lie where the logits lay."""
    names_made = "P loss.T loss dloss.T dP dP.L"
    loss_case = case("gpt2", "outside", names_made, "loss dP.L", "loss", dtype, integers={"targets": 41})
    assert ("P.L", "dP.L") in loss_case.function.shares
    keeping_case = case("gpt2", "outside", names_made, "loss P dP dP.L", "loss_kept", dtype, integers={"targets": 41})
    check([loss_case, keeping_case])


@pytest.mark.one_in(every=2)
@DTYPES
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adamw"])
def test_optimizers(optimizer, dtype):
    """One flat loop over all axes of a stack of weights; new weights and states lie where the old ones lay."""
    outside, _, _, _ = lines("gpt2", optimizer)
    (line,) = group(outside, "mlp.W1.new") or [
        line_found for line_found in outside if "mlp.W1.new" in map(str, line_found.left)
    ]
    outputs = " ".join(term.name for term in line.left)
    optimizer_case = case("gpt2", "outside", line.name, outputs, optimizer, dtype, rows=(), optimizer=optimizer)
    assert ("mlp.W1", "mlp.W1.new") in optimizer_case.function.shares
    assert set(optimizer_case.function.sizes) == {"n_layer", "d", "f"}
    check([optimizer_case])


SCORES, BACK = "attn.R attn.S attn.P", "dattn.P dattn.V dattn.S dattn.R dattn.Q dattn.K"


@pytest.mark.one_in(every=6)
@DTYPES
@pytest.mark.parametrize("model", ["gpt2", "llama", "mistral", "bert-base"])
def test_attention(model, dtype):
    """By blocks of 4 queries of 19, and all at once; causal, grouped, in a window, and all to all."""
    cases = []
    for number, blocks in enumerate([("M", 4), None] if dtype == "fp64" else [("M", 4)]):
        more = {"dtype": dtype, "blocks": blocks, "rows": ("B", "h")}
        outputs = "dattn.Q dattn.K dattn.V"
        cases.append(case(model, "both", f"{SCORES} {BACK}", outputs, f"attention_back_{number}", **more))
        cases.append(case(model, "forward", f"{SCORES} attn.A", "attn.A", f"attention_{number}", **more))
    if dtype == "fp64":  # with the zeros outside of the condition
        keeping_case = case(model, "forward", f"{SCORES} attn.A", "attn.A attn.P", "attention_kept", **more)
        cases.append(keeping_case)
    check(cases)


@pytest.mark.one_in(every=2)
@DTYPES
@pytest.mark.parametrize("model", ["gpt2", "llama"])
def test_attention_back_from_stored_probabilities(model, dtype):
    """Where P was stored, no line ties blocks to keys; what several turns share is the sum of all of them."""
    rows = ("B", "h", "g") if model == "llama" else ("B", "h")
    check([case(model, "backward", BACK, "dattn.Q dattn.K dattn.V", "attention_back", dtype, ("M", 4), rows)])


WIDE = {"B": 1, "h": 2, "g": 2}  # the rest: tiles of 8 rows and 32 columns with rests, pairs with one place over


@pytest.mark.one_in(every=6)
@pytest.mark.parametrize("flags", ["", "-U__AMX_BF16__", "-mno-avx512bf16", "-mno-avx512f", "-mno-avx"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_attention_in_tiles(dtype, flags, monkeypatch):
    """With all that the processor has, and as on machines that have no tiles, no pairs, no AVX-512, no AVX."""
    if flags and platform.machine() != "x86_64":
        pytest.skip("the vectors of x86 are switched off")
    monkeypatch.setenv("CFLAGS", f"-O1 {flags}")
    cases = []
    for model, block, sizes in [
        ("gpt2", 16, {"M": 71, "k": 37}),
        ("gpt2", 7, {"M": 33, "k": 16}),
        ("llama", 32, {"M": 64, "k": 64}),
        ("mistral", 8, {"M": 70, "k": 5, "w": 21}),
        ("bert-base", 24, {"M": 45, "k": 33}),
    ]:
        more = {"dtype": dtype, "blocks": ("M", block), "rows": ("B", "h"), "sizes": {**SIZES, **WIDE, **sizes}}
        outputs = "dattn.Q dattn.K dattn.V"
        cases.append(case(model, "both", f"{SCORES} {BACK}", outputs, f"back_{len(cases)}", **more))
        cases.append(case(model, "forward", f"{SCORES} attn.A", "attn.A", f"forward_{len(cases)}", **more))
    kernels = compiler.CompiledKernels([case.function for case in cases])
    for kernel_case in cases:
        kernel_case.compare(kernels)


def test_attention_by_the_library():
    """In double the products are what was bound: here a function that only counts, then those of PyTorch's library."""
    pytest.importorskip("torch")
    outputs = "dattn.Q dattn.K dattn.V"
    attention_case = case("llama", "both", f"{SCORES} {BACK}", outputs, "by_library", "fp64", ("M", 4), ("B", "h"))
    library = compiler.compiled(source([attention_case.function]))
    kernels = compiler.CompiledKernels([attention_case.function])
    calls = []
    gemm = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 13)(lambda *_: calls.append(1))
    library.bind.argtypes = [ctypes.c_void_p] * 2
    library.bind(None, ctypes.cast(gemm, ctypes.c_void_p))
    attention_case.run(kernels)
    assert len(calls) == 2 * 5 * 3 * 5 * 5  # B h g, five blocks of queries, five products
    check([attention_case])


def test_only_keys_inside_are_touched():
    """Keys outside of every block's bounds may hold anything, also what is no number: they are not read."""
    bounded_case = case("gpt2", "forward", f"{SCORES} attn.A", "attn.A", "bounded", "fp64", ("M", 3), ("B", "h"))
    bounded_case.arrays["attn.V"][:, 6:] = np.nan
    values = bounded_case.run(compiler.CompiledKernels([bounded_case.function]))["attn.A"]
    assert np.isfinite(values[:, :6]).all()
    assert np.isnan(values[:, 6:]).all()


def test_sums_are_the_same_in_every_run():
    """Sums over rows are added in the order of the threads: bit for bit the same, at a size that has threads."""
    _, _, backward, table = lines("gpt2")
    found = group(backward.lines, "dmlp.U dmlp.H dmlp.b1")
    sizes = {**SIZES, "M": 200, "f": 300}
    sums_case = Case(
        found, {**table.axes, **backward.axes}, {"dmlp.H", "dmlp.b1"}, sizes, FusedKernel("sums", ("B", "M")), "fp32"
    )
    kernels = compiler.CompiledKernels([sums_case.function])
    if Path("/proc/self/maps").exists() and "libgomp" in Path("/proc/self/maps").read_text():
        ctypes.CDLL("libgomp.so.1").omp_set_num_threads(2)
    first = sums_case.run(kernels)["dmlp.b1"].copy()
    assert all(np.array_equal(first, sums_case.run(kernels)["dmlp.b1"]) for _ in range(5))
    sums_case.compare(kernels)


def test_a_condition_on_keys_and_a_bias():
    """What rewritings put between scores and softmax: a bias that is read at an index, a mask of keys, dropout."""
    layer = lc.layer(
        """
        masked(Q K V bias keep drop at; ) -> A
        constants: keep drop
          R[B h M N] = Q[B M h k] K[B N h k]
          E[h M N] = bias[p=at[M N] h]
          S[B h M N] = R[B h M N] + E[h M N]
          C[B h M N] = select(keep[B N], S[B h M N], -1000[])
          P[B h M N] = softmax[N](C[B h M N])
          D[B h M N] = P[B h M N] drop[B h M N]
          A[B M h k] = D[B h M N] V[B N h k]
        """
    )
    table = layer.table
    sizes = {**SIZES, "p": 6, "N": 23}
    more = {"integers": {"at": 6}, "masks": ("keep",)}
    meta = FusedKernel("masked", ("B", "h"), ("M", 4))
    check([Case(table.lines, table.axes, {"A"}, sizes, meta, dtype, **more) for dtype in ("fp64",)])


def test_a_sum_lies_where_its_row_was_read():
    """Rows that are read as a whole before anything is written there; in the other order they have to stay."""
    axes = {"G": ("B", "d"), "W": ("t", "d", "d"), "T": ("B", "t")}
    first = [parse_line("E[B t d] = G[B d'] W[t d' d]"), parse_line("F[B d] = T[B t] E[B t d]")]
    again = [*first, parse_line("H[B d] = F[B d] G[B d]")]
    sizes = {**SIZES, "t": 3}
    rows = FusedKernel("mixed", ("B",))
    mixed = Case(first, axes, {"F"}, sizes, rows)
    keeping_case = Case(again, axes, {"F", "H"}, sizes, replace(rows, name="kept"))
    assert ("G", "F") in mixed.function.shares
    assert ("G", "H") in keeping_case.function.shares
    check([mixed, keeping_case])


def test_refusals():
    """Lines that cannot be one function are refused, with the line."""
    axes = {"X": ("B", "d"), "s": (), "Y": ("B", "d"), "Z": ("B", "B")}
    meta = FusedKernel("total", ("B",))
    lines = [parse_line("s[] = X[B d]"), parse_line("Y[B d] = X[B d] s[]")]
    lines = [replace(line, meta=replace(line.meta, kernel=meta)) for line in lines]
    dtypes = dict.fromkeys(axes, "fp32")
    assert kernel(KernelLines(lines[:1], axes, frozenset({"s"}), dtypes, {}, "total")).writes == ("s",)
    with pytest.raises(InputError, match="before all iterations"):
        kernel(KernelLines(lines, axes, frozenset({"Y"}), dtypes, {}, "total"))
    with pytest.raises(InputError, match="fp16, not one of"):
        kernel(KernelLines(lines, axes, frozenset({"Y"}), dtypes | {"X": "fp16"}, {}, "total"))


def test_no_compiler(monkeypatch):
    """Without a compiler there is one clear line."""
    monkeypatch.setenv("CC", "no-such-compiler")
    compiler.compiler.cache_clear()
    try:
        with pytest.raises(InputError, match="CC is no-such-compiler, which does not exist: set it to a C compiler"):
            compiler.compiled("int one(void) { return 1; }")
    finally:
        monkeypatch.undo()
        compiler.compiler.cache_clear()


def test_a_full_disk_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(compiler, "_writable_folder", lambda: tmp_path)
    monkeypatch.setattr(compiler, "_compile", MagicMock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(InputError, match=r"cannot write compiled kernels to .*: No space left on device"):
        compiler.compiled("int one(void) { return 1; }")


def test_a_fault_in_the_text_is_told():
    with pytest.raises(InputError, match=r"could not compile the kernels: .*error"):
        compiler.compiled("int one(void) { return }")

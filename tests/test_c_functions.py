"""exp, tanh, erf and bf16 of the C prelude: their errors over the whole range of floats."""

import ctypes
import math

import numpy as np
import pytest

from kernels_in_c import as_bf16, from_bf16, needs_compiler
from learncost.backends.c import source
from learncost.engines import compiler

pytestmark = needs_compiler
LOOPS = "".join(
    f"void all_{name}(const float *x, float *y, place n) {{ for (place i = 0; i < n; i++) y[i] = {text}; }}\n"
    for name, text in {
        "exp": "exp_float(x[i])",
        "tanh": "tanh_float(x[i])",
        "erf": "erf_float(x[i])",
        "bf16": "from_bf16(to_bf16(x[i]))",
    }.items()
)


@pytest.fixture(scope="module")
def apply():
    library = compiler.compiled(source([]) + LOOPS)

    def call(name, x):
        y = np.empty_like(x)
        function = getattr(library, f"all_{name}")
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_ssize_t]
        function(x.ctypes.data, y.ctypes.data, x.size)
        return y

    return call


def ulps(got, want):
    """Errors in units of the last place of a float of the wanted size."""
    return np.abs(got.astype(np.float64) - want) / np.spacing(np.abs(want).astype(np.float32)).astype(np.float64)


def test_exp(apply):
    x = np.linspace(-87.3, 88.7, 1_000_003, dtype=np.float32)
    assert ulps(apply("exp", x), np.exp(x.astype(np.float64))).max() < 2
    far = apply("exp", np.array([-1e30, -200, -88, 0, 1], np.float32))
    assert far.tolist() == [0, 0, 0, 1, np.float32(math.e)]


@pytest.mark.parametrize(("name", "exact"), [("tanh", np.tanh), ("erf", np.vectorize(math.erf))])
def test_sigmoids(apply, name, exact):
    """Near zero the error is relative as well: x itself, times two over the root of pi for erf."""
    x = np.concatenate([np.linspace(-10, 10, 200_001), np.geomspace(1e-30, 1e-2, 1000)]).astype(np.float32)
    assert ulps(apply(name, x), exact(x.astype(np.float64))).max() < 8
    assert apply(name, np.array([-1e30, 1e30], np.float32)) == pytest.approx([-1, 1], abs=5e-7)


def test_bf16(apply):
    """Every pattern of the upper half with lower halves below, at and above the tie."""
    low = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    bits = (np.arange(0, 0x7F80, 7, dtype=np.uint32)[:, None] << 16 | low).ravel()
    x = bits.view(np.float32)
    assert np.array_equal(apply("bf16", x), from_bf16(as_bf16(x)))
    torch = pytest.importorskip("torch")
    assert np.array_equal(from_bf16(as_bf16(x)), torch.from_numpy(x).bfloat16().float().numpy())

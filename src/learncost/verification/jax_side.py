"""The translation in JAX: values and gradients by JAX's differentiation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from learncost.ir.table import Table
from learncost.verification.foreign import Library, Tensor, evaluate, weighted

# One compilation of a whole table takes much less time than one of each operation, above all without optimizing what
# runs once. A release of JAX that does not know one of the options compiles without them.
_OPTIONS: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_parallel_codegen_split_count": 1,
    "xla_cpu_use_fusion_emitters": False,
}


@lru_cache(maxsize=1)
def library() -> Library:
    """Return JAX's operations."""
    import jax
    import jax.numpy as jnp

    def number(x: Tensor) -> Tensor:
        return x.astype(jnp.float64)

    def scattered(form: Sequence[int], places: tuple[Tensor | int, ...], x: Tensor) -> Tensor:
        return jnp.zeros(tuple(form), x.dtype).at[places].add(x)

    return Library(
        full=lambda form, value: jnp.full(tuple(form), value, jnp.float64),
        arange=jnp.arange,
        floats=number,
        integers=lambda x: jax.lax.stop_gradient(x).astype(jnp.int64),
        permute=lambda x, order: jnp.permute_dims(x, tuple(order)),
        expand=lambda x, form: jnp.broadcast_to(x, tuple(form)),
        einsum=jnp.einsum,
        where=jnp.where,
        stack=jnp.stack,
        scattered=scattered,
        module=jnp,
        order=lambda x: jnp.argsort(jax.lax.stop_gradient(x), -1, stable=True),
        reduced=lambda op, x, axes: {"max": jnp.max, "min": jnp.min}[op](x, axes),
        last={
            "softmax": lambda x, _: jax.nn.softmax(x),
            "log_softmax": lambda x, _: jax.nn.log_softmax(x),
            "normalize": lambda x, epsilon: jax.nn.standardize(x, epsilon=epsilon),
            "rms_normalize": lambda x, epsilon: x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + epsilon),
        },
        ops={
            "erf": jax.lax.erf,
            "stop_gradient": jax.lax.stop_gradient,
            "gelu": lambda x: jax.nn.gelu(x, approximate=False),
            "gelu_tanh": jax.nn.gelu,
            "relu": jax.nn.relu,
            "sigmoid": jax.nn.sigmoid,
            "silu": jax.nn.silu,
            "softplus": jax.nn.softplus,
            "elu": lambda x, a: jnp.where(x > 0, x, a * jnp.expm1(jnp.where(x > 0, 0, x))),
        },
    )


def autograd(
    table: Table,
    arrays: Mapping[str, Any],
    seeds: Mapping[str, Any],
    differentiated: Iterable[str],
    sizes: Mapping[str, int],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return outputs and requested gradients as NumPy arrays, computed on the CPU in float64."""
    import jax

    def outputs(moved: Mapping[str, Tensor], rest: Mapping[str, Tensor], ends: Mapping[str, Tensor]) -> Any:
        values = evaluate(library(), table, {**rest, **moved}, sizes)
        return weighted(table, values, ends), {name: values[name] for name in table.outputs}

    differentiated = set(differentiated)
    moved = {name: array for name, array in arrays.items() if name in differentiated}
    rest = {name: array for name, array in arrays.items() if name not in differentiated}
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        lowered = jax.jit(jax.grad(outputs, has_aux=True)).lower(moved, rest, dict(seeds))
        try:
            compiled = lowered.compile(compiler_options=_OPTIONS)
        except jax.errors.JaxRuntimeError:
            compiled = lowered.compile()
        gradients, values = jax.device_get(compiled(moved, rest, dict(seeds)))
    return {name: np.asarray(value) for name, value in values.items()}, dict(gradients)

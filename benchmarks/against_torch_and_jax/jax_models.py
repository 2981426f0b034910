"""GPT-2 and Llama in JAX as functions of their parameters, written as for speed by hand; AdamW written out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from against_torch_and_jax.settings import activation, refuse
from learncost.models.configuration import Configuration

Parameters = dict[str, jax.Array]

_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "gelu_tanh": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=False),
    "relu": jax.nn.relu,
    "silu": jax.nn.silu,
}


def loss_function(configuration: Configuration, dtype: Any) -> Callable[[Parameters, Any, Any], Any]:
    """The mean loss as a function of parameters (by the names of `packing`), tokens and targets [B, M].

    dtype   of the computation; the parameters are fp32, and so are norms and the loss. Raises InputError.
    """
    refuse(configuration)
    make = {"gpt2": _gpt2, "llama": _llama}[configuration.family]
    logits = make(configuration, activation(configuration.activation, _ACTIVATIONS))

    def loss(parameters: Parameters, tokens: Any, targets: Any) -> Any:
        cast = {name: array.astype(dtype) for name, array in parameters.items()}
        scores = logits(cast, tokens).astype(jnp.float32)
        target_scores = jnp.take_along_axis(scores, targets[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=-1) - target_scores)

    return loss


def _gpt2(configuration: Configuration, activate: Callable[[Any], Any]) -> Callable[[Parameters, Any], Any]:
    sizes, epsilon = configuration.sizes, configuration.layer_norm_epsilon
    heads, head = sizes["num_attention_heads"], sizes["head_dim"]

    def linear(p: Parameters, name: str, x: Any) -> Any:
        return x @ p[f"{name}.weight"].T + p[f"{name}.bias"]

    def norm(p: Parameters, name: str, x: Any) -> Any:
        wide = x.astype(jnp.float32)
        middle = wide - wide.mean(-1, keepdims=True)
        scaled = middle * jax.lax.rsqrt(jnp.square(middle).mean(-1, keepdims=True) + epsilon)
        return (scaled * p[f"{name}.weight"] + p[f"{name}.bias"]).astype(x.dtype)

    def logits(p: Parameters, tokens: Any) -> Any:
        B, M = tokens.shape
        x = p["wte.weight"][tokens] + p["wpe.weight"][:M]
        for block in (f"h.{number}" for number in range(sizes["num_hidden_layers"])):
            qkv = linear(p, f"{block}.attn.c_attn", norm(p, f"{block}.ln_1", x)).reshape(B, M, 3, heads, head)
            a = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
            x = x + linear(p, f"{block}.attn.c_proj", a.reshape(B, M, -1))
            inner = activate(linear(p, f"{block}.mlp.c_fc", norm(p, f"{block}.ln_2", x)))
            x = x + linear(p, f"{block}.mlp.c_proj", inner)
        return norm(p, "ln_f", x) @ p.get("lm_head.weight", p["wte.weight"]).T

    return logits


def _llama(configuration: Configuration, activate: Callable[[Any], Any]) -> Callable[[Parameters, Any], Any]:
    sizes, epsilon = configuration.sizes, configuration.layer_norm_epsilon
    heads, keys, head = sizes["num_attention_heads"], sizes["num_key_value_heads"], sizes["head_dim"]
    theta = configuration.settings["rope_theta"]

    def norm(x: Any, gain: Any) -> Any:
        wide = x.astype(jnp.float32)
        scaled = wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon)
        return (scaled * gain).astype(x.dtype)

    def rotated(x: Any, cosine: Any, sine: Any) -> Any:
        first, second = jnp.split(x, 2, axis=-1)
        return (x * cosine + jnp.concatenate((-second, first), axis=-1) * sine).astype(x.dtype)

    def logits(p: Parameters, tokens: Any) -> Any:
        B, M = tokens.shape
        speeds = theta ** -(jnp.arange(0, head, 2) / head)
        angles = (jnp.arange(M)[:, None] * jnp.concatenate((speeds, speeds)))[:, None, :]
        cosine, sine = jnp.cos(angles), jnp.sin(angles)
        x = p["embed_tokens.weight"][tokens]
        for block in (f"layers.{number}" for number in range(sizes["num_hidden_layers"])):
            normed = norm(x, p[f"{block}.input_layernorm.weight"])
            qkv = (normed @ p[f"{block}.self_attn.qkv_proj.weight"].T).reshape(B, M, -1, head)
            q, k, v = jnp.split(qkv, (heads, heads + keys), axis=2)
            a = jax.nn.dot_product_attention(rotated(q, cosine, sine), rotated(k, cosine, sine), v, is_causal=True)
            x = x + a.reshape(B, M, -1) @ p[f"{block}.self_attn.o_proj.weight"].T
            normed = norm(x, p[f"{block}.post_attention_layernorm.weight"])
            gate, up = jnp.split(normed @ p[f"{block}.mlp.gate_up_proj.weight"].T, 2, axis=-1)
            x = x + (activate(gate) * up) @ p[f"{block}.mlp.down_proj.weight"].T
        head_matrix = p["lm_head.weight"] if "lm_head.weight" in p else p["embed_tokens.weight"]
        return norm(x, p["norm.weight"]) @ head_matrix.T

    return logits


def adamw_step(
    loss: Callable[[Parameters, Any, Any], Any],
    learning_rate: float,
    betas: tuple[float, float],
    epsilon: float,
    weight_decay: float,
) -> Any:
    """A jitted step: (parameters, first moments, second moments, number of the step from 1, tokens, targets) to the
    first three after it and the loss; what is given is overwritten (Loshchilov & Hutter 2019, algorithm 2)."""
    beta_1, beta_2 = betas

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(
        parameters: Parameters, first: Parameters, second: Parameters, time: Any, tokens: Any, targets: Any
    ) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, tokens, targets)
        first = jax.tree.map(lambda m, g: beta_1 * m + (1 - beta_1) * g, first, gradients)
        second = jax.tree.map(lambda v, g: beta_2 * v + (1 - beta_2) * g * g, second, gradients)
        correction, spread = 1 - beta_1**time, 1 - beta_2**time

        def new(w: Any, m: Any, v: Any) -> Any:
            change = (m / correction) / (jnp.sqrt(v / spread) + epsilon)
            return w * (1 - learning_rate * weight_decay) - learning_rate * change

        return jax.tree.map(new, parameters, first, second), first, second, value

    return step

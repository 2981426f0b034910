"""The base tables of the families, as data: text in the notation, and the rewritings that belong to it."""

from __future__ import annotations

from dataclasses import dataclass

from learncost.equation.errors import InputError
from learncost.models.configuration import Configuration


@dataclass(frozen=True)
class Plan:
    """A model's text and the rewritings of the layers that it calls."""

    text: str
    blocks: tuple[str, ...]
    layers: tuple[str, ...]
    activation: str
    epsilon: float
    tied: bool
    attention_biases: bool = False
    head_bias: bool = False
    dropped: tuple[tuple[str, tuple[str, ...]], ...] = ()


PRE_NORM = """
  repeat {count} carry X:
    H[B M d] = norm(X; ln_1)
    A[B M d] = attention(H, H, H; attn, N = M'){where}
    X[B M d] = residual(X, A)
    G[B M d] = norm(X; ln_2)
    F[B M d] = feed_forward(G; mlp)
    X[B M d] = residual(X, F)
  Y[B M d] = norm(X; ln_f)
"""

POST_NORM = """
  repeat {count} carry X:
    A[B M d] = attention(X, X, X; attn, N = M'){where}
    X[B M d] = add_norm(X, A; ln_1)
    F[B M d] = feed_forward(X; mlp)
    X[B M d] = add_norm(X, F; ln_2)
"""

# Jiang's blog on GPT-3: normalization after attention, before the residual sum, without gains; ReLU without biases.
JIANG = """
  repeat {count} carry X:
    A[B M d] = attention(X, X, X; attn, N = M') where M' <= M
    Z[B M d] = plain_norm(A)
    X[B M d] = residual(X, Z)
    F[B M d] = feed_forward_without_biases(X; mlp)
    X[B M d] = residual(X, F)
"""

ENCODER_SIDE = """
  repeat n_enc carry C:
    A[B N d] = attention(C, C, C; encoder.attn, N = N')
    C[B N d] = add_norm(C, A; encoder.ln_1)
    F[B N d] = feed_forward(C; encoder.mlp)
    C[B N d] = add_norm(C, F; encoder.ln_2)
"""

DECODER_SIDE = """
  repeat n_dec carry X:
    A[B M d] = attention(X, X, X; decoder.attn, N = M') where M' <= M
    X[B M d] = add_norm(X, A; decoder.ln_1)
    D[B M d] = cross_attention(X, C, C; decoder.cross)
    X[B M d] = add_norm(X, D; decoder.ln_2)
    F[B M d] = feed_forward(X; decoder.mlp)
    X[B M d] = add_norm(X, F; decoder.ln_3)
"""

LOSS = """
  P[B M v] = head({last}; {weight})
  loss[] = loss(P, targets, share)
"""

CAUSAL = " where M' <= M"

# Where dropout stands: after the embeddings, on the attention's probabilities, at the end of each sublayer (Vaswani et
# al. 2017, section 5.4; attention's own as in GPT and BERT).
_DROPPED = (("attention", ("P", "Y")), ("cross_attention", ("P", "Y")), ("feed_forward", ("Y",)))
_DROPPED_EMBEDDINGS = (("positions", ("X",)), ("sinusoidal_positions", ("X",)))


def _positions(configuration: Configuration, value: str, own: str = "") -> tuple[str, str]:
    """The line that adds positions to embeddings, and the inputs that it needs; `own` marks one of two sides."""
    axis = "N" if own == "encoder." else "M"
    if configuration.positions == "learned":
        return f"  {value}[B {axis} d] = positions({own}E, {own}index; {own}wpe)\n", f"{own}index"
    if configuration.positions == "sinusoidal":
        return f"  {value}[B {axis} d] = sinusoidal_positions({own}E, {own}S)\n", f"{own}S"
    return "", ""


def plan(configuration: Configuration) -> Plan:
    """The base table of a configuration's family, with the rewritings that its settings ask for."""
    make = {
        "encoder": _stack,
        "decoder": _stack,
        "encoder-decoder": _two_sided,
        "gpt2": _stack,
        "openai-gpt": _stack,
        "bert": _bert,
        "distilbert": _bert,
        "gpt3-jiang": _stack,
    }.get(configuration.family)
    if make is None:
        raise InputError(f"no table for the family {configuration.family!r}")
    return make(configuration)


def _head(configuration: Configuration, last: str, table: str) -> tuple[str, str]:
    """The lines of the head and the loss, and the output."""
    if configuration.head == "none":
        return "", last
    return LOSS.format(last=last, weight=table if configuration.tied else "head.W"), "loss"


def _stack(configuration: Configuration) -> Plan:
    """Decoder-only and encoder-only models with one table of tokens and a language-model head."""
    family = configuration.family
    body = {"gpt2": PRE_NORM, "gpt3-jiang": JIANG}.get(family, POST_NORM)
    positions, inputs = _positions(configuration, "X")
    last = "Y" if body is PRE_NORM else "X"
    head, output = _head(configuration, last, "wte")
    first = "E" if positions else "X"
    inputs += " targets share" if output == "loss" else ""
    text = f"{family.replace('-', '_')}(tokens {inputs}; wte) -> {output}\n"
    text += f"  {first}[B M d] = embedding(tokens; wte)\n" + positions
    text += body.format(count="n_layer", where="" if family == "encoder" else CAUSAL) + head
    layers = ["embedding", "attention", "residual", "norm", "add_norm", "feed_forward", "head", "loss", "positions"]
    layers += ["sinusoidal_positions", "plain_norm", "feed_forward_without_biases"]
    return Plan(
        text,
        ("encoder" if family == "encoder" else "decoder",),
        tuple(layers),
        configuration.activation,
        configuration.layer_norm_epsilon,
        configuration.tied,
        attention_biases=family in ("gpt2", "openai-gpt"),
        dropped=_DROPPED + _DROPPED_EMBEDDINGS,
    )


def _two_sided(configuration: Configuration) -> Plan:
    """The encoder-decoder of Vaswani et al. 2017; one table for both embeddings and the head where it is tied."""
    tables = ("wte", "wte") if configuration.tied else ("encoder.wte", "decoder.wte")
    lines, inputs = "", []
    for own, value, table, axis in (("encoder.", "C", tables[0], "N"), ("decoder.", "X", tables[1], "M")):
        added, needs = _positions(configuration, value, own)
        lines += f"  {own}E[B {axis} d] = embedding({own}tokens; {table})\n" + added
        inputs += [f"{own}tokens", needs]
    head, output = _head(configuration, "X", "wte")
    header = f"encoder_decoder({' '.join(inputs)} targets share; {' '.join(dict.fromkeys(tables))}) -> {output}\n"
    layers = ("embedding", "attention", "cross_attention", "add_norm", "feed_forward", "head", "loss", "positions")
    return Plan(
        header + lines + ENCODER_SIDE + DECODER_SIDE + head,
        ("encoder", "decoder"),
        (*layers, "sinusoidal_positions"),
        configuration.activation,
        configuration.layer_norm_epsilon,
        configuration.tied,
        dropped=_DROPPED + _DROPPED_EMBEDDINGS,
    )


def _bert(configuration: Configuration) -> Plan:
    """BERT and DistilBERT: embeddings with a norm, post-norm blocks, and what the architecture puts on top."""
    if configuration.head == "pretraining":
        raise InputError(
            f"{configuration.architecture} has two heads, which is not supported; give --architecture BertForMaskedLM"
        )
    types = configuration.family == "bert"
    text = "  E[B M d] = embedding(tokens; wte)\n"
    if types:
        text += "  T[B M d] = token_types(E, types; wtt)\n  T[B M d] = positions(T, index; wpe)\n"
    else:
        text += "  T[B M d] = positions(E, index; wpe)\n"
    text += "  X[B M d] = norm(T; ln_e)\n" + POST_NORM.format(count="n_layer", where="")
    inputs, output, head = "", "X", ""
    if configuration.head == "masked-language-model":
        text += "  Y[B M d] = masked_lm_transform(X; transform, d' = d')\n"
        weights = "wte, head.b" if configuration.tied else "head.W, head.b"
        head = LOSS.format(last="Y", weight=weights)
        inputs, output = " targets share", "loss"
    elif configuration.pooler:
        head, output = "  Z[B d] = pooler(X; pooler)\n", "X Z"
    header = f"{configuration.family}(tokens {'types ' if types else ''}index{inputs}; wte) -> {output}\n"
    layers = ["embedding", "positions", "norm", "attention", "add_norm", "feed_forward", "head", "loss"]
    layers += ["token_types"] if types else []
    layers += ["pooler"] if configuration.pooler else []
    layers += ["masked_lm_transform"] if configuration.head == "masked-language-model" else []
    return Plan(
        header + text + head,
        ("encoder",),
        tuple(layers),
        configuration.activation,
        configuration.layer_norm_epsilon,
        configuration.tied,
        attention_biases=True,
        head_bias=True,
        dropped=(*_DROPPED, ("norm", ("Y",))),
    )

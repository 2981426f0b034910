"""Models of every attention with a cache, and how they are run: at once, or a prompt and then token by token."""

import numpy as np

import learncost as lc
from foreign_models import angles
from learncost.layers.layer import shipped_layer
from learncost.layers.refinement import with_norms, with_rotary, with_scale, with_sinks, without_line
from learncost.layers.rewrite import with_biases, with_transposed
from learncost.procedures.inference import inference
from refinements import with_alibi, with_relative_bias, with_softcap, with_visible

SIZES = {"B": 2, "d": 12, "h": 2, "g": 3, "k": 4, "r": 6, "w": 5, "a": 7, "c": 8, "f": 9, "v": 11, "p": 16, "b": 5}
SIZES |= {"n": 3, "u": 4, "i": 2, "j": 2}  # of states
SIZES |= {"n_layer": 2, "n_enc": 2, "n_dec": 3, "n_pair": 2, "window": 3, "e": 4, "t": 2}

BLOCK = """
    H[B M d] = rms_norm(X; {own}ln_1)
    A[B M d] = {attention}; {own}attn, N = M'){where}
    X[B M d] = residual(X, A)
    G[B M d] = rms_norm(X; {own}ln_2)
    F[B M d] = gated_feed_forward(G; {own}mlp)
    X[B M d] = residual(X, F)"""
END = """
  Y[B M d] = rms_norm(X; ln_f)
  P[B M v] = head(Y; head.W)
  loss[] = loss(P, targets, share)"""
CAUSAL, SLIDING = " where M' <= M", " where M' <= M < M' + window"


def stack(attention, inputs="", where=CAUSAL, count="n_layer"):
    """A decoder; `attention` is the call's beginning. Several `where` make a block of several layers."""
    text = f"model(tokens {inputs} targets share; wte) -> loss\n  X[B M d] = embedding(tokens; wte)\n"
    text += f"  repeat {count} carry X:"
    wheres = (where,) if isinstance(where, str) else where
    for i, condition in enumerate(wheres):
        prefix = f"l{i}." if len(wheres) > 1 else ""
        text += BLOCK.format(attention=attention, where=condition, own=prefix)
    return text + END


GPT2 = """gpt2(tokens index targets share; wte) -> loss
  E[B M d] = embedding(tokens; wte)
  X[B M d] = positions(E, index; wpe)
  repeat n_layer carry X:
    H[B M d] = norm(X; ln_1)
    A[B M d] = attention(H, H, H; attn, N = M') where M' <= M
    X[B M d] = residual(X, A)
    G[B M d] = norm(X; ln_2)
    F[B M d] = feed_forward(G; mlp)
    X[B M d] = residual(X, F)
  Y[B M d] = norm(X; ln_f)
  P[B M v] = head(Y; wte)
  loss[] = loss(P, targets, share)"""

TWO_SIDED = """encoder_decoder(source tokens index targets share; wte) -> loss
  C[B N d] = embedding(source; wte)
  repeat n_enc carry C:
    A[B N d] = attention(C, C, C; encoder.attn, N = N')
    C[B N d] = add_norm(C, A; encoder.ln_1)
    F[B N d] = feed_forward(C; encoder.mlp)
    C[B N d] = add_norm(C, F; encoder.ln_2)
  E[B M d] = embedding(tokens; wte)
  X[B M d] = positions(E, index; wpe)
  repeat n_dec carry X:
    A[B M d] = attention(X, X, X; decoder.attn, N = M') where M' <= M
    X[B M d] = add_norm(X, A; decoder.ln_1)
    D[B M d] = cross_attention(X, C, C; decoder.cross)
    X[B M d] = add_norm(X, D; decoder.ln_2)
    F[B M d] = feed_forward(X; decoder.mlp)
    X[B M d] = add_norm(X, F; decoder.ln_3)
  P[B M v] = head(X; wte)
  loss[] = loss(P, targets, share)"""

ROTARY = "cosine, sine, cosine, sine, flip"
ROTARY_INPUTS = "cosine sine flip"
GROUPED = "grouped_attention(H, H, H"


def llama(where=CAUSAL, biases="", norms=False, **keys):
    biased = with_biases(shipped_layer("grouped_attention"), {f"W{letter}": f"b{letter}" for letter in biases})
    biased = with_rotary(with_norms(biased, {"Q": "gQ", "K": "gK"}) if norms else biased)
    text = stack(f"{GROUPED}, {ROTARY}", ROTARY_INPUTS, where, **keys)
    return lc.layer(text, layers={"grouped_attention": biased})


def rewritten(change, inputs):
    rewritten_layer = change(shipped_layer("grouped_attention"))
    text = stack(f"{GROUPED}, {inputs.replace(' ', ', ')}", inputs)
    return lc.layer(text, layers={"grouped_attention": rewritten_layer})


def recurrent(mixer):
    """A decoder of which every block has a recurrence, or a token shift, in front of its attention."""
    text = stack(GROUPED).replace(
        "    H[B", f"    R[B M d] = {mixer}(X; mixer)\n    X[B M d] = residual(X, R)\n    H[B"
    )
    return lc.layer(text)


def latent(scale=None):
    latent_layer = with_rotary(shipped_layer("latent_attention"), "QR", "KR")
    latent_layer = with_scale(latent_layer, scale) if scale else latent_layer
    text = stack(f"latent_attention(H, H, {ROTARY}", ROTARY_INPUTS)
    return lc.layer(text, layers={"latent_attention": latent_layer})


def mixture():
    return lc.layer(stack(GROUPED).replace("gated_feed_forward(G; mlp)", "mixture_of_experts(G; moe)"))


def tied(text):
    return lc.layer(text, layers={"head": with_transposed(shipped_layer("head"), "W")})


MODELS = {
    "multi-head": lambda: tied(GPT2),
    "grouped-query, rotary": llama,
    "biases, norms of queries and keys": lambda: llama(biases="QKV", norms=True),
    "multi-query": llama,
    "sliding window": lambda: llama(SLIDING),
    "local and global": lambda: llama((SLIDING, CAUSAL), count="n_pair"),
    "window of a number": lambda: llama(SLIDING.replace("window", "2")),
    "dense window": lambda: rewritten(with_visible, "visible"),
    "alibi": lambda: rewritten(with_alibi, "slope distance"),
    "relative bias": lambda: rewritten(lambda own: with_relative_bias(without_line(own)), "bucket"),
    "softcap": lambda: rewritten(lambda own: with_visible(with_softcap(own, 0.8)), "visible"),
    "latent": latent,
    "sinks": lambda: rewritten(lambda own: with_sinks(with_alibi(own)), "slope distance"),
    "mixture of experts": mixture,
    "state space beside attention": lambda: recurrent("selective_state_space"),
    "state space of heads": lambda: recurrent("state_space_duality"),
    "time mixing": lambda: recurrent("time_mixing"),
    "channel mixing": lambda: recurrent("channel_mixing"),
    "encoder-decoder": lambda: tied(TWO_SIDED),
}


def sizes_of(name):
    return {**SIZES, "h": 1} if name == "multi-query" else SIZES


def weights_of(table, sizes, seed=0):
    """A number for every weight, as large as keeps values near one."""
    rng = np.random.default_rng(seed)
    shapes = {name: [sizes[axis.rstrip("'")] for axis in table.axes[name]] for name in table.weights}
    return {name: rng.standard_normal(shape) / 2 for name, shape in shapes.items()}


def at_positions(table, sizes, queries, keys):
    """What a table is given that depends on positions: of the tokens, and of the keys that they look at."""
    distance = queries[:, None] - keys
    angles_of_pairs = angles(100, sizes["r"] if any("KR" in name for name in table.axes) else sizes["k"])
    inputs = {
        "index": queries,
        "cosine": angles_of_pairs["cosine"][queries],
        "sine": angles_of_pairs["sine"][queries],
        "flip": angles_of_pairs["flip"],
        "slope": 0.5 ** np.arange(1, sizes["h"] * sizes["g"] + 1).reshape(sizes["h"], sizes["g"]),
        "distance": -np.abs(distance).astype(float),
        "bucket": np.minimum(np.abs(distance), sizes["b"] - 1),
        "visible": distance < sizes["window"],
        "seen": distance >= 0,
    }
    return {name: value for name, value in inputs.items() if name in table.inputs}


class Generation:
    """One model with its weights: all positions at once, or the prompt and then what follows."""

    def __init__(self, model, sizes, length, several=False, weights=None):
        self.tables = inference(model, several=several)
        self.model, self.sizes, self.length = model, sizes, length
        rng = np.random.default_rng(5)
        self.weights = weights or weights_of(model.table, sizes)
        self.tokens = rng.integers(0, sizes["v"], (sizes["B"], length))
        self.source = rng.integers(0, sizes["v"], (sizes["B"], 7))
        self.counts = {name: sizes[name] for name in ("n_layer", "n_enc", "n_dec", "n_pair", "window", "t")}

    def given(self, table, queries, keys):
        """All that a table is given, but its cache."""
        inputs = {name: self.weights[name] for name in table.weights} | at_positions(table, self.sizes, queries, keys)
        inputs |= {"tokens": self.tokens[:, queries]} | ({"source": self.source} if "source" in table.inputs else {})
        return inputs

    def fused_update(self):
        """The logits of every position by the model's own table."""
        table = self.model.table
        at = np.arange(self.length)
        inputs = self.given(table, at, at)
        inputs |= {"targets": self.tokens, "share": np.zeros(self.tokens.shape)}
        return lc.run(table, inputs, self.counts)["P.L"]

    def prompt(self, length):
        """The logits of the last position of the prompt, and the cache."""
        table = self.tables.prefill
        at = np.arange(length)
        inputs = self.given(table, at, at) | {"last": np.full(self.sizes["B"], length - 1)}
        result = lc.run(table, inputs, {**self.counts, **self.tables.lengths(self.sizes, 0, length)})
        return result["P.L"], {array.name: self.cut(array, result[array.name], length) for array in self.tables.cache}

    def cut(self, kept, value, length):
        """A window's cache holds the last positions only."""
        if not kept.tokens:
            return value
        sizes = {**self.sizes, **self.tables.lengths(self.sizes, length, 1)}
        place = kept.axes.index(kept.positions)
        return value.take(np.arange(value.shape[place])[-sizes[kept.positions] :], place)

    def step(self, cache, before, new):
        """The logits of the new positions after those before, and the grown cache."""
        table = self.tables.decode
        queries, keys = np.arange(before, before + new), np.arange(before + new)
        inputs = {**self.given(table, queries, keys), **cache}
        sizes = {**self.counts, **self.tables.lengths(self.sizes, before, new)}
        for name in [name for name in table.inputs if name.startswith("seen.")]:
            window = self.sizes.get(name.removeprefix("seen."), None) or int(name.removeprefix("seen."))
            key_positions = keys[-sizes[f"T.{name.removeprefix('seen.')}"] :]
            distance = queries[:, None] - key_positions
            inputs[name] = (distance >= 0) & (distance < window)
        result = lc.run(table, inputs, sizes)
        return result["P.L"], {
            array.name: self.cut(array, result[array.name], before + new) for array in self.tables.cache
        }

"""Tiny trainings of every topology at pairwise different sizes."""

import numpy as np

from learncost.engines.numpy_engine import Training

SIZES = {"hidden_size": 6, "num_attention_heads": 2, "head_dim": 4, "intermediate_size": 5, "vocab_size": 11}
OWN = {
    "encoder": {"num_hidden_layers": 2},
    "decoder": {"num_hidden_layers": 2},
    "encoder-decoder": {"n_enc": 2, "n_dec": 3},
    "gpt2": {"num_hidden_layers": 2, "max_position_embeddings": 9},
    "bert-base-uncased": {"num_hidden_layers": 2, "max_position_embeddings": 9, "architecture": "BertForMaskedLM"},
    "distilbert-base-uncased": {
        "num_hidden_layers": 2,
        "max_position_embeddings": 9,
        "architecture": "DistilBertForMaskedLM",
    },
}
LEARNING = tuple(OWN)
BARE = "bert-base-uncased"  # with BertModel
B, M, N = 3, 7, 8


def sizes(model, **more):
    return {**SIZES, **OWN[model], **more}


def batch(model, seed=0, padding=False, bare=False, rows=B):
    """Positional and keyword arguments of a step."""
    generator = np.random.default_rng([seed, len(model)])
    tokens = generator.integers(0, SIZES["vocab_size"], (rows, M))
    extra = {}
    if padding:
        extra["mask"] = np.arange(M) < generator.integers(2, M + 1, rows)[:, None]
        extra["mask"][0, -2:] = False
    if model == "encoder-decoder":
        extra["encoder_tokens"] = generator.integers(0, SIZES["vocab_size"], (rows, N))
        if padding:
            extra["encoder_mask"] = np.arange(N) < generator.integers(2, N + 1, rows)[:, None]
    if bare:
        extra["gradients"] = {"X": generator.standard_normal((rows, M, 6)), "Z": generator.standard_normal((rows, 6))}
    elif model.startswith(("encoder", "bert", "distilbert")) and model != "encoder-decoder":
        extra["targets"] = np.where(generator.random((rows, M)) < 0.6, tokens[:, ::-1], -1)
        extra["targets"][:, 0] = 1
    if model.startswith("bert"):
        extra["token_types"] = generator.integers(0, 2, (rows, M))
    return tokens, extra


def training(model, procedure="bp", optimizer="sgd", bare=False, more=None, **settings):
    """A training with weights large enough that every part of a gradient matters."""
    more = dict(more or {})
    if bare:
        more["architecture"] = "BertModel"
    training = Training(model, procedure, optimizer, **settings, **sizes(model, **more))
    for name, array in training.weights.items():
        generator = np.random.default_rng([settings.get("seed", 0), len(name), array.size])
        training.weights[name] = (array + 0.3 * generator.standard_normal(array.shape)).astype(training.dtype)
    return training

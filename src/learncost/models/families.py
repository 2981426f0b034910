"""The model families that a configuration can name, with what each assumes where a configuration is silent.

Defaults of gpt2, openai-gpt, bert and distilbert are those of the configuration classes of transformers 5
(`GPT2Config`, `OpenAIGPTConfig`, `BertConfig`, `DistilBertConfig`); the tests hold them against these classes.
The generic families are the architecture of Pau & Aymone and have no default sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Head = Literal["none", "language-model", "masked-language-model", "pretraining"]
"""What stands on the last block. "masked-language-model": dense, activation, norm, decoder with bias;
"pretraining": that, and BERT's classifier of two classes on the pooler."""

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_tanh": "gelu_tanh",
    # The four write one function: 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))); gelu_fast rounds sqrt(2/pi) to
    # ten digits.
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "sigmoid": "sigmoid",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}
"""Hugging Face's names of activations (transformers.activations.ACT2CLS) and the words of the vocabulary."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """What is built of a family: its class's name at Hugging Face ("" for the generic ones), its head, its pooler."""

    name: str
    head: Head
    counted: str
    pooler: bool = False


@dataclass(frozen=True, slots=True)
class Family:
    """A model type. Sizes without a default are required, except the optional and the derived ones.

    `switches` are keys that change the mathematics, each with the one value that is supported.
    """

    name: str
    sizes: tuple[str, ...]
    architectures: tuple[Architecture, ...]  # the first is meant where a configuration names none
    defaults: Mapping[str, int] = field(default_factory=dict)
    optional: frozenset[str] = frozenset()
    feed_forward_factor: int | None = None  # intermediate_size, where it is not given, over hidden_size
    spellings: Mapping[str, str] = field(default_factory=dict)  # of this family alone
    activation: str = "gelu"
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)
    layer_norm_epsilon: float = 1e-5
    tied: bool = True
    dropout: Mapping[str, float] = field(default_factory=dict)
    switches: Mapping[str, object] = field(default_factory=dict)
    positions: Literal["learned", "none"] = "learned"

    @property
    def derived(self) -> frozenset[str]:
        """The sizes that follow from others where a configuration says nothing or null."""
        return frozenset({"head_dim"} | ({"intermediate_size"} if self.feed_forward_factor else set()))


STACK = ("num_hidden_layers", "hidden_size", "num_attention_heads", "head_dim", "intermediate_size", "vocab_size")
POSITIONS = "max_position_embeddings"

GPT_DROPOUT = {"embd_pdrop": 0.1, "attn_pdrop": 0.1, "resid_pdrop": 0.1}
GPT_SIZES = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12}
BERT_SIZES = {
    "vocab_size": 30522,
    "hidden_size": 768,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "max_position_embeddings": 512,
}


def _generic(name: str, spellings: Mapping[str, str], sizes: tuple[str, ...] = STACK) -> Family:
    return Family(
        name,
        (*sizes, POSITIONS),
        (Architecture("", "language-model", f"{name} with its head"),),
        optional=frozenset({POSITIONS}),  # without it positions are sinusoidal, with it they are learned
        spellings=spellings,
        activation="gelu_tanh",  # the form whose eight operations the paper counts (section 5.4.1)
        tied=False,
        # Pau & Aymone's (40) has no epsilon; a run needs one, and this is torch.nn.LayerNorm's.
        layer_norm_epsilon=1e-5,
    )


def _causal(prefix: str) -> tuple[Architecture, ...]:
    return (
        Architecture(f"{prefix}LMHeadModel", "language-model", "causal language model with its head"),
        Architecture(f"{prefix}Model", "none", "bare decoder without a head"),
    )


FAMILIES = {
    family.name: family
    for family in (
        _generic("encoder", {"n_enc": "num_hidden_layers", "encoder_layers": "num_hidden_layers"}),
        _generic("decoder", {"n_dec": "num_hidden_layers", "decoder_layers": "num_hidden_layers"}),
        _generic("encoder-decoder", {}, ("n_enc", "n_dec", *STACK[1:])),
        Family(
            "gpt2",
            (*STACK, POSITIONS),
            _causal("GPT2"),
            defaults={**GPT_SIZES, "vocab_size": 50257, "max_position_embeddings": 1024},
            feed_forward_factor=4,
            activation="gelu_new",
            dropout=GPT_DROPOUT,
            switches={
                "scale_attn_weights": True,
                "scale_attn_by_inverse_layer_idx": False,
                "add_cross_attention": False,
            },
        ),
        Family(
            "openai-gpt",
            (*STACK, POSITIONS),
            _causal("OpenAIGPT"),
            defaults={**GPT_SIZES, "vocab_size": 40478, "max_position_embeddings": 512},
            feed_forward_factor=4,
            # Its "gelu" is the tanh form: ACT_FNS in transformers/models/openai/modeling_openai.py.
            activations={**ACTIVATIONS, "gelu": "gelu_tanh"},
            dropout=GPT_DROPOUT,
        ),
        Family(
            "bert",
            (*STACK, POSITIONS, "type_vocab_size"),
            (
                Architecture("BertModel", "none", "bare encoder with its pooler, without a head", pooler=True),
                Architecture("BertForMaskedLM", "masked-language-model", "encoder with its masked-language-model head"),
                Architecture(
                    "BertForPreTraining",
                    "pretraining",
                    "encoder with its pooler, masked-language-model and next-sentence heads",
                    pooler=True,
                ),
            ),
            defaults={**BERT_SIZES, "num_hidden_layers": 12, "type_vocab_size": 2},
            layer_norm_epsilon=1e-12,
            dropout={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1},
            switches={"is_decoder": False, "add_cross_attention": False, "position_embedding_type": "absolute"},
        ),
        Family(
            "distilbert",
            (*STACK, POSITIONS),
            (
                Architecture("DistilBertModel", "none", "bare encoder without a head"),
                Architecture(
                    "DistilBertForMaskedLM", "masked-language-model", "encoder with its masked-language-model head"
                ),
            ),
            defaults={**BERT_SIZES, "num_hidden_layers": 6},
            layer_norm_epsilon=1e-12,  # typed in transformers/models/distilbert/modeling_distilbert.py
            dropout={"dropout": 0.1, "attention_dropout": 0.1},
            switches={"sinusoidal_pos_embds": False},
        ),
        Family(
            "gpt3-jiang",
            (*STACK, POSITIONS),
            (
                Architecture(
                    "",
                    "language-model",
                    "causal language model of the blog's matrices W_0, A, B, C, W^o, W_1, W_2 alone",
                ),
            ),
            feed_forward_factor=4,
            activation="relu",
            positions="none",
        ),
    )
}
"""Every model type that can be counted, by its name."""

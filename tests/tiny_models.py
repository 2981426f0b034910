"""Tiny models for the tests of engines: a name as `cost` takes it, and sizes."""

GPT2 = ("gpt2", {"n_layer": 3, "n_embd": 24, "n_head": 4, "vocab_size": 61, "n_positions": 16})
LLAMA = (
    "llama-3.2-1b",
    {
        "num_hidden_layers": 2,
        "hidden_size": 24,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 40,
        "vocab_size": 61,
    },
)

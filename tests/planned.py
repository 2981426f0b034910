"""Steps of tiny models under plans, run as they stand, for the tests of plans."""

import numpy as np

from learncost.interpreter import execute
from learncost.ir.loop import Loop, walk
from learncost.ir.polynomial import base, shape_of
from learncost.ir.term import Read
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.lower import lower
from learncost.procedures.step import step

SMALL = {"hidden_size": 12, "num_attention_heads": 3, "vocab_size": 17, "num_hidden_layers": 2}
LENGTH = {"max_position_embeddings": 9}
OWN = {
    "gpt2": {**SMALL, **LENGTH, "n_inner": 10},
    "llama-2-7b": {**SMALL, **LENGTH, "intermediate_size": 10, "num_key_value_heads": 3},
    "gemma-2-2b": {**SMALL, **LENGTH, "intermediate_size": 10, "num_key_value_heads": 1, "head_dim": 4},
    "mixtral-8x7b": {**SMALL, **LENGTH, "intermediate_size": 10, "num_key_value_heads": 1, "num_local_experts": 3},
    "bert-base": {**SMALL, **LENGTH, "intermediate_size": 10, "architecture": "BertForMaskedLM"},
    "bart-base": {
        "d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 3, "vocab_size": 17,
        "decoder_attention_heads": 3, "encoder_ffn_dim": 10, "decoder_ffn_dim": 11, **LENGTH,
    },
    "albert-base-v2": {
        "hidden_size": 12, "num_attention_heads": 3, "vocab_size": 17, "num_hidden_layers": 4, "embedding_size": 5,
        "num_hidden_groups": 2, "inner_group_num": 2, "intermediate_size": 10, "architecture": "AlbertForMaskedLM",
        **LENGTH,
    },
}  # fmt: skip
MODELS = tuple(OWN)
OWN["gpt-oss-20b"] = {**SMALL, **LENGTH, "intermediate_size": 10, "num_key_value_heads": 1, "head_dim": 4} | {
    "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 3,
}  # fmt: skip
B, M, N = 3, 7, 6


def table_of(model, procedure="bp", optimizer="adamw", **sizes):
    """The step of a tiny model without a plan."""
    return step(build(configure(model, {**OWN[model], **sizes})), procedure, optimizer)


def sizes_of(model, **sizes):
    built = build(configure(model, {**OWN[model], **sizes}))
    return run_sizes(built, B, N, M) if built.two_sided else run_sizes(built, B, M, None)


def given(table, sizes, seed=0):
    """A value for every input and weight: positions where it is read as an index, else numbers that all matter."""
    generator = np.random.default_rng(seed)
    ranges = {}
    for line, _ in walk(table.lines):
        for term in (*line.left, *line.right):
            for axis in term.axes:
                if isinstance(axis, Read):
                    ranges[axis.at.name] = sizes[base(axis.axis)]
    stacks = {inside: outer for line in table.lines if isinstance(line, Loop) for inside, outer in line.each}
    ranges |= {outer: ranges[inside] for inside, outer in stacks.items() if inside in ranges}
    values = {}
    for name in (*table.inputs, *table.weights):
        shape = shape_of(table.axes[name], sizes)
        if name in table.indices:
            values[name] = generator.integers(0, ranges[name], shape)
        elif name in table.weights:
            values[name] = 0.5 * generator.standard_normal(shape)
        else:
            values[name] = generator.uniform(0.1, 0.9, shape)
    return values


def results(table, values, sizes):
    """The loss, the new weights and the new states of a step."""
    results_by_name = dict(values)
    execute(lower(table), results_by_name, sizes)
    return {name: results_by_name[name] for name in table.outputs if name == "loss" or name.endswith(".new")}

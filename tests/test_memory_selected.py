"""Checkpoints that keep the results of some operators: the peak beside that of PyTorch's allocator."""

from collections import Counter
from functools import partial

import pytest
import torch
from against_torch_and_jax.torch_models import module
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import learncost as lc
from allocator import apart
from learncost.ir.errors import InputError
from learncost.models.configuration import configure

SMALL = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 4, "intermediate_size": 344}
SIZES = {**SMALL, "num_hidden_layers": 6, "vocab_size": 50, "max_position_embeddings": 256}
BATCH, LENGTH = 4, 128
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


def contexts():
    """Those of torchtitan's option op: attention and every second product."""
    products = Counter()

    def policy(context, operator, *arguments, **keywords):
        products[context.is_recompute] += operator == torch.ops.aten.mm.default
        saves = operator == torch.ops.aten.mm.default and products[context.is_recompute] % 2
        return CheckpointPolicy.MUST_SAVE if saves or operator == ATTENTION else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def train(configuration):
    network = module(configuration)
    for block in network.layers:
        block.forward = partial(checkpoint, block.forward, use_reentrant=False, context_fn=contexts)
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    tokens, targets = (torch.randint(0, 50, (BATCH, LENGTH)) for _ in range(2))
    for _ in range(2):
        network(tokens, targets).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.one_in(every=2)
def test_the_predicted_peak_is_that_of_the_allocator():
    configuration = configure("tinyllama-1.1b", SIZES)
    measured = apart(lambda: train(configuration))[1]
    asked = {"model": configuration, "batch_size": BATCH, "seq_len": LENGTH, "module": "plain", "engine": "eager"}
    found = lc.memory(procedure="recompute", checkpoint_every="op", **asked)
    whole, none = (lc.memory(procedure=name, **asked).peak for name in ("recompute", "bp"))
    assert found.peak == pytest.approx(measured, rel=0.01)
    assert whole < found.peak < none


def test_a_selection_of_operators_is_of_checkpoints_that_are_not_reentrant():
    with pytest.raises(InputError, match="requires procedure='recompute'"):
        lc.memory("gpt2", checkpoint_every="op")
    with pytest.raises(InputError, match="use module='transformers'"):
        lc.memory("gpt2", "recompute", checkpoint_every="op", module="transformers-reentrant")
    with pytest.raises(InputError, match="checkpoint_every must be"):
        lc.memory("gpt2", "recompute", checkpoint_every="layers")


def recomputed(every):
    """The FLOPs that checkpoints of the first of every so many blocks add, by PyTorch's counter."""
    network = module(configure("tinyllama-1.1b", {**SIZES, "num_hidden_layers": 5}))
    counts = []
    for chosen in ((), network.layers[::every]):
        for block in chosen:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        with FlopCounterMode(display=False) as counter:
            network(*(torch.zeros((BATCH, LENGTH), dtype=torch.long) for _ in range(2))).backward()
        counts.append(counter.get_total_flops())
    return counts[1] - counts[0]


def test_time_and_operations_are_those_of_blocks_that_are_recomputed():
    """Three and two of five: a count of one block stands for all, whose last product PyTorch does not run again."""
    asked = {"procedure": "recompute", "on": "H100-SXM", "engine": "eager", "num_hidden_layers": 5}
    found = {every: lc.cost("tinyllama-1.1b", **asked, checkpoint_every=every) for every in (1, 2, 3)}
    for every, blocks in ((2, 3), (3, 2)):
        again, whole = (found[each].macro_operations["recomputation"][1].flops for each in (every, 1))
        assert again / whole == recomputed(every) / recomputed(1) == blocks / 5
        assert found[every].time < found[1].time
    # Blocks of two kinds in turn, and a dense one before those of experts: all are numbered together.
    of_model = {"gemma-2-2b": (6, 3, 2), "deepseek-v2-lite": (4, 2, 2)}
    for model, (number, *several) in of_model.items():
        asked = {"procedure": "recompute", "on": "H100-SXM", "seq_len": 64, "num_hidden_layers": number}
        norms = [
            sum(
                int(row.flops.at(step._priced.sizes))
                for row in step._priced.rows
                if row.macro_operation == "recomputation" and row.layer.endswith("rms_norm")
            )
            for step in (lc.cost(model, **asked, checkpoint_every=every) for every in (1, 2, 3))
        ]
        assert [each * number for each in norms[1:]] == [norms[0] * blocks for blocks in several]
    with pytest.raises(InputError, match="checkpoint_every requires procedure='recompute'"):
        lc.cost("gpt2", on="H100-SXM", checkpoint_every=2)

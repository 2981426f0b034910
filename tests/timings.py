"""Helper: a device whose rates are the same everywhere, and the priced rows of a layer or of a small model's step."""

from dataclasses import replace

from learncost.cost_models import price
from learncost.cost_models.books import book
from learncost.ir.loop import walk
from learncost.layers.layer import layer
from learncost.models.configuration import configure
from learncost.models.model import build, run_sizes
from learncost.passes.plan import planned
from learncost.procedures.step import step
from learncost.timing.rates import MatmulGrid, RateCurve, Rates

GPT2 = {"model_type": "gpt2", "n_layer": 3, "n_embd": 24, "n_head": 2, "n_positions": 16, "vocab_size": 40}
SIZES = {"B": 2, "M": 8, "d": 16, "f": 32}


def flat(flops=1e9, bandwidth=1e9, launch=0.0, **others):
    """A device with the same rates at every shape and distance, so that times can be computed by hand."""
    grid = MatmulGrid((1, 10**6), (flops,) * 8)
    ways = dict.fromkeys(("NN", "TN", "NT"), grid)
    overheads = {"launch": launch, "launch_backward": launch, "optimizer": launch} | others
    return Rates(ways, grid, RateCurve((1.0,), (bandwidth,)), **overheads)


def rows_of(text, kernel=None):
    table = layer(text).table
    if kernel:
        tagged = tuple(replace(line, meta=replace(line.meta, kernel=kernel)) for line, _ in walk(table.lines))
        table = replace(table, lines=tagged)
    return price(table, SIZES, book("run")).rows


def model_rows(keys=GPT2, plan="", optimizer="adamw", batch=2, length=16):
    model = build(configure(keys))
    table = step(model, "bp", optimizer)
    sizes = run_sizes(model, batch, length, None)
    return price(planned(table, plan) if plan else table, sizes, book("run")).rows, sizes

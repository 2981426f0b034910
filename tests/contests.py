"""Small contests for tests: problems that take milliseconds, their settings and entrants."""

from functools import cache

import numpy as np

from learncost.training.contest.contest import ContestDesign, contest
from learncost.training.contest.entrant import Setting, budget, entrants
from learncost.training.contest.problem import DECODER, mlp, text, vit

ALL = entrants("bp,recompute,pepita:paper,pepita:stable,mempepita:paper,mempepita:stable,head-only", "stable")

SMALL = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 12}


@cache
def problem(kind):
    """mlp, vit or text."""
    if kind == "text":
        return text([__file__], DECODER, SMALL | {"num_hidden_layers": 2}, 12)
    return mlp((16, 8)) if kind == "mlp" else vit(SMALL | {"num_hidden_layers": 2})


def setting(kind, optimizer="momentum", **more):
    return Setting(problem(kind), optimizer, **more)


def held(kind, limit="steps:3", names=ALL, optimizer="momentum", rates=(0.1,), seeds=(0,), batch_size=None, **more):
    """A contest with one learning rate, so without a search."""
    return contest(setting(kind, optimizer), ContestDesign(names, budget(limit), seeds, rates, batch_size), **more)


def rows(count):
    return np.arange(count)

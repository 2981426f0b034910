"""What is printed as a formula or follows from one, beside what the placed tables have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import learncost as lc
from learncost.devices.collective import algorithm
from learncost.ir.errors import InputError
from learncost.models.configuration import configure
from learncost.program.pipeline import run, schedule
from published_trainings.case import integer_of
from published_trainings.memory import activations
from published_trainings.sources import korthikanti

SMALL = 1e-4
"""Of what is printed the share up to which it leaves out what is small."""

DEVICES = 8
"""Over so many a formula of any number of devices is held to the table."""


def bubble(row: Mapping[str, Any]) -> tuple[float, float]:
    """Narayanan et al. 2021: the pipeline's bubble over the ideal time, by running the orders of equal stages."""
    config = row["config"]
    devices, chunks = integer_of(config, "p"), int(config.get("v", 1))
    orders = schedule("interleaved" if chunks > 1 else "1f1b", devices, integer_of(config, "m"), chunks)
    identical = [1.0] * orders.stages
    return float(row["value"]), run(orders, identical, identical).bubble


def activation_bytes(row: Mapping[str, Any]) -> tuple[float, float]:
    """Korthikanti et al. 2022, table 2: bytes of a layer's activations, at the sizes of GPT-3.

    The paper leaves out what is small beside B M d, as the statistics of norms, which are counted here.
    """
    config = row["config"]
    t = integer_of(config, "t")
    sizes = {"s": 2048, "b": 1, "a": 96, "h": 12288, "t": t}
    full = {
        "hidden": sizes["h"], "feedforward": 4 * sizes["h"], "seq": sizes["s"], "heads": sizes["a"], "blocks": 1,
        "vocab": 51200, "tp": t, "pp": 1, "interleave": 1, "dp": 1, "micro_batch": sizes["b"],
        "global_batch": sizes["b"], "mode": config["mode"],
    }  # fmt: skip
    case = korthikanti({**row, "config": full})
    return value_of(row["value"], sizes), activations(case)


def elements_sent(row: Mapping[str, Any]) -> tuple[float, float]:
    """Rajbhandari et al. 2020, section 7: what data parallelism sends in a ring, of weights and gradients.

    Held to the blocks of a model, all of whose weights are read forward and backward, as the paper takes all to be: an
    embedding is not read backward, and is gathered once less.
    """
    placement = row["id"].removeprefix("zero-volume-")
    if placement == row["id"]:
        raise InputError(f"which parallelism {row['id']} is")
    fully = lc.place(LIKE_THE_PAPER, f"dp={DEVICES}", placement="zero-3").collectives
    gathered = [each for each in fully if each.role == "weights" and each.block and each.phase == "forward"]
    weights = {each.line.removesuffix(".all_gather") for each in gathered}
    placed = lc.place(LIKE_THE_PAPER, f"dp={DEVICES}", placement=placement)
    moved = [each for each in placed.collectives if each.line.rpartition(".")[0].removeprefix("d") in weights]
    ring = {each.op: float(algorithm("ring").sent(each.op, DEVICES)) for each in moved}
    sent = sum(ring[each.op] * each.payload_bytes * each.times for each in moved) / 4
    points = sum(each.payload_bytes * each.times for each in gathered) / 4
    return value_of(row["value"], {"P": points, "p": DEVICES}), sent


LIKE_THE_PAPER = "llama-3-8b"


def collectives_of_a_block(row: Mapping[str, Any]) -> tuple[float, float]:
    """Shoeybi et al. 2019 and Korthikanti et al. 2022: the collectives of B M d in a block, tensor parallel and with
    the sequence; the numbers that the row has in words, added up, beside those of both tables.
    """
    if not row["quantity"].startswith("collectives of a block"):
        raise InputError(row["quantity"])
    model, number = configure("gpt2"), 0
    layers, width, length = (
        model.sizes[name] for name in ("num_hidden_layers", "hidden_size", "max_position_embeddings")
    )
    for placement in ("megatron", "megatron-sp"):
        placed = lc.place("gpt2", "tp=2", placement=placement)
        number += sum(each.times == layers and each.payload_bytes == 4 * length * width for each in placed.collectives)
    return float(sum(map(int, re.findall(r"\b\d+\b", row["value"])))), float(number)


def value_of(formula: str, sizes: Mapping[str, float]) -> float:
    """A formula as it is printed, such as `sbh (10 + 24/t)`: letters are sizes, what stands side by side is multiplied.

    Raises `InputError` for anything else in it.
    """
    tokens = re.findall(r"\d+|[a-zA-Z]|[-+/()]", formula.replace(" ", ""))
    if "".join(tokens) != formula.replace(" ", "") or {token for token in tokens if token.isalpha()} - sizes.keys():
        raise InputError(formula)
    text = ""
    for token in tokens:
        follows = bool(text) and (text[-1].isalnum() or text[-1] == ")")
        text += "*" * (follows and (token.isalnum() or token == "(")) + token
    return float(eval(text, {"__builtins__": {}}, dict(sizes)))


def formula(row: Mapping[str, Any]) -> tuple[float, float]:
    """A formula by what it is of."""
    if row["quantity"].startswith("activation bytes of a layer"):
        return activation_bytes(row)
    if row["quantity"].startswith("elements a device sends"):
        return elements_sent(row)
    raise InputError(row["quantity"])


PRINTED: Mapping[str, Callable[[Mapping[str, Any]], tuple[float, float]]] = {
    "ratio": bubble,
    "formula": formula,
    "counts": collectives_of_a_block,
}
"""What answers rows of what is printed, by their unit: the printed number and ours."""

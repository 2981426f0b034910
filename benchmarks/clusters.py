"""Published memory and time of trainings on many devices, beside what learncost predicts from the tables.

    python benchmarks/clusters.py [ROWS.json] [--only TEXT] [--format table|json]

ROWS.json has the form of benchmarks/clusters.json, which is taken by default: `rows`, each with id, config, quantity,
value and unit. A row is answered where its configuration is complete; the others are listed with what is missing.
One of another source says in config: device, model or a GPT's sizes (hidden, heads, layers, vocab), seq, tp, pp, dp or
gpus, micro_batch, global_batch; and what is not the usual: recompute (full, selective), zero, interleave, flash,
sequence_parallel.
Nothing is fitted to a row: what is assumed of a device is in src/learncost/devices (devices.toml, sustained.toml,
clusters.toml), and what frameworks do is said here, once for each of them (FRAMEWORKS).
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from learncost.devices.cluster import Cluster, cluster, clusters
from learncost.equation.errors import InputError
from learncost.equation.precision import PRECISIONS, Precision
from learncost.models.configuration import configure
from learncost.models.model import Model, build, run_sizes
from learncost.parallel.account import Account
from learncost.parallel.rates import sustained
from learncost.parallel.segments import Part
from learncost.parallel.step import Way, memory_of, sizes_of, stages_of, step_of
from learncost.placement.clauses import clauses
from learncost.placement.mesh import mesh
from learncost.readings.time import Rates
from learncost.schedule.pipeline import peak, run, schedule

GIB = 2**30


@dataclass(frozen=True)
class Framework:
    """What a framework does, as it says itself: the plan that stands for its kernels, types, overlap, buffers."""

    plan: str
    kind: Precision
    overlap: bool
    workspace: bool
    why: str


_MIXED = PRECISIONS["bf16"]

FRAMEWORKS = {
    "megatron-2022": Framework(
        "fused", replace(PRECISIONS["fp16"], gradients="fp32"), False, False,
        "Korthikanti et al. 2022: scores are stored, dropout has masks of a byte, gradients are summed in fp32",
    ),
    "megatron-te": Framework(
        "flash,fused,recompute=silu,zigzag", replace(_MIXED, gradients="fp32"), False, True,
        "flash attention and TransformerEngine's kernels: a gate's activation is made again; gradients are summed in "
        "fp32 by products that leave a buffer of each shape; nothing overlaps, as the rows' guide says",
    ),
    "deepspeed": Framework(
        "fused", PRECISIONS["fp16"], False, False,
        "Megatron-DeepSpeed: weights and gradients in 16 bits, states and masters in fp32",
    ),
    "deepspeed-fp32": Framework(
        "fused", replace(PRECISIONS["bf16"], gradients="fp32"), False, False,
        "the same with gradients summed in fp32",
    ),
    "bridge": Framework(
        "flash,fused,recompute=silu,zigzag", replace(_MIXED, gradients="fp32"), True, True,
        "as Megatron-LM with TransformerEngine, with its overlaps of gradients and weights",
    ),
    "fsdp-eager": Framework(
        "flash,zigzag", replace(_MIXED, weights="fp32", gradients="fp32", masters=""), True, False,
        "FSDP2: weights, gradients and states in fp32, cut; weights gathered in bf16 beside what is computed",
    ),
    "fsdp-compile": Framework(
        "flash,fused,zigzag", replace(_MIXED, weights="fp32", gradients="fp32", masters=""), True, False,
        "FSDP2 under torch.compile, whose kernels join pointwise lines",
    ),
}  # fmt: skip

TENSOR, SEQUENCE = "h f v over tp", "h f v over tp, M over tp of values"
ZERO_1, ZERO_3 = "B over dp, * over dp of states", "B over dp, * over dp of weights gradients states"


@dataclass(frozen=True)
class Answer:
    """What a row says, and what is predicted; `kind`: memory, reserved, time or printed; or why it is not answered."""

    name: str
    kind: str
    published: float = 0.0
    predicted: float = 0.0
    unit: str = ""
    why: str = ""

    @property
    def off(self) -> float:
        return self.predicted / self.published - 1


@cache
def account(setting: tuple[Any, ...]) -> Account:
    """The account of a placed step, one for all rows that have it."""
    name, overrides, dropout, inner, text, plan, framework, seq, microbatch = setting
    model = _model(name, overrides, dropout)
    batch = microbatch * prod(size for axis, size in inner if axis in ("dp", "ep"))
    sizes = {**model.sizes, **run_sizes(model, max(1, batch), seq, None)}
    shape = ",".join(f"{axis}={size}" for axis, size in inner) or "dp=1"
    return Account(model, sizes, mesh(shape), clauses(text or ZERO_1), FRAMEWORKS[framework].kind, plan)


@cache
def _model(name: str, overrides: tuple[tuple[str, Any], ...], dropout: bool) -> Model:
    return build(configure(name, dict(overrides)), dropout=dropout)


@dataclass(frozen=True)
class Case:
    """A row's configuration: what its account is of, and the way."""

    key: tuple[Any, ...]
    way: Way
    seq: int
    framework: str
    on: str
    blocks_only: bool = False
    bandwidth_gbs: float | None = None
    watts: float | None = None

    def account(self) -> Account:
        return account(self.key)

    def sizes(self) -> dict[str, int]:
        model = self.account().model
        return {**model.sizes, **run_sizes(model, 1, self.seq, None)}


def korthikanti(row: Mapping[str, Any]) -> Case:
    """GPT of Megatron-LM on A100s; the sources of figure 1 have no vocabulary: there blocks alone are counted."""
    config = row["config"]
    mode, figure = config["mode"], "fig" in row["id"]
    overrides = {
        "n_embd": config["hidden"], "n_head": config["heads"], "n_layer": config["blocks"],
        "n_positions": config["seq"], "vocab_size": config["vocab"], "n_inner": config["feedforward"],
    }  # fmt: skip
    plan = "fused"
    if "full" in mode:
        plan += ",recompute=block"
    elif "selective" in mode:
        plan += ",recompute=attn.R+attn.S+softmax"  # from queries, keys and values
    tensor = SEQUENCE if "sequence" in mode or "SP" in mode else TENSOR
    tensor = tensor if config["tp"] > 1 else ""
    pipeline, chunks = config["pp"], config["interleave"]
    way = Way(
        _mesh(pp=pipeline, tp=config["tp"]),
        config["micro_batch"],
        config["global_batch"] // config["micro_batch"] // config["dp"],
        "interleaved" if chunks > 1 else "1f1b",
        chunks,
        overlap=False,
    )
    key = _key("gpt2", overrides, True, way, tensor, plan, "megatron-2022", config["seq"])
    return Case(key, way, config["seq"], "megatron-2022", "DGX A100", figure)


def simumax(row: Mapping[str, Any]) -> Case:
    """Megatron-LM with TransformerEngine on 8 B200."""
    config = row["config"]
    latent = config["model"].startswith("deepseek")
    names = {"llama3_70b": "llama-3-70b", "llama3_405b": "llama-3.1-405b", "deepseekv3": "deepseek-v3"}
    names |= {"deepseekv2": "deepseek-v2", "llama3_8b": "llama-3-8b"}
    overrides: dict[str, Any] = {"num_hidden_layers": config["layers"]}
    if latent:
        overrides["first_k_dense_replace"] = config["dense_layers"]
    else:
        overrides["num_key_value_heads"] = config["kv_heads"]
    experts = config["ep"]
    axes = _mesh(pp=config["pp"], dp=config["dp"] // experts, ep=experts, cp=config["cp"], tp=config["tp"])
    text = []
    if config["tp"] > 1:
        text.append(SEQUENCE)
    if experts > 1:
        text.append("e over ep of experts, B over ep, * over ep of states")
    if config["cp"] > 1:
        text.append("M over cp, * over cp of states")
    if "dp" in axes:
        text.append(ZERO_1)
    way = Way(axes, config["micro_batch"], config["micro_batches"], overlap=False, workspace=True)
    plan = FRAMEWORKS["megatron-te"].plan
    key = _key(names[config["model"]], overrides, False, way, ", ".join(text), plan, "megatron-te", config["seq"])
    return Case(key, way, config["seq"], "megatron-te", "DGX B200")


def torchtitan(row: Mapping[str, Any]) -> Case:
    """FSDP2 with tensor, context and pipeline parallelism on H100s of 2.4 TB/s."""
    config = row["config"]
    name = {"8b": "llama-3-8b", "70b": "llama-3-70b", "405b": "llama-3.1-405b"}[config["model"].rsplit("-", 1)[1]]
    axes = _mesh(pp=config.get("pp", 1), dp=config.get("fsdp", 1), cp=config.get("cp", 1), tp=config.get("tp", 1))
    text = [SEQUENCE] if "tp" in axes else []
    text += ["M over cp, * over cp of weights gradients states"] if "cp" in axes else []
    text += [ZERO_3] if "dp" in axes else []
    framework = "fsdp-eager" if config.get("mode") == "eager" else "fsdp-compile"
    plan = FRAMEWORKS[framework].plan
    if config.get("recompute") == "full":
        plan += ",recompute=block"
    elif "selective" in config.get("recompute", ""):
        plan += ",recompute=norm+silu+attn.K.unturned+A+mlp.V"  # every other product, and all that is pointwise
    pipeline = axes.get("pp", 1)
    batch = config["local_batch"]
    several = config.get("schedule") == "Interleaved1F1B"
    way = Way(axes, 1 if pipeline > 1 else batch, batch if pipeline > 1 else 1,
              "interleaved" if several else "1f1b", 2 if several else 1,
              beside=("tp",) if "async" in config.get("mode", "").lower() else ())  # fmt: skip
    overrides = {"max_position_embeddings": config["seq"]}
    key = _key(name, overrides, False, way, ", ".join(text), plan, framework, config["seq"])
    return Case(key, way, config["seq"], framework, "DGX H100", bandwidth_gbs=2400, watts=500)


def bridge(row: Mapping[str, Any]) -> Case:
    """Megatron Bridge: the tables of its performance summary."""
    config = row["config"]
    names = {"DeepSeekV3": "deepseek-v3", "GPT-OSS-120B": "gpt-oss-120b", "Qwen3_235B_a22B": "qwen3-235b-a22b"}
    names |= {"Qwen3_30B_a3B": "qwen3-30b-a3b", "LLAMA3_8B": "llama-3-8b", "LLAMA3_70B": "llama-3-70b"}
    names |= {"LLAMA3.1_405B": "llama-3.1-405b"}
    systems = {"DGX-GB300": "GB300 NVL72", "DGX-GB200": "GB200 NVL72", "DGX-B200": "DGX B200", "DGX-H100": "DGX H100"}
    parallel = config["tp"] * config["pp"] * config["cp"] * config["ep"]
    if config["gpus"] % parallel:
        raise InputError("experts lie over other axes than the mesh has")
    chunks = int(config["vp"]) if str(config["vp"]).isdigit() else 1
    axes = _mesh(pp=config["pp"], dp=config["gpus"] // parallel, ep=config["ep"], cp=config["cp"], tp=config["tp"])
    text = [SEQUENCE] if "tp" in axes else []
    text += ["e over ep of experts, B over ep, * over ep of states"] if "ep" in axes else []
    text += ["M over cp, * over cp of states"] if "cp" in axes else []
    zero = ZERO_3 if config["fsdp"] else ZERO_1
    text += [zero] if "dp" in axes else []
    way = Way(axes, config["mbs"], config["ga"], "interleaved" if chunks > 1 and config["pp"] > 1 else "1f1b",
              chunks if config["pp"] > 1 else 1, workspace=True)  # fmt: skip
    plan = FRAMEWORKS["bridge"].plan
    key = _key(names[config["model"]], {}, False, way, ", ".join(text), plan, "bridge", config["seq"])
    return Case(key, way, config["seq"], "bridge", systems[config["system"]])


def bigscience(row: Mapping[str, Any]) -> Case:
    """Megatron-DeepSpeed on A100s, as BigScience's chronicles tell: gigabytes as nvidia-smi shows them."""
    config = row["config"]
    parallel = {key: _told(config["parallel"], key) for key in ("dp", "tp", "pp")} | {
        "zero": config["parallel"].get("zero") or 0
    }
    overrides = {
        "n_embd": config["hidden"], "n_head": config["heads"], "n_layer": _told(config, "layers"),
        "n_positions": config["seq"], "vocab_size": config["vocab"], "n_inner": config["ffn"],
    }  # fmt: skip
    if config.get("activation_checkpointing") != "full" or parallel.get("zero", 0) > 1:
        raise InputError("only full recomputation and ZeRO-1 of this source are known here")
    plan = "fused,recompute=block"
    text = [TENSOR] if parallel["tp"] > 1 else []
    text += [ZERO_1 if parallel.get("zero") else "B over dp"] if parallel["dp"] > 1 else []
    axes = _mesh(pp=parallel["pp"], dp=parallel["dp"], tp=parallel["tp"])
    microbatches = _told(config, "global_batch") // _told(config, "micro_batch") // parallel["dp"]
    way = Way(axes, config["micro_batch"], max(1, microbatches), overlap=False)
    framework = "deepspeed-fp32" if "fp32 grad" in config["precision"] else "deepspeed"
    key = _key("gpt2", overrides, False, way, ", ".join(text), plan, framework, config["seq"])
    return Case(key, way, config["seq"], framework, "DGX A100")


SIZES = {
    "n_embd": ("hidden",), "n_head": ("heads",), "n_layer": ("layers", "blocks"), "vocab_size": ("vocab",),
    "n_inner": ("ffn", "feedforward"),
}  # fmt: skip
"""What rows call the sizes of a GPT."""

RECOMPUTED = {"full": ",recompute=block", "selective": ",recompute=attn.R+attn.S+softmax", "none": ""}
"""What rows say of recomputation. Under flash attention scores are made again in any case."""


def any_source(row: Mapping[str, Any]) -> Case:
    """A row of any other source whose configuration is complete: Megatron-LM as of its device's time, or ZeRO-3.

    `model` names a preset, or the sizes are a GPT's; tp, pp, cp and ep are 1 where nothing is said; dp, or gpus.
    """
    config = {**row["config"], **(row["config"].get("parallel") or {})}
    machine = _cluster_of(config)
    old = machine.device.name.startswith(GENERATION_BEFORE)
    framework = "megatron-2022" if old and not config.get("flash") else "bridge"
    if name := str(config.get("model", "")) if "hidden" not in config else "":
        overrides: dict[str, Any] = {}
    else:
        overrides = {"n_positions": _told(config, "seq")}
        overrides |= {size: _told(config, *names) for size, names in SIZES.items() if size != "n_inner"}
        overrides |= {"n_inner": config.get("ffn") or config.get("feedforward") or 4 * overrides["n_embd"]}
    inner = {axis: int(config.get(axis) or 1) for axis in ("pp", "ep", "cp", "tp")}
    number = int(config.get("dp") or _told(config, "gpus") // prod(inner.values()))
    axes = _mesh(pp=inner["pp"], dp=number, ep=inner["ep"], cp=inner["cp"], tp=inner["tp"])
    several = framework == "bridge" if config.get("sequence_parallel") is None else config["sequence_parallel"]
    zero = config.get("zero")
    by_zero = {0: "B over dp", 3: ZERO_3}
    text = [SEQUENCE if several else TENSOR] if "tp" in axes else []
    text += ["e over ep of experts, B over ep, * over ep of states"] if "ep" in axes else []
    text += ["M over cp, * over cp of states"] if "cp" in axes else []
    text += [by_zero.get(int(not old) if zero is None else int(zero), ZERO_1)] if "dp" in axes else []
    micro = _told(config, "micro_batch", "mbs")
    chunks = int(config.get("interleave") or config.get("vp") or 1) if "pp" in axes else 1
    microbatches = max(1, _told(config, "global_batch", "gbs") // micro // number // inner["ep"])
    kind = "interleaved" if chunks > 1 else "1f1b"
    way = Way(axes, micro, microbatches, kind, chunks, overlap=zero == 3 or not old, workspace=not old)
    recomputed = str(config.get("recompute") or config.get("activation_checkpointing") or "none")
    if recomputed not in RECOMPUTED:
        raise InputError(f"recomputation is {', '.join(RECOMPUTED)}, not {recomputed!r}")
    is_flash = framework == "bridge" and recomputed == "selective"
    plan = FRAMEWORKS[framework].plan + ("" if is_flash else RECOMPUTED[recomputed])
    seq = _told(config, "seq")
    key = _key(name or "gpt2", overrides, False, way, ", ".join(text), plan, framework, seq)
    return Case(key, way, seq, framework, machine.name)


GENERATION_BEFORE = ("NVIDIA V100", "NVIDIA A100")
"""Devices of trainings whose scores of attention are stored, and whose gradients all devices have whole."""


def _cluster_of(config: Mapping[str, Any]) -> Cluster:
    """The cluster of a device that a row names in its own words."""
    said = " ".join(str(config.get(key, "")) for key in ("device", "system", "hardware"))
    words = {word: each for each in clusters().values() for word in each.name.split() if any(map(str.isdigit, word))}
    named = [word for word in words if word in said]
    if not named:
        raise InputError(f"no cluster is known of its device, {said.strip() or 'which it does not name'}")
    return words[max(named, key=len)]


def _told(config: Mapping[str, Any], *keys: str) -> int:
    """The number that a row has by one of these words."""
    for key in keys:
        if config.get(key) is not None:
            return int(config[key])
    raise KeyError(keys[0])


def _mesh(**axes: int) -> dict[str, int]:
    return {axis: size for axis, size in axes.items() if size > 1}


def _key(
    name: str, overrides: Mapping[str, Any], dropout: bool, way: Way, text: str, plan: str, framework: str, seq: int
) -> tuple[Any, ...]:
    inner = tuple((axis, size) for axis, size in way.mesh.items() if axis != "pp")
    return name, tuple(overrides.items()), dropout, inner, text, plan, framework, seq, way.microbatch


SOURCES = {"korthikanti": korthikanti, "simumax": simumax, "torchtitan": torchtitan, "bridge": bridge}
SOURCES["t/bigscience-a100"] = bigscience


def answer(row: Mapping[str, Any]) -> Answer:
    """One row answered."""
    if row.get("unit") in PRINTED:
        try:
            return PRINTED[row["unit"]](row)
        except (InputError, KeyError) as error:
            return Answer(row["id"], "", why=f"what is printed is not known here: {error}")
    source = next((make for name, make in SOURCES.items() if row["id"].startswith(name)), any_source)
    if not isinstance(row.get("config"), dict):
        return Answer(row["id"], "", why="its configuration is not in parts")
    if "fp8" in json.dumps(row["config"]).lower() and "memory" not in row["quantity"]:
        return Answer(row["id"], "", why="computes in FP8")
    try:
        case = source(row)
        return _answered(row, case)
    except (InputError, KeyError) as error:
        return Answer(
            row["id"], "", why=f"{error}" if isinstance(error, InputError) else f"its configuration lacks {error}"
        )


def printed_bubble(row: Mapping[str, Any]) -> Answer:
    """Narayanan et al. 2021: the pipeline's bubble over the ideal time, by running the orders of equal stages."""
    config = row["config"]
    devices, chunks = _told(config, "p"), int(config.get("v", 1))
    orders = schedule("interleaved" if chunks > 1 else "1f1b", devices, _told(config, "m"), chunks)
    alike = [1.0] * orders.stages
    return Answer(row["id"], "printed", float(row["value"]), run(orders, alike, alike).bubble, "ratio")


def printed_formula(row: Mapping[str, Any]) -> Answer:
    """Korthikanti et al. 2022, table 2: bytes of a layer's activations, at the sizes of GPT-3.

    The paper leaves out what is small beside B M d, as the statistics of norms, which are counted here.
    """
    config = row["config"]
    if not row["quantity"].startswith("activation bytes of a layer"):
        raise InputError(row["quantity"])
    t = _told(config, "t")
    sizes = {"s": 2048, "b": 1, "a": 96, "h": 12288, "t": t}
    full = {
        "hidden": sizes["h"], "feedforward": 4 * sizes["h"], "seq": sizes["s"], "heads": sizes["a"], "blocks": 1,
        "vocab": 51200, "tp": t, "pp": 1, "interleave": 1, "dp": 1, "micro_batch": sizes["b"],
        "global_batch": sizes["b"], "mode": config["mode"],
    }  # fmt: skip
    case = korthikanti({**row, "config": full})
    return Answer(row["id"], "printed", _value(row["value"], sizes), _activations(case, case.sizes()), "bytes")


def _value(formula: str, sizes: Mapping[str, int]) -> float:
    """A formula as it is printed, such as `sbh (10 + 24/t)`: letters are sizes, what stands side by side is multiplied.

    Raises `InputError` for anything else in it.
    """
    tokens = re.findall(r"\d+|[a-z]|[-+/()]", formula.replace(" ", ""))
    if "".join(tokens) != formula.replace(" ", "") or {token for token in tokens if token.isalpha()} - sizes.keys():
        raise InputError(formula)
    text = ""
    for token in tokens:
        follows = bool(text) and (text[-1].isalnum() or text[-1] == ")")
        text += "*" * (follows and (token.isalnum() or token == "(")) + token
    return float(eval(text, {"__builtins__": {}}, dict(sizes)))


SMALL = 1e-4
"""Of what is printed the share up to which it leaves out what is small."""

PRINTED = {"ratio": printed_bubble, "formula": printed_formula}
"""What answers rows of what is printed, by their unit."""


def _answered(row: Mapping[str, Any], case: Case) -> Answer:
    quantity, value = row["quantity"], row["value"]
    if isinstance(value, list):
        value = value[0]
    found, sizes = case.account(), case.sizes()
    own = sizes_of(found, case.way, sizes)
    if why := found.divides(own):
        raise InputError(why)
    if "percent" in quantity:
        alone = replace_mode(row, "TP, no recomputation")
        share = _activations(case, sizes) / _activations(korthikanti(alone), sizes)
        return Answer(row["id"], "memory", value, 100 * share, "%")
    if quantity.startswith("activations"):
        return Answer(row["id"], "memory", value, _activations(case, sizes) / GIB, "GiB")
    if quantity.startswith("parameters"):
        several = stages_of(found, case.way, sizes)[:: case.way.stages]
        total = sum(found.static(own, Part(each.turns, frozenset())).total for each in several)
        return Answer(row["id"], "memory", value, total / GIB, "GiB")
    if not isinstance(value, int | float):
        raise InputError("its value is no number")
    if "allocated" in quantity or "reserved" in quantity or "peak memory" in quantity:
        stages = memory_of(found, case.way, sizes)
        peak_bytes = max(stage.peak for stage in stages)
        unit = GIB if row["unit"] in ("GiB", "memory_gb") else 1e9
        kind = "memory" if "allocated" in quantity else "reserved"
        return Answer(row["id"], kind, value, peak_bytes / unit, row["unit"])
    machine = cluster(case.on)
    rates = sustained(machine.device, "bf16" if case.framework != "megatron-2022" else "fp16")
    if case.bandwidth_gbs:
        usual = max(machine.device.bandwidth_gbs)
        curve = replace(rates.bandwidth, values=tuple(v * case.bandwidth_gbs / usual for v in rates.bandwidth.values))
        rates = replace(rates, bandwidth=curve)
    if case.watts:  # a device with less power has its clock lowered in products: in proportion, it is assumed
        rates = slower(rates, case.watts / float(machine.device.tdp_w or case.watts))
    takes = step_of(found, case.way, sizes, machine, rates, case.seq)
    if row["unit"] == "ms":
        return Answer(row["id"], "time", value, 1e3 * takes.seconds, "ms")
    if row["unit"] == "s":
        return Answer(row["id"], "time", value, takes.seconds, "s")
    if not row["unit"].startswith("tok"):
        raise InputError(f"its unit is {row['unit']}, and times are told in s, ms and tok/s/GPU")
    return Answer(row["id"], "time", value, takes.tokens_per_second, "tokens/s")


def slower(rates: Rates, share: float) -> Rates:
    """The rates of products at a share of the clock."""
    grids = {
        name: replace(grid, rates=tuple(rate * share for rate in grid.rates)) for name, grid in rates.products.items()
    }
    inner = replace(rates.inner, rates=tuple(rate * share for rate in rates.inner.rates))
    return replace(rates, products=grids, inner=inner)


def replace_mode(row: Mapping[str, Any], mode: str) -> dict[str, Any]:
    """The same row in another mode."""
    return {**row, "config": {**row["config"], "mode": mode}}


def _activations(case: Case, sizes: Mapping[str, int]) -> float:
    """Bytes that the first device of a pipeline keeps of microbatches, of its blocks alone."""
    found, own = case.account(), sizes_of(case.account(), case.way, sizes)
    way = case.way
    kept = [float(found.activations(own, Part(part.turns, frozenset())).kept) for part in stages_of(found, way, sizes)]
    most = min(way.microbatches, 8 * way.stages * way.chunks)
    most = max(way.stages, most // way.stages * way.stages) if way.chunks > 1 else most
    return peak(schedule(way.schedule, way.stages, most, way.chunks), 0, kept)


def answers(rows: list[Mapping[str, Any]]) -> Iterator[Answer]:
    """Rows answered; figures of one account one after the other."""
    yield from map(answer, rows)


def summary(found: list[Answer]) -> str:
    """How far the answers are off, in words."""
    lines = []
    for kind, title in (("memory", "allocated memory"), ("time", "time without FP8")):
        off = sorted(abs(each.off) for each in found if each.kind == kind)
        if off:
            lines.append(
                f"{title}: {len(off)} rows, {100 * statistics.median(off):.1f} % off in the median, "
                f"{100 * off[-1]:.1f} % at worst"
            )
    if formulas := [each for each in found if each.kind == "printed"]:
        unlike = [each.name for each in formulas if abs(each.off) > SMALL]
        lines.append(f"printed formulas: {len(formulas)} rows, {len(unlike)} unlike {', '.join(unlike)}".rstrip())
    reserved = [each for each in found if each.kind == "reserved"]
    if reserved:
        above = [each.name for each in reserved if each.off > 0]
        lines.append(
            f"reserved or rounded memory: {len(reserved)} rows, {len(above)} predicted above what was published"
            + (f": {', '.join(above)}" if above else "")
        )
    return "\n".join(lines)


def main() -> None:
    """Print all rows and how far they are off."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="?", default=str(Path(__file__).with_name("clusters.json")))
    parser.add_argument("--only", default="", help="rows with this in their id")
    parser.add_argument("--format", default="table", choices=("table", "json"))
    arguments = parser.parse_args()
    content = json.loads(Path(arguments.rows).read_text(encoding="utf-8"))
    rows = [row for row in content["rows"] if arguments.only in row["id"]]
    found = list(answers(rows))
    if arguments.format == "json":
        print(json.dumps([each.__dict__ for each in found], indent=1))
        return
    for each in found:
        if each.kind:
            print(
                f"{each.name:<62} {each.kind:<8} {each.published:>10,.2f} {each.predicted:>10,.2f} {each.unit:<8} "
                f"{100 * each.off:+6.1f} %"
            )
        else:
            print(f"{each.name:<62} not answered: {each.why}")
    print()
    print(summary(found))
    print(f"not answered: {sum(not each.kind for each in found)} of {len(found)}")


if __name__ == "__main__":
    main()

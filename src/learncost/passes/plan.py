"""Define the plans: named rewrites of a step's table that change its schedule and memory, never its results.

Plans are written as a list, `chunked-loss,fused-update,recompute=gelu+norm`, and applied in the order of the registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, named_one
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.ops.optimizers import OPTIMIZERS


@dataclass(frozen=True)
class Plan:
    """A plan: `apply` returns an equivalent table, or the table itself if the plan does not apply.

    argument  the placeholder after `=` if the plan takes names, joined by `+`, which `apply` receives
    example   an example of these names
    eager     whether PyTorch's autograd runs it: its modules have fused attention, and hooks may step the optimizer
    meshes    whether it changes a step over a mesh alone
    """

    name: str
    title: str
    source: str
    apply: Callable[[Table, tuple[str, ...]], Table]
    argument: str = ""
    example: str = ""
    eager: bool = False
    meshes: bool = False

    @property
    def spelling(self) -> str:
        """The syntax of the plan, such as `recompute=WHAT`."""
        return f"{self.name}={self.argument}" if self.argument else self.name


def _found_in(module: str, name: str = "", **settings: bool) -> Callable[[Table, tuple[str, ...]], Table]:
    """Return the rewrite in a module of this package, which is imported when it is applied so that start-up is fast."""

    def apply(table: Table, parts: tuple[str, ...]) -> Table:
        plan_function = getattr(import_module(f"learncost.passes.{module}"), name or module)
        result = plan_function(table, *([parts] if parts else ()), **settings)
        assert isinstance(result, Table)
        return result

    return apply


def _keep(table: Table, ops: tuple[str, ...]) -> Table:
    """Return the step itself: sharding saves the results of the collectives (sharding/place.py).

    Raises `InputError` for an operator that sends nothing.
    """
    from learncost.ops import entry
    from learncost.ops.collectives import KIND, SENDS_NOTHING

    for op in ops:
        if entry(op).kind != KIND or op in SENDS_NOTHING:
            raise InputError(f"keep takes collectives, such as all_gather or dispatch: {op} is not one")
    return table


CHOSEN = "auto"
"""The name of the plan that a planner chooses by the memory of the step."""

NONE = "none"
"""The name of no plan, where one is usual."""

FUSED_ATTENTION = "flash"
"""The plan of what runs where none is given: PyTorch and the libraries of large trainings have fused attention."""

CHECKPOINTS = "recompute=block"
"""The plan that equals the procedure recompute: `torch.utils.checkpoint` of every block."""

# Plans are applied in this order, however they are written: first rewrites of single parts, then recomputation and
# fused updates, and last the fusion of adjacent lines.
PLANS: Mapping[str, Plan] = {
    plan.name: plan
    for plan in (
        Plan(
            "flash",
            "FlashAttention: attention scores are never stored, and recomputed backward, some queries at a time",
            "Dao et al. 2022, FlashAttention: fast and memory-efficient exact attention with IO-awareness",
            _found_in("flash"),
            eager=True,
        ),
        Plan(
            "ring",
            "ring attention over many devices: each passes its shard of keys, values and their gradients on",
            "Liu, Zaharia & Abbeel 2023, Ring attention with blockwise transformers for near-infinite context",
            _found_in("flash", "ring"),
            meshes=True,
        ),
        Plan(
            "chunked-loss",
            "chunked cross-entropy: logits, loss and their gradients one sequence at a time, never batch x vocabulary",
            "Wijmans et al. 2024, Cut your losses in large-vocabulary language models, with smaller chunks",
            _found_in("chunked_loss"),
            eager=True,
        ),
        Plan(
            "recompute",
            "activation checkpointing: chosen forward lines of every block run again in the backward pass",
            "Chen et al. 2016, Training deep nets with sublinear memory cost; "
            "Korthikanti et al. 2022, Reducing activation recomputation in large transformer models",
            _found_in("recompute"),
            "WHAT",
            "gelu+norm",
        ),
        Plan(
            "fused-update",
            "the optimizer step fused into the backward pass: a weight is updated as soon as its gradient exists",
            "Lv et al. 2023, Full parameter fine-tuning for large language models with limited resources",
            _found_in("fused_update"),
            eager=True,
        ),
        Plan(
            "multi-tensor-update",
            "fused-update, but one kernel updates all vectors of one shape at the end, such as biases: fewer launches",
            "NVIDIA Apex, multi_tensor_apply; for what has a small gradient",
            _found_in("fused_update", together=True),
        ),
        Plan(
            "epilogue-update",
            "fused-update, with the optimizer as the epilogue of the product that makes a gradient: never stored",
            "Lv et al. 2023 (LOMO) update a weight once its whole gradient is there; this goes on, tile by tile of it",
            _found_in("fused_update", "epilogue_update"),
        ),
        Plan(
            "fused",
            "the lines between two matrix products fused into one kernel, which reads and writes every row once",
            "Ivanov et al. 2021, Data movement is all you need: a case study on optimizing transformers",
            _found_in("fused"),
        ),
        Plan(
            "keep",
            "over many devices: results of forward collectives are saved for the backward pass, not sent again",
            "FSDP2's reshard_after_forward=False; Jacobs et al. 2023, DeepSpeed Ulysses",
            _keep,
            "COLLECTIVES",
            "all_gather+dispatch",
            meshes=True,
        ),
        Plan(
            "zigzag",
            "over many devices: a shard has an early and a late chunk of causal positions, which balances the work",
            "Dubey et al. 2024, The Llama 3 herd of models, section 3.3.2: 2 x CP chunks, the i-th and the i-th last",
            lambda table, parts: table,  # sharding reorders positions (sharding/zigzag.py)
            meshes=True,
        ),
    )
}


def planned(table: Table, text: str, sizes: Mapping[str, int] | None = None) -> Table:
    """Return the step with plans applied, which are written as a comma-separated list, in the order of the registry.

    sizes   known sizes, by which the plans are also checked
    Raises `InputError` if a name or an argument is unknown, or if blocks do not divide into segments.
    """
    for plan, parts in plan_of(text):
        table = plan.apply(table, parts)
    if sizes is not None:
        check_segments(table, sizes)
    return table


def applies(table: Table, text: str) -> bool:
    """Return whether a plan applies to a table and changes it."""
    try:
        return planned(table, text).lines != table.lines
    except InputError:
        return False


def default_plan(table: Table) -> str:
    """Return the plan of a step or a pass where none is given: fused attention where it applies, else empty."""
    from learncost.passes.flash import is_fused  # imported where it is needed: start-up counts

    return FUSED_ATTENTION if applies(table, FUSED_ATTENTION) and is_fused(table) else ""


def by_eager(table: Table, asked: str | None) -> tuple[str, str]:
    """Return the plan that PyTorch's autograd runs for one that was asked for, or for none, and the plans it cannot.

    Its attention is fused under every plan but the empty one.
    """
    if asked == "":
        return "", ""
    usual, several = default_plan(table), plan_of(asked or "")
    texts = {plan.name: f"{plan.name}={'+'.join(parts)}" if parts else plan.name for plan, parts in several}
    plans = ",".join(texts.get(name, name) for name in PLANS if name == usual or name in texts)
    supported = (usual, CHECKPOINTS, *(name for name, plan in PLANS.items() if plan.eager and name != FUSED_ATTENTION))
    return plans, ",".join(text for text in texts.values() if text not in supported)


def recomputes_blocks(text: str) -> bool:
    """Return whether a plan saves the input of each block alone, as the procedure recompute does."""
    return CHECKPOINTS in map(str.strip, text.split(","))


def check_optimizer(text: str, optimizer: str) -> None:
    """Raise `InputError` if a plan updates weights in the epilogue of a product, and the optimizer needs all of it."""
    if "epilogue-update" in text and optimizer not in OPTIMIZERS:
        raise InputError(f"the plan epilogue-update requires an elementwise optimizer: {', '.join(OPTIMIZERS)}")


def check_plan(table: Table, asked: str, name: str, is_sharded: bool = False) -> None:
    """Raise `InputError` if a plan that was asked for changes nothing.

    name        of the step, for the message
    is_sharded  whether it is over a mesh, which some plans are for
    """
    for plan, parts in () if asked == CHOSEN else plan_of(asked):
        if plan.meshes and not is_sharded:
            raise InputError(f"the plan {plan.name} requires --mesh: it changes nothing on one device")
        if not plan.meshes and plan.apply(table, parts).lines == table.lines:
            raise InputError(f"the plan {plan.name} does not apply to {name}: it changes nothing")


def check_segments(table: Table, sizes: Mapping[str, int]) -> None:
    """Raise `InputError` if blocks do not divide into segments."""
    for loop in table.repeats:
        if "/" in loop.count:
            size_of(loop.count, sizes)


def plan_of(text: str) -> tuple[tuple[Plan, tuple[str, ...]], ...]:
    """Return the plans of a list with their arguments, in the order in which they are applied."""
    arguments: dict[str, tuple[str, ...]] = {}
    items = "" if text.strip() == NONE else text
    for item in filter(None, map(str.strip, items.split(","))):
        name, equals, argument = (part.strip() for part in item.partition("="))
        if name == CHOSEN:
            raise InputError(
                f"the plan {CHOSEN} depends on the memory of a step, which this command does not predict: "
                f"learncost memory MODEL --plan {CHOSEN} prints the chosen plan: give that"
            )
        plan = named_one("plan", name, PLANS)
        parts = tuple(part.strip() for part in argument.split("+"))
        if name in arguments:
            raise InputError(f"the plan {name} occurs twice in {text!r}: join its arguments by +")
        if plan.argument and not all(parts):
            raise InputError(
                f"the plan {name} needs an argument: write {plan.spelling}, as in {plan.name}={plan.example}"
            )
        if equals and not plan.argument:
            raise InputError(f"the plan {name} takes no argument: write {name} instead of {item!r}")
        arguments[name] = parts if plan.argument else ()
    return tuple((plan, arguments[name]) for name, plan in PLANS.items() if name in arguments)

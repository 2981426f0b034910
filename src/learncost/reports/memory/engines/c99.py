"""The engine c99: a freestanding program with one static arena, whose bytes are known before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, partial

from learncost.ir.table import Table
from learncost.passes.plan import CHOSEN
from learncost.program.arena import Region, assigned, label, largest_assigned, too_large
from learncost.reports.memory.engine import IN_PLACE, TYPES, Engine, MemoryUse, of_parts, refusal
from learncost.reports.memory.largest import largest_batch
from learncost.reports.memory.planner import smallest_arena_plan
from learncost.reports.memory.step import MemoryStep, by_lines


def _arrays(step: MemoryStep, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the arrays in RAM, each in one region."""
    from learncost.backends.c99.layout import alone, arrays  # emits kernels: only where it is asked for
    from learncost.engines.computed_inputs import names_computed

    return arrays([alone(step.executed_table(), sizes, step.kind.computed)], frozenset(names_computed(step.model)))


def _peak(step: MemoryStep, sizes: Mapping[str, int]) -> int:
    """Return the bytes in RAM; more than the regions have if the arrays cannot be laid out over them."""
    arrays = _arrays(step, sizes)
    fits = len(step.regions) < 2 or assigned(arrays, step.regions) is not None
    return sum(arrays.values()) if fits else max(sum(arrays.values()), 1 + sum(each.bytes for each in step.regions))


def _largest(step: MemoryStep, budget: int) -> int:
    """Return the largest batch that fits the budget, or the regions."""

    @cache
    def arrays(batch: int) -> dict[str, int]:
        return _arrays(step, step.sizes(batch))

    most = largest_batch(lambda batch: sum(arrays(batch).values()), budget)
    return most if len(step.regions) < 2 else largest_assigned(lambda batch: [arrays(batch)], step.regions, most)


def _takes(step: MemoryStep, sizes: Mapping[str, int]) -> MemoryUse:
    from learncost.backends.c99.layout import alone, counted
    from learncost.backends.c99.layout import arrays as arrays_of
    from learncost.engines.computed_inputs import names_computed

    layout, made = (
        alone(step.executed_table(statistics=True), sizes, step.kind.computed),
        frozenset(names_computed(step.model)),
    )
    memory = counted([layout], made)
    parts = {
        "weights": memory.weights,
        "optimizer state": memory.states,
        "batch": memory.inputs,
        "variables": memory.variables,
        "arena": memory.arena,
    }
    if memory.masks:
        parts["masks"] = memory.masks
    text = unfit = ""
    if step.regions:
        arrays = arrays_of([layout], made)
        places = assigned(arrays, step.regions)
        unfit = "" if places else too_large(arrays, step.regions)
        where = f"Bytes by region: {_where(arrays, places, step.regions)}." if places else f"They do not fit: {unfit}."
        text = f"{CONVENTION} {where}"
    if not step.model.learns:
        text = f"{text or CONVENTION} learncost emit refuses this model: it {step.model.without_loss}."
    return of_parts(parts, text, flash=memory.constants, arena=layout.map, unfit=unfit)


def _where(arrays: Mapping[str, int], places: Mapping[str, str], regions: Sequence[Region]) -> str:
    """Return the arrays of each region."""
    lying = {region: [label(name) for name in arrays if places[name] == region.name] for region in regions}
    sizes = {region: sum(arrays[name] for name in arrays if places[name] == region.name) for region in regions}
    texts = (f"{sizes[region]:,} in {region.name} ({', '.join(names)})" for region, names in lying.items() if names)
    return "; ".join(texts)


def _arrays_of(table: Table, sizes: Mapping[str, int], dtype: str) -> dict[str, int]:
    from learncost.backends.c99.layout import alone, arrays

    return arrays([alone(table, sizes, dtype)], frozenset())


def _flash(table: Table, sizes: Mapping[str, int], dtype: str) -> int:
    from learncost.backends.c99 import program_memory

    return program_memory(table, sizes, dtype).constants


CONVENTION = (
    "Exact static RAM of the program of learncost emit --backend c99: .data and .bss. Stack and code are not included; "
    "learncost verify --engine c99 measures them if a compiler is installed."
)

ENGINES = (
    Engine(
        "c99",
        _peak,
        _takes,
        IN_PLACE,
        CONVENTION,
        lambda step: refusal(step, (*TYPES, "int32"), with_flash=True),
        plan=lambda table: CHOSEN,
        planner=partial(by_lines, planner=smallest_arena_plan),
        alone="its program is for one board, without communication",
        largest=_largest,
        passes=lambda *given: sum(_arrays_of(*given).values()),
        arrays=_arrays_of,
        stored=_flash,
        plans=(
            "",
            "fused-update",
            "epilogue-update",
            "fused,epilogue-update",
            "flash,fused,epilogue-update,recompute=all",
        ),
    ),
)

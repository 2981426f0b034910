"""How a comparison of learning procedures is shown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from learncost.ledger.sheet import WIDTH, Row, Sheet, number, rounded
from learncost.ledger.show import active, convention, learning, title, words
from learncost.procedures.procedure import LEARNING, MACRO_OPERATIONS

if TYPE_CHECKING:
    from learncost.ledger.compare import Comparison, Overtaking
    from learncost.ledger.record import Amount

_JACOBIANS = (
    "The paper charges backpropagation with explicit Jacobians (of softmax and of normalization), which real "
    "implementations avoid; that makes PEPITA and MEMPEPITA look cheaper than they run. `run` counts what is executed."
)


def records(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """Every macro-operation under every book by every procedure; counts are whole numbers."""
    for book, costs in comparison.costs.items():
        for procedure, cost in costs.items():
            macros: dict[str, tuple[int | str, Amount]] = {**cost.macro_operations, "total": ("", cost.total)}
            for macro, (passes, amount) in macros.items():
                own = {"price_book": book, "procedure": procedure, "macro_operation": macro, "passes": passes}
                yield own | amount.to_dict()


def sheets(comparison: Comparison, width: int = WIDTH) -> tuple[Sheet, ...]:
    """Macro-operations by procedure; ratios to bp by book; who overtakes whom."""
    return (
        _macro_operations(comparison, width),
        _ratios(comparison),
        *((_crossings(comparison),) if comparison.overtaking else ()),
    )


def _macro_operations(comparison: Comparison, width: int) -> Sheet:
    """Counts exactly where they fit, else in millions, and so on, with three digits after the point."""
    for power in (0, 6, 9, 12, 15, 18):
        found = _counts(comparison, power)
        if found.width <= width:
            return found
    return _counts(comparison, None)


def _counts(comparison: Comparison, power: int | None) -> Sheet:
    costs = comparison.costs[comparison.price_book]

    def written(value: int) -> str:
        if power is None:
            return rounded(value)
        return f"{value / 10**power:,.3f}" if power else number(value)

    rows = []
    for kind in ("MACCs", "FLOPs"):
        unit = f", 10^{power}" if power else ""
        rows.append(Row((f"{kind}{unit}", *("" for _ in costs)), "dim"))
        for macro in MACRO_OPERATIONS:
            amounts = [cost.macro_operations[macro] for cost in costs.values()]
            if any(passes for passes, _ in amounts):
                values = [written(getattr(amount, kind.lower())) if passes else "-" for passes, amount in amounts]
                rows.append(Row((words(macro), *values), depth=1))
        totals = [getattr(cost.total, kind.lower()) for cost in costs.values()]
        rows.append(Row(("total", *map(written, totals)), "bold", 1))
    first = comparison.first
    heading = title(first).replace(f"one step of {first.procedure}", "one step")
    notes = ["Rounded; --format json has every digit."] if power != 0 else []
    notes += [f"{convention(comparison.price_book)}. {_optimizers(comparison)}."]
    notes.append(f"{first.parameters:,} parameters{active(first)}{learning(first)}. Counted: {first.counted}.")
    if first.training:
        notes.append(f"Training on {first.training['tokens']:,} tokens takes {first.training['steps']:,} steps.")
    if comparison.left_out:
        notes.append(f"{comparison.left_out}.")
    return Sheet(heading, ("", *costs), tuple(rows), tuple(notes))


def _optimizers(comparison: Comparison) -> str:
    """The optimizer, and the books that have another one."""
    own = comparison.first.optimizer
    found = {name: next(iter(costs.values())).optimizer for name, costs in comparison.costs.items()}
    others = (f"; under {name} {one}" for name, one in found.items() if one != own)
    return f"Optimizer: {own}{''.join(others)}"


def _ratios(comparison: Comparison) -> Sheet:
    rows = []
    for book in comparison.costs:
        for kind in ("MACCs", "FLOPs"):
            ratios = [comparison.ratio(name, book, kind.lower()) for name in comparison.procedures]
            cells = ("-" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
            rows.append(Row((f"{book}, {kind}", *cells)))
    notes = (_JACOBIANS,) if any(LEARNING[name].compares for name in comparison.procedures) else ()
    return Sheet("One step over one step of bp, by price book", ("", *comparison.procedures), tuple(rows), notes)


def _crossings(comparison: Comparison) -> Sheet:
    pairs = dict.fromkeys(found.procedures for found in comparison.overtaking)
    rows = []
    for pair in pairs:
        own = [found for found in comparison.overtaking if found.procedures == pair]
        said = {_said(found) for found in own}
        rows.append(Row((f"{pair[0]}, {pair[1]}", said.pop() if len(said) == 1 else "")))
        if said:
            for found in own:
                label = f"{found.price_book}, {found.quantity.upper()[:-1]}s"
                rows.append(Row((label, _said(found)), depth=1))
    notes = []
    if comparison.positions and any(c.beyond_positions for found in comparison.overtaking for c in found.crossings):
        notes.append(f"* beyond the {comparison.positions:,} positions that the model learns.")
    lengths = " = ".join(name.replace("_", "-") for name in comparison.varied)
    heading = f"The cheaper one at every sequence length from 1 to 10^12 ({lengths}, all else as above)"
    return Sheet(heading, ("", ""), tuple(rows), tuple(notes), frozenset({0, 1}))


def _said(found: Overtaking) -> str:
    start = found.cheaper[0].procedure
    if not found.crossings:
        return "never: both cost the same" if start is None else f"never: {start} is cheaper at every length"
    parts = []
    for one, following in zip(found.cheaper, (*found.cheaper[1:], None), strict=True):
        name = one.procedure or "both the same"
        star = "*" if one.beyond_positions else ""
        last = "" if following is None else following.seq_len - 1
        if following is None:
            parts.append(f"{name} from {one.seq_len:,}{star}")
        elif one.seq_len == last:
            parts.append(f"{name} at {last:,}{star}")
        else:
            parts.append(f"{name} to {last:,}")
    return ", ".join(parts)

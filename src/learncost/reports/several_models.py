"""The steps of several models under several learning procedures, in one table for a paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError
from learncost.reports.compare import Comparison
from learncost.reports.compare import compare as compare_one
from learncost.reports.record import Cost
from learncost.reports.request import Request
from learncost.reports.sheet import WIDTH, Sheet, TableColumn, TabularAnswer, seconds_of, size_of, table, words_of
from learncost.reports.show import convention

POWERS = (0, 6, 9, 12, 15, 18)
"""The powers of ten of a column's unit: the largest that leaves its largest number above 1."""


@dataclass(frozen=True, repr=False)
class ModelComparison(TabularAnswer):
    """The steps of several models under several learning procedures.

    Attributes
    ----------
    models
        The comparison of learning procedures for each model.

    Examples
    --------
    >>> found = lc.compare(["gpt2", "gpt2-medium"], "bp,pepita", seq_len=64)
    >>> [(row.model, row.procedure) for row in found.rows]
    [('gpt2', 'bp'), ('gpt2', 'pepita'), ('gpt2-medium', 'bp'), ('gpt2-medium', 'pepita')]
    """

    _schema = 1

    models: tuple[Comparison, ...]

    @property
    def rows(self) -> tuple[Cost, ...]:
        """Return the step of each model under each procedure."""
        return tuple(cost for each in self.models for cost in each.costs[each.price_book].values())

    def sheets(self, width: int = WIDTH) -> tuple[Sheet, ...]:
        """Return one table: a row for each model and procedure, counts in a common unit."""
        rows, first = self.rows, self.rows[0]
        costs = ((each, cost) for each in self.models for cost in each.costs[each.price_book].values())
        ratios = {id(cost): each.ratio(cost.procedure) for each, cost in costs}

        def scaled(heading: str, values: Sequence[int]) -> TableColumn:
            power = max((power for power in POWERS if max(values) >= 10**power), default=0)
            places = {id(row): value for row, value in zip(rows, values, strict=True)}
            unit = f", 10^{power}" if power else ""
            return TableColumn(f"{heading}{unit}", lambda row: f"{places[id(row)] / 10**power:,.{3 if power else 0}f}")

        def ratio(row: Cost) -> str:
            value = ratios[id(row)]
            return "" if value is None else f"{value:.3f}"

        columns = (
            *words_of("model procedure"),
            TableColumn("tokens", lambda row: f"{row.seq_len:,}"),
            scaled("parameters", [row.parameters for row in rows]),
            scaled("MACCs", [row.total.maccs for row in rows]),
            scaled("FLOPs", [row.total.flops for row in rows]),
            TableColumn("of bp", ratio, shown=any(map(ratio, rows))),
            TableColumn("time", lambda row: seconds_of(row.time or 0.0), shown=all(row.timing for row in rows)),
            TableColumn(
                "peak memory",
                lambda row: size_of(row.memory.peak) if row.memory else "-",
                shown=any(row.memory for row in rows),
            ),
        )
        optimizers = ", ".join(dict.fromkeys(row.optimizer for row in rows))
        notes = [f"{convention(first.price_book)}. Optimizer: {optimizers}."]
        notes += [f"{each.first.model}: {each.left_out}." for each in self.models if each.left_out]
        title = f"One step of {first.batch_size:,} sequence{'s' if first.batch_size > 1 else ''}, by learning procedure"
        return (table(title, columns, rows, notes),)


def compare_models(request: Request, models: Sequence[Any], procedures: Iterable[str] | str | None) -> ModelComparison:
    """Return the comparison of several models. Raises `InputError` as `compare` for any of them."""
    if len(models) < 2:
        raise InputError("give two models or more, such as gpt2 llama-2-7b")
    return ModelComparison(tuple(compare_one(replace(request, model=model), procedures) for model in models))

"""The parts of a step's time by axes, from which a page without Python computes the seconds for other sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from learncost.cost_models import PricedLine
from learncost.ir.dataclass import attributes
from learncost.ir.polynomial import Polynomial, total
from learncost.reports.record import Cost
from learncost.timing.rates import FRESH, MatmulGrid, Rates
from learncost.timing.work import Extent, WorkAxes, queried, works_axes
from learncost.viz.data.costs import CostLine, Monomials


def times(step: Cost, lines: Iterable[CostLine]) -> dict[str, Any]:
    """Return the rates of the device, and the kernels of the step with their lines.

    recorded  the time of the kernels of a recorded step, or of one in Triton, at the sizes of the document
    A work has its lines by their places among the document's; its bytes, points and products by places among the
    monomials here.
    """
    assert step.timing is not None
    assert step._priced is not None
    rates, rows = step.timing.rates, step.timing.rows
    shown = {row: place for place, line in enumerate(lines) for row in line.rows}
    places = {place: shown[row] for place, row in step.timing.places.items()}
    monomials = Monomials()
    several = works_axes(rows, step._priced.dtype, rates.operators, rates.ops, step.timing.updated)
    works = [_work(work, rows, places, monomials) for work in several]
    return {
        "device": rates.name,
        "low": rates.low,
        "high": rates.high,
        "watts": rates.watts,
        "rates": _rates(rates),
        "works": works,
        "monomials": monomials.to_list(),
        **({"recorded": attributes("seconds low high busy waiting program")(step.recorded)} if step.recorded else {}),
    }


def _work(work: WorkAxes, rows: Sequence[PricedLine], places: dict[int, int], monomials: Monomials) -> dict[str, Any]:
    def axes(of: Iterable[str]) -> int:
        return monomials.places.setdefault(tuple(sorted(of)), len(monomials.places))

    def extent(of: Extent) -> list[int]:
        return [axes(of[0]), of[1]]

    result: dict[str, Any] = {
        "lines": [
            {
                "line": places[line.place],
                **(
                    {
                        "product": [
                            *map(axes, (product.batch, product.rows, product.columns, product.summed)),
                            product.orientation,
                            queried(product, work.blocks) if work.blocks else "",
                        ]
                    }
                    if (product := line.product)
                    else {}
                ),
                **({"points": [[name, *extent(of)] for name, of in line.points]} if line.points else {}),
            }
            for line in work.lines
        ],
        "repeat": monomials.exported(work.repeat),
        "flops": monomials.exported(total(rows[line.place].flops for line in work.lines) or Polynomial()),
        "phase": work.phase,
        "bytes": [
            [name, work.bits[name], [[*extent(part[:2]), axes(part[2])] for part in parts]]
            for name, parts in work.bytes.items()
        ],
        "made": [[extent(part)[0], work.width] for part in work.made.values()],
    }
    if work.kernel is not None:
        result["kernel"] = axes(work.kernel)
    if blocks := work.blocks:
        windows = [axes((window,)) for window in blocks.windows]
        result["blocks"] = {
            "axis": axes((blocks.axis,)),
            "most": blocks.most,
            "ordered": blocks.ordered,
            "windows": windows,
        }
    return result


def _rates(rates: Rates) -> dict[str, Any]:
    grids: list[MatmulGrid] = []
    for grid in (*rates.products.values(), rates.inner):
        if grid not in grids:
            grids.append(grid)
    return {
        "products": {name: grids.index(grid) for name, grid in rates.products.items()},
        "inner": grids.index(rates.inner),
        "grids": [{"sizes": grid.sizes, "rates": grid.rates} for grid in grids],
        "bandwidth": {"places": rates.bandwidth.places, "values": rates.bandwidth.values},
        "ops": dict(rates.ops),
        "fresh_from": FRESH,
        **attributes("launch launch_backward optimizer fresh step queues threads")(rates),
    }

"""The counts of common FLOPs counters: each by the rule of its source, computed from the model's table.

The rules are of the versions named, for linear layers written as nn.Linear (or addmm) and norms as nn.LayerNorm, and
were measured on a block of GPT-2 with its head; attention is written with matmul, or with the fused
scaled_dot_product_attention, which most of them do not see on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterable

from learncost.cost_models import PricedLine
from learncost.cost_models.books import BOOKS
from learncost.ir.dataclass import Key, Serializable, dataclass, field
from learncost.ir.line import Op, Product, Sum
from learncost.ir.loop import walk
from learncost.ir.polynomial import Polynomial, total
from learncost.ir.term import Term
from learncost.layers.products import matrix_maccs
from learncost.reports.run import PreparedRun


@dataclass(frozen=True)
class FlopsCounter(Serializable):
    """The count of a FLOPs counter in its unit, with attention by matmul and by the fused kernel."""

    name: str = field(metadata=Key("counter").field)
    version: str
    unit: str
    by_matmul: int = field(metadata=Key("attention_by_matmul").field)
    fused: int = field(metadata=Key("attention_fused").field)
    rule: str


_TORCH = (
    "two FLOPs a MAC of mm, addmm, bmm, baddbmm and convolutions, backward as autograd runs it; the fused kernel is 0 "
    "on the CPU without dropout, bmm on meta, and on CUDA 2 products forward and 5 backward, masks ignored"
)
_FVCORE = "MACs of products, and 5 an element of layer norms; forward alone"
_PTFLOPS = "MACs of mm, addmm and bmm, and 1 an element that a bias is added to; forward alone"
_CALFLOPS = "MACs of linear layers and torch.matmul; `@`, einsum, bmm and the fused kernel are 0; forward alone"
_THOP = "MACs of nn.Linear, and 4 an element of layer norms; attention's products are 0 however written; forward alone"


def counters(run: PreparedRun, plain: tuple[PricedLine, ...]) -> tuple[FlopsCounter, ...]:
    """Return the counters with exactly known rules; `plain` are the rows of a step's matrix products."""
    forward = [row for row in plain if row.macro_operation == "forward"]
    linear = _sum(run, (row.maccs for row in forward if row.kind == "linear"))
    attention = _sum(run, (row.maccs for row in forward if row.kind == "attention"))
    both = _sum(run, (row.flops for row in plain))
    unseen = _sum(run, (row.flops for row in plain if row.kind == "linear"))
    fused = _sum(run, (row.flops for row in run.rows("bp", BOOKS["torch-flop-counter"])))
    products = linear + attention
    norms, biases = 5 * _sum(run, _norms(run)), _sum(run, _biases(run))

    def torch(where: str, by_matmul: int, kernel: int) -> FlopsCounter:
        return FlopsCounter(f"FlopCounterMode, {where}", "torch 2.13.0", "FLOPs", by_matmul, kernel, _TORCH)

    counted = [
        torch("CPU, forward", 2 * products, 2 * linear),
        torch("CPU, in all", both, unseen),
        torch("CUDA, in all", both, fused),
    ]
    if _experts(run):  # they choose by values, which meta has none of, and their weights are in no nn.Linear
        return tuple(counted)
    return (
        *counted,
        torch("meta, in all", both, both),
        FlopsCounter("fvcore", "3378afe", "MACs", products + norms, linear + norms, _FVCORE),
        FlopsCounter("ptflops, aten", "0.7.5", "MACs", products + biases, linear + biases, _PTFLOPS),
        FlopsCounter("calflops", "0.3.2", "MACs", products, linear, _CALFLOPS),
        FlopsCounter("thop", "43c064a", "MACs", linear + norms // 5 * 4, linear + norms // 5 * 4, _THOP),
    )


def _sum(run: PreparedRun, counts: Iterable[Polynomial]) -> int:
    count = total(counts)
    return int(count.at(run.axes)) if count else 0


def _norms(run: PreparedRun) -> Iterable[Polynomial]:
    """Return the number of elements that layer norms read."""
    for line, nest in walk(run.model.table.lines):
        if isinstance(line, Op) and line.op == "normalize":
            yield Polynomial.of((*line.left[0].loops, *nest.counts))


def _biases(run: PreparedRun) -> Iterable[Polynomial]:
    """Return the number of elements of products with a weight to which a bias is added."""
    table, products = run.model.table, set()
    for line, nest in walk(table.lines):
        if isinstance(line, Product) and matrix_maccs(line):
            products.add(line.name)
        elif isinstance(line, Sum):
            names = [term.name for term in line.right]
            if products.intersection(names) and any(name in table.weights for name in names):
                yield Polynomial.of((*line.left[0].loops, *nest.counts))


def _experts(run: PreparedRun) -> bool:
    """Return whether matrix products read weights at an index."""
    table = run.model.table
    return any(
        isinstance(line, Product)
        and matrix_maccs(line)
        and any(isinstance(term, Term) and term.indexed and term.name in table.weights for term in line.right)
        for line, _ in walk(table.lines)
    )

"""Verification of layers, operators, models and procedures: differences, counted operations, other implementations.

Operators are layers of one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from learncost.autodiff.derive import Derived, derive
from learncost.autodiff.tangent import MARK, along_inputs
from learncost.cost_models.books import price
from learncost.interpreter import execute
from learncost.ir.dataclass import replace
from learncost.ir.errors import InputError
from learncost.ir.line import Condition, Line, Meta, Op, Product
from learncost.ir.loop import check_derived, map_lines, not_derived, walk
from learncost.ir.table import Table
from learncost.ir.term import Operand, Term
from learncost.ir.value import Value
from learncost.layers.layer import Layer, shipped, shipped_layer
from learncost.models.argument import GENERIC, layer_or_model
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, build
from learncost.models.small import small
from learncost.ops import OpDef, entries
from learncost.ops.optimizers import OPTIMIZERS
from learncost.passes.lower import lower
from learncost.procedures.procedure import LEARNING, several
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import step, trained_by
from learncost.verification.check import (
    LARGER,
    STEP,
    Meaning,
    Values,
    checks,
    count_operations,
    error,
    failures_as_checks,
    finite_arrays,
    seeds_of,
    takes_complex,
    values_of,
    worst,
)
from learncost.verification.known import known
from learncost.verification.plain import under_where
from learncost.verification.references import LAYERS, of_op
from learncost.verification.report import Check, VerificationReport
from learncost.verification.sample import small_sizes
from learncost.verification.stepped import arrays_of, sizes_of

# Operands that are numbers, and operands that the word asks for a logarithm, a root, a divisor or a condition of.
ROWS = frozenset(("z",))  # operands with one number for all that the word acts along
SCALARS = frozenset(("lr", "mu", "b1", "c1", "b2", "c2", "k1", "k2", "eps", "decay", "e", "a"))


def op_layer(entry: OpDef, masked: bool = False) -> Layer:
    """Return a layer of the operator on operands of axes a and n, along n if it has axes; masked: where n <= a."""
    axes = () if entry.pointwise else ("n",)
    operands = tuple(name for name in entry.inputs if name not in SCALARS or not entry.defaults)
    shapes: dict[str, tuple[str, ...]] = {name: () if name in SCALARS else ("a", "n") for name in operands}
    shapes |= {name: ("a",) for name in operands if name in ROWS}
    left = ("a", "k") if entry.chooses == "some" else ("a",) if entry.reduces else ("a", "n")
    shapes |= {f"{name}.out": left for name in entry.outputs}
    right: tuple[Operand, ...] = (*(Term(name, shapes[name]) for name in operands), *entry.defaults)
    outputs = tuple(f"{name}.out" for name in entry.outputs)
    line = Op(
        tuple(Term(name, left) for name in outputs),
        right,
        (Condition("n", "a"),) if masked else (),
        Meta(layer=entry.name, local=outputs[0], locals=entry.inputs),
        entry.name,
        axes,
        "body",
        entry.inputs,
        entry.outputs,
    )
    learn = {*_derived(entry)}
    values = {name: Value(operand_axes) for name, operand_axes in shapes.items()}
    values |= {name: Value(shapes[name], "constant") for name in operands if f"d{name}" not in learn}
    return Layer(entry.name, Table((line,), values, operands, (), outputs, entry.name))


def _derived(entry: OpDef) -> Iterator[str]:
    return (term.name for line in entry.gradient for term in line.left)


def consistent(entry: OpDef) -> Check:
    """Check that every line of an operator's tables uses names with their declared axes."""
    all_axes = ("_",) if entry.pointwise else ("_", "n")
    axes = {name: () if name in SCALARS else all_axes for name in entry.inputs}
    axes |= {name: ("_",) for name in entry.inputs if name in ROWS}
    axes |= dict.fromkeys(entry.outputs, ("_",) if entry.reduces else all_axes)
    axes |= {f"d{name}": axes_of_name for name, axes_of_name in axes.items()}
    body = _axes_after(entry.body, axes)
    problem = body if isinstance(body, str) else ""
    for lines in (entry.gradient, entry.jacobian):
        result = _axes_after(lines, axes if isinstance(body, str) else body)
        problem = problem or (result if isinstance(result, str) else "")
    return Check(entry.name, "axes of its body, gradient and Jacobian", problem or "consistent", not problem)


def _axes_after(lines: Iterable[Line], axes: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]] | str:
    """Return the axes of every name after the lines, or the first error."""
    axes_made: dict[str, tuple[str, ...]] = {}
    for line in lines:
        terms = [term for term in line.right if isinstance(term, Term)]
        left = line.left[0].declared
        if left != axes.get(line.name, left):
            return f"{line.left[0]} has other axes, in line: {line}"
        for term in terms:
            have = axes_made.get(term.name) or axes.get(term.name)
            if have is None:
                return f"{term.name} is not known, in line: {line}"
            read = term.declared if "n" in term.declared else tuple(axis.replace("n'", "n") for axis in term.declared)
            if read != have:
                return f"{term} has other axes, in line: {line}"
        right = {axis for term in terms for axis in term.declared}
        loose = isinstance(line, Product) or (isinstance(line, Op) and (line.axes or not terms))
        spread = isinstance(line, Product) and len(line.right) == 2 and len(terms) == 1  # a number times one value
        if (not set(left) <= right and terms and not spread) or (not loose and set(left) != right):
            return f"the axes on the left are not those on the right, in line: {line}"
        axes_made[line.name] = left
    return {**axes, **axes_made}


ROUNDING_TOLERANCE = 1e-12
"""Of the sum of all parts of a slope, how far two orders of adding them may be apart."""

SMALLEST = 1e-3
"""The smallest denominator of a relative difference of directional derivatives, as a share of the sum of the
directions: smaller derivatives are rounding errors of zero, as of a mean after a normalization."""


def with_tangent(table: Table) -> Table:
    """Return the table with tangents along directions of all values with a gradient."""
    return along_inputs(table, derive(table).gradients)


def along(table: Table, name: str, smallest: int = 2) -> Iterator[Check]:
    """Compare the outputs' tangent with gradients times direction and with a complex step, and count its operations."""
    derived = derive(table)
    if not derived.gradients:
        return
    what = "the tangent with the gradient times a direction"
    try:
        moved = with_tangent(table)
    except InputError as refusal:
        yield Check(name, what, str(refusal), None)
        return
    sizes = small_sizes(table, smallest)
    arrays, seeds = finite_arrays(table, sizes), seeds_of(table, sizes)
    generator = np.random.default_rng(5)
    names = tuple(derived.gradients)
    directions = {n: generator.standard_normal(np.shape(arrays[n])) for n in names}
    given = {**arrays, **{f"{n}{MARK}": direction for n, direction in directions.items()}}
    tangents = values_of(moved, given, sizes)
    values = values_of(derived.step, {**arrays, **seeds}, sizes)
    slope = sum(
        float(np.sum(seeds[f"d{output}"] * tangents[f"{output}{MARK}"]))
        for output in table.outputs
        if f"{output}{MARK}" in tangents
    )
    parts = [values[derived.gradients[n]] * directions[n] for n in names]
    least = SMALLEST * sum(float(np.sum(np.abs(direction))) for direction in directions.values())
    whole = max(sum(float(np.sum(np.abs(part))) for part in parts), least, 1e-300)
    difference = abs(slope - sum(float(np.sum(part)) for part in parts)) / whole
    yield Check(name, what, f"relative difference {difference:.1e}", difference <= ROUNDING_TOLERANCE)
    if takes_complex(table):
        stepped = {n: arrays[n] + STEP * 1j * directions[n] if n in directions else arrays[n] for n in arrays}
        execute(lower(table), stepped, sizes)
        imaginary = sum(float(np.sum(seeds[f"d{o}"] * np.imag(stepped[o]))) for o in table.outputs) / STEP
        difference = abs(slope - imaginary) / whole
        yield Check(
            name, "the tangent with a complex step", f"difference {difference:.1e}", difference <= ROUNDING_TOLERANCE
        )
    yield count_operations(f"{name} and its tangent", moved, given, sizes)


def verify(
    model: str | Model | Configuration | Layer | Table | None = None, procedure: str | None = None
) -> VerificationReport:
    """Prove every layer and word that comes with the package; or one model, layer or table.

    Parameters
    ----------
    model
        A preset, a path or a generic model's name; a layer's name or its file in the notation; or a model,
        configuration, layer or table itself. None takes all layers and all words. Only the structure counts: it runs at
        small sizes that are all different.
    procedure
        Of a model, the learning procedures to prove, with commas between; by default its table, and all of them.

    Returns
    -------
    Report
        The comparisons; `passed` is true if none failed. It prints as a table.

    Raises
    ------
    InputError
        For an unknown name, and a procedure without a model.

    Examples
    --------
    >>> report = lc.verify("residual")
    >>> report.passed
    True
    """
    return VerificationReport(
        "verification of every operator and every layer" if model is None else f"verification of {_title(model)}",
        tuple(_checks(model, several(procedure))),
    )


def _title(model: object) -> str:
    if isinstance(model, Model):
        return model.configuration.name
    if isinstance(model, str):
        return model
    return str(getattr(model, "name", "") or getattr(model, "title", "") or model)


def _checks(model: str | Model | Configuration | Layer | Table | None, procedures: Sequence[str]) -> Iterator[Check]:
    if model is None and not procedures:
        yield from all_ops()
        yield from all_layers()
        return
    if isinstance(model, str):
        model = layer_or_model(model)
    if procedures and (model is None or isinstance(model, (Layer, Table))):
        raise InputError("--procedure requires a model, such as gpt2")
    if isinstance(model, Layer):
        if model.live is not None:
            from learncost.verification.live import verify_live

            yield from verify_live(model, model.live())
            if lines := not_derived(model.table.lines):
                names = ", ".join(dict.fromkeys(line.meta.operator or line.op for line in lines))
                what = "the table by itself: its counts line by line, its gradients by complex steps and by libraries"
                yield Check(model.name, what, f"not derived: {names}", None)
                return
        yield from verify_table(model.table, model.name, LAYERS.get(model.name))
    elif isinstance(model, Table):
        yield from verify_table(model, model.title or "table")
    else:
        assert model is not None
        built = model if isinstance(model, Model) else build(_configured(model))
        if procedures:
            yield from verify_procedures(built, built.configuration.name, procedures)
        else:
            yield from verify_model(built)


def _configured(model: str | Configuration | Layer) -> Configuration:
    if isinstance(model, Configuration):
        return model
    return small(model) if model in GENERIC else configure(model, {})


def all_ops() -> Iterator[Check]:
    """Return every operator that computes something."""
    for entry in entries():
        if entry.kind != "constant":
            yield from verify_op(entry)


def verify_op(entry: OpDef) -> Iterator[Check]:
    """Verify an operator as a layer of one line, with large numbers too and, if possible, under a `where`.

    Large numbers must not overflow: exponentials are shifted by the maximum.
    """
    name, meaning = entry.name, of_op(entry.name)
    yield consistent(entry)
    yield from verify_table(
        op_layer(entry).table, name, meaning, required=entry.chooses != "some", smallest=5, larger=1000
    )
    if meaning is not None and entry.outside is not None and not entry.inline and not entry.chooses:
        masked = op_layer(entry, masked=True).table
        yield from verify_table(
            masked, f"{name} under a where", lambda x, *more: under_where(meaning, x, *more), smallest=5, larger=1000
        )


def all_layers() -> Iterator[Check]:
    """Return every layer of the package."""
    for name in shipped():
        yield from verify_table(shipped_layer(name).table, name, LAYERS.get(name), required=True)


def verify_table(
    table: Table,
    name: str,
    meaning: Meaning | None = None,
    required: bool = False,
    smallest: int = 2,
    larger: float = LARGER,
) -> Iterator[Check]:
    """Yield all comparisons of a table; a missing `required` reference implementation is a failure."""
    check_derived(table.lines, "it has no reference")
    if meaning is None and required:
        yield Check(
            name,
            "values against an independent implementation",
            "there is none in learncost.verification.references",
            False,
        )
    yield from failures_as_checks(name, checks(table, name, meaning, smallest=smallest, larger=larger))
    yield from failures_as_checks(name, along(table, name, smallest))
    yield from failures_as_checks(name, with_torch(table, name))
    yield from failures_as_checks(name, with_jax(table, name))


def with_torch(table: Table, name: str) -> Iterator[Check]:
    """Check values and gradients with PyTorch's autograd, FLOPs with its counter, if it is installed."""
    if find_spec("torch") is None:
        yield Check(name, "values, gradients and FLOPs with torch", "torch is not installed", None)
        return
    from learncost.verification import torch_side

    yield _autograd(table, name, "torch's autograd", torch_side.autograd)
    # The gradients of a product of three factors may be taken in several orders, and torch chooses its own.
    sizes, derived = small_sizes(table), derive(table)
    steps = [table] if _has_long_products(table) else [table, derived.step]
    passes = (False, True)[: len(steps)]
    counted = [torch_side.flops(table, derived.gradients, sizes, backward) for backward in passes]
    priced = [price(_by_axes(table), sizes, "matmul").flops for table in steps]
    text = f"forward {counted[0]} counted, {priced[0]} priced"
    text += f"; and backward {counted[1]}, {priced[1]}" if len(steps) > 1 else ""
    yield Check(name, "FLOPs of matrix products with FlopCounterMode on meta", text, counted == priced)


def _by_axes(table: Table) -> Table:
    """Return the table without the names of library operators, so that the translation multiplies by axes alone."""

    def change(line: Line) -> tuple[Line]:
        return (replace(line, meta=replace(line.meta, operator="")),)

    return replace(table, lines=map_lines(table.lines, change))


def with_jax(table: Table, name: str) -> Iterator[Check]:
    """Check values and gradients with JAX's differentiation, if it is installed."""
    if find_spec("jax") is None:
        yield Check(name, "values and gradients with jax's grad", "jax is not installed", None)
        return
    from learncost.verification import jax_side

    yield _autograd(table, name, "jax's grad", jax_side.autograd)


def _autograd(table: Table, name: str, whose: str, autograd: Callable[..., tuple[dict[str, Any], ...]]) -> Check:
    """Compare outputs and gradients with those of a library's autograd."""
    sizes = small_sizes(table)
    arrays, seeds = finite_arrays(table, sizes), seeds_of(table, sizes)
    derived = derive(table)
    values = values_of(derived.step, {**arrays, **seeds}, sizes)
    outputs, gradients = autograd(table, arrays, seeds, derived.gradients, sizes)
    errors = {key: error(values[key], array) for key, array in outputs.items()}
    errors |= {f"d{key}": error(values[derived.gradients[key]], array) for key, array in gradients.items()}
    text, passed = worst(errors)
    if not passed:
        moved = _moved_by_rounding(derived, values, {**arrays, **seeds}, sizes)
        passed = moved <= ILL_CONDITIONED and max(errors.values()) <= ROUNDINGS * moved
        text += f"; rounding what is given moves gradients by {moved:.1e}" if passed else ""
    return Check(name, f"values and gradients with {whose}", text, passed)


ROUNDINGS = 8.0
"""The largest difference of two summation orders, in multiples of the effect of rounding the inputs once."""

ILL_CONDITIONED = 1e-7
"""The change by one rounding above which a comparison of gradients is meaningless."""


def _moved_by_rounding(derived: Derived, values: Values, arrays: Values, sizes: Mapping[str, int]) -> float:
    """Return the change of a gradient when every input changes by a unit in its last place, up or down."""
    generator = np.random.default_rng(0)
    unit = np.finfo(np.float64).eps
    moved = {
        key: array * (1 + unit * generator.choice((-1.0, 0.0, 1.0), array.shape)) if array.dtype.kind == "f" else array
        for key, array in arrays.items()
    }
    others = values_of(derived.step, moved, sizes)
    return max(error(others[gradient], values[gradient]) for gradient in derived.gradients.values())


def _has_long_products(table: Table) -> bool:
    lines = [line for line, _ in walk(table.lines) if isinstance(line, Product)]
    return any(sum(isinstance(term, Term) for term in line.right) > 2 for line in lines)


# Models and learning procedures.


def verify_model(model: Model) -> Iterator[Check]:
    """Verify a model's table, then a step of every procedure with every optimizer."""
    name = model.configuration.name
    yield from verify_table(model.table, name)
    yield from failures_as_checks(name, verify_procedures(model, name))


def verify_procedures(model: Model, name: str, procedures: Iterable[str] = LEARNING) -> Iterator[Check]:
    """Tallies of every step; procedures that are to give the same weights, such as recomputation, do bit for bit; and
    what else is known of each."""
    results: dict[str, Mapping[str, Any]] = {}
    for procedure in procedures:
        chosen = find_procedure(procedure)
        if chosen.part and procedures is LEARNING:
            continue  # another procedure on a model of which a part is frozen
        if not model.learns and chosen.compares:
            yield Check(f"{name}, {procedure}", "a step", "the model has no output with targets to learn from", None)
            continue
        try:
            step(model, procedure, "sgd")
        except InputError as refusal:  # such as weights that all iterations share, for pepita
            yield Check(f"{name}, {procedure}", "a step", str(refusal), None)
            continue
        for optimizer in {each.op: name for name, each in reversed(OPTIMIZERS.items())}.values():
            table = step(model, procedure, optimizer)
            sizes = small_sizes(table)
            arrays = finite_arrays(table, sizes)
            yield count_operations(f"{name}, {procedure} with {optimizer}", table, arrays, sizes)
        results[procedure] = _new_weights(trained_by(model, procedure), procedure)
        yield from failures_as_checks(f"{name}, {procedure}", known(model, chosen, f"{name}, {procedure}"))
    for first, weights in results.items():
        second = find_procedure(first).equals
        if second:
            expected = results[second] if second in results else _new_weights(model, second)
            yield _bit_for_bit(name, first, second, weights, expected)


def _new_weights(model: Model, procedure: str) -> Mapping[str, Any]:
    table = step(model, procedure, "sgd")
    sizes = sizes_of(model, table)
    values = values_of(table, arrays_of(model, table, sizes), sizes)
    return {key: values[key] for key in table.renewed.values()}


def _bit_for_bit(name: str, first: str, second: str, weights: Mapping[str, Any], expected: Mapping[str, Any]) -> Check:
    different = [key for key in expected if not np.array_equal(weights[key], expected[key])]
    text = f"{len(expected)} updated weights are the same" if not different else f"{different[0]} differs"
    same = bool(expected) and weights.keys() >= expected.keys() and not different
    return Check(name, f"{first} with {second}, bit for bit", text, same)

"""A checked run, with its model, sizes and training, and the priced lines of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

from learncost.cost_models import Book, Price, PricedLine, price
from learncost.cost_models.books import BOOKS
from learncost.cost_models.books import book as find_book
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, counted, named_one, real_number, shown
from learncost.ir.line import Line
from learncost.ir.polynomial import size_of
from learncost.ir.table import Table
from learncost.models.configuration import Configuration, configure
from learncost.models.model import Model, Structure, build, context_beyond, run_sizes
from learncost.models.sizes import CANONICAL, check_size, resolve, spelled
from learncost.models.tables import RUN, check_batch
from learncost.procedures.optimizer import default_optimizer
from learncost.procedures.optimizer import optimizer as find_optimizer
from learncost.procedures.procedure import PROCEDURES
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.step import adaptation, step, trained_by
from learncost.reports.record import Cost
from learncost.reports.request import GPU, ON_DEVICE, OPERATORS, Request
from learncost.reports.rows import ledger

if TYPE_CHECKING:
    from learncost.devices.cluster import Cluster
    from learncost.ir.precision import Precision
    from learncost.reports.mesh_cost import OverMesh
    from learncost.reports.timing import Timing
    from learncost.timing.rates import Rates

LARGEST_TRAINING = 10**18  # tokens

LIGER_PLAN = "chunked-loss"
"""The plan that engine eager applies to modules whose table it does not change: Liger's loss of any head."""


@lru_cache(maxsize=64)
def _priced(structure: Structure, name: str, book: str, optimizer: str, mode: str, plan: str) -> tuple[PricedLine, ...]:
    price_book = find_book(book)
    table = _under(plan, step(structure.model, name, optimizer, price_book.jacobian, mode))
    return price(table, {}, price_book).rows


def _under(plan: str, table: Table) -> Table:
    """Return the step under a plan."""
    if not plan:
        return table
    from learncost.passes.plan import planned  # imported where it is needed: start-up counts

    return planned(table, plan)


def rows_of(
    model: Model, name: str, book: str | Book, optimizer: str | None = None, mode: str = "paper", plan: str = ""
) -> tuple[PricedLine, ...]:
    """Return the priced lines of one step of a procedure under a plan, as polynomials in the axes' sizes.

    optimizer  where it is None, the book's (`default_optimizer`)
    """
    priced_by = find_book(book)
    optimizer = optimizer or default_optimizer(priced_by)
    if find_procedure(name).compares and not model.learns:
        step(model, name, optimizer)  # refuses with its own message
    if priced_by.rule == "formula":
        if plan:
            raise InputError(
                f"price book {priced_by.name} is a formula for whole models: remove --plan, or use another price book"
            )
        from learncost.cost_models.formula import priced as by_formula  # imported where it is needed: start-up counts

        return by_formula(model, priced_by, name)
    if BOOKS.get(priced_by.name) is priced_by:
        return _priced(Structure(model), name, priced_by.name, optimizer, mode, plan)
    table = _under(plan, step(model, name, optimizer, priced_by.jacobian, mode))
    return price(table, {}, priced_by).rows  # a book of the caller's own


Answer = TypeVar("Answer")


def possible(
    answered: Callable[[str], Answer], asked: Iterable[str] = tuple(PROCEDURES)
) -> tuple[dict[str, Answer], dict[str, str]]:
    """Return the answer for each learning procedure, and why the others are refused; by default the usual ones.

    Raises `InputError` where all of them are refused.
    """
    answers, refused = dict[str, Answer](), dict[str, str]()
    for name in asked:
        try:
            answers[name] = answered(name)
        except InputError as error:
            refused[name] = str(error)
    if not answers:
        raise InputError(next(iter(refused.values())))
    return answers, refused


def left_out_text(refused: Mapping[str, str]) -> str:
    """Return the procedures that are left out and why, grouped by reason; "" if there are none."""
    reasons = dict.fromkeys(refused.values())
    by_reason = {reason: [name for name in refused if refused[name] == reason] for reason in reasons}
    parts = [(" and ".join(names), reason, reason.removeprefix(f"{names[0]} ")) for reason, names in by_reason.items()]
    return "; ".join(f"left out: {who}{'; ' if rest == reason else ', which '}{rest}" for who, reason, rest in parts)


TEACHER = "teacher."
"""Before the names, the layers and the sizes of the teacher of a distillation."""


@dataclass(frozen=True)
class PreparedRun:
    """A checked request before pricing: the model, the sizes of all axes, and the training settings."""

    model: Model
    axes: Mapping[str, int]
    book: Book
    optimizer: str | None
    precision: Precision
    tokens: int | None
    trained: str = "all"
    plan_asked: str | None = None  # None: none was given
    context: int | None = None  # the model's, where its default length is taken and is shorter
    engine: str = "eager"  # whose time is predicted
    again: tuple[int, int] = (0, 0)  # forward passes without gradients: of the model, and of a reference model
    teacher: Model | None = None  # whose forward pass is one more; its sizes in `axes` are prefixed
    every: int = 1  # of so many blocks the first is recomputed

    @property
    def plan(self) -> str:
        """Return the plan that is counted: the one that was given, else empty."""
        return self.plan_asked or ""

    @property
    def dtype(self) -> str:
        """Return the type of activations."""
        return self.precision.values

    @property
    def length_note(self) -> str:
        """Return the note on how to request the whole context if the default length is shorter, else ""."""
        return "" if self.context is None else f" (--seq-len; context {self.context:,})"

    @property
    def _asked(self) -> dict[str, Any]:
        """Return the fields of the request that a ledger repeats."""
        return {"plan": self.plan, "tokens": self.tokens, "_length_note": self.length_note}

    def with_separate_trip_counts(self) -> PreparedRun:
        """Return the run with a name for the trip count of every loop over blocks, of which pipeline stages have parts.

        Numbers are trip counts where adapters or a module cut a loop.
        """
        from learncost.passes.stages import with_separate_trip_counts  # imported where it is needed: start-up counts

        table = with_separate_trip_counts(self.model.table)
        counts = zip(self.model.table.repeats, table.repeats, strict=True)
        named = {new.count: int(size_of(old.count, self.axes)) for old, new in counts if new.count != old.count}
        model = replace(self.model, table=table, sizes={**self.model.sizes, **named})
        return replace(self, model=model, axes={**self.axes, **named})

    def rows(self, procedure: str, book: Book) -> tuple[PricedLine, ...]:
        """Return the priced lines of one step of a procedure, as polynomials in the axes' sizes.

        Last are the forward passes without gradients; a reference model is the model without adapters.
        """
        rows = rows_of(self.model, procedure, book, self.optimizer, plan=self.plan)
        if self.every > 1 and book.rule != "formula":
            rows = tuple(self._with_checkpoints(rows, self.table(procedure, book)))
        again = [row for each in self._passes(rows, book) for row in each]
        return (*rows, *(replace(row, place=len(rows) + number) for number, row in enumerate(again)))

    def _with_checkpoints(
        self, rows: Sequence[PricedLine], table: Table, within: Mapping[str, int] = {}
    ) -> Iterator[PricedLine]:
        """Yield the rows of a step, recomputed in the first of every so many blocks alone.

        within  the iterations of a pipeline stage
        """
        from learncost.program.checkpoints import fewer_recomputed  # imported where it is needed: start-up counts

        fewer = fewer_recomputed((self.model.table, self.model.depth), table, self.axes, self.every, within)
        place = count()
        for row in rows:  # a book may add a sum, which is no line
            found = fewer.get(next(place)) if isinstance(row.source, Line) else None
            yield row.with_counts(found.of) if found else row

    def _passes(self, rows: Sequence[PricedLine], book: Book) -> list[list[PricedLine]]:
        """Return the lines of every forward pass without gradients."""
        forward = [row for row in rows if row.macro_operation == "forward"]
        own, reference = self.again
        passes = [forward] * own + [[row for row in forward if row.layer != "lora"]] * reference
        if self.teacher is not None:
            of_teacher = rows_of(self.teacher, "bp", book, self.optimizer, plan=self.plan)
            sizes = [name.removeprefix(TEACHER) for name in self.axes if name.startswith(TEACHER)]
            names = {f"{name}{again}": f"{TEACHER}{name}{again}" for name in sizes for again in ("", "'", "''")}
            passes.append([row.renamed(names, TEACHER) for row in of_teacher if row.macro_operation == "forward"])
        return passes

    def table(self, procedure: str, book: Book) -> Table:
        """Return the priced step: the lines of `rows`, one for one, in their loops."""
        optimizer = self.optimizer or default_optimizer(book)
        return _under(self.plan, step(Structure(self.model).model, procedure, optimizer, book.jacobian))

    def executed(self, procedure: str, book: Book, on: Rates) -> PreparedRun:
        """Return the run as its engine executes it on a device. Raises `InputError`."""
        if book.rule == "formula":
            return self
        counted = replace(self, plan_asked="").table(procedure, book)
        return replace(self, plan_asked=executed_plan(counted, self.plan_asked, self.engine, on))

    def timing(self, procedure: str, book: Book, on: Rates, counted: tuple[PricedLine, ...] | None = None) -> Timing:
        """Return the time of one step of a procedure on a device.

        counted  the rows of the step as counted, if it runs under another plan
        """
        from learncost.reports.timing import optimizer_widths, timing  # imported where it is needed: start-up counts

        updated = optimizer_widths(self.table(procedure, book), self.precision)
        shown = None if counted is None else (counted, self.plan)
        return timing(self.rows(procedure, book), self.axes, on, self.dtype, book, updated, shown)

    def cost(self, procedure: str, book: Book, by: str = "layer", on: Rates | None = None) -> Cost:
        """Return the ledger of one step of a procedure, with its time on a device."""
        rows, chosen = self.rows(procedure, book), find_procedure(procedure)
        model, trained = trained_by(self.model, procedure), self.trained
        if (part := adaptation(chosen)) is not None:
            from learncost.models.adaptation import trainable_text  # imported where it is needed: start-up counts

            trained = trainable_text(model, part)
        timed = None
        if on is not None:
            run = self.executed(procedure, book, on)
            timed = run.timing(procedure, book, on, rows if run.plan != self.plan else None)
        optimizer = self.optimizer or default_optimizer(book)
        alone = replace(self, again=(0, 0), teacher=None)
        passes = self._passes(alone.rows(procedure, book), book) if any(self.again) or self.teacher else []
        numbers = [number for number, each in enumerate(passes) for _ in each]
        again = dict(enumerate(numbers, len(rows) - len(numbers)))
        answer = ledger(model, chosen, Price(book.name, rows, self.axes, self.dtype), by, timed, again=again)
        return replace(answer, trained=trained, optimizer=optimizer, **self._asked)

    def cost_over(
        self,
        procedure: str,
        book: Book,
        by: str,
        over: OverMesh,
        on: tuple[Cluster, Rates] | None = None,
        plan: str = "",
    ) -> Cost:
        """Return the ledger of one device's step of a procedure, with its traffic and time on a cluster.

        plan  of the step as it executes, if none was given
        """
        if book.rule not in ("executed", "matrix"):
            raise InputError(f"price book {book.name} does not support --mesh: use --price-book run or matmul")
        rows, sizes = price(over.placed.table, {}, book).rows, {**over.sizes, **over.placed.sizes}
        optimizer = self.optimizer or default_optimizer(book)
        chosen = find_procedure(procedure)
        model = trained_by(self.model, procedure)
        timed, takes = None, None
        if on is not None:
            from learncost.reports.mesh_time import over_time  # imported where it is needed: start-up counts

            timed, takes = over_time(self, procedure, rows, over, on, plan)
        if self.every > 1:
            rows = tuple(self._with_checkpoints(rows, over.placed.table, over.placed.iterations))
        rows = tuple(row for row in rows if over.runs(row.place, row.macro_operation))
        answer = ledger(model, chosen, Price(book.name, rows, sizes, self.dtype), by, timed, over)
        answer = replace(answer, trained=self.trained, optimizer=optimizer, **self._asked)
        return replace(answer, over_time=takes)


def executed_plan(table: Table, asked: str | None, engine: str, on: Rates) -> str:
    """Return the plan of a step or a pass as an engine executes it on a device, where one is asked for or none.

    table  without a plan
    Raises `InputError` for a plan that the engine does not support.
    """
    from learncost.passes.plan import by_eager, default_plan  # imported where it is needed: start-up counts

    if engine == "eager" and on.operators:
        plan, unsupported = by_eager(table, asked)
        if unsupported:
            raise InputError(f"engine eager does not support --plan {unsupported}: give --engine graph")
        return plan
    return default_plan(table) if asked is None and engine == "graph" else asked or ""


def prepare(request: Request, procedures: Iterable[str] | None = None) -> PreparedRun:
    """Check a request, and build the model. Raises `InputError`.

    procedures  how the model learns, if not by that of the request; none: it does not
    """
    lengths, sizes = lengths_of(request)
    if any(name in request.given for name in ("engine", "offload", "checkpoint_every", *ON_DEVICE.split())):
        from learncost.reports.memory.step import device_asked  # it is built on this module

        device_asked(request if request.on is not None else replace(request, on=GPU))  # no count depends on these
    tokens = None if request.tokens is None else check_tokens("tokens", request.tokens)
    probability = check_probability("dropout", request.dropout)
    book = find_book(request.price_book)
    if request.optimizer is not None:
        find_optimizer(request.optimizer)
    names = (request.procedure,) if procedures is None else tuple(procedures)
    kind = request.kind(counts_alone=request.on is None, trains=bool(names))
    for name in names:
        find_procedure(name)
    adapted_by = request.adaptation(kind) if names else None
    model = request.model
    if isinstance(model, Configuration):
        if sizes:
            raise InputError(f"{', '.join(sizes)}: sizes cannot be given with a Configuration")
        configuration = model
    else:
        configuration = configure(model, sizes, lengths=lengths)
    built = build(replace(configuration, learned=None), dropout=probability > 0)
    if tokens is not None:
        check_batch(built.table, configuration.name, configuration.layer)
    learning, chosen = "all", adapted_by or configuration.learned
    if configuration.layer and built.trained is not None:
        learning = "all that the table does not freeze"
    if adapted_by is not None and configuration.learned is not None:
        raise InputError("the live module fixes the trainable parameters (requires_grad): remove train and lora")
    if chosen is not None:
        if learning_part := next((name for name in names if find_procedure(name).chooses), None):
            raise InputError(f"procedure {learning_part} fixes the trainable parameters: remove --train and --lora")
        from learncost.models.adaptation import adapted, trainable_text

        built = adapted(built, chosen)
        learning = trainable_text(built, chosen)
    if kind.quantized is not None:
        from learncost.models.quantization import quantized

        built = quantized(built, kind, learns=bool(names))
    built = replace(built, saved=kind.saved, whole=bool(kind.products), integers=kind.is_whole)
    axes = run_sizes(built, *(lengths.get(name) for name in RUN))
    if request.plan and book.rule != "formula":
        _check_plan(request, built, names)
    context = None if "seq_len" in lengths else context_beyond(configuration)
    if (teacher := teacher_of(request)) is not None:
        if why := unlike(built, teacher):
            raise InputError(f"--task {request.task} {why}")
        lengths_of_run = (axes["N"], axes["M"]) if built.two_sided else (axes["M"], None)
        of_teacher = run_sizes(teacher, axes["B"], *lengths_of_run)
        axes = {**axes, **{f"{TEACHER}{name}": size for name, size in of_teacher.items()}}
    sizes_of_all = built, axes, book, request.optimizer, kind, tokens, learning
    again = _again(request, axes["B"])
    run = PreparedRun(
        *sizes_of_all, request.plan, context, request.timed_by, again, teacher, checkpoint_interval(request)
    )
    return run.with_separate_trip_counts() if request.mesh is not None else run


def checkpoint_interval(request: Request) -> int:
    """Return of how many blocks the first is recomputed; operators are selected in every block."""
    return 1 if request.checkpoint_every == OPERATORS else check_size("checkpoint_every", request.checkpoint_every)


def teacher_of(request: Request) -> Model | None:
    """Return the teacher of a distillation. Raises `InputError` without one, and for one of another task."""
    if not request.task and request.teacher is None:
        return None
    from learncost.program.autograd.losses import TASKS  # imported when used, for a fast start

    if (request.task in TASKS and TASKS[request.task].teacher) != (request.teacher is not None):
        wanted = "give --teacher MODEL" if request.teacher is None else "remove --teacher"
        raise InputError(f"only a distillation (--task distillation) has a teacher: {wanted}")
    if (teacher := request.teacher) is None:
        return None
    return build(teacher if isinstance(teacher, Configuration) else configure(teacher))


def unlike(student: Model, teacher: Model) -> str:
    """Return why the scores of a teacher cannot be compared with those of a student; "" if they can."""
    own, other = (each.configuration.sizes.get("vocab_size", 0) for each in (student, teacher))
    if own and own == other and student.two_sided == teacher.two_sided:
        return ""
    if own and own == other:
        return "compares an encoder-decoder only with another one: give a --teacher of the same kind"
    return f"compares scores of one vocabulary, not of {own:,} and {other:,} tokens: give another --teacher"


def _again(request: Request, batch: int) -> tuple[int, int]:
    """Return the forward passes without gradients. Raises `InputError` for a task that cannot be counted."""
    if not request.task:
        return 0, 0
    from learncost.program.autograd.losses import TASKS  # imported where it is needed: start-up counts

    task = named_one("task", request.task, TASKS)
    if request.is_sharded:
        raise InputError("--task over a mesh is supported only by learncost memory --engine eager")
    if task.pairs and batch % 2:
        raise InputError(f"--task {request.task} requires pairs: give an even --batch-size")
    return task.again, task.reference


def _check_plan(request: Request, model: Model, procedures: tuple[str, ...]) -> None:
    """Raise `InputError` if the plan of a request changes nothing in a step of any procedure."""
    from learncost.passes.plan import check_optimizer, check_plan  # imported where it is needed: start-up counts

    parts = map(str.strip, (request.plan or "").split(","))
    plan = ",".join(part for part in parts if request.timed_by != "eager" or part != LIGER_PLAN or not model.learns)

    optimizer = request.optimizer or default_optimizer()
    check_optimizer(plan, optimizer)

    def check(name: str) -> None:
        table = step(Structure(model).model, name, optimizer)
        check_plan(table, plan, model.configuration.name, request.is_sharded)

    if procedures:
        possible(check, procedures)


def lengths_of(request: Request) -> tuple[dict[str, int], dict[str, Any]]:
    """Return the checked given sizes of a run, under any of their names, and the sizes of the model."""
    checked, sizes = {name: getattr(request, name) for name in RUN}, dict(request.sizes)
    for spelling in [s for s in sizes if CANONICAL.get(spelled(s)) in checked]:
        name, value = resolve(spelling), sizes.pop(spelling)
        earlier = checked[name]
        if earlier not in (None, value) and (counted(earlier) or -1) != counted(value):
            raise InputError(f"{spelling} = {shown(value)} contradicts {name} = {shown(earlier)}")
        checked[name] = value
    return {name: check_size(name, value) for name, value in checked.items() if value is not None}, sizes


def check_tokens(name: str, value: object) -> int:
    """Return a number of tokens: an integer from 1 to 10^18; also from a text such as 3e11, 1.5e9 or 300B."""
    number = counted(value)
    if number is None or not 1 <= number <= LARGEST_TRAINING:
        raise InputError(f"{name} must be a whole number from 1 to 10^18, not {shown(value)}")
    return number


def check_probability(name: str, value: object) -> float:
    """Return a probability from 0 to below 1."""
    if not 0.0 <= (number := real_number(value)) < 1.0:
        raise InputError(f"{name} must be a number from 0 to below 1, not {shown(value)}")
    return number


def check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a value that is none of the choices."""
    if value not in choices:
        raise InputError(f"{name} must be one of {', '.join(choices)}, not {shown(value)}")

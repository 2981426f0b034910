"""The measurement: memory side by side, then the check, then rounds in which every side takes its turn."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from against_torch_and_jax import check
from against_torch_and_jax.machine import machine
from against_torch_and_jax.process import Process, SideError
from against_torch_and_jax.result import Bench, Case, Memory, SideFound
from against_torch_and_jax.sides import ENGINE, FLOOR
from against_torch_and_jax.subject import Subject
from learncost.ir.errors import InputError

TURN = 0.25
"""Seconds that a turn of the fastest side is to last; short steps are repeated, so that not each is the first after
another process had the caches."""

MOST_STEPS = 20
"""In a turn."""

FIRST = 1e-2
"""How far the first loss of another way to learn may be from that of bp: with weights moved it is not the same."""

PAUSE = 0.05
"""Seconds between two turns, in which the threads of the last side stop waiting for work."""


def bench(
    subjects: Sequence[Subject],
    peers: Sequence[str],
    rounds: int,
    say: Callable[[str], None] = lambda text: None,
    procedures: Sequence[str] = (),
    plans: Sequence[str] = (),
) -> Bench:
    """Measure all cases; Ctrl-C ends it, with what there is until then. `say` is told what happens.

    procedures   by which the engine learns too, beside bp
    plans        under which it learns by bp too, beside the plan of the subjects

    Raises InputError.
    """
    if rounds < 1:
        raise InputError(f"rounds must be a whole number from 1, not {rounds}")
    results = Bench(machine(), rounds)
    try:
        for subject in subjects:
            sides = [SideFound(ENGINE), *(SideFound(f"{ENGINE} {name}", name) for name in procedures)]
            sides += [SideFound(f"{ENGINE} {plan}", plan=plan) for plan in plans]
            sides += [SideFound(name) for name in (*peers, FLOOR)]
            case = Case(subject, {side.name: side for side in sides})
            results.cases.append(case)
            _measure(case, rounds, say)
    except KeyboardInterrupt:
        results.interrupted = True
    return results


def _measure(case: Case, rounds: int, say: Callable[[str], None]) -> None:
    """One case. A side that fails is left out, with the reason; the others go on."""

    def at(text: str) -> None:
        say(f"{case.subject.model} {case.subject.dtype}: {text}")

    for side in case.learners:
        at(f"memory of {side.name}")
        with _left_out(side):
            side.memory = _memory(side, case.subject)
    with ExitStack() as stack, TemporaryDirectory(prefix="learncost-bench-") as folder:
        processes: dict[str, Process] = {}
        for side in case.sides.values():
            if side.left_out is None:
                at(f"start of {side.name}")
                with _left_out(side):
                    process = stack.enter_context(_process(side))
                    side.facts = process.begin(side.case(case.subject))
                    processes[side.name] = process
        learners = [case.sides[name] for name in processes if name != FLOOR]
        fastest = _check(case, learners, processes, Path(folder), at)
        count = max(1, min(MOST_STEPS, math.ceil(TURN / fastest))) if fastest else 1
        for number in range(rounds):
            at(f"round {number + 1} of {rounds}")
            for side in case.sides.values():
                if side.left_out is None:
                    with _left_out(side):
                        answer = processes[side.name].turn(count)
                        side.rounds.append(answer.pop("seconds"))
                        side.facts |= {name: value for name, value in answer.items() if name != "losses"}
                    sleep(PAUSE)


@contextmanager
def _left_out(side: SideFound) -> Iterator[None]:
    """What a side cannot do is its reason to be left out, with everything that was measured of it."""
    try:
        yield
    except SideError as error:
        side.left_out = str(error)
        side.rounds.clear()


def _process(side: SideFound) -> Process:
    return Process(side.runs)


def _memory(side: SideFound, subject: Subject) -> Memory:
    """Of a few steps, in a process that does nothing else: neither the check nor anything before has left traces."""
    with _process(side) as process:
        process.begin(side.case(subject))
        process.turn(check.STEPS)
        return Memory(**process.memory())


def _check(
    case: Case,
    sides: Sequence[SideFound],
    processes: Mapping[str, Process],
    folder: Path,
    say: Callable[[str], None],
) -> float | None:
    """Take the first steps everywhere and leave out who does something else than the first of the peers.

    Returns the seconds of the fastest step that was seen.
    """
    tolerance, fastest = check.TOLERANCES[case.subject.dtype], None
    reference: tuple[str, Path, list[float]] | None = None
    # The engine is listed first, but is what is judged: the peers go before it.
    for side in sorted(sides, key=lambda side: (side.procedure != "bp", side.runs == ENGINE)):
        say(f"check of {side.name}")
        with _left_out(side):
            process, side_folder = processes[side.name], folder / side.name
            side_folder.mkdir()
            first = process.turn(1)
            if side.procedure == "bp":
                process.gradients(side_folder)
            rest = process.turn(check.STEPS - 1)
            losses = first["losses"] + rest["losses"]
            fastest = min(*rest["seconds"], fastest or math.inf)
            if not all(map(math.isfinite, losses)):
                raise SideError(f"its losses are {losses}")
            if side.procedure != "bp":  # its gradients are to differ; before the first step its loss is not
                if reference is not None and not math.isclose(losses[0], reference[2][0], rel_tol=FIRST):
                    raise SideError(f"its first loss is {losses[0]:.6f}, not {reference[2][0]:.6f}")
                continue
            if reference is None:
                reference = (side.name, side_folder, losses)
                continue
            side.difference = check.difference(*reference, side_folder, losses)
            shutil.rmtree(side_folder)
            if not side.difference.within(tolerance):
                raise SideError(f"it does something else: {side.difference}")
    return fastest

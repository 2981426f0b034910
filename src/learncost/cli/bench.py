"""`learncost bench [MODEL...]`: the engine against PyTorch and JAX, in one run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from learncost.bench.result import Bench
from learncost.bench.rounds import bench as measure
from learncost.bench.sides import PEERS, peers
from learncost.bench.subject import USUAL, subjects
from learncost.ir.errors import InputError
from learncost.models.storage import write_json
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.procedure import several
from learncost.reports.question import question

EVERY = ",".join(PEERS)


@question()
def bench(
    *models: str,
    shape: tuple[int | str, int | str] | None = None,
    dtype: str = "fp32",
    against: str = EVERY,
    rounds: int | str = 8,
    plan: str | None = None,
    procedures: str | None = None,
    out: str | None = None,
) -> Bench:
    """Set the engine's training step against PyTorch's and JAX's on this machine: time, memory, and the step's floor.

    Every side has a fresh process; gradients and losses are compared first, then the sides take turns.

    Parameters
    ----------
    models
        char, gpt2-124m, tiny, long (these four are the default) or llama-char, which have their batches; or, with
        `shape`, a preset (`learncost list models`) or the path of a config.json of GPT-2's or Llama's kind.
    shape
        How many sequences are in a batch and how many tokens in a sequence, such as `shape` 4 256.
    dtype
        The types to measure: fp32, bf16 (products in bf16; weights and optimizer in fp32), or both as fp32,bf16.
    against
        The peers, with commas between: eager, compile, jax.
    rounds
        How often every side takes its turn.
    plan
        The engine's plan (`learncost list plans`). Without it, the engine chooses one itself, which is its default.
        With semicolons between, further plans: the engine takes a step under each beside the one under the first.
    procedures
        Other ways to learn, with commas between: the engine takes a step by each beside the one by bp: {choices}.
    out
        The file for everything that was measured, as JSON.

    Commands
    --------
    learncost bench tiny --rounds 2
        The engine against its peers on a tiny model.
    learncost bench tiny --against eager --procedure skip,local-shared
        Two ways to learn beside backpropagation, in one run.
    learncost bench tiny --plan "at-once;in-product" --against eager
        What a plan changes, in one run.
    learncost bench gpt2 --shape 1 256 --against eager --out bench.json
        One model of one's own, against PyTorch, with everything in a file.
    """
    file = None if out is None else _free(Path(out))
    sizes = None if shape is None else (_whole("--shape", shape[0]), _whole("--shape", shape[1]))
    names = tuple(dict.fromkeys(find_procedure(name).name for name in several(procedures)))
    if "bp" in names:
        raise InputError("bp is measured anyway: --procedure says what is set beside it")
    types = tuple(dict.fromkeys(item.strip() for item in dtype.split(",")))
    first, *others = dict.fromkeys(text.strip() for text in (plan or "").split(";"))
    cases = subjects(models or USUAL, sizes, types, None if plan is None else first)
    with _reporter() as say:
        results = measure(cases, peers(against), _whole("--rounds", rounds), say, names, others)
    if file is not None:
        write_json(file, results.to_dict())
    return results


def _whole(name: str, value: int | str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{name} must be a whole number, not {value!r}") from None


def _free(path: Path) -> Path:
    """A path that can be written to, refused before hours are spent."""
    if path.is_dir() or not path.resolve().parent.is_dir():
        raise InputError(f"cannot write {path}: {'it is a folder' if path.is_dir() else 'its folder does not exist'}")
    return path


@contextmanager
def _reporter() -> Iterator[Callable[[str], None]]:
    """Who is told what happens: one line that changes on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("") as status:
        yield status.update

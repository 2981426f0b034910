"""Measure the engine's training step against PyTorch's and JAX's on this machine: time, memory, and the step's floor.

Every side runs in a fresh process; gradients and losses are compared first, then the sides take turns. `docs/bench.md`
has the method.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from against_torch_and_jax.rounds import bench
from against_torch_and_jax.sides import PEERS, peers
from against_torch_and_jax.subject import USUAL, subjects
from learncost.interrupt import signals_as_interrupts
from learncost.ir.errors import InputError
from learncost.models.storage import write_json
from learncost.procedures.procedure import procedure as find_procedure
from learncost.procedures.procedure import several
from learncost.reports.sheet import FORMATS

BAD_INPUT, INTERRUPTED = 2, 130


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, and return the exit code; bad input is one line on standard error."""
    with signals_as_interrupts():
        try:
            return _measured(_parser().parse_args(words))
        except InputError as error:
            print(f"benchmarks/against_torch_and_jax: {error}", file=sys.stderr)
            return BAD_INPUT
        except KeyboardInterrupt:
            return INTERRUPTED


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InputError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python benchmarks/against_torch_and_jax", description=__doc__)
    parser.add_argument(
        "models",
        nargs="*",
        metavar="MODEL",
        help=f"{', '.join(USUAL)} (these are the default) or llama-char, which have their batches; or, with --shape, a "
        "preset (learncost list models) or the path of a config.json of GPT-2's or Llama's kind",
    )
    parser.add_argument(
        "--shape", nargs=2, type=int, metavar=("B", "T"), help="sequences in a batch and tokens in a sequence"
    )
    parser.add_argument(
        "--dtype",
        default="fp32",
        help="the types to measure: fp32, bf16 (products in bf16; weights and optimizer in fp32), or both as fp32,bf16",
    )
    parser.add_argument("--against", default=",".join(PEERS), help="the peers, with commas between: %(default)s")
    parser.add_argument("--rounds", type=int, default=8, help="how often every side takes its turn (%(default)s)")
    parser.add_argument(
        "--plan",
        default="",
        help="the engine's plan (learncost list plans), else the one that it chooses; with semicolons between, the "
        "engine also takes a step under each further one",
    )
    parser.add_argument(
        "--procedure", help="learning procedures, with commas between, by which the engine takes a step beside bp"
    )
    parser.add_argument("--out", type=_free, help="the file for everything that was measured, as JSON")
    parser.add_argument("--format", choices=FORMATS, default="table", help="how the result is printed")
    parser.add_argument("--json", action="store_const", const="json", dest="format", help="the same as --format json")
    return parser


def _measured(given: argparse.Namespace) -> int:
    procedures = tuple(dict.fromkeys(find_procedure(name).name for name in several(given.procedure)))
    if "bp" in procedures:
        raise InputError("bp is measured anyway: --procedure says what is set beside it")
    types = tuple(dict.fromkeys(item.strip() for item in given.dtype.split(",")))
    plan, *others = dict.fromkeys(text.strip() for text in given.plan.split(";"))
    cases = subjects(given.models or USUAL, given.shape, types, plan or None)
    with _reporter() as say:
        results = bench(cases, peers(given.against), given.rounds, say, procedures, others)
    if given.out is not None:
        write_json(given.out, results.to_dict())
    print(results.show(given.format))
    return results.exit_code


def _free(text: str) -> Path:
    """A path that can be written to, refused before hours are spent."""
    path = Path(text)
    if path.is_dir() or not path.resolve().parent.is_dir():
        why = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise argparse.ArgumentTypeError(f"cannot write {path}: {why}")
    return path


@contextmanager
def _reporter() -> Iterator[Callable[[str], None]]:
    """Where progress is written: one line that changes on a terminal, lines elsewhere."""
    if not sys.stderr.isatty():
        yield lambda text: print(text, file=sys.stderr, flush=True)
        return
    from rich.console import Console

    with Console(stderr=True, highlight=False).status("") as status:
        yield status.update

"""`learncost import FILE.py:NAME`, and the flags for importing a user's module in every command."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from learncost.cli.typed import reading
from learncost.importer.files.reading import evaluation, imported, say
from learncost.importer.files.user_file import target
from learncost.ir.dataclass import dataclass
from learncost.ir.errors import InputError, shown
from learncost.ir.polynomial import Polynomial
from learncost.layers.active import parameters
from learncost.layers.layer import EVALUATION, Layer, layer
from learncost.models.files import NOTATION
from learncost.models.storage import path_of, write_text
from learncost.reports.question import question
from learncost.reports.sheet import Readable


@dataclass(frozen=True, repr=False)
class ImportedFile(Readable):
    """A module's table as text, and the file that it was written to."""

    text: str
    path: Path | None
    made: Layer

    def __str__(self) -> str:
        if self.path is None:
            return self.text
        training = self.made.text.partition(f"\n{EVALUATION}\n")[0]
        lines = sum(1 for line in training.splitlines() if " = " in line)
        count = parameters(self.made.table).with_sizes(self.made.sizes) + Polynomial.of((), self.made.unread)
        shown = f"{count.terms[()]:,}" if set(count.terms) == {()} else str(count)
        return f"{self.path}: {self.made.name}, {lines:,} lines, {shown} parameters"


@question()
def import_module(
    file: str,
    *,
    output: str | None = None,
    input: Sequence[str] | str | None = None,
    as_run: bool = False,
    unknown: str = "refuse",
    no_fold: bool = False,
    no_cache: bool = False,
) -> ImportedFile:
    """Run a Python file, and write the PyTorch module that it builds as a table in the notation.

    Every command accepts the table, without PyTorch or the file. It can be read, changed and cited.

    Parameters
    ----------
    file
        FILE.py:NAME, a Python file and the name of a function without arguments that returns the module, of a class, or
        of a module. The file is run. Or a config.json, or its folder, of a model type of transformers or diffusers
        without a family here: its class is built, and nothing is downloaded.
    output
        The table file, .table. By default the table is printed.

    Commands
    --------
    learncost import model.py:build --input 'idx: int B M' -o model.table
        Write the module that build() returns as a table with symbolic batch B and length M; then run learncost cost
        model.table --B 8 --M 1024 for the cost of a training step.
    learncost import model.py:build --input 'x: float 8 3 224 224' --as-run
        Trace one run, for a module with data-dependent branches.
    """
    wanted = target(file)
    if wanted is None:
        raise InputError(
            f"{shown(file)} is not a Python module to import: write FILE.py:NAME, as in model.py:build; a config.json "
            "is imported only if no family here supports its model type"
        )
    path = None if output is None else path_of("table", (NOTATION,), output)
    how = reading(input=input, as_run=as_run, unknown=unknown, no_fold=no_fold, no_cache=no_cache)
    text = imported(wanted, how).text
    try:
        evaluates = evaluation(wanted, how, text)
    except InputError as error:
        say(f"without the pass in evaluation: {error}")
        evaluates = ""
    text += f"{EVALUATION}\n{evaluates.strip()}\n" if evaluates else ""
    made = layer(text)  # before anything is written
    if path is not None:
        write_text(path, text)
    return ImportedFile(text, path, made)

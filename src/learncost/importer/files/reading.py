"""The text of the table of `FILE.py:NAME`: cached, or by running the file and importing the module that it builds."""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache, cached_property, partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from learncost import __version__
from learncost.importer.configured import TRAINED, check_installed
from learncost.importer.files.user_file import Target, target
from learncost.importer.inputs import Input, checked, parse_inputs
from learncost.importer.recorder.device import RecordingProcess, compiled, is_with_cuda, packed, unpacked
from learncost.ir.dataclass import dataclass, replace
from learncost.ir.errors import InputError, printable, to_install
from learncost.ir.precision import BYTES
from learncost.layers.layer import Layer, Origin, layer
from learncost.models.argument import preset
from learncost.models.configuration import Configuration
from learncost.models.files import read_path, user_folder
from learncost.models.storage import write_text
from learncost.program.interpolated import Interpolated
from learncost.program.program import CUDA, WEIGHTS, Program, StepRequest, Steps

if TYPE_CHECKING:
    from learncost.importer.files.build import BuiltModule
    from learncost.importer.pipeline import ImportOptions

UNKNOWN = ("refuse", "zero")
"""The treatments of an operation with unknown cost: an error, or a line without a number."""


@dataclass(frozen=True)
class FileOptions:
    """The settings for importing a file.

    inputs   the module's inputs, one text each; none: those that the file specifies
    fold     whether equal blocks become a loop
    as_run   whether one run is traced, with the branches that it takes
    unknown  one of `UNKNOWN`
    cache    whether cached tables are used, and new ones cached
    """

    inputs: tuple[str, ...] = ()
    fold: bool = True
    as_run: bool = False
    unknown: str = UNKNOWN[0]
    cache: bool = True

    def __post_init__(self) -> None:
        if self.unknown not in UNKNOWN:
            raise InputError(f"--unknown is {' or '.join(UNKNOWN)}, not {self.unknown!r}")


FORMAT = 1


@dataclass(frozen=True)
class CachedTable:
    """A cached table: its text, and the notices printed during its import."""

    text: str
    notices: tuple[str, ...]


@dataclass(frozen=True)
class CachePlace:
    """The cache entry of a file's table, for given inputs and flags.

    asked  all other settings that the table depends on, as JSON data
    """

    file: Path
    asked: Any
    folder: str = "tables"

    @cached_property
    def path(self) -> Path:
        return user_folder(self.folder) / f"{self._key}.json"

    @cached_property
    def _key(self) -> str:
        environment = [FORMAT, __version__, sys.version, sys.prefix, _packages(), _reader()]
        text = json.dumps([*environment, str(self.file.resolve()), self.asked])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def read(self) -> CachedTable | None:
        """Return the cached table; None if there is none, or if a file that the user's code read has changed."""
        try:
            record = json.loads(self.path.read_text(encoding="utf-8"))
            text, files = str(record["text"]), record["files"]
            if record["digest"] == _text_digest(text) and all(
                _digest(Path(file)) == recorded for file, recorded in files.items()
            ):
                return CachedTable(text, tuple(map(str, record["notices"])))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            pass
        return None

    def write(self, table: CachedTable, files: Iterable[Path]) -> None:
        """Cache a table with the files that it depends on; do nothing if the cache cannot be written."""
        digests = {str(file): _digest(file) for file in sorted({self.file.resolve(), *files})}
        record = {"files": digests, "notices": table.notices, "text": table.text, "digest": _text_digest(table.text)}
        with suppress(OSError, InputError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_text(self.path, json.dumps(record))


LARGE = 2**24
"""Bytes from which on a file, such as one of weights, is identified by its size and its time."""


def _text_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _digest(file: Path) -> str:
    try:
        stat = file.stat()
        if stat.st_size > LARGE:
            return f"{stat.st_size} {stat.st_mtime_ns}"
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return ""


def _packages() -> list[str]:
    """Return installed packages with versions, as the names of their metadata folders."""
    folders = [Path(path) for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    names = (entry.name for folder in folders if folder.is_dir() for entry in os.scandir(folder))
    return sorted(name for name in names if name.endswith((".dist-info", ".egg-info")))


READERS = ("importer", "ir", "layers", "ops", "program")
"""The packages whose code decides what is read or recorded of a module."""


def _reader() -> list[tuple[str, int, int]]:
    """Return a fingerprint of the importer's files: another version of them invalidates cached tables."""
    package = Path(__file__).parents[2]
    folders = [package / name for name in READERS]
    files = sorted(file for folder in folders for file in folder.rglob("*.py"))
    return [(file.name, stat.st_size, stat.st_mtime_ns) for file in files for stat in (file.stat(),)]


def say(text: str) -> None:
    """Print a notice to standard error."""
    print(f"learncost: {text}", file=sys.stderr)


def imported(wanted: Target, how: FileOptions) -> CachedTable:
    """Return the table of the module that a file builds, as text. Raises `InputError`."""
    return _known(wanted, how, "")


def evaluation(wanted: Target, how: FileOptions, training: str) -> str:
    """Return the table of the module in evaluation mode; "" if it equals that in training.

    Raises `InputError`.
    """
    return _known(wanted, how, training).text


def _known(wanted: Target, how: FileOptions, training: str) -> CachedTable:
    """Return a cached or new table; in evaluation mode if it is compared with that in `training`."""
    inputs = parse_inputs(how.inputs)
    asked: list[Any] = [wanted.name, [str(each) for each in inputs], how.fold, how.as_run, how.unknown]
    place = CachePlace(wanted.file, [*asked, training] if training else asked)
    known = place.read() if how.cache else None
    if known is None:
        if not wanted.file.is_file():
            folder = "; that is a folder" if wanted.file.is_dir() else ""
            raise InputError(f"no such file: {printable(str(wanted.file))}{folder}")
        if not wanted.name:
            check_installed(read_path(str(wanted.file)))
        if find_spec("torch") is None:
            raise InputError(f"importing a module requires torch: {to_install('torch')}")
        if wanted.name:
            say(f"runs {printable(str(wanted.file))}")
        known, files = _read(wanted, inputs, how, training)
        if how.cache:
            place.write(known, files)
    for text in known.notices:
        say(text)
    return known


def _read(wanted: Target, inputs: tuple[Input, ...], how: FileOptions, training: str) -> tuple[CachedTable, set[Path]]:
    from learncost.importer.files.build import built
    from learncost.importer.files.user_file import watched
    from learncost.importer.pipeline import ImportObserver, table_of
    from learncost.importer.refusals import DataDependentError, NotExportedError

    notices: list[str] = []
    with _shown() as stage, watched() as files, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as PyTorch has about itself; what the user's code prints is shown
        stage(f"{'running' if wanted.name else 'building'} {wanted.file.name}")
        building = built(wanted, how.as_run, notices.append, inputs)
        given = building.inputs or ()
        if not given:
            checked((), building.module, str(wanted))
        options = _options(how), ImportObserver(stage, notices.append)
        if training:
            from learncost.importer.pipeline import evaluation_of

            return CachedTable(
                evaluation_of(building.module, given, str(wanted), training, *options), tuple(notices)
            ), files
        try:
            text, described = table_of(building.module, given, str(wanted), *options)
        except (NotExportedError, DataDependentError):
            if wanted.name:
                raise
            text, described = table_of(building.module.eval(), given, str(wanted), *options)
            notices.append(f"{wanted} is imported in evaluation mode: PyTorch cannot export its training mode")
        if how.as_run:
            notices.append("the table has the operations of one run, for these sizes, with the branches as taken")
    return CachedTable(f"{_remarks(wanted, described, how)}{text.strip()}\n", tuple(notices)), files


def values(wanted: Target, saved: bool = False) -> Mapping[str, Any]:
    """Run a file and return the parameters and buffers of its module by path. Raises `InputError`.

    saved  return only those of its state_dict
    """
    module = _built(wanted, True).module
    from learncost.importer.pipeline import saved_of, values_of

    return saved_of(module) if saved else values_of(module)


def _built(wanted: Target, real: bool, how: FileOptions | None = None) -> BuiltModule:
    """Run the file again and return its module; a note says so where a question needs it. Raises `InputError`.

    real  whether its parameters have values
    how   the question's settings
    """
    if find_spec("torch") is None:
        raise InputError(f"running a module requires torch: {to_install('torch')}")
    import torch

    from learncost.importer.files.build import built

    if how and wanted.name:
        say(f"runs {printable(str(wanted.file))}")
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(SEED)
        return built(wanted, real, say, parse_inputs(how.inputs) if how else ())


SEED = 0
"""The seed of PyTorch before a module is built for its values."""


def steps(wanted: Target, how: FileOptions) -> Steps:
    """Return a function that runs the file, and then records the training step of its module."""

    building = cache(partial(_built, wanted, False, how))

    @cache
    def process() -> RecordingProcess:
        return RecordingProcess(wanted, how.inputs)

    def record(sizes: Mapping[str, int], request: StepRequest) -> Program:
        from learncost.importer.inputs import MOST, sized
        from learncost.importer.recorder import ModuleStep

        if (request.device == CUDA and not is_with_cuda()) or request.compiled or request.devices:
            return _recorded_apart(wanted, how, process, sizes, request)
        answer = building()
        given = answer.inputs or ()
        return ModuleStep(lambda: answer.module, lambda sizes: sized(given, sizes, {}, MOST))(sizes, request)

    return Interpolated(record)


def preset_steps(configuration: Configuration, parameters: int) -> Steps:
    """Return a function that records the training step of a preset as the installed transformers writes it.

    The function raises `InputError` where transformers has no such module, or one with other parameters.
    """
    if not (known := preset(configuration.name)):
        raise InputError(f"transformers' module is recorded for a preset by its name, not for {configuration.name}")
    values = {**known.values, **configuration.sizes, **dict.fromkeys(configuration.dropout, 0.0), TRAINED: True}
    values |= {"architectures": [configuration.architecture]} if configuration.architecture else {}
    check_installed(values)
    text = json.dumps(values)
    file = user_folder("presets") / f"{configuration.name}-{_text_digest(text)[:16]}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, text)
    record = steps(Target(file, ""), FileOptions())

    def recorded(sizes: Mapping[str, int], request: StepRequest) -> Program:
        program = record(sizes, request)
        theirs = sum(each.bytes for each in program.buffers if each.role == WEIGHTS) // BYTES[request.values]
        if theirs != parameters and not request.devices:  # of a device's shards
            raise InputError(f"transformers' module has {theirs:,} parameters, and {configuration.name} {parameters:,}")
        return program

    return recorded


def _recorded_apart(
    wanted: Target,
    how: FileOptions,
    process: Callable[[], RecordingProcess],
    sizes: Mapping[str, int],
    request: StepRequest,
) -> Program:
    """Return the step on a GPU, from the cache or by a separate process."""
    asked = [wanted.name, how.inputs, sorted(sizes.items()), repr(request)]
    place = CachePlace(wanted.file, asked, "recordings")
    known = place.read() if how.cache else None
    if known and (cached := unpacked(known.text)):
        return cached
    compiled()  # refuses at once where the guard cannot be compiled
    with _shown() as stage:
        where = "a GPU" if request.device == CUDA else "a CPU"
        stage(f"recording a step of {wanted.file.name} for {where}")
        program, files = process().record(sizes, request)
    if how.cache:
        place.write(CachedTable(packed(program), ()), files)
    return program


def _options(how: FileOptions) -> ImportOptions:
    from learncost.importer.pipeline import ImportOptions  # is imported after torch: start-up counts

    return ImportOptions(as_run=how.as_run, unknown=how.unknown, fold=how.fold)


def live(wanted: Target, how: FileOptions) -> Callable[[], Any]:
    """Return a function that runs the file and returns its module with values in its parameters."""

    def build() -> Any:
        answer = _built(wanted, True, how)
        from learncost.importer.pipeline import LiveModule

        return LiveModule(lambda: answer.module, answer.inputs or (), str(wanted), _options(how))

    return build


def _remarks(wanted: Target, inputs: Sequence[str], how: FileOptions) -> str:
    """Return the first lines of a table: source, versions and inputs."""
    from importlib.metadata import version

    python = ".".join(map(str, sys.version_info[:3]))
    what = f"{wanted.file.name}:{wanted.name}" if wanted.name else wanted.file.name
    lines = [
        f"{what}, read by learncost {__version__}, torch {version('torch')} and Python {python}.",
        f"Inputs: {'; '.join(inputs) or 'none'}.",
    ]
    if how.as_run:
        lines.append("The operations of one run, for these sizes, with the branches as taken.")
    return "".join(f"% {line}\n" for line in lines)


@contextmanager
def _shown() -> Iterator[Callable[[str], None]]:
    """Show the running task and its duration on a terminal."""
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr, highlight=False), transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda text: progress.update(task, description=text)


def layer_of(word: object, how: FileOptions = FileOptions()) -> Layer | None:
    """Return the table of an argument `FILE.py:NAME`, or of a config.json without a family; None for any other."""
    wanted = target(word)
    if wanted is None:
        return None
    known = imported(wanted, how)
    text = f"{wanted} builds them after torch.manual_seed({SEED})"
    in_evaluation = cache(partial(evaluation, wanted, how, known.text))
    origin = Origin(in_evaluation, partial(values, wanted), partial(values, wanted, True), text)
    return replace(layer(known.text), steps=steps(wanted, how), origin=origin, live=live(wanted, how))

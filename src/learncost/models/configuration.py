"""Validate a MODEL argument and size flags into a configuration; errors are one-line InputErrors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TextIO

from learncost.ir.dataclass import dataclass, field, replace
from learncost.ir.displayed import Displayed
from learncost.ir.errors import InputError, nearest, printable, shown
from learncost.ir.loop import defined
from learncost.layers.layer import Layer
from learncost.models.argument import find
from learncost.models.expression import NotWholeError, evaluate, names
from learncost.models.families import FAMILIES, TABLE, Architecture, Family
from learncost.models.sizes import CANONICAL, LARGEST, GivenValue, setting, spelled
from learncost.models.tables import RUN, addable, check_open, family_of_layer, letters

SETTINGS = {
    "model_type": "model_type",
    "architecture": "architecture",
    "architectures": "architecture",
    "activation": "activation",
    "activation_function": "activation",
    "hidden_act": "activation",
    "hidden_activation": "activation",
    "afn": "activation",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "layer_norm_eps": "layer_norm_epsilon",
    "rms_norm_eps": "layer_norm_epsilon",
    "tie_word_embeddings": "tie_word_embeddings",
    "pruned_heads": "pruned_heads",
}
"""The spellings of settings other than sizes, in all families."""

PROJECTED = "projected"
"""The setting of a table with the inputs to which PEPITA adds the output error instead of the one-hot tokens."""

TIED = "LM head tied to the token embedding (counted once)"


@dataclass(frozen=True, slots=True)
class Configuration(Displayed):
    """A validated model configuration. Sizes are integers from 1 to 10^12, by their canonical names.

    sizes       the sizes of the family; optional ones without a value are absent
    settings    other settings by the family's names: activation, epsilons, booleans, layer types
    counted     a description of the counted parts of the architecture
    tied        whether head and embedding are one matrix (in an encoder-decoder, both embeddings)
    dropout     the dropout probabilities by the family's names
    unread      the number of stored parameters that no line reads
    derived     the sizes that were computed from others, each with its expression
    learned     the trainable weights of a live module (`TrainableWeights`)
    layer       the full table, if a layer in the notation is the model
    not_read    the text on keys of a file that are neither known metadata nor settings of the family
    """

    name: str
    family: str
    sizes: Mapping[str, int]
    settings: Mapping[str, Any]
    positions: str
    tied: bool
    architecture: str
    head: str
    pooler: bool
    counted: str
    dropout: Mapping[str, float]
    source: str
    two_sided: bool = False
    unread: int = 0
    derived: Mapping[str, str] = field(default_factory=dict, compare=False)
    learned: Any = None
    layer: Layer | None = None
    not_read: str = field(default="", compare=False)

    @property
    def activation(self) -> str:
        """Return the op of the feed-forward network's activation."""
        return str(self.settings.get("activation", ""))

    @property
    def layer_norm_epsilon(self) -> float:
        """Return the epsilon of normalizations."""
        return float(self.settings.get("layer_norm_epsilon", 0.0))

    @property
    def values(self) -> dict[str, Any]:
        """Return the values of the names in the family's expressions; optional sizes without a value are 0."""
        if self.layer is not None:
            return dict(self.sizes)
        optional = dict.fromkeys(FAMILIES[self.family].optional, 0)
        choices = {"head": self.head, "pooler": self.pooler, "tied": self.tied, "positions": self.positions}
        return {**optional, **self.settings, **self.sizes, **choices}


def family_of(configuration: Configuration) -> Family:
    """Return the family of a configuration; if the model is a layer, the family of that layer."""
    return family_of_layer(configuration.layer) if configuration.layer else FAMILIES[configuration.family]


def adds_paths(configuration: Configuration) -> bool:
    """Return whether a live module has low-rank paths in addition to the weights of its configuration."""
    return configuration.learned is not None and bool(configuration.learned.paths)


def configure(
    model: object,
    overrides: Mapping[str, object] | None = None,
    stdin: TextIO | None = None,
    exact: bool = True,
    lengths: Mapping[str, int] | None = None,
) -> Configuration:
    """Return the configuration of `model`, changed by `overrides`.

    model       a preset, a path to a configuration file or to a folder with a config.json, `-` for standard input, one
                of the generic names encoder, decoder, encoder-decoder, a mapping with the keys of a config.json, or a
                layer in the notation: a `Layer`, or a path that ends in .table
    overrides   sizes and settings (activation, layer_norm_epsilon, tie_word_embeddings, architecture, dropout
                probabilities) in any accepted spelling; numbers may be text, as in flags. Derived sizes follow the
                override: gpt2 with another hidden_size has a feed-forward network of four times that
    stdin       a replacement of sys.stdin
    exact       whether derived sizes must be whole numbers; otherwise they are rounded down
    lengths     the lengths of a run, if known; layers with other open sizes are then refused
    Raises InputError.
    """
    argument = find(model, stdin)
    flags = {spelling: GivenValue(spelling, value) for spelling, value in (overrides or {}).items()}
    if argument.layer is not None:
        family = family_of_layer(argument.layer)
        projected = flags.pop(PROJECTED, None)
        collected = _collect(family, flags, True)
        check_open(argument.layer, argument.name, {*collected, *(RUN if lengths is None else lengths)})
        sizes = _sizes(family, collected, {}, argument.name, exact)
        return of_layer(argument.layer, sizes, argument.name, argument.source, _names(projected))
    family = _family(
        next((flag for spelling, flag in flags.items() if spelled(spelling) == "model_type"), None)
        or GivenValue("model_type", argument.values.get("model_type"), argument.where)
    )
    in_file = {spelling: GivenValue(spelling, value, argument.where) for spelling, value in argument.values.items()}
    collected = _collect(family, in_file, False)
    collected.update(_collect(family, flags, True))
    architecture_named = _architecture(family, collected)
    settings = _settings(family, collected)
    sizes = _sizes(family, collected, settings, argument.name, exact)
    values = {**dict.fromkeys(family.optional, 0), **settings, **sizes, "labelled": "num_labels" in collected}
    _refuse_unsupported(family, collected, values)
    usual = evaluate(family.default, values) if family.default else 0  # where a configuration names none
    architecture = architecture_named or family.architectures[usual]
    keys = ", ".join(map(printable, _unread_keys(family, in_file)))
    not_read = f"ignored keys: {keys}" if keys else ""
    tied = bool(settings.get("tie_word_embeddings")) and " head(" in family.heads[architecture.head].get("lines", "")
    positions = str(evaluate(family.positions, values)) if family.positions else "none"
    configuration = Configuration(
        name=argument.name,
        family=family.name,
        sizes=sizes,
        settings=settings,
        positions=positions,
        tied=tied,
        architecture=architecture.name,
        head=architecture.head,
        pooler=architecture.pooler,
        counted="; ".join(filter(None, (architecture.counted, argument.part, TIED if tied else "", not_read))),
        dropout={key: collected[key].probability() if key in collected else p for key, p in family.dropout.items()},
        source=argument.source,
        two_sided=family.two_sided,
        derived={name: rule for name, rule in family.derived.items() if not _says(collected.get(name))},
        not_read=not_read,
    )
    return _with_unread(configuration, evaluate(family.unread, configuration.values) if family.unread else 0)


def of_layer(
    layer: Layer, sizes: Mapping[str, int], name: str = "", source: str = "", projected: Iterable[str] = ()
) -> Configuration:
    """Return the configuration of a layer that is the model, with these sizes of axes and trip counts.

    projected   inputs, or embeddings, to which PEPITA adds the output's error through a fixed random matrix
    Raises `InputError` for a name that the layer does not have.
    """
    family = family_of_layer(layer)
    names_there = {*layer.table.inputs, *defined(layer.table.lines)}
    for each in (projected := tuple(projected)):
        if each not in names_there:
            raise InputError(
                f"{layer.name} has no {shown(each)} to add the error to{nearest(each, sorted(names_there))}; it has "
                f"{', '.join(addable(layer.table)) or 'only indices'}"
            )
    configuration = Configuration(
        name=name or layer.name,
        family=TABLE,
        sizes=sizes,
        settings={PROJECTED: projected} if projected else {},
        positions="none",
        tied=False,
        architecture="",
        head="none",
        pooler=False,
        counted="; ".join([f"the table {layer.name}", *_left_out(layer)]),
        dropout={},
        source=source or f"the layer {layer.name}",
        two_sided=family.two_sided,
        layer=layer,
    )
    return _with_unread(configuration, layer.unread)


def _left_out(layer: Layer) -> Iterator[str]:
    """Yield the note about unused computation of a module, if it has any."""
    if layer.unused.terms:
        flops = layer.unused.with_sizes(layer.sizes)
        constant = flops.terms.get(()) if flops.terms.keys() == {()} else None
        number = f"{constant:,}" if isinstance(constant, int) else str(flops)
        yield f"{number} FLOPs are excluded, since their results are unused"


def _names(given: GivenValue | None) -> tuple[str, ...]:
    """Return the names of a comma-separated list or a sequence."""
    if given is None or given.value is None:
        return ()
    several = given.value.split(",") if isinstance(given.value, str) else given.value
    if not isinstance(several, list | tuple) or not all(isinstance(each, str) and each.strip() for each in several):
        raise InputError(f"{given.label} must be a comma-separated list of names, not {shown(given.value)}")
    return tuple(each.strip() for each in several)


def _with_unread(configuration: Configuration, unread: int) -> Configuration:
    if not unread:
        return configuration
    counted = f"{configuration.counted}; {unread:,} of the parameters are unused"
    return replace(configuration, unread=unread, counted=counted)


def _family(model_type: GivenValue) -> Family:
    if model_type.value is None:
        raise InputError(f"{model_type.label} is missing; it must be one of {', '.join(FAMILIES)}")
    if not isinstance(model_type.value, str) or model_type.value not in FAMILIES:
        raise InputError(
            f"{model_type.label} {shown(model_type.value)} is unknown{nearest(model_type.value, FAMILIES)}"
            f"; known ones are {', '.join(FAMILIES)}; any other module is read by lc.from_module, or as FILE.py:NAME"
        )
    return FAMILIES[model_type.value]


def _collect(family: Family, values: Mapping[str, GivenValue], strict: bool) -> dict[str, GivenValue]:
    """Return the values by canonical names; if `strict`, names that the family does not have are refused.

    Other keys of files are ignored, because Hugging Face's files have dozens that do not affect the structure.
    """
    collected: dict[str, GivenValue] = {}
    for spelling, entry in _flat(family, values):
        if spelling == "id2label" and isinstance(entry.value, dict):  # a name for each class
            spelling, entry = "num_labels", GivenValue(f"{spelling}'s length", len(entry.value), entry.where)
        canonical = _canonical(family, spelling)
        if canonical is None:
            if strict:
                raise InputError(_no_such_key(family, spelling))
            continue
        earlier = collected.get(canonical)
        if earlier is not None and earlier.value != entry.value:
            # Older GPT files repeat the positions as n_ctx, which transformers does not read.
            if "n_ctx" not in (earlier.spelling, spelling) or strict:
                raise InputError(
                    f"{entry.label} = {shown(entry.value)} contradicts {earlier.spelling} = {shown(earlier.value)}"
                )
            if spelling == "n_ctx":
                continue
        collected[canonical] = entry
    return collected


@cache
def _metadata() -> frozenset[str]:
    """Return the keys of a config.json that change no count."""
    lines = Path(__file__).with_name("families").joinpath("metadata.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(key for line in lines if not line.startswith("#") for key in line.split())


def _unread_keys(family: Family, values: Mapping[str, GivenValue]) -> Iterator[str]:
    """Yield the keys of a file that are neither read nor known to change no count; 0 and null are no settings."""
    known = {*family.spellings, *family.refused, *family.pairs}
    nested = {spelling.partition(".")[0] for spelling in known}
    for spelling, entry in values.items():
        inner = entry.value if spelling in nested and isinstance(entry.value, dict) else {}
        given = {f"{spelling}.{key}": value for key, value in inner.items()} or {spelling: entry.value}
        for name, value in given.items():
            is_read = name in known or _canonical(family, name) or any(key.startswith(f"{name}.") for key in known)
            if value and not (is_read or name.rpartition(".")[2] in _metadata() or spelling.startswith("_")):
                yield name


def _flat(family: Family, values: Mapping[str, GivenValue]) -> Iterator[tuple[str, GivenValue]]:
    """Return the keys that the family knows, including the elements of lists of two and, as `key.inner`, those of
    nested objects."""
    for spelling, entry in values.items():
        if spelling in family.pairs and isinstance(entry.value, list | tuple) and len(entry.value) == 2:
            for name, value in zip((spelling, family.pairs[spelling]), entry.value, strict=True):
                yield name, GivenValue(spelling, value, entry.where)
            continue
        if several := family.per_layer.get(size_meant(family, spelling)):
            entries = entry.value if isinstance(entry.value, list | tuple) else []
            yield several, GivenValue(spelling, list(entries) if len(set(map(str, entries))) > 1 else [], entry.where)
            entry = GivenValue(spelling, entries[0], entry.where) if entries else entry
        yield spelling, entry
        if isinstance(entry.value, dict):
            inside = {f"{spelling}.{inner}": value for inner, value in entry.value.items()}
            nested = _flat(family, {name: GivenValue(name, value, entry.where) for name, value in inside.items()})
            spellings = family.spellings.keys() | family.refused.keys()
            yield from ((name, entry) for name, entry in nested if name in spellings and entry.value is not None)


def size_meant(family: Family, spelling: str) -> str:
    """Return the canonical name of a size of the family or of a run; letters of a layer are unchanged."""
    name = spelling.replace("-", "_") if family.layer else spelled(spelling)
    if family.layer is None:
        name = family.spellings.get(name, name)
    elif name in family.sizes:
        return name
    name = CANONICAL.get(name, name)
    return "seq_len" if family.layer and name == "target_len" and not family.two_sided else name


def _canonical(family: Family, spelling: str) -> str | None:
    size = size_meant(family, spelling)
    if size in family.sizes or family.layer is not None:
        return size if size in family.sizes else None
    name = spelled(spelling)
    name = family.spellings.get(name, name)
    setting_name = SETTINGS.get(name, name)
    is_setting = setting_name in family.settings or name in family.dropout or name in family.refused
    return setting_name if is_setting or setting_name in ("model_type", "architecture", "pruned_heads") else None


def _no_such_key(family: Family, spelling: str) -> str:
    if family.layer is not None:
        sizes = ", ".join(letters(family.layer))
        return f"{family.name} has no size {shown(spelling)}; its sizes are {sizes}"
    if spelled(spelling) in CANONICAL:
        return f"{family.name} has no {spelling}; its sizes are {', '.join(family.sizes)}"
    spellings = [*(name for name in CANONICAL if CANONICAL[name] in family.sizes), *SETTINGS, *family.dropout]
    spellings += [*family.sizes, *family.settings, *family.spellings, "batch_size", "seq_len", "target_len"]
    return f"unknown size or setting {shown(spelling)}{nearest(spelling, spellings)}"


def _says(entry: GivenValue | None) -> bool:
    return entry is not None and entry.value is not None


def _file(entries: Mapping[str, GivenValue]) -> str:
    """Return the file that gives all values, as an error begins; empty where flags give some."""
    files = {entry.where for entry in entries.values()}
    return f"{files.pop()}: " if len(files) == 1 and "" not in files else ""


def _settings(family: Family, entries: Mapping[str, GivenValue]) -> dict[str, Any]:
    """Return the family's settings, validated and completed by defaults. Null, or -1 for a number, disables a
    setting."""
    settings = {}
    for name, default in family.settings.items():
        entry = entries.get(name)
        off = (None, -1) if type(default) is int else (None,)
        if entry is None or (entry.value in off and name in family.nullable):
            value = default if entry is None else type(default)()
            settings[name] = family.activations[value] if name == "activation" else value
        else:
            settings[name] = setting(entry, name, default, family.activations)
    return settings


def _sizes(
    family: Family, entries: Mapping[str, GivenValue], settings: Mapping[str, Any], name: str, exact: bool
) -> dict[str, int]:
    """Return the sizes in the family's order: given sizes are validated, then defaults and derived sizes are added."""
    sizes: dict[str, int] = {size: value for size, value in family.sizes.items() if isinstance(value, int)}
    for size in family.sizes:
        if size not in entries:
            continue
        if entries[size].value is None and size in family.derived.keys() | family.optional:
            continue  # null is ignored for sizes without a default
        null = family.nulls.get(size) if entries[size].value is None else None
        sizes[size] = evaluate(null, sizes) if null else entries[size].size()
    missing = [s for s in family.sizes if s not in sizes and s not in family.derived.keys() | family.optional]
    if missing:
        flags = " ".join(f"--{size.replace('_', '-')} N" for size in missing)
        raise InputError(f"{printable(name)} needs {', '.join(missing)}: give {flags}")
    for size in [size for size in in_order(family) if size not in sizes]:
        try:
            value = evaluate(family.derived[size], {**dict.fromkeys(family.optional, 0), **settings, **sizes}, exact)
        except NotWholeError as error:
            raise InputError(f"{_file(entries)}{error}: change one of them, or give {size}") from None
        if not (isinstance(value, int) and 1 <= value <= LARGEST):
            raise InputError(f"{_file(entries)}{size} would be {shown(value)} ({family.derived[size]}); give {size}")
        sizes[size] = value
    return {size: sizes[size] for size in family.sizes if size in sizes}


def in_order(family: Family) -> list[str]:
    """Return the names of derived sizes in the order of their dependencies."""
    order: list[str] = []
    left = list(family.derived)
    while left:
        order += [size for size in left if not names(family.derived[size]) & set(left)]
        left = [size for size in left if size not in order]
    return order


def _architecture(family: Family, entries: Mapping[str, GivenValue]) -> Architecture | None:
    """Return the architecture that the configuration names (the first one, if several); None if it names none."""
    by_name = {
        name: architecture for architecture in family.architectures for name in (architecture.name, *architecture.also)
    }
    wanted_entry = entries.get("architecture")
    name = wanted_entry.value if wanted_entry else None
    if isinstance(name, list):
        name = name[0] if name else None
    if wanted_entry is None or name is None:
        return None
    if isinstance(name, str) and name and name in by_name:
        return by_name[name]
    ending = [each for each in family.architectures if isinstance(name, str) and name and each.name.endswith(name)]
    if len(ending) == 1 and str(name).startswith("For"):  # of any family, as ForSequenceClassification
        return ending[0]
    supported = [architecture.name for architecture in family.architectures if architecture.name]
    hint = f"; supported are {', '.join(supported)}" if supported else ""
    example = next(
        (candidate for candidate in supported if isinstance(name, str) and candidate.lower() == name.lower()),
        supported[0] if supported else "",
    )
    raise InputError(
        f"{wanted_entry.label} {shown(name)} is not supported for {family.name}"
        + (f"{hint}: give --architecture {example} to count that" if supported else "")
    )


def _refuse_unsupported(family: Family, entries: Mapping[str, GivenValue], values: Mapping[str, Any]) -> None:
    for key, supported in family.refused.items():
        if isinstance(supported, str) and supported.startswith("="):
            supported = evaluate(supported[1:], values)
        if key in entries and entries[key].value not in (supported, None):
            raise InputError(
                f"{entries[key].label} = {shown(entries[key].value)} is not supported, only {shown(supported)} is"
            )
    for axis, of in (("t", "e"), ("q", "i")):  # experts of a token, and groups of them
        if "expert" in family.axes.get("t", "") and {axis, of} <= family.axes.keys():
            few, several = family.axes[axis], family.axes[of]
            if evaluate(few, values) > evaluate(several, values):
                few_text, several_text = (f"{name} {evaluate(name, values):,}" for name in (few, several))
                raise InputError(f"{_file(entries)}{few_text} is more than {several_text}")
    if "pruned_heads" in entries and entries["pruned_heads"].value:
        raise InputError(f"{entries['pruned_heads'].label} is not supported: every block has all its heads")

"""Completion in a shell: the possible next words, and the lines that request them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from learncost.cli.command import COMMANDS, MERGED, MORE, unmerged
from learncost.ir.errors import InputError, nearest, shown
from learncost.reports.question import Flag, question, switches

SHELLS: Mapping[str, str] = {  # LEARNCOST_COMPLETE asks for what may follow
    "bash": """\
_learncost() {
  local IFS=$'\\n'
  COMPREPLY=($(LEARNCOST_COMPLETE=1 learncost "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _learncost learncost""",
    "zsh": """\
_learncost() {
  local -a found
  found=("${(@f)$(LEARNCOST_COMPLETE=1 learncost "${words[@]:1:$((CURRENT - 1))}" 2>/dev/null)}")
  compadd -a found || _files
}
compdef _learncost learncost""",
    "fish": """\
complete -c learncost -a '(LEARNCOST_COMPLETE=1 learncost (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'""",
}


@question()
def completion(shell: str) -> str:
    """Write the lines that complete commands, flags, models and devices in a shell.

    Parameters
    ----------
    shell
        The shell: bash, zsh or fish.

    Commands
    --------
    learncost completion bash
        The lines to put into ~/.bashrc.
    """
    if shell not in SHELLS:
        raise InputError(f"no shell is called {shown(shell)}{nearest(shell, SHELLS)} (there are {', '.join(SHELLS)})")
    return SHELLS[shell]


def following(words: Sequence[str]) -> Iterator[str]:
    """Yield the completions of the last word: commands, flags, values of flags, models."""
    *before, last = unmerged(words) or [""]
    for each in _candidates(before, last):
        if each.lower().startswith(last.lower()):
            yield each


def _candidates(before: Sequence[str], last: str) -> Iterable[str]:
    if not before:
        return [*COMMANDS, MORE, "--help", "--version"]
    name, *typed = before
    if name not in COMMANDS:
        return ()
    flags = {flag.name: flag for flag in COMMANDS[name].flags}
    by_spelling = {spelling: flag for flag in flags.values() if flag.how == "flag" for spelling in flag.names}
    asked = by_spelling.get(typed[-1]) if typed else None
    if asked is not None and asked.value:
        done = f"{last.rpartition(',')[0]}," if asked.about.several and "," in last else ""
        return [f"{done}{value}" for value in _values(asked)]
    if last.startswith("-"):
        merged = (f"--{other}" for other, of in MERGED.items() if of == name)
        of_tools = (switch for switch, (of, _) in switches().items() if of in flags)
        usual = (flag.names[0] for flag in by_spelling.values())
        return dict.fromkeys([*usual, *of_tools, *merged, "--help"])
    places = [flag for flag in flags.values() if flag.how.startswith("argument")]
    values = {place + 1 for place, word in enumerate(typed) if word in by_spelling and by_spelling[word].value}
    given = sum(not word.startswith("-") and place not in values for place, word in enumerate(typed))
    return _values(places[min(given, len(places) - 1)]) if places else ()


def _values(flag: Flag) -> Iterable[str]:
    """Return the names that an argument or a flag may have."""
    if flag.name in ("model", "models", "subject", "of"):
        from learncost.layers.layer import shipped
        from learncost.models.argument import presets, table_presets

        models = (preset.name for preset in chain(presets(), table_presets()))
        return [*models, *(shipped() if flag.name == "subject" else ())]
    if flag.name == "on":
        from learncost.devices.cluster import clusters
        from learncost.devices.device import devices, short_name

        return [short_name(each) for each in (*devices(), *clusters())]
    if flag.name == "kind":
        from learncost.viz.figures import FIGURES

        return FIGURES
    if flag.name == "what":
        from learncost.cli.lists.listing import LISTS

        return LISTS
    return SHELLS if flag.name == "shell" else flag.about.choices

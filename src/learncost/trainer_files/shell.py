"""Read the arguments of a training in a shell script. The script is read as text, and nothing in it is run."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import add, eq, floordiv, ge, gt, le, lt, mod, mul, ne, sub, truediv
from typing import Any

from learncost.ir.dataclass import dataclass, field
from learncost.ir.errors import InputError

CHANGED = "\0"  # behind the value of a variable that a branch replaces

FEW = 3  # arguments of a command that is no training

LONGEST = 100_000  # characters of a value with its variables replaced

NESTED = r"[^()]*"  # text with parentheses in it, three deep
for _ in range(3):
    NESTED = rf"(?:[^()]|\({NESTED}\))*"

TOKEN = re.compile(
    r"""(?P<space>[ \t]+|\\\r?\n)|(?P<comment>\#[^\n]*)|(?P<end>\r?\n|;;|;|&&|\|\||\||&)|(?P<open>\()|(?P<close>\))
    |(?P<word>(?:\\.|"(?:\\.|[^"\\])*"|'[^']*'|\$\(\((?:[^()]|\([^()]*\))*\)\)|\$\("""
    + NESTED
    + r"""\)|\$\{[^}]{0,1000}\}|`[^`]*`
    |[^\s;&|()"'\\])+)""",
    re.VERBOSE | re.DOTALL,
)

HEREDOC = re.compile(r"<<-?\s*['\"]?(\w+)['\"]?.*\n(?:.*\n){0,1000}?[ \t]*\1[ \t\r]*$", re.MULTILINE)

ASSIGNED = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)

VARIABLE = re.compile(
    r"\$\(\((?P<sum>(?:[^()]|\([^()]*\))*)\)\)|\$\{(?P<name>\w+)(?:\[[@*]\])?(?::?(?P<sets>[-=+])(?P<usual>[^}]{0,1000}))?\}|\$(?P<plain>\w+|\#)"
)

POSITIONAL = re.compile(r"\$\d|\$\{\d+\}")
"""An argument of the script, which has none where a variable has another value without it."""

ARGUMENT = re.compile(r"--(?P<flag>[A-Za-z][\w.-]*)(?:=(?P<value>.*))?|\+*(?P<key>[a-z][\w.]*)=(?P<text>.*)", re.DOTALL)

PRINTED = re.compile(rf"\$\({NESTED}\)|`[^`]*`")
"""A command whose output stands in its place."""

WORD = re.compile(rf"(?:{PRINTED.pattern}|\S)+")

REDIRECTED = re.compile(r"\d?>|&>|<|\|")

SUBMITTED = re.compile(
    r"^#SBATCH[ \t]+(?:--([a-z-]+)[= \t]|-(\w)[= \t]?)[ \t]*(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d+)[ \t]*(?:#.*)?\r?$",
    re.MULTILINE,
)

SLURM: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("nodes", "N"), ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")),
    **dict.fromkeys(("ntasks", "n"), ("SLURM_NTASKS", "SLURM_NPROCS")),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    **dict.fromkeys(("gres", "gpus-per-node"), ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")),
}
"""The options of sbatch with the variables that they give the script."""

MPI = ("mpirun", "mpiexec", "horovodrun")
"""Launchers whose -np or -n is the number of processes, as accelerate's --num_processes."""

LAUNCHERS = ("python", "python3", "torchrun", "deepspeed", "accelerate", "bash")
"""The words that end the arguments of a command in front of them."""

OPENS, CLOSES = ("if", "for", "while", "until", "case", "{"), ("fi", "done", "esac", "}")
"""The words before and behind what may run once, never or several times."""

PARTS = ("then", "elif", "else", "do")
"""The words between these."""

DECLARES = ("export", "local", "readonly", "declare", "typeset", "-a", "-x", "-r")
"""The words in front of an assignment."""

RUNS, SKIPPED, DONE, UNKNOWN = "runs", "skipped", "done", "unknown"
"""States of the lines of a branch; done: an earlier branch of the same condition runs."""

WHOLE = re.compile(r"[\d\s()+*/%-]{1,1000}")
"""Whole numbers with the operations of Bash on them."""

ARITHMETIC: Mapping[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.FloorDiv: floordiv, ast.Mod: mod
}  # fmt: skip

LARGEST = 2**63  # of the whole numbers of Bash

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": eq, "==": eq, "!=": ne, "-eq": eq, "-ne": ne, "-gt": gt, "-ge": ge, "-lt": lt, "-le": le
}  # fmt: skip
"""The conditions of a branch that are decided; those with letters are of whole numbers."""


@dataclass
class ShellScript:
    """The values of a script that are known without running it.

    variables  the values of its variables outside of branches, with `CHANGED` behind those that a branch replaces; a
               script is read without arguments, so that `$#` is 0
    commands   the words of each command outside of branches, with its line
    branches   the arguments that branches add, with their lines
    around     what becomes of the branches and loops around a statement
    """

    variables: dict[str, str] = field(default_factory=lambda: {"#": "0"})
    commands: list[tuple[int, list[str]]] = field(default_factory=list)
    branches: list[tuple[int, list[str]]] = field(default_factory=list)
    around: list[str] = field(default_factory=list)


def arguments_of(text: str) -> tuple[dict[str, Any], dict[str, int], dict[str, Any]]:
    """Return the arguments of the command with the most of them, their lines, and those that branches and
    other commands of its script add or change.

    Arguments are named without dashes in front: `--num-layers 24` and `--num-layers=24` are `num-layers`. One without a
    value is True, one with several is their list,
    and `script` is the Python file that is run. A value has its variables replaced that are set outside of branches.
    """
    script = ShellScript()
    script.variables |= _scheduled(text)
    is_condition = False
    for line, words in _statements(HEREDOC.sub(lambda found: "\n" * found[0].count("\n"), text)):
        if is_condition and words[0] not in PARTS and script.around[-1] != DONE:  # of several commands
            script.around[-1] = UNKNOWN
        is_condition = _enter(script, words)
        if not {SKIPPED, DONE} & {*script.around}:
            body = [word for word in words if word not in (*OPENS, *CLOSES, *PARTS)]
            _add(script, line, body, UNKNOWN in script.around)
        for word in words:
            if word in CLOSES and script.around:
                script.around.pop()
    outside, inside = (
        [(_arguments(words), line) for line, words in every] for every in (script.commands, script.branches)
    )
    given, line = max(outside, key=lambda each: len(each[0]), default=({}, 1))
    if len(given) < FEW:  # the command of the training is in a branch
        given, line = max(inside, key=lambda each: len(each[0]), default=(given, line))
    inside += [each for each in outside if each[0] is not given and each[0].get("script", "") == given.get("script")]
    ambiguous = {key: value for each, _ in inside for key, value in each.items() if given.get(key) != value}
    ambiguous |= {key: value for key, value in given.items() if CHANGED in "".join(value)}
    values = {key: _valued(value) for key, value in given.items()}
    return values, dict.fromkeys(values, line), {key: _valued(value) for key, value in ambiguous.items()}


def _scheduled(text: str) -> dict[str, str]:
    """Return the variables that Slurm sets from the options of a script that is submitted to it (`man sbatch`)."""
    found = {name or short: value for name, short, value in SUBMITTED.findall(text)}
    return {variable: found[name] for name, variables in SLURM.items() if name in found for variable in variables}


def _enter(script: ShellScript, words: Sequence[str]) -> bool:
    """Enter the branches and loops that a statement begins with; return whether it is the condition of a branch."""
    around = script.around
    for place, word in enumerate(words):
        if word in ("elif", "else") and around:
            before, is_else = around.pop(), word == "else"
            after = RUNS if is_else else _decided(words[place + 1 :], script)
            around.append(after if before == SKIPPED else DONE if before == RUNS else before)
            if not is_else:
                return True
        elif word in OPENS:
            decided = _decided(words[place + 1 :], script) if word in ("if", "while") else UNKNOWN
            around.append(UNKNOWN if decided == RUNS and word == "while" else decided)
            return decided != UNKNOWN
        elif word not in PARTS:
            break
    return False


def _decided(words: Sequence[str], script: ShellScript) -> str:
    """Return whether a branch runs under a comparison of texts or whole numbers, whose variables are known."""
    if len(words) != 5 or (words[0], words[-1]) not in (("[", "]"), ("[[", "]]")):
        return UNKNOWN
    first, second = (_expanded(word, script) for word in (words[1], words[3]))
    compared = COMPARISONS.get(words[2])
    if compared is None or any(mark in first + second for mark in (*"$`*?[", CHANGED)):
        return UNKNOWN
    if words[2].startswith("-"):
        if not (re.fullmatch(r"-?\d{1,99}", first) and re.fullmatch(r"-?\d{1,99}", second)):
            return UNKNOWN
        return RUNS if compared(int(first), int(second)) else SKIPPED
    return RUNS if compared(first, second) else SKIPPED


def _add(script: ShellScript, line: int, words: Sequence[str], is_branch: bool) -> None:
    """Add a statement: its assignments, and the words of its command."""
    assigned = [found for word in words if (found := ASSIGNED.fullmatch(word))]
    if not assigned or len(assigned) < len([word for word in words if word not in DECLARES]):
        command = [part for word in words for part in WORD.findall(_expanded(word, script))]
        (script.branches if is_branch else script.commands).append((line, command))
        return
    for found in assigned:
        name, operator, text = found[1], found[2], _expanded(found[3], script)
        before = script.variables.get(name, "")
        if is_branch:
            appends = operator == "+=" or (before and text.startswith(before))
            added = text.removeprefix(before) if appends else text
            if not added.startswith(("$(", "`")):  # what a command prints
                script.branches.append((line, added.split()))
            if name in script.variables and not appends:
                script.variables[name] = before.rstrip(CHANGED) + CHANGED
        elif PRINTED.search(text) and len(PRINTED.sub("", text).split()) < 2:  # what a command prints is not known
            script.variables.pop(name, None)
        else:
            script.variables[name] = f"{before} {text}" if operator == "+=" else text


def _statements(text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of each statement with its line; an array is one assignment."""
    words, array, place, line, start = list[str](), False, 0, 1, 1
    while place < len(text):
        found = TOKEN.match(text, place)
        if found is None:  # a quote that does not end
            place += 1
            continue
        kind, word, place = found.lastgroup, found[0], found.end()
        if kind == "word":
            start = start if words else line
            glued = bool(words) and array
            # without its quotes and continuations of lines
            plain = re.sub(r"\\\r?\n|[\"']|\\(?=.)", lambda found: " " if "\n" in found[0] else "", word)
            words = [*words[:-1], f"{words[-1]} {plain}"] if glued else [*words, plain]
        elif kind == "open" and words and words[-1].endswith("="):
            array = True
        elif kind == "close" and array:
            array = False
        elif kind in ("end", "open", "close") and not array and words:
            yield start, words
            words = []
        line += word.count("\n")
    if words:
        yield start, words


def _expanded(text: str, script: ShellScript) -> str:
    """Return a text with its variables replaced. Raises `InputError` for one that grows too long."""

    def value_of(found: re.Match[str]) -> str:
        if found["sum"] is not None:
            return _sum(
                _expanded(re.sub(r"\b([A-Za-z_]\w*)", r"${\1}", re.sub(r"[${}]", "", found["sum"])), script), found[0]
            )
        if found["sets"] == "=":
            script.variables.setdefault(found["name"], found["usual"])
        value = script.variables.get(found["name"] or found["plain"])
        if found["sets"] and value and POSITIONAL.fullmatch(value):
            value = None
        if found["sets"] == "+":
            return found["usual"] if value else ""
        return value if value is not None else found[0] if found["usual"] is None else found["usual"]

    result = VARIABLE.sub(value_of, text)
    if len(result) > LONGEST:
        raise InputError(f"a value of the script is longer than {LONGEST:,} characters, so it is not a trainer's file")
    return result


def _sum(text: str, otherwise: str) -> str:
    """Return the result of operations on whole numbers, else another text."""
    try:
        tree = ast.parse(text.strip().replace("/", "//") if WHOLE.fullmatch(text) else "", mode="eval")
    except (SyntaxError, MemoryError):
        return otherwise
    return otherwise if (result := plain_value(tree.body, {})) is None else str(result)


def plain_value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    """Return a plain value, that of a name among the values, or arithmetic of numbers; None for anything else."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id=name):
            return values.get(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = plain_value(operand, values)
            return -number if isinstance(number, int | float) else None
        case ast.BinOp(left=left, op=operation, right=right) if type(operation) in ARITHMETIC:
            operands = [plain_value(each, values) for each in (left, right)]
            if all(isinstance(each, int | float) and abs(each) < LARGEST for each in operands):
                try:
                    return ARITHMETIC[type(operation)](*operands)
                except ZeroDivisionError:
                    pass
    return None


def _arguments(words: Sequence[str]) -> dict[str, str | list[str]]:
    """Return the values of `--key value`, `--key=value` and `key=value`; a flag has no value."""
    found: dict[str, list[str]] = {}
    key = ""
    for word in words:
        if REDIRECTED.match(word):
            break
        if given := ARGUMENT.fullmatch(word):
            key = given["flag"] or ""
            text = given["value"] or given["text"]
            if key or text:  # key="" leaves a key to its default
                found[key or given["key"]] = [text] if text else []
        elif word in ("-np", "-n") and words[0].rpartition("/")[2] in MPI:
            key = "num_processes"
            found[key] = []
        elif word == "--":  # behind it is the command that this one submits
            key = ""
            found.pop("script", None)
        elif word in LAUNCHERS or re.match("-[A-Za-z]", word):
            key = ""
        elif word.endswith(".py"):  # the script that a launcher runs
            key = ""
            found.setdefault("script", [word.rpartition("/")[2]])
        elif key:
            found[key].append(word)
    return {key: values if len(values) > 1 else "".join(values) for key, values in found.items()}


def _valued(value: str | list[str]) -> Any:
    """Return the value of an argument in its type; a flag is true."""
    if isinstance(value, list):
        return [_valued(each) for each in value]
    value = value.replace(CHANGED, "")
    if value.lower() in ("true", "", "false"):
        return value.lower() != "false"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value

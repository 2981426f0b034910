"""The screens on README and on the pages: each is what its command prints.

    python docs/screens.py            write every outdated screen again
    python docs/screens.py --check    say which ones are, and write nothing

A screen is a block `console`: a command behind `$`, which may go on behind a backslash, and what it prints. Where three
dots stand on a line of their own, what is between the lines above and below them is left out.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from learncost.cli.command import main

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))

WIDTH = "80"
CUT = "...\n"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROMPT = re.compile(r"^\$ ((?:.*\\\n)*.*)\n", re.MULTILINE)
_OF_THE_MACHINE = re.compile(
    r"worst\s+error\s+\S+\s+in\s+\S+(\s+of\s+numbers\s+\S+\s+times\s+larger)?|apart\s+by\s+\S+|\s+"
)
"""The errors that `verify` prints are those of the machine's last bits."""


@dataclass(frozen=True)
class Screen:
    """A command, what the page says that it prints, and where in the page's text that stands."""

    page: Path
    command: str
    shown: str
    start: int

    @property
    def arguments(self) -> list[str]:
        """What the command line is given, without `learncost`."""
        return shlex.split(self.command.replace("\\\n", " "))[1:]

    def agrees(self, printed: str) -> bool:
        """Whether the page has what was printed."""
        shown = self.shown
        if self.arguments[:1] == ["verify"]:
            shown, printed = (_OF_THE_MACHINE.sub(" ", text) for text in (shown, printed))
        start, cut, end = shown.partition(CUT)
        return printed.startswith(start) and printed.endswith(end) if cut else printed == shown

    def renewed(self, printed: str) -> str:
        """What was printed, cut as the page cuts it: as many lines above and below the dots."""
        start, cut, end = self.shown.partition(CUT)
        if not cut:
            return printed
        lines, last = printed.splitlines(keepends=True), end.count("\n")
        return "".join([*lines[: start.count("\n")], CUT, *lines[len(lines) - last :]])


def screens(page: Path) -> Iterator[Screen]:
    """The screens of a page, in their order."""
    for block in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        prompts = list(_PROMPT.finditer(block[1]))
        ends = [prompt.start() for prompt in prompts[1:]] + [len(block[1])]
        for prompt, end in zip(prompts, ends, strict=True):
            yield Screen(page, prompt[1], block[1][prompt.end() : end], block.start(1) + prompt.end())


def printed(screen: Screen) -> tuple[int, str]:
    """The exit code and what the command prints today, in an empty folder, on a terminal of 80 columns."""
    out = io.StringIO()
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("examples").symlink_to(ROOT / "examples")
        os.environ["COLUMNS"] = WIDTH
        try:
            with contextlib.redirect_stdout(out):
                code = main(screen.arguments)
        finally:
            os.chdir(before)
            os.environ.pop("COLUMNS")
            if columns is not None:
                os.environ["COLUMNS"] = columns
    return code, out.getvalue()


def renew(page: Path, write: bool) -> list[str]:
    """The commands of a page whose screens are out of date; with `write` they are replaced."""
    text, old = page.read_text(encoding="utf-8"), []
    for screen in reversed(list(screens(page))):
        code, now = printed(screen)
        if code:
            sys.exit(f"{page.name}: {screen.command} ends with exit code {code}")
        if not screen.agrees(now):
            old.append(screen.command)
            text = text[: screen.start] + screen.renewed(now) + text[screen.start + len(screen.shown) :]
    if write and old:
        page.write_text(text, encoding="utf-8")
    return old[::-1]


if __name__ == "__main__":
    found = [(page, command) for page in PAGES for command in renew(page, write="--check" not in sys.argv)]
    for page, command in found:
        print(f"{page.relative_to(ROOT)}: {command}")
    sys.exit(1 if found and "--check" in sys.argv else 0)

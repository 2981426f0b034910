"""Small pieces of error messages: a value shown on one short line, and the known names nearest to a wrong one."""

from __future__ import annotations

from collections.abc import Iterable

SHOWN_CHARACTERS = 60  # enough to recognise a value; a message stays one line


def shown(value: object) -> str:
    """Return `value` as a person would recognise it: its representation, cut to one short line."""
    if isinstance(value, int) and abs(value) > 10**SHOWN_CHARACTERS:
        return f"a number of more than {SHOWN_CHARACTERS} digits"  # Python refuses to print the very long ones
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:
        text = f"a {type(value).__name__}"
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 3] + "..."


def printable(text: str) -> str:
    """Return `text` itself where it fits on a line of a terminal, its representation otherwise."""
    return text if text.isprintable() else shown(text)


def nearest(name: object, known: Iterable[str]) -> str:
    """Return "; did you mean 'a' or 'b'?" for the known names nearest to `name`, "" where none is near."""
    if not isinstance(name, str):
        return ""
    import difflib  # needed only when something went wrong

    names = {candidate.lower().replace("_", "-"): candidate for candidate in known}
    wanted = name[:100].lower().replace("_", "-")
    longer = [own for own in names if own.startswith(f"{wanted}-")] if len(wanted) > 2 else []
    close = [*longer, *(own for own in difflib.get_close_matches(wanted, names, n=3) if own not in longer)][:3]
    return f"; did you mean {' or '.join(repr(names[match]) for match in close)}?" if close else ""

"""What is watched: trainings and contests of a folder, by the files that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Runs:
    """The trainings and contests of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def seen(self, since: str) -> dict[str, Any]:
        """All that is known of them; nothing where it is what was known before."""
        return {"runs": [], "since": since}


def run_page(nonce: str) -> str:
    """The page of what is watched."""
    return f'<!doctype html><title>learncost</title><style nonce="{nonce}"></style>'

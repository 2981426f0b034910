"""What requests and answers are, for the server and the processes that answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

API = "/api/document"
"""Where a page asks for documents."""

NONCE = "a-nonce-stands-here"
"""Stands in a page for the number that is used once."""

JSON = "application/json"

Pairs = Sequence[tuple[str, str]]
"""Names and values of an address."""


@dataclass(frozen=True)
class Answer:
    """What is sent back: a status as HTTP has it, the type of the content, the content."""

    status: int
    kind: str
    content: bytes
    name: str = ""  # of the file that it is saved as


def refusal(status: int, message: str) -> Answer:
    """A refusal, in one line."""
    return Answer(status, JSON, json.dumps({"error": " ".join(message.split())}).encode())

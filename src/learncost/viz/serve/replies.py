"""Requests and answers, for the server and its worker processes."""

from __future__ import annotations

import json
from collections.abc import Sequence

from learncost.ir.dataclass import dataclass

API = "/api/document"
"""The address at which a page requests documents."""

NONCE = "a-nonce-stands-here"
"""The placeholder of the nonce in a page."""

JSON = "application/json"

Pairs = Sequence[tuple[str, str]]
"""Names and values of an address."""


@dataclass(frozen=True)
class Answer:
    """A response: an HTTP status, the content type, the content."""

    status: int
    kind: str
    content: bytes
    name: str = ""  # of the file that it is saved as


def refusal(status: int, message: str) -> Answer:
    """Return a refusal of one line."""
    return Answer(status, JSON, json.dumps({"error": " ".join(message.split())}).encode())

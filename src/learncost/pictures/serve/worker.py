"""A process that answers requests: one that takes too long or too much is ended, and another takes its place.

It reads a request from standard input, as a line of JSON, and writes a line of JSON with the answer's length and the
answer behind it, again and again.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from contextlib import suppress
from typing import BinaryIO

ROOM = 4 * 2**30
"""Bytes of address space that an answer may take."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer until there are no more requests."""
    from learncost.pictures.serve.answers import answer

    for line in requests:
        route, pairs, config = json.loads(line)
        reply = answer(route, [(name, value) for name, value in pairs], config)
        head = {"status": reply.status, "kind": reply.kind, "name": reply.name, "length": len(reply.content)}
        answers.write(json.dumps(head).encode() + b"\n" + reply.content)
        answers.flush()


def main() -> None:
    """Answer what comes from standard input, with little room."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this process then
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    with os.fdopen(os.dup(1), "wb") as answers, suppress(BrokenPipeError):
        os.dup2(2, 1)  # whatever is printed goes to standard error
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()

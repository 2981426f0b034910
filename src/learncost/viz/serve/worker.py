"""The worker process that answers requests; it is replaced after exceeding its time or memory.

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

from learncost.viz.serve.replies import Answer, refusal

CAPACITY = 4 * 2**30
"""Bytes of address space that an answer may take."""

OUT_OF_MEMORY = (MemoryError, ImportError)
"""The exceptions of a lack of memory: a library that cannot be mapped cannot be imported."""


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    for line in requests:
        reply = _answer(line)
        head = {"status": reply.status, "kind": reply.kind, "name": reply.name, "length": len(reply.content)}
        answers.write(json.dumps(head).encode() + b"\n" + reply.content)
        answers.flush()


def _answer(request: bytes) -> Answer:
    """Return the answer to a request, or the name of an internal error. Raises `MemoryError`."""
    try:
        from learncost.viz.serve.answers import answer

        route, pairs, config = json.loads(request)
        return answer(route, [(name, value) for name, value in pairs], config)
    except OUT_OF_MEMORY:
        raise
    except Exception as error:
        what = " ".join(f"{type(error).__name__} {error}".split())[:200]
        return refusal(500, f"learncost made a mistake here, please report it: {what}")


def main(capacity: int = CAPACITY) -> None:
    """Answer requests from standard input within a limit of memory; exit silently if it is exceeded."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the server's, which ends this process then
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (capacity, capacity))
    with suppress(BrokenPipeError, *OUT_OF_MEMORY), os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # whatever is printed goes to standard error
        serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

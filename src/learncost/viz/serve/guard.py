"""Refusals before any handler, of other hosts and origins, too large bodies and URLs; connections with time limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

BODY = 2**20
"""Bytes of a body at most: published configurations take a few thousand."""

SECONDS = 10.0
"""Seconds within which a body is to come."""

ADDRESS = 16 * 2**10
"""Bytes of an address with its values at most."""

NAMES = ("127.0.0.1", "localhost")
"""The host names of this machine in accepted addresses."""

SAFE = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Headers of every answer: nobody else frames it, reads it, or keeps it."""


class Guard:
    """Passes on requests from a page of this server or a program on this machine.

    port  that the server listens to; a name of a host without it, or with another, is foreign
    """

    def __init__(self, application: Application, port: int) -> None:
        self.application = application
        self.hosts = frozenset(f"{name}:{port}" for name in NAMES) | (frozenset(NAMES) if port == 80 else frozenset())
        self.origins = frozenset(f"http://{host}" for host in self.hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.application(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        refused = self._refused(scope)
        if not refused:
            try:
                body, refused = await asyncio.wait_for(_body(receive), SECONDS)
            except TimeoutError:
                refused = 408, f"the body has not come within {SECONDS:g} seconds"
        if refused:
            status, message = refused
            await _refuse(send, status, message)
            return
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def once() -> Message:
            return messages.pop() if messages else await receive()

        async def safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *SAFE]
            await send(message)

        await self.application(scope, once, safely)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and reason of a refusal before the body is read; None if there is none."""
        if (
            (hosts := _values(scope, b"host")) and not (len(hosts) == 1 and hosts[0].lower() in self.hosts)
        ) or not hosts:
            return 403, "this server answers only at its own address: the Host header names another"
        if any(origin.lower() not in self.origins for origin in _values(scope, b"origin")):
            return 403, "this server answers only its own pages: the Origin header names another"
        if any(site in ("cross-site", "same-site") for site in _values(scope, b"sec-fetch-site")) and (
            scope["path"].startswith("/api") or scope["method"] not in ("GET", "HEAD")
        ):
            return 403, "this server answers only its own pages: another site asks"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > ADDRESS:
            return 414, f"an address of more than {ADDRESS:,} bytes is not read"
        for length in _values(scope, b"content-length"):
            if not length.isdecimal() or int(length[:20]) > BODY:
                return 413, f"a body of more than {BODY:,} bytes is not read: a config.json takes a few thousand"
        return None


def _values(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for header, value in scope["headers"] if header.lower() == name]


async def _body(receive: Receive) -> tuple[bytes, tuple[int, str] | None]:
    """Return the body if it is not too large."""
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return b"", (400, "the body has not come whole")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > BODY:
            return b"", (413, f"a body of more than {BODY:,} bytes is not read: a config.json takes a few thousand")
        if not message.get("more_body"):
            return b"".join(parts), None


async def _refuse(send: Send, status: int, message: str) -> None:
    content = json.dumps({"error": message}).encode()
    headers: Iterable[tuple[bytes, bytes]] = (
        (b"content-type", b"application/json"),
        (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
        *SAFE,
    )
    await send({"type": "http.response.start", "status": status, "headers": list(headers)})
    await send({"type": "http.response.body", "body": content})


HEADER = 5.0
"""Seconds from a connection's beginning, or the last answer, within which the header of a request is to be complete."""

READING = 30.0
"""Seconds after an answer within which it is to be read, where the connection is to be closed."""

MOST = 512
"""Connections that are open at once; further ones are closed at once. A process may open 1,024 files as a rule."""


class Connection(H11Protocol):
    """uvicorn's HTTP/1.1 protocol with time limits."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Start the timer for a header, or refuse if there are too many connections."""
        super().connection_made(transport)
        if len(self.connections) > MOST:
            transport.abort()
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Stop the timer when a header is complete."""
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        """Start the timer for the next header, or for the response to be read."""
        super().on_response_complete()
        self.loop.call_later(READING, self._abandon)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        super().connection_lost(exc)
        self._forget()

    def _expect(self) -> None:
        """Start the timer if no header is complete; further bytes do not restart it."""
        if self.conn.their_state is not h11.IDLE or self.transport.is_closing():
            self._forget()
        elif self._late is None:
            self._late = self.loop.call_later(HEADER, self._close)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _close(self) -> None:
        self._late = None
        self.transport.close()
        self.loop.call_later(READING, self._abandon)

    def _abandon(self) -> None:
        """Discard unsent data of a connection that is to be closed."""
        if self.transport.is_closing():
            self.transport.abort()

"""A connection of the server with time limits, so that incomplete requests and idle readers do not block it."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

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

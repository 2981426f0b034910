"""`learncost serve`: the explorer in a browser on this machine."""

from __future__ import annotations

import errno
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from learncost.ir.errors import InputError, counted, shown, to_install
from learncost.reports.question import question

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"
"""The address on which the server listens; no other machine reaches it."""

PORT = 8642


@question()
def serve(*, port: int | str = PORT, run: str | None = None) -> None:
    """Serve the explorer: a page with sliders for sizes and live results, on this machine only.

    It accepts presets, a config.json or table dropped on the page, and generic sizes. Stop it with Ctrl-C.

    Parameters
    ----------
    port
        The port on 127.0.0.1. The default is 8642; 0 selects any free port.
    run
        A folder of learncost train or learncost contest, or of several of them, that the page /run shows.

    Commands
    --------
    learncost serve
        The explorer, at http://127.0.0.1:8642.
    learncost serve --run run-1
        Also the progress of a training run, at http://127.0.0.1:8642/run.
    """
    number = 0 if str(port) == "0" else counted(port)
    if number is None or not 0 <= number < 2**16:
        raise InputError(f"port must be a whole number from 0 to {2**16 - 1:,}, not {shown(port)}")
    folder = None if run is None else Path(run)
    if folder is not None and not folder.is_dir():
        raise InputError(f"no such folder: {run}; --run names one of learncost train or learncost contest")
    for name in ("starlette", "uvicorn"):
        if find_spec(name) is None:
            raise InputError(f"serve needs {name}: {to_install('serve')}")
    with _listening(number) as listener:
        number = listener.getsockname()[1]
        address = f"http://{HOST}:{number}"
        notice = f"{address}/run watches {run}, {address} explores costs" if run else address
        print(f"learncost serve: {notice}. Ctrl-C ends it.", file=sys.stderr, flush=True)
        server(number, folder).run(sockets=[listener])


def server(port: int, run: Path | None = None) -> uvicorn.Server:
    """Return the server of the application at a port; it does not run yet."""
    import uvicorn

    from learncost.viz.serve.app import application
    from learncost.viz.serve.guard import Connection

    settings = uvicorn.Config(
        application(port, run),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        ws="none",
        http=Connection,
        loop="asyncio",
        limit_concurrency=128,
        backlog=128,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=2**15,
    )
    return uvicorn.Server(settings)


def _listening(port: int) -> socket.socket:
    """Return a socket at the port. Raises `InputError` if it is in use."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} is taken: give --port another one, or --port 0 for any") from None
        raise InputError(f"port {port} cannot be used: {error.strerror}") from None
    return listener

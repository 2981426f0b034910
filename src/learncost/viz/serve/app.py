"""The web application: its routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from secrets import token_urlsafe

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from learncost.ir.errors import InputError
from learncost.viz.serve.guard import Application, Guard
from learncost.viz.serve.pool import AnswerCache, ProcessPool
from learncost.viz.serve.replies import API, NONCE, Answer, refusal
from learncost.viz.serve.runs import Runs, run_page


def policy(nonce: str) -> str:
    """Return the content security policy: a page may load only its own content and query this server."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; "
        "img-src 'self' data: blob:; font-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )


def application(port: int, run: Path | None = None, answers: ProcessPool | None = None) -> Application:
    """Return the server's application.

    port     that it listens to
    run      the folder whose trainings and contests are watched
    answers  the answering processes; by default a pool
    """
    pool = answers or ProcessPool()
    views = _Views(AnswerCache(pool), None if run is None else Runs(run))

    @asynccontextmanager
    async def alive(_: Starlette) -> AsyncIterator[None]:
        first = asyncio.create_task(views.answers.answer(views.page, ()))  # before anybody asks
        yield
        first.cancel()
        with suppress(asyncio.CancelledError):
            await first
        await views.answers.close()

    routes = [
        Route("/", views.explorer),
        Route("/run", views.run),
        Route(API, views.of("document"), methods=["GET", "POST"]),
        Route("/api/view", views.of("view"), methods=["GET", "POST"]),
        Route("/api/export", views.of("export"), methods=["GET", "POST"]),
        Route("/api/files", views.of("files"), methods=["POST"]),
        Route("/api/fields", views.fields),
        Route("/api/runs", views.runs),
    ]
    refused = {HTTPException: _not_there, InputError: _bad, UnicodeDecodeError: _bad}
    return Guard(Starlette(routes=routes, exception_handlers=refused, lifespan=alive), port)


async def _not_there(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    messages = {404: "there is nothing at this address", 405: "this address takes another method"}
    message = messages.get(error.status_code, error.detail)
    return JSONResponse({"error": message}, error.status_code, headers=error.headers)


async def _bad(_: Request, error: Exception) -> Response:
    return _response(refusal(400, str(error)))


def _response(answer: Answer) -> Response:
    headers = {"content-type": answer.kind}
    if answer.name:
        headers["content-disposition"] = f'attachment; filename="{answer.name}"'
    return Response(answer.content, answer.status, headers)


def _html(content: bytes) -> Response:
    """Return a page whose scripts and styles have a single-use nonce."""
    nonce = token_urlsafe(16)
    headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": policy(nonce)}
    return Response(content.replace(NONCE.encode(), nonce.encode()), 200, headers)


class _Views:
    """The handlers of the routes."""

    def __init__(self, answers: AnswerCache, runs: Runs | None) -> None:
        self.answers, self.watched = answers, runs
        self.page = "page" if runs is None else "page beside runs"

    async def explorer(self, _: Request) -> Response:
        """Respond with the page, which starts with a document and requests others."""
        answer = await self.answers.answer(self.page, ())
        return _html(answer.content) if answer.status == 200 else _response(answer)

    def of(self, route: str) -> Callable[[Request], Awaitable[Response]]:
        """Return the handler of a route to the answers: it responds with that to a request."""

        async def respond(request: Request) -> Response:
            config = (await request.body()).decode() if request.method == "POST" else ""
            return _response(await self.answers.answer(route, request.query_params.multi_items(), config))

        return respond

    async def fields(self, _: Request) -> Response:
        """Respond with the fields that a page may request."""
        return _response(await self.answers.answer("fields", ()))

    async def run(self, _: Request) -> Response:
        """Respond with the page of the watched runs."""
        self._watched()
        return _html(run_page(NONCE).encode())

    async def runs(self, request: Request) -> Response:
        """Respond with the trainings and contests of the watched folder and their new records."""
        return JSONResponse(self._watched().state(request.query_params.get("since", "")))

    def _watched(self) -> Runs:
        if self.watched is None:
            raise HTTPException(404, "no folder is watched: learncost serve --run DIR names one")
        return self.watched

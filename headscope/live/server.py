"""The server of ``headscope serve``: one page, one address that answers, nothing written down.

It listens on 127.0.0.1 only. Every request must name this machine as its host, and carry the token
that the printed address has; a request to answer must come from the page itself. So neither another
machine, nor another user who does not know the address, nor a page of another site can ask.
"""

from __future__ import annotations

import asyncio
import json
import queue
import secrets
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import Any, NoReturn

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from headscope.core.errors import HeadscopeError, InputError, reason
from headscope.core.safe_text import visible

HOST = "127.0.0.1"
WAITING = 4  # Requests that may wait while one is answered
LARGEST = 1 << 16  # Bytes of a request
SLOWEST = 10.0  # Seconds in which a whole request must have arrived
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Ask = Callable[[list[str], list[str]], dict[str, Any]]


class Worker:
    """One thread that answers one question after the other; it does not keep the program alive."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: queue.Queue[tuple[Future[dict[str, Any]], list[str], list[str]]] = (
            queue.Queue(WAITING)
        )
        threading.Thread(target=copy_context().run, args=(self._work,), daemon=True).start()

    def answer(self, texts: list[str], off: list[str]) -> asyncio.Future[dict[str, Any]]:
        """Return the answer to come; raises queue.Full where too many wait."""
        future = Future[dict[str, Any]]()
        self._waiting.put_nowait((future, texts, off))
        return asyncio.wrap_future(future)

    def _work(self) -> None:
        while True:
            future, texts, off = self._waiting.get()
            if not future.set_running_or_notify_cancel():  # its browser has gone
                continue
            try:
                future.set_result(self._ask(texts, off))
            except Exception as error:
                future.set_exception(error)


def application(page: str, ask: Ask, *, token: str, port: int) -> Starlette:
    """Make the two addresses: ``/`` with the page, ``/answer`` that takes and gives JSON."""
    worker = Worker(ask)
    origins = {f"http://{name}:{port}" for name in (HOST, "localhost")}

    def known(sent: str | None) -> bool:
        return secrets.compare_digest((sent or "").encode(), token.encode())

    async def show(request: Request) -> Response:
        """Send the page to who knows the token."""
        if not known(request.query_params.get("token")):
            return PlainTextResponse(
                "Open the whole address that headscope serve printed: its token is missing here.",
                403,
                _HEADERS,
            )
        return HTMLResponse(page, headers=_HEADERS)

    async def answer(request: Request) -> Response:
        """Answer a question, or say in a sentence why not: what the page shows in its place."""
        # Who asks
        if request.headers.get("origin") not in origins or not known(request.headers.get("token")):
            return _sentence("This request does not come from the page of this server.", 403)
        # What is asked
        body = b""
        try:
            async with asyncio.timeout(SLOWEST):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > LARGEST:
                        return _sentence("That is more text than one request may hold.", 413)
        except TimeoutError:
            return _sentence(f"The request took more than {SLOWEST:.0f} seconds to arrive.", 408)
        try:
            texts, off = _question(body)
        except InputError as error:
            return _sentence(str(error), 400)
        # The answer
        try:
            return JSONResponse(await worker.answer(texts, off), headers=_HEADERS)
        except queue.Full:
            return _sentence("Too many requests wait already; try again in a moment.", 503)
        except HeadscopeError as error:  # of the text, not of the request
            return _sentence(str(error), 200)
        except Exception as error:  # of the model on this text: the page says it, and goes on
            why = visible(reason(error)).rstrip(".")
            return _sentence(f"The model cannot answer this: {why}.", 200)

    return Starlette(
        routes=[Route("/", show), Route("/answer", answer, methods=["POST"])],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
    )


def _question(body: bytes) -> tuple[list[str], list[str]]:
    """Read a request: ``{"texts": [one or two], "off": [names of heads]}``."""
    malformed = InputError('A request is {"texts": [one or two texts], "off": [names of heads]}.')
    try:
        question = json.loads(body)
        texts = question["texts"]
        off = question["off"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise malformed from None
    if not (isinstance(texts, list) and isinstance(off, list) and len(texts) in (1, 2)):
        raise malformed
    if not all(isinstance(item, str) for item in [*texts, *off]):
        raise malformed
    return texts, off


def _sentence(text: str, status: int) -> JSONResponse:
    """Answer with an error that the page shows; half of a character becomes a question mark."""
    text = text.encode("utf-8", "replace").decode()
    return JSONResponse({"error": text}, status, headers=_HEADERS)


def bound(port: int) -> socket.socket:
    """Take a port of this machine, any free one for 0; raises InputError where it is taken.

    Who connects from now on waits for an answer and is not refused: the address is shown at once.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        reason = getattr(error, "strerror", None) or "ports are 0 to 65535"
        raise InputError(
            f"Port {port} cannot be used ({reason}); give another with --port."
        ) from None
    return listening


def run(page: str, ask: Ask, listening: socket.socket, token: str) -> NoReturn:
    """Serve until Ctrl-C, which ends a computation that is under way too, as KeyboardInterrupt."""
    app = application(page, ask, token=token, port=listening.getsockname()[1])
    settings = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=0
    )
    uvicorn.Server(settings).run(sockets=[listening])
    # uvicorn has raised the signal again by now, but where a shell told the program to ignore it.
    raise KeyboardInterrupt

"""The server of ``headscope serve``: one page, one address that answers its questions.

Nothing that is typed is written down. The server listens on 127.0.0.1 only. Every request must name
this machine as its host, and carry the token that the printed address has; a question must come
from the page itself. So neither another machine, nor another user who does not know the address,
nor a page of another site can ask.
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
from typing import Any, NamedTuple, NoReturn

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
Reply = dict[str, Any]  # What the page reads as JSON
#: Answers a question: called with texts and the names of the heads that are off.
Ask = Callable[[list[str], list[str]], Reply]


class _Question(NamedTuple):
    """A question that waits."""

    texts: list[str]
    off: list[str]
    reply: Future[Reply]


class Worker:
    """A thread that answers one question after the other.

    It is a daemon: the program can end while it works.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting = queue.Queue[_Question](WAITING)
        # With a copy of this thread's context variables, which a new thread would not have.
        run_in_context = copy_context().run
        threading.Thread(target=run_in_context, args=(self._work,), daemon=True).start()

    def answer(self, texts: list[str], off: list[str]) -> asyncio.Future[Reply]:
        """Return the future answer; raises queue.Full if too many questions wait."""
        reply = Future[Reply]()
        self._waiting.put_nowait(_Question(texts, off, reply))
        return asyncio.wrap_future(reply)

    def _work(self) -> None:
        """Answer questions for ever."""
        while True:
            question = self._waiting.get()
            if not question.reply.set_running_or_notify_cancel():  # its browser has gone
                continue
            try:
                question.reply.set_result(self._ask(question.texts, question.off))
            except Exception as error:
                question.reply.set_exception(error)


def application(page: str, ask: Ask, *, token: str, port: int) -> Starlette:
    """Make an application with two addresses: ``/`` is the page, ``/answer`` answers in JSON."""
    worker = Worker(ask)
    origins = {f"http://{name}:{port}" for name in (HOST, "localhost")}

    def is_token(sent: str | None) -> bool:
        """Compare in a time that does not depend on how much of it is right."""
        return secrets.compare_digest((sent or "").encode(), token.encode())

    async def show(request: Request) -> Response:
        """Send the page to whoever knows the token."""
        if not is_token(request.query_params.get("token")):
            return PlainTextResponse(
                "Open the whole address that headscope serve printed: its token is missing here.",
                403,
                _HEADERS,
            )
        return HTMLResponse(page, headers=_HEADERS)

    async def answer(request: Request) -> Response:
        """Answer a question, or send a sentence that the page shows in place of an answer."""
        # Check who asks.
        from_page = request.headers.get("origin") in origins
        if not from_page or not is_token(request.headers.get("token")):
            return _sentence("This request does not come from the page of this server.", 403)

        # Read the question.
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

        # Answer it.
        try:
            return JSONResponse(await worker.answer(texts, off), headers=_HEADERS)
        except queue.Full:
            return _sentence("Too many requests wait already; try again in a moment.", 503)
        except HeadscopeError as error:  # the text cannot be answered
            return _sentence(str(error), 200)
        except Exception as error:  # the model fails on this text: the page shows it and goes on
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
    """Answer with an error that the page shows."""
    text = text.encode("utf-8", "replace").decode()  # half of a character becomes a question mark
    return JSONResponse({"error": text}, status, headers=_HEADERS)


def open_port(port: int) -> socket.socket:
    """Take a port of this machine, any free one for 0; raises InputError if it is taken.

    From now on, whoever connects waits for an answer and is not refused: so the address may be
    shown before the server runs.
    """
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        why = getattr(error, "strerror", None) or "ports are 0 to 65535"
        raise InputError(f"Port {port} cannot be used ({why}); give another with --port.") from None
    return listening


def run(page: str, ask: Ask, listening: socket.socket, token: str) -> NoReturn:
    """Serve until Ctrl-C, then raise KeyboardInterrupt, even while a question is answered."""
    app = application(page, ask, token=token, port=listening.getsockname()[1])
    settings = uvicorn.Config(
        app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=0
    )
    uvicorn.Server(settings).run(sockets=[listening])
    # uvicorn raises the interrupt itself, unless a shell told the program to ignore the signal.
    raise KeyboardInterrupt

"""The server of ``headscope serve``: one page, an address that answers its questions.

Nothing that is typed is written down. The server listens on 127.0.0.1 only. Every request must name
this machine as its host, and carry the token that the printed address has; a question must come
from the page itself. So neither another machine, nor another user who does not know the address,
nor a page of another site can ask.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import secrets
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
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
LAST = 5.0  # Seconds that an answer that is being computed has to end in, when the program ends
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


class Question(NamedTuple):
    """What the page asks."""

    texts: list[str]
    off: list[str]  # Names of heads
    name: str = ""  # By which the page asks whether it is still being answered


class Worker:
    """A thread that answers one question after the other, until it is stopped.

    It is a daemon, so that a model that never answers does not keep the program from ending.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting = queue.Queue[tuple[Question, Future[Reply]] | None](WAITING)
        self._replies: dict[str, Future[Reply]] = {}  # Of named questions, until they are answered
        self._stopped = False
        # With a copy of this thread's context variables, which a new thread would not have.
        run_in_context = copy_context().run
        self._thread = threading.Thread(target=run_in_context, args=(self._work,), daemon=True)
        self._thread.start()

    def answer(self, question: Question) -> asyncio.Future[Reply]:
        """Return the future answer; raises queue.Full if too many questions wait."""
        reply = Future[Reply]()
        self._waiting.put_nowait((question, reply))
        self._replies[question.name] = reply
        reply.add_done_callback(lambda done: self._replies.pop(question.name, None))
        return asyncio.wrap_future(reply)

    def is_asked(self, name: str) -> bool:
        """Whether a question of this name waits, or is being answered."""
        return name in self._replies

    def stop(self, seconds: float) -> bool:
        """Answer no further question; say whether the thread has ended, after so long at most."""
        self._stopped = True
        with suppress(queue.Full):
            self._waiting.put_nowait(None)
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _work(self) -> None:
        """Answer questions until the worker is stopped."""
        while (waiting := self._waiting.get()) is not None and not self._stopped:
            question, reply = waiting
            if not reply.set_running_or_notify_cancel():  # its browser has gone
                continue
            try:
                reply.set_result(self._ask(question.texts, question.off))
            except Exception as error:
                reply.set_exception(error)


def application(page: str, worker: Worker, *, token: str, port: int) -> Starlette:
    """Make an application of three addresses.

    ``/`` is the page, ``/answer`` answers in JSON, and ``/asked`` says whether a question is still
    being answered: a page whose question got lost on the way asks again.
    """
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
            question = _question(body)
        except InputError as error:
            return _sentence(str(error), 400)

        # Answer it, unless its page goes away meanwhile.
        try:
            reply = worker.answer(question)
            gone = asyncio.ensure_future(_gone(request))
            either: list[asyncio.Future[Any]] = [reply, gone]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not reply.done():
                reply.cancel()  # the worker passes it over, if it waits
                return Response(status_code=499)  # nobody reads this
            return JSONResponse(reply.result(), headers=_HEADERS)
        except queue.Full:
            return _sentence("Too many requests wait already; try again in a moment.", 503)
        except HeadscopeError as error:  # the text cannot be answered
            return _sentence(str(error), 200)
        except Exception as error:  # the model fails on this text: the page shows it and goes on
            why = visible(reason(error)).rstrip(".")
            return _sentence(f"The model cannot answer this: {why}.", 200)

    async def asked(request: Request) -> Response:
        """Say whether a question waits or is being answered."""
        if not is_token(request.headers.get("token")):
            return _sentence("This request does not come from the page of this server.", 403)
        is_asked = worker.is_asked(request.query_params.get("name", ""))
        return JSONResponse({"asked": is_asked}, headers=_HEADERS)

    return Starlette(
        routes=[
            Route("/", show),
            Route("/answer", answer, methods=["POST"]),
            Route("/asked", asked),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])],
    )


async def _gone(request: Request) -> None:
    """Wait until the browser has gone: it has left the page, or given the question up."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _question(body: bytes) -> Question:
    """Read a request: ``{"texts": [one or two], "off": [names of heads], "name": "..."}``."""
    malformed = InputError('A request is {"texts": [one or two texts], "off": [names of heads]}.')
    try:
        question = json.loads(body)
        texts = question["texts"]
        off = question["off"]
        name = question.get("name", "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise malformed from None
    if not (isinstance(texts, list) and isinstance(off, list) and len(texts) in (1, 2)):
        raise malformed
    if not all(isinstance(item, str) for item in [*texts, *off, name]):
        raise malformed
    return Question(texts, off, name)


def _sentence(text: str, status: int) -> JSONResponse:
    """Answer with an error that the page shows."""
    text = text.encode("utf-8", "replace").decode()  # half of a character becomes a question mark
    return JSONResponse({"error": text}, status, headers=_HEADERS)


def open_port(port: int) -> socket.socket:
    """Take a port of this machine, any free one for 0; raises InputError if it is taken.

    From now on no other program can take it; whoever connects waits until the server runs.
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


class _Server(uvicorn.Server):
    """A server that says when it answers."""

    def __init__(self, app: Starlette, ready: Callable[[], None]) -> None:
        settings = uvicorn.Config(
            app, log_level="critical", access_log=False, lifespan="off", timeout_graceful_shutdown=0
        )
        super().__init__(settings)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer, and say so."""
        await super().startup(sockets)
        if self.started:
            self._ready()


def run(
    page: str,
    ask: Ask,
    listening: socket.socket,
    token: str,
    *,
    ready: Callable[[], None],
    stop: Callable[[], None],
) -> NoReturn:
    """Serve until Ctrl-C, then raise KeyboardInterrupt, even while a question is answered.

    ``ready`` is called as soon as the server answers. ``stop`` has to make ``ask`` raise an error
    soon: a thread that still computed when Python ends would abort the process.
    """
    worker = Worker(ask)
    app = application(page, worker, token=token, port=listening.getsockname()[1])
    try:
        _Server(app, ready).run(sockets=[listening])
    finally:
        stop()
        _end(worker)
    # uvicorn raises the interrupt itself, unless a shell told the program to ignore the signal.
    raise KeyboardInterrupt


def _end(worker: Worker) -> None:
    """Wait until nothing is computed any more; if that takes long, end the process at once."""
    try:
        ended = worker.stop(LAST)
    except KeyboardInterrupt:  # a second Ctrl-C
        ended = False
    if not ended:
        with suppress(OSError):
            print("headscope: interrupted", file=sys.stderr, flush=True)
        os._exit(130)

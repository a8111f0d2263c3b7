"""Files of a report's finished sections, drawn by a process of their own while others are measured.

Drawing is Python on one core, and measuring leaves some of the others idle. What cannot be drawn
there is drawn here, so that nothing depends on the other process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from headscope.core.serialise import from_dict, to_dict
from headscope.reports.registry import section_of
from headscope.show.style import FigureStyle, figure_style, styled
from headscope.show.view import view_of

Files = Mapping[str, bytes]
_drawer: ContextVar[_Drawer | None] = ContextVar("headscope_drawer", default=None)
#: Finds modules exactly where this process does.
_PROGRAM = (
    "import sys; sys.path[:] = sys.argv[1:]; from headscope.reports.ahead import serve; serve()"
)


@contextmanager
def drawing_ahead() -> Iterator[None]:
    """Draw what :func:`begin` is given inside, where there is a second core."""
    drawer = None
    if (os.cpu_count() or 1) > 1:
        with suppress(OSError):  # no room for another process
            drawer = _Drawer()
    token = _drawer.set(drawer)
    try:
        yield
    finally:
        _drawer.reset(token)
        if drawer is not None:
            drawer.close()


def begin(section: str, result: Any) -> None:
    """Begin to draw the files of a section, which nobody will change."""
    if (drawer := _drawer.get()) is not None:
        drawer.begin(section, result)


def files_of(section: str, result: Any) -> Files:
    """Return the files of a section: those that :func:`begin` has drawn, or drawn now."""
    drawer = _drawer.get()
    drawn = None if drawer is None else drawer.drawn(section)
    return view_of(section).files(result) if drawn is None else drawn


class _Drawer:
    """A process that reads sections from its standard input, and writes their files; as JSON."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for this process, which then closes the other
        )
        self._thread = ThreadPoolExecutor(1)  # waits for the other process
        self._begun: dict[str, Future[Files]] = {}

    def begin(self, section: str, result: Any) -> None:
        self._begun[section] = self._thread.submit(self._ask, section, result, figure_style())

    def drawn(self, section: str) -> Files | None:
        with suppress(KeyError, OSError, TypeError, ValueError):
            return self._begun.pop(section).result()
        return None

    def close(self) -> None:
        self._child.kill()
        self._thread.shutdown(cancel_futures=True)
        for pipe in (self._child.stdin, self._child.stdout):
            with suppress(OSError):  # what the other process has not read is lost
                assert pipe is not None
                pipe.close()
        self._child.wait()

    def _ask(self, section: str, result: Any, style: FigureStyle) -> Files:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        asked = json.dumps([section, to_dict(result), to_dict(style)])
        print(asked, file=self._child.stdin, flush=True)
        files = json.loads(self._child.stdout.readline())
        return {name: data.encode("latin-1") for name, data in files.items()}


def serve() -> None:
    """Draw what each line of standard input asks for."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # no view should print; what prints must not be taken for an answer
    for line in sys.stdin:
        section, data, style = json.loads(line)
        result: Any = from_dict(section_of(section).kind, data)
        with styled(FigureStyle(**{**style, "formats": tuple(style["formats"])})):
            files = view_of(section).files(result)
        drawn = json.dumps({name: data.decode("latin-1") for name, data in files.items()})
        print(drawn, file=answers, flush=True)

"""``headscope serve``: a page on this machine that shows all heads of a typed sentence."""

from __future__ import annotations

import importlib.util
import secrets
import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from headscope.cli.flags import MODEL_HELP, Debug, Quiet
from headscope.cli.output import command_line, print_note
from headscope.cli.progress import RunProgress
from headscope.cli.settings import ConfigFile
from headscope.core.errors import InputError
from headscope.session.options import MODEL, SOURCE_LANGUAGE, TARGET_LANGUAGE


def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP, show_default=False)],
    roles: Annotated[
        Path | None,
        typer.Option(
            help="classify.json of this model, or its folder. Default: heads are classified on the "
            "built-in sample at the start."
        ),
    ] = None,
    port: Annotated[
        int,
        typer.Option(help="Port on this machine; 0 takes any that is free.", min=0, max=65535),
    ] = 0,
    no_browser: Annotated[
        bool,
        typer.Option("--no-browser", help="Print the address only; open no browser.", metavar=""),
    ] = False,
    source_language: Annotated[
        str | None,
        typer.Option(help=SOURCE_LANGUAGE.help, metavar="CODE", rich_help_panel=MODEL, hidden=True),
    ] = None,
    target_language: Annotated[
        str | None,
        typer.Option(help=TARGET_LANGUAGE.help, metavar="CODE", rich_help_panel=MODEL, hidden=True),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random sets of heads.", hidden=True)] = 0,
    quiet: Quiet = False,
    config: ConfigFile = None,
    debug: Debug = False,
) -> None:
    """Type a sentence, see all heads, switch some off, and see what the model then answers.

    The page is served on this machine alone and nothing that is typed is written anywhere. Every
    answer stands beside that of the whole model and of random sets of as many heads in the same
    layers. Ctrl-C ends.
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"headscope serve needs {' and '.join(missing)}; install the extra with "
            "pip install 'headscope[serve]'."
        )
    from headscope.live import server
    from headscope.live.page import page_and_answers

    token = secrets.token_urlsafe(16)
    progress = RunProgress("serve", quiet=quiet)
    with server.open_port(port) as listening:
        with progress.shown({"validate": 1.0, "classify": 8.0}):
            page, answers = page_and_answers(
                model,
                roles,
                seed=seed,
                command=command_line(),
                progress=progress.listener,
                source_language=source_language,
                target_language=target_language,
            )
        address = f"http://{server.HOST}:{listening.getsockname()[1]}/?token={token}"

        def show_address() -> None:
            print(address, flush=True)
            print_note("the page is open to this machine only; Ctrl-C ends.", quiet)
            if not no_browser:  # beside the server, which the browser asks at once
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        server.run(
            page,
            answers,
            listening,
            token,
            ready=show_address,
            stop=answers.stopped.set,
        )

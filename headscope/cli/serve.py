"""``headscope serve MODEL``."""

from __future__ import annotations

import importlib.util
import secrets
import webbrowser
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from headscope.cli import shared_options as shared
from headscope.cli.output import command_line, print_note, shown_progress
from headscope.core.errors import InputError

EXAMPLES = """Examples:

`headscope serve demo`

`headscope serve ./my-bert --roles out/classify.json --no-browser`
"""


def serve(
    model: Annotated[
        str,
        Argument(
            metavar="MODEL",
            help="A model folder, a hub id, or 'demo' for all-MiniLM-L6-v2.",
            show_default=False,
        ),
    ],
    roles: Annotated[
        Path | None,
        Option(
            help="classify.json of this model, or its folder. Default: heads are classified on the "
            "built-in sample at the start."
        ),
    ] = None,
    port: Annotated[
        int, Option(help="Port on this machine; 0 takes any that is free.", min=0, max=65535)
    ] = 0,
    no_browser: Annotated[
        bool, Option("--no-browser", help="Print the address only; open no browser.")
    ] = False,
    seed: Annotated[int, Option(help="Of the random sets of heads.")] = 0,
    config: shared.Config = None,
    quiet: shared.Quiet = False,
    debug: shared.Debug = False,
) -> None:
    """Type a sentence, see all heads, switch some off, and see what the model then answers.

    The page is served on this machine alone and nothing that is typed is written anywhere. Every
    answer stands beside that of the whole model and of random sets of as many heads. Ctrl-C ends.
    """
    missing = [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"headscope serve needs {' and '.join(missing)}; install the extra with "
            "pip install 'headscope[serve]'."
        )
    from headscope.live import server
    from headscope.live.run import prepared

    listening, token = server.bound(port), secrets.token_urlsafe(16)
    with listening:
        with shown_progress("serve", quiet, ("validate", "classify")) as tell:
            page, answers = prepared(model, roles, seed=seed, command=command_line(), progress=tell)
        address = f"http://{server.HOST}:{listening.getsockname()[1]}/?token={token}"
        print(address, flush=True)
        print_note("the page is open to this machine only; Ctrl-C ends.", quiet)
        if not no_browser:
            webbrowser.open(address)
        server.run(page, answers, listening, token)

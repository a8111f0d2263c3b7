"""In a notebook: the progress of a run, and a result as its key sentence and its map."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from markupsafe import Markup

from headscope.core.progress import Progress, Steps
from headscope.core.roles import primary_roles
from headscope.show.blocks import (
    PAGE,
    Block,
    Chart,
    Drawing,
    HeadMap,
    HeadMarks,
    Panels,
    Text,
)
from headscope.show.cells import head_rows, model_name, tidy
from headscope.show.view import view_of

_EVERY = 0.5  # Seconds between two updates of the bar
#: The command whose bar is shown, while it is.
_RUNNING: list[str] = []
_STYLE = "padding:1px 6px;text-align:center;color:#16191f;font-size:11px;border:1px solid #fff"


@contextmanager
def progress_bar(command: str, names: Sequence[str]) -> Iterator[Progress | None]:
    """Show below a notebook's cell how far a run has come, until it ends; one bar at a time."""
    from IPython import get_ipython
    from IPython.display import HTML, display

    if _RUNNING or get_ipython() is None:
        yield None
        return
    steps = Steps(names)
    last = 0.0
    html: Any = HTML
    shown: Any = display(html(""), display_id=True)  # type: ignore[no-untyped-call]
    _RUNNING.append(command)

    def tell(what: str, done: int, total: int) -> None:
        nonlocal last
        steps.tell(what, done, total)
        if time.monotonic() - last > _EVERY:
            last = time.monotonic()
            bar = Markup('<progress value="{:.3f}" max="1"></progress> {}, {}')
            shown.update(html(bar.format(steps.share or 0.0, command, steps.title())))

    try:
        yield tell
    finally:
        _RUNNING.pop()
        shown.update(html(""))


def headline(result: Any) -> str:
    """Return the sentences that terminal and page begin with, a line each."""
    texts = [b for b in _blocks(result) if isinstance(b, Text) and b.text]
    leads = [text for text in texts if text.style in ("lead", "passed", "failed")]
    lines = leads or [text for text in texts if PAGE in text.on][:1]
    return "\n".join(" ".join(line.text.split()) for line in lines)


def html(result: Any) -> str:
    """Write the key sentences, and the map of heads or the first figure."""
    shown = _blocks(result)
    sentences = Markup("<br>").join(tidy(headline(result)).splitlines())
    parts = [
        Markup("<p><b>{} of {}</b>. {}</p>").format(
            result.command_name, model_name(result), sentences
        )
    ]
    marks = next((block for block in shown if isinstance(block, HeadMarks)), None)
    if marks is not None:
        parts.append(_table(marks))
    elif (figure := figure_of(result)) is not None:
        from headscope.show.figures import figure_files
        from headscope.show.style import FigureStyle, styled

        figure.set_dpi(80)
        with styled(FigureStyle(("png",))):
            image = base64.b64encode(figure_files({"map": figure})["map.png"]).decode()
        parts.append(
            Markup('<img alt="{}" src="data:image/png;base64,{}">').format(
                result.command_name, image
            )
        )
    return str(Markup("\n").join(parts))


def figure_of(result: Any, name: str = "", ax: Any = None) -> Any:
    """Draw the figure of a result that has this name, by default its first; None without any.

    With ``ax`` it is drawn there, if it has one panel.
    """
    from headscope.core.errors import InputError
    from headscope.show.figures import chart_on, figures_of

    blocks = (b for b in _blocks(result) if isinstance(b, Chart | HeadMap | Panels | Drawing))
    named = {block.file: block for block in blocks if block.file}
    if name and name not in named:
        raise InputError(f"There is no figure {name!r}; this result has {', '.join(named)}.")
    chosen = named[name] if name else next(iter(named.values()), None)
    if ax is None or chosen is None:
        return None if chosen is None else next(iter(figures_of([chosen])))[1]
    if not isinstance(chosen, Chart):
        one = [file for file, block in named.items() if isinstance(block, Chart)]
        raise InputError(
            f"The figure {chosen.file!r} takes no ax; those that do: {', '.join(one) or 'none'}."
        )
    chart_on(ax, chosen)
    return ax.get_figure(root=True)


def _blocks(result: Any) -> list[Block]:
    blocks = view_of(result.command_name).blocks
    return [] if blocks is None else list(blocks(result))


def _table(block: HeadMarks) -> Markup:
    light = {role.style: role.light for role in primary_roles()}
    cell = Markup('<td style="{};background:{}">{}</td>')
    rows = head_rows(block.marks)
    across = range(max((len(row) for _, row in rows), default=0))
    header = Markup("").join(Markup("<th scope=col>H{}</th>").format(i) for i in across)
    lines = [
        Markup("<tr><th scope=row>{}</th>{}</tr>").format(
            layer,
            Markup("").join(
                cell.format(_STYLE, light.get(style, "#fff"), text)
                for text, style in (mark or ("", "") for mark in row)
            ),
        )
        for layer, row in rows
    ]
    table = "<table><thead><tr><th></th>{}</tr></thead>{}</table><p><small>{}</small></p>"
    return Markup(table).format(header, Markup("").join(lines), block.legend)

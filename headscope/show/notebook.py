"""In a notebook: the progress of a run, and a result as its key sentence and its map."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator, Mapping
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

_SECONDS = 0.5  # Between two updates of the bar
_BAR = Markup('<progress value="{:.3f}" max="1"></progress> {}, {} ({})')
#: The command whose bar is shown at the moment, or none: a command that it calls shows no bar.
_running: list[str] = []
_CELL_STYLE = "padding:1px 6px;text-align:center;color:#16191f;font-size:11px;border:1px solid #fff"


@contextmanager
def progress_bar(command: str, usual_seconds: Mapping[str, float]) -> Iterator[Progress | None]:
    """Show below a notebook's cell how far a run has come, until it ends.

    Yields the function that the run tells its progress; None outside of notebooks, and while the
    bar of another command is shown.
    """
    from IPython import get_ipython
    from IPython.display import HTML, display

    if _running or get_ipython() is None:
        yield None
        return
    steps = Steps(usual_seconds)
    updated_at = 0.0
    html: Any = HTML
    bar: Any = display(html(""), display_id=True)  # type: ignore[no-untyped-call]
    _running.append(command)

    def tell(step: str, done: int, total: int) -> None:
        nonlocal updated_at
        steps.tell(step, done, total)
        if time.monotonic() - updated_at > _SECONDS:
            updated_at = time.monotonic()
            line = _BAR.format(steps.share or 0.0, command, steps.sentence(), steps.times())
            bar.update(html(line))

    try:
        yield tell
    finally:
        _running.pop()
        bar.update(html(""))


def headline(result: Any) -> str:
    """Return the sentences that terminal and page begin with, a line each."""
    texts = [block for block in _blocks(result) if isinstance(block, Text) and block.text]
    leads = [text for text in texts if text.style in ("lead", "passed", "failed")]
    if not leads:
        leads = [text for text in texts if PAGE in text.on][:1]
    return "\n".join(" ".join(lead.text.split()) for lead in leads)


def html(result: Any) -> str:
    """Write what Jupyter shows: the key sentences, and the map of heads or the first figure."""
    sentences = Markup("<br>").join(tidy(headline(result)).splitlines())
    title = Markup("<b>{} of {}</b>").format(result.command_name, model_name(result))  # escaped
    markup = [Markup("<p>{}. {}</p>").format(title, sentences)]
    marks = [block for block in _blocks(result) if isinstance(block, HeadMarks)]
    if marks:
        markup.append(_map_of_heads(marks[0]))
    else:
        figure = figure_of(result)
        if figure is not None:
            markup.append(_image(figure, result.command_name))
    return str(Markup("\n").join(markup))


def _image(figure: Any, alt: str) -> Markup:
    """Draw a figure as an image that the page itself holds."""
    from headscope.show.figures import figure_files
    from headscope.show.style import showing

    figure.set_dpi(80)
    with showing(["png"]):
        png = figure_files({"map": figure})["map.png"]
    image = Markup('<img alt="{}" src="data:image/png;base64,{}">')
    return image.format(alt, base64.b64encode(png).decode())


def figure_of(result: Any, name: str = "", ax: Any = None) -> Any:
    """Draw the figure of this name, by default the result's first; None if there is none.

    A chart can be drawn on the caller's ``ax``.
    """
    from headscope.core.errors import InputError
    from headscope.show.figures import chart_on, figures_of

    figures = {
        block.file: block
        for block in _blocks(result)
        if isinstance(block, Chart | HeadMap | Panels | Drawing) and block.file
    }
    if name and name not in figures:
        raise InputError(f"There is no figure {name!r}; this result has {', '.join(figures)}.")
    if not figures:
        return None
    file = name or next(iter(figures))
    block = figures[file]
    if ax is None:
        return dict(figures_of([block]))[file]
    if not isinstance(block, Chart):
        charts = [name for name, figure in figures.items() if isinstance(figure, Chart)]
        raise InputError(
            f"The figure {file!r} takes no ax; those that do: {', '.join(charts) or 'none'}."
        )
    chart_on(ax, block)
    return ax.get_figure(root=True)


def _blocks(result: Any) -> list[Block]:
    """Return the blocks that the command's view makes of a result."""
    blocks = view_of(result.command_name).blocks
    return [] if blocks is None else list(blocks(result))


def _map_of_heads(block: HeadMarks) -> Markup:
    """Write layers x heads as a table whose cells have the colours of roles."""
    rows = head_rows(block.marks)
    n_heads = max((len(marks) for _, marks in rows), default=0)
    names = [Markup("<th scope=col>H{}</th>").format(head) for head in range(n_heads)]
    lines = []
    for layer, marks in rows:
        cells = Markup("").join(_cell(mark) for mark in marks)
        lines.append(Markup("<tr><th scope=row>{}</th>{}</tr>").format(layer, cells))
    table = "<table><thead><tr><th></th>{}</tr></thead>{}</table><p><small>{}</small></p>"
    return Markup(table).format(Markup("").join(names), Markup("").join(lines), block.legend)


def _cell(mark: tuple[str, str] | None) -> Markup:
    """Write a head's mark (text, style) on the light colour of its role; None is an empty cell."""
    text, style = ("", "") if mark is None else mark
    colours = {role.style: role.light for role in primary_roles()}
    cell = Markup('<td style="{};background:{}">{}</td>')
    return cell.format(_CELL_STYLE, colours.get(style, "#fff"), text)

"""The files of ``explain``: pairs of tokens and heads as CSV, the figure, and a page of its own."""

from __future__ import annotations

from headscope.results.explain import ExplainResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.explain.page import section
from headscope.show.folders import folder_files


def explain_files(result: ExplainResult) -> dict[str, bytes]:
    """Return explain.csv, explain-heads.csv, explain.png, explain.svg and explain.html."""
    from headscope.show.explain.figures import steps_figure
    from headscope.show.page.html import part_html

    csv = {"explain": to_csv(result), "explain-heads": frame_csv(result.heads_frame())}
    page = part_html(section(result, opened=True), result)
    figures = {"explain": steps_figure(result)}
    return {**folder_files(csv, figures), "explain.html": page.encode()}

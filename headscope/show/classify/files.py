"""The files of ``classify``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import ClassifyResult
from headscope.show.classify.tables import heads_csv, relations_csv

__all__ = ["STALE", "classify_files"]

#: Only a run with gold trees writes these.
STALE = ("relations.csv", "relations.png", "relations.svg")


def classify_files(result: ClassifyResult) -> dict[str, bytes]:
    """Return heads.csv, relations.csv and the figures."""
    from headscope.show.classify.figures import relation_bars, role_map
    from headscope.show.drawing import figure_files

    files = {"heads.csv": heads_csv(result).encode()}
    figures = {"roles": role_map(result)}
    if result.corpus.trees:
        files["relations.csv"] = relations_csv(result).encode()
        figures["relations"] = relation_bars(result)
    return files | figure_files(figures)

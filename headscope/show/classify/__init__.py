"""How ``classify`` looks."""

from headscope.results import ClassifyResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.classify import page, tables
from headscope.show.folders import folder_files, names_of
from headscope.show.view import View

__all__ = ["VIEW"]


def _files(result: ClassifyResult) -> dict[str, bytes]:
    """Return heads.csv, relations.csv and the figures."""
    from headscope.show.classify.figures import relation_bars, role_map

    csv, figures = {"heads": to_csv(result)}, {"roles": role_map(result)}
    if result.corpus.trees:
        csv["relations"] = frame_csv(result.relations_frame())
        figures["relations"] = relation_bars(result)
    return folder_files(csv, figures)


VIEW = View(
    tables.classify_report,
    _files,
    stale=names_of("relations"),  # only a run with gold trees writes these
    facts=page.facts,
    scales=page.SCALES,
    section=page.section,
)

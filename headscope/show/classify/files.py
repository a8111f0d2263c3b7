"""The files of ``classify``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results import ClassifyResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files


def classify_files(result: ClassifyResult) -> dict[str, bytes]:
    """Return heads.csv, relations.csv and the figures."""
    from headscope.show.classify.figures import alignment_map, relation_bars, role_map

    csv, figures = {"heads": to_csv(result)}, {"roles": role_map(result)}
    if "cross" in result.stacks:
        figures["alignment"] = alignment_map(result)
    if result.corpus.trees and "encoder" in result.stacks:
        csv["relations"] = frame_csv(result.relations_frame())
        figures["relations"] = relation_bars(result)
    return folder_files(csv, figures)

"""The files of ``classify``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.classify import ClassifyResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files


def classify_files(result: ClassifyResult) -> dict[str, bytes]:
    """Return heads.csv, relations.csv and the figures."""
    from headscope.show.classify.figures import (
        alignment_map,
        cause_map,
        prefix_map,
        relation_bars,
        role_map,
    )

    csv, figures = {"heads": to_csv(result)}, {"roles": role_map(result)}
    if "cross" in result.stacks:
        figures["alignment"] = alignment_map(result)
    if result.corpus.trees and "encoder" in result.stacks:
        csv["relations"] = frame_csv(result.relations_frame())
        figures["relations"] = relation_bars(result)
    if any(head.cause is not None for head in result.heads):
        figures["causes"] = cause_map(result)
    if any(head.prefix is not None for head in result.heads):
        figures["prefix_matching"] = prefix_map(result)
    return folder_files(csv, figures)

"""The files of ``symmetric``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.symmetric import SymmetricResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files


def symmetric_files(result: SymmetricResult) -> dict[str, bytes]:
    """Return symmetric.csv, symmetric_sets.csv, the curves, and the map if heads were changed."""
    from headscope.show.symmetric.figures import head_curves, symmetric_map

    csv = {"symmetric": to_csv(result), "symmetric_sets": frame_csv(result.sets_frame())}
    figures = {"symmetric_curves": head_curves(result)}
    if any(head.symmetric is not None for head in result.heads):
        figures["symmetric_map"] = symmetric_map(result)
    return folder_files(csv, figures)

"""The files of ``linear``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.linear import LinearResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files


def linear_files(result: LinearResult) -> dict[str, bytes]:
    """Return linear.csv, tables of forms, correlations and stored keys, and the figures."""
    from headscope.show.linear.figures import coherence_scatter, memory_curves

    csv = {
        "linear": to_csv(result),
        "linear_forms": frame_csv(result.forms_frame()),
        "linear_correlations": frame_csv(result.correlations_frame()),
        "linear_memory": frame_csv(result.memory_frame()),
    }
    figures = {
        "linear_coherence": coherence_scatter(result),
        "linear_memory": memory_curves(result),
    }
    return folder_files(csv, figures)

"""The files of ``transfer``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.transfer import TransferResult
from headscope.show.cells import frame_csv, to_csv
from headscope.show.folders import folder_files


def transfer_files(result: TransferResult) -> dict[str, bytes]:
    """Return the tables, from cells to the rates that were tried, and the two figures."""
    from headscope.show.transfer.figures import accuracy_figure, learning_curves

    csv = {
        "transfer": to_csv(result),
        "transfer_runs": frame_csv(result.runs_frame()),
        "transfer_curves": frame_csv(result.curves_frame()),
        "transfer_differences": frame_csv(result.differences_frame()),
        "transfer_divergence": frame_csv(result.divergence_frame()),
        "transfer_rates": frame_csv(result.searched_frame()),
    }
    figures = {"transfer": accuracy_figure(result), "transfer_curves": learning_curves(result)}
    return folder_files(csv, figures)

"""The files of ``flow``: tables as CSV and figures."""

from __future__ import annotations

from headscope.results.flow import FlowResult
from headscope.show.cells import fields_csv, to_csv
from headscope.show.folders import folder_files

#: Columns of the table of hubs.
_HUBS = ("name", "received", "even", "ratio.value", "ratio.half_width", "occurrences")


def flow_files(result: FlowResult) -> dict[str, bytes]:
    """Return flow.csv, flow_hubs.csv and the figures; that of the trees only where there are."""
    from headscope.show.flow.figures import recovery_by_layer, tree_map

    csv = {"flow": to_csv(result), "flow_hubs": fields_csv(_HUBS, result.graph.hubs)}
    figures = {"flow": recovery_by_layer(result)}
    if result.trees is not None:
        figures["flow_trees"] = tree_map(result, result.trees)
    return folder_files(csv, figures)

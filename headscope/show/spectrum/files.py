"""Writing the result folder of ``spectrum``."""

from __future__ import annotations

from pathlib import Path

from headscope.results import SpectrumResult, to_json
from headscope.show.files import drop_state, write_files
from headscope.show.spectrum.tables import cheap_csv, spectrum_csv

__all__ = ["STATE", "write_spectrum"]

#: Where a run saves its sums while it runs.
STATE = ".spectrum.state.safetensors"
#: Files that only a run with --efficient writes.
_NEED_EFFICIENT = {f"spectrum_efficient.{kind}" for kind in ("csv", "png", "svg")}


def write_spectrum(result: SpectrumResult, folder: Path) -> None:
    """Write spectrum.json, the tables as CSV and the figures, then drop the run's state."""
    from headscope.show.drawing import figure_files
    from headscope.show.spectrum.figures import cost_curves, share_map, spectrum_curves

    files: dict[str, bytes] = {"spectrum.csv": spectrum_csv(result).encode()}
    figures = {
        "spectrum_curves": spectrum_curves(result),
        "spectrum_map": share_map(result),
        "spectrum_map_sq": share_map(result, squared=True),
    }
    if result.efficient is not None:
        files["spectrum_efficient.csv"] = cheap_csv(result.efficient).encode()
        figures["spectrum_efficient"] = cost_curves(result)
    files |= figure_files(figures)
    files["spectrum.json"] = to_json(result).encode() + b"\n"
    write_files(folder, files, stale=_NEED_EFFICIENT)
    drop_state(folder, STATE)

"""What all figures share."""

from __future__ import annotations

import matplotlib as mpl

from headscope.show.drawing import figure_files, heat_map


def drawn() -> dict[str, bytes]:
    return figure_files({"map": heat_map([[0.1, None], [0.7, 0.2]], title="t", legend="l")})


def test_the_same_figure_gives_the_same_bytes_and_leaves_no_setting_changed() -> None:
    before = dict(mpl.rcParams)
    first = drawn()
    assert set(first) == {"map.png", "map.svg"}
    assert drawn() == first
    assert dict(mpl.rcParams) == before
    assert before["svg.hashsalt"] is None

"""Memory does not grow with the corpus."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

_PEAK = """
import resource, sys
import headscope
result = headscope.classify("demo", sys.argv[1], language="en")
print(result.corpus.sentences, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak(treebank: Path) -> tuple[int, int]:
    """Sentences measured, and peak resident memory in KiB."""
    output = subprocess.run(
        [sys.executable, "-c", _PEAK, str(treebank)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    sentences, peak = output.split()
    return int(sentences), int(peak)


@pytest.mark.skipif(sys.platform == "darwin", reason="ru_maxrss has another unit there")
def test_ten_times_the_sentences_need_no_more_memory(ewt: Path, tmp_path: Path) -> None:
    text = ewt.read_text(encoding="utf-8")
    tenfold = tmp_path / "tenfold.conllu"
    tenfold.write_text(text * 10, encoding="utf-8")
    few, small = _peak(ewt)
    many, large = _peak(tenfold)
    assert many == 10 * few
    if large > 1.05 * small:  # a peak can be high by chance, beside other programs; not twice
        large = min(large, _peak(tenfold)[1])
    assert large <= 1.05 * small

"""Memory does not grow with the corpus."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_bert

# The peak of the process itself: ru_maxrss of a child starts at what its parent needed.
_PEAK = """
import sys
import headscope
result = headscope.classify(sys.argv[1], sys.argv[2], language="en")
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(result.corpus.sentences, status["VmHWM"].split()[0])
"""


def _peak(model: Path, treebank: Path) -> tuple[int, int]:
    """Sentences measured, and peak resident memory in KiB."""
    output = subprocess.run(
        [sys.executable, "-c", _PEAK, str(model), str(treebank)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    sentences, peak = output.split()
    return int(sentences), int(peak)


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_ten_times_the_sentences_need_no_more_memory(ewt, tmp_path):
    model = tiny_bert(tmp_path / "model")
    text = "\n\n".join(ewt.read_text(encoding="utf-8").split("\n\n")[:800]) + "\n\n"
    once = tmp_path / "once.conllu"
    once.write_text(text, encoding="utf-8")
    tenfold = tmp_path / "tenfold.conllu"
    tenfold.write_text(text * 10, encoding="utf-8")
    few, small = _peak(model, once)
    many, large = _peak(model, tenfold)
    assert many == 10 * few
    assert large <= 1.05 * small, "less than 4 kB a sentence"

"""Memory does not grow with the corpus."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_bert

#: A process of its own, small to begin with, that says its peak after each corpus.
_PEAKS = """
import sys
import headscope
for treebank in sys.argv[2:]:
    result = headscope.classify(sys.argv[1], treebank, language="en")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(result.corpus.sentences, status["VmHWM"].split()[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_ten_times_the_sentences_need_no_more_memory(ewt: Path, tmp_path: Path) -> None:
    text = "\n\n".join(ewt.read_text(encoding="utf-8").split("\n\n")[:400]) + "\n\n"
    once, tenfold = tmp_path / "once.conllu", tmp_path / "tenfold.conllu"
    once.write_text(text, encoding="utf-8")
    tenfold.write_text(text * 10, encoding="utf-8")
    model = tiny_bert(tmp_path / "model")
    output = subprocess.run(
        [sys.executable, "-c", _PEAKS, str(model), str(once), str(tenfold)],
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    (few, small), (many, large) = (map(int, line.split()) for line in output.splitlines())
    assert many == 10 * few
    assert large - small <= 4 * (many - few), "KiB: less than 4 kB a sentence"

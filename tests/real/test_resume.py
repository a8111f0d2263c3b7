"""Long runs: killed and resumed they end in the same bytes, and memory does not grow with them."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import Run, content
from tiny_models import tiny_bert

import headscope
from headscope.commands import COMMANDS
from headscope.core.errors import InputError, ResumeError
from headscope.core.serialise import to_dict
from headscope.data.corpus import SAMPLE, WINDOW
from headscope.session.resume import RunState


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return headscope.load(str(tiny_bert(tmp_path_factory.mktemp("tiny") / "model")))


def _save_always(self, name, done, sums, **_):
    self._passes[name] = (done, sums)
    self.save()


def _die_after_saves(saves):
    """Let a run save its state after every batch, and kill itself just after so many saves."""

    def install():
        seen = 0

        def note(self, name, done, sums, **_):
            nonlocal seen
            _save_always(self, name, done, sums)
            seen += 1
            if seen == saves:
                os.kill(os.getpid(), signal.SIGKILL)

        RunState.note = note  # type: ignore[method-assign]

    return install


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("classify", ["--control", "--limit", "100"]),
        ("spectrum", ["--length", "64", "--sequences", "48"]),
    ],
)
def test_killed_twice_and_resumed_gives_the_same_bytes(command, options, tmp_path):
    words = [command, str(tiny_bert(tmp_path / "model")), *options, "--no-validate", "-o"]
    uninterrupted = tmp_path / "whole"
    killed = tmp_path / "killed"
    assert Run(*words, uninterrupted).end().code == 0
    for saves in (1, 2):  # the second goes on, and saves more
        run = Run(*words, killed, "--resume", before=_die_after_saves(saves))
        assert run.end().code == -signal.SIGKILL, "the run ended before it could be killed"
        assert (killed / COMMANDS[command].state_file).exists()
    assert Run(*words, killed, "--resume").end().code == 0
    assert content(killed) == content(uninterrupted)
    assert COMMANDS[command].state_file not in content(uninterrupted)


@pytest.mark.parametrize(
    ("settings", "stop_at", "resumed_at"),
    [
        # Not its first batch of 32 again.
        ({"length": 32, "precision": 0.002}, ("", 0), ("", 64)),
        # Each of five initialisations reads two windows; the run stops behind the third.
        (
            {"length": 16, "sequences": 10, "control": True},
            ("random weights", 6),
            ("random weights", 8),
        ),
    ],
    ids=["adaptive mode", "control"],
)
def test_spectrum_goes_on_where_it_was_interrupted(
    settings, stop_at, resumed_at, tiny, tmp_path, monkeypatch
):
    uninterrupted = headscope.spectrum(tiny, **settings)

    def interrupt(name, done, total):
        if stop_at[0] in name and done >= stop_at[1]:
            raise KeyboardInterrupt

    state = tmp_path / "state"
    with monkeypatch.context() as patch:
        patch.setattr(RunState, "note", _save_always)
        with pytest.raises(KeyboardInterrupt):
            headscope.spectrum(tiny, **settings, state=state, progress=interrupt)
    seen = []
    resumed = headscope.spectrum(
        tiny, **settings, state=state, resume=True, progress=lambda *event: seen.append(event[:2])
    )
    assert resumed_at[0] in seen[0][0]
    assert resumed_at[1] == seen[0][1]
    plain = [to_dict(result) for result in (resumed, uninterrupted)]
    for document in plain:
        document["provenance"].pop("created")
    assert plain[0] == plain[1]


@pytest.fixture(scope="module")
def saved(tiny, tmp_path_factory):
    """States of runs on 60 sentences and on 8 windows of the sample; each run saved once."""
    folder = tmp_path_factory.mktemp("saved")
    saves = []
    save = RunState.save
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunState, "save", lambda self: (saves.append(self.path), save(self)))
        headscope.classify(tiny, limit=60, state=folder / "classify")
        headscope.spectrum(tiny, length=32, sequences=8, state=folder / "spectrum")
    # Short runs save once, at the end of their pass, not at every batch.
    assert saves == [folder / "classify", folder / "spectrum"]
    return folder


@pytest.mark.parametrize(
    ("command", "change", "named"),
    [
        ("classify", {"limit": 61}, "sentences"),
        ("classify", {"seed": 1}, "seed"),
        ("classify", {"corpus": "another", "language": "en"}, "corpus"),
        ("classify", {"model": "another"}, "model"),
        ("classify", {"damaged": True}, "cannot be read"),
        ("spectrum", {"length": 33, "k": 8}, "length"),
        ("spectrum", {"sequences": 9}, "sequences"),
        ("spectrum", {"k": 3}, "k"),
        ("spectrum", {"text": ["The old ferry left the harbour before dawn. "] * 30}, "text"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_state_of_another_run_is_refused(command, change, named, saved, tiny, tmp_path):
    state = Path(shutil.copy(saved / command, tmp_path))
    settings = {"limit": 60} if command == "classify" else {"length": 32, "sequences": 8}
    settings |= {"model": tiny, "state": state, "resume": True, **change}
    if change.get("corpus"):
        settings["corpus"] = tmp_path / "other.conllu"
        text = SAMPLE.read_text(encoding="utf-8").replace("ferry", "boat")
        settings["corpus"].write_text(text, encoding="utf-8")
    if change.get("model"):
        settings["model"] = tiny_bert(tmp_path / "model", seed=1)
    if settings.pop("damaged", False):
        state.write_bytes(state.read_bytes()[:-100])
    with pytest.raises(ResumeError, match=named):
        getattr(headscope, command)(**settings)


def test_a_model_in_memory_can_be_measured_but_not_saved(tiny, tmp_path):
    bare = headscope.wrap(tiny.model, tiny.tokenizer)
    assert headscope.spectrum(bare, length=16, sequences=2).sequences == 2
    with pytest.raises(InputError, match="no checksum"):
        headscope.spectrum(bare, length=16, sequences=2, state=tmp_path / "state")
    with pytest.raises(InputError, match="tokenizer"):
        headscope.spectrum(headscope.wrap(tiny.model), length=16)


# The peak of the process itself: ru_maxrss of a child starts at what its parent needed.
_PEAKS = """
import sys
import headscope
for treebank in sys.argv[2:]:
    result = headscope.classify(sys.argv[1], treebank, language="en")
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    print(result.corpus.sentences, status["VmHWM"].split()[0])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_a_longer_corpus_needs_no_more_memory(ewt, tmp_path):
    model = tiny_bert(tmp_path / "model")
    text = "\n\n".join(ewt.read_text(encoding="utf-8").split("\n\n")[:800]) + "\n\n"
    short = tmp_path / "short.conllu"
    long = tmp_path / "long.conllu"
    short.write_text(text * 4, encoding="utf-8")  # More than a window, which is held at once.
    long.write_text(text * 6, encoding="utf-8")
    words = [sys.executable, "-c", _PEAKS, str(model), str(short), str(long)]
    done = subprocess.run(words, env={**os.environ, "HF_HUB_OFFLINE": "1"}, stdout=subprocess.PIPE)
    few, small, many, large = map(int, done.stdout.split())
    assert few > WINDOW
    assert many == 1.5 * few
    assert large - small < 5 * (many - few), "less than 5 kB a sentence"

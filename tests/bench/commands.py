"""How long does a user wait, from command to answer? Whole commands beside what bounds them.

Run from the repository, with nothing else on the machine:
``python tests/bench/commands.py [TREEBANK] [PAIRS] [CALIBRATION] --write docs/scale.md``. Each
command runs in a process of its own, all in turn, quiet and then, where it takes less than a
minute, beside one spinning program; the table has medians. ``classify`` stands beside its own
imports and a bare pass over the same sentences. With ``--python PEERS/bin/python`` the peers of
docs/peers.md are timed too, so that one command writes every ratio anew. PAIRS and CALIBRATION are
STS-B's test and training parts.
"""

import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from peers import machine, table, write_between
from timing import competitors, cost, in_turn, load, median_cost, options

MARK = "commands"
IMPORTS = """
import headscope.cli.app, headscope.analyses.classify.run, headscope.analyses.classify.view
import scipy.stats, wordfreq
from transformers import AutoTokenizer, BertModel
"""
#: What any script has to do: tokenise, sort by length, and one pass of the model itself.
BARE = (
    IMPORTS
    + """
import torch
from headscope.data.corpus import as_corpus
from headscope.models.source import demo_folder
words = [list(sentence.words) for sentence in as_corpus(TREEBANK)]
tokenizer = AutoTokenizer.from_pretrained(demo_folder())
model = BertModel.from_pretrained(demo_folder(), attn_implementation="sdpa").eval()
ids = tokenizer(words, is_split_into_words=True, truncation=True)["input_ids"]
ids.sort(key=len)
with torch.inference_mode():
    while ids:
        n = max(1, 1024 // len(ids[-1]))
        batch = tokenizer.pad({"input_ids": ids[-n:]}, return_tensors="pt")
        del ids[-n:]
        model(**batch)
"""
)


def commands(given):
    """Every whole command by its name in the table: the words after ``python``, and its goal."""
    ours = ["-m", "headscope"]
    ewt = ["--treebank", str(given.treebank)] if given.treebank else []
    treebank = repr(str(given.treebank or "")) + " or None"
    found = {
        "imports": (["-c", IMPORTS], ""),
        "imports and a bare pass": (["-c", BARE.replace("TREEBANK", treebank)], ""),
        "classify": ([*ours, "classify", "demo", *ewt], "bare pass + 0.5 s"),
        "rank": ([*ours, "rank", "demo"], "WeightWatcher"),
    }
    for name in ("depth", "flow", "linear", "symmetric"):
        found[name] = ([*ours, name, "demo"], "12 s")
    if given.pairs:
        task = ["--task", "similarity", "--data", str(given.pairs)]
        for name in ("linear", "symmetric"):
            some = [*task, "--limit", "400"]
            found[f"{name}, a task of 400 pairs"] = ([*ours, name, "demo", *some], "60 s")
        if given.calibration:
            drop = ["--calibration", str(given.calibration), "--max-drop", "0.5"]
            words = [*ours, "prune", "demo", *task, *drop]
            found["prune --max-drop 0.5"] = (words, "120 s")
    quick = [*ours, "report", "demo", "--config", "configs/quick.toml", "--fresh", "-o", given.room]
    return {**found, "report, quick": (quick, "25 s")}


def measured(jobs, repeats):
    """Median cost of each command, run in turn."""
    runs = {name: partial(cost, words) for name, (words, _) in jobs.items()}
    return {name: median_cost(costs) for name, costs in in_turn(runs, repeats).items()}


def rows(jobs, quiet, beside):
    for name, (_, goal) in jobs.items():
        one, other = quiet[name], beside.get(name)
        yield {
            "command": name,
            "seconds": f"{one.wall:.1f}",
            "processor seconds": f"{one.cpu:.1f}",
            "peak MiB": f"{one.peak:,.0f}",
            "beside one program": f"{other.wall / one.wall:.2f} x" if other else "",
            "asked for": goal,
        }


def main():
    given = options(
        __doc__, "treebank?", "pairs?", "calibration?",
        repeats=3, only=[""], python="", write="", peers="docs/peers.md", busy=1,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as given.room:
        jobs = {
            name: job
            for name, job in commands(given).items()
            if any(part in name for part in given.only)
        }
        before = load()
        cost(["-m", "headscope", "classify", "demo", "--limit", "1"])  # files come from the disk
        quiet, beside = measured(jobs, given.repeats), {}
        if given.busy:
            short = {name: job for name, job in jobs.items() if quiet[name].wall < 60}
            with competitors(given.busy):
                beside = measured(short, 1)
    found = list(rows(jobs, quiet, beside))
    text = (
        f"{table(found, list(found[0]))}\n\nMedians of {given.repeats} runs in turn on "
        f"{machine()}, load {before} at the start; beside one spinning program one run "
        "of what takes less than a minute."
    )
    print(text)
    if given.write:
        write_between(Path(given.write), text, MARK)
    if given.python:
        script = Path(__file__).with_name("peers.py")
        words = [sys.executable, str(script), "--python", given.python, "--write", given.peers]
        words += ["--treebank", str(given.treebank)] if given.treebank else []
        subprocess.run(words, check=True, env=dict(os.environ))


if __name__ == "__main__":
    main()

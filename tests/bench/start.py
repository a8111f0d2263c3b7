"""How much of a command is starting up, and how much is neither imports nor the model?

Run from the repository: ``python tests/bench/start.py [TREEBANK.conllu]``. Prints medians of runs
in turn. The yardsticks: a script that only imports torch and transformers with one model class, and
the bare SDPA forward pass over the same batches.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from timing import cost, in_turn, load, median_cost, medians

from headscope.cli.threads import calm_threads

IMPORTS = "import torch, transformers\nfrom transformers import AutoTokenizer, BertModel"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, help="default: the built-in sample")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    classify = ["-m", "headscope", "classify", "demo"]
    whole = ["--treebank", str(given.treebank)] if given.treebank else []
    commands = {
        "help": ["-m", "headscope", "--help"],
        "imports": ["-c", IMPORTS],
        "one sentence": [*classify, "--limit", "1"],
        "whole, as JSON": [*classify, *whole, "--format", "json"],
    }
    print(f"load before the first run {load()}")
    jobs = {name: lambda words=words: cost(words) for name, words in commands.items()}
    found = {name: median_cost(costs) for name, costs in in_turn(jobs, given.repeats).items()}
    for name, one in found.items():
        print(f"{name:15} {one.wall:6.2f} s, processor time {one.cpu:6.2f} s")

    calm_threads()  # as the command's threads wait; before torch is imported
    from classify import bare_sdpa, batches_of

    import headscope
    from headscope.data.corpus import as_corpus

    loaded = headscope.load("demo")
    batches = batches_of(loaded, as_corpus(given.treebank))
    forward = medians({"bare": lambda: bare_sdpa(loaded, batches)}, given.repeats)["bare"]
    print(f"{'bare forward':15} {forward:6.2f} s   (load {load()})")
    imports = found["imports"].wall
    print(f"one sentence: {found['one sentence'].wall / imports:.2f} times the imports")
    rest = found["whole, as JSON"].wall - imports - 1.5 * forward
    print(f"whole: imports + 1.5 bare forward passes {rest:+.2f} s")


if __name__ == "__main__":
    main()

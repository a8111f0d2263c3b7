"""How much of a command is starting up, and how much is neither imports nor the model?

Run from the repository: ``python tests/bench/start.py [TREEBANK.conllu]``. Prints medians of runs
in turn, and asserts nothing: machines differ. The yardsticks: a script that only imports torch and
transformers with one model class, and the bare SDPA forward pass over the same batches.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

from commands import Timing, load, timed_run

from headscope.cli.threads import calm_threads

IMPORTS = "import torch, transformers\nfrom transformers import AutoTokenizer, BertModel"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, help="default: the built-in sample")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    classify = ["-m", "headscope", "classify", "demo"]
    whole = ["--treebank", str(arguments.treebank)] if arguments.treebank else []
    commands = {
        "help": ["-m", "headscope", "--help"],
        "imports": ["-c", IMPORTS],
        "one sentence": [*classify, "--limit", "1"],
        "whole, as JSON": [*classify, *whole, "--format", "json"],
    }
    runs: dict[str, list[Timing]] = {name: [] for name in commands}
    print(f"load before the first run {load()}")
    for _ in range(arguments.repeats):
        for name, command in commands.items():
            runs[name].append(timed_run(command))
    wall = {name: statistics.median(t.wall for t in found) for name, found in runs.items()}
    for name, found in runs.items():
        cpu = statistics.median(timing.cpu for timing in found)
        print(f"{name:15} {wall[name]:6.2f} s, processor time {cpu:6.2f} s")
    forward = bare_forward(arguments.treebank, arguments.repeats)
    print(f"{'bare forward':15} {forward:6.2f} s   (load {load()})")
    print(f"one sentence: {wall['one sentence'] / wall['imports']:.2f} times the imports")
    rest = wall["whole, as JSON"] - wall["imports"] - 1.5 * forward
    print(f"whole: imports + 1.5 bare forward passes {rest:+.2f} s")


def bare_forward(treebank: Path | None, repeats: int) -> float:
    """Median seconds of the model's own pass, its threads waiting as the command's do."""
    calm_threads()  # before torch is imported
    from classify import bare_sdpa, batches_of, timed

    import headscope
    from headscope.data.corpus import as_corpus

    loaded = headscope.load("demo")
    batches = batches_of(loaded, as_corpus(treebank))
    return statistics.median(timed(lambda: bare_sdpa(loaded, batches)) for _ in range(repeats))


if __name__ == "__main__":
    main()

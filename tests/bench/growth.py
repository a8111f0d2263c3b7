"""How the cost of ``classify`` grows: in sentences, length, layers and heads.

Run: python tests/bench/growth.py TEXT.txt [-o FOLDER] [--rounds 3]

Prints a table with the exponent of each axis (the slope of log seconds over log size: 1 is linear)
and draws one panel an axis. Models are random weights of width 384; what is grown is the one axis,
all else stays. Every point is a median; the processor's seconds of one thread are counted.

Ends with an estimate on paper, from what was measured, for 1e9 tokens on N cores and on N GPUs.
Every process reads and tokenises the whole corpus, so that part is not divided. A GPU does the
operators of a batch one after the other: each takes at least its launch, which is assumed.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from commands import load
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel

import headscope
from headscope.data.corpus import open_text
from headscope.data.frequencies import find_frequencies
from headscope.data.sentence import Sentence, split_words
from headscope.models.loaded import LoadedModel
from headscope.pipeline.classify.sentences import Sentences
from headscope.show.drawing import BLUE, figure_files, new_figure, plain_axes

WIDTH = 384
#: The estimate's corpus, its numbers of processes, and what is assumed: one launch on a GPU.
TOKENS = 1e9
PROCESSES = (1, 2, 8, 32, 128)
LAUNCH = 10e-6
#: Of the figure, in microseconds.
TICKS = (100, 200, 500, 1000, 2000)
#: What stays while another axis grows.
SENTENCES, WORDS, LAYERS, HEADS = 500, 24, 6, 12
AXES = {
    "sentences": (250, 500, 1000, 2000, 4000),
    "words of a sentence": (6, 12, 24, 48, 96, 192, 384),
    "layers": (2, 4, 6, 12, 24),
    "heads of a layer": (2, 4, 6, 12, 24, 48),
}


@dataclass(frozen=True)
class Point:
    """Seconds at one size, and the tokens that were read."""

    size: int
    seconds: float
    tokens: int


def model(layers: int, heads: int) -> LoadedModel:
    """Random weights, with the demo model's tokenizer."""
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * WIDTH,
    )
    network = BertModel(config, add_pooling_layer=False)
    return headscope.wrap(network, headscope.load("demo").tokenizer)


def sentences(path: Path, n: int, words: int) -> list[Sentence]:
    """Cut a text into sentences of equally many words; it starts again where it ends."""
    stream = itertools.cycle(_words(path))
    return [Sentence(tuple(itertools.islice(stream, words))) for _ in range(n)]


def _words(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield from split_words(line)


def seconds(run: Callable[[], headscope.results.ClassifyResult], rounds: int) -> tuple[float, int]:
    """Median processor seconds, and the tokens read."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        found = run()
        times.append(time.process_time() - start)
    return statistics.median(times), found.corpus.queries


def measure(axis: str, text: Path, rounds: int) -> list[Point]:
    """Grow one axis; the number of words stays where their length grows."""
    found = []
    for size in AXES[axis]:
        n, words, layers, heads = SENTENCES, WORDS, LAYERS, HEADS
        if axis == "sentences":
            n = size
        elif axis == "words of a sentence":
            n, words = SENTENCES * WORDS // size, size
        elif axis == "layers":
            layers = size
        else:
            heads = size
        loaded, corpus = model(layers, heads), sentences(text, n, words)

        def run(
            loaded: LoadedModel = loaded, corpus: Sequence[Sentence] = corpus
        ) -> headscope.results.ClassifyResult:
            return headscope.classify(loaded, corpus, language="en", validate=False)

        found.append(Point(size, *seconds(run, rounds)))
        print(f"| {axis} | {size:,} | {found[-1].tokens:,} | {found[-1].seconds:.2f} |", flush=True)
    return found


def exponent(points: Sequence[Point]) -> tuple[float, float]:
    """Slope of log seconds over log size: over all points, and between the last two."""
    x, y = (np.log([getattr(p, name) for p in points]) for name in ("size", "seconds"))
    return float(np.polyfit(x, y, 1)[0]), float((y[-1] - y[-2]) / (x[-1] - x[-2]))


class Calls(TorchDispatchMode):
    """Counts the operators that torch is asked for."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        self.n += 1
        return func(*args, **(kwargs or {}))


def parts(text: Path, rounds: int) -> tuple[float, float, float]:
    """Return seconds a token of all, seconds a token of reading, operators a token."""
    demo = headscope.load("demo")
    n = 10 * SENTENCES

    def measured(limit: int = n) -> headscope.results.ClassifyResult:
        return headscope.classify(demo, text, limit=limit, language="en", validate=False)

    def read() -> None:
        corpus = open_text(text)
        words = find_frequencies(corpus, None, "en")
        for _ in Sentences.of(demo, corpus, words, n).batches.after(0):
            pass

    whole, tokens = seconds(measured, rounds)
    times = []
    for _ in range(rounds):
        start = time.process_time()
        read()
        times.append(time.process_time() - start)
    with Calls() as calls:
        counted = measured(SENTENCES).corpus.queries
    return whole / tokens, statistics.median(times) / tokens, calls.n / counted


def estimate(text: Path, rounds: int) -> None:
    """Print hours for many tokens, on cores and on GPUs, from figures of the demo model."""
    whole, reading, calls = parts(text, rounds)
    print(
        f"\nThe demo model, one core: {1e6 * whole:.1f} microseconds a token, of which reading and "
        f"tokenising {1e6 * reading:.1f}; {calls:.2f} operators a token\n"
    )
    print("| processes | hours, a core each | hours, a GPU each |\n|---|---|---|")
    for n in PROCESSES:
        cores = reading + (whole - reading) / n
        gpus = reading + calls * LAUNCH / n
        print(f"| {n} | {TOKENS * cores / 3600:,.1f} | {TOKENS * gpus / 3600:,.1f} |")


def draw(found: dict[str, list[Point]], folder: Path) -> None:
    """Write one panel an axis: what a token costs, all on one scale."""
    figure = new_figure(9, 2.6)
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (axis, points) in zip(panels, found.items(), strict=True):
        cost = [1e6 * p.seconds / p.tokens for p in points]
        axes.loglog([p.size for p in points], cost, "o-", color=BLUE, ms=4)
        plain_axes(axes, axis, "microseconds a token" if axes is panels[0] else "")
        axes.set_xticks([p.size for p in points], [f"{p.size:,}" for p in points], rotation=45)
        axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
        axes.minorticks_off()
        axes.grid(axis="y", lw=0.4)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in figure_files({"growth": figure}).items():
        (folder / name).write_bytes(content)


def main() -> None:
    """Measure all axes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"One thread, d_model {WIDTH}, load {load()} at the start\n")
    print("| grown | size | tokens | processor seconds |\n|---|---|---|---|")
    found = {axis: measure(axis, given.text, given.rounds) for axis in AXES}
    print()
    for axis, points in found.items():
        overall, last = exponent(points)
        print(f"{axis}: exponent {overall:.2f} over all sizes, {last:.2f} between the last two")
    estimate(given.text, given.rounds)
    if given.output:
        draw(found, given.output)


if __name__ == "__main__":
    main()

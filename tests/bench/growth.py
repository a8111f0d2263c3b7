"""How the cost of ``classify`` grows: in sentences, length, layers and heads.

Run: python tests/bench/growth.py TEXT.txt [-o FOLDER] [--rounds 3]

Prints a table with the exponent of each axis (the slope of log seconds over log size: 1 is linear)
and draws one panel an axis. Models are random weights of width 384; what is grown is the one axis,
all else stays. Every point is a median; the processor's seconds of one thread are counted.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from commands import load
from transformers import BertConfig, BertModel

import headscope
from headscope.data.sentence import Sentence, split_words
from headscope.models.loaded import LoadedModel
from headscope.show.drawing import BLUE, figure_files, new_figure, plain_axes

WIDTH = 384
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


def draw(found: dict[str, list[Point]], folder: Path) -> None:
    """Write one panel an axis, both scales logarithmic."""
    figure = new_figure(9, 2.6)
    for axes, (axis, points) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        axes.loglog([p.size for p in points], [p.seconds for p in points], "o-", color=BLUE, ms=4)
        plain_axes(
            axes, axis, "processor seconds", f"exponent {exponent(points)[1]:.2f} at the end"
        )
        axes.set_xticks([p.size for p in points], [str(p.size) for p in points], rotation=45)
        axes.minorticks_off()
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
    largest = found["sentences"][-1]
    per_token = largest.seconds / largest.tokens
    print(
        f"{1e6 * per_token:.1f} microseconds of one core a token at {LAYERS} x {HEADS}; "
        f"1e9 tokens: {1e9 * per_token / 3600:,.0f} core hours"
    )
    assert math.isfinite(per_token)
    if given.output:
        draw(found, given.output)


if __name__ == "__main__":
    main()

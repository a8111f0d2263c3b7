"""How the cost of ``classify`` grows: in sentences, length, layers and heads.

Run: python tests/bench/growth.py TEXT.txt [-o FOLDER] [--rounds 3]

Prints a table with the exponent of each axis (the slope of log seconds over log size: 1 is linear)
and draws one panel an axis. Models are random weights of width 384; what is grown is the one axis,
all else stays. Every point is a median; the processor's seconds of one thread are counted.

Ends with an estimate on paper, from what was measured, for 1e9 tokens on N cores and on N GPUs.
Every process reads and tokenises the whole corpus, so that part is not divided. A GPU does the
operators of a batch one after the other: each takes at least its launch, which is assumed.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timing import load, medians, print_head, print_row
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
#: The estimate's corpus, and what is assumed: the seconds of one launch on a GPU.
TOKENS, LAUNCH = 1e9, 10e-6
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
    lines = path.read_text(encoding="utf-8").splitlines()
    stream = itertools.cycle(word for line in lines for word in split_words(line))
    return [Sentence(tuple(itertools.islice(stream, words))) for _ in range(n)]


def seconds(run: Callable[[], object], rounds: int) -> float:
    """Median processor seconds."""
    return medians({"": run}, rounds, time.process_time)[""]


def measure(axis: str, text: Path, rounds: int) -> list[Point]:
    """Grow one axis; the number of words stays where their length grows."""
    points = []
    for size in AXES[axis]:
        words = size if axis == "words of a sentence" else WORDS
        n = size if axis == "sentences" else SENTENCES * WORDS // words
        layers = size if axis == "layers" else LAYERS
        loaded = model(layers, size if axis == "heads of a layer" else HEADS)
        corpus = sentences(text, n, words)
        run = partial(headscope.classify, loaded, corpus, language="en", validate=False)
        tokens = run(limit=n).corpus.queries
        points.append(Point(size, seconds(run, rounds), tokens))
        print_row((axis, f"{size:,}", f"{tokens:,}", f"{points[-1].seconds:.2f}"))
    return points


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

    measured = partial(headscope.classify, demo, text, language="en", validate=False)

    def read() -> None:
        corpus = open_text(text)
        words = find_frequencies(corpus, None, "en")
        for _ in Sentences.of(demo, corpus, words, n).batches.after(0):
            pass

    tokens = measured(limit=n).corpus.queries
    whole = seconds(partial(measured, limit=n), rounds) / tokens
    with Calls() as calls:
        counted = measured(limit=SENTENCES).corpus.queries
    return whole, seconds(read, rounds) / tokens, calls.n / counted


def estimate(text: Path, rounds: int) -> None:
    """Print hours for many tokens, on cores and on GPUs, from figures of the demo model."""
    whole, reading, calls = parts(text, rounds)
    print(
        f"\nThe demo model, one core: {1e6 * whole:.1f} microseconds a token, of which reading and "
        f"tokenising {1e6 * reading:.1f}; {calls:.2f} operators a token\n"
    )
    print_head(("processes", "hours, a core each", "hours, a GPU each"))
    for n in (1, 2, 8, 32, 128):
        cores = reading + (whole - reading) / n
        gpus = reading + calls * LAUNCH / n
        print_row((n, f"{TOKENS * cores / 3600:,.1f}", f"{TOKENS * gpus / 3600:,.1f}"))


def draw(found: dict[str, list[Point]], folder: Path) -> None:
    """Write one panel an axis: what a token costs, all on one scale."""
    figure, ticks = new_figure(9, 2.6), (100, 200, 500, 1000, 2000)
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (axis, points) in zip(panels, found.items(), strict=True):
        cost = [1e6 * p.seconds / p.tokens for p in points]
        axes.loglog([p.size for p in points], cost, "o-", color=BLUE, ms=4)
        plain_axes(axes, axis, "microseconds a token" if axes is panels[0] else "")
        axes.set_xticks([p.size for p in points], [f"{p.size:,}" for p in points], rotation=45)
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
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
    print_head(("grown", "size", "tokens", "processor seconds"))
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

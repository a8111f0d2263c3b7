"""How the cost of ``classify`` grows: in sentences, length, layers and heads.

Run: python tests/bench/growth.py TEXT.txt [FOLDER] [--rounds 3]

Prints a table with the exponent of each axis (the slope of log seconds over log size: 1 is linear)
and draws one panel an axis. Every point is a median of processor seconds of one thread. Ends with
an estimate for 1e9 tokens: every process reads the whole corpus and tokenises its share, and a GPU
does the operators of a batch one after the other, each in at least its launch, which is assumed.
"""

import itertools
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
import torch
from timing import load, medians, options, print_head, print_row
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertModel

import headscope
from headscope.analyses.classify.passes import plan_passes
from headscope.data.corpus import open_text
from headscope.data.files import Sentence, split_words
from headscope.data.frequencies import find_frequencies
from headscope.show.figures import BLUE, figure_files, new_figure, plain_axes

WIDTH = 384
#: What stays while another axis grows.
SENTENCES = 500
WORDS = 24
LAYERS = 6
HEADS = 12
AXES = {
    "sentences": (250, 500, 1000, 2000, 4000),
    "words of a sentence": (6, 12, 24, 48, 96, 192, 384),
    "layers": (2, 4, 6, 12, 24),
    "heads of a layer": (2, 4, 6, 12, 24, 48),
}


def model(layers, heads):
    """Random weights, with the demo model's tokenizer."""
    torch.manual_seed(0)
    shape = {"num_hidden_layers": layers, "num_attention_heads": heads, "hidden_size": WIDTH}
    config = BertConfig(intermediate_size=4 * WIDTH, **shape)
    network = BertModel(config, add_pooling_layer=False)
    return headscope.wrap(network, headscope.load("demo").tokenizer)


def sentences(path, n, words):
    """Cut a text into sentences of equally many words; it starts again where it ends."""
    lines = path.read_text(encoding="utf-8").splitlines()
    stream = itertools.cycle(word for line in lines for word in split_words(line))
    return [Sentence(tuple(itertools.islice(stream, words))) for _ in range(n)]


def seconds(run, rounds):
    """Median processor seconds."""
    return medians({"": run}, rounds, time.process_time)[""]


def measure(axis, text, rounds):
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
        points.append((size, tokens, seconds(run, rounds)))
        print_row((axis, f"{size:,}", f"{tokens:,}", f"{points[-1][-1]:.2f}"))
    return np.array(points).T


class Calls(TorchDispatchMode):
    """Counts the operators that torch is asked for."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


def estimate(text, rounds):
    """Print hours for many tokens, on cores and on GPUs, from figures of the demo model."""
    demo = headscope.load("demo")
    n = 10 * SENTENCES

    def measured():
        return headscope.classify(demo, prefix, language="en", validate=False)

    def read(*, encode):
        corpus = open_text(prefix)
        words = find_frequencies(corpus, None, "en")
        batches = plan_passes(demo, ("encoder",), corpus, words, n)[0].batches
        items = batches.after(0) if encode else batches.read()
        for _ in items:
            pass

    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(folder) / "part.txt"  # what else the text holds would be read too
        lines = text.read_text(encoding="utf-8").splitlines(keepends=True)
        prefix.write_text("".join(lines[:n]), encoding="utf-8")
        tokens = measured().corpus.queries
        total = seconds(measured, rounds) / tokens
        reading = seconds(partial(read, encode=False), rounds) / tokens
        batching = seconds(partial(read, encode=True), rounds) / tokens
        with Calls() as counter:
            measured()
    calls = counter.n / tokens
    print(
        f"\nThe demo model, one core: {1e6 * total:.1f} microseconds a token, of which reading "
        f"{1e6 * reading:.2f}, tokenising and padding {1e6 * (batching - reading):.1f}; "
        f"{calls:.2f} operators a token\n"
    )
    launch = 10e-6  # seconds on a GPU, assumed
    print_head(("processes", "hours, a core each", "hours, a GPU each"))
    for n in (1, 2, 8, 32, 128):
        on_gpu = batching - reading + calls * launch
        a_token = (reading + (total - reading) / n, reading + on_gpu / n)
        print_row((n, *(f"{1e9 * each / 3600:,.1f}" for each in a_token)))


def draw(curves, folder):
    """Write one panel an axis: what a token costs, all on one scale."""
    figure = new_figure(9, 2.6)
    ticks = (100, 200, 500, 1000, 2000)
    panels = figure.subplots(1, len(curves), sharey=True)
    for axes, (axis, (sizes, tokens, took)) in zip(panels, curves.items(), strict=True):
        axes.loglog(sizes, 1e6 * took / tokens, "o-", color=BLUE, ms=4)
        plain_axes(axes, axis, "microseconds a token" if axes is panels[0] else "")
        axes.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], rotation=45)
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis="y", lw=0.4)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in figure_files({"growth": figure}).items():
        (folder / name).write_bytes(content)


def main():
    settings = options(__doc__, "text", "folder?", rounds=3)
    torch.set_num_threads(1)
    print(f"One thread, d_model {WIDTH}, load {load()} at the start\n")
    print_head(("grown", "size", "tokens", "processor seconds"))
    curves = {axis: measure(axis, settings.text, settings.rounds) for axis in AXES}
    print()
    for axis, (sizes, _, took) in curves.items():
        x = np.log(sizes)
        y = np.log(took)
        overall = np.polyfit(x, y, 1)[0]
        last = (y[-1] - y[-2]) / (x[-1] - x[-2])
        print(f"{axis}: exponent {overall:.2f} over all sizes, {last:.2f} between the last two")
    estimate(settings.text, settings.rounds)
    if settings.folder:
        draw(curves, settings.folder)


if __name__ == "__main__":
    main()

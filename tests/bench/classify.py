"""How fast is classify? Ours against what a user would do instead, side by side in one run.

Run from the repository: ``python tests/bench/classify.py TREEBANK.conllu``. Prints medians and
ratios, and asserts nothing: machines differ.

1. Ours against scripts that take ``output_attentions=True`` sentence by sentence and count in NumPy
   (on every k-th sentence, scaled up): ``reference`` computes the same numbers, literally
   (tests/reference.py); ``lean`` a part of them (no masses, baselines, second rates), vectorised.
2. Ours against the bare SDPA forward pass over the same batches: short sentences, and sequences of
   512 tokens (the corpus's words joined), with the peak memory of each.
3. bfloat16 against float32: time, and how far the rates move.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))  # for reference.py

import numpy as np
import torch

import headscope
from headscope.data.batches import buckets, collate, windows
from headscope.data.corpus import Corpus, as_corpus
from headscope.data.encode import Encoder
from headscope.data.frequencies import find_frequencies
from headscope.data.places import placed
from headscope.data.sentence import Sentence
from headscope.measures.batch import Batch
from headscope.measures.classify.sums import HeadMeasures
from headscope.models.demo import demo_folder
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed, use_implementation

REPEATS = 3


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def side_by_side(**runs: Callable[[], Any]) -> dict[str, float]:
    """Median seconds of each, run in turn so that a drift of the machine meets all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(REPEATS):
        for name, run in runs.items():
            times[name].append(timed(run))
    return {name: statistics.median(values) for name, values in times.items()}


def batches_of(loaded: LoadedModel, corpus: Corpus) -> list[Batch]:
    frequencies = find_frequencies(corpus, None, "en")
    encoder = Encoder(loaded, frequencies)
    return [
        collate(batch, loaded.pad_id)
        for window in windows(placed(corpus, encoder.encode(iter(corpus))))
        for batch in buckets(window)
    ]


def ours(loaded: LoadedModel, batches: list[Batch]) -> None:
    sums = HeadMeasures(loaded.n_layers, loaded.n_heads)
    reducer = sums.reducer()
    with routed(loaded.model, Router(loaded.sites, [reducer])) as router:
        for batch in batches:
            reducer.start(batch)
            router.run(lambda batch=batch: loaded.forward(batch.input_ids, batch.attention_mask))


def bare_sdpa(loaded: LoadedModel, batches: list[Batch]) -> None:
    with use_implementation(loaded.model, "sdpa"), torch.no_grad():
        for batch in batches:
            loaded.forward(batch.input_ids, batch.attention_mask)


# --- what a user would write ------------------------------------------------------------------


def lean_script(loaded: LoadedModel, sentences: list[Sentence]) -> None:
    """Count positional, syntactic and rare-word hits from output_attentions, a head at a time."""
    import wordfreq

    hits: dict[Any, int] = {}
    with use_implementation(loaded.model, "eager"), torch.no_grad():
        for sentence in sentences:
            encoded = loaded.tokenizer(
                list(sentence.words), is_split_into_words=True, return_tensors="pt"
            )
            attentions = loaded.model(**encoded, output_attentions=True).attentions
            word_of = np.array([-1 if w is None else w for w in encoded.word_ids()])
            rarity = [wordfreq.word_frequency(word.lower(), "en") for word in sentence.words]
            rarest = int(np.argmin(rarity))
            for layer, patterns in enumerate(attentions):
                for head, pattern in enumerate(patterns[0].numpy()):
                    _count(hits, (layer, head), pattern, word_of, sentence, rarest)


def reference_script(sentences: list[Sentence]) -> None:
    """Every number of classify, as tests/reference.py reads it."""
    import reference
    import wordfreq

    plain = [
        reference.Sentence(list(s.words), [h + 1 for h in s.heads or ()], list(s.relations or ()))
        for s in sentences
    ]
    frequent = set(wordfreq.top_n_list("en", 500))
    reference.measure(
        demo_folder(), plain, lambda word: float(wordfreq.word_frequency(word, "en")), frequent
    )


def _count(
    hits: dict[Any, int], place: Any, pattern: Any, word_of: Any, sentence: Sentence, rarest: int
) -> None:
    content = np.flatnonzero(word_of >= 0)
    argmax = content[pattern[np.ix_(content, content)].argmax(axis=1)]
    for r in itertools.chain(range(-5, 0), range(1, 6)):
        key = (place, r)
        hits[key] = hits.get(key, 0) + int((argmax - content == r).sum())
    row = -(pattern * np.log(pattern + 1e-12)).sum(axis=1)
    hits[place, "entropy"] = hits.get((place, "entropy"), 0) + float(row[content].mean())
    words = len(sentence.words)
    membership = (word_of[None, :] == np.arange(words)[:, None]).astype(np.float32)
    attention = membership @ pattern @ membership.T / membership.sum(axis=1, keepdims=True)
    np.fill_diagonal(attention, -1.0)
    best = attention.argmax(axis=1)
    for word, (head, relation) in enumerate(
        zip(sentence.heads or (), sentence.relations or (), strict=True)
    ):
        if head >= 0:
            for key, hit in (
                ((place, relation, "up"), best[word] == head),
                ((place, relation, "down"), best[head] == word),
            ):
                hits[key] = hits.get(key, 0) + int(hit)
    key = (place, "rare")
    hits[key] = hits.get(key, 0) + int((best == rarest).sum())


# --- long sequences ---------------------------------------------------------------------------


def long_sentences(corpus: Corpus, n: int, pieces: int, loaded: LoadedModel) -> list[Sentence]:
    """Join the corpus's words into flat trees of exactly ``pieces`` tokens."""
    words = (word for sentence in corpus for word in sentence.words)
    return list(itertools.islice(_packed(words, pieces, loaded), n))


def _packed(words: Iterator[str], pieces: int, loaded: LoadedModel) -> Iterator[Sentence]:
    taken: list[str] = []
    used = 0
    for word in words:
        size = len(loaded.tokenizer.tokenize(word))
        if used + size > pieces - 2:
            heads = tuple(i - 1 for i in range(len(taken)))
            yield Sentence(tuple(taken), heads, ("root", *("dep" for _ in taken[1:])))
            taken, used = [], 0
        taken.append(word)
        used += size


def peak_of(name: str, long: list[Sentence]) -> int:
    """Peak resident memory (KiB) of one run in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return int(pool.apply(_peak, (name, long)))


def _peak(name: str, long: list[Sentence]) -> int:
    loaded = headscope.load("demo")
    batches = batches_of(loaded, as_corpus(long))
    {"ours": ours, "sdpa": bare_sdpa}[name](loaded, batches)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- report -----------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, help="default: the built-in sample")
    parser.add_argument("--every", type=int, default=8, help="k of the per-sentence script")
    arguments = parser.parse_args()
    corpus = as_corpus(arguments.treebank)
    loaded = headscope.load("demo")
    batches = batches_of(loaded, corpus)
    threads = torch.get_num_threads()
    print(f"{corpus.n_sentences} sentences in {len(batches)} batches, {threads} threads")

    some = list(corpus)[:: arguments.every]
    times = side_by_side(
        ours=lambda: ours(loaded, batches),
        sdpa=lambda: bare_sdpa(loaded, batches),
        lean=lambda: lean_script(loaded, some),
        reference=lambda: reference_script(some),
    )
    print(f"ours {times['ours']:.2f} s, bare SDPA {times['sdpa']:.2f} s")
    print(f"ours / bare SDPA: {times['ours'] / times['sdpa']:.2f}")
    for name in ("reference", "lean"):
        script = times[name] * corpus.n_sentences / len(some)
        print(f"{name} script {script:.1f} s, as a multiple of ours: {script / times['ours']:.1f}")

    long = long_sentences(corpus, 24, 512, loaded)
    if long:
        long_batches = batches_of(loaded, as_corpus(long))
        times = side_by_side(
            ours=lambda: ours(loaded, long_batches), sdpa=lambda: bare_sdpa(loaded, long_batches)
        )
        memory = {name: peak_of(name, long) for name in ("ours", "sdpa")}
        print(
            f"512 tokens: ours / bare SDPA time {times['ours'] / times['sdpa']:.2f}, "
            f"peak memory {memory['ours'] / memory['sdpa']:.2f}"
        )
    bfloat16(arguments.treebank, corpus, loaded, batches)


def bfloat16(
    treebank: Path | None, corpus: Corpus, full: LoadedModel, batches: list[Batch]
) -> None:
    half = headscope.load("demo", dtype="bfloat16")
    times = side_by_side(full=lambda: ours(full, batches), half=lambda: ours(half, batches))
    rates = [
        headscope.classify(model, treebank, language="en").relations_frame()
        for model in (full, half)
    ]
    enough = rates[0].trials >= 50
    moved = (rates[0].accuracy - rates[1].accuracy).abs()[enough]
    labels = (rates[0].labelled != rates[1].labelled).sum()
    print(
        f"bfloat16: {times['full'] / times['half']:.2f} times as fast; accuracies with 50 trials "
        f"or more move by {moved.mean():.4f} on average, {moved.max():.3f} at most; "
        f"{labels} syntactic labels differ"
    )


if __name__ == "__main__":
    main()

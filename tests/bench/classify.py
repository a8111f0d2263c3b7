"""How fast is classify? Ours against what a user would do instead, side by side in one run.

Run from the repository: ``python tests/bench/classify.py TREEBANK.conllu``. Prints medians and
ratios, and asserts nothing: machines differ.

1. Ours against scripts that take ``output_attentions=True`` sentence by sentence and count in NumPy
   (on every k-th sentence, scaled up): ``reference`` computes the same numbers, literally
   (tests/reference.py); ``lean`` a part of them (no baselines, second rates), vectorised.
2. Ours against the bare SDPA forward pass over the same batches: short sentences, and sequences of
   512 tokens (the corpus's words joined), with the peak memory of each.
3. bfloat16 against float32: time, and how far the rates move.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import resource
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, str(Path(__file__).parents[1]))  # for reference.py

import numpy as np
import torch
from peer_scripts import HeadCounts
from timing import medians

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


def lean_script(loaded: LoadedModel, sentences: list[Sentence]) -> None:
    """Count what peer_scripts.py counts, from output_attentions of one sentence after the other."""
    import wordfreq

    counts = HeadCounts()
    with use_implementation(loaded.model, "eager"), torch.no_grad():
        for sentence in sentences:
            encoded = loaded.tokenizer(
                list(sentence.words), is_split_into_words=True, return_tensors="pt"
            )
            attentions = loaded.model(**encoded, output_attentions=True).attentions
            rarity = [wordfreq.word_frequency(word.lower(), "en") for word in sentence.words]
            tree = {"heads": sentence.heads or (), "relations": sentence.relations or ()}
            words = {"words": sentence.words, "rarest": int(np.argmin(rarity))}
            counts.add((layer[0].numpy() for layer in attentions), encoded, {**tree, **words})


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


def long_sentences(corpus: Corpus, n: int, pieces: int, loaded: LoadedModel) -> list[Sentence]:
    """Join the corpus's words into flat trees of exactly ``pieces`` tokens."""
    found: list[Sentence] = []
    taken: list[str] = []
    used = 0
    for word in (word for sentence in corpus for word in sentence.words):
        size = len(loaded.tokenizer.tokenize(word))
        if used + size > pieces - 2:
            heads = tuple(i - 1 for i in range(len(taken)))
            found.append(Sentence(tuple(taken), heads, ("root", *("dep" for _ in taken[1:]))))
            if len(found) == n:
                break
            taken, used = [], 0
        taken.append(word)
        used += size
    return found


def peak_of(name: str, long: list[Sentence]) -> int:
    """Peak resident memory (KiB) of one run in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return int(pool.apply(_peak, (name, long)))


def _peak(name: str, long: list[Sentence]) -> int:
    loaded = headscope.load("demo")
    batches = batches_of(loaded, as_corpus(long))
    {"ours": ours, "sdpa": bare_sdpa}[name](loaded, batches)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


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
    jobs = {
        "ours": lambda: ours(loaded, batches),
        "sdpa": lambda: bare_sdpa(loaded, batches),
        "lean": lambda: lean_script(loaded, some),
        "reference": lambda: reference_script(some),
    }
    times = medians(jobs, REPEATS)
    print(f"ours {times['ours']:.2f} s, bare SDPA {times['sdpa']:.2f} s")
    print(f"ours / bare SDPA: {times['ours'] / times['sdpa']:.2f}")
    for name in ("reference", "lean"):
        script = times[name] * corpus.n_sentences / len(some)
        print(f"{name} script {script:.1f} s, as a multiple of ours: {script / times['ours']:.1f}")

    long = long_sentences(corpus, 24, 512, loaded)
    if long:
        long_batches = batches_of(loaded, as_corpus(long))
        jobs = {
            "ours": lambda: ours(loaded, long_batches),
            "sdpa": lambda: bare_sdpa(loaded, long_batches),
        }
        times = medians(jobs, REPEATS)
        memory = {name: peak_of(name, long) for name in ("ours", "sdpa")}
        print(
            f"512 tokens: ours / bare SDPA time {times['ours'] / times['sdpa']:.2f}, "
            f"peak memory {memory['ours'] / memory['sdpa']:.2f}"
        )
    models = {"full": loaded, "half": headscope.load("demo", dtype="bfloat16")}
    jobs = {name: lambda model=model: ours(model, batches) for name, model in models.items()}
    times = medians(jobs, REPEATS)
    rates = [
        headscope.classify(model, arguments.treebank, language="en").relations_frame()
        for model in models.values()
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

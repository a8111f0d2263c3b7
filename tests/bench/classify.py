"""How fast is classify? Ours against what a user would do instead, side by side in one run.

Run from the repository: ``python tests/bench/classify.py TREEBANK.conllu``. Prints medians and
ratios, and asserts nothing: machines differ.

1. Ours against the bare SDPA forward pass over the same batches, and against a script that takes
   ``output_attentions=True`` sentence by sentence and counts what peer_scripts.py counts (on every
   k-th sentence, scaled up).
2. bfloat16 against float32: time, and how far the rates move.
"""

import argparse
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import wordfreq
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
from headscope.models.loaded import LoadedModel
from headscope.models.routing import Router, routed, use_implementation

REPEATS = 3


def batches_of(loaded: LoadedModel, corpus: Corpus) -> list[Batch]:
    encoder = Encoder(loaded, find_frequencies(corpus, None, "en"))
    return [
        collate(batch, loaded.pad_id)
        for window in windows(placed(corpus, encoder.encode(iter(corpus))))
        for batch in buckets(window)
    ]


def ours(loaded: LoadedModel, batches: list[Batch]) -> None:
    reducer = HeadMeasures(loaded.n_layers, loaded.n_heads).reducer()
    with routed(loaded.model, Router(loaded.sites, [reducer])) as router:
        for batch in batches:
            reducer.start(batch)
            router.run(lambda batch=batch: loaded.forward(batch.input_ids, batch.attention_mask))


def bare_sdpa(loaded: LoadedModel, batches: list[Batch]) -> None:
    with use_implementation(loaded.model, "sdpa"), torch.no_grad():
        for batch in batches:
            loaded.forward(batch.input_ids, batch.attention_mask)


def script(loaded: LoadedModel, sentences: list[Sentence]) -> None:
    """What a user would write."""
    counts = HeadCounts()
    with use_implementation(loaded.model, "eager"), torch.no_grad():
        for sentence in sentences:
            words = list(sentence.words)
            encoded = loaded.tokenizer(words, is_split_into_words=True, return_tensors="pt")
            attentions = loaded.model(**encoded, output_attentions=True).attentions
            rarity = [wordfreq.word_frequency(word.lower(), "en") for word in words]
            tree = {"heads": sentence.heads or (), "relations": sentence.relations or ()}
            given = {"words": words, "rarest": int(np.argmin(rarity)), **tree}
            counts.add((layer[0].numpy() for layer in attentions), encoded, given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("treebank", nargs="?", type=Path, help="default: the built-in sample")
    parser.add_argument("--every", type=int, default=8, help="k of the per-sentence script")
    given = parser.parse_args()
    corpus = as_corpus(given.treebank)
    loaded, half = headscope.load("demo"), headscope.load("demo", dtype="bfloat16")
    batches = batches_of(loaded, corpus)
    threads, some = torch.get_num_threads(), list(corpus)[:: given.every]
    print(f"{corpus.n_sentences} sentences in {len(batches)} batches, {threads} threads")
    jobs = {
        "ours": lambda: ours(loaded, batches),
        "sdpa": lambda: bare_sdpa(loaded, batches),
        "script": lambda: script(loaded, some),
        "bfloat16": lambda: ours(half, batches),
    }
    times = medians(jobs, REPEATS)
    print(f"ours {times['ours']:.2f} s, bare SDPA {times['sdpa']:.2f} s")
    print(f"ours / bare SDPA: {times['ours'] / times['sdpa']:.2f}")
    seconds = times["script"] * corpus.n_sentences / len(some)
    print(f"per-sentence script {seconds:.1f} s, of ours: {seconds / times['ours']:.1f}")

    rates = [
        headscope.classify(model, given.treebank, language="en").relations_frame()
        for model in (loaded, half)
    ]
    moved = (rates[0].accuracy - rates[1].accuracy).abs()[rates[0].trials >= 50]
    labels = (rates[0].labelled != rates[1].labelled).sum()
    print(
        f"bfloat16: {times['ours'] / times['bfloat16']:.2f} times as fast; accuracies with 50 "
        f"trials or more move by {moved.mean():.4f} on average, {moved.max():.3f} at most; "
        f"{labels} syntactic labels differ"
    )


if __name__ == "__main__":
    main()

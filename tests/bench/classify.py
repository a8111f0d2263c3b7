"""How fast is classify? Ours against what a user would do instead, side by side in one run.

Run from the repository: ``python tests/bench/classify.py TREEBANK.conllu``. Prints medians and
ratios, and asserts nothing: machines differ.

1. Ours against the bare SDPA forward pass over the same batches, and against a script that takes
   ``output_attentions=True`` sentence by sentence and counts what peer_scripts.py counts (on every
   k-th sentence, ``--every``, scaled up).
2. bfloat16 against float32: time, and how far the rates move.
"""

from itertools import islice

import numpy as np
import torch
import wordfreq
from peer_scripts import HeadCounts
from timing import medians, options

import headscope
from headscope.analyses.classify.rows import RowReducer
from headscope.analyses.classify.sums import HeadMeasures
from headscope.data.batches import buckets, collate
from headscope.data.corpus import WINDOW, as_corpus
from headscope.data.frequencies import find_frequencies
from headscope.data.word_pieces import encode_words, placed
from headscope.models.run.implementation import use_implementation
from headscope.models.run.routing import Router, routed


def batches_of(loaded, corpus):
    """The corpus as batches, sorted by length within each window of sentences."""
    frequencies = find_frequencies(corpus, None, "en")
    encoded = encode_words(loaded, placed(corpus), frequencies=frequencies)
    batches = []
    while window := list(islice(encoded, WINDOW)):
        batches += [collate(batch, loaded.pad_id) for batch in buckets(window)]
    return batches


def ours(loaded, batches):
    shape = loaded.n_layers, loaded.n_heads
    reducer = RowReducer(*shape, HeadMeasures(*shape).update)
    with routed(loaded.model, Router(loaded.sites, [reducer])) as router:
        for batch in batches:
            reducer.start(batch)
            router.run(lambda batch=batch: loaded.forward(batch.input_ids, batch.attention_mask))


def bare_sdpa(loaded, batches):
    with use_implementation(loaded.model, "sdpa"), torch.no_grad():
        for batch in batches:
            loaded.forward(batch.input_ids, batch.attention_mask)


def script(loaded, sentences):
    """What a user would write."""
    counts = HeadCounts()
    with use_implementation(loaded.model, "eager"), torch.no_grad():
        for sentence in sentences:
            words = list(sentence.words)
            encoded = loaded.tokenizer(words, is_split_into_words=True, return_tensors="pt")
            attentions = loaded.model(**encoded, output_attentions=True).attentions
            rarity = [wordfreq.word_frequency(word.lower(), "en") for word in words]
            tree = {"heads": sentence.heads or (), "relations": sentence.relations or ()}
            inputs = {"words": words, "rarest": int(np.argmin(rarity)), **tree}
            counts.add((layer[0].numpy() for layer in attentions), encoded, inputs)


def main():
    settings = options(__doc__, "treebank?", every=8)
    corpus = as_corpus(settings.treebank)
    loaded = headscope.load("demo")
    half = headscope.load("demo", dtype="bfloat16")
    batches = batches_of(loaded, corpus)
    some = list(corpus)[:: settings.every]
    size = f"{corpus.n_sentences} sentences in {len(batches)} batches"
    print(f"{size}, {torch.get_num_threads()} threads")
    jobs = {
        "ours": lambda: ours(loaded, batches),
        "sdpa": lambda: bare_sdpa(loaded, batches),
        "script": lambda: script(loaded, some),
        "bfloat16": lambda: ours(half, batches),
    }
    a, bare, plain, short = medians(jobs, 3).values()
    plain *= corpus.n_sentences / len(some)
    print(f"ours {a:.2f} s, bare SDPA {bare:.2f} s\nours / bare SDPA: {a / bare:.2f}")
    print(f"per-sentence script {plain:.1f} s, of ours: {plain / a:.1f}")

    single = headscope.classify(loaded, settings.treebank, language="en").relations_frame()
    brief = headscope.classify(half, settings.treebank, language="en").relations_frame()
    has_trials = single.trials >= 50
    moved = (single.accuracy - brief.accuracy).abs()[has_trials]
    print(
        f"bfloat16: {a / short:.2f} times as fast; accuracies with 50 trials or more move by "
        f"{moved.mean():.4f} on average, {moved.max():.3f} at most; "
        f"{(single.labelled != brief.labelled).sum()} syntactic labels differ"
    )


if __name__ == "__main__":
    main()

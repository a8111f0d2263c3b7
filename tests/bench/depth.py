"""Does depth reproduce the reference curve, and what does it cost?

Run from the repository: ``python tests/bench/depth.py [TEXT.txt]``. Prints and asserts nothing.

1. BERT-base geometry (BertConfig's defaults: 12 layers, d_model 768) with random weights, windows
   of 128 tokens: the ratios over several initialisations, on random token ids and, if a text is
   given, on windows of it (the demo model's vocabulary is BERT's), beside the reference.
2. The pass of ``depth`` (six variants, the model's own states, every ratio) against one bare
   forward pass of the model per variant and one for the model, on the demo model.
"""

import numpy as np
import torch
from timing import medians, options, print_head, print_row
from transformers import BertConfig, BertModel

import headscope
from headscope.analyses.depth.measure import VARIANTS, own_run, residual_ratio, run_variant
from headscope.data.corpus import as_plain
from headscope.data.packing import pack
from headscope.models.anatomy.layers import take_apart
from headscope.models.run.routing import Router

REFERENCE = {"embeddings": 0.612, "attention 1": 0.018, "attention 2": 0.0}
REFERENCE |= {"attention+skip 12": 0.449, "full 12": 0.345}


def ratios(loaded, input_ids):
    """Mean ratios, over the windows given, at the points that the reference has."""
    layers = take_apart(loaded).layers
    curves = {}
    with torch.no_grad():
        model_run = own_run(loaded, layers, input_ids)
        for variant in VARIANTS:
            states = run_variant(layers, Router(loaded.sites), model_run, variant)
            curves[variant.name] = [float(residual_ratio(hidden).mean()) for hidden in states]
    return [*curves["attention"][:3], curves["attention+skip"][12], curves["full"][12]]


def reference_curve(seeds, windows):
    reference = np.array(list(REFERENCE.values()))
    print_head(("weights", *REFERENCE, "of the reference"))
    print_row(("reference", *(f"{value:.3f}" for value in reference), ""))
    by_data = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        loaded = headscope.wrap(BertModel(BertConfig()))
        texts = {"random ids": torch.randint(0, loaded.vocab_size, (2, 128))}
        if windows is not None:
            texts["text"] = torch.from_numpy(windows.batch(windows.spread(2)))
        for data, ids in texts.items():
            values = ratios(loaded, ids)
            by_data.setdefault(data, []).append(values)
            near = "within 0.05" if np.all(np.abs(values - reference) <= 0.05) else ""
            print_row((f"seed {seed}, {data}", *(f"{value:.3f}" for value in values), near))
    for data, rows in by_data.items():
        spread = zip(np.mean(rows, axis=0), np.std(rows, axis=0, ddof=1), strict=True)
        cells = [f"{mean:.3f} +-{std:.3f}" for mean, std in spread]
        print_row((f"mean +-std, {data}", *cells, ""))


def print_cost():
    """Ours against as many bare forward passes."""
    loaded = headscope.load("demo", dtype="float64")
    passes = len(VARIANTS) + 1
    windows = pack(as_plain(None), loaded, 128)
    chosen = torch.from_numpy(windows.batch(windows.spread(16)))

    def bare():
        with torch.no_grad():
            for ids in chosen.split(8) * passes:
                loaded.forward(ids, torch.ones_like(ids))

    headscope.validate(loaded)

    def measured():
        headscope.depth(loaded, sequences=16, control=False)

    seconds = medians({"depth": measured, "bare": bare}, 3)
    ratio = seconds["depth"] / seconds["bare"]
    print(
        f"depth {seconds['depth']:.2f} s, {passes} bare passes {seconds['bare']:.2f} s: "
        f"ratio {ratio:.2f}"
    )


def main():
    chosen = options(__doc__, "text?", seeds=8)
    windows = None
    if chosen.text:
        windows = pack(as_plain(chosen.text), headscope.load("demo"), 128)
    reference_curve(chosen.seeds, windows)
    print_cost()


if __name__ == "__main__":
    main()

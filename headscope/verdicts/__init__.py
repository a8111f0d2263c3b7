"""What judges results: claims, comparisons, limits. Results in, judgements out; no torch."""

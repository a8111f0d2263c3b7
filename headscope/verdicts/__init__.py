"""What judges results: claims, comparisons, limits. Results in, judgements out; no torch."""

from headscope.verdicts.reading import Results, read_results, results_of

__all__ = ["Results", "read_results", "results_of"]

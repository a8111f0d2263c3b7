"""The parts of ``headscope prune``: data, scores, repairs, curves, tables, and what is kept."""

"""``headscope prune``: choose heads, remove them, repair and measure what is left, keep a model."""

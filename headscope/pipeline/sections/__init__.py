"""Several commands in one run: sections that share a model, and those taken from an earlier run."""

"""Eleven claims of the literature, tested on a model."""

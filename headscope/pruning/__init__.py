"""Choosing heads and taking them out: pure tensors, no files, no models."""

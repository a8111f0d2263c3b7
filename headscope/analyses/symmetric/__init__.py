"""Scores made symmetric before the softmax."""

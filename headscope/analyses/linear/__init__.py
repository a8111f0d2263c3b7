"""Attention without its softmax."""

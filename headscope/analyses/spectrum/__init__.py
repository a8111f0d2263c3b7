"""Singular values of softmax matrices."""

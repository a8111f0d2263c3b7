"""Ranks of the weights of heads."""

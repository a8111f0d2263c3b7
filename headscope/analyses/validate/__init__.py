"""Proof that our attention equals the model's."""

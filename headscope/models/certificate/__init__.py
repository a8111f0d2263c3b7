"""The proof that our attention equals the model's, layer by layer, and its values."""

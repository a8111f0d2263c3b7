"""What becomes of tokens with depth."""

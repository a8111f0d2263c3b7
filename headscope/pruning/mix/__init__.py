"""Heads, neurons, layers and vocabulary removed together, for a target of speed or size."""

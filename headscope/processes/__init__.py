"""Several processes that share one run: who they are, and what they tell each other."""

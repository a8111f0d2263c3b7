"""Tasks: what a model is run on, and what is calibrated on their examples."""

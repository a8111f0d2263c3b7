"""The claims of the literature, tested on one model."""

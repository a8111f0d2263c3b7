"""Every command on one model, and the claims of the literature."""

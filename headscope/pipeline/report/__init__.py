"""Every command on one model, and the patterns that its page shows."""

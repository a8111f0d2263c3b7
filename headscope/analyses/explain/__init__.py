"""One sentence through one head."""

"""What each head does."""

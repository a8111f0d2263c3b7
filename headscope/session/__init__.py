"""What every run on a model shares: its options, and the way in from Python."""

"""One folder for each analysis: its options, stated once."""

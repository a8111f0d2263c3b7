"""One folder for each analysis: its options, measurement, result and view."""

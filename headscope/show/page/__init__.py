"""The report as one HTML page."""

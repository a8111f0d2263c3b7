"""The folder of a report."""

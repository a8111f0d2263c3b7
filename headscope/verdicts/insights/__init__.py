"""Eleven claims of the literature: from results to verdicts."""

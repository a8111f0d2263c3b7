"""The claims of the source articles: one file per claim, from results to a verdict."""

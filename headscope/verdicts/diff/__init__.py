"""Two sets of results compared, and the rules that a comparison can break."""

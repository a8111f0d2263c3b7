"""How a comparison looks."""

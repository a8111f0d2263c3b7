"""Everything a person sees, drawn from results alone."""

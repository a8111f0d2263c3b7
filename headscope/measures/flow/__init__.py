"""How information flows through heads: what they pass on, hubs, and trees in the attention."""

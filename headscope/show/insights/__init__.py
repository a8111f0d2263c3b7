"""How the scoreboard of ``insights`` looks."""

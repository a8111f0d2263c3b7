"""How the certificate looks."""

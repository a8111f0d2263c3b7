"""How the certificate looks."""

from headscope.show.validate.view import VIEW

__all__ = ["VIEW"]

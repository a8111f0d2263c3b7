"""How ``symmetric`` looks."""

from headscope.show.symmetric.view import VIEW

__all__ = ["VIEW"]

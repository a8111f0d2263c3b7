"""How ``explain`` looks."""

from headscope.show.explain.view import VIEW

__all__ = ["VIEW"]
